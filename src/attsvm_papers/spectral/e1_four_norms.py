"""Steepest descent in four norms on attention.

Token-priority data without cycles (n = 4, T = 6, K = d = 8, random unit embeddings), log loss of
the attention mass from W = 0. Steps eta0/√(t+1) along the steepest direction of the gradient, or of
its average with weight 0.9 of the past: eta0 = 0.5 Frobenius, 0.25 spectral (exact polar factor),
0.1 max, 0.5 nuclear (rank one). Margins are measured against certified solutions in all four norms.

Source: Implicit Bias of Spectral Descent and Muon, carried over to attention

Notes: The log loss of priority graphs is a multinomial logistic regression in W, so the theorems
for linear multiclass data apply.
"""

from functools import lru_cache
from typing import Any

import numpy as np

from attsvm import (
    Frobenius,
    Lp,
    Norm,
    Nuclear,
    Spectral,
    max_margin_batch,
    order_margins,
)
from attsvm.theory.next_token import Problem, StepRule, steepest_stage
from attsvm.theory.sentences import arcs, priority_graph
from attsvm.training import AtSteps
from attsvm_papers import kit
from attsvm_papers.rates.adaptive import log_slopes, log_spaced_records
from attsvm_papers.spectral.multiclass import log_log1p

SETTING = (4, 6, 8, 8)  # n, T, K, d
NAMES = ("Frobenius", "spectral", "max", "nuclear")
RATES = (0.5, 0.25, 0.1, 0.5)
COLOURS = (kit.TRAINED, kit.ATTENTION, kit.BEST, kit.INK)
BETAS = (0.0, 0.9)
STEPS, LATE = 5000, 20_000


def four_norms() -> tuple[Norm, ...]:
    """The four geometries, in the order of ``NAMES``."""
    return Frobenius(), Spectral(), Lp(np.inf), Nuclear()


