"""Local convergence: trained W meets the Frobenius solution of its own selection, trained factors the nuclear one (specification E2.3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm.claims import Claim, Evidence, at_least, at_most, between, close_to, true
from attsvm.experiments.experiment import Cell, Experiment, blocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attsvm.report.style import Picture
    from attsvm.solvers.solution import MarginSolution


@dataclass(frozen=True)
class Parameters:
    """Instances of :func:`attsvm.datasets.unit_sphere`; normalised gradient descent from uniform random weights."""

    n: int = 6
    T: int = 8
    d: int = 10
    steps: int = 2000
    lr: float = 0.1
    seeds: int = 100


QUICK = Parameters(seeds=25)

RIDGE = 2.2e-16  # weight of the penalty on K and Q in the released code: the spacing of float64 numbers at 1
EVERY = 20  # steps between two records
FAR = 30.0  # exp(-FAR) is what a non-neighbour may weigh against a neighbour at the edge of the derived cone
POINTS = 50  # random weights there
WIDE, START = 0.1, 10.0  # angle (radians) and smallest margin at which local runs start

# Means over 100 seeds, measured for the specification: probability of the selected tokens, and the cosines to the Frobenius and the
# nuclear solution of the trained selection. Rows of REFERENCE: W, then factors with the ridge. The stored plots agree by eye.
MARKS = (0, 100, 200, 400, 1000, 1980)
REFERENCE = {
    ("probability", False): (0.159, 0.727, 0.962, 0.999, 0.9995, np.nan),
    ("probability", True): (0.143, 0.9975, 0.9996, 1.0, 1.0, np.nan),
    ("frobenius", False): (0.03, 0.741, 0.880, 0.956, 0.989, 0.998),
    ("nuclear", False): (0.04, 0.690, 0.793, 0.842, 0.855, 0.857),
    ("nuclear", True): (0.06, 0.864, 0.939, 0.971, 0.990, 0.996),
    ("frobenius", True): (0.06, 0.768, 0.819, 0.838, 0.847, 0.847),
}


def cells(parameters: Parameters) -> Iterator[Cell]:
    shape = {"n": parameters.n, "T": parameters.T, "d": parameters.d, "steps": parameters.steps, "lr": parameters.lr}
    for first, count in blocks(parameters.seeds, 25):
        yield from ({**shape, "first": first, "count": count, "factors": factors, "ridge": ridge} for factors, ridge in VARIANTS)


VARIANTS = ((False, 0.0), (True, RIDGE), (True, 0.0))


def run(
    n: int, T: int, d: int, steps: int, lr: float, first: int, count: int, factors: bool, ridge: float, self_attention: bool = False
) -> dict[str, Any]:
    from attsvm.datasets import unit_sphere
    from attsvm.dynamics import AtSteps, train
    from attsvm.geometry import Nuclear
    from attsvm.margins import selection_margins
    from attsvm.models import Attention
    from attsvm.optim import SteepestDescent
    from attsvm.selection import locally_optimal, optimal_tokens, token_scores
    from attsvm.solvers import max_margin

    data, heads = unit_sphere(n, T, d, range(first, first + count), self_attention=self_attention)
    model = Attention.cross(data, heads, init=("uniform", first), parameterization="KQ" if factors else "W", penalty=ridge)
    trajectory = train(model, data, SteepestDescent(model.parameters(), lr=lr), steps, AtSteps(range(0, steps, EVERY)))
    selected = trajectory.selected[-1]
    programmes = [selection_margins(data.instance(k), selected[k]) for k in range(count)]
    frobenius, nuclear = max_margin(programmes), max_margin(programmes, Nuclear())
    certified = np.array([a.status == "optimal" and b.status == "optimal" for a, b in zip(frobenius, nuclear, strict=True)])
    scores = token_scores(data, heads)
    local = np.array([ok and bool(locally_optimal(s, scores[k]).all()) for k, (ok, s) in enumerate(zip(certified, frobenius, strict=True))])
    sizes = np.linalg.svd(trajectory.W[-1], compute_uv=False)
    columns = {
        "seed": np.arange(first, first + count),
        "factors": np.full(count, factors),
        "ridge": np.full(count, ridge),
        "step": np.tile(trajectory.steps, (count, 1)),
        "probability": trajectory.softmax_probability.mean(axis=-1).T,
        "frobenius": 1.0 - trajectory.direction_gap(frobenius).T,
        "nuclear": 1.0 - trajectory.direction_gap(nuclear).T,
        "size": np.linalg.svd(trajectory.W, compute_uv=False).sum(axis=-1).T,
        "certified": certified,
        "global": (selected == optimal_tokens(data, heads)).all(axis=-1),
        "local": local,
        "support": np.array([len(solution.support) for solution in frobenius]),
        "fro_rank": np.array([_rank(solution) for solution in frobenius]),
        "nuc_rank": np.array([_rank(solution) for solution in nuclear]),
        "trained_rank": np.sum(sizes > 1e-3 * sizes[:, :1], axis=-1),
        "nuc_unique": np.array([solution.unique is True for solution in nuclear]),
        "theta": sizes.sum(axis=-1) / np.array([solution.norm for solution in nuclear]),
    }
    if factors:
        K, Q = (np.linalg.norm(trajectory.parameters[name][-1], axis=(-2, -1)) for name in ("K", "Q"))
        columns["balance"] = np.stack([K**2, Q**2], axis=-1).max(axis=-1) / sizes.sum(axis=-1)
        return columns
    return columns | _from_the_cone(data, heads, selected, frobenius, local, steps)


def _rank(solution: MarginSolution) -> int:
    sizes = np.linalg.svd(solution.W, compute_uv=False)
    return int(np.sum(sizes > 1e-3 * sizes[0]))


def _from_the_cone(data: Any, heads: Any, selected: Any, solutions: Sequence[MarginSolution], local: Any, steps: int) -> dict[str, Any]:
    """Both halves of the local theorem: which way descent points in the cone, and where runs from it go."""
    from attsvm.data import AttentionData
    from attsvm.dynamics import AtSteps, train
    from attsvm.models import Attention
    from attsvm.optim import SteepestDescent
    from attsvm.selection import token_scores

    kept = np.flatnonzero(local)
    columns = {name: np.full(len(local), np.nan) for name in ("cone_ascent", "cone_before", "cone_after", "cone_kept")}
    scores = token_scores(data, heads)
    starts = []
    for k in kept.tolist():
        generator = np.random.default_rng([17, k])
        columns["cone_ascent"][k] = _ascent(solutions[k], scores[k], generator)
        starts.append(_inside(solutions[k], WIDE, START, 1, generator)[0])
    subset = AttentionData(data.tokens[kept], data.labels[kept], data.queries[kept], data.mask[kept])
    model = Attention.cross(subset, heads[kept], init=np.stack(starts))
    trajectory = train(model, subset, SteepestDescent(model.parameters(), lr=0.1), steps, AtSteps(()))
    gaps = trajectory.direction_gap([solutions[k] for k in kept.tolist()])
    columns["cone_before"][kept], columns["cone_after"][kept] = gaps[0], gaps[-1]
    columns["cone_kept"][kept] = (trajectory.selected == selected[kept]).all(axis=(0, -1))
    return columns


def _inside(solution: MarginSolution, angle: float, radius: float, count: int, generator: np.random.Generator) -> Any:
    """Random weights at this angle to the solution, of size ``radius`` solutions."""
    direction = solution.W / solution.norm
    aside = generator.standard_normal((count, *direction.shape))
    aside -= np.sum(aside * direction, axis=(-2, -1), keepdims=True) * direction
    aside /= np.linalg.norm(aside, axis=(-2, -1), keepdims=True)
    return radius * solution.norm * (np.cos(angle) * direction + np.sin(angle) * aside)


def _ascent(solution: MarginSolution, scores: Any, generator: np.random.Generator) -> float:
    r"""Least share of :math:`\langle-\nabla L(W),W^{mm}\rangle` in its absolute terms, over random W at the edge of the derived cone.

    With :math:`\rho` the least margin of a non-neighbour, :math:`B=\max\|A_{it}\|` and :math:`\Theta=1/\|W^{mm}\|`, margins inside the cone
    of opening :math:`\sqrt{2\mu}=\Theta(\rho-1)/4B` move by less than a third of :math:`\Theta(\rho-1)`. At the size chosen, non-neighbours
    weigh :math:`e^{-\mathrm{FAR}}` of a neighbour.
    """
    margins = solution.margins
    q = margins(solution.W)
    gap = np.delete(q, solution.support).min(initial=2.0) - 1.0
    reach = (np.linalg.norm(margins.differences, axis=1) * np.linalg.norm(margins.queries, axis=1)[margins.sequence]).max()
    angle = 2.0 * np.arcsin(min(gap / solution.norm / (4.0 * reach), 1.0) / 2.0)
    W = _inside(solution, angle, 3.0 * FAR / gap, POINTS, generator)
    logits = np.einsum("cd,pde,ce->pc", margins.differences, W, margins.queries[margins.sequence], optimize=True)
    weight = np.exp(logits.min(axis=1, keepdims=True) - logits)  # a common factor of all weights does not matter
    best = scores[np.arange(margins.n), margins.selected]
    lead = best[margins.sequence] - scores[margins.sequence, margins.token]
    terms = weight * lead * q / (1.0 + np.exp(best))[margins.sequence]
    return float((terms.sum(axis=1) / np.abs(terms).sum(axis=1)).min())


def _variant(evidence: Evidence, factors: bool, ridge: float | None = None) -> Evidence:
    return evidence.where(factors=factors, ridge=(RIDGE if factors else 0.0) if ridge is None else ridge)


def _mean_at(evidence: Evidence, column: str, step: int) -> float:
    at = np.flatnonzero(evidence["step"][0] == step)
    return float(evidence[column][:, at[0]].mean()) if len(at) else np.nan


def _measure_reference(column: str, factors: bool) -> Any:
    """Largest distance of the mean curve to the table, from step 100 on: the starts are other random numbers."""

    def measure(evidence: Evidence) -> Any:
        rows = _variant(evidence, factors)
        pairs = list(zip(MARKS, REFERENCE[column, factors], strict=True))[1:]
        return np.array([abs(_mean_at(rows, column, step) - value) for step, value in pairs if np.isfinite(value)])

    return measure


def _measure_matched(evidence: Evidence) -> Any:
    W, KQ = _variant(evidence, False), _variant(evidence, True)
    return np.array([np.mean(W["frobenius"][:, -1] - W["nuclear"][:, -1]), np.mean(KQ["nuclear"][:, -1] - KQ["frobenius"][:, -1])])


def _paper_scale(evidence: Evidence) -> bool:
    return len(_variant(evidence, False)["seed"]) >= 100


SAME = "the tolerance of the specification; other random starts, and a standard error of about 0.01 where the curves are steep"
REFERENCES = tuple(
    Claim(
        f"E2.3{letter}",
        f"{'Factors with the ridge' if factors else 'W'}: the mean {words} follows the measured table from step 100 on.",
        "ours",
        _measure_reference(column, factors),
        at_most(0.02, SAME),
        {"100 seeds": _paper_scale},
        "specification E2.3; the stored plots agree by eye",
    )
    for letter, column, factors, words in (
        ("a", "probability", False, "probability of the selected tokens"),
        ("b", "probability", True, "probability of the selected tokens"),
        ("c", "frobenius", False, "cosine to the Frobenius solution"),
        ("d", "nuclear", False, "cosine to the nuclear solution"),
        ("e", "nuclear", True, "cosine to the nuclear solution"),
        ("f", "frobenius", True, "cosine to the Frobenius solution"),
    )
)

CLAIMS = (
    Claim(
        "T16",
        "Far out in a narrow cone around a locally optimal direction, minus the gradient points along it: no stationary points.",
        "recalled",
        lambda e: e["cone_ascent"],
        at_least(1e-6, f"positive at {POINTS} random weights at the edge of the derived cone, by more than rounding"),
        {"a run for W at a locally optimal selection": lambda e: np.isfinite(e["cone_ascent"])},
        "P2, local convergence (number recalled); opening and size of the cone are derived",
    ),
    Claim(
        "T16b",
        "A run that starts near a locally optimal direction keeps its selection and converges to that direction.",
        "recalled",
        lambda e: np.where(e["cone_kept"] == 1, e["cone_after"] / e["cone_before"], np.inf),
        at_most(0.5, "0.1 radians is wider than the cone of the theorem, so a few runs may leave; the gap of 0.005 must halve", share=0.95),
        {"a run for W at a locally optimal selection": lambda e: np.isfinite(e["cone_before"])},
        "P2, local convergence (number recalled)",
    ),
    Claim(
        "T23",
        "W ends closer to the Frobenius solution of its selection, factors closer to the nuclear one.",
        "seen",
        _measure_matched,
        at_least(0.1, "the specification's: matched pairs beat mismatched ones by more than 0.1, on average over seeds"),
        reference="P2, figure of local convergence",
    ),
    *REFERENCES,
    Claim(
        "E2.3g",
        "The last selection is locally optimal.",
        "recalled",
        lambda e: _variant(e, False)["local"],
        true("98 of 100 in the specification's run; the rest are still moving", share=0.95),
    ),
    Claim(
        "E2.3h",
        "About three quarters of the runs end at the optimal tokens (74 % for W, 78 % for factors).",
        "ours",
        lambda e: [np.mean(_variant(e, factors)["global"]) - share for factors, share in ((False, 0.74), (True, 0.78))],
        between(-0.1, 0.1, "other random starts: two standard deviations of a share of 100"),
        {"100 seeds": _paper_scale},
    ),
    Claim(
        "E2.3i",
        "The Frobenius solution has rank 6, the nuclear one 3.1 on average, the trained product 3.2; 19.9 of 42 constraints support.",
        "ours",
        lambda e: [
            np.mean(_variant(e, False)["fro_rank"]) / 6.0,
            np.mean(_variant(e, True)["nuc_rank"]) / 3.1,
            np.mean(_variant(e, True)["trained_rank"]) / 3.2,
            np.mean(_variant(e, False)["support"]) / 19.9,
        ],
        between(0.95, 1.05, "relative to the specification's means; a standard error is about 1.5 %"),
        {"100 seeds": _paper_scale},
    ),
    Claim(
        "E2.3j",
        "Both solutions of every selection are certified.",
        "ours",
        lambda e: e["certified"],
        at_least(1.0, "a mean over certified instances only would be another mean", share=0.98),
    ),
    Claim(
        "E2.3k",
        "With the ridge the smallest margin freezes slightly below log(1/ridge) = 36.",
        "ours",
        lambda e: _variant(e, True)["theta"],
        between(28.0, 36.05, "where the ridge balances the data gradient; the specification's two toys freeze at 30.9 and 34.7"),
    ),
    Claim(
        "E2.3l",
        "There the squared norm of either factor is the nuclear norm of the product.",
        "ours",
        lambda e: _variant(e, True)["balance"],
        close_to(1.0, 0.02, "exactly so at a minimum of the penalty for a given product; steps of 0.1 jitter around it"),
    ),
)


def plot(evidence: Evidence) -> Iterator[Picture]:
    yield _plot_published(evidence)
    yield _plot_ridge(evidence)


def _band(ax: Any, rows: Evidence, column: str, colour: str, style: str) -> float:
    step, values = rows["step"][0], rows[column]
    mean, spread = values.mean(axis=0), values.std(axis=0)
    ax.fill_between(step, mean - spread, np.minimum(mean + spread, 1.0), color=colour, alpha=0.13, linewidth=0)
    ax.plot(step, mean, style, color=colour)
    return float(mean[step <= 1000][-1])


def _plot_published(evidence: Evidence) -> Picture:
    from attsvm.report.style import ATTENTION, BEST, FAINT, TRAINED, canvas, render

    with canvas(2.9, 1, 3, width=8.6, sharex=True) as (figure, axes):
        for factors, colour, words in ((False, TRAINED, "W"), (True, ATTENTION, "K and Q")):
            rows = _variant(evidence, factors)
            _band(axes[0], rows, "probability", colour, "-")
            axes[0].plot([], [], "-", color=colour, label=words)
            axes[0].plot(MARKS, REFERENCE["probability", factors], "x", color=colour, markersize=6, markeredgewidth=1.1)
            ax = axes[1 + factors]
            for column, shade, label in (("frobenius", TRAINED, "Frobenius solution"), ("nuclear", BEST, "nuclear solution")):
                _band(ax, rows, column, shade, "-")
                ax.plot([], [], "-", color=shade, label=label)
                ax.plot(MARKS, REFERENCE[column, factors], "x", color=shade, markersize=6, markeredgewidth=1.1)
        for ax, title in zip(axes, ("Probability of selected tokens", "W: cosine to ...", "K and Q: cosine to ..."), strict=True):
            ax.set_title(title)
            ax.set_xlim(0, 1000)
            ax.set_ylim(0, 1.03)
            ax.set_xlabel("step")
            ax.legend(frameon=False, fontsize=8.5, labelcolor=FAINT, loc="lower right")
        return render(
            figure,
            "local-convergence",
            "Every parameterisation finds its own norm",
            "Mean and standard deviation over seeds; crosses: the specification's table. Solutions are those of the tokens selected at the "
            "end. Factors are trained with the published ridge.",
            "The cosine of W to the Frobenius solution tends to one and stays at 0.86 to the nuclear one; for factors it is the reverse.",
        )


def _plot_ridge(evidence: Evidence) -> Picture:
    from attsvm.report.style import ATTENTION, BEST, TRAINED, canvas, label_ends, logarithmic, render

    with canvas(2.9, 1, 2, width=8.6) as (figure, axes):
        lines = (
            (True, 0.0, "nuclear", BEST, "factors, no ridge"),
            (True, RIDGE, "nuclear", ATTENTION, "factors, ridge"),
            (False, 0.0, "frobenius", TRAINED, "W"),
        )
        for ax, title in zip(axes, ("1 - cosine to the own solution, median", "Nuclear norm of the weights, mean"), strict=True):
            ends, seen = [], []
            for factors, ridge, column, colour, label in lines:
                rows = _variant(evidence, factors, ridge)
                values = np.median(1.0 - rows[column], axis=0) if ax is axes[0] else rows["size"].mean(axis=0)
                ax.plot(rows["step"][0], values, "-", color=colour)
                ends.append((float(values[-1]), label, colour))
                seen.append(values)
            logarithmic(ax.yaxis, np.concatenate(seen))
            ax.set_title(title)
            ax.set_xlabel("step")
            ax.set_xlim(0, None)
            label_ends(ax, ends, 0.08)
        return render(
            figure,
            "ridge",
            "What the published ridge does",
            "The ridge of 2.2e-16 stops the norm of the factors once the loss gradient is below it. In log space no ridge is needed "
            "and the norm grows like the square of the step.",
            "With the ridge the norm of the product freezes after a few hundred steps, without it the norm grows without bound.",
        )


EXPERIMENT = Experiment(
    id="tfsvm-3",
    title="Local convergence: W to the Frobenius, factors to the nuclear solution",
    reference="Transformers as Support Vector Machines, figure of local convergence (number uncertain); specification E2.3",
    protocol="Random tokens, queries and head on the unit sphere, n = 6, T = 8, d = 10; normalised gradient descent with step 0.1 from "
    "uniform random weights, 2000 steps (1000 drawn). W, factors with the published ridge of 2.2e-16, and factors without it. Both "
    "max-margin solutions of the tokens selected at the end are certified.",
    parameters=Parameters(),
    quick=QUICK,
    cells=cells,
    run=run,
    claims=CLAIMS,
    plot=plot,
    notes="The released code does not seed its starts, so only averages can be compared. Its ridge exists because gradients underflow; "
    "ours do not, and the second figure shows both.",
)
