r"""Many programmes in one call, each with its own status.

Small hard-margin programmes go through compiled code together, those of the Frobenius norm through
:func:`attsvm.solvers.compiled.solve_many`, those of l1 and linf through
:mod:`attsvm.solvers.polyhedral`; every other one, and every one that is not settled there, through
the ordinary solver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from attsvm.base.cores import shared_out
from attsvm.base.errors import InputError
from attsvm.base.presentation import cell
from attsvm.base.printable import Compact
from attsvm.datasets.attention_data import BoolArray, FloatArray, IntArray
from attsvm.margins import Margins, MarginsBatch
from attsvm.norms import Frobenius, Norm
from attsvm.solvers import compiled, polyhedral
from attsvm.solvers.compiled import FEW_ROWS, CompiledSolution
from attsvm.solvers.outcomes import Request, kept
from attsvm.solvers.proofs import Certificate
from attsvm.solvers.solution import MarginSolution

# The C library keeps freed memory up to twice the largest block that was given back to it. Without
# one of this size, which is never written to, each batch would ask the system for its arrays anew.
np.empty(1 << 21)


@dataclass(frozen=True, eq=False, repr=False)
class SolutionBatch(Compact, Sequence[MarginSolution]):
    r"""The solutions of ``B`` programmes as arrays; ``batch[k]`` is the k-th with everything a
    :class:`MarginSolution` has.

    The numbers are those of the single solutions: gaps and violations are certified from the data
    of each programme.

    Attributes:
        margins: the programmes.
        status: ``(B,)`` strings, see :attr:`MarginSolution.status`.
        W: ``(B, d_x, d_z)`` weights, zeros where infeasible; a list of matrices when the programmes
            have weights of several shapes.
        norm: ``(B,)``, ``inf`` where infeasible.
        gap: ``(B,)``, rigorous relative duality gaps.
        violation: ``(B,)``, largest missed margin.
        dual: ``(M,)`` multipliers of all programmes end to end, Farkas certificates where
            infeasible.
        rows: ``(B + 1,)``, where those of each programme begin: ``dual[rows[k]:rows[k + 1]]``.

    Example:
        >>> import numpy as np
        >>> import attsvm
        >>> tokens = np.random.default_rng(0).normal(size=(20, 2, 3, 2))
        >>> data = attsvm.AttentionData(tokens, np.ones((20, 2)), queries=np.ones((20, 2, 1)))
        >>> programmes = attsvm.selection_batch(data, np.zeros((20, 2), dtype=int))
        >>> batch = attsvm.max_margin_batch(programmes)
        >>> len(batch), batch.W.shape, int(batch.optimal.sum())
        (20, (20, 2, 1), 11)
        >>> batch[int(np.argmin(batch.optimal))].status
        'infeasible'
    """

    margins: Sequence[Margins]
    status: NDArray[Any]
    W: FloatArray | list[FloatArray]
    norm: FloatArray
    gap: FloatArray
    violation: FloatArray
    dual: FloatArray
    rows: IntArray
    _blur: FloatArray = field(repr=False)
    _systems: IntArray = field(repr=False)
    _request: Request | None = field(repr=False)
    _norm: Norm = field(repr=False)
    _proofs: dict[int, Certificate] = field(repr=False)
    _written: dict[int, MarginSolution] = field(repr=False)

    @property
    def optimal(self) -> BoolArray:
        """``(B,)``: True where the status is ``optimal``."""
        return np.asarray(self.status == "optimal")

    def _repr_html_(self) -> str:
        return cell(self)

    def __len__(self) -> int:
        return len(self.margins)

    @overload
    def __getitem__(self, index: int) -> MarginSolution: ...

    @overload
    def __getitem__(self, index: slice) -> list[MarginSolution]: ...

    def __getitem__(self, index: int | slice) -> MarginSolution | list[MarginSolution]:
        if isinstance(index, slice):
            return [self[k] for k in range(*index.indices(len(self)))]
        k = range(len(self))[index]
        if k not in self._written:
            self._written[k] = self._from_figures(k)
        return self._written[k]

    def _from_figures(self, k: int) -> MarginSolution:
        assert self._request is not None
        systems = int(self._systems[k])
        if k in self._proofs:
            return polyhedral.certified_solution(
                self.margins[k], self._norm, self._proofs[k], self._request, systems
            )
        found = CompiledSolution(
            self.W[k],
            self.dual[self.rows[k] : self.rows[k + 1]],
            float(self.norm[k]),
            float(self.gap[k]),
            float(self.violation[k]),
            float(self._blur[k]),
        )
        return found.solution(self.margins[k], self._request, systems)


def solve_all(
    programmes: Sequence[Margins],
    norm: Norm,
    one: Callable[[Margins], MarginSolution],
    together: Request | None,
    first: int = 0,
) -> SolutionBatch:
    """Every programme solved: small ones in compiled code when there is a request for it, the
    others by ``one``.

    Raises:
        InputError: what ``one`` refuses, with the position of the programme, from ``first`` on.
    """
    count = len(programmes)
    if isinstance(programmes, MarginsBatch):
        rows, shapes = programmes.rows, [programmes.shape] * count
    else:
        rows = np.concatenate(
            [[0], np.cumsum([len(each.differences) for each in programmes])]
        ).astype(np.int64)
        shapes = [(each.differences.shape[1], each.queries.shape[1]) for each in programmes]
    W: FloatArray | list[FloatArray] = (
        np.zeros((count, *shapes[0]))
        if len(set(shapes)) == 1
        else [np.zeros(shape) for shape in shapes]
    )
    status, figures, dual = (
        np.full(count, "", dtype="<U17"),
        np.zeros((count, 4)),
        np.zeros(int(rows[-1])),
    )
    systems = np.zeros(count, dtype=np.int64)
    written: dict[int, MarginSolution] = {}
    proofs: dict[int, Certificate] = {}
    if together is not None:
        for batch, chosen in _stacks(programmes, shapes, _fits(programmes, norm, rows, shapes)):
            if norm == Frobenius():
                arrays = batch.differences, batch.queries, batch.offsets, batch.instances, batch.rhs
                found = compiled.solve_many(*arrays)
            else:
                found, certified = polyhedral.certify_batch(batch, norm, together)
                proofs |= {int(chosen[j]): proof for j, proof in certified.items()}
            optimal = found.outcome == compiled.WEIGHTS
            optimal &= kept(
                np.maximum(found.figures[:, 1], found.figures[:, 2]),
                found.figures[:, 3],
                together.tol,
            )
            figures[chosen], systems[chosen] = found.figures, found.systems
            status[chosen[optimal]] = "optimal"
            if len(chosen) == count:
                W, dual = found.W, found.dual
            else:
                parts = np.split(found.dual, batch.rows[1:-1])
                for k, weights, multipliers in zip(chosen.tolist(), found.W, parts, strict=True):
                    W[k], dual[rows[k] : rows[k + 1]] = weights, multipliers
            for k in chosen[found.outcome == compiled.CONTRADICTION].tolist():
                part = slice(rows[k], rows[k + 1])
                verdict = compiled.contradiction(
                    programmes[k], dual[part], together, int(systems[k])
                )
                if verdict.status == "infeasible":
                    written[k] = replace(verdict, geometry=norm)
                    status[k], dual[part] = "infeasible", verdict.dual

    def settled(k: int) -> MarginSolution:
        try:
            return one(programmes[k])
        except InputError as error:
            raise InputError(f"programme {first + k}: {error}") from None

    left = np.flatnonzero(status == "").tolist()
    for k, solution in zip(left, shared_out(settled, left), strict=True):
        written[k] = solution
        status[k], W[k], dual[rows[k] : rows[k + 1]] = solution.status, solution.W, solution.dual
        figures[k], systems[k] = (
            (solution.norm, solution.gap, solution.violation, 0.0),
            solution.iterations,
        )
    length, gap, violation, blur = np.ascontiguousarray(figures.T)
    return SolutionBatch(
        programmes,
        status,
        W,
        length,
        gap,
        violation,
        dual,
        rows,
        blur,
        systems,
        together,
        norm,
        proofs,
        written,
    )


def _fits(
    programmes: Sequence[Margins], norm: Norm, rows: IntArray, shapes: list[tuple[int, int]]
) -> BoolArray:
    """The programmes that are small enough for compiled code."""
    few: BoolArray = np.diff(rows) <= FEW_ROWS
    if norm == Frobenius():
        queries = (
            np.diff(programmes.instances)
            if isinstance(programmes, MarginsBatch)
            else np.array([len(each.queries) for each in programmes])
        )
        return few & (queries <= FEW_ROWS)
    sizes = zip(np.diff(rows).tolist(), shapes, strict=True)
    return few & np.array([polyhedral.fits(*size) for size in sizes], dtype=np.bool_)


def _stacks(
    programmes: Sequence[Margins], shapes: list[tuple[int, int]], fits: BoolArray
) -> Iterator[tuple[MarginsBatch, IntArray]]:
    """The programmes that fit and hold inequalities and finite numbers only, stacked by shape, with
    their positions.
    """
    if isinstance(programmes, MarginsBatch) and fits.all():
        stacks = [(programmes, np.arange(len(programmes)))] if len(programmes) else []
    else:
        groups: dict[tuple[int, int], list[int]] = {}
        for k in np.flatnonzero(fits).tolist():
            if programmes[k].equality is None:
                groups.setdefault(shapes[k], []).append(k)
        stacks = [
            (MarginsBatch.stack([programmes[k] for k in chosen]), np.array(chosen))
            for chosen in groups.values()
        ]
    for batch, positions in stacks:
        # A programme that must be refused is left to the front door, which knows the words.
        if (
            all(np.isfinite(array).all() for array in (batch.differences, batch.queries, batch.rhs))
            and (batch.rhs >= 0.0).all()
        ):
            yield batch, positions


Solve = Callable[[int, Sequence[Margins]], SolutionBatch]
"""Solves programmes of which the first has this number."""

_PARTS = 4  # for each call that can run at a time


def spread(programmes: Sequence[Margins], solve: Solve, executor: Any) -> SolutionBatch:
    """All the programmes, solved part by part.

    Args:
        programmes: at least one.
        solve: called by the executor; picklable.
        executor: a :class:`concurrent.futures.Executor`, or what
            :func:`attsvm.base.workers.workers` takes instead.

    Raises:
        InputError: what ``solve`` refuses.
        AttsvmError: a process of the executor was killed.
    """
    from attsvm.base.workers import results, slots, workers  # pools of processes

    with workers(executor=executor) as chosen:
        size = -(-len(programmes) // (_PARTS * slots(chosen)))
        firsts = range(0, len(programmes), size)
        batch = [(solve, first, list(programmes[first : first + size])) for first in firsts]
        found = dict(results(chosen, _part, batch))
    return _joined(programmes, [(first, found[first]) for first in firsts])


def _part(solve: Solve, first: int, programmes: Sequence[Margins]) -> tuple[int, SolutionBatch]:
    """The solutions without the programmes, which are known where they came from."""
    return first, replace(solve(first, programmes), margins=())


def _joined(
    programmes: Sequence[Margins], parts: Sequence[tuple[int, SolutionBatch]]
) -> SolutionBatch:
    batches = [batch for _, batch in parts]
    weights: list[Any] = [batch.W for batch in batches]
    shapes = {each.shape[1:] if isinstance(each, np.ndarray) else None for each in weights}
    begins = np.cumsum([0, *(batch.rows[-1] for batch in batches)])
    rows = [batch.rows[1:] + begin for batch, begin in zip(batches, begins, strict=False)]
    return SolutionBatch(
        programmes,
        np.concatenate([batch.status for batch in batches]),
        np.concatenate(weights)
        if len(shapes) == 1 and None not in shapes
        else [W for each in weights for W in each],
        np.concatenate([batch.norm for batch in batches]),
        np.concatenate([batch.gap for batch in batches]),
        np.concatenate([batch.violation for batch in batches]),
        np.concatenate([batch.dual for batch in batches]),
        np.concatenate([[0], *rows]),
        np.concatenate([batch._blur for batch in batches]),
        np.concatenate([batch._systems for batch in batches]),
        batches[0]._request,
        batches[0]._norm,
        {first + k: proof for first, batch in parts for k, proof in batch._proofs.items()},
        {
            first + k: replace(solution, margins=programmes[first + k])
            for first, batch in parts
            for k, solution in batch._written.items()
        },
    )
