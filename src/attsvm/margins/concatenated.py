"""Many programmes end to end in memory, for solvers that take them all at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import ArrayLike

from attsvm.base.errors import InputError
from attsvm.base.printable import Compact
from attsvm.datasets.attention_data import AttentionData, FloatArray, IntArray, require_data
from attsvm.margins.checks import check_batch, integers
from attsvm.margins.operator import Margins
from attsvm.margins.selection import against_rivals


@dataclass(frozen=True, eq=False, repr=False)
class MarginsBatch(Compact, Sequence[Margins]):
    """``B`` programmes of inequalities with weights of one shape; ``batch[k]`` is the k-th as
    :class:`Margins` that share its memory.

    Attributes:
        differences: ``(M, d_x)``, the differences of all programmes, programme by programme and in
            each sequence by sequence.
        queries: ``(N, d_z)``, the queries of all sequences.
        offsets: ``(N + 1,)``, where the rows of each sequence begin, from 0 to M.
        rhs: ``(M,)``, right-hand sides.
        token: ``(M,)``, see :attr:`Margins.token`.
        selected: ``(N,)``, see :attr:`Margins.selected`.
        instances: ``(B + 1,)``, where the sequences of each programme begin, from 0 to N.

    Raises:
        InputError: arrays that do not fit together.

    Example:
        >>> import attsvm
        >>> toys = [attsvm.datasets.toy(name) for name in ("single_global", "joint")]
        >>> programmes = [attsvm.selection_margins(toy.data, [0] * toy.data.n) for toy in toys]
        >>> batch = attsvm.MarginsBatch.stack(programmes)
        >>> len(batch), batch.shape, [margins.m for margins in batch]
        (2, (2, 1), [2, 3])
    """

    differences: FloatArray
    queries: FloatArray
    offsets: IntArray
    rhs: FloatArray
    token: IntArray
    selected: IntArray
    instances: IntArray

    def __post_init__(self) -> None:
        for name, array in check_batch(self).items():
            object.__setattr__(self, name, array)

    @classmethod
    def stack(cls, programmes: Sequence[Margins]) -> MarginsBatch:
        """A copy of these programmes, end to end.

        Raises:
            InputError: no programmes, weights of different shapes, or a programme with equalities.
        """
        if len(programmes) == 0:
            raise InputError("there are no programmes to stack; give at least one")
        shape = programmes[0].shape
        for k, programme in enumerate(programmes):
            if programme.shape != shape:
                raise InputError(
                    f"programme {k} has weights {programme.shape}, programme 0 {shape}; stack"
                    " programmes of one shape"
                )
            if programme.equalities.any():
                raise InputError(f"programme {k} holds equalities; a batch takes inequalities only")
        joined = {
            name: np.concatenate([getattr(programme, name) for programme in programmes])
            for name in ("differences", "queries", "rhs", "token", "selected")
        }
        counts = np.concatenate([np.diff(programme.offsets) for programme in programmes])
        offsets = np.concatenate([[0], np.cumsum(counts)])
        instances = np.concatenate([[0], np.cumsum([programme.n for programme in programmes])])
        return cls(**joined, offsets=offsets, instances=instances)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape ``(d_x, d_z)`` of the weights of every programme."""
        return int(self.differences.shape[1]), int(self.queries.shape[1])

    @property
    def rows(self) -> IntArray:
        """Positions ``(B + 1,)`` at which the rows of each programme begin."""
        return self.offsets[self.instances]

    def __len__(self) -> int:
        return len(self.instances) - 1

    @overload
    def __getitem__(self, index: int) -> Margins: ...

    @overload
    def __getitem__(self, index: slice) -> list[Margins]: ...

    def __getitem__(self, index: int | slice) -> Margins | list[Margins]:
        if isinstance(index, slice):
            return [self[k] for k in range(*index.indices(len(self)))]
        k = range(len(self))[index]
        i, j = self.instances[k], self.instances[k + 1]
        first, last = self.offsets[i], self.offsets[j]
        return Margins(
            self.differences[first:last],
            self.queries[i:j],
            self.offsets[i : j + 1] - first,
            self.rhs[first:last],
            self.token[first:last],
            self.selected[i:j],
        )


def selection_batch(data: AttentionData, tokens: ArrayLike) -> MarginsBatch:
    r"""The margins of a selection in every instance: :func:`~attsvm.margins.selection_margins` for
    data with leading axes.

    .. math:: (x_{ki\alpha_{ki}} - x_{kit})^\top W_k z_{ki} \ge 1 \qquad\text{for all visible }
        t\ne\alpha_{ki},\ \text{one } W_k
       \text{ per instance } k.

    Args:
        data: instances along the leading axes, which are flattened in row-major order.
        tokens: ``(..., n)`` integers, the selected token :math:`\alpha_{ki}` of each sequence of
            each instance, as
            :func:`attsvm.optimal_tokens` and :attr:`attsvm.Trajectory.selected` have them.

    Raises:
        InputError: wrong shape, no integers, a position that is out of range or masked.

    Example:
        >>> import numpy as np
        >>> import attsvm
        >>> rng = np.random.default_rng(0)
        >>> data = attsvm.AttentionData(rng.normal(size=(2, 3, 4, 5)), labels=np.ones((2, 3)))
        >>> batch = attsvm.selection_batch(data, tokens=np.zeros((2, 3), dtype=int))
        >>> len(batch), batch[1].m, attsvm.max_margin_batch(batch).status.tolist()
        (2, 9, ['optimal', 'optimal'])
    """
    require_data(data)
    selected = integers("tokens", tokens)
    expected = (*data.batch_shape, data.n)
    if selected.shape != expected:
        raise InputError(
            f"tokens has shape {selected.shape}; it must be {expected}, one selected token per"
            " sequence"
        )
    mask = data.mask.reshape(-1, data.T)
    chosen = selected.reshape(-1)
    wrong = (chosen < 0) | (chosen >= data.T)
    wrong |= ~mask[np.arange(len(mask)), np.where(wrong, 0, chosen)]
    if wrong.any():
        where = np.argwhere(wrong.reshape(expected))[0].tolist()
        raise InputError(
            f"tokens holds {selected[tuple(where)]} at {where}, which is not a visible position (0"
            f" to {data.T - 1}); select a visible token"
        )
    X, Z = data.tokens.reshape(-1, data.T, data.d_x), data.queries.reshape(-1, data.d_z)
    rows = against_rivals(X, Z, chosen, mask)
    instances = np.arange(0, len(mask) + 1, data.n)
    return MarginsBatch(
        rows.differences, rows.queries, rows.offsets, rows.rhs, rows.token, chosen, instances
    )
