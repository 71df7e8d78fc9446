"""Embeddings of words as parameters of the layer."""

from __future__ import annotations

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import floats


class WordEmbeddings(nn.Module):
    r"""Embeddings :math:`E_s` of words that are numbers, as trained keys and values of a layer:

    .. math:: f(x)=\sum_t\mathrm{softmax}(p^\top E_{x_1},\dots,p^\top E_{x_T})_t\,v^\top E_{x_t}

    for a prompt p and a head v. The tokens of the data are the numbers of their words, shape
    ``(n, T, 1)``.

    Args:
        weight: :math:`E`, ``(words, d)``, where training starts.

    Raises:
        InputError: an array of another shape, or a value that is not finite.

    Source: the model of Wu, Shevchenko, Oymak and Mondelli, *Attention with Trained Embeddings
    Provably Selects Important Tokens* (2025).

    >>> import numpy as np
    >>> from attsvm import AttentionData
    >>> from attsvm.attention import Attention, WordEmbeddings
    >>> words = np.array([[0, 2], [1, 2]])  # good film, bad film
    >>> data = AttentionData(words[..., None], [1.0, -1.0])
    >>> E = WordEmbeddings(np.zeros((3, 2)))
    >>> model = Attention.prompt(data, np.array([1.0, 0.0]), keys=E, values=E)
    >>> model.loss(data).backward()
    >>> (0.0 - 4.0 * E.weight.grad[:, 0]).tolist()  # shares in positive less in negative texts
    [0.5, -0.5, 0.0]
    """

    weight: nn.Parameter

    def __init__(self, weight: ArrayLike) -> None:
        super().__init__()
        start = floats("weight", weight)
        if start.ndim != 2 or not start.size:
            raise InputError(f"weight has shape {start.shape}; give (words, features)")
        self.weight = nn.Parameter(torch.tensor(start))

    def forward(self, tokens: Tensor) -> Tensor:
        """Embeddings ``(..., T, d)`` of numbers of words ``(..., T, 1)``.

        Raises:
            InputError: tokens that are no numbers of words.
        """
        words = tokens[..., 0].long()
        is_word = (words == tokens[..., 0]) & (words >= 0) & (words < len(self.weight))
        if tokens.shape[-1] != 1 or not is_word.all():
            raise InputError(
                f"tokens of shape {tuple(tokens.shape)} are no numbers of {len(self.weight)} words;"
                f" give whole numbers from 0 to {len(self.weight) - 1}, shape (n, T, 1)"
            )
        return self.weight[words]
