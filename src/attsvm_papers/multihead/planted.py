"""Sequences with two planted groups of tokens, and decoders that ask for one or both."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from attsvm import AttentionData
from attsvm.datasets.attention_data import FloatArray, IntArray

KEYS = (1.0, 0.5)  # lengths of the directions by which groups A and B are found
NOISE, SPREAD = 0.5, 0.3  # lengths of the noise of tokens and of queries


class PlantedGroups(NamedTuple):
    """One instance per seed.

    Attributes:
        data: ``(seeds, n, T, d)``.
        positions: ``(seeds, n, 2)``: of the tokens of groups A and B.
        values: ``(seeds, 2, d)``: the unit directions along which they carry the label.
    """

    data: AttentionData
    positions: IntArray
    values: FloatArray


def plant_groups(n: int, T: int, d: int, seeds: Sequence[int]) -> PlantedGroups:
    r"""In every sequence one token :math:`\kappa_gm_g+Y_ia_{ig}u_g+\xi` of each group and
    :math:`T-2` of noise :math:`\xi` alone.

    Directions :math:`m_g, u_g` are orthonormal, :math:`a_{ig}` is uniform on [0.5, 1.5]. All
    sequences ask with nearly the same query.
    """
    instances = [_draw_instance(n, T, d, np.random.default_rng([11, seed])) for seed in seeds]
    tokens, labels, queries, positions, values = (
        np.stack(arrays) for arrays in zip(*instances, strict=True)
    )
    return PlantedGroups(AttentionData(tokens, labels, queries), positions, values)


def turned_decoders(values: FloatArray, degrees: float) -> FloatArray:
    """Decoders ``(..., 2, d)``: head 1 reads group A, head 2 group B, each turned towards the other
    by so many degrees; at 45 they are equal.
    """
    angle = np.deg2rad(degrees)
    mix = np.array([[np.cos(angle), np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    decoders: FloatArray = mix @ values
    return decoders


def _draw_instance(n: int, T: int, d: int, rng: np.random.Generator) -> tuple[Any, ...]:
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0].T
    keys, values, shared = basis[:2], basis[2:4], basis[4]
    labels = rng.choice([-1.0, 1.0], n)
    tokens = NOISE * rng.standard_normal((n, T, d)) / np.sqrt(d)
    positions = np.argsort(rng.random((n, T)), axis=1)[:, :2]
    sizes = rng.uniform(0.5, 1.5, (n, 2))
    for g in range(2):
        signal = KEYS[g] * keys[g] + (labels * sizes[:, g])[:, None] * values[g]
        tokens[np.arange(n), positions[:, g]] += signal
    queries = shared + SPREAD * rng.standard_normal((n, d)) / np.sqrt(d)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    return tokens, labels, queries, positions, values
