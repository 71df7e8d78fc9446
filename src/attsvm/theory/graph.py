r"""Limits of attention on token-priority graphs: a direction :math:`W^{mm}` that grows, a
finite part :math:`W^{fin}`, and which tokens are retrieved.

Under the log loss weights split along the cyclic subspace
:math:`\mathcal S_{cyc}=\mathrm{span}\{(e_i-e_j)e_q^\top: i\asymp j\text{ in }\mathcal G^{(q)}\}`.
Outside it they diverge along the solution of the graph programme; inside it they converge to the
minimiser of the loss that keeps of every sentence only the winner's component.
Li et al., *Mechanics of Next Token Prediction with Self-Attention* (2024): hard retrieval of the
highest-priority component, soft composition inside it, and local convergence for general losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from attsvm.base.errors import InputError
from attsvm.base.printable import kind
from attsvm.base.softmax import softmax_rows
from attsvm.datasets.attention_data import BoolArray, FloatArray, IntArray
from attsvm.margins import equality_basis
from attsvm.solvers import max_margin_batch
from attsvm.theory.likelihood import (
    Likelihood,
    attention_likelihood,
    inside_subspaces,
    score_features,
)
from attsvm.theory.parts import TwoParts
from attsvm.theory.sentence_margins import graph_margins, strong_components
from attsvm.theory.sentences import NextTokenData, PartialOrders, partial_order, winners


@dataclass(frozen=True, eq=False, repr=False)
class GraphSVM(TwoParts):
    r"""Both components that theory predicts for training on one set of sentences.

    Attributes:
        data: the sentences.
        orders: the priority graphs of all queries, and what follows from them.
        component: ``(K, K)``, row q holds the component of every token in the graph of query q,
            named by its smallest token.
        solution: :math:`W^{mm}` with its certificate; its status is ``infeasible`` where dependent
            embeddings contradict the graphs, and W is 0 where there is no arc between components.
        subspace: ``(r, d, d)``, an orthonormal basis of the cyclic subspace.
        finite: ``(d, d)``, :math:`W^{fin}`; 0 without cycles.
        gradient: norm of the gradient of the reduced loss at :math:`W^{fin}`, its certificate: the
            loss is convex.
        floor: :math:`\bar L(W^{fin})`, the infimum of the loss when the graph programme is
            feasible.
        dropped: number of sentences without a winner (label not realizable). They have no arcs, and
            no part in the loss.

    Example:
        >>> import attsvm
        >>> from attsvm.theory.sentences import NextTokenData
        >>> data = NextTokenData.from_words(["a b c"] * 3, ["a", "a", "b"], following=range(3))
        >>> svm = attsvm.graph_svm(data)
        >>> svm.acyclic, svm.subspace.shape, svm.component[2].tolist()
        (False, (1, 3, 3), [0, 0, 2])
        >>> round(svm.floor, 4)  # the entropy of one b in three labels
        0.6365
    """

    data: NextTokenData
    orders: PartialOrders
    component: IntArray
    dropped: int

    @property
    def cyclic(self) -> FloatArray:
        """:attr:`subspace` in the words of the paper."""
        return self.subspace

    @property
    def acyclic(self) -> bool:
        """True where no graph has a cycle."""
        return len(self.subspace) == 0

    def winning_component(self) -> BoolArray:
        """The distinct tokens in the winner's component ``(N, J)``; soft composition happens among
        them.
        """
        return _in_component_of_winner(self.data, self.component)

    def basis(self) -> FloatArray:
        """An orthonormal basis of all directions that change the loss ``(p, d, d)``, the cyclic
        ones first.
        """
        return self.completed(score_features(self.data))

    def likelihood(self) -> Likelihood:
        """The loss in coordinates of :meth:`basis`, in which tokens of the label's component differ
        by cyclic coordinates only.
        """
        likelihood = attention_likelihood(self.data, self.basis())
        likelihood.features[self.winning_component(), len(self.subspace) :] = 0.0
        return likelihood


def graph_svm(data: NextTokenData) -> GraphSVM:
    r"""Max-margin direction and finite part of next-token data whose labels are tokens of their
    sentences.

    .. math:: W^{mm}&=\arg\min\|W\|_F \ \text{ s.t. }\ (e_i-e_j)^\top We_q\ge1\ (i\Rightarrow j),\ \
       =0\ (i\asymp j)\quad\text{in } \mathcal G^{(q)}, \\
       W^{fin}&=\arg\min_{W\in\mathcal S_{cyc}}\bar L(W),

    where :math:`\bar L` keeps of every sentence the tokens in its label's component. The second
    problem has exactly one solution, because components are strongly connected (the condition of
    Zermelo and of Bradley and Terry); Newton's method finds it to rounding. Li et al., *Mechanics
    of Next Token Prediction with Self-Attention* (2024).

    Args:
        data: one set of sentences; see :func:`graph_svm_batch` for many.

    Raises:
        InputError: something else than sentences.

    Example:
        >>> import attsvm
        >>> from attsvm.theory.sentences import NextTokenData
        >>> data = NextTokenData.from_words(["a b c"] * 3, ["a", "a", "b"], following=range(3))
        >>> svm = attsvm.graph_svm(data)
        >>> svm.solution.W[:, 2].round(3).tolist()  # before c, both a and b beat c
        [0.333, 0.333, -0.667]
        >>> svm.finite[:, 2].round(3).tolist()  # and a is twice as likely as b
        [0.347, -0.347, 0.0]
    """
    return graph_svm_batch([data])[0]


def graph_svm_batch(data: Sequence[NextTokenData]) -> list[GraphSVM]:
    r"""Solutions of :func:`graph_svm` for many data sets, which are solved together.

    Args:
        data: sets of sentences of the same dimension d.

    Raises:
        InputError: no data, data of different dimensions, or something else than sentences.

    Example:
        >>> from attsvm.theory import graph_svm_batch
        >>> from attsvm.theory.sentences import priority_graph
        >>> data = [priority_graph(n=4, T=3, K=5, d=6, seed=seed) for seed in range(2)]
        >>> [svm.solution.status for svm in graph_svm_batch(data)]
        ['optimal', 'optimal']
    """
    for sentences in data:
        if not isinstance(sentences, NextTokenData):
            raise InputError(
                f"data is {kind(sentences)}; give attsvm.theory.sentences.NextTokenData, or a list"
                " of it to graph_svm_batch"
            )
    if len({sentences.d for sentences in data}) != 1:
        raise InputError(
            "data of one dimension d is solved together; give at least one set, and sets of"
            " different d one by one"
        )
    # the direction W_mm, of all data sets together
    orders = [partial_order(sentences) for sentences in data]
    margins = [
        graph_margins(sentences.embeddings, order.arcs)
        for sentences, order in zip(data, orders, strict=True)
    ]
    solutions = max_margin_batch(margins)
    # the finite part W_fin: the loss of tokens in the winner's component, on the cyclic subspace
    subspaces = [equality_basis(programme) for programme in margins]
    components = [_components(order) for order in orders]
    reduced = [
        attention_likelihood(sentences, basis, _in_component_of_winner(sentences, component))
        for sentences, basis, component in zip(data, subspaces, components, strict=True)
    ]
    minimisers = inside_subspaces(reduced, subspaces)
    return [
        GraphSVM(
            solution=solutions[k],
            subspace=subspaces[k],
            finite=finite,
            gradient=gradient,
            floor=floor,
            data=data[k],
            orders=orders[k],
            component=components[k],
            dropped=int((winners(data[k]) < 0).sum()),
        )
        for k, (finite, gradient, floor) in enumerate(minimisers)
    ]


def _components(orders: PartialOrders) -> IntArray:
    """For every query the component of every token ``(K, K)``, named by its smallest token."""
    component = np.tile(np.arange(orders.K), (orders.K, 1))
    queries, component_of_tokens = strong_components(orders.arcs, orders.K)
    component[queries] = component_of_tokens
    return component


def _in_component_of_winner(data: NextTokenData, component: IntArray) -> BoolArray:
    """Whether a distinct token is in the component of the winner ``(N, J)``, under the sentence's
    query.
    """
    tokens, count = data.distinct()
    row = component[data.queries]
    best = winners(data)[:, None]
    return (
        (np.take_along_axis(row, tokens, axis=1) == np.take_along_axis(row, best, axis=1))
        & (best >= 0)
        & (count > 0)
    )


def token_masses(data: NextTokenData, W: ArrayLike) -> FloatArray:
    r"""Attention mass :math:`\varphi_v=m_ve^{s_v}/\sum_um_ue^{s_u}` ``(..., N, J)``,
    :math:`s_v=e_v^\top We_q`, on distinct tokens.

    Args:
        data: the sentences; tokens are ordered as in :meth:`NextTokenData.distinct`, padding has
            mass 0.
        W: ``(..., d, d)``.

    Raises:
        InputError: weights of another shape.

    Example:
        >>> import numpy as np
        >>> from attsvm.theory.sentences import NextTokenData
        >>> from attsvm.theory import token_masses
        >>> data = NextTokenData.from_words(["a b b c"], ["a"])
        >>> token_masses(data, np.zeros((3, 3))).tolist()
        [[0.25, 0.5, 0.25]]
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
    logits = scores[..., tokens, data.queries[:, None]]
    logits = np.where(count > 0, logits, -np.inf)
    return softmax_rows(logits, count)


