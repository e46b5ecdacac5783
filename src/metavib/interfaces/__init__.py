"""How users call metavib: the command line, scikit-learn, Python, DomainBed.

`__all__` names the modules that `metavib` itself and users may use.
"""

__all__ = [
    "cli",
    "domainbed",
    "folder_training",
    "manifests",
    "sklearn",
]
