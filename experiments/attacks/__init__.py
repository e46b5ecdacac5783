"""The parts of `attack.py`: a served model, a polite client beside the attack, and the attacks, a file each."""
