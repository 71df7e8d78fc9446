"""A vision transformer: sparser attention, larger weights.

A transformer of two pre-norm blocks is trained from scratch on images with Adam and a constant
learning rate of 0.001. At each record the attention rows of [CLS] on 300 test images give the two
measures of soft sparsity, and the query and key weights their norm.

Source: Max-Margin Token Selection, figure of a vision transformer (recalled, low confidence)

Notes: The paper trained on CIFAR-10 for about 400 epochs; network, optimiser and measure are
unverified, so only signs are claimed. MNIST and CIFAR-10 take part where ATTSVM_DATA names a
folder that holds them (see attsvm.datasets.image_set). The fall belongs to the first epochs:
afterwards the two measures drift, on digits slightly up, while the norm goes on growing.
"""

from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from attsvm.datasets import image_digest, image_set
from attsvm_papers.kit import (
    ATTENTION,
    BEST,
    MOST,
    RULE,
    TRAINED,
    VERDICT,
    Evidence,
    at_least,
    at_most,
    claim,
    each,
    picture,
    scales,
    stacked,
)
from attsvm_papers.networks.classifiers import VisionTransformer, soft_sparsity

SETS = ("digits", "mnist", "cifar10")
"""A row's column ``images`` is the position of its images in this list."""
TITLES = ("digits, 8 × 8", "MNIST, 28 × 28", "CIFAR-10, 32 × 32")
PATCH = {"digits": 2, "mnist": 4, "cifar10": 4}

# A transformer of two blocks of width 32 with two heads; Adam with a constant learning rate,
# batches of 100. MNIST and CIFAR-10 are trained on their first images, where the folder in
# ``ATTSVM_DATA`` has them. Their seeds and epochs are fewer, because an image has 50 tokens and
# more instead of 17.
SCALES = scales(
    images=SETS,
    epochs=120,
    large_epochs=30,
    records=30,
    large=5000,
    observed=300,
    lr=1e-3,
    batch=100,
    seeds=5,
    large_seeds=2,
    first_seed=VERDICT,
    quick={"images": ("digits",), "epochs": 8, "records": 8, "seeds": 2},
)


def cells(parameters):
    for images in parameters.images:
        bundled = images == "digits"
        digest = "" if bundled else image_digest(images)
        if not bundled and not digest:
            continue
        for seed in range(
            parameters.seeds if bundled else min(parameters.seeds, parameters.large_seeds)
        ):
            yield {
                "images": images,
                "digest": digest,
                "seed": seed,
                "epochs": parameters.epochs if bundled else parameters.large_epochs,
                "records": parameters.records,
                "rows": parameters.large,
                "observed": parameters.observed,
                "lr": parameters.lr,
                "batch": parameters.batch,
            }


def run(images, digest, seed, epochs, records, rows, observed, lr, batch):
    """One row: training with one seed. ``digest`` names the files, so that other files are another
    cell.
    """
    known = image_set(images)
    train, test = (
        torch.from_numpy(part / np.float32(127.5) - np.float32(1)).movedim(-1, 1)
        for part in (known.train[:rows], known.test)
    )
    labels, test_labels = (
        torch.from_numpy(known.train_labels[:rows]),
        torch.from_numpy(known.test_labels),
    )
    looked = test[:observed]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = VisionTransformer(
            train.shape[-1], PATCH[images], channels=train.shape[1], width=32, depth=2, heads=2
        )
        optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        marks = sorted({round(epochs * k / records) for k in range(records + 1)})
        kept: list[dict[str, Any]] = []
        for epoch in range(epochs + 1):
            if epoch in marks:
                with torch.no_grad():
                    largest, squares = (
                        spread.mean(dim=(0, 2)).numpy()
                        for spread in soft_sparsity(model.cls_rows(looked))
                    )
                    right = (
                        (model(looked).argmax(dim=1) == test_labels[:observed])
                        .float()
                        .mean()
                        .item()
                    )
                    kept.append(
                        {
                            "epoch": epoch,
                            "inverse_max": largest,
                            "inverse_square": squares,
                            "norm": model.query_key_norms().numpy(),
                            "accuracy": right,
                        }
                    )
            for chosen in torch.split(torch.randperm(len(train)), batch) if epoch < epochs else ():
                optimizer.zero_grad()
                cross_entropy(model(train[chosen]), labels[chosen]).backward()
                optimizer.step()
    return {
        "images": np.array([SETS.index(images)]),
        "seed": np.array([seed]),
        "tokens": np.array([len(model.positions)]),
        **{name: column[None] for name, column in stacked(kept).items()},
    }


