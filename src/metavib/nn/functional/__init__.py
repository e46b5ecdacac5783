"""Mathematics without parameters or state: distributions as values, losses as pure functions."""
