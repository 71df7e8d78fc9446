"""Texts as word pieces, with a vocabulary that is learned from them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.base.extras import imported
from attsvm.datasets.attention_data import BoolArray

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class LearnedWordPieces:
    """Token ids as an uncased BERT tokeniser gives them: [CLS], pieces in lower case, [SEP]; [PAD]
    is 0.

    Args:
        texts: what the vocabulary is learned from.
        vocabulary: most pieces.

    Raises:
        MissingExtraError: the package tokenizers is not installed.

    Source: Wu et al., *Google's Neural Machine Translation System* (2016).
    """

    def __init__(self, texts: Sequence[str], vocabulary: int) -> None:
        self._library: Any = imported("tokenizers", "word pieces", "tokenizers", "text")
        # The trainer numbers the letters inside words as a hash table of its process gives them,
        # and breaks ties between merges by those numbers. A first pass without merges finds the
        # letters; told them in order, the second one is the same everywhere.
        letters = sorted(set(self._learned(texts, 1, SPECIAL)) - set(SPECIAL))
        self.pieces = self._learned(texts, vocabulary, (*SPECIAL, *letters))
        self._tokenizer = self._plain(self.pieces)
        self._tokenizer.post_processor = self._library.processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            special_tokens=[(name, self.pieces[name]) for name in ("[CLS]", "[SEP]")],
        )

    def __len__(self) -> int:
        return len(self.pieces)

    def split(self, text: str) -> list[str]:
        """The pieces of a text, [CLS] and [SEP] included."""
        tokens: list[str] = self._tokenizer.encode(text).tokens
        return tokens

    def ids(
        self, texts: Sequence[str], length: int, end: int = 0
    ) -> tuple[NDArray[np.int64], BoolArray]:
        """Ids ``(n, T)`` and where tokens are, ``(n, T)``; texts of more than ``length`` pieces
        keep their first ones and ``end`` of the last.
        """
        rows = [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]
        cut_rows = [
            row if len(row) <= length else row[: length - end] + row[len(row) - end :]
            for row in rows
        ]
        mask = np.arange(max(map(len, cut_rows))) < np.array([[len(row)] for row in cut_rows])
        ids = np.zeros(mask.shape, dtype=np.int64)
        ids[mask] = list(itertools.chain.from_iterable(cut_rows))
        return ids, mask

    def _plain(self, pieces: dict[str, int]) -> Any:
        tokenizer = self._library.Tokenizer(
            self._library.models.WordPiece(pieces, unk_token="[UNK]")
        )
        tokenizer.normalizer = self._library.normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = self._library.pre_tokenizers.BertPreTokenizer()
        return tokenizer

    def _learned(self, texts: Sequence[str], size: int, first: Sequence[str]) -> dict[str, int]:
        """Pieces and their numbers: those in ``first``, then letters, then merges up to
        ``size``.
        """
        tokenizer = self._plain({})
        trainer = self._library.trainers.WordPieceTrainer(
            vocab_size=size, special_tokens=list(first), show_progress=False
        )
        tokenizer.train_from_iterator(texts, trainer, length=len(texts))
        numbers: dict[str, int] = tokenizer.get_vocab()
        return numbers
