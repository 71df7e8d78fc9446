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

from attsvm.base.cores import map_on_threads
from attsvm.base.errors import InputError
from attsvm.base.presentation import html_cell
from attsvm.base.printable import Compact
from attsvm.datasets.attention_data import BoolArray, FloatArray, IntArray
from attsvm.margins import Margins, MarginsBatch
from attsvm.norms import Frobenius, Norm
from attsvm.solvers import compiled, polyhedral
from attsvm.solvers.compiled import BATCH, CompiledSolution
from attsvm.solvers.outcomes import Request, infeasible_solution, is_within_tolerance
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
    _rounding: FloatArray = field(repr=False)
    _iterations: IntArray = field(repr=False)
    _request: Request | None = field(repr=False)
    _norm: Norm = field(repr=False)
    _certificates: dict[int, Certificate] = field(repr=False)
    _solutions: dict[int, MarginSolution] = field(repr=False)

    @property
    def optimal(self) -> BoolArray:
        """``(B,)``: True where the status is ``optimal``."""
        return np.asarray(self.status == "optimal")

    def _repr_html_(self) -> str:
        return html_cell(self)

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
        if k not in self._solutions:
            self._solutions[k] = self._solution_of_arrays(k)
        return self._solutions[k]

    def _solution_of_arrays(self, k: int) -> MarginSolution:
        """The solution of a programme that compiled code has solved."""
        assert self._request is not None
        iterations = int(self._iterations[k])
        if k in self._certificates:
            return polyhedral.polyhedral_solution(
                self.margins[k], self._norm, self._certificates[k], self._request, iterations
            )
        compiled_solution = CompiledSolution(
            self.W[k],
            self.dual[self.rows[k] : self.rows[k + 1]],
            float(self.norm[k]),
            float(self.gap[k]),
            float(self.violation[k]),
            float(self._rounding[k]),
        )
        return compiled_solution.solution(self.margins[k], self._request, iterations)


def solve_all(
    programmes: Sequence[Margins],
    norm: Norm,
    solve_one: Callable[[Margins], MarginSolution],
    compiled_request: Request | None,
    first: int = 0,
) -> SolutionBatch:
    """The solutions of all programmes.

    1. Compiled code solves small programmes together, stacked by shape.
    2. Its contradictions are proved exactly.
    3. ``solve_one`` solves all that are not settled, on all cores.

    Args:
        programmes: at least none.
        norm: the norm to minimise.
        solve_one: solves one programme.
        compiled_request: what compiled code is asked; ``None`` where it does not know the norm.
        first: number of the first programme, for refusals.

    Raises:
        InputError: what ``solve_one`` refuses, with the number of the programme.
    """
    count = len(programmes)
    if isinstance(programmes, MarginsBatch):
        rows, shapes = programmes.rows, [programmes.shape] * count
    else:
        sizes = [len(margins.differences) for margins in programmes]
        rows = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        shapes = [
            (margins.differences.shape[1], margins.queries.shape[1]) for margins in programmes
        ]
    W: FloatArray | list[FloatArray] = (
        np.zeros((count, *shapes[0]))
        if len(set(shapes)) == 1
        else [np.zeros(shape) for shape in shapes]
    )
    status, dual = np.full(count, "", dtype="<U17"), np.zeros(int(rows[-1]))
    figures = np.zeros((count, 4))  # norm, gap, violation, rounding
    iterations = np.zeros(count, dtype=np.int64)
    solutions: dict[int, MarginSolution] = {}
    certificates: dict[int, Certificate] = {}
    if compiled_request is not None:
        # 1. Compiled code.
        is_small = _are_small(programmes, norm, rows, shapes)
        for stack, positions in _stack_by_shape(programmes, shapes, is_small):
            if norm == Frobenius():
                answers = compiled.solve_many(
                    stack.differences, stack.queries, stack.offsets, stack.instances, stack.rhs
                )
            else:
                answers, proofs = polyhedral.certify_batch(stack, norm, compiled_request)
                certificates |= {int(positions[j]): proof for j, proof in proofs.items()}
            error = np.maximum(answers.figures[:, 1], answers.figures[:, 2])
            optimal = answers.outcome == compiled.WEIGHTS
            # What is not within the tolerance is unsettled, whatever the core says of it.
            optimal &= is_within_tolerance(error, answers.figures[:, 3], compiled_request.tol)
            figures[positions], iterations[positions] = answers.figures, answers.systems
            status[positions[optimal]] = "optimal"
            # One stack of all programmes needs no copy.
            if len(positions) == count:
                W, dual = answers.W, answers.dual
            else:
                duals = np.split(answers.dual, stack.rows[1:-1])
                for k, weights, multipliers in zip(
                    positions.tolist(), answers.W, duals, strict=True
                ):
                    W[k], dual[rows[k] : rows[k + 1]] = weights, multipliers
            # 2. Contradictions.
            for k in positions[answers.outcome == compiled.CONTRADICTION].tolist():
                of_programme = slice(rows[k], rows[k + 1])
                verdict = infeasible_solution(
                    programmes[k],
                    dual[of_programme],
                    compiled_request,
                    "active set",
                    int(iterations[k]),
                )
                if verdict.status == "infeasible":
                    solutions[k] = replace(verdict, geometry=norm)
                    status[k], dual[of_programme] = "infeasible", verdict.dual

    def solve_numbered(k: int) -> MarginSolution:
        try:
            return solve_one(programmes[k])
        except InputError as error:
            raise InputError(f"programme {first + k}: {error}") from None

    # 3. All others.
    unsettled = np.flatnonzero(status == "").tolist()
    for k, solution in zip(unsettled, map_on_threads(solve_numbered, unsettled), strict=True):
        solutions[k] = solution
        status[k], W[k], dual[rows[k] : rows[k + 1]] = solution.status, solution.W, solution.dual
        figures[k] = solution.norm, solution.gap, solution.violation, 0.0
        iterations[k] = solution.iterations
    norms, gap, violation, rounding = np.ascontiguousarray(figures.T)
    return SolutionBatch(
        programmes,
        status,
        W,
        norms,
        gap,
        violation,
        dual,
        rows,
        rounding,
        iterations,
        compiled_request,
        norm,
        certificates,
        solutions,
    )


