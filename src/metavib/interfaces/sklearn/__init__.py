"""A scikit-learn classifier."""
