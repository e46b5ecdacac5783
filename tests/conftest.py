"""What all tests share: shapes are checked, caches go to a temporary folder, real data is found or skipped by name."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest
from jaxtyping import install_import_hook

# Before the first import of metavib: from here on every annotated shape and type is checked at run time.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    install_import_hook("metavib", "beartype.beartype")

os.environ.setdefault("PYTHONHASHSEED", "0")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the user's cache."""
    monkeypatch.setenv("METAVIB_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Real MNIST, PACS and weights: METAVIB_DATA, or `../shared/data` beside the checkout."""
    root = Path(os.environ.get("METAVIB_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not root.is_dir():
        pytest.skip(
            f"no real data in {root}: set METAVIB_DATA to a folder with mnist, pacs, pacs_splits, weights"
        )
    return root
