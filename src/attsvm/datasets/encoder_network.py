"""A pretrained encoder: its tokeniser, and the states of words or sentences that it computes."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from attsvm.base.errors import InputError
from attsvm.base.extras import imported
from attsvm.base.files import digest
from attsvm.base.pretrained import check_folder, check_tokeniser, told_of_model
from attsvm.datasets.attention_data import IntArray
from attsvm.datasets.devices import check_device, refused_without_room
from attsvm.datasets.sentences import Span, occurrences, sentence_spans

Instances = Literal["words", "sentences"]
INSTANCES: tuple[Instances, ...] = ("words", "sentences")
_FEW_POSITIONS = ("roberta", "xlm-roberta", "camembert")  # two of them are not for tokens
_TEXTS = 1024  # that are cut into sub-words at a time


@dataclass(frozen=True, eq=False)
class SubWords:
    """Texts as sub-words, and the instance to which each of them belongs.

    Attributes:
        ids: ``(S,)`` numbers of the tokeniser, those of a text next to each other.
        cuts: ``(n + 1,)``: where the sub-words of each text begin.
        row: ``(S,)``: the instance of its text that a sub-word belongs to, -1 for none.
        weight: ``(S,)``: its weight in the mean that is the state of the instance.
        offsets: ``(n + 1,)``: where the instances of each text begin.
        positions: ``(N,)``: which word or sentence of its text each instance is; -1 for the one
            of a text that has none.
        is_cut: ``(n,)``: whether the encoder does not read the end of a text.
        is_long: ``(n,)``: whether a text has more instances than were to be kept.
    """

    ids: NDArray[np.int32]
    cuts: IntArray
    row: NDArray[np.int32]
    weight: NDArray[np.float32]
    offsets: IntArray
    positions: NDArray[np.int32]
    is_cut: NDArray[np.bool_]
    is_long: NDArray[np.bool_]

    @property
    def lengths(self) -> IntArray:
        """``(n,)`` sub-words of each text."""
        return np.diff(self.cuts)

    def batches(self, most: int) -> list[IntArray]:
        """Texts in groups of nearly equal length, the longest first; padded, no group has more than
        ``most`` sub-words, unless it is one text.
        """
        groups: list[list[int]] = [[]]
        longest = 0
        for i in np.argsort(-self.lengths, kind="stable").tolist():
            if groups[-1] and (len(groups[-1]) + 1) * longest > most:
                groups.append([])
            if not groups[-1]:
                longest = int(self.lengths[i])
            groups[-1].append(i)
        return [np.array(group, dtype=np.int64) for group in groups]


class EncoderNetwork:
    """A pretrained encoder with its tokeniser; its weights are loaded when states are computed.

    Args:
        name: a folder with a saved model and tokeniser, or a name on the Hugging Face hub.
        device: where it runs.
        dtype: floating-point type in which it runs.

    Raises:
        InputError: it cannot be loaded, its tokeniser does not tell where sub-words stand, or the
            device is not here.
        MissingExtraError: transformers is not installed.
    """

    def __init__(self, name: str, device: str = "cpu", dtype: str = "float32") -> None:
        self.name, self.device, self.dtype = name, device, dtype
        check_device(device, dtype)
        self.transformers = imported(
            "transformers", "words as a pretrained encoder reads them", "transformers", "hub"
        )
        check_folder(name)
        self.config = self._load("AutoConfig")
        self.layers = int(getattr(self.config, "num_hidden_layers", 0))
        if not self.layers:
            raise InputError(f"{name} does not say how many layers it has; choose another encoder")
        self.tokenizer = self._load("AutoTokenizer")
        check_tokeniser(self.tokenizer, name)
        self.longest = min(
            int(self.tokenizer.model_max_length),
            int(getattr(self.config, "max_position_embeddings", 0) or 512),
        )
        if getattr(self.config, "model_type", "") in _FEW_POSITIONS:
            self.longest = min(self.longest, 512)
        self.digest = self._digest()
        self._model: Any = None
        self._following: dict[int, Any] = {}

    def _load(self, kind: str) -> Any:
        with told_of_model(self.name), _silent(self.transformers):
            return getattr(self.transformers, kind).from_pretrained(self.name)

    def _digest(self) -> str:
        """The digest of the weights: of a folder by its files, of a hub name by the commit."""
        commit = getattr(self.config, "_commit_hash", None) or ""
        if not Path(self.name).is_dir():
            return digest(self.name, str(commit))
        files = sorted(Path(self.name).glob("*"))
        suffixes = (".json", ".safetensors", ".bin", ".txt", ".model")
        contents = [bytes.fromhex(digest(file)) for file in files if file.suffix in suffixes]
        return digest(str(commit), *contents)

    @property
    def model(self) -> Any:
        """The network itself, or the encoder of one that has a decoder behind it."""
        if self._model is None:
            import torch

            with self._room():
                model = self._load("AutoModel").eval().to(self.device, getattr(torch, self.dtype))
            is_encoder_decoder = getattr(self.config, "is_encoder_decoder", False)
            self._model = model.get_encoder() if is_encoder_decoder else model
        return self._model

    def _room(self) -> contextlib.AbstractContextManager[None]:
        """A block in which the network runs."""
        return refused_without_room(self.name, self.device, "or another option device")

    def sub_words(
        self,
        texts: Sequence[str],
        instances: Instances = "words",
        most: int | None = None,
        longest: int | None = None,
    ) -> SubWords:
        """Texts cut into sub-words.

        Args:
            texts: to be read.
            instances: what the instances of a text are.
            most: only the first instances of a text, this many.
            longest: only the first sub-words of a text, this many; by default as many as the
                encoder reads.

        1. Cut the texts into sub-words.
        2. Say which word each sub-word belongs to, and which sentence each word.
        3. Give each sub-word its share of the mean over words of means over sub-words.
        """
        cuts, offsets, columns = [0], [0], _Columns([], [], [], [], [], [])
        for start in range(0, len(texts), _TEXTS):
            # 1: sub-words of a few texts
            block = list(texts[start : start + _TEXTS])
            coded = self.tokenizer(
                block,
                return_offsets_mapping=True,
                truncation=True,
                max_length=min(self.longest, longest or self.longest),
                verbose=False,
            )
            for text, ids, pieces in zip(
                block, coded["input_ids"], coded["offset_mapping"], strict=True
            ):
                # 2 and 3: instances and weights of one text
                spans = [span for _, span in occurrences(text)]
                sentences = sentence_spans(text) if instances == "sentences" else None
                row, weight, positions, is_long = _shares(pieces, spans, sentences, most)
                end = max((stop for _, stop in pieces), default=0)
                columns.ids.append(np.array(ids, dtype=np.int32))
                columns.row.append(row)
                columns.weight.append(weight)
                columns.positions.append(positions)
                columns.is_cut.append(bool(spans) and end < spans[-1][1])
                columns.is_long.append(is_long)
                cuts.append(cuts[-1] + len(ids))
                offsets.append(offsets[-1] + len(positions))
        return SubWords(
            np.concatenate(columns.ids),
            np.array(cuts),
            np.concatenate(columns.row),
            np.concatenate(columns.weight),
            np.array(offsets),
            np.concatenate(columns.positions),
            np.array(columns.is_cut),
            np.array(columns.is_long),
        )

    def states(self, sub_words: SubWords, texts: IntArray, layers: Sequence[int]) -> Any:
        """The states ``(layers, R, d)`` of the instances of these texts, text after text, a tensor
        of float32.

        1. Run the encoder on the texts, padded to the longest of them, up to the last layer.
        2. Add the states of the sub-words of each instance by their weights.
        """
        import torch

        # 1: hidden states
        lengths = sub_words.lengths[texts]
        is_visible = np.arange(lengths.max()) < lengths[:, None]
        chosen = np.concatenate([np.arange(*sub_words.cuts[[i, i + 1]]) for i in texts])
        ids = np.zeros(is_visible.shape, dtype=np.int64)
        ids[is_visible] = sub_words.ids[chosen]
        with torch.no_grad(), self._room():
            states = self._hidden_states(
                torch.from_numpy(ids).to(self.device),
                torch.from_numpy(is_visible.astype(np.int64)).to(self.device),
                layers,
            )
            # 2: sums over sub-words, which are at these places of the padded batch
            rows = np.diff(sub_words.offsets)[texts]
            first = np.repeat(np.cumsum(rows) - rows, lengths)
            counts = sub_words.row[chosen] >= 0
            row = torch.from_numpy((first + sub_words.row[chosen])[counts]).to(self.device)
            at = torch.from_numpy(np.flatnonzero(is_visible)[counts]).to(self.device)
            weight = torch.from_numpy(sub_words.weight[chosen][counts]).to(self.device)
            sums = []
            for hidden_states in states:
                hidden = hidden_states.flatten(0, 1)[at].float()
                zeros = hidden.new_zeros(int(rows.sum()), hidden.shape[1])
                sums.append(zeros.index_add_(0, row, hidden.mul_(weight[:, None])))
            return torch.stack(sums).cpu()

    def _hidden_states(self, ids: Any, mask: Any, layers: Sequence[int]) -> list[Any]:
        """The hidden states ``(n, T, d)`` of layers; those behind the last one do not run where the
        input of the next is its states.
        """
        if len(layers) > 1 or self._following_layer(layers[0]) is None:
            output = self.model(ids, attention_mask=mask, output_hidden_states=True)
            return [output.hidden_states[layer] for layer in layers]
        return [self._input_of(self._following_layer(layers[0]), ids, mask)]

    def _following_layer(self, layer: int) -> Any:
        """The module whose input is the states of a layer; None where there is none, or where a
        short text shows that its input is something else.
        """
        if layer not in self._following:
            import torch

            stacks = [
                module
                for module in self.model.modules()
                if isinstance(module, torch.nn.ModuleList) and len(module) == self.layers
            ]
            module = stacks[0][layer] if len(stacks) == 1 and layer < self.layers else None
            if module is not None:
                ids = torch.tensor([self.tokenizer("one short text")["input_ids"]])
                mask = torch.ones_like(ids).to(self.device)
                ids = ids.to(self.device)
                output = self.model(ids, attention_mask=mask, output_hidden_states=True)
                entering = self._input_of(module, ids, mask)
                if entering is None or not torch.equal(entering, output.hidden_states[layer]):
                    module = None
            self._following[layer] = module
        return self._following[layer]

    def _input_of(self, module: Any, ids: Any, mask: Any) -> Any:
        """The input of a module, behind which nothing runs."""
        entering: list[Any] = []

        def stop(_: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            entering.append(arguments[0] if arguments else named.get("hidden_states"))
            raise _ReachedError

        handle = module.register_forward_pre_hook(stop, with_kwargs=True)
        try:
            self.model(ids, attention_mask=mask)
        except _ReachedError:
            return entering[0]
        finally:
            handle.remove()


class _ReachedError(Exception):
    """The pass has come to the module that was to be reached."""


@dataclass(frozen=True)
class _Columns:
    """The fields of :class:`SubWords`, text by text."""

    ids: list[NDArray[np.int32]]
    row: list[NDArray[np.int32]]
    weight: list[NDArray[np.float32]]
    positions: list[NDArray[np.int32]]
    is_cut: list[bool]
    is_long: list[bool]


def _shares(
    pieces: Sequence[Span],
    words: Sequence[Span],
    sentences: Sequence[Span] | None,
    most: int | None,
) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int32], bool]:
    """Instance and weight of each sub-word, position of each instance, and whether there are more
    than ``most``, see :class:`SubWords`.
    """
    span = np.array(pieces, dtype=np.int64).reshape(-1, 2)
    word_span = np.array(words, dtype=np.int64).reshape(-1, 2)
    # a sub-word belongs to the first word that ends behind its beginning, if it begins before its
    # own end; special ones are empty
    word = np.searchsorted(word_span[:, 1], span[:, 0], side="right")
    starts = np.append(word_span[:, 0], np.iinfo(np.int64).max)[word]
    is_of_word = (span[:, 0] < span[:, 1]) & (starts < span[:, 1])
    # positions of instances are those of words, or of the sentences in which words begin
    group = np.arange(len(words))
    if sentences:
        ends = np.array([end for _, end in sentences], dtype=np.int64)
        group = np.minimum(np.searchsorted(ends, word_span[:, 0], side="right"), len(ends) - 1)
    count = np.bincount(word[is_of_word], minlength=len(words))
    positions = np.unique(group[count > 0])
    is_long = most is not None and len(np.unique(group)) > most
    positions = positions[:most]
    words_of_instance = np.bincount(group[count > 0], minlength=1 + int(group.max(initial=0)))
    row = np.full(len(span), -1, dtype=np.int32)
    weight = np.zeros(len(span), dtype=np.float32)
    at = np.flatnonzero(is_of_word)
    at = at[np.isin(group[word[at]], positions)]
    row[at] = np.searchsorted(positions, group[word[at]])
    weight[at] = 1.0 / (count[word[at]] * words_of_instance[group[word[at]]])
    if not len(positions):
        positions = np.array([-1])
    return row, weight, positions.astype(np.int32), is_long


@contextlib.contextmanager
def _silent(transformers: Any) -> Iterator[None]:
    """Without bars of weights that are loaded and warnings of heads that are not used here."""
    logging = transformers.utils.logging
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if bars:
            logging.enable_progress_bar()
