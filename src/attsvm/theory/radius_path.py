r"""Regularisation paths: the best weights of every size,
:math:`\bar W_R\in\arg\min_{\|W\|\le R}L(W)`.

The infimum :math:`L_\star` is reached at infinite size, so what is minimised is
:math:`\log(L-L_\star)`, computed in log space (see
:mod:`attsvm.theory.excess`): well scaled at any radius. Weights live on the sphere
:math:`\|W\|=R`; every radius is searched by a quasi-Newton method from several random starts, from
the max-margin direction and from the best weights of the radii before and after.

Tarzanagh et al., *Max-Margin Token Selection in Attention Mechanism* and *Transformers as Support
Vector Machines* (2023): directions converge to the solutions of the max-margin programme in the
same norm, globally and in a narrow cone around a locally optimal direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize

from attsvm.attention import Logistic, Loss
from attsvm.base.cores import one_thread
from attsvm.base.errors import InputError
from attsvm.base.printable import Compact
from attsvm.datasets.attention_data import AttentionData, FloatArray, IntArray, floats
from attsvm.margins import optimal_tokens, prompt_margins, selection_margins
from attsvm.margins.checks import one_instance
from attsvm.norms import Frobenius, Norm, Nuclear, as_norm
from attsvm.report.plots import axes_of
from attsvm.report.style import course
from attsvm.solvers import max_margin
from attsvm.theory.ball import check_radii
from attsvm.theory.excess import Chart, Excess, Factors, Objective, Pair, Slack, Sphere, mapped_keys
from attsvm.training.trajectory import direction_gap

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Form = Literal["W", "KQ", "prompt", "joint", "joint W"]


@dataclass(frozen=True)
class Cone:
    r"""The directions within an angle of one direction: :math:`\angle(W,\bar W)\le` ``degrees``.
    Local paths stay inside.

    The angle is that of the Frobenius product, whatever norm the path bounds: any cone that is
    narrow enough is a cone of the theorem.

    Example:
        >>> import attsvm
        >>> data, head = attsvm.datasets.unit_sphere(3, 3, 4, seed=0)
        >>> margins = attsvm.selection_margins(data, attsvm.optimal_tokens(data, head))
        >>> best = attsvm.max_margin(margins)
        >>> import numpy as np
        >>> cone = attsvm.Cone(best.W, degrees=5)
        >>> path = attsvm.regularization_path(data, head, radii=[100], starts=3, cone=cone)
        >>> bool(np.degrees(np.arccos(1 - path.direction_gap(best)[0])) <= 5)
        True
    """

    direction: Any
    degrees: float

    def __post_init__(self) -> None:
        if not 0 < self.degrees < 90:
            raise InputError(
                f"a cone has an opening of {self.degrees} degrees; give an angle between 0 and 90"
            )


@dataclass(frozen=True)
class SearchOptions:
    """Numbers of the searches of :func:`regularization_path`; values are logarithms of losses."""

    gradient: float = 1e-9  # largest entry of the gradient at which a search ends
    value: float = 1e-15  # relative decrease of the value at which it ends; rounding
    memory: int = 20  # pairs that L-BFGS-B keeps; untuned, coordinates are few
    iterations: int = 1000  # of L-BFGS-B
    iterations_dense: int = 500  # of BFGS and SLSQP, whose steps cost more
    edge: float = 1e-6  # of the opening: how far outside a cone SLSQP may leave a point
    # subtracted from the value of a loss below that of the selected tokens, so that it ranks before
    # all others: far above any logarithm of a loss
    below: float = 1e6


OPTIONS = SearchOptions()


@dataclass(frozen=True, eq=False, repr=False)
class RegularizationPath(Compact):
    r"""Weights of least loss of every size; see :func:`regularization_path`.

    Attributes:
        radii: ``(k,)``.
        W: ``(k, d_x, d_z)``, the best weights of each radius; the combined matrix for factors, one
            column for a prompt.
        log_excess: ``(k,)``, :math:`\log(L-L_\star)` there (:math:`\log L` for a joint path, whose
            infimum is 0). Inside a cone
            :math:`L_\star` is the loss of the tokens that its axis selects; -inf where the best
            loss lies below that.
        head: ``(k, d_x)``, the head of a joint path; else None.
        norm: the norm that is bounded.
        starts: ``(k, starts)``, the values that the searches from each start ended with, best
            first.

    Example:
        >>> import attsvm
        >>> data, head = attsvm.datasets.unit_sphere(3, 3, 4, seed=0)
        >>> margins = attsvm.selection_margins(data, attsvm.optimal_tokens(data, head))
        >>> best = attsvm.max_margin(margins)
        >>> path = attsvm.regularization_path(data, head, norm="nuc", radii=[10, 100], starts=3)
        >>> path.W.shape, path.norm, bool(path.log_excess[1] < path.log_excess[0])
        ((2, 4, 4), Nuclear(), True)
    """

    radii: FloatArray
    W: FloatArray
    log_excess: FloatArray
    head: FloatArray | None
    norm: Norm
    starts: FloatArray

    def direction_gap(self, target: Any) -> FloatArray:
        """:func:`~attsvm.training.direction_gap` of the weights of every radius to one solution or
        matrix ``(k,)``.
        """
        return direction_gap(self.W, target)

    def distance(self, target: Any) -> FloatArray:
        r""":math:`\big\|\bar W_R/\|\bar W_R\|-W^\star/\|W^\star\|\big\|_F` ``(k,)``, both
        normalised in the norm of the path.
        """
        goal = np.asarray(target.W if hasattr(target, "W") else target, dtype=np.float64)
        unit = self.W / np.asarray(self.norm.value(self.W))[:, None, None]
        return np.linalg.norm(unit - goal / float(self.norm.value(goal)), axis=(-2, -1))

    def plot(self, target: Any = None, ax: Axes | None = None) -> Axes:
        """The loss above its infimum against the radius; with a ``target``, a solution or matrix,
        the direction gap to it. On these axes, or new ones of pyplot.

        Raises:
            InputError: no value is above 0, as the logarithmic axis needs.
        """
        if target is None:
            values, title = np.exp(self.log_excess), "loss above its infimum"
        else:
            values, title = self.direction_gap(target), "direction gap, 1 - cosine to the target"
        axes = axes_of(ax)
        if not course(axes, self.radii, values, logarithmic_values=True).any():
            raise InputError(
                "no radius has a value above 0 that a logarithmic axis can show; give other radii,"
                " or another target"
            )
        axes.set(xlabel=f"radius, {self.norm!r}", title=title)
        return axes


def regularization_path(
    data: AttentionData,
    head: ArrayLike,
    norm: Norm | str | None = None,
    radii: Sequence[float] = (10.0, 30.0, 100.0, 300.0, 1000.0),
    parameterization: Form = "W",
    starts: int = 10,
    seed: int = 0,
    *,
    inner: int | None = None,
    keys: ArrayLike | None = None,
    head_radii: Sequence[float] | None = None,
    cone: Cone | None = None,
    loss: Loss | None = None,
    options: SearchOptions = OPTIONS,
) -> RegularizationPath:
    r"""Weights of least loss of every size, for a linear head.

    Args:
        data: one instance. Prompts, and prompts with a head, do not read its queries.
        head: ``(d_x,)``, the fixed head; for a joint path only its direction as one more start.
        norm: the norm that is bounded, or its name; Frobenius when left out. The nuclear norm is
            searched through factors; in norms with kinks (p = 1, infinity, spectral, rows) the
            search may stay at the max-margin solution, one of its starts.
        radii: positive sizes R, in the order in which they are searched.
        parameterization: ``"W"``; ``"KQ"``, factors with :math:`\|K\|_F^2+\|Q\|_F^2=2R`, which
            bounds the nuclear norm of
            :math:`KQ^\top` by R; ``"prompt"``, a vector p; ``"joint"``, head and prompt
            :math:`\|v\|=r,\|p\|=R`; ``"joint W"``, head and W, :math:`\|v\|=r,\|W\|=R` in the same
            norm. The search for a pair sees differences of attention down to rounding of the loss,
            margins of up to about 25; from there the weights are the best ones for the head that it
            found.
        starts: random starts for each radius, beside the max-margin direction of the optimal tokens
            and the neighbouring radii.
        seed: of the random starts.
        inner: columns of the factors; ``min(d_x, d_z)`` when left out.
        keys: ``(d_k, d_x)``, the fixed key map of a prompt.
        head_radii: the sizes r of a joint path; ``radii`` when left out.
        cone: keeps ``W``, the prompt, or the product of factors inside this cone: the local path.
            Around a locally optimal solution of the norm that is bounded, in a cone narrow enough,
            it turns to that solution. Products of factors keep at least half of every radius there.
        loss: Logistic, Exponential or Linear; logistic when left out. A joint path is logistic.
        options: when searches end.

    Raises:
        InputError: leading axes, a tie of optimal tokens, a radius that is not positive, a
            combination that has no meaning, a cone without a product of so few columns.

    Example:
        >>> import attsvm
        >>> data, head = attsvm.datasets.unit_sphere(3, 3, 4, seed=0)
        >>> margins = attsvm.selection_margins(data, attsvm.optimal_tokens(data, head))
        >>> best = attsvm.max_margin(margins)
        >>> path = attsvm.regularization_path(data, head, radii=[10, 1000], starts=3)
        >>> gaps = path.direction_gap(best)
        >>> bool(gaps[1] < gaps[0])
        True
    """
    bound = as_norm(norm)
    sizes = check_radii(radii)
    one_instance(data)
    if parameterization not in ("W", "KQ", "prompt", "joint", "joint W"):
        raise InputError(
            f"parameterization is {parameterization!r}; use 'W', 'KQ', 'prompt', 'joint' or"
            " 'joint W'"
        )
    if starts < 0:
        raise InputError(f"starts is {starts}; give a number of random starts, 0 or more")
    if parameterization in ("prompt", "joint") and bound != Frobenius():
        raise InputError(f"paths of prompts are those of the Frobenius norm, not of {bound.name}")
    if cone is not None and parameterization in ("joint", "joint W"):
        raise InputError(
            "a cone keeps weights under a fixed head; use parameterization='W', 'KQ' or 'prompt'"
            " with it"
        )
    if keys is not None and parameterization not in ("prompt", "joint"):
        raise InputError(
            "a key map belongs to a prompt; use parameterization='prompt' or 'joint' with keys"
        )
    if parameterization == "KQ" and norm is not None and bound != Nuclear():
        raise InputError(
            "factors of bounded size bound the nuclear norm of their product; leave norm out with"
            " parameterization='KQ'"
        )
    prompt = parameterization in ("prompt", "joint")
    v = floats("head", head)
    tokens = optimal_tokens(data, v)
    # W starts at the solution in the norm that is bounded; prompts, pairs and factors at the
    # Frobenius one, which turns with their coordinates
    margins = prompt_margins(data, tokens, keys) if prompt else selection_margins(data, tokens)
    in_bound = parameterization == "W" and bound != Nuclear()
    solution = max_margin(margins, bound if in_bound else None)
    guess = solution.W if solution.has_weights else None
    rng = np.random.default_rng(seed)
    if parameterization in ("joint", "joint W"):
        head_sizes = sizes if head_radii is None else floats("head_radii", head_radii)
        return _joint_path(
            Pair(data, keys, bound, prompt=prompt),
            v,
            sizes,
            head_sizes,
            starts,
            rng,
            guess,
            options,
        )
    if cone is not None:
        tokens = _tokens_of_axis(data, cone, keys, prompt)
    excess = Excess(data, v, Logistic() if loss is None else loss, keys, prompt, tokens)
    chart: Chart
    if parameterization == "KQ" or bound == Nuclear():
        bound = Nuclear()
        chart = Factors(excess.shape, min(excess.shape) if inner is None else inner, cone)
    else:
        chart = Sphere(excess.shape, bound, cone)
    points = [chart.random(rng) for _ in range(starts)] + (
        [] if guess is None or cone is not None else [chart.at(guess)]
    )
    points += [chart.centre()] if cone is not None else []
    best_points, values = _search(
        [_objective_at_radius(excess, chart, R, options.below) for R in sizes],
        points,
        slack=chart.slack,
        options=options,
    )
    if not np.isfinite(values[:, 0]).all():
        raise InputError(
            "no product of so few columns was found inside the cone; take more columns (inner) or a"
            " wider cone"
        )
    W = np.stack([chart.weights(x, R)[0] for x, R in zip(best_points, sizes, strict=True)])
    values = np.where(values < -0.5 * options.below, -np.inf, values)
    return RegularizationPath(sizes, W, values[:, 0], None, bound, values)


def _objective_at_radius(excess: Excess, chart: Chart, R: float, below: float) -> Objective:
    """Logarithm of the excess loss and its gradient, as a function of coordinates of a chart."""

    def value(x: FloatArray) -> tuple[float, FloatArray]:
        W, back = chart.weights(x, R)
        size, sign, gradient = excess(W)
        # a loss below that of the selected tokens ranks before all others, the lower the better
        return (size, back(gradient)) if sign >= 0 else (-below - size, -back(gradient))

    return value


def _tokens_of_axis(
    data: AttentionData, cone: Cone, keys: ArrayLike | None, prompt: bool
) -> IntArray:
    """The tokens that the axis of the cone selects."""
    mapped = mapped_keys(data, keys)
    queries = np.ones((data.n, 1)) if prompt else data.queries
    axis = np.asarray(getattr(cone.direction, "W", cone.direction), dtype=np.float64)
    if axis.size != mapped.shape[-1] * queries.shape[-1] or not axis.any():
        raise InputError(
            f"the cone has a direction of {axis.size} numbers; it must have the size of the weights"
            " and not be zero"
        )
    logits = np.einsum("ntd,nd->nt", mapped, queries @ axis.reshape(mapped.shape[-1], -1).T)
    return np.argmax(np.where(data.mask, logits, -np.inf), axis=1).astype(np.int64)


def _joint_path(
    pair: Pair,
    v: FloatArray,
    sizes: FloatArray,
    head_sizes: FloatArray,
    starts: int,
    rng: np.random.Generator,
    guess: FloatArray | None,
    options: SearchOptions,
) -> RegularizationPath:
    """The path of head and weights together.

    1. Search for pairs of least loss, in ordinary numbers.
    2. For the head of each, search once more for its weights in log space.
    """
    if head_sizes.shape != sizes.shape or not (np.isfinite(head_sizes) & (head_sizes > 0)).all():
        raise InputError(
            f"head_radii has shape {head_sizes.shape}; give {len(sizes)} positive numbers, one per"
            " radius"
        )
    points = [rng.standard_normal(pair.size) for _ in range(starts)] + (
        [] if guess is None else [np.concatenate([v, guess.reshape(-1)])]
    )
    # 1. by BFGS: what W changes is below the rounding of the value, and the test of L-BFGS-B for a
    # value that stands still would end there at once
    best_points, values = _search(
        [pair.objective(r, R) for r, R in zip(head_sizes, sizes, strict=True)],
        points,
        "BFGS",
        options=options,
    )
    # 2. weights for each head
    heads, weights = zip(
        *(
            _polish_weights(pair, x, r, R, options)
            for x, r, R in zip(best_points, head_sizes, sizes, strict=True)
        ),
        strict=True,
    )
    return RegularizationPath(
        sizes, np.stack(weights), values[:, 0], np.stack(heads), pair.norm, values
    )


def _polish_weights(
    pair: Pair, x: FloatArray, r: float, R: float, options: SearchOptions
) -> tuple[FloatArray, FloatArray]:
    """Head ``(d_x,)`` and weights of a pair; the weights are searched once more for this head, in
    log space, where rounding hides nothing.
    """
    v, W, _ = pair.split(x, r, R)
    chart = pair.of_weights
    objective = _objective_at_radius(pair.excess(v), chart, R, options.below)
    _, best = _minimise(objective, chart.at(W), "L-BFGS-B", options)
    return v, chart.weights(best, R)[0]


def _search(
    objectives: list[Objective],
    points: list[FloatArray],
    method: str = "L-BFGS-B",
    slack: Slack | None = None,
    options: SearchOptions = OPTIONS,
) -> tuple[list[FloatArray], FloatArray]:
    """The best point of each objective, and the values of all searches ``(k, searches)``, best
    first.

    1. Forwards: search every objective from all points, and from the best point of the objective
       before it.
    2. Backwards: search every objective from the best point of the one after it.
    """
    if not points:
        raise InputError(
            "there is nothing to start from: the max-margin programme is infeasible; ask for random"
            " starts"
        )

    def minimise_from(objective: Objective, x: FloatArray) -> tuple[float, FloatArray]:
        return (
            _minimise(objective, x, method, options)
            if slack is None
            else _minimise_inside(objective, x, slack, options)
        )

    best: list[FloatArray] = []
    values = np.full((len(objectives), len(points) + 2), np.inf)
    with one_thread(scipy=True):  # products are small
        # 1. forwards
        for k, objective in enumerate(objectives):
            ends = [minimise_from(objective, x) for x in points + best[-1:]]
            best.append(min(ends, key=lambda end: end[0])[1])
            values[k, : len(ends)] = [end[0] for end in ends]
        # 2. backwards
        for k in range(len(objectives) - 2, -1, -1):
            value, x = minimise_from(objectives[k], best[k + 1])
            if value < values[k].min():
                best[k] = x
            values[k, -1] = value
    return best, np.sort(values, axis=1)


def _minimise(
    objective: Objective, x: FloatArray, method: str, options: SearchOptions
) -> tuple[float, FloatArray]:
    """Least value and its point, by L-BFGS-B or BFGS from ``x``."""
    stop = {"gtol": options.gradient, "maxiter": options.iterations_dense}
    if method == "L-BFGS-B":
        stop |= {
            "ftol": options.value,
            "maxcor": options.memory,
            "maxiter": options.iterations,
        }
    for _ in range(2):  # a restart forgets a metric that has gone stale
        result = minimize(objective, x, jac=True, method=method, options=stop)
        x = result.x
    return float(result.fun), x


def _minimise_inside(
    objective: Objective, x: FloatArray, slack: Slack, options: SearchOptions
) -> tuple[float, FloatArray]:
    """Least value and its point where no slack is negative; infinite where no such point is
    reached.

    1. SLSQP with the slacks as constraints, on the objective divided by its size at the start,
       because the first step of its line search is as long as the gradient.
    2. BFGS without constraints from there, which is more exact; its point counts where it is better
       and inside.
    """
    unit = 1.0 / max(1.0, abs(objective(x)[0]))

    def scaled(x: FloatArray) -> tuple[float, FloatArray]:
        value, gradient = objective(x)
        return unit * value, unit * gradient

    inside = {"type": "ineq", "fun": lambda x: slack(x)[0], "jac": lambda x: slack(x)[1]}
    stop = {"ftol": options.value, "maxiter": options.iterations_dense}
    # 1. constrained
    for _ in range(2):  # a restart forgets a metric that has gone stale
        x = minimize(scaled, x, jac=True, method="SLSQP", constraints=[inside], options=stop).x
    if slack(x)[0].min() < -options.edge:
        return np.inf, x
    # 2. free
    value, free = _minimise(objective, x, "BFGS", options)
    edge = objective(x)[0]
    return (value, free) if value <= edge and slack(free)[0].min() >= 0 else (edge, x)
