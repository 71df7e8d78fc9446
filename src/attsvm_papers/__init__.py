"""The laboratory: figures and tables of the papers, a file each, computed with the public API of
:mod:`attsvm` and held against the papers' claims.

A folder is a paper, its file ``e3_three_sequences.py`` is that paper's third experiment, and
:mod:`attsvm_papers.kit` is what such a file is written with. :func:`reproduce` computes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["reproduce"]

if TYPE_CHECKING:
    from attsvm_papers.runs.reproduce import reproduce


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'attsvm_papers' has no attribute {name!r}")
    from attsvm_papers.runs.reproduce import reproduce  # a second: not for the help of a command

    return reproduce
