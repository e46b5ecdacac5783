"""Where tests find what is not theirs: the checkout, and real data beside it or in METAVIB_DATA."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"
DATA = Path(os.environ.get("METAVIB_DATA") or SHARED / "data")
PATIENCE = 1200.0  # seconds to wait for what must come: a busy machine takes its time
