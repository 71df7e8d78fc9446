r"""Sizes of columns: features in different units, measured and brought to one size.

With :math:`\delta_c=S\hat\delta_c` and :math:`z_i=Q\hat z_i` for diagonal :math:`S, Q` of powers of
two the margins are those of :math:`\hat W=SWQ`. The entries of :math:`\hat W` then differ in what
they cost, :math:`\|W\|` is a norm of :math:`(g_{ae}\hat W_{ae})` with
:math:`g_{ae}=1/(s_aq_e)`, and both programmes have the same multipliers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.margins import Margins
from attsvm.solvers.programme import Programme


class SizeOptions(NamedTuple):
    """From where on sizes of columns matter; chosen on random programmes with features in units up
    to 1e12 apart.

    Attributes:
        near: exponents by which columns may differ, and :func:`even_columns` does nothing.
        bits: ratio of the largest to the smallest column from which on capped columns come first,
            as a power of two; below it the Gram matrix has digits enough.
        last: that ratio from which on they are tried where other methods have failed.
        entries: entries of the rows written out, at most.
    """

    near: int = 7
    bits: int = 14
    last: int = 8
    entries: int = 1 << 23


SIZES = SizeOptions()


class Even(NamedTuple):
    """A programme with columns of one size.

    Attributes:
        margins: the programme; the caller's where its columns are not far apart.
        powers: ``(d_x, d_z)`` exponents of what the entries of the weights were multiplied with.
    """

    margins: Margins
    powers: IntArray

    @property
    def uneven(self) -> bool:
        """Whether columns were far apart."""
        return bool(self.powers.any())

    def costs(self) -> FloatArray:
        """``(d_x d_z,)`` what each entry counts in the norm, at most 1."""
        cost: FloatArray = np.ldexp(1.0, self.powers.min() - self.powers).reshape(-1)
        return cost

    def restored(self, W: FloatArray) -> FloatArray:
        """Weights of the programme whose columns are as they are."""
        return np.ldexp(W, -self.powers) if self.uneven else W


def even_columns(margins: Margins, options: SizeOptions = SIZES) -> Even:
    """The programme with columns of one size, if they are far apart."""
    left, right = (_far_exponents(rows, options) for rows in (margins.differences, margins.queries))
    powers = left[:, None] + right
    if not powers.any():
        return Even(margins, powers)
    D, Z = np.ldexp(margins.differences, -left), np.ldexp(margins.queries, -right)
    return Even(replace(margins, differences=D, queries=Z), powers)


def uneven_columns(p: Programme, bits: int, options: SizeOptions = SIZES) -> IntArray | None:
    """``(d_x, d_z)``: exponents of the columns' sizes, where their ratio has so many bits and the
    rows can be written out; ``None`` elsewhere.
    """
    if p.m * p.dof > options.entries:
        return None
    # rows are of norm one: where the largest entries of columns are alike, so are the columns
    if 2 * (_entry_spread(p.D) + _entry_spread(p.Z)) < bits:
        return None
    left, right = _column_exponents(p.D), _column_exponents(p.Z)
    spread = sum(int(np.ptp(exponents)) if len(exponents) else 0 for exponents in (left, right))
    return left[:, None] + right if spread >= bits else None


def _far_exponents(rows: FloatArray, options: SizeOptions) -> IntArray:
    """Exponents of columns, the smallest 0; all 0 where the columns are near each other."""
    is_used = rows.any(axis=0)
    if _entry_spread(rows) <= options.near:
        return np.zeros(rows.shape[1], dtype=np.int64)
    exponents = _column_exponents(rows)
    return np.where(is_used, exponents - exponents[is_used].min(), 0)


def _column_exponents(rows: FloatArray) -> IntArray:
    """Exponents of columns, after rows and columns took turns in being brought to size one."""
    size = np.abs(rows)
    largest = size.max(axis=0, initial=0.0)
    is_used = largest > 0.0
    total = np.zeros(rows.shape[1], dtype=np.int64)
    finite = 1000  # powers of two up to this one are float64 numbers
    for _ in range(3):
        column = (np.frexp(largest)[1] * is_used).clip(-finite, finite)
        total += column
        # products with powers of two are exact, and quicker than `ldexp` of the whole array
        size *= np.ldexp(1.0, -column)
        size *= np.ldexp(1.0, -np.frexp(size.max(axis=1, initial=0.0))[1].clip(-finite))[:, None]
        largest = size.max(axis=0, initial=0.0)
        if (largest[is_used] >= 0.25).all():  # of size one as they are
            break
    if is_used.any() and not is_used.all():  # columns of zeros are like any other
        total[~is_used] = total[is_used].max()
    return total


def _entry_spread(rows: FloatArray) -> int:
    """Exponent of the ratio of the largest entries of columns."""
    largest = np.maximum(rows.max(axis=0, initial=0.0), -rows.min(axis=0, initial=0.0))
    exponents = np.frexp(largest[largest > 0.0])[1]
    return int(np.ptp(exponents)) if len(exponents) else 0
