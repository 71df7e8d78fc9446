r"""Records keys and queries of every head while a model runs, without T x T matrices.

A :class:`~attsvm.transformers.attention_calls.CallObserver` sees every attention that the model
computes. The recorder copies post-rotary keys and queries, and what the model adds to their
products or hides. The model computes as without it, and nothing of size :math:`T^2` is kept but
masks and, where there is one, a bias. The copies are in the model's precision; statistics are
computed from them later, see :mod:`attsvm.transformers.audit`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attsvm.base.errors import InputError
from attsvm.base.printable import kind
from attsvm.datasets.attention_data import BoolArray, IntArray
from attsvm.transformers.attention_calls import AttentionCall, CallObserver
from attsvm.transformers.layers_on_disk import LayersOnDisk
from attsvm.transformers.linear_maps import (
    LinearCall,
    LinearMatch,
    find_linear_map,
    is_linear_map,
    projection_of_heads,
)
from attsvm.transformers.recording import Layer, Recording, TextAttention
from attsvm.transformers.registered_attention import observed_registry


@contextmanager
def capture(
    model: nn.Module | Callable[..., Any],
    layers: Collection[int] | None = None,
    heads: Collection[int] | None = None,
    *,
    most_queries: int | None = 512,
    projections: bool = True,
    folder: str | Path | None = None,
) -> Iterator[Recording]:
    """Record keys and queries of every attention call of ``model`` while the block runs.

    A model computes in the block what it computes outside. Passes that go on from a cache of keys
    and values (``generate``) go on with the texts of the pass before. Attention weights that
    ``output_attentions=True`` asks for are those of the model's implementation: load it with
    ``attn_implementation="eager"`` to have some.

    Args:
        model: any module that attends: a Hugging Face model, torch's layers, a layer that calls
            ``scaled_dot_product_attention`` or multiplies queries and keys by hand before a
            softmax. Or a function that does: of the block, every call of attention is then a layer
            of its own.
        layers: numbers of the layers to record, see :class:`Layer`; all when left out.
        heads: numbers of the heads to record in each layer; all when left out.
        most_queries: queries to record per text and layer, spread evenly over it; ``None`` for
            all.
        projections: record the inputs of keys and queries as well where they are linear maps of
            them, so that weights can be compared with max-margin solutions.
        folder: takes a temporary file with all that is recorded, of which memory then holds one
            layer at a time, in the model's precision; in memory when left out.

    Raises:
        InputError: what is no module and no function, layers or heads that the model does not have,
            a folder that cannot be written to, a model whose attention was never seen, a text that
            is all padding, keys or queries that are not finite, a cache that changes between passes
            (beam search).

    Example:
        >>> import torch
        >>> from attsvm.transformers import capture, demo_model
        >>> model, tokenizer, batch = demo_model(tokens=40)
        >>> with torch.no_grad(), capture(model) as recording:
        ...     _ = model(**batch)
        >>> recording.layers[1].texts[0].queries.shape  # heads, queries, features
        torch.Size([8, 40, 8])
    """
    if not callable(model):
        raise InputError(
            f"model is {kind(model)}; give a module or a function that calls attention"
        )
    for name, numbers in (("layers", layers), ("heads", heads)):
        if numbers is not None and not (
            isinstance(numbers, Collection)
            and all(isinstance(n, (int, np.integer)) for n in numbers)
        ):
            raise InputError(
                f"{name} is {numbers!r}; give a list of their numbers, or None for all"
            )
    # a function has no modules to hook: its calls alone are seen
    module = model if isinstance(model, nn.Module) else nn.Module()
    recorder = _Recorder(
        module,
        getattr(model, "__name__", type(model).__name__),
        None if layers is None else set(layers),
        None if heads is None else sorted(set(heads)),
        most_queries,
        projections,
        None if folder is None else LayersOnDisk(folder),
    )
    # compiled code calls nothing that could be seen
    eager = torch.compiler.set_stance("force_eager")
    with observed_registry(module, recorder.observer), eager, recorder, recorder.observer:
        yield recorder.recording
    recorder.finish()


class _Recorder:
    """Hooks of a model that fill a recording.

    Args:
        model: the module that is recorded.
        name: how messages call it.
        layers, heads, most_queries, projections: see :func:`capture`.
        on_disk: takes the layers, text by text; ``None`` where they stay in memory.
    """

    def __init__(
        self,
        model: nn.Module,
        name: str,
        layers: set[int] | None,
        heads: list[int] | None,
        most_queries: int | None,
        projections: bool,
        on_disk: LayersOnDisk | None,
    ) -> None:
        if most_queries is not None and not (
            isinstance(most_queries, (int, np.integer)) and most_queries >= 1
        ):
            raise InputError(
                f"most_queries is {most_queries!r}; keep at least one, or None for all"
            )
        self._recorded: dict[int, Layer] = {}  # texts of one pass at least
        self._on_disk = on_disk
        self.recording = Recording(self._recorded if on_disk is None else on_disk)
        self.observer = CallObserver(model, self._record_call)
        self._model, self._name, self._layers, self._heads = model, name, layers, heads
        self._signature = inspect.signature(model.forward)  # takes as long as recording a layer
        self._most_queries, self._projections = most_queries, projections
        self._hooks: list[Any] = []
        self._linear_calls: list[LinearCall] = []
        self._matches: dict[tuple[int, str], LinearMatch] = {}
        self._padding_masks: dict[str, Tensor] = {}
        self._spans: dict[tuple[int, ...], list[_Span]] = {}  # of this pass
        self._first_text = 0
        self._texts_of_pass = 0
        self._batch: int | None = None
        self._cached = 0
        self._called_layers: set[int] = set()
        self._has_run = False

    def __enter__(self) -> _Recorder:
        for module in self._model.modules():
            if self._projections and is_linear_map(module):
                self._hooks.append(module.register_forward_hook(self._record_linear_call))
        self._hooks.append(
            self._model.register_forward_pre_hook(self._begin_pass, with_kwargs=True, prepend=True)
        )
        return self

    def __exit__(self, *exception: Any) -> None:
        for hook in self._hooks:
            hook.remove()

    def finish(self) -> None:
        """Refuse an empty recording in a sentence that says why it is empty; put layers in order,
        and leave out queries beyond the limit of a text that was recorded in several passes.
        """
        if not self._called_layers and any(map(_uses_flex_attention, self._model.modules())):
            raise InputError(
                f"{self._name} calls flex_attention; flex_attention is compiled as a whole, so its"
                " keys and queries are not seen; run the model with scaled_dot_product_attention"
            )
        if self.observer.unknown and self._layers is None:
            raise InputError(
                f"{self.observer.unknown[0]} of {self._name} attends inside windows or to samples"
                " of a text, not by products of all queries and keys, which is what a recording"
                " holds; take a model that attends to whole texts"
            )
        if not self._called_layers:
            why = "inside the block it has computed no softmax of products of queries and keys"
            if self._has_run:
                why = (
                    "it computes no softmax of products of queries and keys, so no token is"
                    " selected; take a model with softmax attention"
                )
            raise InputError(f"no attention of {self._name} was seen: {why}")
        # a layer that was asked for and never called is a slip of the caller
        missing = sorted((self._layers or set()) - self._called_layers)
        if missing:
            raise InputError(
                f"layer {missing[0]} does not exist; the model has layers"
                f" {_name_numbers(self._called_layers)}"
            )
        self._finish_texts(at_once=True)

    def _finish_texts(self, at_once: bool = False) -> None:
        """Leave out queries beyond the limit of the texts so far, and move these to the disk."""
        for layer in self._recorded.values():
            # each pass was sampled alone, so a text of many passes may hold more
            for i, text in enumerate(layer.texts):
                sample = evenly_spaced(len(text.positions), self._most_queries)
                if len(sample) < len(text.positions):
                    layer.texts[i] = _with_queries(text, sample)
                    if layer.projection is not None:
                        inputs = layer.projection.query_inputs
                        inputs[i] = inputs[i][sample]
        if self._on_disk is not None:
            self._on_disk.move(self._recorded, at_once)

    def _record_linear_call(self, module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tensor) and args and isinstance(args[0], Tensor):
            self._linear_calls.append((module, args[0].detach(), output.detach()))
            # queries, keys and values of this layer, and of its cross attention
            del self._linear_calls[:-6]

    def _begin_pass(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Begin a forward pass of the whole model.

        1. Read its arguments by name.
        2. A pass that goes on from a cache goes on with the texts of the pass before.
        3. Any other begins new texts.
        """
        # 1.
        try:
            bound = self._signature.bind_partial(*args, **kwargs)
            arguments = dict(bound.arguments)
        except TypeError:  # a decorator may take more than the signature that it shows
            arguments = dict(kwargs)
        arguments |= arguments.get("kwargs", {})
        self._linear_calls, self._spans, self._has_run = [], {}, True
        self._padding_masks = {
            name: mask.detach().bool().cpu()
            for name in ("attention_mask", "decoder_attention_mask")
            if isinstance(mask := arguments.get(name), Tensor) and mask.dim() == 2
        }
        self._cached = _cached_tokens(arguments.get("past_key_values"))
        ids = arguments.get("input_ids")
        ids = ids.detach().cpu() if isinstance(ids, Tensor) and ids.dim() == 2 else None
        self._batch = None if ids is None else len(ids)
        tokens = [] if ids is None else self._unpadded_rows(ids)
        # 2.
        if self._cached:
            if not self._called_layers:
                raise InputError(
                    "the first pass in the block goes on from a cache, whose texts are not known;"
                    " begin the texts inside the block"
                )
            first = self._first_text
            for b, new in enumerate(tokens if self.recording.tokens else []):
                text = self.recording.tokens[first + b]
                self.recording.tokens[first + b] = np.concatenate([text, new])
            return
        # 3.
        if self._on_disk is not None:
            self._finish_texts()
        self._first_text += self._texts_of_pass
        self._texts_of_pass = 0
        self.recording.tokens += tokens

    def _unpadded_rows(self, ids: Tensor) -> list[IntArray]:
        """The tokens of a pass, text by text, without padding."""
        # with a cache the mask covers the whole text, and the ids its end
        mask = self._padding_masks.get("attention_mask")
        if mask is None or mask.shape[1] < ids.shape[1]:
            mask = torch.ones_like(ids, dtype=torch.bool)
        mask = mask[:, mask.shape[1] - ids.shape[1] :]
        return [row[keep].numpy().astype(np.int64) for row, keep in zip(ids, mask, strict=True)]

    def _record_call(self, call: AttentionCall) -> None:
        self._called_layers.add(call.number)
        if self._layers is None or call.number in self._layers:
            self._store(call)

    def _store(self, call: AttentionCall) -> None:
        """Add the texts of a call to its layer.

        1. Tell the keys of the new tokens from those that the cache holds.
        2. Find the linear maps that made queries and keys, if there are any.
        3. Begin a layer at its first call.
        4. Leave out heads and padding, and add text by text.
        """
        B, H, Tq, d = call.q.shape
        self._check_batch(call, B)
        layer = self._recorded.get(call.number)
        # 1. a cache of fixed size has room behind the text, a sliding window none before it
        end = self._cached + Tq
        is_self = not layer.cross if layer else call.k.shape[2] in _self_lengths(self._cached, Tq)
        if not is_self and self._cached == 0 and _is_room_hidden(call, Tq):
            is_self = True
        if is_self and call.k.shape[2] > end:
            mask = None if call.mask is None else call.mask[..., :end]
            call = replace(call, k=call.k[:, :, :end], mask=mask)
        new_keys = call.k[:, :, -Tq:] if is_self else call.k
        # 2.
        matches = None if call.maps else self._match_maps(call, new_keys)
        inputs = None
        if call.maps is not None:
            inputs = call.maps[0][2], call.maps[1][2]
        elif matches is not None:
            inputs = matches[0].inputs, matches[1].inputs
        # 3.
        if layer is None:
            other_inputs = inputs is not None and inputs[0].data_ptr() != inputs[1].data_ptr()
            cross = not is_self or other_inputs
            layer = Layer(call.number, call.name, self._select_heads(H), cross, not cross)
            self._recorded[call.number] = layer
            if call.is_difference:
                self.recording.differences.append(call.number)
            maps = call.maps
            if matches is not None:
                maps = matches[0].linear_map(d), matches[1].linear_map(d)
            if maps is not None:
                heads, groups = layer.head_numbers, call.k.shape[1]
                layer.projection = projection_of_heads(*maps, heads, H, groups, d)
        if inputs is None:
            layer.projection = None
        # 4.
        self._texts_of_pass = max(self._texts_of_pass, B)
        length = call.k.shape[2] if layer.cross else end
        first_key = 0 if layer.cross else length - call.k.shape[2]
        spans = self._spans_of_texts(B, end, length, first_key, layer.cross, "decoder" in call.name)
        for b, span in enumerate(spans):
            self._store_text(call, layer, inputs, b, span)

    def _store_text(
        self,
        call: AttentionCall,
        layer: Layer,
        inputs: tuple[Tensor, Tensor] | None,
        b: int,
        span: _Span,
    ) -> None:
        """Add text ``b`` of a call to its layer.

        1. Sample queries, and leave out padding.
        2. Read what each query sees, over all keys of the text.
        3. Add the text, or go on with the one that the cache holds.
        4. Add the inputs of queries and keys.
        """
        H, groups = call.q.shape[1], call.k.shape[1]
        q, k = call.q[b], call.k[b]
        # some heads alone, each with the keys of its group
        if layer.heads < H:
            k = k[[h * groups // H for h in layer.head_numbers]]
            q = q[layer.head_numbers]
        if not (len(span.query_rows) and len(span.key_columns)):
            raise InputError(
                f"text {self._first_text + b} holds no token that the mask leaves visible; leave it"
                " out of the batch"
            )
        # 1.
        sample = evenly_spaced(len(span.query_rows), self._most_queries)
        rows = torch.from_numpy(span.query_rows[sample])
        positions = span.query_positions[sample]
        columns = torch.from_numpy(span.key_columns)
        queries, keys = q[:, rows].cpu(), k[:, columns].cpu()
        if not (queries.isfinite().all() and keys.isfinite().all()):
            raise InputError(
                f"queries or keys of layer {call.number} ({call.name or self._name}) hold NaN or"
                " infinity; look for it in the weights and inputs of the model"
            )
        # 2.
        visible, bias = _visible_keys_and_bias(call, b, H, rows, columns)
        if bias is not None:
            bias = bias[layer.head_numbers]
        if span.keys > len(span.key_columns):  # keys that a sliding window has dropped
            visible, bias = span.over_all_keys(visible, bias)
        # 3.
        number = self._first_text + b
        is_later = np.arange(span.keys) > positions[:, None]
        layer.causal = layer.causal and not (visible & is_later).any()
        text = TextAttention(
            queries,
            keys,
            positions,
            visible,
            bias,
            call.scale,
            number,
            len(span.query_rows),
            call.softcap,
            None if call.sinks is None else call.sinks[layer.head_numbers].cpu(),
        )
        index = next((i for i, old in enumerate(layer.texts) if old.text == number), None)
        new_columns = columns if index is None else columns[: 0 if layer.cross else None]
        if index is None:
            layer.texts.append(text)
        else:
            known = layer.texts[index].keys.shape[1]
            if not layer.cross:
                self._check_cache(layer.texts[index], span, keys)
                new_columns = columns[span.key_positions >= known]
            new_keys = keys[:, len(columns) - len(new_columns) :]
            layer.texts[index] = layer.texts[index].continued_by(replace(text, keys=new_keys))
        # 4.
        if layer.projection is None or inputs is None:
            return
        # the inputs of a pass begin at its first new token
        first = 0 if layer.cross else call.k.shape[2] - call.q.shape[2]
        key_inputs = inputs[1][b, new_columns - first].cpu()
        shared = not layer.cross and torch.equal(rows, new_columns - first)
        query_inputs = key_inputs if shared else inputs[0][b, rows].cpu()
        for of_texts, new in (
            (layer.projection.key_inputs, key_inputs),
            (layer.projection.query_inputs, query_inputs),
        ):
            if index is None:
                of_texts.append(new)
            else:
                of_texts[index] = torch.cat([of_texts[index], new])

    def _match_maps(
        self, call: AttentionCall, new_keys: Tensor
    ) -> tuple[LinearMatch, LinearMatch] | None:
        """The linear maps that made the queries and the new keys of a call; ``None`` where one of
        them is none, now or in a pass before.
        """
        layer = self._recorded.get(call.number)
        if layer is not None and layer.projection is None:
            return None
        matches = []
        for role, heads in (("queries", call.q), ("keys", new_keys)):
            previous = self._matches.get((call.number, role))
            match = find_linear_map(heads, self._linear_calls, previous)
            if match is None:
                return None
            self._matches[call.number, role] = match
            matches.append(match)
        return matches[0], matches[1]

    def _check_batch(self, call: AttentionCall, B: int) -> None:
        """Refuse attention inside windows of a text: its queries and keys are not a text's."""
        if self._batch is not None and self._batch != B:
            raise InputError(
                f"{call.name or self._name} attends within windows or blocks (it is called with"
                f" {B} sequences for {self._batch} texts), so its selections are not those of texts"
            )

    def _check_cache(self, text: TextAttention, span: _Span, keys: Tensor) -> None:
        """Refuse a cache whose keys are not those of the passes before."""
        known = span.key_positions < text.keys.shape[1]
        old = text.keys[:, torch.from_numpy(span.key_positions[known])]
        if not torch.equal(old, keys[:, torch.from_numpy(np.flatnonzero(known))]):
            raise InputError(
                "the cache of keys was changed between two passes, as beam search does; record with"
                " num_beams=1"
            )

    def _select_heads(self, H: int) -> list[int]:
        """The heads to record of a layer with ``H`` of them."""
        heads = list(range(H)) if self._heads is None else self._heads
        if not heads or heads[0] < 0 or heads[-1] >= H:
            raise InputError(
                f"heads {heads} do not exist; the layers of {self._name} have heads 0 to {H - 1}"
            )
        return heads

    def _spans_of_texts(
        self, B: int, end: int, length: int, first_key: int, cross: bool, of_decoder: bool
    ) -> list[_Span]:
        """Queries and keys of each text of a call, computed once for all layers of a pass.

        Args:
            B: number of texts.
            end: number of positions of the text of the queries so far.
            length: the same of the text of the keys.
            first_key: position of the first key of the call.
            cross: whether keys are another text's, with a mask of its own.
            of_decoder: whether queries are those of a decoder.
        """
        key = B, end, length, first_key, cross, of_decoder
        if key not in self._spans:
            query_masks = self._unpadded(end, of_decoder)
            key_masks = self._unpadded(length, False) if cross else query_masks
            self._spans[key] = [
                _Span(
                    _keep_row(query_masks, b, end),
                    _keep_row(key_masks, b, length),
                    first_key,
                    self._cached,
                )
                for b in range(B)
            ]
        return self._spans[key]

    def _unpadded(self, length: int, of_decoder: bool) -> Tensor | None:
        """Whether a position of a text of this length is no padding, ``(B, length)``."""
        masks = [mask for mask in self._padding_masks.values() if mask.shape[1] == length]
        # texts and their decoders' may have the same length
        decoder = self._padding_masks.get("decoder_attention_mask")
        if decoder is not None and of_decoder and decoder.shape[1] == length:
            return decoder
        return masks[0] if masks else None


class _Span:
    """The queries and keys of a call in one text, from which padding is left out.

    Args:
        query_mask: ``(end,)``, whether a position is no padding, from the beginning of the text.
        key_mask: ``(length,)``, the same of the text of the keys.
        first_key: position of the first key of the call, in the padded text.
        cached: position of its first query.

    Attributes:
        query_rows: rows of the call that hold queries.
        query_positions: where these stand in the text.
        key_columns, key_positions: the same of keys.
        keys: number of keys of the whole text.
    """

    def __init__(
        self, query_mask: BoolArray, key_mask: BoolArray, first_key: int, cached: int
    ) -> None:
        self.query_rows = np.flatnonzero(query_mask[cached:])
        self.query_positions = (np.cumsum(query_mask) - 1)[cached:][self.query_rows]
        self.key_columns = np.flatnonzero(key_mask[first_key:])
        self.key_positions = (np.cumsum(key_mask) - 1)[first_key:][self.key_columns]
        self.keys = int(key_mask.sum())

    def over_all_keys(
        self, visible: BoolArray, bias: Tensor | None
    ) -> tuple[BoolArray, Tensor | None]:
        """Visible keys and bias of a call, over all keys of the text."""
        wide = np.zeros((len(visible), self.keys), dtype=np.bool_)
        wide[:, self.key_positions] = visible
        if bias is None:
            return wide, None
        wide_bias = torch.zeros(*bias.shape[:2], self.keys)
        wide_bias[:, :, torch.from_numpy(self.key_positions)] = bias.float()
        return wide, wide_bias


def _cached_tokens(cache: Any) -> int:
    """Number of tokens whose keys a cache of Hugging Face holds."""
    if cache is None:
        return 0
    # caches are objects today and were tuples once
    if hasattr(cache, "get_seq_length"):
        return int(cache.get_seq_length())
    try:
        return int(cache[0][0].shape[-2])  # a tuple of keys and values per layer
    except (IndexError, TypeError, AttributeError):
        return 0


def _self_lengths(cached: int, Tq: int) -> tuple[int, ...]:
    """Numbers of keys with which a text that is new attends to itself."""
    return (cached + Tq,)


def _is_room_hidden(call: AttentionCall, Tq: int) -> bool:
    """Whether all keys behind the text are hidden: room of a cache of fixed size."""
    T = call.k.shape[2]
    if Tq >= T or call.mask is None:
        return False
    rest = call.mask[..., Tq:]
    hidden = ~rest if rest.dtype == torch.bool else rest <= 0.5 * torch.finfo(rest.dtype).min
    return bool(hidden.all()) and not bool(call.k[:, :, Tq:].any())


def _keep_row(masks: Tensor | None, text: int, length: int) -> BoolArray:
    """Whether a position of a text is no padding, ``(length,)``."""
    if masks is None:
        return np.ones(length, dtype=np.bool_)
    keep: BoolArray = masks[text % len(masks)].numpy()
    return keep


def _visible_keys_and_bias(
    call: AttentionCall, text: int, H: int, rows: Tensor, columns: Tensor
) -> tuple[BoolArray, Tensor | None]:
    """Whether these queries see these keys, ``(q, T)``, and the term added to their logits,
    ``(H, q, T)``.
    """
    visible = torch.ones(len(rows), len(columns), dtype=torch.bool)
    # rows and columns are those of the call, in which the fused function counts
    if call.causal:
        visible &= columns <= rows[:, None]
    if call.mask is None:
        return visible.numpy(), None
    # axes of size one are shared by texts, heads, queries or keys
    mask = call.mask[text if len(call.mask) > 1 else 0]
    mask = mask[:, rows if mask.shape[1] > 1 else torch.zeros_like(rows)]
    mask = mask[:, :, columns if mask.shape[2] > 1 else torch.zeros_like(columns)].cpu()
    if mask.dtype == torch.bool:
        return (visible & mask.any(dim=0)).numpy(), None
    # models hide a key with the lowest number of their precision, or half of it
    hidden = mask <= 0.5 * torch.finfo(mask.dtype).min
    visible &= ~hidden.all(dim=0)
    # hidden from some heads alone: that is a bias
    bias = mask.masked_fill(hidden & visible, -torch.inf).masked_fill(~visible, 0.0)
    return visible.numpy(), bias.expand(H, -1, -1).clone() if bool(bias.any()) else None


def _with_queries(text: TextAttention, sample: IntArray) -> TextAttention:
    """The text with some of its queries."""
    rows = torch.from_numpy(sample)
    return replace(
        text,
        queries=text.queries[:, rows],
        positions=text.positions[sample],
        visible=text.visible[sample],
        bias=None if text.bias is None else text.bias[:, rows],
    )


def evenly_spaced(n: int, most: int | None) -> IntArray:
    """At most ``most`` of ``n`` positions, evenly spaced, the last one always."""
    if most is None or n <= most:
        return np.arange(n)
    return np.unique(np.linspace(0, n - 1, most).round().astype(np.int64))


def _name_numbers(numbers: Collection[int]) -> str:
    """Numbers in words: ``0 to 5``, or ``2, 5 and 8`` where some between are missing."""
    ordered = sorted(numbers)
    if ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]} to {ordered[-1]}"
    return f"{', '.join(map(str, ordered[:-1]))} and {ordered[-1]}"


def _uses_flex_attention(module: nn.Module) -> bool:
    """Whether the code of this module has torch's ``flex_attention`` by some name."""
    code = sys.modules.get(type(module).__module__)
    torch_code = sys.modules.get("torch.nn.attention.flex_attention")
    flex_attention = getattr(torch_code, "flex_attention", None)
    if flex_attention is None or code is None:
        return False
    # it may be imported under any name
    values = list(vars(code).values())
    # torch.compile keeps the function that it wraps under this name
    values += [getattr(value, "_torchdynamo_orig_callable", None) for value in values]
    return any(value is flex_attention for value in values)
