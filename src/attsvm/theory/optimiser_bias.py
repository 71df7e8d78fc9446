r"""Which margin an optimiser maximises: how much of the largest margin its weights reach, norm by
norm.

Weights that select tokens have the *normalised margin*
:math:`\min_c\langle A_c,W\rangle/\|W\|` in a norm; the best is
:math:`1/\|W^\star\|`, with :math:`W^\star` the max-margin solution of the same tokens. Their
quotient, the share

.. math:: \rho(W)=\|W^\star\|\,\frac{\min_c\langle A_c,W\rangle}{\|W\|}\le1,

needs no uniqueness and no direction to compare with, and is 1 exactly where :math:`W` solves the
programme. An optimiser whose share in a norm goes to 1 maximises the margin of that norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from attsvm.base.errors import InputError
from attsvm.base.printable import Compact, name_of
from attsvm.claims import Interval, interval
from attsvm.datasets import unit_sphere
from attsvm.datasets.attention_data import AttentionData, BoolArray, FloatArray, IntArray
from attsvm.margins import Margins, optimal_tokens, selection_margins
from attsvm.norms import Norm, as_norm
from attsvm.report.plots import axes_of, label_line_ends
from attsvm.report.style import BEST, FAINT, INK, TRAINED, logarithmic
from attsvm.solvers import MarginSolution, max_margin_batch
from attsvm.theory.optimiser_per_run import MakeOptimizer, optimizer_of_runs
from attsvm.training import LogSpaced, Trajectory, train

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Parameters = Literal["W", "KQ", "W and head"]
NORMS = ("fro", "l1", "linf", "spec", "nuc", "lp:1.5", "lp:3")


@dataclass(frozen=True)
class BiasOptions:
    """Numbers of :func:`implicit_bias`.

    Example:
        >>> from attsvm.theory import BiasOptions
        >>> BiasOptions(start=1.0).records
        40
    """

    start: float = 0.1  # Frobenius norm of the random start of W, or of K and Q each; untuned
    selects: float = 0.5  # attention above which a sequence has selected its token
    rising: float = 0.005  # growth of the share over the last decade of steps that counts as rising
    records: int = 40  # on a log scale of steps
    tolerance: float = 1e-6  # relative gap of the best margins, far below what shares are read to


OPTIONS = BiasOptions()


@dataclass(frozen=True, eq=False, repr=False)
class ImplicitBias(Compact):
    r"""Shares of the best margin that an optimiser reaches. ``R`` records, ``k`` norms.

    Attributes:
        optimizer: its name.
        norms: names of the norms.
        steps: ``(R,)``, steps taken at the records.
        share: ``(R, runs, k)``, :math:`\rho` against the tokens that the run selects in the end;
            negative before it selects them.
        cosine: ``(R, runs, k)``, cosine to the max-margin solution; NaN where that is not known to
            be unique.
        null: ``(runs, k)``, the share of weights that select the same tokens by random margins:
            the shortest weights whose margins are at least independent exponential numbers.
        selects: ``(runs,)``, whether attention is on one token of every sequence in the end, and
            all programmes of these tokens are solved; other runs count in no mean.
        optimal: ``(runs,)``, whether these are the tokens of highest score.
        options: when a share counts as rising.

    Example:
        >>> import attsvm
        >>> from attsvm.theory import implicit_bias
        >>> make = lambda parameters: attsvm.optim.SteepestDescent(parameters, lr=0.1)
        >>> bias = implicit_bias(make, seeds=4, steps=20_000, norms=("fro", "linf"))
        >>> bias.share.shape[1:], bias.leader
        ((4, 2), 'fro')
        >>> bool(bias.last("fro").mean > 0.9 > bias.last("linf").mean > bias.null.mean())
        True
    """

    optimizer: str
    norms: tuple[str, ...]
    steps: IntArray
    share: FloatArray
    cosine: FloatArray
    null: FloatArray
    selects: BoolArray
    optimal: BoolArray
    options: BiasOptions = OPTIONS

    def last(self, norm: str, at: float = 1.0) -> Interval:
        """Mean share over runs with its 95 % interval at the last record, or at the one nearest to
        the fraction ``at`` of the steps.

        Raises:
            InputError: a norm that was not measured.
        """
        return _mean(self.share[self._record(at), self.selects, self._position(norm)])

    def growth(self, norm: str) -> Interval:
        """Mean growth of the share over the last decade of steps, with its 95 % interval."""
        k = self._position(norm)
        share = self.share[:, self.selects, k]
        return _mean(share[-1] - share[self._record(0.1)])

    def is_rising(self, norm: str) -> bool:
        """True where the share has grown over the last decade of steps, by more than the options
        allow.
        """
        return self.growth(norm).low > self.options.rising

    @property
    def leader(self) -> str | None:
        """The norm whose share is largest in the end, by a 95 % interval of the differences between
        runs; None where two norms are within it, or no run selects.
        """
        ranking = self._ranking()
        if len(ranking) < 2 or not self.selects.any():
            return None
        first, second = (self.share[-1, self.selects, self._position(n)] for n in ranking[:2])
        return ranking[0] if _mean(first - second).low > 0.0 else None

    @property
    def verdict(self) -> str:
        """Sentences for a reader: the norm whose margin leads, shares, and which runs count."""
        runs, counted = len(self.selects), int(self.selects.sum())
        after = f"after {_steps(self.steps[-1])} {self.optimizer}"
        if not counted:
            return (
                f"None yet: {after} has selected no tokens in any of {runs} runs; take more steps"
                " or a larger lr."
            )
        first, *others = self._ranking()
        rising = self.is_rising(first)
        sentence = (
            f"{self._answer(first, rising)}: {after} reaches {_format_interval(self.last(first))}"
            f" of the largest {_margin_title(first)}"
        )
        if others:
            second = others[0]
            sentence += (
                f", and {format_share(self.last(second).mean)} of the largest"
                f" {_margin_title(second)}"
            )
        if rising:
            tenth = format_share(self.last(first, 0.1).mean)
            sentence += f". Still rising, from {tenth} at a tenth: take more steps or a larger lr"
        null = _mean(self.null[self.selects, self._position(first)])
        sentence += f". Random margins of the same tokens reach {format_share(null.mean)}."
        if counted < runs:
            sentence += f" {runs - counted} of {runs} runs have not selected, and do not count."
        elsewhere = int((self.selects & ~self.optimal).sum())
        if elsewhere:
            sentence += (
                f" {elsewhere} of {runs} runs select other tokens than the optimal ones, and are"
                " held against the margins of those."
            )
        return sentence

    def _answer(self, first: str, rising: bool) -> str:
        """Which margin is maximised, in a few words, where the share in ``first`` is largest."""
        if len(self.norms) == 1:
            return f"Only the {_margin_title(first)} was measured"
        if self.selects.sum() == 1:
            return "Undecided by one run"
        if self.leader is None:
            return "None yet" if rising else "None leads"
        return f"The {_margin_title(first)} leads" + (" so far" if rising else "")

    def rows(self) -> list[dict[str, Any]]:
        """A table with a row per norm, the largest share first: ``norm``, ``share`` with ``low``
        and ``high``, ``tenth`` (the share at a tenth of the steps), ``rising``, ``cosine`` and
        ``null``.
        """
        rows = []
        for norm in self._ranking():
            k, share = self._position(norm), self.last(norm)
            rows.append(
                {
                    "norm": norm,
                    "share": share.mean,
                    "low": share.low,
                    "high": share.high,
                    "tenth": self.last(norm, 0.1).mean,
                    "rising": self.is_rising(norm),
                    "cosine": _mean(self.cosine[-1, self.selects, k]).mean,
                    "null": _mean(self.null[self.selects, k]).mean,
                }
            )
        return rows

    def evidence(self) -> dict[str, Any]:
        """Columns for a :class:`~attsvm.claims.Claim`, each ``(runs,)``: ``seed``, the number of
        the run, counted from 0; ``selects`` and ``optimal``; and for every norm, such as ``fro``,
        ``share fro`` and ``cosine fro`` at the last record, and ``null fro``.

        Example:
            >>> import attsvm
            >>> from attsvm.theory import implicit_bias
            >>> make = lambda parameters: attsvm.optim.SteepestDescent(parameters, lr=0.1)
            >>> evidence = implicit_bias(make, seeds=4, steps=2000, norms=("fro",)).evidence()
            >>> list(evidence)
            ['seed', 'selects', 'optimal', 'share fro', 'cosine fro', 'null fro']
        """
        columns: dict[str, Any] = {
            "seed": np.arange(len(self.selects)),
            "selects": self.selects,
            "optimal": self.optimal,
        }
        for k, norm in enumerate(self.norms):
            columns[f"share {norm}"] = self.share[-1, :, k]
            columns[f"cosine {norm}"] = self.cosine[-1, :, k]
            columns[f"null {norm}"] = self.null[:, k]
        return columns

    def arrays(self) -> dict[str, Any]:
        """All measurements by name, for ``.npz`` or ``.safetensors``."""
        names = ("steps", "share", "cosine", "null", "selects", "optimal")
        return {name: getattr(self, name) for name in names}

    def __str__(self) -> str:
        lines = ["norm     share (95 % interval)   at a tenth   cosine   null"]
        for row in self.rows():
            share = _format_interval(self.last(row["norm"]))
            lines.append(
                f"{row['norm']:<8} {share:<23} {format_share(row['tenth']):<12}"
                f" {format_share(row['cosine']):<8} {format_share(row['null'])}"
                + ("   rising" if row["rising"] else "")
            )
        if any(row["tenth"] < 0 or row["share"] < 0 for row in self.rows()):
            lines.append(
                "a share is negative while some token still has a larger logit than the one that"
                " is selected in the end"
            )
        return "\n".join([*lines, self.verdict])

    def plot(self, ax: Axes | None = None) -> Axes:
        """Mean shares against the steps, a line per norm with its 95 % interval, on the axes given
        or new ones of pyplot.
        """
        axes, ranking = axes_of(ax), self._ranking()
        is_positive = self.steps > 0
        for rank, norm in enumerate(ranking):
            share = self.share[:, self.selects, self._position(norm)]
            means = [_mean(row) for row in share]
            mean, low, high = np.array(means).T
            colour = TRAINED if rank == 0 else BEST if rank == 1 else FAINT
            steps = self.steps[is_positive]
            axes.plot(steps, mean[is_positive], color=colour, label=as_norm(norm).title)
            axes.fill_between(
                steps, *(np.clip(end, -1, 1)[is_positive] for end in (low, high)), color=colour,
                alpha=0.15, linewidth=0,
            )  # fmt: skip
        axes.axhline(1.0, color=INK, linewidth=0.7)
        axes.set_xlim(*self.steps[is_positive][[0, -1]])  # also where no run has selected
        logarithmic(axes.xaxis, self.steps[is_positive])
        axes.set(ylim=(0.0, 1.05), xlabel="step", ylabel="share of the largest margin")
        label_line_ends(axes)
        return axes

    def _position(self, norm: str) -> int:
        if norm not in self.norms:
            raise InputError(
                f"norm {norm!r} was not measured; choose from: {', '.join(self.norms)}"
            )
        return self.norms.index(norm)

    def _record(self, fraction: float) -> int:
        """The record nearest to this fraction of the steps, on a log scale."""
        steps = np.maximum(self.steps, 1) / max(int(self.steps[-1]), 1)
        return int(np.argmin(np.abs(np.log(steps) - math.log(fraction))))

    def _ranking(self) -> list[str]:
        """The norms by their last mean share, the largest first."""
        return sorted(self.norms, key=lambda norm: -np.nan_to_num(self.last(norm).mean, nan=-9.0))


def implicit_bias(
    make_optimizer: MakeOptimizer,
    data: AttentionData | None = None,
    head: ArrayLike | None = None,
    *,
    norms: Sequence[str | Norm] = NORMS,
    steps: int = 20_000,
    seeds: int | Sequence[int] = 20,
    parameters: Parameters = "W",
    schedule: Callable[[int], float] | None = None,
    name: str | None = None,
    progress: Any = None,
    options: BiasOptions = OPTIONS,
) -> ImplicitBias:
    r"""Which margin an optimiser maximises: the share :math:`\rho` of the largest margin that its
    weights reach in every norm, over many runs at once.

    1. Train one attention layer per seed with the logistic loss and a fixed head, from a small
       random start.
    2. Take the tokens that each run selects in the end, and solve their programme in every norm.
    3. Divide the normalised margin of every record by the best one.
    4. The same for weights that select these tokens by random margins: the null.

    Runs are independent: an optimiser that is not known to treat every run of a stacked parameter
    by itself gets one object and one matrix per run.

    Args:
        make_optimizer: from parameters to any optimiser of torch,
            ``lambda parameters: torch.optim.Adam(parameters, lr=0.01)``.
        data: one instance, on which every seed is a random start; an instance per run along a
            leading axis; or nothing, for random instances: six sequences of eight tokens on the
            unit sphere in ten dimensions, a new one per seed.
        head: ``(d_x,)`` or ``(runs, d_x)``, the fixed head of ``data``.
        norms: norms, or their names.
        steps: number of steps.
        seeds: how many runs, or their seeds. Data with a leading axis has one seed per instance.
        parameters: what is trained: ``W``; ``KQ``, the factors of :math:`W=KQ^\top`; or ``W and
            head``, where the head is trained beside W from the one given.
        schedule: a factor of the step size by the number of the step, ``lambda t: (t + 1) **
            -0.5``.
        name: of the optimiser in sentences; its class when left out.
        progress: True for a bar on standard error, or a function; see
            :func:`~attsvm.training.train`.
        options: size of starts, number of records, and when a run counts.

    Raises:
        InputError: data without a head, seeds that are not as many as instances, unknown
            parameters or norms, and the errors of :func:`~attsvm.training.train`.

    Example:
        >>> import torch
        >>> from attsvm.theory import implicit_bias
        >>> make = lambda parameters: torch.optim.Adam(parameters, lr=0.01)
        >>> bias = implicit_bias(make, seeds=3, steps=300, norms=("fro", "linf"))
        >>> bias.optimizer, [row["norm"] for row in bias.rows()] != []
        ('Adam', True)
    """
    names = tuple(norm if isinstance(norm, str) else as_norm(norm).name for norm in norms)
    measured = [as_norm(norm) for norm in norms]
    if not measured:
        raise InputError("there is no norm to measure in; give one at least")
    runs, instances, heads = _read_instances(data, head, seeds)
    # 1. training
    model = _build_model(instances, heads, runs, parameters, options)
    optimizer, class_name = optimizer_of_runs(make_optimizer, model)
    trajectory = train(
        model,
        instances,
        optimizer,
        steps,
        LogSpaced(options.records),
        schedule=schedule,
        progress=progress,
    )
    # 2. programmes of the tokens at the end
    selected = trajectory.selected[-1]
    programmes = [
        selection_margins(
            instances.instance(run) if instances.batch_shape else instances, selected[run]
        )
        for run in range(len(runs))
    ]
    # 3. shares of all records, 4. and of random margins
    share, cosine, solved = _margin_shares(programmes, measured, trajectory.W, options)
    null = _null_shares(programmes, measured, runs, options)
    return ImplicitBias(
        optimizer=name_of(name or class_name),
        norms=names,
        steps=trajectory.steps,
        share=share,
        cosine=cosine,
        null=null,
        selects=solved & _has_selected(trajectory, options),
        optimal=(selected == optimal_tokens(instances, heads, ties="first")).all(axis=-1),
        options=options,
    )


def _read_instances(
    data: AttentionData | None, head: ArrayLike | None, seeds: int | Sequence[int]
) -> tuple[list[int], AttentionData, FloatArray]:
    """Seeds of the runs; one instance, or one per run along a leading axis; and its heads."""
    runs = list(range(seeds)) if isinstance(seeds, int) else [int(seed) for seed in seeds]
    if not runs:
        raise InputError("there are no seeds; give one at least")
    if data is None:
        if head is not None:
            raise InputError("a head without data belongs to nothing; give its data too")
        return runs, *unit_sphere(6, 8, 10, runs)
    if head is None:
        raise InputError(
            "data needs a head, the vector v whose scores attention follows; give it as head"
        )
    if data.batch_shape not in ((), (len(runs),)):
        raise InputError(
            f"data has instances {data.batch_shape} for {len(runs)} seeds; give one instance, or"
            " one per seed"
        )
    return runs, data, np.asarray(head, dtype=np.float64)


def _build_model(
    data: AttentionData,
    heads: FloatArray,
    runs: Sequence[int],
    parameters: Parameters,
    options: BiasOptions,
) -> Any:
    """The attention layers of all runs, from random starts of the size in the options."""
    from attsvm.attention import Attention

    if parameters not in ("W", "KQ", "W and head"):
        raise InputError(f"parameters is {parameters!r}; use 'W', 'KQ' or 'W and head'")

    def start(rows: int, columns: int, draw: int) -> FloatArray:
        matrices = [
            np.random.default_rng([54, draw, seed]).standard_normal((rows, columns))
            for seed in runs
        ]
        return np.stack([options.start * W / np.linalg.norm(W) for W in matrices])

    if parameters == "KQ":
        inner = min(data.d_x, data.d_z)
        factors = start(data.d_x, inner, 1), start(data.d_z, inner, 2)
        return Attention.cross(
            data, heads, runs=len(runs), init=factors, parameterization="KQ", inner=inner
        )
    W, train_head = start(data.d_x, data.d_z, 0), parameters == "W and head"
    return Attention.cross(data, heads, runs=len(runs), init=W, train_head=train_head)


def _has_selected(trajectory: Trajectory, options: BiasOptions) -> BoolArray:
    """Whether attention is on one token of every sequence at the last record ``(runs,)``."""
    return np.asarray(trajectory.softmax_probability[-1].min(axis=-1) > options.selects)


def _margin_shares(
    programmes: Sequence[Margins],
    norms: Sequence[Norm],
    W: FloatArray,
    options: BiasOptions,
) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Shares and cosines ``(R, runs, k)`` of weights ``(R, runs, d_x, d_z)``, and whether all
    programmes of a run are solved ``(runs,)``.
    """
    least = np.stack(
        [np.stack([margins(record).min() for record in W[:, run]])
         for run, margins in enumerate(programmes)], axis=1,
    )  # fmt: skip
    share, cosine = np.full((2, *W.shape[:2], len(norms)), np.nan)
    solved = np.ones(len(programmes), dtype=np.bool_)
    for k, norm in enumerate(norms):
        solutions = _solve(programmes, norm, options)
        sizes = np.asarray(norm.value(W))
        for run, solution in enumerate(solutions):
            if solution.status != "optimal":
                solved[run] = False
                continue
            with np.errstate(invalid="ignore", divide="ignore"):
                share[:, run, k] = least[:, run] * solution.norm / sizes[:, run]
                if solution.unique:
                    products = (W[:, run] * solution.W).sum(axis=(-2, -1))
                    lengths = np.linalg.norm(W[:, run], axis=(-2, -1))
                    cosine[:, run, k] = products / lengths / np.linalg.norm(solution.W)
    return share, cosine, solved


