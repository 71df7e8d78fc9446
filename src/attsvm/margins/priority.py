r"""What stays finite in training on priority graphs with cycles: the cyclic subspace and the weights that settle in it.

On token-priority data with log loss, trained weights behave like :math:`W^{fin}+C\,W^{mm}`: :math:`W^{mm}` solves
:func:`~attsvm.margins.graph_margins`, and :math:`W^{fin}` divides the attention inside every strongly connected component.
Li et al., *Mechanics of Next Token Prediction with Self-Attention* (2024).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attsvm.data import FloatArray, IntArray
from attsvm.datasets.next_token import NextTokenData, arcs, components, winners
from attsvm.errors import InaccurateError
from attsvm.margins.finite import equality_basis
from attsvm.margins.graph import graph_margins

_ITERATIONS = 200
_ACCURACY = 1e-13  # of the gradient, relative to the sum of the lengths of its terms: about the rounding of that sum


class FinitePart(NamedTuple):
    r"""``W`` :math:`=W^{fin}` ``(d, d)``, ``loss`` :math:`=\bar L(W^{fin})=\inf_W L(W)`, and the relative length of the last gradient."""

    W: FloatArray
    loss: float
    gradient: float


def finite_part(data: NextTokenData) -> FinitePart:
    r"""The weights to which the cyclic part of training on the log of the attention mass converges.

    .. math:: W^{fin}=\arg\min_{W\in\mathcal S_{cyc}}\ \sum_n\pi_n
              \log\Big(1+\sum_{v\asymp\star_n,\ v\ne\star_n}\tfrac{m_v}{m_\star}e^{(e_v-e_\star)^\top We_q}\Big),

    where :math:`\star_n` is the winner of sentence n, :math:`v\asymp\star_n` the tokens of its sentence in the same strongly connected
    component of the graph of its query, :math:`m` multiplicities, and :math:`\mathcal S_{cyc}` the span of the equalities of
    :func:`~attsvm.margins.graph_margins`. Newton's method in an orthonormal basis of that space; the minimum exists and is unique,
    because components are strongly connected (the condition of Zermelo, 1929). Zero without cycles.

    Raises:
        InputError: a sentence whose label no token explains, or two do; more equalities than can be written out.
        InaccurateError: no minimum to rounding accuracy after 200 steps; it takes astronomically unequal weights.
    """
    basis = equality_basis(graph_margins(data))
    if len(basis) == 0:
        return FinitePart(np.zeros((data.d, data.d)), 0.0, 0.0)
    sentence, token, ratio = _rivals(data)
    star = winners(data)[sentence]
    E = data.embeddings
    queries = E[data.queries[sentence]]
    differences = E[token] - E[star]
    rows = np.stack([np.einsum("pd,pd->p", differences, queries @ direction.T) for direction in basis], axis=-1)
    starts = np.flatnonzero(np.diff(sentence, prepend=-1))
    weights = data.weights[sentence[starts]]
    block = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(sentence))))
    size = float(weights.sum() * np.linalg.norm(rows, axis=1).max())

    def evaluate(c: FloatArray) -> tuple[float, FloatArray, FloatArray]:
        logit = rows @ c + np.log(ratio)
        top = np.maximum(np.maximum.reduceat(logit, starts), 0.0)
        mass = np.exp(logit - top[block])
        total = np.exp(-top) + np.add.reduceat(mass, starts)
        share = mass / total[block]
        pulled = np.add.reduceat(share[:, None] * rows, starts, axis=0)
        hessian = rows.T @ ((weights[block] * share)[:, None] * rows) - pulled.T @ (weights[:, None] * pulled)
        return float(weights @ (top + np.log(total))), weights @ pulled, hessian

    c = np.zeros(len(basis))
    loss, gradient, hessian = evaluate(c)
    for _ in range(_ITERATIONS):
        if np.linalg.norm(gradient) <= _ACCURACY * size:
            break
        step = np.linalg.solve(hessian, gradient)
        length = 1.0
        while True:
            new = evaluate(c - length * step)
            # near the minimum the loss cannot tell two points apart, the gradient can
            if new[0] <= loss - 1e-4 * length * float(gradient @ step) or np.linalg.norm(new[1]) <= 0.5 * np.linalg.norm(gradient):
                break
            length /= 2
            if length < 1e-12:
                raise InaccurateError("Newton's method found no descent for the finite part; the weights of the sentences differ too much")
        c = c - length * step
        loss, gradient, hessian = new
    else:
        raise InaccurateError(f"Newton's method did not reach the finite part in {_ITERATIONS} steps; the weights differ too much")
    W: FloatArray = np.tensordot(c, basis, axes=1)
    return FinitePart(W, loss, float(np.linalg.norm(gradient)) / size)


def _rivals(data: NextTokenData) -> tuple[IntArray, IntArray, FloatArray]:
    """Sentence, token and multiplicity relative to the winner's, of every token that shares a component with its winner."""
    query, node, component = components(arcs(data).arcs)
    sentence, token, multiplicity = data.occurrences
    best = winners(data)[sentence]
    keys, K = query * data.K + node, data.K
    of_sentence = data.queries[sentence] * K
    own, top = (np.searchsorted(keys, of_sentence + v) for v in (token, best))
    same = token != best
    same[same] = component[own[same]] == component[top[same]]
    wins = np.zeros(data.N)
    wins[sentence[token == best]] = multiplicity[token == best]
    return sentence[same], token[same], multiplicity[same] / wins[sentence[same]]