def leading_tokens(orders: PartialOrders, data: NextTokenData) -> BoolArray:
    r"""The distinct tokens of each sentence in its leading component ``(N, J)``, from which paths
    :math:`i\Rightarrow j` reach all others.

    All False in a sentence no component of which leads all others: the graphs then leave open where
    attention goes. Without cycles it is the token of :meth:`PartialOrders.greatest`.

    Args:
        orders: the graphs of training.
        data: sentences, seen or not, over the same vocabulary.

    Raises:
        InputError: another vocabulary.

    Example:
        >>> from attsvm.theory.sentences import NextTokenData, partial_order
        >>> from attsvm.theory import leading_tokens
        >>> data = NextTokenData.from_words(["a b c"] * 2, ["a", "b"], following=range(3))
        >>> leading_tokens(partial_order(data), data).tolist()
        [[True, True, False], [True, True, False]]
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
    :func:`~attsvm.theory.graph_margins` of these arcs is the programme of local convergence.
    Thresholds of the code of Li et al. (2024), which are heuristics: now and then a run lies
    between them.

    Args:
        data: the sentences.
        masses: ``(N, J)``, see :func:`token_masses`.
        selected: the mass above which a token is selected.
        ignored: the mass up to which it loses.

    Raises:
        InputError: masses of another shape, or thresholds out of order.

    Example:
        >>> from attsvm.theory.sentences import NextTokenData
        >>> from attsvm.theory import local_arcs
        >>> data = NextTokenData.from_words(["a b c"], ["a"])
        >>> local_arcs(data, masses=[[0.7, 0.3, 0.0]]).tolist()
        [[2, 0, 1], [2, 0, 2], [2, 1, 0], [2, 1, 2]]
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
