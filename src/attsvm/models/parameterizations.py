"""The other parameters that a softmax-attention layer may have: factors, a prompt, or keys under a
fixed prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attsvm.models.attention import Attention
from attsvm.models.losses import LogScale


class FactoredAttention(Attention):
    r"""Attention with factors, :math:`W=KQ^\top`.

    Attributes:
        K: ``([runs,] d_x, m)``.
        Q: ``([runs,] d_z, m)``; with ``stacked`` K and Q are views of the one parameter ``KQ``,
            ``([runs,] d_x + d_z, m)``.

    Source: Tarzanagh et al., *Transformers as Support Vector Machines* (2023): its bias is that of
    the nuclear norm.
    """

    K: Tensor
    Q: Tensor

    def __init__(self, weights: Mapping[str, Tensor], *arguments: Any, **options: Any) -> None:
        K, Q = weights["K"], weights["Q"]
        self.split: int | None = None
        if options.pop("stacked", False):
            weights = {"KQ": torch.cat([K, Q], dim=-2)}
            super().__init__(weights, *arguments, **options)
            self.split = int(K.shape[-2])
        else:
            super().__init__({"K": K, "Q": Q}, *arguments, **options)

    def factors(self, scale: LogScale | None = None) -> tuple[Tensor, Tensor]:
        """K and Q as the logits see them."""
        if self.split is None:
            return self._weight("K", scale), self._weight("Q", scale)
        both = self._weight("KQ", scale)
        return both[..., : self.split, :], both[..., self.split :, :]

    def combined(self) -> Tensor:
        r"""``([runs,] d_x, d_z)``: :math:`KQ^\top`."""
        K, Q = self.factors()
        return K @ Q.mT

    def moved(self, queries: Tensor, scale: LogScale | None = None) -> Tensor:
        r"""``(..., N, d_x)``: :math:`KQ^\top z_i` row by row."""
        K, Q = self.factors(scale)
        return (queries @ Q) @ K.mT

    def _matrix(self, scale: LogScale | None) -> None:
        """None: the queries pass through both factors."""


class PromptAttention(Attention):
    r"""Attention that one trained prompt asks: logits :math:`X_iK^\top p` with a fixed key map K.

    Attributes:
        p: ``([runs,] d_k, 1)``, one column, so that a normalised optimiser measures it with one
            norm.

    Source: Tarzanagh et al., *Max-Margin Token Selection in Attention Mechanism* (2023).
    """

    p: nn.Parameter

    def combined(self) -> Tensor:
        """``([runs,] d_k, 1)``: the prompt."""
        return self.p

    def _matrix(self, scale: LogScale | None) -> Tensor:
        """The prompt, as the one column that moves queries of one entry."""
        return self._weight("p", scale)


class FixedPromptAttention(Attention):
    r"""Attention with trained keys :math:`Wx_{it}` and a fixed prompt u: logits
    :math:`X_iW^\top u`.

    Attributes:
        W: ``([runs,] d_u, d_x)``.
        u: buffer ``(d_u, 1)``, the fixed prompt.

    Source: Tarzanagh et al., *Max-Margin Token Selection in Attention Mechanism* (2023), Lemma 1:
    descent on W is descent on
    :math:`p=W^\top u` with a step :math:`\|u\|^2` times as long.
    """

    u: Tensor

    def __init__(
        self, weights: Mapping[str, Tensor], *arguments: Any, u: Tensor, **options: Any
    ) -> None:
        super().__init__(weights, *arguments, **options)
        self.register_buffer("u", u)

    def combined(self) -> Tensor:
        r"""``([runs,] d_x, 1)``: :math:`p=W^\top u`."""
        return self.W.mT @ self.u

    def _matrix(self, scale: LogScale | None) -> Tensor:
        r""":math:`W^\top u`, as the one column that moves queries of one entry."""
        return self._weight("W", scale).mT @ self.u
