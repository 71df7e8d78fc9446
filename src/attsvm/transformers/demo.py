"""A trained language model of 260,032 parameters that comes with the package.

Five layers of eight heads that share four sets of keys, width 64, rotary positions on adjacent
pairs, trained on children's stories (see ``stories/README.md``).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from attsvm.base.errors import InputError

_FOLDER = Path(__file__).parent / "stories"
START = 1  # number of the token that begins a text


class Stories(nn.Module):
    """The model; ``forward(input_ids)`` gives logits ``(B, T, 512)``."""

    def __init__(self) -> None:
        super().__init__()
        arrays = load_file(_FOLDER / "model.safetensors")
        config = arrays.pop("config").tolist()
        self.width, _, self.depth, self.heads, self.groups, _, self.context = map(int, config)
        self.weights = nn.ParameterDict(
            {name: nn.Parameter(array, requires_grad=False) for name, array in arrays.items()}
        )
        self.blocks = nn.ModuleList(_Block(self, number) for number in range(self.depth))

    def forward(self, input_ids: Tensor) -> Tensor:
        """Logits of the next token at every position.

        Raises:
            InputError: a text longer than the context of 512.
        """
        if input_ids.shape[1] > self.context:
            raise InputError(
                f"a text has {input_ids.shape[1]} tokens; this model takes at most {self.context}"
            )
        x = self.weights["tok_embeddings"][input_ids]
        for block in self.blocks:
            x = block(x)
        return normalised(x, self.weights["norm"]) @ self.weights["tok_embeddings"].T

    def layer_inputs(self, input_ids: Tensor, layer: int) -> Tensor:
        """The normalised inputs of the heads of a layer, ``(B, T, width)``."""
        with torch.no_grad():
            x = self.weights["tok_embeddings"][input_ids]
            for block in list(self.blocks)[:layer]:
                x = block(x)
            return normalised(x, self.weights["attention_norm"][layer])

    def generate(self, tokens: int) -> Tensor:
        """The story that follows from the start, always the best token next, ``(1, tokens)``."""
        ids = torch.tensor([[START]])
        with torch.no_grad():
            while ids.shape[1] < tokens:
                ids = torch.cat([ids, self(ids)[:, -1:].argmax(dim=-1)], dim=1)
        return ids


class _Block(nn.Module):
    def __init__(self, model: Stories, number: int) -> None:
        super().__init__()
        self._model = (model,)  # not a submodule: it holds this one
        self._number = number

    def forward(self, x: Tensor) -> Tensor:
        model, n = self._model[0], self._number
        w = {name: array[n] for name, array in model.weights.items() if name not in _OUTSIDE}
        # attention: heads share keys and values in groups
        x_normalised = normalised(x, w["attention_norm"])
        q, k, v = (
            (x_normalised @ w[name].T)
            .unflatten(-1, (-1, model.width // model.heads))
            .transpose(1, 2)
            for name in ("wq", "wk", "wv")
        )
        # rotations turn products of queries and keys by their distance
        outputs = nn.functional.scaled_dot_product_attention(
            rotated(q), rotated(k), v, is_causal=True, enable_gqa=True
        )
        x = x + outputs.transpose(1, 2).flatten(2) @ w["wo"].T
        # gated feed-forward layer
        x_normalised = normalised(x, w["ffn_norm"])
        gate = nn.functional.silu(x_normalised @ w["w1"].T) * (x_normalised @ w["w3"].T)
        return x + gate @ w["w2"].T


_OUTSIDE = ("tok_embeddings", "norm")


def normalised(x: Tensor, scale: Tensor) -> Tensor:
    """Rows divided by their root mean square, times ``scale``."""
    return scale * x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-5)


def rotated(x: Tensor) -> Tensor:
    """Rows turned by rotary positions, base 10,000, on adjacent pairs of features."""
    T, d = x.shape[-2:]
    speed = 10000.0 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    # angles on the processor: not every device has float64
    angle = (torch.arange(T, dtype=torch.float64)[:, None] * speed).to(x)
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = (even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos())
    return torch.stack(turned, dim=-1).flatten(-2)


class WordPieces:
    """The word pieces of the model."""

    def __init__(self) -> None:
        rows: list[tuple[str, float]] = json.loads((_FOLDER / "pieces.json").read_text("utf-8"))
        self._names = [piece.encode("latin-1").decode("utf-8", "replace") for piece, _ in rows]

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        """The pieces of these numbers."""
        return [{"<0x0A>": "\n"}.get(self._names[i], self._names[i]) for i in ids]


def demo_model(tokens: int = 200) -> tuple[Stories, WordPieces, dict[str, Any]]:
    """The model, its pieces and the input of its own story of this many tokens.

    Example:
        >>> from attsvm.transformers import demo_model
        >>> model, tokenizer, batch = demo_model(tokens=12)
        >>> batch["input_ids"].shape
        torch.Size([1, 12])
    """
    model = Stories().eval()
    return model, WordPieces(), {"input_ids": model.generate(tokens)}
