"""How sharply the attention layers of a model select, from their probabilities."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from attsvm.errors import InputError


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients while the block lasts; every module's mode is left as
    found.
    """
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training


def selection_metrics(attentions: Iterable[Tensor], mask: Tensor | None = None) -> dict[str, float]:
    r"""How sharply attention selects one token, over layers, heads and queries.

    Args:
        attentions: probabilities per layer, ``(batch, heads, queries, keys)``.
        mask: ``(batch, queries)``, nonzero at queries that count.

    Returns:
        ``top_share``: mean of :math:`\max_t s_t`, the share of the selected token, 1 when selection
        is hard. ``entropy``: mean of :math:`-\sum_t s_t\log s_t`, in nats.
        ``margin``: median of :math:`\log s_{(1)}-\log s_{(2)}`, which is the logit of the selected
        token minus that of the runner-up. A probability that has underflowed counts as the smallest
        number of its type (a margin of 87 in float32), so values near there say saturated, and
        queries that see one token only, saturated too.

    Raises:
        InputError: no attentions, or not four axes.

    Example:
        >>> import torch
        >>> from attsvm.probe import selection_metrics
        >>> even = torch.full((1, 2, 4, 4), 0.25)  # one text, two heads
        >>> selection_metrics([even])["top_share"]
        0.25
    """
    tops, entropies, margins = [], [], []
    for attention in attentions:
        if attention is None or attention.ndim != 4 or attention.shape[-1] < 2:
            shape = None if attention is None else tuple(attention.shape)
            raise InputError(
                f"a layer's attention is {shape}; give probabilities (batch, heads, queries, keys)"
                " with at least two keys"
            )
        rows = attention.transpose(1, 2)  # (batch, queries, heads, keys)
        kept = (
            rows.flatten(0, 1)
            if mask is None or mask.ndim != 2 or mask.shape[1] != rows.shape[1]
            else rows[mask.to(rows.device) != 0]
        )
        values = kept.float()
        best = values.topk(2, dim=-1).values.clamp(min=torch.finfo(values.dtype).tiny)
        tops.append(best[..., 0].flatten())
        margins.append((best[..., 0].log() - best[..., 1].log()).flatten())
        entropies.append(torch.special.entr(values).sum(dim=-1).flatten())
    if not tops:
        raise InputError(
            "the model returned no attention probabilities; for Hugging Face models load it with"
            " attn_implementation='eager'"
        )
    return {
        "top_share": float(torch.cat(tops).mean()),
        "entropy": float(torch.cat(entropies).mean()),
        "margin": float(torch.cat(margins).median()),
    }
