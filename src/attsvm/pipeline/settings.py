"""What the user of a fit can choose, without anything heavy: the command line shows these defaults
in its help.
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class FitSettings(NamedTuple):
    """Everything about a fit that the user can choose; the defaults suit data of a few hundred to
    ten thousand sequences.

    Selection and margin mean what :class:`attsvm.sklearn.Limits` says, with the same defaults.
    """

    assumption: str = "collective"
    seed: int = 0
    norm: str = "fro"
    test_size: float = 0.25
    class_weight: str | None = None
    selection_steps: int | None = None
    lr: float | None = None
    records: int = 60
    tol: float | None = None
    slack: float = 1.0
    solve_seconds: float = 600.0
    saturation: float = 0.99
    predictions_format: Literal["csv", "parquet"] = "csv"
