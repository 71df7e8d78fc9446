"""One optimiser for a whole model, at one learning rate."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from attsvm.base.errors import InputError
from attsvm.optim.combined import CombinedOptimizer
from attsvm.optim.split import Blocks, Role, Select, split_params
from attsvm.optim.steepest import SteepestDescent


def for_model(
    model: nn.Module,
    lr: float = 1e-3,
    attention: Literal["spectral"] | Callable[[list[dict[str, Any]]], Optimizer] = "spectral",
    *,
    weight_decay: float = 0.01,
    roles: Collection[Role] = ("query", "key"),
    select: Select | None = None,
    blocks: Blocks = "roles",
) -> CombinedOptimizer:
    """Return an optimiser of all that is trained in a model: ``attention`` for the matrices of
    attention, AdamW for the rest.

    Spectral steps are those of Muon with ``momentum=0.95``, ``nesterov=True`` and
    ``adjust_lr_fn="match_rms_adamw"``, so the rate of AdamW serves both, whatever the shapes; their
    polar factor is that of ``polar-express``, which is products of matrices alone. AdamW decays
    matrices and embeddings, but no biases and no gains.

    Args:
        model: any module, before or after ``DistributedDataParallel`` or ``fully_shard``.
        lr: the rate of AdamW, and of spectral steps.
        attention: "spectral", or a function that returns another optimiser for the groups of
            :attr:`Split.attention`, at a rate of its own.
        weight_decay: decoupled, of spectral steps and of AdamW.
        roles: which matrices count as attention, as for :func:`split_params`.
        select: decides by name instead, as there.
        blocks: how matrices are cut, as there.

    Raises:
        InputError: no attention was found, an unknown ``attention``, a setting out of its range.

    Source: Liu et al., *Muon is Scalable for LLM Training*, 2025 (one rate for all).

    Example:
        >>> import torch
        >>> from attsvm.optim import for_model
        >>> optimizer = for_model(torch.nn.TransformerEncoderLayer(8, nhead=2), lr=1e-3)
        >>> [type(member).__name__ for member in optimizer.optimizers]
        ['SteepestDescent', 'AdamW']
        >>> [group["lr"] for group in optimizer.param_groups]
        [0.001, 0.001, 0.001]
    """
    if attention != "spectral" and not callable(attention):
        raise InputError(
            f"attention is {attention!r}; give 'spectral', or a function of parameter groups that"
            " returns an optimiser, such as lambda groups: MirrorDescent(groups, lr=0.03, p=1.1)"
        )
    split = split_params(model, roles, select, blocks)
    members: list[Optimizer] = []
    if callable(attention):
        members.append(attention(split.attention))
    else:
        members.append(
            SteepestDescent(
                split.attention,
                lr=lr,
                norm="spectral",
                momentum=0.95,
                nesterov=True,
                weight_decay=weight_decay,
                polar="polar-express",
                adjust_lr_fn="match_rms_adamw",
            )
        )
    matrices = [row for row in split.others if row[1].ndim > 1]
    vectors = [row for row in split.others if row[1].ndim <= 1]
    groups = [
        {"params": [p for _, p in rows], "param_names": [n for n, _ in rows], "weight_decay": decay}
        for rows, decay in ((matrices, weight_decay), (vectors, 0.0))
        if rows
    ]
    if groups:
        members.append(torch.optim.AdamW(groups, lr=lr))
    return CombinedOptimizer(members)