@lru_cache(maxsize=1)
def solve_in_four_norms(seeds: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """Data, programmes and best margins ``(4, seeds)``, the same for every optimiser."""
    data = [priority_graph(*SETTING, seed) for seed in seeds]
    margins = [order_margins(data_set.embeddings, arcs(data_set).arcs) for data_set in data]
    solutions = [max_margin_batch(margins, norm, tol=1e-8) for norm in four_norms()]
    assert all(batch.optimal.all() for batch in solutions)
    return data, margins, np.array([[solution.margin for solution in batch] for batch in solutions])


@kit.run(
    seeds=kit.seeds(48, by=48), beta=BETAS, norm=range(len(NAMES)), quick={"far": 5000, "seeds": 3}
)
def run(norm, beta, seeds, steps=STEPS, far=LATE):
    data, margins, best = solve_in_four_norms(tuple(seeds))
    problem, own_norm = Problem.of(data, "log_mass"), four_norms()[norm]
    records = AtSteps([*log_spaced_records(far), steps])
    trajectory = steepest_stage(
        problem, own_norm, StepRule(RATES[norm], decay=0.5), far, momentum=beta, records=records
    )
    least = np.stack(
        [
            [margins_of_run(W[run]).min() for run, margins_of_run in enumerate(margins)]
            for W in trajectory.W[1:]
        ]
    )
    shares = (
        np.stack([least / norm_of_ratio.value(trajectory.W[1:]) for norm_of_ratio in four_norms()])
        / best[:, None]
    )
    G, log_scale = problem.gradient(trajectory.W[1:])
    missing = problem.log_missing(trajectory.W[1:])
    proxy = problem.log_mean(missing)
    # from 1 - phi to (1 - phi) / phi
    odds = missing - np.log(-np.expm1(np.minimum(missing, -1e-300)))
    loss = problem.log_mean(log_log1p(odds))
    columns = {
        "step": np.tile(trajectory.steps[1:], (len(seeds), 1)),
        "gap": 1.0 - shares[norm].T,
        "push": (np.log(own_norm.dual_value(G)) + log_scale - proxy).T,
        "log_margin": np.log(best[norm]),
        "proxy_share": np.exp(proxy - loss).T,
        "log_loss": loss.T,
    }
    record = np.flatnonzero(trajectory.steps[1:] == steps)[0]
    return columns | {f"share{k}": shares[k, record] for k in range(len(NAMES))}


def another_norm(e):
    """Steepest descent in the next norm."""
    gap = e["gap"].copy()
    for k, (norm, beta, seed) in enumerate(zip(e["norm"], e["beta"], e["seed"], strict=True)):
        following = e.where(norm=(norm + 1) % len(NAMES), beta=beta, seed=seed)
        gap[k] = 1.0 - following[f"share{norm}"]
    return e.but({"gap": gap})


FAR = {"20 000 steps": lambda e: np.array(e["step"].max() >= LATE)}


@kit.claim(
    kit.at_least(
        0.94, "gaps fall like one over the root of the step: to half from 5000 on", share=kit.MOST
    ),
    assumes=FAR,
    null=another_norm,
)
def C7_4b(e):
    """NSD and NMD in four norms: the margin reached, relative to the best one in the own norm, at
    step 20 000.
    """
    return 1.0 - e.at("gap", LATE)


@kit.claim(
    kit.at_least(0.0, "each column of the matrix is won on its diagonal", share=kit.MOST),
    explanation=(
        "Where the Frobenius solution has nearly the best spectral or nuclear margin, descent in"
        " that norm is behind descent in the Frobenius norm at these steps."
    ),
    null=kit.exchanged("Frobenius and spectral descent exchanged", "norm", 0, 1),
    failure="scale",
)
def C7_4c(e):
    """An optimiser is the best of the four in the ratio of its own norm, with and without momentum:
    lead over the next.
    """
    leads = []
    for rows in e.by("beta seed"):
        shares = [rows[f"share{k}"] for k in rows["norm"]]
        leads += [row[k] - np.delete(row, k).max() for k, row in enumerate(shares)]
    return np.array(leads)


@kit.claim(
    kit.at_most(-0.3, "the bound of the theorem has -1/2 up to a logarithm", share=kit.MOST),
    reference="spectral, rates of NSD and NMD on multiclass data, carried over by C4.1",
    interval=True,
    null=kit.mixed_records("gap"),
    trials="beta seed",
)
def C7_1(e):
    """NSD and NMD on attention: slope of the log of the margin gap from step 100 to 5000."""
    return log_slopes(e, "gap", 100, STEPS)


@kit.claim(
    kit.at_least(-1e-6, "derived; tolerance of the margin"),
    "paper",
    "spectral, proxy of the loss",
    null=kit.shuffled("log_margin", within="norm beta", words="the margin of another instance"),
)
def C7_4d(e):
    """The proxy G bounds the dual norm of the gradient from below: log of their ratio over the
    margin, least along each run.
    """
    return (e["push"] - e["log_margin"][:, None]).min(axis=1)


@kit.claim(
    kit.at_least(-1e-12, "exact; rounding"),
    "paper",
    "spectral, proxy of the loss",
    null=kit.replaced("G and the loss exchanged", proxy_share=lambda e: 1.0 / e["proxy_share"]),
)
def C7_4f(e):
    """G is at most the loss, and at least 1 - nL/2 of it."""
    return np.concatenate(
        [
            (1.0 - e["proxy_share"]).min(axis=1),
            (e["proxy_share"] - 1.0 + SETTING[0] * np.exp(e["log_loss"]) / 2.0).min(axis=1),
        ]
    )


@kit.picture(
    "Every norm finds its own margin",
    "The diagonal of the matrix is the largest entry of each column; all gaps fall slightly"
    " faster than one over the root of the step.",
    3.2,
    1,
    2,
    width=8.4,
)
def matrix(e, axes):
    """Left: smallest margin over norm at step 5000, relative to the best possible in that norm,
    for steepest descent in four norms, median over seeds. Right: how the ratio in the own norm
    tends to one, median over seeds; dotted with momentum, dashed one over the root of the step.
    """
    plain = e.where(beta=0.0).by("norm")
    table = np.array([[np.median(rows[f"share{k}"]) for k in range(len(NAMES))] for rows in plain])
    axes[0].imshow(table, cmap="Greys", vmin=0.0, vmax=3.5)
    for (k, column), value in np.ndenumerate(table):
        style = {"color": COLOURS[k], "weight": "bold"} if k == column else {"color": kit.INK}
        axes[0].text(column, k, f"{value:.3f}", ha="center", va="center", **style)
    axes[0].set_xticks(range(len(NAMES)), NAMES)
    axes[0].set_yticks(range(len(NAMES)), NAMES)
    axes[0].set(xlabel="margin ratio in this norm", ylabel="steepest descent in")
    for rows in e.by("norm beta"):
        k, step = rows["norm"][0], rows["step"][0]
        is_late, dotted = step >= 30, rows["beta"][0] > 0
        curve = np.median(rows["gap"][:, is_late], axis=0)
        label = None if dotted else NAMES[k]
        axes[1].plot(step[is_late], curve, ":" if dotted else "-", color=COLOURS[k], label=label)
    guide = 0.9 * (step[is_late] / step[is_late][0]) ** -0.5
    axes[1].plot(step[is_late], guide, "--", color=kit.FAINT, linewidth=0.9)
    axes[1].set(xscale="log", yscale="log", xlim=(30, step[-1]), ylim=(0.008, 1.1), xlabel="step")
    axes[1].set_title("1 - ratio in the own norm")
    kit.legend(axes[1])
