"""Finds the linear maps that made keys and queries, among the maps that ran before."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from attsvm.transformers.attention_calls import LinearMap
from attsvm.transformers.recording import Projection

LinearCall = tuple[nn.Module, Tensor, Tensor]
"""A linear module, its input and its output."""


def is_linear_map(module: nn.Module) -> bool:
    """True of ``nn.Linear``, and of GPT-2's ``Conv1D``, which keeps the transpose."""
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def find_linear_map(heads: Tensor, calls: list[LinearCall]) -> LinearMap | None:
    """Weight, bias and input of the linear map whose output these heads are, up to a factor.

    One map may make queries, keys and values, in any order of their heads, and models multiply
    queries by their scale. So each head is looked for among the blocks of ``d`` features of an
    output: first at one token, then everywhere.

    Args:
        heads: ``(B, H, T, d)``, queries or keys.
        calls: the latest last.
    """
    B, _, T, d = heads.shape

    def by_text(x: Tensor) -> Tensor:
        return x.transpose(0, 1) if x.shape[:2] == (T, B) != (B, T) else x.reshape(B, T, -1)

    for module, inputs, output in reversed(calls):
        if output.shape[:-1] not in ((B, T), (T, B), (B * T,)) or output.shape[-1] % d:
            continue
        blocks = by_text(output).reshape(B, T, -1, d)
        match = _match_heads(heads, blocks)
        if match is None:
            continue
        block_of_head, factor = match
        # the factor moves into the map, so that it gives the heads as they are
        weight, bias = _weight_and_bias(module)
        rows: Tensor | slice
        if isinstance(block_of_head, slice):
            rows = slice(block_of_head.start * d, block_of_head.stop * d)
        else:
            rows = (block_of_head[:, None] * d + torch.arange(d, device=heads.device)).flatten()
        weight, bias = weight[rows], None if bias is None else bias[rows]
        if factor != 1.0:
            weight, bias = factor * weight, None if bias is None else factor * bias
        return weight, bias, by_text(inputs)
    return None


def _match_heads(heads: Tensor, blocks: Tensor) -> tuple[Tensor | slice, float] | None:
    """The block that each head is, ``(H,)`` or a slice of them, and the factor of all heads;
    ``None`` where they are no blocks.

    Args:
        heads: ``(B, H, T, d)``.
        blocks: ``(B, T, blocks, d)``.
    """
    wide = torch.promote_types(heads.dtype, torch.float32)
    precision = 64 * torch.finfo(heads.dtype).eps
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
    outputs = blocks[:, :, chosen].transpose(1, 2)
    if factor == 1.0 and torch.equal(outputs, heads):
        return chosen, factor
    outputs = factor * outputs.to(wide)
    size = outputs.abs().amax()
    equal = bool(((outputs - heads.to(wide)).abs() <= precision * size).all())
    return (chosen, factor) if equal else None


def _weight_and_bias(module: nn.Module) -> tuple[Tensor, Tensor | None]:
    weight = getattr(module, "weight").detach()  # noqa: B009 - typed as Module or Tensor
    bias = getattr(module, "bias", None)
    weight = weight if isinstance(module, nn.Linear) else weight.T
    return weight, None if bias is None else bias.detach()


def projection_of_heads(
    queries: LinearMap, keys: LinearMap, heads: list[int], H: int, groups: int, d: int
) -> Projection:
    """The maps of these heads, of ``H`` that share keys in groups, without inputs."""
    W_Q = queries[0].double().cpu().numpy().reshape(H, d, -1)[heads]
    b_Q = np.zeros((H, d)) if queries[1] is None else queries[1].double().cpu().numpy()
    W_K = keys[0].double().cpu().numpy().reshape(groups, d, -1)
    # a head has the keys of its group
    W_K = W_K[[h * groups // H for h in heads]]
    rows = len(heads) * d
    b_Q = b_Q.reshape(H, d)[heads].ravel()
    return Projection(W_K.reshape(rows, -1), W_Q.reshape(rows, -1), b_Q, [], [])
