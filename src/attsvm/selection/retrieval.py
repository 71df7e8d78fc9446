r"""Which tokens attention retrieves: masses on distinct tokens, the component that leads a
sentence, the local graphs that training shows.

Li et al., *Mechanics of Next Token Prediction with Self-Attention* (2024): hard retrieval of the
highest-priority component, soft composition inside it, and local convergence for general losses.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from attsvm.data import BoolArray, FloatArray, IntArray
from attsvm.datasets.next_token import NextTokenData, PartialOrders
from attsvm.errors import InputError


def token_masses(data: NextTokenData, W: ArrayLike) -> FloatArray:
    r"""``(..., N, J)``: attention mass :math:`\varphi_v=m_ve^{s_v}/\sum_um_ue^{s_u}`,
    :math:`s_v=e_v^\top We_q`, on distinct tokens.

    Args:
        data: the sentences; tokens are ordered as in :meth:`NextTokenData.distinct`, padding has
            mass 0.
        W: ``(..., d, d)``.

    Raises:
        InputError: weights of another shape.
    """
    weights = np.asarray(W, dtype=np.float64)
    if weights.shape[-2:] != (data.d, data.d):
        raise InputError(
            f"W has shape {weights.shape}; it must end in ({data.d}, {data.d}), the dimension of"
            " the embeddings"
        )
    tokens, count = data.distinct()
    E = data.embeddings
    scores = E @ weights @ E.T  # (..., K, K), token by query
    own = scores[..., tokens, data.queries[:, None]]
    own = np.where(count > 0, own, -np.inf)
    masses = count * np.exp(own - own.max(axis=-1, keepdims=True))
    return masses / masses.sum(axis=-1, keepdims=True)


def leading_tokens(orders: PartialOrders, data: NextTokenData) -> BoolArray:
    r"""``(N, J)``: the distinct tokens of each sentence in its leading component, from which paths
    :math:`i\Rightarrow j` reach all others.

    All False in a sentence no component of which leads all others: the graphs then leave open where
    attention goes. Without cycles it is the token of :meth:`PartialOrders.greatest`.

    Args:
        orders: the graphs of training.
        data: sentences, seen or not, over the same vocabulary.

    Raises:
        InputError: another vocabulary.
    """
    if data.K != orders.K:
        raise InputError(
            f"the sentences are over {data.K} tokens, the graphs over {orders.K}; use one"
            " vocabulary"
        )
    queries, graph = np.unique(data.queries, return_inverse=True)
    reach = np.stack([orders.closure(int(query)) for query in queries]) | np.eye(
        data.K, dtype=np.bool_
    )
    tokens, count = data.distinct()
    pairs = reach[graph[:, None, None], tokens[:, :, None], tokens[:, None, :]]
    return (count > 0) & (pairs | (count == 0)[:, None, :]).all(axis=2)


def local_arcs(
    data: NextTokenData, masses: ArrayLike, selected: float = 1e-2, ignored: float = 9e-3
) -> IntArray:
    r"""The arcs of the local graphs that trained attention shows, ``(k, 3)`` rows of query, winner
    and loser.

    In every sentence the tokens of mass above ``selected`` win against all others and tie among
    each other; tokens of mass in (``ignored``, ``selected``] are left out.
    :func:`~attsvm.margins.graph_margins` of these arcs is the programme of local convergence.
    Thresholds of the code of Li et al. (2024), which are heuristics: now and then a run lies
    between them.

    Args:
        data: the sentences.
        masses: ``(N, J)``, see :func:`token_masses`.
        selected: the mass above which a token is selected.
        ignored: the mass up to which it loses.

    Raises:
        InputError: masses of another shape, or thresholds out of order.
    """
    tokens, count = data.distinct()
    mass = np.asarray(masses, dtype=np.float64)
    if mass.shape != tokens.shape:
        raise InputError(
            f"masses has shape {mass.shape}; it must be {tokens.shape}, sentences and their"
            " distinct tokens"
        )
    if not 0 <= ignored <= selected < 1:
        raise InputError(
            f"the thresholds are ignored={ignored:g} and selected={selected:g}; give 0 <= ignored"
            " <= selected < 1"
        )
    winner = (count > 0) & (mass > selected)
    loser = (count > 0) & ((mass > selected) | (mass <= ignored))
    sentence, i, j = np.nonzero(
        winner[:, :, None] & loser[:, None, :] & ~np.eye(tokens.shape[1], dtype=np.bool_)
    )
    rows = np.stack([data.queries[sentence], tokens[sentence, i], tokens[sentence, j]], axis=1)
    return np.unique(rows, axis=0).astype(np.int64).reshape(-1, 3)
