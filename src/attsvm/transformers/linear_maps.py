"""Finds the linear maps that made keys and queries, among the maps that ran before."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from attsvm.transformers.attention_calls import LinearMap
from attsvm.transformers.recording import Projection

LinearCall = tuple[nn.Module, Tensor, Tensor]
"""A linear module, its input and its output."""


@dataclass(frozen=True, eq=False)
class LinearMatch:
    """The linear module whose output heads are, up to a factor.

    Attributes:
        module: the module.
        blocks: of ``d`` features of its output, one for each head: their numbers ``(heads,)``, or a
            slice of them.
        factor: of all heads.
        inputs: ``(B, T, width)``, of the module.
    """

    module: nn.Module
    blocks: Tensor | slice
    factor: float
    inputs: Tensor

    def linear_map(self, d: int) -> LinearMap:
        """Weight, bias and input of the map that gives the heads as they are."""
        weight, bias = _weight_and_bias(self.module)
        if isinstance(self.blocks, slice):
            rows: Tensor | slice = slice(self.blocks.start * d, self.blocks.stop * d)
        else:
            features = torch.arange(d, device=self.blocks.device)
            rows = (self.blocks[:, None] * d + features).flatten().to(weight.device)
        weight, bias = weight[rows], None if bias is None else bias[rows]
        if self.factor != 1.0:  # the factor moves into the map
            weight, bias = self.factor * weight, None if bias is None else self.factor * bias
        return weight, bias, self.inputs


def is_linear_map(module: nn.Module) -> bool:
    """True of ``nn.Linear``, and of GPT-2's ``Conv1D``, which keeps the transpose."""
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def find_linear_map(
    heads: Tensor, calls: list[LinearCall], previous: LinearMatch | None = None
) -> LinearMatch | None:
    """The linear map whose output these heads are, up to a factor; ``None`` where there is none.

    One map may make queries, keys and values, in any order of their heads, and models multiply
    queries by their scale. So each head is looked for among the blocks of ``d`` features of an
    output: first at one token, then everywhere.

    Args:
        heads: ``(B, H, T, d)``, queries or keys.
        calls: the latest last.
        previous: what it was in the pass before, which is tried first.
    """
    B, _, T, d = heads.shape

    def by_text(x: Tensor) -> Tensor:
        return x.transpose(0, 1) if x.shape[:2] == (T, B) != (B, T) else x.reshape(B, T, -1)

    candidates = [
        (module, inputs, by_text(output).reshape(B, T, -1, d))
        for module, inputs, output in reversed(calls)
        if output.shape[:-1] in ((B, T), (T, B), (B * T,))
        and output.shape[-1] % d == 0
        and output.device == heads.device
    ]
    if previous is not None:
        for module, inputs, blocks in candidates:
            if module is previous.module and _are_blocks(
                heads, blocks, previous.blocks, previous.factor
            ):
                return LinearMatch(module, previous.blocks, previous.factor, by_text(inputs))
    for module, inputs, blocks in candidates:
        match = _match_heads(heads, blocks)
        if match is not None:
            return LinearMatch(module, *match, by_text(inputs))
    return None


def _match_heads(heads: Tensor, blocks: Tensor) -> tuple[Tensor | slice, float] | None:
    """The block that each head is, ``(H,)`` or a slice of them, and the factor of all heads;
    ``None`` where they are no blocks.

    Args:
        heads: ``(B, H, T, d)``.
        blocks: ``(B, T, blocks, d)``.
    """
    wide = torch.promote_types(heads.dtype, torch.float32)
    precision = _precision(heads)
    # one token: the block with the same direction; the first head alone rejects most maps
    head, candidates = heads[0, :, -1].to(wide), blocks[0, -1].to(wide)
    candidates_unit = nn.functional.normalize(candidates, dim=-1)
    first = candidates_unit @ nn.functional.normalize(head[0], dim=0)
    if float(first.amax()) < 1 - precision:
        return None
    cosines = nn.functional.normalize(head, dim=-1) @ candidates_unit.T
    block_of_head = cosines.argmax(dim=1)
    if not bool((cosines.amax(dim=1) >= 1 - precision).all()):
        return None
    # the factor is that of the whole layer: the largest entry has the smallest rounding
    matched = candidates[block_of_head]
    largest = matched.abs().flatten().argmax()
    factor = float(head.flatten()[largest] / matched.flatten()[largest])
    if abs(factor - 1) < precision:
        factor = 1.0
    # all tokens
    first_block = int(block_of_head[0])
    in_order = torch.arange(len(head), device=heads.device) + first_block
    chosen: Tensor | slice = block_of_head
    if torch.equal(block_of_head, in_order):  # a slice copies nothing
        chosen = slice(first_block, first_block + len(head))
    return (chosen, factor) if _are_blocks(heads, blocks, chosen, factor) else None


def _are_blocks(heads: Tensor, blocks: Tensor, chosen: Tensor | slice, factor: float) -> bool:
    """Whether heads are these blocks times a factor, to the precision of their type."""
    outputs = blocks[:, :, chosen].transpose(1, 2)
    if outputs.shape != heads.shape:
        return False
    if factor == 1.0 and torch.equal(outputs, heads):
        return True
    wide = torch.promote_types(heads.dtype, torch.float32)
    outputs = factor * outputs.to(wide)
    size = outputs.abs().amax()
    error = (outputs - heads.to(wide)).abs().amax()
    return bool(error <= _precision(heads) * size)


def _precision(heads: Tensor) -> float:
    """Relative error of a product of a factor and an output, after rounding; with room."""
    return float(64 * torch.finfo(heads.dtype).eps)


def _weight_and_bias(module: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Weight ``(out, width)`` and bias of a linear module."""
    with _loaded(module):
        weight = cast("Tensor", module.weight).detach()
        bias = getattr(module, "bias", None)
        bias = None if bias is None else bias.detach()
    return weight if isinstance(module, nn.Linear) else weight.T, bias


def _loaded(module: nn.Module) -> contextlib.AbstractContextManager[Any]:
    """A block in which the module has its weights, also where accelerate keeps them elsewhere."""
    if not any(parameter.is_meta for parameter in module.parameters(recurse=False)):
        return contextlib.nullcontext()
    from accelerate.utils import align_module_device

    return align_module_device(module)


def projection_of_heads(
    queries: LinearMap, keys: LinearMap, heads: list[int], H: int, groups: int, d: int
) -> Projection:
    """The maps of these heads, of ``H`` that share keys in groups, without inputs."""
    W_Q, W_K = queries[0].cpu().reshape(H, d, -1), keys[0].cpu().reshape(groups, d, -1)
    b_Q = torch.zeros(H * d, dtype=W_Q.dtype) if queries[1] is None else queries[1].cpu()
    b_Q = b_Q.reshape(H, d)
    if len(heads) < H or groups < H:  # a head has the keys of its group
        W_Q, b_Q, W_K = W_Q[heads], b_Q[heads], W_K[[h * groups // H for h in heads]]
    return Projection(W_K.flatten(0, 1), W_Q.flatten(0, 1), b_Q.flatten(), [], [])
