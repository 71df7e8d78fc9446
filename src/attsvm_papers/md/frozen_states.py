"""Sequences of tokens that nobody trains: words as a pretrained encoder reads them, and patches of
images.

Texts are those of a folder of data sets, ``ATTSVM_DATA``, and the encoder is ``all-MiniLM-L6-v2``
in it. Tokens have a mean square of one per coordinate, as behind a layer norm.
"""

from __future__ import annotations

import functools
import json
import lzma
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attsvm.base.errors import UnavailableError
from attsvm.base.files import digest
from attsvm.datasets import encoder_text
from attsvm.datasets.attention_data import IntArray
from attsvm_papers.networks.published_data import published

DATA = ("sst2", "imdb", "digits")
ENCODER = "all-MiniLM-L6-v2"
SIZES = {"sst2": ((3000, 1000), 40), "imdb": ((2000, 500), 64), "digits": ((1000, 300), 16)}
"""Examples for training and for validation, and tokens of one at most."""
REVIEWS = {"train": 2500, "test": 1500}
OPINIONS = 200
"""Words of the training texts whose presence tells most of the label, by chi squared."""


class FrozenSequences(NamedTuple):
    """Tokens, queries and labels of all examples.

    Attributes:
        tokens: ``(n, T, d)``.
        mask: ``(n, T)``, False at padding.
        queries: ``(n, d)``: the mean of the tokens, of the same size as they.
        labels: ``(n,)`` classes from 0 on.
        opinion: ``(n, T)``: whether a token is one of the words that tell the label.
        sizes: numbers of training and of validation examples of a seed.
        test_size: number of examples, the last ones, of the official test set; 0 where a seed draws
            a test set.
    """

    tokens: Tensor
    mask: Tensor
    queries: Tensor
    labels: Tensor
    opinion: Tensor
    sizes: tuple[int, int]
    test_size: int

    def split(self, seed: int) -> tuple[IntArray, IntArray, IntArray]:
        """Rows for training, validation and test."""
        n, (train, validation) = len(self.labels), self.sizes
        order = np.random.default_rng([seed, 1]).permutation(n - self.test_size)
        test = np.arange(n - self.test_size, n) if self.test_size else order[train + validation :]
        return order[:train], order[train : train + validation], test


@functools.cache
def frozen_sequences(data: str) -> FrozenSequences:
    """The examples of ``sst2``, ``imdb`` or ``digits``.

    Raises:
        UnavailableError: ``ATTSVM_DATA`` names no folder with the texts and the encoder.
    """
    return _digit_patches() if data == "digits" else _encoded_texts(data)


def _digit_patches() -> FrozenSequences:
    """16 patches of 2 x 2 pixels, each at its own place of an image that is empty elsewhere."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    patches = np.arange(64).reshape(4, 2, 4, 2).swapaxes(1, 2).reshape(16, 4)
    tokens = np.zeros((len(images), 16, 64))
    for t, pixels in enumerate(patches):
        tokens[:, t, pixels] = images[:, pixels]
    mask = np.ones(tokens.shape[:2], dtype=bool)
    return _normalised(tokens, mask, labels, np.zeros_like(mask), SIZES["digits"][0], 0)


def data_folder(data: str) -> Path:
    """The folder with these texts and the encoder.

    Raises:
        UnavailableError: there is none.
    """
    folder = Path(os.environ.get("ATTSVM_DATA") or "missing")
    if not (folder / ENCODER).is_dir() or not (folder / data).is_dir():
        raise UnavailableError(
            f"set ATTSVM_DATA to a folder with {ENCODER}, sst2 and imdb (scale smoke needs none)"
        )
    return folder


def digest_of_states(data: str) -> str:
    """The digest of the files of a data set and its encoder; empty for digits.

    Raises:
        UnavailableError: they are not here.
    """
    if data == "digits":
        return ""
    folder = data_folder(data)
    paths = (path for name in (ENCODER, data) for path in sorted((folder / name).glob("*")))
    files = (path for path in paths if path.suffix in (".xz", ".safetensors", ".json"))
    return digest(*files)


def _encoded_texts(data: str) -> FrozenSequences:
    folder, cache = data_folder(data), _states_folder()
    paths = [folder / data / f"{split}.jsonl.xz" for split in ("train", "test")]
    sizes, most = SIZES[data]
    if data == "imdb":
        paths = _write_last_words(cache, most)
    source = encoder_text(paths[0], folder / ENCODER, test=paths[1], max_tokens=most, cache=cache)
    assert source.held is not None
    rows = np.setdiff1d(np.arange(len(source)), source.held)
    encoded = source.encode(rows)
    views = encoded.views or []
    words_of_texts = [[view["text"][a:b].lower() for ((a, b),) in view["spans"]] for view in views]
    labels, padded = source.labels, encoded.data(2 * source.labels - 1)
    opinion_set = opinion_words([words_of_texts[i] for i in rows], labels[rows])
    mask = padded.mask
    opinion = np.zeros(mask.shape, dtype=bool)
    for row, words in zip(opinion, words_of_texts, strict=True):
        row[: len(words)] = [word in opinion_set for word in words]
    order = np.concatenate([rows, source.held])
    return _normalised(
        padded.tokens[order],
        mask[order],
        labels[order],
        opinion[order],
        sizes,
        len(source.held),
    )


def _states_folder() -> Path:
    """The folder of hidden states: ``attsvm/states`` in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attsvm" / "states"


def _write_last_words(folder: Path, most: int) -> list[Path]:
    """Files with the last words of some of the reviews."""
    folder.mkdir(parents=True, exist_ok=True)
    reviews, paths = published("imdb"), []
    for name, texts, labels in (
        ("train", reviews.train, reviews.train_labels),
        ("test", reviews.test, reviews.test_labels),
    ):
        rows = np.random.default_rng(0).permutation(len(texts))[: REVIEWS[name]]
        ends = [" ".join(texts[i].replace("<br />", " ").split()[-most:]) for i in rows]
        lines = [
            json.dumps({"text": text, "label": int(labels[i])})
            for text, i in zip(ends, rows, strict=True)
        ]
        path = folder / f"imdb-{name}-{len(rows)}-{most}.jsonl.xz"
        path.write_bytes(lzma.compress("\n".join(lines).encode(), preset=1))
        paths.append(path)
    return paths


def opinion_words(texts: list[list[str]], labels: NDArray[np.int64]) -> set[str]:
    """The words whose presence tells most of the labels of these texts, by chi squared."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.feature_selection import chi2

    counter = CountVectorizer(analyzer=set)
    score = np.nan_to_num(chi2(counter.fit_transform(texts), labels)[0])
    return set(counter.get_feature_names_out()[np.argsort(-score, kind="stable")[:OPINIONS]])


def _normalised(
    tokens: NDArray[np.float64],
    mask: NDArray[np.bool_],
    labels: NDArray[np.int64],
    opinion: NDArray[np.bool_],
    sizes: tuple[int, int],
    test_size: int,
) -> FrozenSequences:
    tokens = tokens / np.sqrt(np.mean(tokens[mask] ** 2))
    means = tokens.sum(axis=1) / mask.sum(axis=1, keepdims=True)
    queries = means / np.sqrt(np.mean(means**2))
    return FrozenSequences(
        torch.from_numpy(tokens.astype(np.float32)),
        torch.from_numpy(mask),
        torch.from_numpy(queries.astype(np.float32)),
        torch.from_numpy(labels),
        torch.from_numpy(opinion),
        sizes,
        test_size,
    )
