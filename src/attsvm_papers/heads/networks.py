"""Trained decoders with their checkpoints, and what their attention sees.

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

from attsvm.data import FloatArray, IntArray
from attsvm.probe import capture
from attsvm.store import code_fingerprint, entry_path, load_entry, save_entry
from attsvm.thread_limits import at_most_threads
from attsvm_papers.heads.decoder import (
    MADE,
    Decoder,
    Sizes,
    characters,
    descent,
    held_out_loss,
    optimiser,
    text_digest,
    windows,
)

TEXT = "tinyshakespeare"
SMALL = asdict(Sizes(steps=450))
PAPER = {"sizes": asdict(Sizes())}
TINY = asdict(Sizes(context=12, width=12, depth=1, heads=2, steps=20))
QUICK = {"text": MADE, "sizes": TINY, "queries": 12, "seeds": 1}
"""The text and the sizes of the network at each scale."""

RATES = {"adamw": 3e-3, "sgd": 1.0, "muon": 1e-2, "signum": 1e-3, "mirror": 0.3}
"""Of queries and keys: the least held-out loss of those tried, after 300 steps."""
CHECKPOINTS = 20
JUDGED = 64  # held-out texts of the loss
LOOKED_AT = 64  # held-out texts of the heads, others


@dataclass(frozen=True, eq=False)
class Trained:
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
    sizes: Sizes
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


def trained(text: str, sizes: Mapping[str, Any], name: str, seed: int) -> Trained:
    """The training of a decoder of this text, with ``sizes`` as a cell has them, by the named
    optimiser of queries and keys at the rate of :data:`RATES`.

    Raises:
        UnavailableError: the text is not there.
    """
    asked: dict[str, Any] = {"text": text, "digest": text_digest(text), "sizes": sizes}
    asked |= {"name": name, "rate": RATES[name], "seed": seed}
    place = os.environ.get("ATTSVM_TRAINED")
    path = entry_path(Path(place), asked, code_fingerprint(_trained)) if place else None
    if path is None or not path.exists():
        found = _trained(text, Sizes(**sizes), name, RATES[name], seed)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_entry(path, found)
    else:
        found, _ = load_entry(path)
    steps = checkpoints(sizes["steps"])
    weights: list[dict[str, NDArray[Any]]] = [{} for _ in steps]
    for key, value in found.items():
        number, _, parameter = key.partition(".")
        if parameter:
            weights[int(number)][parameter] = value
    vocabulary = int(found["vocabulary"][0])
    return Trained(steps, found["losses"], weights, Sizes(**sizes), vocabulary)


def _trained(text: str, sizes: Sizes, name: str, rate: float, seed: int) -> dict[str, Any]:
    train, held, vocabulary = characters(text)
    judged = windows(held, JUDGED, sizes.context + 1, 1)
    found: dict[str, Any] = {"vocabulary": np.array([vocabulary])}
    losses: list[float] = []

    def make(model: Decoder) -> torch.optim.Optimizer:
        return optimiser(model, name, rate)

    with at_most_threads(1, torch):  # bits do not depend on how many run side by side
        for step, model in descent(train, vocabulary, sizes, make, seed):
            if step in checkpoints(sizes.steps):
                state = model.state_dict()
                found |= {f"{len(losses)}.{k}": v.numpy().copy() for k, v in state.items()}
                losses.append(held_out_loss(model, judged))
    return {**found, "losses": np.array(losses)}


def files(parameters: Any) -> list[str]:
    """The axis ``digest`` of a figure: other files are other cells.

    Raises:
        UnavailableError: the text is not there.
    """
    return [text_digest(parameters.text)]


def held_out_texts(text: str, sizes: Sizes, seed: int, count: int = LOOKED_AT) -> Tensor:
    """``(count, context)`` held-out texts on which heads are measured."""
    return windows(characters(text)[1], count, sizes.context, 2 + seed)


@dataclass(frozen=True, eq=False)
class Attention:
    r"""One layer's attention.

    Attributes:
        inputs: ``(n, T, width)``, after the layer norm.
        tokens: ``(n, T)``.
        weights: ``(heads, width, width)``, of the logits :math:`x_t^\top Wz`.
    """

    inputs: FloatArray
    tokens: IntArray
    weights: FloatArray


def attention(model: Decoder, texts: Tensor, places: Tensor | None = None) -> list[Attention]:
    """What every layer's heads see of texts ``(n, T)``, and their weights."""
    with torch.no_grad(), capture(model) as recording:
        model(texts, places)
    found = []
    for layer in recording.layers:
        maps = layer.projection
        assert maps is not None
        K, Q = (each.reshape(layer.heads, -1, each.shape[1]) for each in (maps.W_K, maps.W_Q))
        weights = layer.texts[0].scale * np.einsum("hij,hik->hjk", K, Q)
        found.append(Attention(np.stack(maps.key_inputs), texts.numpy(), weights))
    return found
