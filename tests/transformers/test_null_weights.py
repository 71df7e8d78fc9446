"""Nulls that match how weights lie in the covariance of the inputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attsvm.transformers import audit
from attsvm.transformers.head_inputs import HeadInputs
from attsvm.transformers.null_weights import equally_sure_queries, null_factors, reflection

from .conftest import Attention, family, recorded


def test_reflections_keep_the_mean_the_covariance_and_how_weights_lie_in_it() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(1000, 6)) @ rng.normal(size=(6, 6)) + rng.normal(size=6)
    unit = rows.mean(axis=0) / np.linalg.norm(rows.mean(axis=0))
    for _ in range(6):  # signs of five directions
        R = reflection(rows, rng)
        np.testing.assert_allclose(R @ R, np.eye(6), atol=1e-10)
        np.testing.assert_allclose(R @ unit, unit, atol=1e-10)
    assert np.abs(R - np.eye(6)).max() > 0.1
    outside = np.eye(6) - np.outer(unit, unit)
    covariance = outside @ np.cov(rows.T) @ outside
    np.testing.assert_allclose(R @ covariance @ R, covariance, atol=1e-9)
    _, V = np.linalg.eigh(covariance + 100 * np.outer(unit, unit))
    W = rng.normal(size=(6, 6))
    np.testing.assert_allclose(np.abs(V.T @ (R @ W @ R) @ V), np.abs(V.T @ W @ V), atol=1e-8)


@pytest.mark.parametrize("null", ["random", "rotated", "permuted"])
def test_other_weights_have_the_same_singular_values(null) -> None:
    rng = np.random.default_rng(0)
    U, s, Vt = np.linalg.svd(rng.normal(size=(8, 9)), full_matrices=False)
    left, right = null_factors((U[:, :4], s[:4], Vt[:4]), null, rng)
    W = left @ right
    np.testing.assert_allclose(np.linalg.svd(W, compute_uv=False)[:4], s[:4], rtol=1e-10)
    inside = U[:, :4].T @ W @ Vt[:4].T
    assert np.allclose(np.linalg.norm(inside), np.linalg.norm(W)) == (null != "random")
    partners = (np.abs(inside) > 1e-8).sum(axis=1)
    assert (partners == 1).all() == (null == "permuted")
    assert null != "permuted" or np.allclose(np.diag(inside), 0.0)


@pytest.mark.parametrize("wanted", [1, 7, 19])
def test_so_many_queries_are_sure_at_some_scale(wanted: int) -> None:
    logits = [np.random.default_rng(seed).normal(size=(10, 5)) for seed in (0, 1)]
    assert len(equally_sure_queries(logits, [np.arange(5)] * 2, wanted, 0.5)) == wanted


def test_reflected_weights_are_those_of_the_same_head_on_reflected_inputs() -> None:
    inputs = HeadInputs(recorded(family("bert"), "bert").layers[0], 1)
    W, other = inputs.weights(), inputs.reflected(np.random.default_rng(0))
    left = reflection(np.concatenate(inputs.keys), np.random.default_rng(0))
    for keys, queries in zip(inputs.keys, inputs.queries, strict=True):
        there = np.concatenate([queries[:, :-1] @ left, queries[:, -1:]], axis=1)
        np.testing.assert_allclose(
            keys @ other @ queries.T, (keys @ left) @ W @ there.T, atol=1e-10
        )
    assert np.abs(other - W).max() > 0.01 * np.abs(W).max()
    rng = np.random.default_rng(0)
    two = Attention(rng.normal(size=(4, 5)), rng.normal(size=(4, 3)), 1)  # widths of two texts
    x, z = (torch.randn(1, 20, width, dtype=torch.float64) for width in (3, 5))
    assert HeadInputs(recorded(two, x, z).layers[0], 0).reflected(rng).shape == (3, 6)


@pytest.mark.parametrize(("name", "there"), [("bert", True), ("t5", True), ("llama", False)])
def test_heads_with_rotary_positions_have_no_reflected_null(name, there) -> None:
    recording = recorded(family(name), name)
    found = audit(recording, ["fro"], ["reflected"], draws=2, threshold=0.05, most=8)
    fits = [head.fits[0] for head in found.heads if head.fits]
    assert fits
    for fit in fits:
        assert len(fit.nulls.get("reflected", ())) == (2 if there else 0)
        assert all(-1 <= cosine <= 1 for cosine in fit.nulls.get("reflected", ()))
