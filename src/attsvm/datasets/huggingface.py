"""Texts as the sub-words of a pretrained model, with the model's input embeddings as vectors."""

from __future__ import annotations

import warnings
from bisect import bisect_right
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from attsvm.base.extras import imported
from attsvm.base.pretrained import check_folder, check_tokeniser, told_of_model
from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.datasets.documents import (
    Query,
    check_options,
    encode_bags,
    principal_directions,
    text_dataset,
    unit_rows,
)
from attsvm.datasets.readers import TextReading, provenance_of, read_texts
from attsvm.datasets.sentences import Span, occurrences
from attsvm.datasets.source import Dataset, Encoded, Learned


def huggingface_text(
    path: str | Path,
    model: str | Path,
    *,
    dim: int = 128,
    max_tokens: int = 128,
    query: Query = "mean",
    **reading: Unpack[TextReading],
) -> Dataset:
    """Labelled texts as sequences of a model's sub-words (WordPiece, BPE, ...), each the unit
    vector along its input embedding.

    As in :func:`attsvm.datasets.text`, a text becomes its distinct sub-words; special tokens are
    left out. The embeddings are centred by their mean over the sub-words of the training texts (raw
    embeddings share one large component). Wider ones than ``dim`` are kept in the directions in
    which the sub-words of the training texts vary most: the attention weights have the square of
    the width.

    Args:
        path: a file or folder, see :func:`attsvm.datasets.readers.read_texts`.
        model: a folder with a saved model and tokeniser, or a name on the Hugging Face hub.
        dim: numbers of a vector that are kept at most.
        max_tokens: only the first distinct sub-words of a text, this many.
        query: see :func:`attsvm.datasets.text`.
        **reading: columns, labels and format, see :func:`attsvm.datasets.readers.read_texts`.

    Raises:
        InputError: what the reader refuses, a model that cannot be loaded, or a tokeniser that does
            not tell where sub-words stand.
        MissingExtraError: transformers is not installed.
    """
    check_options(dim=dim, max_tokens=max_tokens, query=query)
    source = read_texts(path, **reading)
    tokenizer, table = _pretrained(str(model))

    def spans(content: str) -> tuple[list[list[Span]], list[int]]:
        spans_of_token: dict[int, list[Span]] = {}
        coded = tokenizer(
            content, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        for number, (start, end) in zip(coded["input_ids"], coded["offset_mapping"], strict=True):
            # byte-pair tokens carry the blank before a word
            blank = len(content[start:end]) - len(content[start:end].lstrip())
            spans_of_token.setdefault(number, []).append((start + blank, end))
        ranges = list(spans_of_token.values())
        starts = [span[0] for _, span in occurrences(content)]
        return ranges, [max(1, bisect_right(starts, token[0][0])) for token in ranges]

    def token_bags(texts: list[str]) -> list[list[int]]:
        coded = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        return [list(dict.fromkeys(numbers)) for numbers in coded]

    def learn(train: IntArray) -> Learned:
        bags = token_bags([source.texts[i] for i in train])
        numbers = np.concatenate([np.array(bag, dtype=np.int64) for bag in bags])
        counts = np.bincount(numbers, minlength=len(table))
        occurs = counts > 0
        mean = table[occurs].mean(axis=0) if len(numbers) else np.zeros(table.shape[1])
        if dim >= table.shape[1]:
            return {"mean": mean}
        vectors = unit_rows(table[occurs] - mean)
        spread = (vectors.T * counts[occurs]) @ vectors
        return {"mean": mean, "directions": principal_directions(spread, dim)}

    def apply(learned: Learned) -> Encoded:
        bags, vectors = token_bags(source.texts), unit_rows(table - learned["mean"])
        if "directions" in learned:
            vectors = vectors @ learned["directions"]
        note = (
            f"Vectors are the input embeddings of {model}, centred over the sub-words of the"
            " training texts."
        )
        if vectors.shape[1] < table.shape[1]:
            note += f" Of their {table.shape[1]} directions the {dim} of largest variance are kept."
        return encode_bags(bags, vectors, source, query, max_tokens, spans, [note])

    vectors = {
        "vectors": str(model),
        "dim": min(dim, table.shape[1]),
        "max_tokens": max_tokens,
        "query": query,
        **provenance_of(reading),
    }
    return text_dataset(Path(path), source, learn, apply, vectors)


def _pretrained(model: str) -> tuple[Any, FloatArray]:
    """The fast tokeniser of a model and its input embeddings ``(V, d)`` in float64."""
    purpose = "word vectors of a pretrained model"
    transformers = imported("transformers", purpose, "transformers", "hub")
    check_folder(model)
    with told_of_model(model), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about weights of heads that are not used here
        tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        network = transformers.AutoModel.from_pretrained(model)
    check_tokeniser(tokenizer, model)
    table = network.get_input_embeddings().weight.detach().double().cpu().numpy()
    return tokenizer, np.asarray(table, dtype=np.float64)
