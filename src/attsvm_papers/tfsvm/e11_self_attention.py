"""Self-attention: local convergence, ranks and global convergence with the first token as the query
(specification E2.11).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm.claims import Claim, Evidence, at_least, at_most
from attsvm_papers.kit import Cell, Experiment, cut
from attsvm_papers.tfsvm import e3_local_convergence as tfsvm_3
from attsvm_papers.tfsvm import e4_rank as tfsvm_4
from attsvm_papers.tfsvm import e5_convergence as tfsvm_5
from attsvm_papers.tfsvm.local_runs import local_runs

if TYPE_CHECKING:
    from attsvm.report.style import Picture

LOCAL, RANKS, OUTCOMES, FEASIBLE = range(4)
"""What a cell repeats: E2.3, E2.4, E2.5, or random selections at the smallest dimension that is
always enough.
"""


@dataclass(frozen=True)
class Parameters:
    """The cells of three experiments on :func:`attsvm.datasets.unit_sphere` with
    ``self_attention``.
    """

    local_steps: int = 2000
    ranks: tuple[int, ...] = (2, 3, 4, 5, 10, 15, 20)
    outcomes: tuple[tuple[int, int, int], ...] = (
        *((4, 5, d) for d in (2, 4, 8, 20)),
        (4, 12, 8),
        (2, 5, 8),
        (12, 5, 8),
    )
    feasible: tuple[tuple[int, int], ...] = ((5, 5), (4, 8), (8, 4))
    draws: int = 200
    steps: int = 2000
    lr: float = 0.1
    seeds: int = 100


QUICK = Parameters(ranks=(5, 10), outcomes=((4, 5, 2), (4, 5, 20)), seeds=20)


def cells(parameters: Parameters) -> Iterator[Cell]:
    for first, count in cut(parameters.seeds, 50):
        block = {"first": first, "count": count}
        for factors, ridge in ((False, 0.0), (True, tfsvm_3.RIDGE)):
            shape = {"n": 6, "T": 8, "d": 10, "steps": parameters.local_steps, "lr": parameters.lr}
            yield {
                "kind": LOCAL,
                "arguments": {**shape, **block, "factors": factors, "ridge": ridge},
            }
        for d in parameters.ranks:
            yield {"kind": RANKS, "arguments": {"n": 5, "T": 5, "d": d, **block}}
        for n, T, d in parameters.outcomes:
            yield {
                "kind": OUTCOMES,
                "arguments": {
                    "n": n,
                    "T": T,
                    "d": d,
                    "steps": parameters.steps,
                    "lr": parameters.lr,
                    **block,
                },
            }
    for n, T in parameters.feasible:
        for own in (False, True):
            yield {
                "kind": FEASIBLE,
                "arguments": {"n": n, "T": T, "count": parameters.draws, "self_attention": own},
            }


def run(kind: int, arguments: dict[str, Any]) -> dict[str, Any]:
    if kind == FEASIBLE:
        columns = _random_selections(**arguments)
    else:
        repeated: dict[int, Callable[..., dict[str, Any]]] = {
            LOCAL: local_runs,
            RANKS: tfsvm_4.run,
            OUTCOMES: tfsvm_5.run,
        }
        columns = repeated[kind](**arguments, self_attention=True)
    return {**columns, "kind": np.full(len(columns["seed"]), kind)}


def _random_selections(n: int, T: int, count: int, self_attention: bool) -> dict[str, Any]:
    """Whether random tokens of random instances with d = max(T - 1, n) can be selected."""
    from attsvm.datasets import unit_sphere
    from attsvm.selection import feasible

    d = max(T - 1, n)
    data, _ = unit_sphere(n, T, d, range(count), self_attention=self_attention)
    tokens = np.random.default_rng([11, n, T]).integers(T, size=(count, n))
    return {
        "seed": np.arange(count),
        "n": np.full(count, n),
        "T": np.full(count, T),
        "d": np.full(count, d),
        "own": np.full(count, self_attention),
        "selectable": feasible(data, tokens),
    }


def _kind(evidence: Evidence, kind: int) -> Evidence:
    return evidence.where(kind=kind)


def _measure_matched(evidence: Evidence) -> Any:
    W, KQ = (_kind(evidence, LOCAL).where(factors=factors) for factors in (False, True))
    return np.array(
        [
            np.mean(W["frobenius"][:, -1] - W["nuclear"][:, -1]),
            np.mean(KQ["nuclear"][:, -1] - KQ["frobenius"][:, -1]),
        ]
    )


def _measure_ranks(evidence: Evidence) -> Any:
    rows = _kind(evidence, RANKS)
    levels = [rows.where(d=d) for d in rows.levels("d") if d >= 5]
    return np.array(
        [np.nanmean(level["fro_rank"]) - np.nanmean(level["nuc_rank"]) for level in levels]
    )


def _share(evidence: Evidence, column: str, n: int, T: int, d: int) -> float:
    return float(np.mean(_kind(evidence, OUTCOMES).where(n=n, T=T, d=d)[column]))


def _shapes(evidence: Evidence) -> list[tuple[int, int, int]]:
    rows = _kind(evidence, OUTCOMES)
    return sorted(
        {(int(n), int(T), int(d)) for n, T, d in zip(rows["n"], rows["T"], rows["d"], strict=True)}
    )


def _measure_dimension(evidence: Evidence) -> Any:
    return np.diff(
        [_share(evidence, "global", *shape) for shape in _shapes(evidence) if shape[:2] == (4, 5)]
    )


def _measure_local(evidence: Evidence) -> Any:
    return np.array(
        [
            _share(evidence, "local", *shape)
            for shape in _shapes(evidence)
            if shape[2] >= max(shape[1] - 1, shape[0])
        ]
    )


CLAIMS = (
    Claim(
        "T10",
        "With d >= max(T - 1, n) any tokens can be selected, by cross- and by self-attention.",
        "recalled",
        lambda e: _kind(e, FEASIBLE)["selectable"],
        at_least(
            1.0,
            "true for almost every data set; random tokens of 200 random instances for each of"
            " three shapes",
        ),
        reference="P2, Theorem 1",
    ),
    Claim(
        "T23",
        "W ends closer to the Frobenius solution of its selection, factors closer to the nuclear"
        " one.",
        "ours",
        _measure_matched,
        at_least(0.1, "as for cross-attention (E2.3)"),
        reference="P2 (the released code has the switch)",
    ),
    Claim(
        "T11",
        "Every row of the Frobenius solution lies in the span of the queries.",
        "recalled",
        lambda e: _kind(e, RANKS)["row_space"],
        at_most(1e-7, "rounding of a certified solution"),
        {"feasible": lambda e: _kind(e, RANKS)["feasible"] == 1},
        "P2, Lemma 1",
    ),
    Claim(
        "E2.11a",
        "The nuclear solution has lower rank than the Frobenius solution wherever d >= n.",
        "ours",
        _measure_ranks,
        at_least(1e-9, "strictly lower, on average over each cell, as for cross-attention (E2.4)"),
    ),
    Claim(
        "E2.11b",
        "The share of global convergence grows with d.",
        "ours",
        _measure_dimension,
        at_least(
            -0.06,
            "two standard deviations of a difference of shares near 0.9, as for cross-attention"
            " (E2.5)",
        ),
    ),
    Claim(
        "E2.11c",
        "With d >= max(T - 1, n) at least 98 % of the runs end at a locally optimal selection.",
        "ours",
        _measure_local,
        at_least(0.96, "98 % with the sampling error of 100 runs"),
    ),
    Claim(
        "T15",
        "Where the first gradient ranks every optimal token first, a long first step along it leads"
        " to the global solution.",
        "recalled",
        lambda e: _kind(e, OUTCOMES)["far_global"],
        at_least(1.0, "the theorem does not care where queries come from"),
        {"aligned and feasible": lambda e: np.isfinite(_kind(e, OUTCOMES)["far_global"])},
    ),
)


def plot(evidence: Evidence) -> Iterator[Picture]:
    from attsvm.report.style import ATTENTION, BEST, FAINT, TRAINED, canvas, render

    with canvas(2.9, 1, 3, width=8.8) as (figure, axes):
        local = _kind(evidence, LOCAL)
        for factors, style in ((False, "-"), (True, "--")):
            rows = local.where(factors=factors)
            for column, colour in (("frobenius", TRAINED), ("nuclear", BEST)):
                label = (
                    f"{'K, Q' if factors else 'W'} to"
                    f" {'Frobenius' if column == 'frobenius' else 'nuclear'}"
                )
                axes[0].plot(
                    rows["step"][0], rows[column].mean(axis=0), style, color=colour, label=label
                )
        axes[0].set_title("Cosine to the solutions, mean")
        axes[0].set_xlim(0, 1000)
        axes[0].set_ylim(0, 1.03)
        axes[0].set_xlabel("step")
        ranks = _kind(evidence, RANKS)
        dimensions = ranks.levels("d")
        for column, style, label in (("fro_rank", "-", "Frobenius"), ("nuc_rank", "--", "nuclear")):
            means = [np.nanmean(ranks.where(d=d)[column]) for d in dimensions]
            axes[1].plot(
                dimensions,
                means,
                style,
                marker="o",
                color=TRAINED if column == "fro_rank" else BEST,
                label=label,
            )
        axes[1].set_title("Rank, n = T = 5, mean")
        axes[1].set_xlabel("dimension d")
        axes[1].set_ylim(0, 5.3)
        line = [shape for shape in _shapes(evidence) if shape[:2] == (4, 5)]
        place = np.arange(len(line))
        for offset, (column, colour, label) in enumerate(
            (("global", TRAINED, "global"), ("local", ATTENTION, "local, incl. global"))
        ):
            axes[2].bar(
                place + 0.4 * offset - 0.2,
                [100 * _share(evidence, column, *shape) for shape in line],
                0.38,
                color=colour,
                label=label,
            )
        axes[2].set_xticks(place, [str(shape[2]) for shape in line])
        axes[2].set_title("Convergence, n = 4, T = 5, %")
        axes[2].set_xlabel("dimension d")
        axes[2].set_ylim(0, 135)
        axes[2].set_yticks([0, 25, 50, 75, 100])
        for ax, where in zip(axes, ("lower right", "lower right", "upper left"), strict=True):
            ax.legend(frameon=False, fontsize=8.0, labelcolor=FAINT, loc=where)
        yield render(
            figure,
            "self-attention",
            "The same three pictures for self-attention",
            "Local convergence, ranks and global convergence when the first token of a sequence"
            " asks. Nothing changes in kind.",
            "Matched cosines tend to one; the nuclear rank is below the Frobenius rank; global"
            " convergence grows with d.",
        )


EXPERIMENT = Experiment(
    id="tfsvm-11",
    title="Self-attention: the statistics repeated",
    reference=(
        "Transformers as Support Vector Machines (the released code has the switch); specification"
        " E2.11"
    ),
    protocol=(
        "E2.3, E2.4 (n = T = 5) and E2.5 with the first token of each sequence as its query, and"
        " random selections at d = max(T - 1, n) for cross- and self-attention."
    ),
    parameters=Parameters(),
    quick=QUICK,
    cells=cells,
    run=run,
    claims=CLAIMS,
    plot=plot,
    notes="Where the optimal token is the query itself nothing changes in the formulas.",
)
