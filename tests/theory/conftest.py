"""Constraints written out as matrices are checked as those of ``tests/margins`` are."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "margins"))
