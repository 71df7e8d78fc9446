r"""The one-layer transformer of next-token prediction in plain torch: what the compiled loops are
compared with where nothing saturates.

.. math::
    \varphi_v\propto m_ve^{e_v^\top W_{kq}e_q},\qquad o=\sum_v\varphi_vW_{ov}e_v,\qquad
    p=\mathrm{softmax}(o)

over the distinct tokens of a sentence with multiplicities :math:`m_v` and its last token q as the
query (Huang, Liang and Yang 2024; with ``log_mass`` the model of Li et al. 2024).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from attsvm.datasets.attention_data import broadcast
from attsvm.theory.sentences import NextTokenBatch


class NextTokenTransformer(nn.Module):
    """One attention layer ``W_kq (R, d, d)`` and one output matrix ``W_ov (R, K, d)`` per run, zero
    unless given.
    """

    def __init__(self, batch: NextTokenBatch, W_kq=None, W_ov=None) -> None:
        super().__init__()
        runs, K, d = batch.embeddings.shape
        self.batch = batch
        for name, value, shape in (("W_kq", W_kq, (runs, d, d)), ("W_ov", W_ov, (runs, K, d))):
            start = np.zeros(shape) if value is None else broadcast(name, value, shape, 2)
            setattr(self, name, nn.Parameter(torch.tensor(start)))

    def loss(self, kind: str = "cross_entropy") -> Tensor:
        """``(R,)``, weighted over the sentences; the losses of
        :class:`attsvm.theory.next_token.Problem`.
        """
        batch, E = self.batch, torch.tensor(self.batch.embeddings)
        tokens = torch.tensor(batch.tokens)
        labels, star = (torch.tensor(each)[..., None] for each in (batch.labels, batch.star))
        run = torch.arange(len(E))[:, None, None]
        scores = (E @ self.W_kq.mT @ E.mT)[run, torch.tensor(batch.queries)[..., None], tokens]
        count = torch.tensor(batch.multiplicities, dtype=torch.float64)
        phi = torch.log_softmax(scores + torch.log(count), dim=-1)
        o = (torch.exp(phi)[..., None] * (E @ self.W_ov.mT)[run, tokens]).sum(dim=-2)
        right = torch.log_softmax(o, dim=-1).take_along_dim(labels, -1)[..., 0]
        each = {
            "cross_entropy": lambda: -right,
            "squared": lambda: (1 - o.take_along_dim(labels, -1)[..., 0]) ** 2,
            "squared_softmax": lambda: (1 - torch.exp(right)) ** 2,
            "log_mass": lambda: -phi.take_along_dim(star, -1)[..., 0],
        }[kind]()
        return (each * torch.tensor(batch.weights)).sum(dim=-1)
