r"""The one-layer transformer of next-token prediction as a torch module, with gradients that stay
exact at any saturation.

.. math::
    \varphi_v\propto m_ve^{e_v^\top W_{kq}e_q},\qquad o=\sum_v\varphi_vW_{ov}e_v,\qquad
    p=\mathrm{softmax}(o)

over the distinct tokens of a sentence with multiplicities :math:`m_v` and its last token q as the
query (Huang, Liang and Yang 2024; with ``log_mass`` the model of Li et al. 2024). For any optimiser
of torch, trained copies in larger models, and as the reference of the compiled loops of
:mod:`attsvm.dynamics.next_token`, which are for long runs.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from attsvm.data import spread
from attsvm.datasets.next_token import NextTokenBatch
from attsvm.errors import InputError

Loss = Literal["cross_entropy", "squared", "squared_softmax", "log_mass"]


class NextTokenTransformer(nn.Module):
    r"""One attention layer and one output matrix per run, float64.

    Parameters: ``W_kq`` ``(R, d, d)`` and ``W_ov`` ``(R, K, d)``, zero unless given.

    Args:
        batch: sentences of R data sets, see :func:`attsvm.datasets.next_token.stack`; kept as
            buffers.
        W_kq: start of the query-key matrix, ``(d, d)`` or ``(R, d, d)``.
        W_ov: start of the output matrix, ``(K, d)`` or ``(R, K, d)``.
        identity: predict the attention mass per token instead of :math:`W_{ov}e_v` (Li et al.'s
            head); there is no ``W_ov`` then.

    Raises:
        InputError: a start of another shape, or ``W_ov`` with ``identity``.
    """

    embeddings: Tensor
    tokens: Tensor
    log_count: Tensor
    queries: Tensor
    labels: Tensor
    star: Tensor
    weights: Tensor

    def __init__(
        self,
        batch: NextTokenBatch,
        W_kq: ArrayLike | None = None,
        W_ov: ArrayLike | None = None,
        *,
        identity: bool = False,
    ) -> None:
        super().__init__()
        runs, K, d = batch.embeddings.shape
        with np.errstate(divide="ignore"):
            log_count = np.log(batch.multiplicities)
        arrays = {
            "embeddings": batch.embeddings,
            "tokens": batch.tokens,
            "log_count": log_count,
            "queries": batch.queries,
            "labels": batch.labels,
            "star": batch.star,
            "weights": batch.weights,
        }
        for name, array in arrays.items():
            self.register_buffer(name, torch.tensor(array))
        if identity and W_ov is not None:
            raise InputError("identity predicts the attention itself; leave W_ov out, or identity")
        self.W_kq = nn.Parameter(_start("W_kq", W_kq, (runs, d, d)))
        self.W_ov = None if identity else nn.Parameter(_start("W_ov", W_ov, (runs, K, d)))

    def values(self) -> Tensor:
        """``(R, K, classes)``, the row that every token adds to the output."""
        if self.W_ov is None:
            return torch.eye(self.embeddings.shape[1], dtype=torch.float64).expand(
                len(self.embeddings), -1, -1
            )
        return self.embeddings @ self.W_ov.mT

    def scores(self) -> Tensor:
        """``(R, K, K)``, the score of token v under query q at ``[r, q, v]``."""
        return self.embeddings @ self.W_kq.mT @ self.embeddings.mT

    def logits(self) -> Tensor:
        """``(R, N, J)``, scores of the tokens of every sentence plus the logarithm of their
        multiplicities; -inf on padding.
        """
        run = torch.arange(len(self.embeddings))[:, None, None]
        return self.scores()[run, self.queries[..., None], self.tokens] + self.log_count

    def forward(self) -> Tensor:
        """``(R, N, classes)``, the outputs of all sentences."""
        run = torch.arange(len(self.embeddings))[:, None, None]
        return _Attend.apply(  # type: ignore[no-untyped-call]
            self.logits(), self.values()[run, self.tokens]
        )

    def loss(self, kind: Loss = "cross_entropy") -> Tensor:
        """``(R,)``, weighted over the sentences; the losses of
        :class:`attsvm.dynamics.next_token.Problem`.

        Raises:
            InputError: an unknown loss.
        """
        if kind == "log_mass":
            each = _surprise(self.logits(), self.star)
        elif kind == "squared":
            run = torch.arange(len(self.embeddings))[:, None, None]
            missing = 1.0 - self.values()[run, self.tokens, self.labels[..., None]]
            left = _Attend.apply(self.logits(), missing[..., None])  # type: ignore[no-untyped-call]
            each = left[..., 0] ** 2
        elif kind in ("cross_entropy", "squared_softmax"):
            each = _surprise(self(), self.labels)
            if kind == "squared_softmax":
                each = torch.expm1(-each) ** 2
        else:
            raise InputError(
                f"loss is {kind!r}; choose from: cross_entropy, squared, squared_softmax, log_mass"
            )
        return (each * self.weights).sum(dim=-1)


class _Attend(torch.autograd.Function):
    """``sum_j softmax(logits)_j values_j``, forward and backward relative to the heaviest token."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, values: Tensor) -> Tensor:
        top, leader = logits.max(dim=-1, keepdim=True)
        weight = torch.exp(logits - top)
        phi = weight / weight.sum(dim=-1, keepdim=True)
        lead = values.take_along_dim(leader[..., None], dim=-2)
        rest = values - lead
        ctx.save_for_backward(phi, rest, leader)
        return lead[..., 0, :] + (phi[..., None] * rest).sum(dim=-2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, Tensor]:
        phi, rest, leader = ctx.saved_tensors
        g = grads[0][..., None, :]
        h = (g * rest).sum(dim=-1)  # 0 at the leader
        pull = phi * (h - (phi * h).sum(dim=-1, keepdim=True))
        pull = pull.scatter(-1, leader, 0.0)
        return pull.scatter(-1, leader, -pull.sum(dim=-1, keepdim=True)), phi[..., None] * g


class _Surprise(torch.autograd.Function):
    """``-log softmax(o)_y`` as ``log1p`` of odds; the residual of ``y`` is minus the sum of the
    others.
    """

    @staticmethod
    def forward(ctx: Any, o: Tensor, y: Tensor) -> Tensor:
        index = y[..., None]
        others = (o - o.take_along_dim(index, dim=-1)).scatter(-1, index, -torch.inf)
        odds = torch.logsumexp(others, dim=-1)
        surprise = torch.where(
            odds > 0,
            odds + torch.log1p(torch.exp(-odds.abs())),
            torch.log1p(torch.exp(odds.clamp(max=0.0))),
        )
        ctx.save_for_backward(torch.exp(others - surprise[..., None]), index)
        return surprise

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:
        p, index = ctx.saved_tensors
        return grads[0][..., None] * p.scatter(-1, index, -p.sum(dim=-1, keepdim=True)), None


def _surprise(o: Tensor, y: Tensor) -> Tensor:
    return _Surprise.apply(o, y)  # type: ignore[no-untyped-call]


def _start(name: str, value: ArrayLike | None, shape: tuple[int, int, int]) -> Tensor:
    return torch.from_numpy(np.zeros(shape) if value is None else spread(name, value, shape, 2))
