"""Heads of other models: three that somebody else has trained, and a vision transformer.

All heads of MiniLM (6 layers of 12 heads, width 384) on the beginnings of 48 movie reviews, 32 word
pieces each; of the ALBERT that maps atoms (12 layers of 8 heads that share their weights, width
256) on 24 short reactions; and of a small vision transformer (2 blocks of 4 heads, width 64, 49
patches of 4 pixels) on 64 test images, which learns the 60 000 digits of MNIST here, one epoch of
AdamW. Queries are centred and the mean query goes to the bias; 80 queries of which the head is sure
ask for margins; cosine of the head's weights and its own max-margin solution in the nuclear and
Frobenius norms, beside rotated and permuted singular vectors with their own selections, the layer's
other heads, and weights that no Gaussian inputs of the same mean and covariance tell from the
head's (reflected). A head that is sure of fewer than ten queries is left out. Rotary heads, all
40 of the tiny Llama that comes with the package (5 layers, width 64), are compared as one matrix on
keys that are told how far back they are, on 16 stories of 64 tokens that it writes itself.

Source: this project

Notes: MiniLM is read from all-MiniLM-L6-v2 in the folder ATTSVM_DATA, reviews from imdb, the mapper
and reactions from rxnmapper and reactions, digits from mnist. One model is one trial: heads of a
model are no independent trials, and quantiles over them describe this model alone. A rotary head
that is sure of fewer than ten queries is scaled until it is sure of ten.
"""

import functools
import json
import lzma
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attsvm.base.cores import at_most_threads
from attsvm.base.errors import UnavailableError
from attsvm.transformers import audit, capture
from attsvm_papers import kit
from attsvm_papers.heads.decoder import MADE
from attsvm_papers.heads.excesses import MIRRORED, ROTATED
from attsvm_papers.heads.networks import TINY, held_out_texts, trained_decoder
from attsvm_papers.heads.own_solutions import NORMS, STRICT
from attsvm_papers.heads.rotary import ROTARY, rotary
from attsvm_papers.networks.classifiers import VisionTransformer
from attsvm_papers.networks.image_batches import Pixels
from attsvm_papers.networks.labelled import Examples
from attsvm_papers.networks.published_data import published
from attsvm_papers.networks.training import Plan, train_network

__all__ = ["pretrained_heads", "rotary"]  # its tables

LAYERS = {"all-MiniLM-L6-v2": 6, "rxnmapper": 12, "mnist": 2, MADE: 2}
FOLDERS = {
    "all-MiniLM-L6-v2": ("all-MiniLM-L6-v2", "imdb"),
    "rxnmapper": ("rxnmapper", "reactions"),
    "mnist": ("mnist",),
}
PIECES = 32
NULLS: Any = ("heads", *STRICT)


def layer_cells(parameters):
    """A cell per layer of every model that is here.

    Raises:
        UnavailableError: none is.
    """
    here = [name for name in parameters.models if name == MADE or model_folder(name)]
    if not here:
        raise UnavailableError(
            "set ATTSVM_DATA to a folder with all-MiniLM-L6-v2 and imdb, with rxnmapper and"
            " reactions, or with mnist (scale smoke needs none)"
        )
    return [(name, k) for name in here for k in range(LAYERS[name])]


def model_folder(name):
    """The folder of the model; None where that or its data set is missing."""
    home = Path(os.environ.get("ATTSVM_DATA", "missing"))
    return (
        home / name
        if all((home / name_of_folder).is_dir() for name_of_folder in FOLDERS[name])
        else None
    )


@kit.run(kit.rows("model layer", layer_cells), quick={"models": (MADE,)}, name="read")
def pretrained_heads(model, layer, models=tuple(FOLDERS), most=80):
    report = audit(record_layer(model, layer), NORMS[:2], (*NULLS, "reflected"), most=most, draws=1)
    table = [
        {
            "head": head.head,
            "norm": NORMS.index(fit.norm),
            "cosine": fit.cosine,
            **{null: np.mean(draws) for null, draws in fit.nulls.items()},
            "gap": fit.gap,
        }
        for head in report.heads
        for fit in head.fits
    ]
    if not table:
        raise UnavailableError(f"no head of layer {layer} of {model} is sure of ten queries")
    return kit.stacked(table)


def record_layer(model, layer):
    """The record of one layer's attention on the model's data."""
    if model == MADE:
        training = trained_decoder(MADE, {**TINY, "depth": 2}, "adamw", 0)
        network, batches = training.model(), [held_out_texts(MADE, training.sizes, 0)]
    else:
        network, batches = READERS[model](model_folder(model))
    with torch.no_grad(), capture(network, layers=[layer]) as record:
        for ids in batches:
            network(ids)
    return record