LETTERS = [
    (place, title.split(",")[0], *letters)
    for place, (title, letters) in enumerate(zip(TITLES, ("abcd", "efgh", "ijkl"), strict=True))
]
SIGN = "last epoch over the untrained network; only the sign is recalled, a hundredth is rounding"
FIGURE = "P1, figure of a vision transformer on CIFAR-10"
LESS, MORE = at_most(0.99, SIGN, share=MOST), at_least(1.01, SIGN, share=MOST)


def on(place, title):
    """The assumption that a row is of these images."""
    return {f"trained on {title}": lambda e: e["images"] == place}


def untrained(e: Evidence) -> Evidence:
    """The untrained network of another seed in place of the trained ones."""
    broken = {}
    for name in ("inverse_max", "inverse_square", "norm"):
        broken[name] = e[name].copy()
        for place in e.levels("images"):
            rows = np.flatnonzero(e["images"] == place)
            broken[name][rows, 1:] = e[name][np.roll(rows, 1), :1]
    return e.but(broken)


@each(
    claim(
        expect,
        "recalled" if SETS[place] == "cifar10" else "ours",
        FIGURE,
        id=f"E1.8{letter}",
        statement="{title}: {words} with training.",
        assumes=on(place, title),
        null=untrained,
        column=column,
        title=title,
        words=words,
    )
    for place, title, a, b, c, _ in LETTERS
    for letter, column, expect, words in (
        (
            a,
            "inverse_max",
            LESS,
            "1 over the largest entry of the [CLS] attention row falls",
        ),
        (
            b,
            "inverse_square",
            LESS,
            "1 over the sum of squares of the [CLS] attention row falls",
        ),
        (
            c,
            "norm",
            MORE,
            "the Frobenius norm of the query and key weights grows",
        ),
    )
)
def change(e, column):
    """Last value over the value before training, per run; the mean over blocks."""
    course = e[column].mean(axis=-1)
    return course[:, -1] / course[:, 0]


@each(
    claim(
        at_most(
            0.5, "1 over the sum of squares, relative to its value before training", share=MOST
        ),
        id=f"E1.8{letter}",
        statement="{title}: it stays sparse, in the second half of the epochs spread over at most"
        " half as many tokens as untrained.",
        assumes=on(place, title),
        null=untrained,
        title=title,
    )
    for place, title, *_, letter in LETTERS
)
def late_spread(e):
    course, late = e["inverse_square"].mean(axis=-1), 2 * e["epoch"] >= e["epoch"][:, -1:]
    return np.where(late, course, -np.inf).max(axis=1) / course[:, 0]


@picture(
    "Attention of [CLS] becomes sparser while its weights grow",
    "Both measures of spread fall steeply within the first epochs and stay low; the norm of"
    " the weights rises throughout.",
    4.2,
    2,
    lambda e: len(e.levels("images")),
    width=lambda e: 1.2 + 3.2 * len(e.levels("images")),
    squeeze=False,
    sharex="col",
)
def sparsity(evidence, axes):
    """Above: over how many tokens the attention of [CLS] is spread, by two measures, on test
    images, the mean over heads and blocks; the grey line is uniform attention. Below: the norm of
    the query and key weights, the mean over blocks. One line per seed; epoch 0 is the untrained
    network.
    """
    shown = evidence.levels("images")
    for column, place in enumerate(shown):
        rows = evidence.where(images=place)
        upper, lower = axes[:, column]
        for name, colour, label in (
            ("inverse_square", TRAINED, "1 / ‖s‖₂²"),
            ("inverse_max", ATTENTION, "1 / max s"),
        ):
            lines = upper.plot(
                rows["epoch"].T, rows[name].mean(axis=-1).T, color=colour, linewidth=1.1
            )
            lines[0].set_label(label)
        upper.set_ylim(0, rows["tokens"][0] * 1.06)
        upper.axhline(rows["tokens"][0], color=RULE, linewidth=0.9, zorder=0)
        upper.set_title(TITLES[int(place)])
        lower.plot(rows["epoch"].T, rows["norm"].mean(axis=-1).T, color=BEST, linewidth=1.1)
        lower.set_xlabel("epoch")
    axes[0, 0].set_ylabel("tokens that [CLS] attends to")
    axes[1, 0].set_ylabel("norm of W_Q and W_K")
    axes[0, -1].legend(frameon=False, fontsize=8.5)
