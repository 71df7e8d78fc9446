"""Blocks of a programme: their forms say the same as the margins they stand for, and bad ones are
refused by name.
"""

from __future__ import annotations

import numpy as np
import pytest
from explicit import rows_of

from attsvm import AttentionData, InputError, Margins, pair_margins, selection_margins
from attsvm.margins.blocks import block_rows
