"""The examples and the networks of the experiments on real data."""

import functools
import importlib.util
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from attsvm.base.errors import UnavailableError
from attsvm_papers.networks import published_data
from attsvm_papers.networks.classifiers import TextClassifier, VisionTransformer
from attsvm_papers.networks.image_batches import Pixels
from attsvm_papers.networks.labelled import Examples
from attsvm_papers.networks.opinion_sentences import SENTENCES
from attsvm_papers.networks.published_data import published
from attsvm_papers.networks.word_pieces import LearnedWordPieces

MADE = ("sentences", "digits")
"""Data that need no files: texts made of those of
:mod:`attsvm_papers.networks.opinion_sentences`, and scikit-learn's digits.
"""
TEXTS = ("sentences", "imdb")
"""Data that are texts."""


@dataclass(frozen=True)
class Task:
    """Examples and a network.

    Attributes:
        data: one of :data:`attsvm_papers.networks.trained_networks.DATA`; what follows a hyphen
            tells tasks on the same files apart.
        train: number of training examples; 0 for all.
        validation: number of held-out examples that may choose an epoch. They are taken from the
            published test set, which leaves the published training set whole, and never counted as
            test examples.
        test: number of other held-out examples; 0 for all.
        vocabulary: word pieces, learned from the training texts.
        length: word pieces of a text that are kept.
        end: how many of them are the last ones of a longer text.
        side: pixels that images are resized to; 0 for their own.
        patch: pixels of the side of a patch.
        width: size of a token.
        depth: number of blocks.
        heads: heads of a block.
        hidden: width of the network inside a block.
        dropout: share dropped in training.
        batch: examples of a step.
        epochs: most epochs.
        stop_accuracy: stop after an epoch with this training accuracy, measured while training; 0
            for never.
        augment: whether images are cropped and flipped at random.
        tuning_epochs: epochs of each training that chooses a learning rate.
        accelerator: whether it needs a GPU; there, products are in bfloat16 and the network is
            compiled.
        parts: see :class:`attsvm_papers.networks.training.Plan`.
        timed: whether its rows hold times, for comparisons at equal time, and are made on a GPU
            where there is one; rows without times have the same bits whoever computes them.
    """

    data: str
    train: int
    validation: int
    test: int
    width: int
    depth: int
    heads: int
    hidden: int
    dropout: float
    batch: int
    epochs: int
    vocabulary: int = 0
    length: int = 0
    end: int = 0
    side: int = 0
    patch: int = 0
    stop_accuracy: float = 0.995
    augment: bool = False
    tuning_epochs: int = 0
    accelerator: bool = False
    parts: int = 1
    timed: bool = False


@dataclass(frozen=True, eq=False)
class TaskData:
    """The examples of a task.

    Attributes:
        train: examples to train on.
        validation: held-out examples that may choose an epoch.
        test: the other held-out examples.
        vocabulary: number of token ids; 0 for images.
        sentences: for texts, the ids of all of
            :mod:`~attsvm_papers.networks.opinion_sentences`, in their order.
        opinion_positions: for texts, the position of the designated word of each; None where it is
            not a single token.
    """

    train: Examples
    validation: Examples
    test: Examples
    vocabulary: int = 0
    sentences: tuple[list[int], ...] = ()
    opinion_positions: tuple[int | None, ...] = ()


def digest_of_data(data: str) -> str:
    """The digest of the files of these data; empty for data that need none.

    Raises:
        UnavailableError: they are not here, or the package that splits texts is not.
    """
    if data in TEXTS and importlib.util.find_spec("tokenizers") is None:
        raise UnavailableError(
            "texts need the package tokenizers; install it with: pip install 'attsvm[text]'"
        )
    return "" if data in MADE else published_data.published_files_digest(data)


@functools.lru_cache(maxsize=2)  # the trainings that one process does share them
def examples(task: Task) -> TaskData:
    """The examples of a task: the first ones after a fixed shuffle, the same for every seed and
    optimiser.
    """
    return _text_data(task) if task.data in TEXTS else _image_data(task)


