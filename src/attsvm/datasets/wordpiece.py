"""WordPiece token ids of texts: a vocabulary that the user has, or one trained on the texts."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.data import BoolArray
from attsvm.datasets.readers import texts_digest
from attsvm.errors import InputError
from attsvm.extras import imported
from attsvm.files import CACHE_VARIABLE, brief, cache_home, opened, write_file
from attsvm.printable import Compact
from attsvm.store.code import code_fingerprint
from attsvm.store.entries import entry_path, load_entry, save_entry

Arrays = dict[str, NDArray[Any]]
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

Ids = NDArray[np.int32]


@dataclass(frozen=True, repr=False)
class TokenIds(Compact):
    """Padded token ids.

    Attributes:
        ids: ``(n, T)``, [CLS] first, 0 ([PAD]) behind the last token.
        mask: ``(n, T)``, True at tokens.
    """

    ids: Ids
    mask: BoolArray


class WordPiece:
    """Texts to token ids as a BERT tokeniser gives them: [CLS], word pieces in lower case, [SEP];
    [PAD] is 0.

    ``WordPiece.load`` takes what the user has, ``WordPiece.train`` learns a vocabulary.

    Args:
        definition: the content of a ``tokenizer.json``.
        source: what it is, for messages.

    Raises:
        InputError: no tokeniser, or one without [CLS] and [SEP] or whose [PAD] is not 0.
        MissingExtraError: the package tokenizers is not installed.

    Source: Wu et al., *Google's Neural Machine Translation System* (2016).
    """

    def __init__(self, definition: str, source: str = "this tokeniser") -> None:
        library = _library()
        try:
            tokenizer = library.Tokenizer.from_str(definition)
        except Exception as error:  # the library raises bare Exception
            raise InputError(
                f"{source} is not a tokeniser ({brief(str(error))}); give a tokenizer.json of the"
                " tokenizers library"
            ) from None
        special = {name: tokenizer.token_to_id(name) for name in ("[PAD]", "[CLS]", "[SEP]")}
        if special["[PAD]"] != 0 or None in special.values():
            numbers = ", ".join(
                f"{name} is {'missing' if number is None else number}"
                for name, number in special.items()
            )
            raise InputError(
                f"in {source} {numbers}; a vocabulary with [PAD] at 0, [CLS] and [SEP] is needed,"
                " as BERT's is"
            )
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.post_processor = _frame(special["[CLS]"], special["[SEP]"])
        self.source = source
        self._tokenizer: Any = tokenizer
        self.definition: str = tokenizer.to_str()

    @classmethod
    def load(cls, source: str | Path) -> WordPiece:
        """A tokeniser from a ``tokenizer.json``, a ``vocab.txt``, a folder with either, or by its
        name on the Hugging Face hub.

        ``distilbert/distilbert-base-uncased`` is the published sentiment model's; the hub is asked
        through transformers.

        Raises:
            InputError: nothing of the kind is there, or the hub does not answer.
            MissingExtraError: tokenizers, or for a name transformers, is not installed.
        """
        path = Path(source)
        if path.is_dir():
            path = next(
                (
                    path / name
                    for name in ("tokenizer.json", "vocab.txt")
                    if (path / name).is_file()
                ),
                path / "tokenizer.json",
            )
            if not path.is_file():
                raise InputError(
                    f"{source} holds neither tokenizer.json nor vocab.txt; give a folder or file"
                    " with a tokeniser"
                )
        if path.is_file():
            with opened(path) as file:
                raw = file.read()
            try:
                content = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{path} cannot be read as text ({brief(str(error))}); give a tokenizer.json or"
                    " a vocab.txt"
                ) from None
            return cls(
                _of_words(content.splitlines(), str(path)) if path.suffix == ".txt" else content,
                str(path),
            )
        if path.suffix in (".json", ".txt"):
            raise InputError(f"{path} does not exist; check the spelling and the folder")
        return cls(_from_hub(str(source)), str(source))

    @classmethod
    def train(cls, texts: Sequence[str], vocabulary: int = 30522) -> WordPiece:
        """A vocabulary of at most this many pieces, learned from texts; kept in the cache under
        their SHA-256.

        Raises:
            InputError: no texts, or fewer pieces than special ones.
            MissingExtraError: the package tokenizers is not installed.
        """
        if not len(texts) or vocabulary <= len(SPECIAL):
            raise InputError(
                f"a vocabulary of {vocabulary} pieces from {len(texts)} texts is none; give texts"
                f" and more than {len(SPECIAL)}"
            )
        library = _library()

        def make() -> str:
            # The trainer numbers the letters inside words as a hash table of its process gives
            # them, and breaks ties between merges by those numbers. A first pass without merges
            # finds the letters; told them in order, the second one is the same everywhere.
            letters = sorted(set(_trained(library, texts, 1, SPECIAL)) - set(SPECIAL))
            pieces = _trained(library, texts, vocabulary, (*SPECIAL, *letters))
            return _plain(library, pieces).to_str()

        key = {
            "kind": "wordpiece/2",
            "library": library.__version__,
            "texts": texts_digest(texts),
            "vocabulary": vocabulary,
        }
        return cls(
            cached_text(key, make),
            f"the vocabulary of {vocabulary} pieces trained on {len(texts)} texts",
        )

    @property
    def size(self) -> int:
        """Number of token ids."""
        return int(self._tokenizer.get_vocab_size())

    @property
    def sha256(self) -> str:
        """Of the definition."""
        return hashlib.sha256(self.definition.encode()).hexdigest()

    def save(self, path: str | Path) -> None:
        """Write a ``tokenizer.json``, atomically."""
        write_file(path, self.definition)

    def encode(
        self, texts: Sequence[str], length: int = 512, *, end: int = 0, cache: bool = True
    ) -> TokenIds:
        """Ids of texts, padded to the longest and cut at ``length`` by slicing, so that a cut text
        ends without [SEP], or without its middle.

        Args:
            texts: one string per row.
            length: most tokens of a text, [CLS] among them.
            end: how many of them are the last ones of a longer text, [SEP] among them.
            cache: keep the ids under the SHA-256 of texts and tokeniser (see
                :func:`attsvm.datasets.wordpiece.cache_folder`).

        Raises:
            InputError: no texts, a length below 1, or no token before those of the end.
        """
        if not len(texts) or length < 1:
            raise InputError(
                f"{len(texts)} texts of at most {length} tokens are none; give texts and a length"
                " of at least 1"
            )
        if not 0 <= end < length:
            raise InputError(
                f"end is {end} of at most {length} tokens; give at least 0 and fewer than length"
            )

        def cut(ids: list[int]) -> list[int]:
            over = len(ids) - length
            return ids if over <= 0 else ids[: length - end] + ids[length - end + over :]

        def make() -> dict[str, NDArray[Any]]:
            coded = [
                np.array(cut(found.ids), dtype=np.int32)
                for found in self._tokenizer.encode_batch(list(texts))
            ]
            return {"ids": np.concatenate(coded), "lengths": np.array([len(row) for row in coded])}

        key = {
            "kind": "token-ids/1",
            "library": _library().__version__,
            "tokenizer": self.sha256,
            "texts": texts_digest(texts),
            "length": length,
            "end": end,
        }
        kept = cached_arrays(key, make) if cache else make()
        mask = np.arange(kept["lengths"].max()) < kept["lengths"][:, None]
        ids = np.zeros(mask.shape, dtype=np.int32)
        ids[mask] = kept["ids"]
        return TokenIds(ids, mask)

    def pieces(self, text: str) -> list[str]:
        """The tokens of a text as words and word pieces, [CLS] and [SEP] included."""
        return self._tokenizer.encode(text).tokens


def _library() -> Any:
    return imported("tokenizers", "WordPiece tokens", "tokenizers", "text")


def _frame(cls: int, sep: int) -> Any:
    return _library().processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", cls), ("[SEP]", sep)]
    )


def _plain(library: Any, vocabulary: dict[str, int]) -> Any:
    """A tokeniser that reads text as uncased BERT does."""
    tokenizer = library.Tokenizer(library.models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = library.normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = library.decoders.WordPiece()
    return tokenizer


def _trained(library: Any, texts: Sequence[str], size: int, given: Sequence[str]) -> dict[str, int]:
    """Pieces and their numbers, learned from texts: the given ones first, then letters, then merges
    up to ``size`` pieces.
    """
    tokenizer = _plain(library, {})
    trainer = library.trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=list(given), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer, length=len(texts))
    return tokenizer.get_vocab()


def _of_words(words: list[str], source: str) -> str:
    """The definition of a ``vocab.txt``: one piece per line, its number the line's."""
    pieces = [word.rstrip("\r") for word in words]
    if len(set(pieces)) < len(pieces) or "[UNK]" not in pieces:
        raise InputError(
            f"{source} is not a WordPiece vocabulary; give a vocab.txt with one piece per line,"
            " [UNK] among them"
        )
    return _plain(_library(), {piece: k for k, piece in enumerate(pieces)}).to_str()


