r"""Heads with rotary positions, by relative offset, and their max-margin programmes.

Rotary positions turn pair :math:`j` of a head's features by :math:`\omega_j` per position, so the
logit of a query :math:`z` and a key :math:`x` that is :math:`\delta` tokens back is
:math:`x^\top W_\delta z` with another matrix for every offset,

.. math:: W_\delta=\sum_j\cos(\omega_j\delta)\,C_j+\sin(\omega_j\delta)\,S_j .

That is one matrix :math:`W=(C_j, S_j)_j` on keys that are told how far back they are,
:math:`x\otimes(\cos\omega_j\delta,\sin\omega_j\delta)_j`, and its programme is like that of any
other head.
"""

import numpy as np
import torch

from attsvm import max_margin, pair_margins
from attsvm.norms import parse_norm
from attsvm.transformers import demo_model, reflection
from attsvm_papers import kit
from attsvm_papers.heads.own_solutions import (
    FEWEST,
    NORMS,
    SECONDS,
    THRESHOLD,
    matrix_cosine,
    orthogonal,
    scale_of,
)

NULLS = ("heads", "random", "rotated", "permuted", "reflected")
SURE, ROTARY = 10, "tiny Llama"


@kit.run(
    model=[ROTARY],
    layer=(0, 1, 2, 3, 4),
    quick={"layer": (1,), "texts": 2, "tokens": 32, "queries": 12},
)
def rotary(model, layer, texts=16, tokens=64, queries=80):
    """A row per head in the Frobenius norm, and one in the nuclear norm for the first of the layer.
    Nulls are rotary heads as well: random subspaces, the head's own two with rotated features,
    features paired with those of another frequency, and inputs reflected.
    """
    network = demo_model(1)[0]
    inputs = network.layer_inputs(write_stories(network, texts, tokens), layer).double().numpy()
    factors = rotary_weights(network, layer)
    known_queries, rows = queries_of(inputs, len(factors[0][0])), []
    W = [stack_cosines_and_sines(*pair) for pair in factors]
    for head, (K, Q) in enumerate(factors):
        rng = np.random.default_rng([layer, head])
        own_programme, count = draw_rotary_programme(W[head], known_queries, queries, rng)
        nulls = {
            kind: stack_cosines_and_sines(*rotary_null_factors(K, Q, kind, inputs, rng))
            for kind in NULLS[1:]
        }
        null_programmes = {
            kind: draw_rotary_programme(V, known_queries, queries, rng, count)[0]
            for kind, V in nulls.items()
        }
        for norm in ("fro", "nuc") if head == 0 else ("fro",):
            solutions = {
                kind: max_margin(problem, parse_norm(norm), max_seconds=SECONDS)
                for kind, problem in {"cosine": own_programme, **null_programmes}.items()
            }
            best, others = solutions["cosine"].W, np.delete(W, head, axis=0)
            rows.append(
                {
                    "head": head,
                    "norm": NORMS.index(norm),
                    **{
                        k: matrix_cosine({"cosine": W[head], **nulls}[k], v.W)
                        for k, v in solutions.items()
                    },
                    "heads": np.mean([matrix_cosine(V, best) for V in others]),
                    "gap": max(solution.gap for solution in solutions.values()),
                }
            )
    return kit.stacked(rows)


def write_stories(model, texts, tokens):
    """Texts ``(texts, tokens)`` that the model writes, drawn from its softmax."""
    generator = torch.Generator().manual_seed(0)
    ids = model.generate(1).expand(texts, 1)
    with torch.no_grad():
        while ids.shape[1] < tokens:
            shares = model(ids)[:, -1].softmax(dim=-1)
            ids = torch.cat([ids, torch.multinomial(shares, 1, generator=generator)], dim=1)
    return ids


def rotary_weights(model, layer):
    """Per head the maps to keys and to queries, ``(8, 64)`` each; queries carry the scale."""
    K, Q = (model.weights[name][layer].double().numpy() for name in ("wk", "wq"))
    d, shared = model.width // model.heads, model.heads // model.groups
    K = np.repeat(K.reshape(model.groups, d, -1), shared, axis=0)
    return list(zip(K, Q.reshape(model.heads, d, -1) / np.sqrt(d), strict=True))


def rotary_angles(d, offsets):
    """Cosines of the angles of all pairs of features, then sines ``(..., d)``."""
    speed = 10000.0 ** (-np.arange(0, d, 2) / d)
    angle = np.asarray(offsets)[..., None] * speed
    return np.concatenate([np.cos(angle), np.sin(angle)], axis=-1)


def stack_cosines_and_sines(K, Q):
    """The matrices of cosines, then those of sines, below each other ``(d * width, width)``."""
    even, odd = slice(None, None, 2), slice(1, None, 2)
    C = np.einsum("jk,jq->jkq", K[even], Q[even]) + np.einsum("jk,jq->jkq", K[odd], Q[odd])
    S = np.einsum("jk,jq->jkq", K[odd], Q[even]) - np.einsum("jk,jq->jkq", K[even], Q[odd])
    return np.concatenate([C, S]).reshape(-1, Q.shape[1])


def queries_of(inputs, d):
    """For every query with rivals enough: its input, its keys with the angles of their offsets
    ``(position + 1, d * width)``, and its position.
    """
    queries = []
    for text in inputs:
        for position in range(FEWEST, len(text)):
            angles = rotary_angles(d, position - np.arange(position + 1))
            keys = np.einsum("tj,tk->tjk", angles, text[: position + 1]).reshape(position + 1, -1)
            queries.append((text[position], keys, position))
    return queries


def draw_rotary_programme(W, known_queries, queries, rng, target_count=None):
    """The margins of some sure queries, and the number of queries of which the weights are sure: as
    they are, or scaled until they are sure of ``target_count``; of ``SURE`` at least.
    """
    logits = [keys @ (W @ z) for z, keys, _ in known_queries]
    gaps = [row.max() - row for row in logits]

    def sure_queries(scale):
        largest_weights = np.array([1.0 / np.exp(-scale * gap).sum() for gap in gaps])
        return np.flatnonzero(largest_weights > THRESHOLD)

    sure = sure_queries(scale_of(lambda scale: len(sure_queries(scale)), target_count, SURE))
    members = np.sort(rng.permutation(sure)[:queries])
    margins = pair_margins(
        [known_queries[i][1] for i in members],
        [known_queries[i][0][None] for i in members],
        [logits[i].argmax()[None] for i in members],
        positions=[np.array([known_queries[i][2]]) for i in members],
    )
    return margins, len(sure)


def rotary_null_factors(K, Q, kind, inputs, rng):
    """Another rotary head of the same size."""
    d, width = K.shape
    if kind == "random":
        A, B = (orthogonal(width, width, rng) for _ in range(2))
        return K @ A, Q @ B
    if kind == "rotated":
        A, B = (orthogonal(d, d, rng) for _ in range(2))
        return A @ K, B @ Q
    if kind == "permuted":
        order, planes = rng.permutation(d // 2), K.reshape(d // 2, 2, width)
        permuted = np.empty_like(planes)
        permuted[order] = planes[np.roll(order, 1)]
        return permuted.reshape(d, width), Q
    R = reflection(inputs.reshape(-1, width), rng)
    return K @ R, Q @ R
