"""Trained decoders with their checkpoints, and the inputs of their attention.

Several experiments read the same trainings. Where the environment variable ``ATTSVM_TRAINED`` names
a folder they are kept there, under the name of all that decides them, and trained once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attsvm.base.cores import at_most_threads
from attsvm.base.store import code_digest, entry_path, load_entry, save_entry
from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.transformers import capture
from attsvm_papers.heads.decoder import (
    MADE,
    Decoder,
    DecoderSizes,
    attention_optimiser,
    characters,
    disjoint_texts,
    held_out_loss,
    text_digest,
    train_steps,
)

TEXT = "tinyshakespeare"
SMALL = asdict(DecoderSizes(steps=450))
PAPER = {"sizes": asdict(DecoderSizes())}
TINY = asdict(DecoderSizes(context=12, width=12, depth=1, heads=2, steps=20))
QUICK = {"text": MADE, "sizes": TINY, "queries": 12, "seeds": 1}
"""The text and the sizes of the network at each scale."""

RATES = {"adamw": 3e-3, "sgd": 1.0, "muon": 1e-2, "signum": 1e-3, "mirror": 0.3}
"""Of queries and keys: the least held-out loss of those tried, after 300 steps."""
CHECKPOINTS = 20
JUDGED = 64  # held-out texts of the loss
LOOKED_AT = 64  # held-out texts of the heads, others


@dataclass(frozen=True, eq=False)
class TrainedDecoder:
    """A training.

    Attributes:
        steps: ``(20,)``, those of the checkpoints, the first before any.
        losses: ``(20,)``, held-out nats per character.
        weights: of every checkpoint.
        sizes: of the network.
        vocabulary: number of characters.
    """

    steps: IntArray
    losses: FloatArray
    weights: list[dict[str, NDArray[Any]]]
    sizes: DecoderSizes
    vocabulary: int

    def model(self, checkpoint: int = -1) -> Decoder:
        """The network at a checkpoint."""
        model = Decoder(self.vocabulary, self.sizes)
        model.load_state_dict(
            {name: torch.from_numpy(w) for name, w in self.weights[checkpoint].items()}
        )
        return model.eval()

    def nearest(self, loss: float) -> int:
        """The checkpoint whose held-out loss is nearest."""
        return int(np.argmin(np.abs(self.losses - loss)))


def checkpoints(steps: int) -> IntArray:
    """Steps of the checkpoints, denser early, where more happens."""
    return np.unique(np.round(steps * np.linspace(0, 1, CHECKPOINTS) ** 1.5).astype(np.int64))


def trained_decoder(text: str, sizes: Mapping[str, Any], name: str, seed: int) -> TrainedDecoder:
    """The training of a decoder of this text, with ``sizes`` as a cell has them, by the named
    optimiser of queries and keys at the rate of :data:`RATES`.

    Raises:
        UnavailableError: the text is not there.
    """
    settings: dict[str, Any] = {"text": text, "digest": text_digest(text), "sizes": sizes}
    settings |= {"name": name, "rate": RATES[name], "seed": seed}
    folder = os.environ.get("ATTSVM_TRAINED")
    path = (
        entry_path(Path(folder), settings, code_digest(_train_with_checkpoints)) if folder else None
    )
    if path is None or not path.exists():
        arrays = _train_with_checkpoints(text, DecoderSizes(**sizes), name, RATES[name], seed)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_entry(path, arrays)
    else:
        arrays, _ = load_entry(path)
    steps = checkpoints(sizes["steps"])
    weights: list[dict[str, NDArray[Any]]] = [{} for _ in steps]
    for key, value in arrays.items():
        number, _, parameter = key.partition(".")
        if parameter:
            weights[int(number)][parameter] = value
    vocabulary = int(arrays["vocabulary"][0])
    return TrainedDecoder(steps, arrays["losses"], weights, DecoderSizes(**sizes), vocabulary)


def _train_with_checkpoints(
    text: str, sizes: DecoderSizes, name: str, rate: float, seed: int
) -> dict[str, Any]:
    train, held_out, vocabulary = characters(text)
    judged_texts = disjoint_texts(held_out, JUDGED, sizes.context + 1, 1)
    arrays: dict[str, Any] = {"vocabulary": np.array([vocabulary])}
    losses: list[float] = []

    def make(model: Decoder) -> torch.optim.Optimizer:
        return attention_optimiser(model, name, rate)

    with at_most_threads(1, torch):  # bits do not depend on how many run side by side
        for step, model in train_steps(train, vocabulary, sizes, make, seed):
            if step in checkpoints(sizes.steps):
                state = model.state_dict()
                arrays |= {f"{len(losses)}.{k}": v.numpy().copy() for k, v in state.items()}
                losses.append(held_out_loss(model, judged_texts))
    return {**arrays, "losses": np.array(losses)}


def text_digests(parameters: Any) -> list[str]:
    """The axis ``digest`` of a figure: other files are other cells.

    Raises:
        UnavailableError: the text is not there.
    """
    return [text_digest(parameters.text)]


def held_out_texts(text: str, sizes: DecoderSizes, seed: int, count: int = LOOKED_AT) -> Tensor:
    """``(count, context)`` held-out texts on which heads are measured."""
    return disjoint_texts(characters(text)[1], count, sizes.context, 2 + seed)


@dataclass(frozen=True, eq=False)
class LayerAttention:
    r"""One layer's attention.

    Attributes:
        inputs: ``(n, T, width)``, after the layer norm.
        tokens: ``(n, T)``.
        weights: ``(heads, width, width)``, of the logits :math:`x_t^\top Wz`.
    """

    inputs: FloatArray
    tokens: IntArray
    weights: FloatArray


def attention_layers(
    model: Decoder, texts: Tensor, positions: Tensor | None = None
) -> list[LayerAttention]:
    """Inputs and weights of every layer's heads on texts ``(n, T)``."""
    with torch.no_grad(), capture(model) as recording:
        model(texts, positions)
    layers = []
    for layer in recording.layers.values():
        maps = layer.projection
        assert maps is not None
        K, Q = (
            projection.double().numpy().reshape(layer.heads, -1, projection.shape[1])
            for projection in (maps.W_K, maps.W_Q)
        )
        weights = layer.texts[0].scale * np.einsum("hij,hik->hjk", K, Q)
        inputs = torch.stack(maps.key_inputs).double().numpy()
        layers.append(LayerAttention(inputs, texts.numpy(), weights))
    return layers
