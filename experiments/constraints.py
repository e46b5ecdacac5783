"""`make constraints`: the versions of this environment, as constraints for pip.

    python experiments/constraints.py > constraints.txt

What only one platform has is left out: torch names the versions of its CUDA libraries and of Triton itself, and
another platform has others. So is the part of a version that names a build.
"""

from __future__ import annotations

import re
from importlib import metadata

HEAD = """\
# The versions that the tests passed with. Made by: make constraints
# Used by: make install, and pip install --constraint constraints.txt ...
# CUDA libraries and Triton are not here: torch names their versions itself.
"""
PLATFORMS = re.compile(r"(nvidia|cuda)[-_].*|(pytorch-)?triton.*")
NOT_NEEDED = {"metavib", "pip", "setuptools", "wheel"}


def normal(name: str) -> str:
    """A package's name as packages are compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned() -> dict[str, str]:
    """The version of every package that is installed here and may be constrained."""
    found = {normal(own.metadata["Name"]): own.version.partition("+")[0] for own in metadata.distributions()}
    return {
        name: version
        for name, version in sorted(found.items())
        if name not in NOT_NEEDED and not PLATFORMS.fullmatch(name)
    }


if __name__ == "__main__":
    print(HEAD + "\n".join(f"{name}=={version}" for name, version in pinned().items()))
