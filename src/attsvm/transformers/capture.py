r"""What attention saw: keys and queries of every head while a model ran, without T x T matrices.

Every fused attention of torch is one call, ``scaled_dot_product_attention(q, k, v, mask)``, and so
is that of Hugging Face's models, of ``torch.nn.MultiheadAttention`` and of most layers that people
write. :func:`capture` watches these calls and copies post-rotary keys and queries. The model's own
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
from attsvm.transformers.watching import Call, Map, Watch

MOST_QUERIES = 512
"""Queries of one text and layer that are kept when :func:`capture` is not told otherwise."""


@dataclass(frozen=True, eq=False)
class Attended:
    """One text in one attention layer.

    Attributes:
        queries: ``(heads, q, d)``, in the model's precision, after any rotation of positions.
        keys: ``(key heads, T, d)``; query heads share them in groups of equal size.
        positions: ``(q,)``, where the kept queries stand in the text.
        visible: ``(q, T)``, which keys each query sees.
        bias: ``(heads, q, T)``, what the model adds to the logits; ``None`` when nothing.
        scale: what the products of keys and queries are multiplied with.
        text: number of the text in the recording.
        asked: how many queries the text has; more than ``q`` where some were not kept.
    """

    queries: Tensor
    keys: Tensor
    positions: IntArray
    visible: BoolArray
    bias: Tensor | None
    scale: float
    text: int
    asked: int

    def logits(self, start: int = 0, stop: int | None = None) -> Tensor:
        """``(heads, q, T)`` in float32 for these queries, minus infinity on hidden keys."""
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
        query_inputs: per text ``(q, width)``, those of the kept queries.
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
        number: its place in the forward pass; a module that runs several times (ALBERT) is as many
            layers.
        name: the module that called attention.
        numbers: of the query heads that were kept, in the model's counting.
        cross: True where keys come from another text than queries.
        causal: True where no query sees a later key.
        texts: what was kept of each text.
        projection: ``None`` where keys and queries are no linear maps of the inputs (rotary
            positions, normalised keys).
    """

    number: int
    name: str
    numbers: list[int]
    cross: bool
    causal: bool
    texts: list[Attended] = field(default_factory=list)
    projection: Projection | None = None

    @property
    def heads(self) -> int:
        """Number of query heads that were kept."""
        return len(self.numbers)


@dataclass(eq=False, repr=False)
class Recording(Compact):
    """Everything that :func:`capture` kept.

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
        """The same recording with every token written as ``tokenizer`` writes it."""
        self.words = [list(tokenizer.convert_ids_to_tokens(ids.tolist())) for ids in self.tokens]
        return self


@contextmanager
def capture(
    model: nn.Module | Callable[..., Any],
    layers: Collection[int] | None = None,
    heads: Collection[int] | None = None,
    *,
    most_queries: int | None = MOST_QUERIES,
    projections: bool = True,
) -> Iterator[Recording]:
    """Keep keys and queries of every attention call of ``model`` while the block runs.

    Args:
        model: any module whose attention is torch's fused one; a Hugging Face model with another
            implementation runs with ``sdpa`` inside the block. Or a function that calls torch's
            attention: of the block, every call of attention is then a layer of its own.
        layers: numbers of the layers to keep; all when left out.
        heads: numbers of the heads to keep in each layer; all when left out.
        most_queries: queries kept per text and layer, spread evenly over it; ``None`` for all.
        projections: keep the inputs of keys and queries as well where they are linear maps of
            them, so that weights can be compared with max-margin solutions.

    Raises:
        InputError: what is no module and no function, layers or heads that the model does not have,
            a model whose attention was never seen, keys or queries that are not finite.

    Example:
        >>> import torch
        >>> from attsvm.transformers import capture, story
        >>> model, tokenizer, batch = story(tokens=40)
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
    with fused(module), recorder, recorder.watch:
        yield recorder.recording
    recorder.finish()