def _from_hub(name: str) -> str:
    transformers = imported("transformers", "a tokeniser by its name", "transformers", "hub")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(name)
    except (
        Exception
    ) as error:  # transformers, the hub client and the network raise without a common family
        raise InputError(
            f"tokeniser {name} is neither a file nor reachable on the hub"
            f" ({brief(str(error) or type(error).__name__)}); give a tokenizer.json or vocab.txt,"
            " or train one with WordPiece.train"
        ) from None
    if not tokenizer.is_fast:
        raise InputError(
            f"the tokeniser {name} has no fast form, which is read here; give a tokenizer.json"
        )
    return tokenizer.backend_tokenizer.to_str()


def cache_folder() -> Path:
    """The folder :func:`attsvm.files.cache_home`, made when missing.

    Raises:
        InputError: it cannot be made.
    """
    try:
        folder = cache_home()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"the cache cannot be made ({error}); set {CACHE_VARIABLE} to a folder that you may"
            " write to"
        ) from None
    return folder


def cached_arrays(key: dict[str, Any], make: Callable[[], Arrays]) -> Arrays:
    """The arrays that ``make`` computes from what ``key`` names; read back where they were kept by
    the same code, anew where that file is damaged.
    """
    path = entry_path(cache_folder(), key, code_fingerprint(make))
    if path.exists():
        with contextlib.suppress(InputError, KeyError, ValueError):
            return load_entry(path)[0]
    arrays = {name: np.asarray(array) for name, array in make().items()}
    save_entry(path, arrays)
    return arrays


def cached_text(key: dict[str, Any], make: Callable[[], str]) -> str:
    """Like :func:`cached_arrays`, for one text."""

    @functools.wraps(make)
    def arrays() -> Arrays:
        return {"text": np.frombuffer(make().encode(), dtype=np.uint8)}

    return cached_arrays(key, arrays)["text"].tobytes().decode()
