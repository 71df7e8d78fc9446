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
from attsvm_papers.heads.networks import (
    PAPER,
    QUICK,
    SMALL,
    TEXT,
    attention,
    files,
    held_out_texts,
    trained,
)
from attsvm_papers.heads.own_solutions import STRICT, Look, own_solutions
from attsvm_papers.heads.reading import COLOURS, NAMES, ROTATED, WRITTEN, by_seed, excess

OPTIMISERS = ("adamw", "muon")


@kit.run(digest=files, seed=kit.seeds(2), optimiser=OPTIMISERS, paper=PAPER, quick=QUICK)
def run(optimiser, seed, digest, text=TEXT, sizes=SMALL, queries=80):
    training = trained(text, sizes, optimiser, seed)
    texts, look, found = held_out_texts(text, training.sizes, seed), Look(queries, nulls=STRICT), []
    for checkpoint, (step, loss) in enumerate(zip(training.steps, training.losses, strict=True)):
        for number, layer in enumerate(attention(training.model(checkpoint), texts)):
            told = {"checkpoint": checkpoint, "step": step, "loss": loss, "layer": number}
            told["size"] = np.linalg.norm(layer.weights[0])
            found += [told | own for own in own_solutions(layer, 0, ("nuc",), look, seed)]
    return kit.stacked(found)


def courses(e, optimiser, values):
    """``(seeds, checkpoints)``: means over layers."""
    rows, each = e.where(optimiser=optimiser), values[e["optimiser"] == optimiser]
    at = rows["checkpoint"]
    return np.stack([by_seed(rows.take(at == k), each[at == k]) for k in np.unique(at)], axis=1)


@kit.claim(kit.at_least(0.03, "as in H1"), assumes=WRITTEN, null=ROTATED)
def H7a(e):
    """The excess of heads over their strictest null grows from the first weights to the last,
    training by training.
    """
    found = [courses(e, name, excess(e)) for name in OPTIMISERS]
    return np.concatenate([each[:, -1] - each[:, 0] for each in found])


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
            spearmanr(one, other)[0]
            for name in OPTIMISERS
            for one, other in zip(
                courses(e, name, excess(e)), courses(e, name, e["sure"]), strict=True
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
)
def course(evidence, axes):
    """Over the steps of training, a line per seed, means over two heads. From the left: nuclear
    cosine of head and own solution (grey, dotted: the stricter of the two nulls); share of queries
    of which the head is sure; Frobenius norm of W; held-out loss in nats per character.
    """
    null = np.maximum(evidence["rotated"], evidence["permuted"])
    shown = (evidence["cosine"], evidence["sure"], evidence["size"], evidence["loss"])
    titles = ("cosine to the own solution", "share of sure queries", "norm of W", "held-out loss")
    for ax, values, title in zip(axes, shown, titles, strict=True):
        ends = []
        for name in OPTIMISERS:
            steps = np.unique(evidence["step"])
            lines = courses(evidence, name, values)
            ax.plot(steps, lines.T, color=COLOURS[name], linewidth=1.2)
            if values is shown[0]:
                ax.plot(steps, courses(evidence, name, null).T, ":", color=kit.FAINT, linewidth=1)
            ends.append((float(lines[:, -1].mean()), NAMES[name], COLOURS[name]))
        ax.set(title=title, xlabel="step")
        if values is shown[0]:
            ax.axhline(0, color=kit.RULE, linewidth=0.8)
        kit.label_ends(ax, ends, 0.09)
