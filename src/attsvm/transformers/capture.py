r"""Records keys and queries of every head while a model runs, without T x T matrices.

Every fused attention of torch is one call, ``scaled_dot_product_attention(q, k, v, mask)``, and so
is that of Hugging Face's models, of ``torch.nn.MultiheadAttention`` and of most layers that people
write. :func:`capture` observes these calls and copies post-rotary keys and queries. The model's own
fused kernel computes as without it, and nothing of size :math:`T^2` is kept. The copies are
in the model's precision; statistics are computed from them later, see
:mod:`attsvm.transformers.audit`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attsvm.base.errors import InputError
from attsvm.base.printable import Compact, kind
from attsvm.datasets.attention_data import BoolArray, FloatArray, IntArray
from attsvm.transformers.attention_calls import AttentionCall, CallObserver, LinearMap


@dataclass(frozen=True, eq=False)
class TextAttention:
    """Keys and queries of one text in one attention layer.

    Attributes:
        queries: ``(heads, q, d)``, in the model's precision, after any rotation of positions.
        keys: ``(key heads, T, d)``; query heads share them in groups of equal size.
        positions: ``(q,)``, where the recorded queries stand in the text.
        visible: ``(q, T)``, whether a query sees a key.
        bias: ``(heads, q, T)``, the term that the model adds to the logits; ``None`` when nothing.
        scale: factor of the products of keys and queries.
        text: number of the text in the recording.
        queries_of_text: number of queries of the text; more than ``q`` where some were not
            recorded.
    """

    queries: Tensor
    keys: Tensor
    positions: IntArray
    visible: BoolArray
    bias: Tensor | None
    scale: float
    text: int
    queries_of_text: int

    def logits(self, start: int = 0, stop: int | None = None) -> Tensor:
        """Logits of these queries, ``(heads, q, T)`` in float32, minus infinity on hidden keys."""
        q = self.queries[:, start:stop].float()
        k = self.keys.float().repeat_interleave(len(q) // len(self.keys), dim=0)
        logits = self.scale * (q @ k.mT)
        if self.bias is not None:
            logits = logits + self.bias[:, start:stop].float()
        return logits.masked_fill(~torch.from_numpy(self.visible[start:stop]), -torch.inf)


@dataclass(frozen=True, eq=False)
class Projection:
    r"""The linear maps from a layer's inputs to its keys and queries, where it has them.

    Attributes:
        W_K, W_Q: ``(heads * d, width)``; for grouped heads ``W_K`` is repeated for its group.
        b_Q: ``(heads * d,)``, zero where there is none. A bias of the keys moves all logits of a
            query alike and plays no part.
        key_inputs: per text ``(T, width)``.
        query_inputs: per text ``(q, width)``, those of the recorded queries.
    """

    W_K: FloatArray
    W_Q: FloatArray
    b_Q: FloatArray
    key_inputs: list[FloatArray]
    query_inputs: list[FloatArray]


@dataclass(eq=False)
class Layer:
    """One attention layer of the model, in the order of the forward pass.

    Attributes:
        number: in the order of the forward pass; a module that runs several times (ALBERT) is as
            many layers.
        name: the module that called attention.
        head_numbers: of the recorded query heads, in the model's counting.
        cross: True where keys come from another text than queries.
        causal: True where no query sees a later key.
        texts: keys and queries of each text.
        projection: ``None`` where keys and queries are no linear maps of the inputs (rotary
            positions, normalised keys).
    """

    number: int
    name: str
    head_numbers: list[int]
    cross: bool
    causal: bool
    texts: list[TextAttention] = field(default_factory=list)
    projection: Projection | None = None

    @property
    def heads(self) -> int:
        """Number of recorded query heads."""
        return len(self.head_numbers)


@dataclass(eq=False, repr=False)
class Recording(Compact):
    """Keys, queries and tokens of all texts, as :func:`capture` records them.

    Attributes:
        layers: in the order of the forward pass.
        tokens: per text the numbers of its tokens, padding left out; empty where the model was not
            called with ``input_ids``.
        words: per text its tokens as strings; empty until :meth:`name_tokens`.
    """

    layers: list[Layer] = field(default_factory=list)
    tokens: list[IntArray] = field(default_factory=list)
    words: list[list[str]] = field(default_factory=list)

    @property
    def texts(self) -> int:
        """Number of texts."""
        return max((len(layer.texts) for layer in self.layers), default=0)

    def name_tokens(self, tokenizer: Any) -> Recording:
        """Write every token as ``tokenizer`` does; return this recording."""
        self.words = [list(tokenizer.convert_ids_to_tokens(ids.tolist())) for ids in self.tokens]
        return self


@contextmanager
def capture(
    model: nn.Module | Callable[..., Any],
    layers: Collection[int] | None = None,
    heads: Collection[int] | None = None,
    *,
    most_queries: int | None = 512,
    projections: bool = True,
) -> Iterator[Recording]:
    """Record keys and queries of every attention call of ``model`` while the block runs.

    Args:
        model: any module whose attention is torch's fused one; a Hugging Face model with another
            implementation runs with ``sdpa`` inside the block. Or a function that calls torch's
            attention: of the block, every call of attention is then a layer of its own.
        layers: numbers of the layers to record; all when left out.
        heads: numbers of the heads to record in each layer; all when left out.
        most_queries: queries to record per text and layer, spread evenly over it; ``None`` for
            all.
        projections: record the inputs of keys and queries as well where they are linear maps of
            them, so that weights can be compared with max-margin solutions.

    Raises:
        InputError: what is no module and no function, layers or heads that the model does not have,
            a model whose attention was never seen, keys or queries that are not finite.

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
    module = model if isinstance(model, nn.Module) else nn.Module()
    recorder = _Recorder(
        module,
        getattr(model, "__name__", type(model).__name__),
        None if layers is None else set(layers),
        None if heads is None else sorted(set(heads)),
        most_queries,
        projections,
    )
    with force_fused_attention(module), recorder, recorder.observer:
        yield recorder.recording
    recorder.finish()


