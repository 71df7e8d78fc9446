"""Attempts to explain the finding away.

Trainings of heads-1 under AdamW and Muon, the first head of each layer after all steps, nuclear
norm, three nulls, all with the same change. *as it is*: heads-1. *surest*: the 80 surest queries
instead of a draw. *characters*: equal characters are no rivals of each other, so that copies of
frequent ones decide nothing. *places*: the network is told positions in random order, text by text,
so that relative position says nothing. *scrambled*: the characters of each text in random order.
*untrained*: the head's weights on the inputs that the untrained network gives its layer.
*surrogate*: Gaussian vectors of the same mean and covariance, put through the layer norm. The null
with random singular vectors on the same inputs stands for inputs that were adapted to W.

Source: this project
"""

from typing import Any

import numpy as np

from attsvm_papers.heads import e3_course as heads_3
from attsvm_papers.heads.e3_course import OPTIMISERS, REAL
from attsvm_papers.heads.networks import (
    Attention,
    attention,
    chosen,
    files,
    held_out_texts,
)
from attsvm_papers.heads.own_solutions import Look, own_solutions, stable_rank
from attsvm_papers.heads.reading import (
    COLOURS,
    NAMES,
    ROTATED,
    by_seed,
    columns,
    excess,
    known,
    seeds,
)
from attsvm_papers.kit import RULE, at_least, at_most, claim, exchanged, grid, picture

SCALES = heads_3.SCALES

CHANGES = (
    "as it is",
    "surest",
    "characters",
    "places",
    "scrambled",
    "untrained",
    "surrogate",
)
"""A row's column ``change`` is a position in this list."""


@grid(digest=files, seed=seeds, optimiser=OPTIMISERS)
def run(optimiser, seed, text, digest, sizes, queries):
    training = chosen(text, sizes, optimiser, seed)
    found = []
    for change, layers in changed(
        training, held_out_texts(text, training.sizes, seed), seed
    ).items():
        look = Look(queries, surest=change == "surest", classes=change == "characters")
        for number, layer in enumerate(layers):
            told: dict[str, Any] = {"change": CHANGES.index(change), "layer": number}
            told["rank"] = stable_rank(layer.weights[0])
            for own in own_solutions(
                layer.weights, 0, layer.inputs, layer.tokens, ("nuc",), look, seed
            ):
                found.append((told, own))
    return columns(found)


def changed(training, texts, seed):
    """Every change: layer by layer what its heads see, with the trained weights."""
    import torch

    model, rng = training.model(), np.random.default_rng(seed)
    own = attention(model, texts)
    places = np.tile(np.arange(texts.shape[1]), (len(texts), 1))
    orders = torch.from_numpy(rng.permuted(places, axis=1))
    scrambled = torch.gather(texts, 1, orders)
    return {
        "as it is": own,
        "surest": own,
        "characters": own,
        "places": attention(model, texts, orders),
        "scrambled": attention(model, scrambled),
        "untrained": [
            Attention(each.inputs, each.tokens, one.weights)
            for each, one in zip(attention(training.model(0), texts), own, strict=True)
        ],
        "surrogate": [
            Attention(surrogate(one.inputs, block.before, rng), one.tokens, one.weights)
            for one, block in zip(own, model.blocks, strict=True)
        ],
    }


def surrogate(inputs, norm, rng):
    """Gaussian vectors of the mean and covariance that inputs had before the layer norm's own
    scale and shift, normalised, scaled and shifted as it does.
    """
    scale, shift = (each.detach().double().numpy() for each in (norm.weight, norm.bias))
    rows = ((inputs - shift) / scale).reshape(-1, inputs.shape[-1])
    drawn = rng.multivariate_normal(
        rows.mean(axis=0), np.cov(rows.T), size=len(rows), method="eigh"
    )
    drawn -= drawn.mean(axis=1, keepdims=True)
    drawn /= drawn.std(axis=1, keepdims=True)
    return (drawn * scale + shift).reshape(inputs.shape)


def under(e, change):
    """Mean excess over layers and seeds, one optimiser each."""
    found = []
    for name in known(e, OPTIMISERS):
        rows = e.where(optimiser=name, change=CHANGES.index(change))
        found.append(by_seed(rows, excess(rows)).mean())
    return np.array(found)


def scrambled(change):
    """The texts in random order in place of a change of the inputs."""
    words = "the characters of each text in random order instead"
    return exchanged(words, "change", CHANGES.index(change), CHANGES.index("scrambled"))


@claim(
    at_least(0.03, "as in H1; mean over layers and seeds, one optimiser each"),
    assumes=REAL,
    null=ROTATED,
)
def H9(e):
    """Neither the draw of queries nor copies of characters explain the excess."""
    return np.concatenate([under(e, "surest"), under(e, "characters")])


@claim(
    at_least(0.03, "as in H1; mean over layers and seeds, one optimiser each"),
    assumes=REAL,
    null=ROTATED,
)
def H9a(e):
    """Relative positions do not explain it: it stays when positions are shuffled."""
    return under(e, "places")


@claim(
    at_most(0.5, "one optimiser each; what belongs to inputs of which W knows nothing"),
    assumes=REAL,
    null=scrambled("surrogate"),
)
def H9b(e):
    """The layer norm's geometry does not explain it: on surrogates less than half of it is left."""
    return under(e, "surrogate") / under(e, "as it is")


@claim(
    at_most(0.5, "one optimiser each; what belongs to inputs of which W knows nothing"),
    assumes=REAL,
    null=scrambled("untrained"),
)
def H9c(e):
    """It belongs to the inputs on which the head was trained: on those of the untrained network
    less than half of it is left.
    """
    return under(e, "untrained") / under(e, "as it is")


@picture(
    "What is left of the excess",
    "One row of points per change of the inputs; a line at zero.",
    3.0,
    width=6.4,
)
def changes(evidence, panels):
    """Nuclear cosine of head and own solution minus the strictest null, mean over two heads, a
    point per seed, when inputs or queries are changed.
    """
    axes, names = panels[0], known(evidence, OPTIMISERS)
    for place, name in enumerate(names):
        for k in range(len(CHANGES)):
            rows = evidence.where(optimiser=name, change=k)
            each = by_seed(rows, excess(rows))
            shift = 0.22 * (place - (len(names) - 1) / 2)
            label = NAMES[name] if k == 0 else None
            axes.plot(
                each, np.full(len(each), k + shift), "o", color=COLOURS[name], ms=4.5, label=label
            )
    axes.axvline(0, color=RULE, linewidth=0.8, zorder=0)
    axes.set_yticks(range(len(CHANGES)), CHANGES)
    axes.invert_yaxis()
    axes.set_xlabel("excess over the strictest null")
    axes.legend(frameon=False, fontsize=8.5)
