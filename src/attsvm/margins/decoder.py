"""The linear decoder behind attention that has selected its tokens."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from attsvm.data import AttentionData
from attsvm.margins.checks import selected_tokens
from attsvm.margins.operator import Margins


def decoder_margins(data: AttentionData, tokens: ArrayLike) -> Margins:
    r"""The label margins of selected tokens: :math:`Y_i\, v^\top x_{i\alpha_i} \ge 1` for every
    sequence.

    A support vector machine without intercept whose inputs are the selected tokens. One constraint
    per sequence, so constraint ``c`` belongs to sequence ``c``; it has no rival token, and
    :attr:`Margins.token` repeats the selected one. The weights are ``(d_x, 1)``: the vector is
    ``solution.W[:, 0]``. Programme v-SVM of Tarzanagh et al., *Max-Margin Token Selection in
    Attention Mechanism* (2023).

    Args:
        data: one instance (no leading axes); its labels are used, its queries are not.
        tokens: ``(n,)`` integers, the selected token :math:`\alpha_i` of each sequence.

    Raises:
        InputError: leading axes, wrong shape, a position that is out of range or masked.
    """
    selected = selected_tokens(data, tokens)
    signed = data.labels[:, None] * data.tokens[np.arange(data.n), selected]
    return Margins(
        signed,
        np.ones((data.n, 1)),
        np.arange(data.n + 1),
        np.ones(data.n),
        selected.copy(),
        selected,
        kind="label",
    )
