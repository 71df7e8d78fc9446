"""Sizes of a trained network's attention weights, and the tokens that [CLS] attends to."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attsvm.datasets.attention_data import FloatArray

PARTS = ("Q", "K", "V")
BIN, LARGE, NEAR_ZERO = 0.005 * 384**0.5, 0.06 * 384**0.5, 0.005 * 512**0.5
"""In units of the bound of initial weights: the width of a bin, what counts as large, and what as
near zero. They are 0.005 and 0.06 at the width 384 of the published text model, and 0.005 at the
width 512 of the published vision model.
"""
BINS = 400


def attention_weights(model: nn.Module) -> tuple[Tensor, Tensor, Tensor]:
    """The query, key and value weights of all blocks, each as one vector, of either kind of network
    here.
    """
    layers = [block.attention for block in model.blocks]  # type: ignore[union-attr]
    if hasattr(layers[0], "qkv"):
        thirds = [layer.qkv.weight.detach().chunk(3) for layer in layers]
    else:
        thirds = [
            [projection.weight.detach() for projection in (layer.query, layer.key, layer.value)]
            for layer in layers
        ]
    query, key, value = (
        torch.cat([layer[matrix].flatten() for layer in thirds]).cpu() for matrix in range(3)
    )
    return query, key, value


def weight_sizes(weights: Sequence[FloatArray | Tensor], width: int) -> dict[str, FloatArray]:
    r"""Sizes of the entries of Q, K and V, in units of :math:`1/\sqrt{\mathrm{width}}`, the bound
    of their initial values.

    Of weights that are not all finite, as a diverged training leaves them, every number is NaN.

    Returns:
        ``histogram`` ``(3, BINS + 1)``, counts per bin of :data:`BIN`, the last one for everything
        beyond; ``large`` ``(3,)``, the share above :data:`LARGE`; ``near_zero`` ``(3,)``, the share
        below :data:`NEAR_ZERO`; ``largest`` ``(3,)``.
    """
    sizes = [
        np.abs(np.asarray(matrix, dtype=np.float64)).ravel() * width**0.5 for matrix in weights
    ]
    if not all(np.isfinite(moduli).all() for moduli in sizes):
        missing = np.full(len(sizes), np.nan)
        histogram = np.full((len(sizes), BINS + 1), np.nan)
        return {"histogram": histogram, **dict.fromkeys(("large", "near_zero", "largest"), missing)}
    return {
        "histogram": np.array(
            [
                np.bincount(np.minimum(moduli / BIN, BINS).astype(int), minlength=BINS + 1)
                for moduli in sizes
            ],
            dtype=float,
        ),
        "large": np.array([np.mean(moduli > LARGE) for moduli in sizes]),
        "near_zero": np.array([np.mean(moduli < NEAR_ZERO) for moduli in sizes]),
        "largest": np.array([moduli.max() for moduli in sizes]),
    }


def scaled_attention(row: FloatArray, position: int) -> float:
    """The attention at ``position`` after an attention row has been scaled to run from 0 to 1; NaN
    for a uniform row.
    """
    low, high = float(row.min()), float(row.max())
    return (float(row[position]) - low) / (high - low) if high > low else float("nan")


def opinion_scores(rows: Sequence[FloatArray], positions: Sequence[int | None]) -> dict[str, Any]:
    """The last block's [CLS] attention on the designated words.

    Args:
        rows: one per sentence, the mean over heads of the attention of [CLS] on the tokens of the
            sentence, [CLS] and [SEP] included.
        positions: of the designated word in each; None where it is not a single token.

    Returns:
        Vectors with an entry per sentence, NaN where the word is not a single token: ``score``, the
        scaled attention at the word, and ``mean_score``, its mean over all tokens of the sentence,
        which is what a word taken at random gets.
    """
    score, mean = (np.full(len(rows), np.nan) for _ in range(2))
    for k, (row, position) in enumerate(zip(rows, positions, strict=True)):
        if position is not None:
            score[k] = scaled_attention(row, position)
            mean[k] = np.mean([scaled_attention(row, token) for token in range(len(row))])
    return {"score": score, "mean_score": mean}
