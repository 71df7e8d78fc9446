r"""Several heads :math:`f_i=\sum_hv_h^\top X_i^\top\mathrm{softmax}(X_iW_hz_i)` whose decoders are
trained beside them, and the programmes of both.

Where decoders have grown to :math:`\|v\|=\kappa\|W\|`, token t of head h pulls in sequence i like
:math:`e^{-\|W\|(\kappa m_i+\delta_{iht}^\top\hat W_hz_i)}`, with the label margin :math:`m_i` of
:math:`\hat v` on the tokens that all heads select. The least exponent decides: decoders go to the
max-margin solution of the labels, the heads to

.. math:: \min\|W\| \ \text{ s.t. }\ \delta_{iht}^\top W_hz_i
          \ge\max(0,\ 1-\kappa\|W\|(m_i-\min_jm_j)).

Sequences that support the decoders ask for one, others for what their label margin leaves of it.
"""

from dataclasses import replace

import numpy as np
import torch
from scipy.optimize import brentq

from attsvm import AttentionData, decoder_margins, head_pairs, max_margin, selection_margins
from attsvm.optim import SteepestDescent
from attsvm_papers.multihead.attended import attend_exactly


def train_both(data, W, v, kappa, steps):
    r"""Normalised descent on heads ``(runs, d, H * d)`` and decoders ``(runs, H, d)``, each by
    itself, from these on, with steps of 0.1 and of :math:`0.1\kappa`.

    Returns:
        both, and the selected tokens ``(runs, n, H)``. Slopes of the loss are scaled by the largest
        of a run, so that none is lost where all are small.
    """
    X, labels, queries = (torch.tensor(array) for array in (data.tokens, data.labels, data.queries))
    heads, readers = (torch.nn.Parameter(torch.tensor(start)) for start in (W, v))
    values = X[:, :, None].expand(-1, -1, v.shape[1], -1, -1)
    descent = SteepestDescent(
        [{"params": [heads]}, {"params": [readers], "lr": 0.1 * kappa}], lr=0.1
    )
    for _ in range(steps):
        logits = torch.einsum("sntd,sdhe,sne->snht", X, heads.unflatten(-1, v.shape[1:]), queries)
        outputs, selection = attend_exactly(logits, values)
        margins = labels * (outputs * readers[:, None]).sum(dim=(-2, -1))
        slopes = torch.nn.functional.logsigmoid(-margins.detach())
        descent.zero_grad()
        (-(slopes - slopes.amax(dim=-1, keepdim=True)).exp() * margins).sum().backward()
        descent.step()
    return heads.detach().numpy(), readers.detach().numpy(), selection.winner.numpy()


def decoders_programme(data, selected):
    """The max-margin solution of the labels on the tokens ``(n, H)`` that all heads select, one
    head's after the other's.
    """
    selected_tokens = np.take_along_axis(data.tokens, selected[..., None], axis=1).reshape(
        data.n, 1, -1
    )
    one_token = AttentionData(selected_tokens, data.labels, np.ones((data.n, 1)))
    return max_margin(decoder_margins(one_token, np.zeros(data.n, dtype=np.int64)))


def heads_programmes(data, selected, decoder, kappa):
    """The programme beside decoders that grow ``kappa`` times as fast, and that of decoders that
    stay fixed: margins of one everywhere.
    """
    heads = selected.shape[1]
    margins = selection_margins(head_pairs(data, heads), selected.ravel())
    spare = (decoder.margins(decoder.W) - 1.0) / decoder.norm

    def solution_at(size):
        required = np.clip(1.0 - kappa * size * spare, 0.0, 1.0)
        return max_margin(replace(margins, rhs=required.repeat(heads)[margins.sequence]))

    fixed_solution = solution_at(0.0)
    if fixed_solution.status != "optimal":
        return fixed_solution, fixed_solution
    # The larger the weights, the less is asked for: one size is its own, below that of all.
    size = brentq(
        lambda size: solution_at(size).norm - size, 0.0, 1.001 * fixed_solution.norm, rtol=1e-9
    )
    return solution_at(size), fixed_solution
