"""What changes the two components and the training, and what does not (specification P4-E7)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm.claims import Claim, Evidence, at_least, at_most
from attsvm_papers.graph.priority import SETTINGS, draws, starts
from attsvm_papers.kit import Cell, Experiment, cut

if TYPE_CHECKING:
    from attsvm.datasets.next_token import NextTokenData
    from attsvm.report.style import Picture


@dataclass(frozen=True)
class Parameters:
    """Cyclic data of graph-2, transformed; gradient descent on both."""

    setting: tuple[int, int, int, int] = SETTINGS[1]
    lr: float = 1.0
    steps: int = 2000
    seeds: int = 100


ROTATED, RENAMED, SHUFFLED, SPLIT, WEIGHTED, DOUBLED = range(6)
CHANGES = (
    "embeddings turned by a rotation",
    "tokens renamed",
    "tokens and sentences in another order",
    "a sentence split in two of half its weight",
    "other weights",
    "a sentence counted twice",
)
SAME = (ROTATED, RENAMED, SHUFFLED, SPLIT)
"""Changes that leave everything but its coordinates as it was; the others change the weights of the
loss.
"""


def cells(parameters: Parameters) -> Iterator[Cell]:
    shape = {"setting": list(parameters.setting), "lr": parameters.lr, "steps": parameters.steps}
    for first, count in cut(parameters.seeds, 100):
        yield {**shape, "first": first, "count": count}


def run(setting: list[int], lr: float, steps: int, first: int, count: int) -> dict[str, Any]:
    from attsvm.dynamics import AtSteps
    from attsvm.dynamics.next_token import Problem, Rule, attention_stage
    from attsvm.selection import graph_svm

    data = draws(setting, True, first, count)
    d = setting[3]
    init = starts(d, first, count)
    turns = np.stack(
        [
            np.linalg.qr(np.random.default_rng([46, first + k]).standard_normal((d, d)))[0]
            for k in range(count)
        ]
    )

    def trained(sets: list[NextTokenData], start: Any) -> Any:
        rule = Rule(lr, normalize=False)
        return attention_stage(
            Problem.of(sets, "log_mass"), rule, steps, init=start, records=AtSteps(())
        ).W[-1]

    base = graph_svm(data)
    direction, finite, weights = (
        np.stack([one.solution.W for one in base]),
        np.stack([one.finite for one in base]),
        trained(data, init),
    )
    rows: dict[str, list[Any]] = {
        name: []
        for name in ("seed", "change", "direction", "finite", "trained", "certified", "divided")
    }
    for change in range(len(CHANGES)):
        other = [_changed(one, change, turns[k], first + k) for k, one in enumerate(data)]
        svms = graph_svm(other)
        Q = turns if change == ROTATED else np.broadcast_to(np.eye(d), turns.shape)
        found = (
            np.stack([one.solution.W for one in svms]),
            np.stack([one.finite for one in svms]),
            trained(other, Q.mT @ init @ Q),
        )
        for name, before, after in zip(
            ("direction", "finite", "trained"), (direction, finite, weights), found, strict=True
        ):
            distance = np.linalg.norm(Q @ after @ Q.mT - before, axis=(-2, -1))
            rows[name].append(distance / np.maximum(np.linalg.norm(before, axis=(-2, -1)), 1.0))
        rows["divided"].append(np.array([one.winning_component()[0].sum() > 1 for one in base]))
        rows["seed"].append(np.arange(first, first + count))
        rows["change"].append(np.full(count, change))
        rows["certified"].append(
            np.array(
                [
                    a.solution.status == b.solution.status == "optimal"
                    for a, b in zip(base, svms, strict=True)
                ]
            )
        )
    return {name: np.concatenate(parts) for name, parts in rows.items()}


def _changed(data: NextTokenData, change: int, turn: Any, seed: int) -> NextTokenData:
    from attsvm.datasets.next_token import NextTokenData

    rng = np.random.default_rng([47, change, seed])
    sentences, labels, weights, E = data.sentences, data.labels, data.weights, data.embeddings
    if change == ROTATED:
        E = E @ turn
    elif change == RENAMED:
        names = rng.permutation(data.K)
        sentences, labels, E = (
            [names[sentence] for sentence in sentences],
            names[labels],
            E[np.argsort(names)],
        )
    elif change == SHUFFLED:
        order = rng.permutation(data.N)
        sentences = [np.append(rng.permutation(sentences[n][:-1]), sentences[n][-1]) for n in order]
        labels, weights = labels[order], weights[order]
    elif change == SPLIT:
        sentences, labels = [*sentences, sentences[0]], np.append(labels, labels[0])
        weights = np.append(np.where(np.arange(data.N) == 0, 0.5, 1.0) * weights, 0.5 * weights[0])
    elif change == WEIGHTED:
        weights = rng.dirichlet(np.ones(data.N))
    else:
        sentences, labels, weights = (
            [*sentences, sentences[0]],
            np.append(labels, labels[0]),
            np.append(weights, weights[0]),
        )
    return NextTokenData.from_sentences(sentences, labels, weights, E, following=np.arange(data.K))


def _kept(evidence: Evidence) -> Evidence:
    return evidence.take(np.isin(evidence["change"], SAME))


CLAIMS = (
    Claim(
        "C4.E7d",
        "The max-margin part turns with the embeddings and sees neither weights, copies, names nor"
        " order.",
        "seen",
        lambda e: e["direction"],
        at_most(1e-8, "relative; both solutions are certified to a gap of 1e-9"),
        {"both are certified": lambda e: e["certified"]},
        "P4: constraints are those of the graphs",
    ),
    Claim(
        "C4.E7f",
        "So does the finite part, as long as the weight of every labelled sentence stays.",
        "ours",
        lambda e: _kept(e)["finite"],
        at_most(
            1e-11,
            "relative, or absolute for parts shorter than 1; Newton's method ends at rounding",
        ),
    ),
    Claim(
        "C4.E7w",
        "Other weights of the sentences give another finite part.",
        "seen",
        lambda e: np.mean(e.where(change=WEIGHTED)["finite"] > 1e-6),
        at_least(
            0.95,
            "share of instances; where a cycle's labels keep their ratio, which has probability 0,"
            " it would stay",
        ),
    ),
    Claim(
        "C4.E7c",
        "A sentence that is counted twice leaves it where it is when all its other tokens lie in"
        " components below.",
        "ours",
        lambda e: e.where(change=DOUBLED)["finite"],
        at_most(1e-11, "it has no part in the reduced loss, and the others keep their ratios"),
        {
            "no other token in the component of the label": lambda e: (
                ~e.where(change=DOUBLED)["divided"]
            )
        },
    ),
    Claim(
        "C4.E7t",
        "Gradient descent turns with the embeddings, and sees neither names, order nor split"
        " weights.",
        "ours",
        lambda e: _kept(e)["trained"],
        at_most(1e-9, "relative, after 2000 steps of rounding in other coordinates"),
    ),
)


def plot(evidence: Evidence) -> Iterator[Picture]:
    from attsvm.report.style import ATTENTION, BEST, TRAINED, canvas, logarithmic, render

    rng = np.random.default_rng(0)
    panels = (
        ("direction", "max-margin part", BEST),
        ("finite", "finite part", ATTENTION),
        ("trained", "trained weights", TRAINED),
    )
    with canvas(2.9, 1, 3, width=10.4, sharey=True) as (figure, axes):
        for ax, (column, title, colour) in zip(axes, panels, strict=True):
            for change in range(len(CHANGES)):
                values = np.maximum(evidence.where(change=change)[column], 1e-17)
                ax.scatter(
                    values,
                    change + rng.uniform(-0.25, 0.25, len(values)),
                    s=7,
                    color=colour,
                    alpha=0.4,
                    linewidths=0,
                )
            logarithmic(ax.xaxis, np.array([1e-17, 10.0]))
            ax.set_xlim(3e-18, 30.0)
            ax.set_xticks([1e-16, 1e-12, 1e-8, 1e-4, 1.0])
            ax.set_title(title)
            ax.set_xlabel("relative change")
        axes[0].set_yticks(range(len(CHANGES)), CHANGES)
        axes[0].invert_yaxis()
        yield render(
            figure,
            "invariances",
            "What the components of training depend on",
            "Relative change under six changes of the data, after turning back; one dot per"
            " instance, changes below 1e-17 drawn there.",
            "Every change leaves the max-margin part at rounding; only changes of the weights move"
            " the finite part and the training.",
        )


EXPERIMENT = Experiment(
    id="graph-7",
    title="Invariances of both components and of training",
    reference="Mechanics of Next Token Prediction with Self-Attention; specification P4-E7",
    protocol=(
        "Cyclic data of graph-2, changed in six ways; both components of each, and 2000 steps of"
        " gradient descent with step 1 on the log loss from corresponding starts, are compared with"
        " those of the original."
    ),
    parameters=Parameters(),
    quick=Parameters(seeds=25),
    cells=cells,
    run=run,
    claims=CLAIMS,
    plot=plot,
)
