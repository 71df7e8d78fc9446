"""What optimisers leave in a trained network: sizes of its attention weights, and where [CLS]
looks.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attsvm.data import FloatArray

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
            [part.weight.detach() for part in (layer.query, layer.key, layer.value)]
            for layer in layers
        ]
    query, key, value = (
        torch.cat([each[part].flatten() for each in thirds]).cpu() for part in range(3)
    )
    return query, key, value


def weight_sizes(weights: Sequence[FloatArray | Tensor], width: int) -> dict[str, FloatArray]:
    r"""How large the entries of Q, K and V are, in units of :math:`1/\sqrt{\mathrm{width}}`, the
    bound of their initial values.

    Of weights that are not all finite, as a diverged training leaves them, every number is NaN.

    Returns:
        ``histogram`` ``(3, BINS + 1)``, counts per bin of :data:`BIN`, the last one for everything
        beyond; ``large`` ``(3,)``, the share above :data:`LARGE`; ``near_zero`` ``(3,)``, the share
        below :data:`NEAR_ZERO`; ``largest`` ``(3,)``.
    """
    sizes = [np.abs(np.asarray(each, dtype=np.float64)).ravel() * width**0.5 for each in weights]
    if not all(np.isfinite(each).all() for each in sizes):
        nothing = np.full(len(sizes), np.nan)
        histogram = np.full((len(sizes), BINS + 1), np.nan)
        return {"histogram": histogram, **dict.fromkeys(("large", "near_zero", "largest"), nothing)}
    return {
        "histogram": np.array(
            [
                np.bincount(np.minimum(each / BIN, BINS).astype(int), minlength=BINS + 1)
                for each in sizes
            ],
            dtype=float,
        ),
        "large": np.array([np.mean(each > LARGE) for each in sizes]),
        "near_zero": np.array([np.mean(each < NEAR_ZERO) for each in sizes]),
        "largest": np.array([each.max() for each in sizes]),
    }


def scaled_attention(row: FloatArray, place: int) -> float:
    """The attention at ``place`` after an attention row has been scaled to run from 0 to 1; NaN for
    a uniform row.
    """
    low, high = float(row.min()), float(row.max())
    return (float(row[place]) - low) / (high - low) if high > low else float("nan")


def opinion_scores(rows: Sequence[FloatArray], places: Sequence[int | None]) -> dict[str, Any]:
    """How much of the last block's [CLS] attention the designated words get.

    Args:
        rows: one per sentence, the mean over heads of the attention of [CLS] on the tokens of the
            sentence, [CLS] and [SEP] included.
        places: of the designated word in each; None where it is not a single token.

    Returns:
        Vectors with an entry per sentence, NaN where the word is not a single token: ``score``, the
        scaled attention at the word, and ``mean_score``, its mean over all tokens of the sentence,
        which is what a word taken at random gets.
    """
    score, mean = (np.full(len(rows), np.nan) for _ in range(2))
    for k, (row, place) in enumerate(zip(rows, places, strict=True)):
        if place is not None:
            score[k] = scaled_attention(row, place)
            mean[k] = np.mean([scaled_attention(row, other) for other in range(len(row))])
    return {"score": score, "mean_score": mean}
