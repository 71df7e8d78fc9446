r"""An embedding of instances that is trained together with attention over them."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from attsvm.data import FloatArray
from attsvm.errors import InputError


class BagClassifier(nn.Module):
    r"""Bags through a user's embedding, then attention and one logit.

    With scores :math:`g_t=w^\top\phi(x_t)+b` of the embedded instances,

    * ``standard``: attention over the instances and a null token, so the logit of a positive bag is
      :math:`\log\sum_te^{g_t}`;
    * ``collective``: attention pooling, :math:`\sum_t\mathrm{softmax}_t(u^\top\phi(x_t))\,g_t`.

    :func:`attsvm.training.train_classifier` trains it on ``Examples(tokens, labels, mask)``; the
    embedding is then a transformer of instances for :class:`attsvm.sklearn.BagFeatures`, see
    :meth:`embed`.

    Args:
        embedding: maps ``(..., d)`` to ``(..., width)``, instance by instance.
        width: features that the embedding makes.
        assumption: see above.

    Raises:
        InputError: another assumption.
    """

    def __init__(
        self,
        embedding: nn.Module,
        width: int,
        assumption: Literal["standard", "collective"] = "standard",
    ) -> None:
        super().__init__()
        if assumption not in ("standard", "collective"):
            raise InputError(f"assumption is {assumption!r}; choose 'standard' or 'collective'")
        self.embedding = embedding
        self.score = nn.Linear(width, 1)
        self.attention = None if assumption == "standard" else nn.Linear(width, 1, bias=False)

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        """``(n,)`` logits of bags ``(n, T, d)`` with their ``(n, T)`` mask."""
        embedded = self.embedding(inputs)
        scores = self.score(embedded)[..., 0]
        over = scores if self.attention is None else self.attention(embedded)[..., 0]
        if mask is not None:
            over = over.masked_fill(~mask, -torch.inf)
        if self.attention is None:
            return torch.logsumexp(over, dim=-1)
        return (torch.softmax(over, dim=-1) * scores).sum(dim=-1)

    def embed(self, rows: ArrayLike) -> FloatArray:
        """``(N, width)`` features of ``(N, d)`` rows as an array: the function of
        ``FunctionTransformer(model.embed)``.
        """
        like = next(self.parameters())
        given = torch.tensor(np.asarray(rows), dtype=like.dtype, device=like.device)
        with torch.no_grad():
            found: FloatArray = self.embedding(given).double().cpu().numpy()
        return found
