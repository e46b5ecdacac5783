"""How users call metavib: the command line, scikit-learn, Python, DomainBed."""