def _are_small(
    programmes: Sequence[Margins], norm: Norm, rows: IntArray, shapes: list[tuple[int, int]]
) -> BoolArray:
    """``(B,)``: whether each programme is small enough for compiled code."""
    # Gram matrices of rows and of queries are written out there.
    has_few_rows: BoolArray = np.diff(rows) <= BATCH.few_rows
    if norm == Frobenius():
        queries = (
            np.diff(programmes.instances)
            if isinstance(programmes, MarginsBatch)
            else np.array([len(margins.queries) for margins in programmes])
        )
        return has_few_rows & (queries <= BATCH.few_rows)
    sizes = zip(np.diff(rows).tolist(), shapes, strict=True)
    return has_few_rows & np.array(
        [polyhedral.fits_polyhedral(*size) for size in sizes], dtype=np.bool_
    )


def _stack_by_shape(
    programmes: Sequence[Margins], shapes: list[tuple[int, int]], is_small: BoolArray
) -> Iterator[tuple[MarginsBatch, IntArray]]:
    """The small programmes that hold inequalities and finite numbers only, one stack for each shape
    of weights, with their positions ``(b,)``.
    """
    if isinstance(programmes, MarginsBatch) and is_small.all():
        stacks = [(programmes, np.arange(len(programmes)))] if len(programmes) else []
    else:
        # Compiled code takes one shape of weights at a time.
        of_shape: dict[tuple[int, int], list[int]] = {}
        for k in np.flatnonzero(is_small).tolist():
            if programmes[k].equality is None:
                of_shape.setdefault(shapes[k], []).append(k)
        stacks = [
            (MarginsBatch.stack([programmes[k] for k in positions]), np.array(positions))
            for positions in of_shape.values()
        ]
    for stack, positions in stacks:
        # max_margin refuses one that is not finite or negative, and says which entry it is.
        if (
            all(np.isfinite(array).all() for array in (stack.differences, stack.queries, stack.rhs))
            and (stack.rhs >= 0.0).all()
        ):
            yield stack, positions


BatchSolver = Callable[[int, Sequence[Margins]], SolutionBatch]
"""Solves programmes of which the first has this number."""


def solve_with_executor(
    programmes: Sequence[Margins],
    solve: BatchSolver,
    executor: Any,
    shares_per_worker: int = 4,
) -> SolutionBatch:
    """The solutions of all programmes, of which an executor solves shares.

    Args:
        programmes: at least one.
        solve: called by the executor; picklable.
        executor: a :class:`concurrent.futures.Executor`, or what
            :func:`attsvm.base.workers.workers` takes instead.
        shares_per_worker: of the list, so that none waits long for another; untuned.

    Raises:
        InputError: what ``solve`` refuses.
        AttsvmError: a process of the executor was killed.
    """
    from attsvm.base.workers import results, slots, workers  # pools of processes

    with workers(executor=executor) as pool:
        # Rounded up, so that no share is empty.
        size = -(-len(programmes) // (shares_per_worker * slots(pool)))
        firsts = range(0, len(programmes), size)
        shares = [(solve, first, list(programmes[first : first + size])) for first in firsts]
        batches = dict(results(pool, _solve_share, shares))
    return _join_batches(programmes, [(first, batches[first]) for first in firsts])


def _solve_share(
    solve: BatchSolver, first: int, programmes: Sequence[Margins]
) -> tuple[int, SolutionBatch]:
    """The number of the first programme and the solutions, without the programmes: the caller has
    these.
    """
    return first, replace(solve(first, programmes), margins=())


def _join_batches(
    programmes: Sequence[Margins], shares: Sequence[tuple[int, SolutionBatch]]
) -> SolutionBatch:
    """One batch of the batches of all shares, each with the number of its first programme."""
    batches = [batch for _, batch in shares]
    weights: list[Any] = [batch.W for batch in batches]
    shapes = {W.shape[1:] if isinstance(W, np.ndarray) else None for W in weights}
    # Rows of a share count from zero; those of the whole batch go on from the share before.
    starts = np.cumsum([0, *(batch.rows[-1] for batch in batches)])
    rows = [batch.rows[1:] + start for batch, start in zip(batches, starts, strict=False)]
    return SolutionBatch(
        programmes,
        np.concatenate([batch.status for batch in batches]),
        np.concatenate(weights)
        if len(shapes) == 1 and None not in shapes
        else [W for matrices in weights for W in matrices],
        np.concatenate([batch.norm for batch in batches]),
        np.concatenate([batch.gap for batch in batches]),
        np.concatenate([batch.violation for batch in batches]),
        np.concatenate([batch.dual for batch in batches]),
        np.concatenate([[0], *rows]),
        np.concatenate([batch._rounding for batch in batches]),
        np.concatenate([batch._iterations for batch in batches]),
        batches[0]._request,
        batches[0]._norm,
        {
            first + k: certificate
            for first, batch in shares
            for k, certificate in batch._certificates.items()
        },
        {
            first + k: replace(solution, margins=programmes[first + k])
            for first, batch in shares
            for k, solution in batch._solutions.items()
        },
    )
