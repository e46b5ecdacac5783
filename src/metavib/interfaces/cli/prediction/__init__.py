"""`metavib predict`: which files are asked about, and how the answers are written."""