def _choose_rows(n: int, count: int, seed: int) -> NDArray[np.int64]:
    order = np.random.default_rng(seed).permutation(n)
    return np.sort(order[: count or n])


def _split_rows(task: Task, n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Disjoint rows of a test set of ``n``, for validation and for test."""
    order = np.random.default_rng(1).permutation(n)
    end = task.validation + task.test if task.test else n
    return np.sort(order[: task.validation]), np.sort(order[task.validation : end])


def _text_data(task: Task) -> TaskData:
    if task.data == "imdb":
        texts, labels, held_out, held_out_labels = published("imdb")
    else:
        texts, labels = _made_texts(task.train, 0)
        held_out, held_out_labels = _made_texts(task.validation + task.test, 1)
    rows = _choose_rows(len(texts), task.train, 0)
    train_texts = [texts[row].replace("<br />", " ") for row in rows]
    tokens = LearnedWordPieces(train_texts, task.vocabulary)

    def encode(contents: list[str], classes: NDArray[Any]) -> Examples:
        ids, mask = tokens.ids(contents, task.length, task.end)
        return Examples(*map(torch.from_numpy, (ids, classes, mask)))

    pieces = [tokens.split(sentence.text) for sentence in SENTENCES]
    opinion_positions = tuple(
        pieces_of_text.index(sentence.word) if pieces_of_text.count(sentence.word) == 1 else None
        for pieces_of_text, sentence in zip(pieces, SENTENCES, strict=True)
    )
    ids, mask = tokens.ids([sentence.text for sentence in SENTENCES], task.length)
    sentences = tuple(row[visible].tolist() for row, visible in zip(ids, mask, strict=True))
    validation, test = (
        encode(
            [held_out[row].replace("<br />", " ") for row in rows_of_split],
            held_out_labels[rows_of_split],
        )
        for rows_of_split in _split_rows(task, len(held_out))
    )
    return TaskData(
        encode(train_texts, labels[rows]),
        validation,
        test,
        len(tokens),
        sentences,
        opinion_positions,
    )


def _made_texts(count: int, seed: int) -> tuple[list[str], NDArray[np.int64]]:
    """Texts of two sentences that both praise or both blame, and their classes."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(2, size=count)
    pools = [
        [sentence.text for sentence in SENTENCES if sentence.positive == side]
        for side in (False, True)
    ]
    return [" ".join(rng.choice(pools[label], 2, replace=False)) for label in labels], labels


def _image_data(task: Task) -> TaskData:
    published_images = published(task.data)
    rows = _choose_rows(len(published_images.train), task.train, 0)

    def to_examples(
        images: NDArray[np.uint8], labels: NDArray[Any], rows: NDArray[Any]
    ) -> Examples:
        channels_first = np.ascontiguousarray(np.moveaxis(images[rows], -1, 1))
        return Examples(torch.from_numpy(channels_first), torch.from_numpy(labels[rows]))

    splits = _split_rows(task, len(published_images.test))
    validation, test = (
        to_examples(published_images.test, published_images.test_labels, rows_of_split)
        for rows_of_split in splits
    )
    return TaskData(
        to_examples(published_images.train, published_images.train_labels, rows), validation, test
    )


def network(task: Task, task_data: TaskData) -> nn.Module:
    """The untrained network of a task; seed torch before."""
    sizes: dict[str, Any] = {
        name: getattr(task, name) for name in ("width", "depth", "heads", "hidden", "dropout")
    }
    if task_data.vocabulary:
        return TextClassifier(task_data.vocabulary, task.length, **sizes)
    images = task_data.train.inputs.numpy() / 255
    mean, std = images.mean(axis=(0, 2, 3)), images.std(axis=(0, 2, 3))
    side = task.side or images.shape[-1]
    vision = VisionTransformer(side, task.patch, channels=images.shape[1], classes=10, **sizes)
    return Pixels(vision, mean.tolist(), std.tolist(), side)
