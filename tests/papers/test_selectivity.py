"""Sizes of attention weights, and attention at a designated word."""

import numpy as np
import torch

from attsvm_papers.networks.classifiers import TextClassifier, VisionTransformer
from attsvm_papers.networks.selectivity import (
    BINS,
    attention_weights,
    opinion_scores,
    scaled_attention,
    weight_sizes,
)


def test_sizes_agree_with_counting_at_the_published_thresholds() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal(500) * scale for scale in (0.02, 0.1, 3.0)]
    found, vision = weight_sizes(parts, 384), weight_sizes(parts, 512)
    for k, part in enumerate(np.abs(parts)):
        assert found["large"][k] == np.mean(part > 0.06)
        assert vision["near_zero"][k] == np.mean(part < 0.005)
        assert found["largest"][k] == part.max() * 384**0.5
        edges = np.append(np.arange(BINS + 1) * 0.005, np.inf)
        assert np.array_equal(found["histogram"][k], np.histogram(part, edges)[0])


def test_a_diverged_network_has_no_sizes() -> None:
    found = weight_sizes([np.ones(3), np.array([np.nan, 1.0]), np.ones(3)], 16)
    assert all(np.isnan(column).all() for column in found.values())
    assert {name: column.shape for name, column in found.items()} == {
        name: column.shape for name, column in weight_sizes([np.ones(3)] * 3, 16).items()
    }


def test_weights_of_fused_and_of_separate_maps() -> None:
    torch.manual_seed(0)
    fused = TextClassifier(vocabulary=9, length=5, width=8, depth=2, heads=2, hidden=8)
    query, key, value = attention_weights(fused)
    assert torch.equal(
        torch.cat([query, key, value]).sort().values,
        torch.cat([b.attention.qkv.weight.flatten() for b in fused.blocks]).sort().values,
    )
    assert torch.equal(query[:64], fused.blocks[0].attention.qkv.weight[:8].flatten())
    separate = VisionTransformer(8, 4, width=8, depth=3, heads=2)
    assert [len(part) for part in attention_weights(separate)] == [3 * 64] * 3
    assert torch.equal(
        attention_weights(separate)[1][:64], separate.blocks[0].attention.key.weight.flatten()
    )


def test_scaling_runs_from_zero_to_one_and_ignores_scale_and_shift() -> None:
    row = np.array([0.1, 0.5, 0.2, 0.2])
    assert [scaled_attention(row, place) for place in range(4)] == [0.0, 1.0, 0.25, 0.25]
    # rounding of the seven
    assert np.isclose(scaled_attention(3.0 * row + 7.0, 2), scaled_attention(row, 2), rtol=1e-14)
    assert np.isnan(scaled_attention(np.full(4, 0.25), 1))


def test_scores_of_sentences_and_of_those_without_the_word() -> None:
    rows = [np.array([0.4, 0.1, 0.3, 0.2]), np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.5, 0.3])]
    found = opinion_scores(rows, [2, None, 1])
    assert np.allclose(found["score"], [2 / 3, np.nan, 1.0], equal_nan=True, atol=1e-15)
    assert np.allclose(
        found["mean_score"], [0.5, np.nan, (0 + 1 + 1 / 3) / 3], equal_nan=True, atol=1e-15
    )
