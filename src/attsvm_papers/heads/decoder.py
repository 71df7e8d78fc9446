"""A small decoder of characters, and five optimisers of its queries and keys.

Two blocks of the usual kind: layer norm, causal attention, layer norm, a network of four times the
width; learned positions, queries and keys as separate matrices without bias. Everything but queries
and keys is trained by AdamW.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attsvm.base.errors import UnavailableError
from attsvm.base.files import digest
from attsvm.optim import CombinedOptimizer, MirrorDescent, SteepestDescent

OPTIMISERS = ("adamw", "sgd", "muon", "signum", "mirror")
"""AdamW, gradient descent with momentum, Muon, sign descent with momentum, and mirror descent of
the potential of p = 1.1.
"""
REST = 1e-3  # of AdamW on everything else
MOMENTUM = 0.9  # of gradient, sign and mirror descent
HELD = 0.1  # of the text, its end, is never trained on
MADE = "made"


@dataclass(frozen=True)
class DecoderSizes:
    """Sizes of the network and of its training.

    Attributes:
        context: characters that it sees.
        width: of a token.
        depth: number of blocks.
        heads: of a block.
        batch: texts of a step.
        steps: of training.
    """

    context: int = 64
    width: int = 128
    depth: int = 2
    heads: int = 4
    batch: int = 8
    steps: int = 900


class DecoderBlock(nn.Module):
    """One block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries, self.keys, self.values = (
            nn.Linear(width, width, bias=False) for _ in range(3)
        )
        self.out = nn.Linear(width, width)
        self.network = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        q, k, v = (
            projection(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for projection in (self.queries, self.keys, self.values)
        )
        attended = self.attend(q, k, v)
        x = x + self.out(attended.transpose(1, 2).flatten(-2))
        output: Tensor = x + self.network(self.between(x))
        return output

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attended values ``(B, heads, T, d)`` of queries, keys and values of that shape."""
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class Decoder(nn.Module):
    """A network from characters ``(B, T)`` to logits of the next ones ``(B, T, vocabulary)``."""

    def __init__(self, vocabulary: int, sizes: DecoderSizes) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, sizes.width)
        self.positions = nn.Embedding(sizes.context, sizes.width)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=0.1)
        self.blocks = nn.ModuleList(
            DecoderBlock(sizes.width, sizes.heads) for _ in range(sizes.depth)
        )
        self.after = nn.LayerNorm(sizes.width)
        self.out = nn.Linear(sizes.width, vocabulary)

    def forward(self, input_ids: Tensor, positions: Tensor | None = None) -> Tensor:
        """Logits of the next characters; ``positions`` are 0 to T - 1 when left out."""
        indices = torch.arange(input_ids.shape[1]) if positions is None else positions
        x = self.tokens(input_ids) + self.positions(indices)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.out(self.after(x))
        return logits


def characters(text: str) -> tuple[Tensor, Tensor, int]:
    """Training and held-out characters of a text as numbers, and the size of its alphabet.

    ``tinyshakespeare`` is read from the folder ``ATTSVM_DATA``; ``made`` is made.

    Raises:
        UnavailableError: it is not there.
    """
    content = (
        _repeating_sentences() if text == MADE else _text_path(text).read_text(encoding="utf-8")
    )
    numbers = {letter: i for i, letter in enumerate(sorted(set(content)))}
    ids = torch.tensor([numbers[letter] for letter in content])
    cut = round(len(ids) * (1 - HELD))
    return ids[:cut], ids[cut:], len(numbers)


def text_digest(text: str) -> str:
    """The digest of a text's file; empty for the text that is made.

    Raises:
        UnavailableError: it is not there.
    """
    return "" if text == MADE else digest(_text_path(text))


def _text_path(text: str) -> Path:
    folder = os.environ.get("ATTSVM_DATA")
    path = Path(folder or ".") / text / "input.txt"
    if not folder or not path.is_file():
        reason = f"{folder} has no {text}/input.txt" if folder else "ATTSVM_DATA is not set"
        raise UnavailableError(
            f"{reason}; set ATTSVM_DATA to a folder with {text}/input.txt (scale smoke needs none)"
        )
    return path


def _repeating_sentences() -> str:
    """Sentences whose last word repeats their first: something that attention has to look up."""
    rng = np.random.default_rng(0)
    names = ("anna", "bert", "cleo", "dora", "emil", "fritz")
    things = ("met", "saw", "asked")
    lines = []
    for _ in range(400):
        first, second = rng.choice(names, 2, replace=False)
        lines.append(f"{first} {rng.choice(things)} {second}, said {first}.")
    return "\n".join(lines)


def attention_optimiser(model: Any, name: str, rate: float) -> torch.optim.Optimizer:
    """The optimiser of this name, one of :data:`OPTIMISERS`, on queries and keys, without weight
    decay, and AdamW on the other weights.
    """
    attention_weights = [
        projection.weight for block in model.blocks for projection in (block.queries, block.keys)
    ]
    attention_ids = {id(weight) for weight in attention_weights}
    others = [weight for weight in model.parameters() if id(weight) not in attention_ids]
    optimizer_of_attention: torch.optim.Optimizer
    if name == "adamw":
        optimizer_of_attention = torch.optim.AdamW(attention_weights, lr=rate, weight_decay=0.0)
    elif name == "sgd":
        optimizer_of_attention = torch.optim.SGD(attention_weights, lr=rate, momentum=MOMENTUM)
    elif name == "muon":
        optimizer_of_attention = torch.optim.Muon(attention_weights, lr=rate, weight_decay=0.0)
    elif name == "signum":
        optimizer_of_attention = SteepestDescent(
            attention_weights, lr=rate, norm="linf", momentum=MOMENTUM
        )
    else:
        optimizer_of_attention = MirrorDescent(attention_weights, lr=rate, p=1.1, momentum=MOMENTUM)
    return CombinedOptimizer([optimizer_of_attention, torch.optim.AdamW(others, lr=REST)])


def train_steps(
    train: Tensor,
    vocabulary: int,
    sizes: DecoderSizes,
    make: Callable[[Decoder], torch.optim.Optimizer],
    seed: int,
    factor: Callable[[int], float] = lambda step: 1.0,
) -> Iterator[tuple[int, Decoder]]:
    """The network after 0, 1, 2, ... steps of the optimiser that ``make`` makes, whose rates are
    multiplied by ``factor`` of the steps done; the seed draws first weights and batches.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Decoder(vocabulary, sizes)
    optimizer = make(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    draw = torch.Generator().manual_seed(seed)
    yield 0, model
    for step in range(1, sizes.steps + 1):
        starts = torch.randint(len(train) - sizes.context, (sizes.batch, 1), generator=draw)
        texts = train[starts + torch.arange(sizes.context + 1)]
        logits = model(texts[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), texts[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        yield step, model


@torch.no_grad()
def held_out_loss(model: Decoder, texts: Tensor) -> float:
    """Nats per character of texts ``(n, context + 1)``."""
    logits = model(texts[:, :-1])
    return float(nn.functional.cross_entropy(logits.flatten(0, 1), texts[:, 1:].flatten()))


def disjoint_texts(ids: Tensor, count: int, length: int, seed: int) -> Tensor:
    """``(count, length)`` texts that do not overlap, drawn from all there are."""
    order = np.random.default_rng(seed).permutation(len(ids) // length)[:count]
    return torch.stack([ids[i * length : (i + 1) * length] for i in order.tolist()])