def load_minilm(home):
    """The model and beginnings of reviews."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(home)
    reviews = published("imdb").test
    texts = [reviews[row] for row in np.random.default_rng(0).permutation(25_000)[:48]]
    batches = [
        tokenizer(text, return_tensors="pt", truncation=True, max_length=PIECES)["input_ids"]
        for text in texts
    ]
    return AutoModel.from_pretrained(home).eval(), batches


def load_mapper(home):
    """The mapper of atoms and reactions."""
    from transformers import AlbertModel

    lines = (home / "vocab.txt").read_text(encoding="utf-8").splitlines()
    numbers = {token: k for k, token in enumerate(lines)}
    with lzma.open(home.parent / "reactions" / "golden.jsonl.xz", "rt", encoding="utf-8") as file:
        reactions = [json.loads(line)["tokens"] for line in file]
    short = [reaction for reaction in reactions if len(reaction) <= 60][:24]
    batches = [
        torch.tensor([[numbers.get(token, numbers["[UNK]"]) for token in reaction]])
        for reaction in short
    ]
    return AlbertModel.from_pretrained(home).eval(), batches


@functools.cache
def train_vision(home):
    """The vision transformer, trained, and images that it has not seen."""
    images = published(home.name)
    train_images, test = (
        torch.tensor(np.moveaxis(images_of_split, -1, 1))
        for images_of_split in (images.train, images.test)
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = VisionTransformer(
            28, 4, channels=1, classes=10, width=64, depth=2, heads=4, hidden=128, dropout=0.0
        )
    grey = images.train / 255
    model = Pixels(network, [grey.mean()], [grey.std()], 28)
    plan = Plan("adamw", lr=1e-3, epochs=1, batch=64, mean=True)
    labels = torch.tensor(images.train_labels)
    with at_most_threads(1, torch):
        train_network(model, Examples(train_images, labels), {}, plan)
    order = np.random.default_rng(0).permutation(len(test))[:64]
    return model.eval(), [test[k : k + 1] for k in order]


READERS: dict[str, Any] = {
    "all-MiniLM-L6-v2": load_minilm,
    "rxnmapper": load_mapper,
    "mnist": train_vision,
}


def excess_by_model(e, norm=0, nulls=NULLS):
    """Excesses over the largest of these nulls of all heads, by model."""
    excesses = {}
    for name in e.levels("model"):
        heads = e.where(model=name, norm=norm)
        excesses[name] = heads["cosine"] - np.nanmax([heads[null] for null in nulls], axis=0)
    return excesses


ONE_OF_THREE = (
    "the heads of the vision transformer do; those of MiniLM and ALBERT are about as near as their"
    " nulls"
)
REAL = {"a real model": lambda e: bool(np.all(e["model"] != MADE))}


@kit.several_claims(
    kit.claim(
        kit.at_least(0.02, why),
        id=f"H10{letter}",
        statement=statement,
        where={"part": "read"},
        assumes=REAL,
        null=null,
        nulls=nulls,
        explanation=ONE_OF_THREE,
        failure="refuted",
    )
    for letter, nulls, null, why, statement in (
        ("", NULLS, ROTATED, "median over heads, one model each",
         "Heads of other models are nearer to their own nuclear solutions than the stricter of"
         " two nulls and the layer's other heads."),
        ("b", ("reflected",), MIRRORED, "as in H10",
         "Heads of other models are nearer to their own nuclear solutions than weights that"
         " Gaussian inputs of the same moments do not tell from theirs."),
    )
)  # fmt: skip
def medians(e, nulls):
    return np.array([np.median(excess) for excess in excess_by_model(e, nulls=nulls).values()])


@kit.claim(
    kit.at_least(0.75, "share of the heads, one model each"),
    where={"part": "read"},
    assumes=REAL,
    null=ROTATED,
    explanation="in each of three models about half to two thirds of the heads are",
    failure="refuted",
)
def H10a(e):
    """Most heads of other models are above every null."""
    return np.array([np.mean(excess > 0) for excess in excess_by_model(e).values()])


def explain_rotary_heads(e):
    """The explanation of why the claim about rotary heads fails, with the measured gaps."""
    gaps = {
        null: np.median(excess_by_model(e, 1, (null,))[ROTARY]) for null in (*NULLS, "reflected")
    }
    return (
        "This model shows nothing of it. In the median over heads the cosine exceeds that of heads"
        f" with other features per frequency by {gaps['permuted']:.3f}, of rotated heads by"
        f" {gaps['rotated']:.3f}, and of reflected ones, for which inputs have the same covariance,"
        f" by {gaps['reflected']:.3f}."
    )


@kit.claim(
    kit.at_least(0.02, "median over heads, as in H10"),
    assumes={"all forty heads": lambda e: np.sum((e["model"] == ROTARY) & (e["norm"] == 1)) == 40},
    explanation=explain_rotary_heads,
    null=ROTATED,
    failure="refuted",
)
def H13(e):
    """Rotary heads are nearer to their own Frobenius solutions than the strictest null."""
    return np.median(excess_by_model(e, 1, (*NULLS, "random"))[ROTARY])


@kit.picture(
    "Heads of other models",
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
        for norm, colour, label in ((0, kit.ATTENTION, "nuclear"), (1, kit.TRAINED, "Frobenius")):
            heads = evidence.where(model=name, norm=norm)
            null = np.max([heads[kind] for kind in NULLS], axis=0)
            ax.plot(null, heads["cosine"], "o", ms=3.5, color=colour, alpha=0.7, label=label)
        limit = float(ax.get_ylim()[1])
        ax.plot([0, limit], [0, limit], color=kit.RULE, linewidth=0.9, zorder=0)
        ax.set(title=name, xlabel="strictest null", ylabel="head")
        ax.legend(frameon=False, fontsize=8.5)
