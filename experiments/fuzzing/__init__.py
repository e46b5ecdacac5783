"""What `experiments/fuzz.py` is made of: a place to break things in, ways to break them, and a judge."""