class _Recorder:
    def __init__(
        self,
        model: nn.Module,
        named: str,
        layers: set[int] | None,
        heads: list[int] | None,
        most: int | None,
        projections: bool,
    ) -> None:
        if most is not None and most < 1:
            raise InputError(f"most_queries is {most}; keep at least one query")
        self.recording = Recording()
        self._model, self._named, self._layers, self._heads = model, named, layers, heads
        self._most, self._projections = most, projections
        self.watch = Watch(model, self._see)
        self._linear: list[tuple[nn.Module, Tensor, Tensor]] = []
        self._hooks: list[Any] = []
        self._padding: dict[str, Tensor] = {}
        self._first_text = 0
        self._batch = 0
        self._seen: set[int] = set()

    def __enter__(self) -> _Recorder:
        for module in self._model.modules():
            if self._projections and _linear_map(module):
                self._hooks.append(module.register_forward_hook(self._maps))
        self._hooks.append(
            self._model.register_forward_pre_hook(self._starts, with_kwargs=True, prepend=True)
        )
        return self

    def __exit__(self, *exception: Any) -> None:
        for hook in self._hooks:
            hook.remove()

    def finish(self) -> None:
        """Refuse an empty recording in a sentence that says why it is empty."""
        if not self._seen and any(_flexible(module) for module in self._model.modules()):
            raise InputError(
                f"{self._named} calls flex_attention; flex_attention is compiled as a whole, so its"
                " keys and queries are not seen; run the model with scaled_dot_product_attention"
            )
        if not self._seen:
            raise InputError(
                f"no attention of {self._named} was seen; call the model inside the"
                " block, and use a model whose attention is torch's scaled_dot_product_attention"
            )
        missing = sorted((self._layers or set()) - self._seen)
        if missing:
            raise InputError(
                f"layer {missing[0]} does not exist; the model has layers 0 to {max(self._seen)}"
            )

    def _maps(self, module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tensor) and args and isinstance(args[0], Tensor):
            self._linear.append((module, args[0].detach(), output.detach()))
            del self._linear[:-6]  # queries, keys and values of this layer, and of its cross part

    def _starts(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A new forward pass of the whole model: layers are counted anew, texts go on."""
        try:
            given = inspect.signature(self._model.forward).bind_partial(*args, **kwargs).arguments
        except TypeError:  # a decorator may take more than the signature that it shows
            given = dict(kwargs)
        given = {**given, **given.get("kwargs", {})}
        self._first_text += self._batch
        self._batch, self._linear = 0, []
        self._padding = {
            name: mask.detach().bool().cpu()
            for name in ("attention_mask", "decoder_attention_mask")
            if isinstance(mask := given.get(name), Tensor) and mask.dim() == 2
        }
        ids = given.get("input_ids")
        if isinstance(ids, Tensor) and ids.dim() == 2:
            kept = self._padding.get("attention_mask", torch.ones_like(ids, dtype=torch.bool).cpu())
            numbers = ids.detach().cpu()
            self.recording.tokens += [
                row[mask].numpy().astype(np.int64) for row, mask in zip(numbers, kept, strict=True)
            ]

    def _see(self, call: Call) -> None:
        self._seen.add(call.number)
        if self._layers is None or call.number in self._layers:
            self._keep(call)

    def _keep(self, call: Call) -> None:
        q, k, number, name = call.q, call.k, call.number, call.name
        B, H, Tq, d = q.shape
        T = k.shape[2]
        layer = next((each for each in self.recording.layers if each.number == number), None)
        queries_of, keys_of = call.maps or (self._maps_of(q), self._maps_of(k))
        maps = (queries_of, keys_of) if queries_of and keys_of else None
        if layer is None:
            apart = maps is not None and maps[0][2].data_ptr() != maps[1][2].data_ptr()
            layer = Layer(number, name, self._wanted(H), Tq != T or apart, True)
            self.recording.layers.append(layer)
            if maps is not None:
                layer.projection = _projection(*maps, layer.numbers, H, k.shape[1], d)
        self._batch = max(self._batch, B)
        own, sees = self._present(Tq, name), self._present(T, "")
        if maps is None:
            layer.projection = None
        if layer.heads < H:
            k = k[:, [h * k.shape[1] // H for h in layer.numbers]]
            q = q[:, layer.numbers]
        for b in range(B):
            places = np.flatnonzero(own[b % len(own)].numpy()) if own is not None else np.arange(Tq)
            keep = np.flatnonzero(sees[b % len(sees)].numpy()) if sees is not None else np.arange(T)
            order = {int(t): i for i, t in enumerate(keep)}
            stands = np.array([order.get(int(t), int(t)) for t in places], dtype=np.int64)
            some = spread(len(places), self._most)
            rows = torch.from_numpy(places[some])
            columns = torch.from_numpy(keep)
            seen, shift = _visibility(call, b, H, rows, columns)
            if shift is not None:
                shift = shift[layer.numbers]
            queries, keys = q[b][:, rows].cpu(), k[b][:, columns].cpu()
            if not (queries.isfinite().all() and keys.isfinite().all()):
                raise InputError(
                    f"queries or keys of layer {number} ({name or self._named}) hold NaN or"
                    " infinity; look for it in the weights and inputs of the model"
                )
            layer.texts.append(
                Attended(
                    queries,
                    keys,
                    stands[some],
                    seen,
                    shift,
                    call.scale,
                    self._first_text + b,
                    len(places),
                )
            )
            later = np.arange(len(keep)) > stands[some][:, None]
            layer.causal = layer.causal and not layer.cross and not (seen & later).any()
            if layer.projection is not None and maps is not None:
                inputs = _rows(maps[1][2], b, columns)
                shared = not layer.cross and torch.equal(rows, columns)
                layer.projection.key_inputs.append(inputs)
                layer.projection.query_inputs.append(
                    inputs if shared else _rows(maps[0][2], b, rows)
                )

    def _wanted(self, H: int) -> list[int]:
        """The heads to keep of a layer with ``H`` of them."""
        wanted = list(range(H)) if self._heads is None else self._heads
        if not wanted or wanted[0] < 0 or wanted[-1] >= H:
            raise InputError(
                f"heads {wanted} do not exist; the layers of {self._named} have heads 0 to {H - 1}"
            )
        return wanted

    def _present(self, length: int, name: str) -> Tensor | None:
        """Which places of a text of this length are no padding."""
        masks = [mask for mask in self._padding.values() if mask.shape[1] == length]
        decoder = self._padding.get("decoder_attention_mask")
        if decoder is not None and "decoder" in name and decoder.shape[1] == length:
            return decoder
        return masks[0] if masks else None

    def _maps_of(self, heads: Tensor) -> Map | None:
        """The weight, bias and input of the linear map whose output these heads are."""
        B, H, T, d = heads.shape
        flat = heads.transpose(1, 2).reshape(B, T, H * d)

        def by_text(x: Tensor) -> Tensor:
            return x.transpose(0, 1) if x.shape[:2] == (T, B) != (B, T) else x.reshape(B, T, -1)

        for module, inputs, output in reversed(self._linear):
            if output.shape[:-1] not in ((B, T), (T, B), (B * T,)) or output.shape[-1] % (H * d):
                continue
            out = by_text(output)
            for part in range(output.shape[-1] // (H * d)):
                span = slice(part * H * d, (part + 1) * H * d)
                if torch.equal(out[..., span], flat):
                    weight, shift = _weight(module)
                    return weight[span], None if shift is None else shift[span], by_text(inputs)
        return None


def _visibility(
    call: Call, text: int, H: int, rows: Tensor, columns: Tensor
) -> tuple[BoolArray, Tensor | None]:
    """Which of these keys these queries see, ``(q, T)``, and what is added to their logits,
    ``(H, q, T)``.
    """
    seen = torch.ones(len(rows), len(columns), dtype=torch.bool)
    if call.causal:
        seen &= columns <= rows[:, None]
    if call.mask is None:
        return seen.numpy(), None
    own = call.mask[text if len(call.mask) > 1 else 0]
    own = own[:, rows if own.shape[1] > 1 else torch.zeros_like(rows)][:, :, columns].cpu()
    if own.dtype == torch.bool:
        return (seen & own.any(dim=0)).numpy(), None
    hidden = own <= 0.5 * torch.finfo(own.dtype).min
    shift = own.masked_fill(hidden, 0.0)
    seen &= ~hidden.all(dim=0)
    return seen.numpy(), shift.expand(H, -1, -1).clone() if bool(shift.any()) else None


def spread(n: int, most: int | None) -> IntArray:
    """At most ``most`` of ``n`` places, evenly, the last one always."""
    if most is None or n <= most:
        return np.arange(n)
    return np.unique(np.linspace(0, n - 1, most).round().astype(np.int64))


def _flexible(module: nn.Module) -> bool:
    """Whether the code of this module has torch's ``flex_attention`` by some name."""
    source = sys.modules.get(type(module).__module__)
    flexible = sys.modules.get("torch.nn.attention.flex_attention")
    wanted = getattr(flexible, "flex_attention", None)
    return (
        wanted is not None
        and source is not None
        and any(
            each is wanted or getattr(each, "_torchdynamo_orig_callable", None) is wanted
            for each in vars(source).values()
        )
    )


def _linear_map(module: nn.Module) -> bool:
    """``nn.Linear``, or GPT-2's ``Conv1D``, which keeps the transpose."""
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _weight(module: nn.Module) -> tuple[Tensor, Tensor | None]:
    weight = getattr(module, "weight").detach()  # noqa: B009 - typed as Module or Tensor
    shift = getattr(module, "bias", None)
    weight = weight if isinstance(module, nn.Linear) else weight.T
    return weight, None if shift is None else shift.detach()


def _projection(
    queries: Map, keys: Map, numbers: list[int], H: int, groups: int, d: int
) -> Projection:
    """The maps of these heads, of ``H`` that share keys in groups."""
    W_Q = queries[0].double().cpu().numpy().reshape(H, d, -1)[numbers]
    b_Q = np.zeros((H, d)) if queries[1] is None else queries[1].double().cpu().numpy()
    W_K = keys[0].double().cpu().numpy().reshape(groups, d, -1)
    W_K = W_K[[h * groups // H for h in numbers]]
    flat = len(numbers) * d
    shift = b_Q.reshape(H, d)[numbers].ravel()
    return Projection(W_K.reshape(flat, -1), W_Q.reshape(flat, -1), shift, [], [])


def _rows(inputs: Tensor, b: int, rows: Tensor) -> NDArray[np.float64]:
    return inputs[b].double().cpu()[rows].numpy()


@contextmanager
def fused(model: nn.Module) -> Iterator[None]:
    """Every attention as one fused call: no encoder fast path, ``sdpa`` for Hugging Face models."""
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
