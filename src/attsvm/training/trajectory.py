"""The recorded trajectory of a training, and how far its direction is from a solution."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from attsvm.base.errors import InputError
from attsvm.base.files import flatten, gather
from attsvm.base.presentation import plot
from attsvm.base.printable import Compact
from attsvm.datasets.attention_data import FloatArray, IntArray, floats
from attsvm.norms import Frobenius, PowerPotential

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from attsvm.solvers.solution import MarginSolution


@dataclass(frozen=True)
class LogSpaced:
    """Records at step 0, at ``count`` steps spaced evenly on a log scale from 1 to the last,
    rounded; repeated ones are dropped.

    Example:
        >>> import attsvm
        >>> [int(step) for step in attsvm.LogSpaced(5).steps(1000)]
        [0, 1, 6, 32, 178, 1000]
    """

    count: int = 50

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InputError(f"LogSpaced has count {self.count}; ask for at least one record")

    def steps(self, last: int) -> IntArray:
        """Sorted distinct steps from 0 to ``last``, both included."""
        if last == 0:
            return np.zeros(1, dtype=np.int64)
        # 0, evenly on a log scale, and the last
        spaced = np.rint(np.geomspace(1.0, last, self.count)).astype(np.int64)
        return np.unique(np.concatenate([[0], spaced, [last]]))


@dataclass(frozen=True)
class AtSteps:
    """Records at steps 0, at the last step and at ``marks`` in between; marks beyond the last step
    are dropped.

    Example:
        >>> import attsvm
        >>> data, head = attsvm.datasets.unit_sphere(4, 5, 6, seed=0)
        >>> model = attsvm.attention.Attention.cross(data, head)
        >>> step = attsvm.optim.SteepestDescent(model.parameters(), lr=0.1)
        >>> run = attsvm.train(model, data, step, 100, record=attsvm.training.AtSteps([10, 50]))
        >>> run.steps.tolist()
        [0, 10, 50, 100]
    """

    marks: tuple[int, ...]

    def __init__(self, marks: Iterable[int]) -> None:
        object.__setattr__(self, "marks", tuple(int(mark) for mark in marks))
        if any(mark < 0 for mark in self.marks):
            raise InputError(
                f"AtSteps has a mark at step {min(self.marks)}; give steps of 0 or more"
            )

    def steps(self, last: int) -> IntArray:
        """Sorted distinct steps from 0 to ``last``, both included."""
        marks = np.array(self.marks, dtype=np.int64)
        return np.unique(np.concatenate([[0], marks[marks < last], [last]]))


@dataclass(frozen=True, eq=False, repr=False)
class Record(Compact):
    """Everything recorded of all runs before the step of that number is taken. Shapes as in
    :class:`~attsvm.training.Trajectory`, without ``R``.

    Example:
        >>> import attsvm
        >>> data, head = attsvm.datasets.unit_sphere(4, 5, 6, seed=0)
        >>> model = attsvm.attention.Attention.cross(data, head)
        >>> step = attsvm.optim.SteepestDescent(model.parameters(), lr=0.1)
        >>> records = []
        >>> run = attsvm.train(model, data, step, 20, stop=lambda record: records.append(record))
        >>> records[-1].step, records[-1].W.shape, records[-1].selected.shape
        (20, (6, 6), (4,))
    """

    step: int
    seconds: float
    loss: FloatArray
    selected: IntArray
    softmax_probability: FloatArray
    norm: FloatArray
    log_gradient_norm: FloatArray
    W: FloatArray
    head: FloatArray
    intercept: FloatArray
    parameters: Mapping[str, FloatArray] = field(default_factory=dict)
    observed: Mapping[str, FloatArray] = field(default_factory=dict)

    def to_arrays(self) -> dict[str, Any]:
        """Every field as an array, the named ones under ``parameters.<name>`` and
        ``observed.<name>``.
        """
        fields = {name: np.asarray(getattr(self, name)) for name in RECORD_FIELDS}
        return fields | flatten("parameters", self.parameters) | flatten("observed", self.observed)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Record:
        """The inverse of :meth:`to_arrays`."""
        fields: dict[str, Any] = {name: np.asarray(arrays[name]) for name in RECORD_FIELDS}
        named: dict[str, Any] = {name: gather(name, arrays) for name in ("parameters", "observed")}
        return cls(
            **{**fields, "step": int(fields["step"]), "seconds": float(fields["seconds"])}, **named
        )


RECORD_FIELDS = (
    "step",
    "seconds",
    "loss",
    "selected",
    "softmax_probability",
    "norm",
    "log_gradient_norm",
    "W",
    "head",
    "intercept",
)


@dataclass(frozen=True, eq=False, repr=False)
class TrainState(Compact):
    """A run in progress, between two steps.

    Attributes:
        step: steps taken so far.
        seconds: training time spent so far.
        fingerprint: identifies data, hyper-parameters and kernel; a state resumes only the run it
            came from.
        arrays: the state of the kernel (weights, and what else it carries from step to step).
        records: what was recorded so far.

    Example:
        >>> import attsvm
        >>> data, head = attsvm.datasets.unit_sphere(4, 5, 6, seed=0)
        >>> model = attsvm.attention.Attention.cross(data, head)
        >>> step = attsvm.optim.SteepestDescent(model.parameters(), lr=0.1)
        >>> states = []
        >>> often = {"checkpoint": states.append, "checkpoint_seconds": 0}
        >>> run = attsvm.train(model, data, step, steps=20, **often)
        >>> middle = next(state for state in states if state.step >= 10)
        >>> again = attsvm.attention.Attention.cross(data, head)
        >>> step = attsvm.optim.SteepestDescent(again.parameters(), lr=0.1)
        >>> bool((attsvm.train(again, data, step, 20, resume=middle).W == run.W).all())
        True
    """

    step: int
    seconds: float
    fingerprint: str
    arrays: Mapping[str, Any]
    records: tuple[Record, ...]

    def to_arrays(self) -> dict[str, Any]:
        """A flat dict of NumPy arrays, for ``.npz`` or ``.safetensors``."""
        flat: dict[str, Any] = {
            "step": np.array(self.step, dtype=np.int64),
            "seconds": np.array(self.seconds),
            "fingerprint": np.frombuffer(bytes.fromhex(self.fingerprint), dtype=np.uint8).copy(),
        }
        # records become columns, so that a file has few entries however many records there are
        flat |= flatten("state", self.arrays)
        if self.records:
            columns = [record.to_arrays() for record in self.records]
            flat |= flatten(
                "record",
                {name: np.stack([column[name] for column in columns]) for name in columns[0]},
            )
        return flat

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> TrainState:
        """The inverse of :meth:`to_arrays`.

        Raises:
            InputError: an array is missing.
        """
        missing = {"step", "seconds", "fingerprint"} - set(arrays)
        if missing:
            raise InputError(
                f"the checkpoint has no {', '.join(sorted(missing))}; it was not written by"
                " TrainState.to_arrays"
            )
        # back from columns to records
        columns = gather("record", arrays)
        count = len(columns["step"]) if columns else 0
        return cls(
            step=int(arrays["step"]),
            seconds=float(arrays["seconds"]),
            fingerprint=np.asarray(arrays["fingerprint"], dtype=np.uint8).tobytes().hex(),
            arrays=gather("state", arrays),
            records=tuple(
                Record.from_arrays({name: column[k] for name, column in columns.items()})
                for k in range(count)
            ),
        )


@dataclass(frozen=True, eq=False)
class Trajectory:
    r"""Weights, losses and selections along a training, as :func:`~attsvm.training.train` recorded
    them: ``R`` records; the ``runs`` axis is there when the model has one.

    Attributes:
        steps: ``(R,)``, steps taken when the record was made; the first is 0.
        seconds: ``(R,)``, training time until the record.
        loss: ``(R[, runs])``, the model's objective.
        selected: ``(R[, runs], n)``, position of the token with the largest logit (the first one on
            ties).
        softmax_probability: shaped like ``selected``, its attention probability.
        norm: ``(R[, runs])``, Frobenius norm of ``W``.
        log_gradient_norm: ``(R[, runs])``, natural logarithm of the Frobenius norm of the true,
            unscaled gradient with respect to the attention parameters (all of them together); -inf
            where the gradient is exactly zero.
        W: ``(R[, runs], d_x, d_z)`` with snapshots, else ``(1[, runs], d_x, d_z)``: ``W[-1]`` is
            always the final one. Whatever the parameters are, this is the combined matrix:
            :math:`KQ^\top`, or a prompt as one column.
        head: ``(R[, runs], d_x)`` when a linear head is trained, else ``(1[, runs], d_x)``; no
            entries for other heads.
        intercept: ``(R[, runs])`` when a linear head is trained, else ``(1[, runs])``.
        stopped_at: ``([runs])`` integers, the step at which the gradient was exactly zero and the
            run stopped; -1 if it never was.
        backend: ``compiled`` or ``autograd``, whichever did the work.
        parameters: the attention parameters where ``W`` is not one: ``K`` and ``Q``, or the stacked
            ``KQ``; ``(R[, runs], ...)`` with snapshots, else ``(1[, runs], ...)``.
        observed: ``(R, ...)`` arrays of what ``observe`` returned.

    Example:
        >>> import attsvm
        >>> data, head = attsvm.datasets.unit_sphere(4, 5, 6, seed=0)
        >>> model = attsvm.attention.Attention.cross(data, head)
        >>> step = attsvm.optim.SteepestDescent(model.parameters(), lr=0.1)
        >>> run = attsvm.train(model, data, step, steps=200)
        >>> run.steps[-1].item(), run.W.shape[1:], run.selected[-1].tolist()
        (200, (6, 6), [0, 2, 1, 3])
        >>> bool(run.norm[-1] > run.norm[0])
        True
    """

    steps: IntArray
    seconds: FloatArray
    loss: FloatArray
    selected: IntArray
    softmax_probability: FloatArray
    norm: FloatArray
    log_gradient_norm: FloatArray
    W: FloatArray
    head: FloatArray
    intercept: FloatArray
    stopped_at: IntArray
    backend: str
    parameters: Mapping[str, FloatArray] = field(default_factory=dict)
    observed: Mapping[str, FloatArray] = field(default_factory=dict)

    @classmethod
    def from_records(
        cls,
        records: Sequence[Record],
        stopped_at: IntArray,
        backend: str,
        snapshots: bool,
        head_snapshots: bool,
    ) -> Trajectory:
        """Stack records along a first axis."""
        # without snapshots only the last weights are kept, with an axis of length one
        weights = records if snapshots else records[-1:]
        heads = records if head_snapshots else records[-1:]
        records_of = {"W": weights, "head": heads, "intercept": heads}
        columns: dict[str, Any] = {
            name: np.stack(
                [np.asarray(getattr(record, name)) for record in records_of.get(name, records)]
            )
            for name in RECORD_FIELDS
        }
        observed = {
            name: np.stack([np.asarray(record.observed[name]) for record in records])
            for name in records[0].observed
        }
        parameters = {
            name: np.stack([np.asarray(record.parameters[name]) for record in weights])
            for name in records[0].parameters
        }
        return cls(
            steps=columns.pop("step"),
            **columns,
            stopped_at=stopped_at,
            backend=backend,
            parameters=parameters,
            observed=observed,
        )

    def __repr__(self) -> str:
        runs = "" if self.runs is None else f", {self.runs} runs"
        # runs that stopped are rare, and said only then
        stopped = int(np.count_nonzero(np.asarray(self.stopped_at) >= 0))
        ended = f", {stopped} stopped early" if stopped else ""
        return (
            f"Trajectory({len(self.steps)} records of {int(self.steps[-1])} steps{runs},"
            f" W {self.W.shape[-2]} x {self.W.shape[-1]}, mean loss"
            f" {float(np.mean(self.loss[0])):.4g} to {float(np.mean(self.loss[-1])):.4g},"
            f" backend={self.backend!r}{ended})"
        )

    def plot(self, quantity: str | None = None, target: Any = None, ax: Axes | None = None) -> Axes:
        """A picture: one quantity against the steps, a line per run, or the path of a prompt.

        Args:
            quantity: ``loss``, ``probability`` (of the selected token), ``norm``, ``gap`` (of the
                direction, to ``target``), or ``path`` of a prompt in the plane, weights ``(2, 1)``.
                The gap when there is a target and the loss without one, unless said otherwise.
            target: a solution or weights, see :meth:`direction_gap`; ``path`` draws its ray.
            ax: where to draw; new axes of pyplot when left out.

        Raises:
            InputError: an unknown quantity, a gap without a target, a gap or a path without
                snapshots of the weights, a path outside of the plane.
        """
        return plot("trajectory", self, ax, quantity=quantity, target=target)

    @property
    def runs(self) -> int | None:
        """Number of runs, ``None`` without a run axis."""
        return int(self.loss.shape[1]) if self.loss.ndim == 2 else None

    def direction_gap(
        self, target: ArrayLike | MarginSolution | Sequence[MarginSolution]
    ) -> FloatArray:
        r""":math:`1-\cos\angle(W_k, W^\star)` at every snapshot, shape ``(R[, runs])``; see
        :func:`direction_gap`.

        Args:
            target: one solution or ``(d_x, d_z)`` array for all runs, or one per run. A solution
                without weights (infeasible, all zeros) gives gap 1.
        """
        return direction_gap(self.W, target)

    def direction_divergence(
        self, target: ArrayLike | MarginSolution | Sequence[MarginSolution], p: float
    ) -> FloatArray:
        r""":math:`D_\psi` between the directions of the target and of every snapshot,
        ``(R[, runs])``.

        Args:
            target: see :meth:`direction_gap`. Solutions of any norm may be compared with.
            p: exponent of the potential that the weights descended in; see
                :meth:`~attsvm.norms.PowerPotential.direction_divergence`.

        Raises:
            InputError: the shapes do not match, or there is no potential of that exponent.
        """
        # the solution comes first: the divergence is not symmetric
        goal = _target_of(self.W, target)
        return PowerPotential(p).direction_divergence(np.broadcast_to(goal, self.W.shape), self.W)

    def saturated(self, threshold: float = 0.99) -> FloatArray:
        """``(R[, runs])``: share of queries whose selected token has at least this softmax
        probability.
        """
        # over queries, which are the axes behind those of records and runs
        return np.mean(
            self.softmax_probability >= threshold,
            axis=tuple(range(self.loss.ndim, self.softmax_probability.ndim)),
        )

    def to_arrays(self) -> dict[str, Any]:
        """A flat dict of NumPy arrays, for ``.npz`` or ``.safetensors``."""
        arrays: dict[str, Any] = {name: getattr(self, name) for name in _ARRAYS}
        arrays["backend"] = np.frombuffer(self.backend.encode(), dtype=np.uint8).copy()
        return arrays | flatten("parameters", self.parameters) | flatten("observed", self.observed)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Trajectory:
        """The inverse of :meth:`to_arrays`.

        Raises:
            InputError: an array is missing.
        """
        # a file that lacks an array is refused by name
        missing = [name for name in (*_ARRAYS, "backend") if name not in arrays]
        if missing:
            raise InputError(
                f"the trajectory has no {', '.join(missing)}; it was not written by"
                " Trajectory.to_arrays"
            )
        named: dict[str, Any] = {name: gather(name, arrays) for name in ("parameters", "observed")}
        backend = np.asarray(arrays["backend"], dtype=np.uint8).tobytes().decode()
        fields: dict[str, Any] = {name: np.asarray(arrays[name]) for name in _ARRAYS}
        return cls(**fields, backend=backend, **named)


_ARRAYS = ("steps", *RECORD_FIELDS[1:], "stopped_at")


@dataclass(frozen=True)
class DirectionWithin:
    r"""True of a record whose weights provably lie within a direction gap of the exact solution, in
    every run: ends a training.

    The computed solution :math:`\hat W` differs from the exact one :math:`W^\star`. Where its
    relative duality gap is g in the Frobenius norm, :math:`1-\cos\angle(\hat W, W^\star)\le g`,
    because :math:`\langle\hat W-W^\star, W^\star\rangle\ge0` and
    :math:`(1-g)\|\hat W\|\le\|W^\star\|`. Chords on the sphere add up, so the certified gap of
    weights at gap h from :math:`\hat W` is
    :math:`(\sqrt h+\sqrt g)^2`.

    Attributes:
        target: one solution of the Frobenius norm for all runs or one per run, or matrices that are
            taken as exact.
        gap: the certified gap to reach.

    Example:
        >>> import attsvm
        >>> data, head = attsvm.datasets.unit_sphere(4, 5, 6, seed=0)
        >>> model = attsvm.attention.Attention.cross(data, head)
        >>> step = attsvm.optim.SteepestDescent(model.parameters(), lr=0.1)
        >>> margins = attsvm.selection_margins(data, attsvm.optimal_tokens(data, head))
        >>> best = attsvm.max_margin(margins)
        >>> close = attsvm.DirectionWithin(best, 0.05)
        >>> run = attsvm.train(model, data, step, steps=5000, stop=close)
        >>> bool(run.direction_gap(best)[-1] <= 0.05), bool(run.steps[-1] < 5000)
        (True, True)
    """

    target: Any
    gap: float

    def __call__(self, record: Record) -> bool:
        """Whether every run is there."""
        return bool((self.certified(record.W) <= self.gap).all())

    def certified(self, W: ArrayLike) -> FloatArray:
        """Upper bounds ``(...)`` on the direction gaps of weights ``(..., d_x, d_z)`` to the exact
        solutions.
        """
        # only Frobenius's hard margins bound the angle by the gap
        targets = self.target if isinstance(self.target, Sequence) else [self.target]
        solutions = [target for target in targets if hasattr(target, "gap")]
        if any(
            solution.slack is not None
            or solution.geometry != Frobenius()
            or not solution.has_weights
            for solution in solutions
        ):
            raise InputError(
                "a certified direction gap needs hard-margin solutions of the Frobenius norm that"
                " exist; pass other weights as arrays"
            )
        gaps = np.zeros(())  # arrays are taken as exact
        if solutions:
            gaps = np.array([solution.gap for solution in solutions])
            gaps = gaps if self.target is targets else gaps[0]
        # chords on the sphere add up
        return np.asarray((np.sqrt(direction_gap(W, self.target)) + np.sqrt(gaps)) ** 2)


def direction_gap(
    W: ArrayLike, target: ArrayLike | MarginSolution | Sequence[MarginSolution]
) -> FloatArray:
    r""":math:`1-\cos\angle(W, W^\star)=\tfrac12\|W/\|W\|-W^\star/\|W^\star\|\|^2` over the last two
    axes.

    Written with the difference of unit vectors, so a gap of 1e-20 is as exact as one of 0.1.
    Where either matrix is zero it has no direction, and the gap is 1, that of orthogonal matrices.

    Args:
        W: ``(..., d_x, d_z)``.
        target: a solution, an array ``(d_x, d_z)`` or ``(runs, d_x, d_z)``, or a sequence of
            ``runs`` solutions.

    Raises:
        InputError: the shapes do not match.

    Example:
        >>> import numpy as np
        >>> from attsvm.training import direction_gap
        >>> direction_gap(2 * np.eye(2), np.eye(2)).item(), direction_gap([[1, 0]], [[0, 1]]).item()
        (0.0, 1.0)
    """
    # unit matrices are subtracted, not inner products from one: no digits cancel
    weights = floats("W", W)
    goal = _target_of(weights, target)
    gap: FloatArray = Frobenius().direction_divergence(goal, weights)
    has_no_direction = ~np.any(weights, axis=(-2, -1)) | ~np.any(goal, axis=(-2, -1))
    return np.where(has_no_direction, 1.0, gap)


def _target_of(weights: FloatArray, target: Any) -> FloatArray:
    """The weights of a target, or of one target per run."""
    # trailing axes must agree; a run axis may be there or not
    goal = _target_weights(target)
    if weights.shape[-goal.ndim :] != goal.shape:
        raise InputError(
            f"the target has shape {goal.shape} and the weights {weights.shape}; give one target,"
            " or one per run"
        )
    return goal


def _target_weights(target: Any) -> FloatArray:
    """The weights of a solution or an array, or of several stacked."""
    if (
        isinstance(target, Sequence)
        and target
        and all(hasattr(solution, "W") for solution in target)
    ):
        return np.stack([_target_weights(solution) for solution in target])
    goal = floats("target", getattr(target, "W", target))
    if goal.ndim < 2:
        raise InputError(
            f"the target has shape {goal.shape}; give a solution or an array (d_x, d_z)"
        )
    return goal