class _Recorder:
    """Hooks of a model that fill a recording.

    Args:
        model: the module that is recorded.
        name: how messages call it.
        layers, heads, most_queries, projections: see :func:`capture`.
    """

    def __init__(
        self,
        model: nn.Module,
        name: str,
        layers: set[int] | None,
        heads: list[int] | None,
        most_queries: int | None,
        projections: bool,
    ) -> None:
        if most_queries is not None and most_queries < 1:
            raise InputError(f"most_queries is {most_queries}; keep at least one query")
        self.recording = Recording()
        self.observer = CallObserver(model, self._record_call)
        self._model, self._name, self._layers, self._heads = model, name, layers, heads
        self._most_queries, self._projections = most_queries, projections
        self._hooks: list[Any] = []
        self._linear_calls: list[tuple[nn.Module, Tensor, Tensor]] = []
        self._padding_masks: dict[str, Tensor] = {}
        self._first_text = 0
        self._texts_of_pass = 0
        self._called_layers: set[int] = set()

    def __enter__(self) -> _Recorder:
        for module in self._model.modules():
            if self._projections and _is_linear_map(module):
                self._hooks.append(module.register_forward_hook(self._record_linear_call))
        self._hooks.append(
            self._model.register_forward_pre_hook(self._begin_pass, with_kwargs=True, prepend=True)
        )
        return self

    def __exit__(self, *exception: Any) -> None:
        for hook in self._hooks:
            hook.remove()

    def finish(self) -> None:
        """Refuse an empty recording in a sentence that says why it is empty."""
        if not self._called_layers and any(map(_uses_flex_attention, self._model.modules())):
            raise InputError(
                f"{self._name} calls flex_attention; flex_attention is compiled as a whole, so its"
                " keys and queries are not seen; run the model with scaled_dot_product_attention"
            )
        if not self._called_layers:
            raise InputError(
                f"no attention of {self._name} was seen; call the model inside the"
                " block, and use a model whose attention is torch's scaled_dot_product_attention"
            )
        missing = sorted((self._layers or set()) - self._called_layers)
        if missing:
            raise InputError(
                f"layer {missing[0]} does not exist; the model has layers 0 to"
                f" {max(self._called_layers)}"
            )

    def _record_linear_call(self, module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tensor) and args and isinstance(args[0], Tensor):
            self._linear_calls.append((module, args[0].detach(), output.detach()))
            # queries, keys and values of this layer, and of its cross attention
            del self._linear_calls[:-6]

    def _begin_pass(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Begin a forward pass of the whole model: layers are counted anew, texts go on."""
        try:
            arguments = inspect.signature(self._model.forward).bind_partial(*args, **kwargs)
            given_arguments = dict(arguments.arguments)
        except TypeError:  # a decorator may take more than the signature that it shows
            given_arguments = dict(kwargs)
        given_arguments |= given_arguments.get("kwargs", {})
        self._first_text += self._texts_of_pass
        self._texts_of_pass, self._linear_calls = 0, []
        self._padding_masks = {
            name: mask.detach().bool().cpu()
            for name in ("attention_mask", "decoder_attention_mask")
            if isinstance(mask := given_arguments.get(name), Tensor) and mask.dim() == 2
        }
        ids = given_arguments.get("input_ids")
        if isinstance(ids, Tensor) and ids.dim() == 2:
            everything = torch.ones_like(ids, dtype=torch.bool).cpu()
            masks = self._padding_masks.get("attention_mask", everything)
            self.recording.tokens += [
                row[mask].numpy().astype(np.int64)
                for row, mask in zip(ids.detach().cpu(), masks, strict=True)
            ]

    def _record_call(self, call: AttentionCall) -> None:
        self._called_layers.add(call.number)
        if self._layers is None or call.number in self._layers:
            self._store(call)

    def _store(self, call: AttentionCall) -> None:
        """Add the texts of a call to its layer.

        1. Find the linear maps that made queries and keys, if there are any.
        2. Begin a layer at its first call.
        3. Leave out heads and padding, and add text by text.
        """
        _, H, Tq, d = call.q.shape
        T = call.k.shape[2]
        # 1.
        maps = call.maps
        if maps is None:
            query_map, key_map = self._find_linear_map(call.q), self._find_linear_map(call.k)
            maps = (query_map, key_map) if query_map and key_map else None
        # 2.
        layers = (layer for layer in self.recording.layers if layer.number == call.number)
        layer = next(layers, None)
        if layer is None:
            other_inputs = maps is not None and maps[0][2].data_ptr() != maps[1][2].data_ptr()
            cross = Tq != T or other_inputs
            layer = Layer(call.number, call.name, self._select_heads(H), cross, True)
            self.recording.layers.append(layer)
            if maps is not None:
                layer.projection = _projection(*maps, layer.head_numbers, H, call.k.shape[1], d)
        if maps is None:
            layer.projection = None
        # 3.
        self._texts_of_pass = max(self._texts_of_pass, len(call.q))
        query_masks, key_masks = self._unpadded(Tq, call.name), self._unpadded(T, "")
        for b in range(len(call.q)):
            queries = _unmasked_positions(query_masks, b, Tq)
            keys = _unmasked_positions(key_masks, b, T)
            self._store_text(call, layer, maps, b, queries, keys)

    def _store_text(
        self,
        call: AttentionCall,
        layer: Layer,
        maps: tuple[LinearMap, LinearMap] | None,
        b: int,
        unpadded_queries: IntArray,
        unpadded_keys: IntArray,
    ) -> None:
        """Add text ``b`` of a call to its layer, of whose positions these are no padding."""
        # where queries stand among the keys, once padding is left out
        position_of_key = {int(t): i for i, t in enumerate(unpadded_keys)}
        positions = np.array(
            [position_of_key.get(int(t), int(t)) for t in unpadded_queries], dtype=np.int64
        )
        sample = evenly_spaced(len(unpadded_queries), self._most_queries)
        positions = positions[sample]
        rows, columns = torch.from_numpy(unpadded_queries[sample]), torch.from_numpy(unpadded_keys)
        H, groups = call.q.shape[1], call.k.shape[1]
        q, k = call.q[b], call.k[b]
        if layer.heads < H:  # of some heads, each with its keys
            k = k[[h * groups // H for h in layer.head_numbers]]
            q = q[layer.head_numbers]
        visible, bias = _visible_keys_and_bias(call, b, H, rows, columns)
        if bias is not None:
            bias = bias[layer.head_numbers]
        queries, keys = q[:, rows].cpu(), k[:, columns].cpu()
        if not (queries.isfinite().all() and keys.isfinite().all()):
            raise InputError(
                f"queries or keys of layer {call.number} ({call.name or self._name}) hold NaN or"
                " infinity; look for it in the weights and inputs of the model"
            )
        text = self._first_text + b
        layer.texts.append(
            TextAttention(
                queries, keys, positions, visible, bias, call.scale, text, len(unpadded_queries)
            )
        )
        is_later = np.arange(len(unpadded_keys)) > positions[:, None]
        layer.causal = layer.causal and not layer.cross and not (visible & is_later).any()
        if layer.projection is not None and maps is not None:
            inputs = _input_rows(maps[1][2], b, columns)
            shared = not layer.cross and torch.equal(rows, columns)
            layer.projection.key_inputs.append(inputs)
            layer.projection.query_inputs.append(
                inputs if shared else _input_rows(maps[0][2], b, rows)
            )

    def _select_heads(self, H: int) -> list[int]:
        """The heads to record of a layer with ``H`` of them."""
        heads = list(range(H)) if self._heads is None else self._heads
        if not heads or heads[0] < 0 or heads[-1] >= H:
            raise InputError(
                f"heads {heads} do not exist; the layers of {self._name} have heads 0 to {H - 1}"
            )
        return heads

    def _unpadded(self, length: int, module: str) -> Tensor | None:
        """Whether a position of a text of this length is no padding, ``(B, length)``."""
        masks = [mask for mask in self._padding_masks.values() if mask.shape[1] == length]
        decoder = self._padding_masks.get("decoder_attention_mask")
        if decoder is not None and "decoder" in module and decoder.shape[1] == length:
            return decoder
        return masks[0] if masks else None

    def _find_linear_map(self, heads: Tensor) -> LinearMap | None:
        """The weight, bias and input of the linear map whose output these heads are."""
        B, H, T, d = heads.shape
        flat = heads.transpose(1, 2).reshape(B, T, H * d)

        def by_text(x: Tensor) -> Tensor:
            return x.transpose(0, 1) if x.shape[:2] == (T, B) != (B, T) else x.reshape(B, T, -1)

        for module, inputs, output in reversed(self._linear_calls):
            if output.shape[:-1] not in ((B, T), (T, B), (B * T,)) or output.shape[-1] % (H * d):
                continue
            # one map may make queries, keys and values: each is a block of its output
            blocks = by_text(output)
            for block in range(output.shape[-1] // (H * d)):
                span = slice(block * H * d, (block + 1) * H * d)
                if torch.equal(blocks[..., span], flat):
                    weight, bias = _weight_and_bias(module)
                    return weight[span], None if bias is None else bias[span], by_text(inputs)
        return None


def _unmasked_positions(masks: Tensor | None, text: int, length: int) -> IntArray:
    """The positions of a text that are no padding; all where there is no mask."""
    if masks is None:
        return np.arange(length)
    return np.flatnonzero(masks[text % len(masks)].numpy())


def _visible_keys_and_bias(
    call: AttentionCall, text: int, H: int, rows: Tensor, columns: Tensor
) -> tuple[BoolArray, Tensor | None]:
    """Whether these queries see these keys, ``(q, T)``, and the term added to their logits,
    ``(H, q, T)``.
    """
    visible = torch.ones(len(rows), len(columns), dtype=torch.bool)
    if call.causal:
        visible &= columns <= rows[:, None]
    if call.mask is None:
        return visible.numpy(), None
    mask = call.mask[text if len(call.mask) > 1 else 0]
    mask = mask[:, rows if mask.shape[1] > 1 else torch.zeros_like(rows)][:, :, columns].cpu()
    if mask.dtype == torch.bool:
        return (visible & mask.any(dim=0)).numpy(), None
    # models hide a key with the lowest number of their precision, or half of it
    hidden = mask <= 0.5 * torch.finfo(mask.dtype).min
    bias = mask.masked_fill(hidden, 0.0)
    visible &= ~hidden.all(dim=0)
    return visible.numpy(), bias.expand(H, -1, -1).clone() if bool(bias.any()) else None


def evenly_spaced(n: int, most: int | None) -> IntArray:
    """At most ``most`` of ``n`` positions, evenly spaced, the last one always."""
    if most is None or n <= most:
        return np.arange(n)
    return np.unique(np.linspace(0, n - 1, most).round().astype(np.int64))


def _uses_flex_attention(module: nn.Module) -> bool:
    """Whether the code of this module has torch's ``flex_attention`` by some name."""
    code = sys.modules.get(type(module).__module__)
    torch_code = sys.modules.get("torch.nn.attention.flex_attention")
    flex_attention = getattr(torch_code, "flex_attention", None)
    if flex_attention is None or code is None:
        return False
    return any(
        value is flex_attention
        or getattr(value, "_torchdynamo_orig_callable", None) is flex_attention
        for value in vars(code).values()
    )


def _is_linear_map(module: nn.Module) -> bool:
    """True of ``nn.Linear``, and of GPT-2's ``Conv1D``, which keeps the transpose."""
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _weight_and_bias(module: nn.Module) -> tuple[Tensor, Tensor | None]:
    weight = getattr(module, "weight").detach()  # noqa: B009 - typed as Module or Tensor
    bias = getattr(module, "bias", None)
    weight = weight if isinstance(module, nn.Linear) else weight.T
    return weight, None if bias is None else bias.detach()


def _projection(
    queries: LinearMap, keys: LinearMap, heads: list[int], H: int, groups: int, d: int
) -> Projection:
    """The maps of these heads, of ``H`` that share keys in groups."""
    W_Q = queries[0].double().cpu().numpy().reshape(H, d, -1)[heads]
    b_Q = np.zeros((H, d)) if queries[1] is None else queries[1].double().cpu().numpy()
    W_K = keys[0].double().cpu().numpy().reshape(groups, d, -1)
    W_K = W_K[[h * groups // H for h in heads]]
    rows = len(heads) * d
    b_Q = b_Q.reshape(H, d)[heads].ravel()
    return Projection(W_K.reshape(rows, -1), W_Q.reshape(rows, -1), b_Q, [], [])


def _input_rows(inputs: Tensor, text: int, rows: Tensor) -> NDArray[np.float64]:
    return inputs[text].double().cpu()[rows].numpy()


@contextmanager
def force_fused_attention(model: nn.Module) -> Iterator[None]:
    """Make every attention one fused call: no encoder fast path, ``sdpa`` for Hugging Face
    models.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    before = getattr(getattr(model, "config", None), "_attn_implementation", None)
    change = before is not None and before != "sdpa" and hasattr(model, "set_attn_implementation")
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        if change:
            model.set_attn_implementation("sdpa")  # type: ignore[operator]
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        if change:
            model.set_attn_implementation(before)  # type: ignore[operator]
