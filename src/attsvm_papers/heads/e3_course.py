"""The course over training: from initialisation on.

The trainings of heads-1 under AdamW and Muon, at twenty checkpoints from the first weights on,
which are random. The first head of each layer is measured in the nuclear norm beside its two
strict nulls, at 80 queries; where a head is sure of fewer it is scaled until it is sure of 80,
which moves no selection. Beside the excess stand the share of queries of which the head is sure as
it is, the Frobenius norm of its weights, and the held-out loss of the network.

Source: this project
"""

import numpy as np
from scipy.stats import spearmanr

from attsvm_papers import kit
from attsvm_papers.heads.excesses import (
    COLOURS,
    NAMES,
    ROTATED,
    WRITTEN,
    by_seed,
    excess_over_nulls,
)
from attsvm_papers.heads.networks import (
    PAPER,
    QUICK,
    SMALL,
    TEXT,
    attention_layers,
    held_out_texts,
    text_digests,
    trained_decoder,
)
from attsvm_papers.heads.own_solutions import STRICT, HeadOptions, own_solutions

OPTIMISERS = ("adamw", "muon")


@kit.run(digest=text_digests, seed=kit.seeds(2), optimiser=OPTIMISERS, paper=PAPER, quick=QUICK)
def run(optimiser, seed, digest, text=TEXT, sizes=SMALL, queries=80):
    training = trained_decoder(text, sizes, optimiser, seed)
    texts, options, rows = (
        held_out_texts(text, training.sizes, seed),
        HeadOptions(queries, nulls=STRICT),
        [],
    )
    for checkpoint, (step, loss) in enumerate(zip(training.steps, training.losses, strict=True)):
        for number, layer in enumerate(attention_layers(training.model(checkpoint), texts)):
            setting = {"checkpoint": checkpoint, "step": step, "loss": loss, "layer": number}
            setting["size"] = np.linalg.norm(layer.weights[0])
            rows += [setting | row for row in own_solutions(layer, 0, ("nuc",), options, seed)]
    return kit.stacked(rows)


def means_over_layers(e, optimiser, values):
    """Means over layers ``(seeds, checkpoints)`` of one optimiser's trainings."""
    rows, numbers = e.where(optimiser=optimiser), values[e["optimiser"] == optimiser]
    checkpoints = rows["checkpoint"]
    return np.stack(
        [
            by_seed(rows.take(checkpoints == k), numbers[checkpoints == k])
            for k in np.unique(checkpoints)
        ],
        axis=1,
    )


@kit.claim(kit.at_least(0.03, "as in H1"), assumes=WRITTEN, null=ROTATED)
def H7a(e):
    """The excess of heads over their strictest null grows from the first weights to the last,
    training by training.
    """
    trajectories = [means_over_layers(e, name, excess_over_nulls(e)) for name in OPTIMISERS]
    return np.concatenate([trajectory[:, -1] - trajectory[:, 0] for trajectory in trajectories])


@kit.claim(
    kit.at_least(0.5, "training by training; set by this project"),
    assumes=WRITTEN,
    null=ROTATED,
)
def H7b(e):
    """The excess of heads over their strictest null goes with saturation: rank correlation over the
    checkpoints of excess and share of sure queries.
    """
    return np.array(
        [
            spearmanr(excess_of_seed, share_of_seed)[0]
            for name in OPTIMISERS
            for excess_of_seed, share_of_seed in zip(
                means_over_layers(e, name, excess_over_nulls(e)),
                means_over_layers(e, name, e["sure"]),
                strict=True,
            )
        ]
    )


@kit.picture(
    "The excess grows with training",
    "Four panels over steps: cosines rise above the grey nulls, which rise less; the share of sure"
    " queries and the norm rise as well, the loss falls.",
    2.9,
    1,
    4,
    width=10.4,
    name="course",
)
def excess_over_training(evidence, axes):
    """Over the steps of training, a line per seed, means over two heads. From the left: nuclear
    cosine of head and own solution (grey, dotted: the stricter of the two nulls); share of queries
    of which the head is sure; Frobenius norm of W; held-out loss in nats per character.
    """
    null = np.maximum(evidence["rotated"], evidence["permuted"])
    quantities = (evidence["cosine"], evidence["sure"], evidence["size"], evidence["loss"])
    titles = ("cosine to the own solution", "share of sure queries", "norm of W", "held-out loss")
    for ax, values, title in zip(axes, quantities, titles, strict=True):
        ends = []
        for name in OPTIMISERS:
            steps = np.unique(evidence["step"])
            lines = means_over_layers(evidence, name, values)
            ax.plot(steps, lines.T, color=COLOURS[name], linewidth=1.2)
            if values is quantities[0]:
                ax.plot(
                    steps,
                    means_over_layers(evidence, name, null).T,
                    ":",
                    color=kit.FAINT,
                    linewidth=1,
                )
            ends.append((float(lines[:, -1].mean()), NAMES[name], COLOURS[name]))
        ax.set(title=title, xlabel="step")
        if values is quantities[0]:
            ax.axhline(0, color=kit.RULE, linewidth=0.8)
        kit.label_ends(ax, ends, 0.09)