def _null_shares(
    programmes: Sequence[Margins],
    norms: Sequence[Norm],
    runs: Sequence[int],
    options: BiasOptions,
) -> FloatArray:
    """Shares ``(runs, k)`` of the shortest weights with random margins."""
    random_programmes = [
        replace(margins, rhs=np.random.default_rng([54, 3, seed]).exponential(size=margins.m))
        for margins, seed in zip(programmes, runs, strict=True)
    ]
    weights = [solution.W for solution in _solve(random_programmes, as_norm(None), options)]
    return _margin_shares(programmes, norms, np.stack(weights)[None], options)[0][0]


def _solve(
    programmes: Sequence[Margins], norm: Norm, options: BiasOptions
) -> Iterable[MarginSolution]:
    return max_margin_batch(programmes, norm, tol=options.tolerance)


def _mean(values: FloatArray) -> Interval:
    """Mean with its interval over the values that are numbers; NaN without one."""
    finite = values[np.isfinite(values)]
    return interval(finite) if len(finite) else Interval(np.nan, np.nan, np.nan)


def format_share(value: float) -> str:
    """A share with two decimals; with three from .995 on, where two would say 1."""
    if math.isnan(value):
        return "-"
    return f"{value:.3f}" if 0.995 <= value < 0.9995 else f"{value:.2f}"


def _format_interval(share: Interval) -> str:
    ends = f" ({format_share(share.low)} to {format_share(share.high)})"
    return format_share(share.mean) + (ends if math.isfinite(share.low) else "")


def _steps(count: int) -> str:
    return f"{int(count):,} steps"


def _margin_title(norm: str) -> str:
    title = as_norm(norm).title
    name = title.removesuffix(" norm")
    return f"{name} margin" if name != title else f"margin in the {title}"
