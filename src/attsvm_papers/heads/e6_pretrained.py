"""Heads of models that somebody else has trained.

All heads of MiniLM (6 layers of 12 heads, width 384) on the beginnings of 48 movie reviews, 32 word
pieces each, and of the ALBERT that maps atoms (12 layers of 8 heads that share their weights, width
256) on 24 short reactions. Queries are centred and the mean query goes to the bias; 80 queries of
which the head is sure ask for margins; cosine of the head's weights and its own max-margin solution
in the nuclear and Frobenius norms, beside rotated and permuted singular vectors with their own
selections and the layer's other heads. A head that is sure of fewer than ten queries is left out.

Source: ours; specification 08-probe, section 2

Notes: MiniLM is read from all-MiniLM-L6-v2 in the folder ATTSVM_DATA, reviews from imdb, the mapper
and reactions from rxnmapper and reactions. One model is one trial: heads of a model are no
independent trials, and quantiles over them describe this model alone.
"""

import json
import lzma
import os
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.errors import UnavailableError
from attsvm.probe import audit, capture
from attsvm_papers.heads.decoder import MADE, Sizes
from attsvm_papers.heads.networks import held_out_texts, trained
from attsvm_papers.heads.own_solutions import STRICT
from attsvm_papers.heads.reading import NORMS
from attsvm_papers.kit import (
    ATTENTION,
    RULE,
    TRAINED,
    at_least,
    at_most,
    claim,
    grid,
    picture,
    rows,
    scales,
)

LAYERS = {"all-MiniLM-L6-v2": 6, "rxnmapper": 12, MADE: 2}
PIECES = 32
NULLS: Any = ("heads", *STRICT)

SCALES = scales(models=("all-MiniLM-L6-v2", "rxnmapper"), most=80, quick={"models": (MADE,)})


def layers(parameters):
    """A cell per layer of every model that is here.

    Raises:
        UnavailableError: none is.
    """
    here = [name for name in parameters.models if name == MADE or folder(name)]
    if not here:
        raise UnavailableError(
            "set ATTSVM_DATA to a folder with all-MiniLM-L6-v2 and imdb, or with rxnmapper and"
            " reactions (scale smoke needs none)"
        )
    return [(name, k) for name in here for k in range(LAYERS[name])]


def folder(name):
    """Where the model is, with the texts that it is shown; None where one of them is missing."""
    home = Path(os.environ.get("ATTSVM_DATA", "missing"))
    texts = {"all-MiniLM-L6-v2": "imdb", "rxnmapper": "reactions"}[name]
    found = all((home / part).is_dir() for part in (name, texts))
    return home / name if found else None


@grid(rows("model layer", layers))
def run(model, layer, most):
    found = audit(recording(model, layer), NORMS[:2], NULLS, most=most, draws=1)
    table = [
        {
            "head": head.head,
            "norm": NORMS.index(fit.norm),
            "cosine": fit.cosine,
            **{null: np.mean(draws) for null, draws in fit.nulls.items()},
            "share": fit.share,
            "agreement": fit.agreement,
            "usual": fit.baseline,
            "rank": head.rank,
            "sure": head.sure[0],
            "gap": fit.gap,
        }
        for head in found.heads
        for fit in head.fits
    ]
    if not table:
        raise UnavailableError(f"no head of layer {layer} of {model} is sure of ten queries")
    return {name: np.array([row[name] for row in table]) for name in table[0]}


def recording(model, layer):
    """What one layer of a model sees."""
    import torch

    if model == MADE:
        sizes = Sizes(context=12, width=12, depth=2, heads=2, steps=20)
        network = trained(MADE, sizes, "adamw", 3e-3, 0).model()
        batches = [held_out_texts(MADE, sizes, 0)]
    else:
        network, batches = READERS[model](folder(model))
    with torch.no_grad(), capture(network, layers=[layer]) as found:
        for ids in batches:
            network(ids)
    return found


def minilm(home):
    """The model and beginnings of reviews."""
    from transformers import AutoModel, AutoTokenizer

    from attsvm.datasets import imdb

    tokenizer = AutoTokenizer.from_pretrained(home)
    reviews = imdb().test
    texts = [reviews[row] for row in np.random.default_rng(0).permutation(25_000)[:48]]
    batches = [
        tokenizer(text, return_tensors="pt", truncation=True, max_length=PIECES)["input_ids"]
        for text in texts
    ]
    return AutoModel.from_pretrained(home).eval(), batches


def mapper(home):
    """The mapper of atoms and reactions."""
    import torch
    from transformers import AlbertModel

    lines = (home / "vocab.txt").read_text(encoding="utf-8").splitlines()
    numbers = {token: k for k, token in enumerate(lines)}
    with lzma.open(home.parent / "reactions" / "golden.jsonl.xz", "rt", encoding="utf-8") as file:
        reactions = [json.loads(line)["tokens"] for line in file]
    short = [each for each in reactions if len(each) <= 60][:24]
    batches = [
        torch.tensor([[numbers.get(token, numbers["[UNK]"]) for token in each]]) for each in short
    ]
    return AlbertModel.from_pretrained(home).eval(), batches


READERS = {"all-MiniLM-L6-v2": minilm, "rxnmapper": mapper}


def excesses(e, norm=0, own="cosine", nulls=NULLS):
    """Per model, those of its heads."""
    found = {}
    for name in e.levels("model"):
        each = e.where(model=name, norm=norm)
        found[name] = each[own] - np.max([each[null] for null in nulls], axis=0)
    return found


REAL = {"a model that somebody else trained": lambda e: bool(np.all(e["model"] != MADE))}


@claim(
    at_least(0.02, "median over heads, one model each; .03 to .16 in six heads of MiniLM"),
    assumes=REAL,
)
def H10(e):
    """Heads of models that others trained are nearer to their own nuclear solutions than the
    strictest null.
    """
    return np.array([np.median(each) for each in excesses(e).values()])


@claim(at_least(0.75, "share of the heads, one model each; six of six in a trial"), assumes=REAL)
def H10a(e):
    """Most of them are above every null."""
    return np.array([np.mean(each > 0) for each in excesses(e).values()])


@claim(at_most(0.02, "the bar of H10, which this has to miss: median over heads"), assumes=REAL)
def H10n(e):
    """The null of H10: rotated weights, looked at as if they were the head, against permuted
    ones.
    """
    return np.array([np.median(x) for x in excesses(e, 0, "rotated", ("permuted",)).values()])


@picture(
    "Heads of models that others trained",
    "A scatter per model: most heads lie above the diagonal.",
    3.3,
    columns=lambda evidence: len(evidence.levels("model")),
    width=lambda evidence: 3.6 * len(evidence.levels("model")),
)
def pretrained(evidence, axes):
    """A point per head: cosine of its weights and its own solution against the strictest null, in
    the nuclear and the Frobenius norm. On the line a head is no nearer than weights that nobody
    trained.
    """
    for ax, name in zip(axes, evidence.levels("model"), strict=True):
        for norm, colour, label in ((0, ATTENTION, "nuclear"), (1, TRAINED, "Frobenius")):
            each = evidence.where(model=name, norm=norm)
            null = np.max([each[kind] for kind in NULLS], axis=0)
            ax.plot(null, each["cosine"], "o", ms=3.5, color=colour, alpha=0.7, label=label)
        limit = float(ax.get_ylim()[1])
        ax.plot([0, limit], [0, limit], color=RULE, linewidth=0.9, zorder=0)
        ax.set(title=name, xlabel="strictest null", ylabel="head")
        ax.legend(frameon=False, fontsize=8.5)
