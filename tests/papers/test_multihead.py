"""Programmes of several heads in norms of norms, and what the experiments measure with."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import attsvm
from attsvm.attention import Attention
from attsvm.optim import SteepestDescent
from attsvm.training import AtSteps
from attsvm_papers.multihead import e2_shared_keys, e3_mini_batches, e4_layers
from attsvm_papers.multihead.attended import attend_exactly
from attsvm_papers.multihead.planted import KEYS, plant_groups, turned_decoders
from attsvm_papers.multihead.side_by_side import (
    head_norms,
    joint_programmes,
    locally_optimal_heads,
    margin_shares,
    split_heads,
    worst_gaps,
)
from attsvm_papers.multihead.trained_decoders import (
    decoders_programme,
    heads_programmes,
    train_both,
)

d, H = 6, 2


@pytest.fixture(scope="module")
def layer():
    data, _ = attsvm.datasets.unit_sphere(3, 4, d, seed=0)
    v = np.random.default_rng(0).standard_normal((H, d))
    tokens = np.stack([attsvm.optimal_tokens(data, own) for own in v], axis=-1)
    return data, v, tokens


def batch_of_one(data):
    pairs = attsvm.head_pairs(data, H)
    return attsvm.AttentionData(pairs.tokens[None], pairs.labels[None], pairs.queries[None])


def test_tokens_in_blocks_give_every_head_keys_of_its_own(layer):
    """Off-diagonal blocks see no token, so logits are those of the diagonal ones."""
    data, _, _ = layer
    pairs = attsvm.head_pairs(data, H)
    tokens = np.stack(
        [e2_shared_keys.rows_in_blocks(pairs.tokens[:, t][None])[0] for t in range(4)], 1
    )
    W = np.random.default_rng(0).standard_normal((H * d, H * d))
    logits = np.einsum("ntd,de,ne->nt", tokens, W, pairs.queries)
    for h in range(H):
        own = W[d * h : d * h + d, d * h : d * h + d]
        expected = np.einsum("ntd,de,ne->nt", data.tokens, own, data.queries)
        np.testing.assert_allclose(logits[h::H], expected, atol=1e-12)


def test_measures_see_a_head_that_is_elsewhere(layer):
    data, v, tokens = layer
    joint = joint_programmes(batch_of_one(data), tokens.reshape(1, -1))
    best = joint[0].W[None]
    scores = np.stack([attsvm.token_scores(data, own) for own in v], 1).reshape(1, -1, 4)
    assert locally_optimal_heads(joint, scores).tolist() == [True], "the optimal tokens always are"
    assert locally_optimal_heads(joint, -scores).tolist() == [False]
    assert worst_gaps(3.0 * best, best) == pytest.approx([0.0], abs=1e-15)
    turned = best.copy()
    turned[..., :d] *= -1.0
    assert worst_gaps(turned, best) == pytest.approx([2.0])
    assert worst_gaps(best, best, shift=1)[0] > 0.1
    np.testing.assert_allclose(np.concatenate(split_heads(best), axis=-1), best)
    assert np.hypot(*head_norms(best))[0] == pytest.approx(joint[0].norm)
    stretched = best * np.repeat([1.0, 3.0], d)
    share = np.hypot(*head_norms(best)) / np.hypot(*head_norms(stretched))
    assert margin_shares(stretched, joint) == pytest.approx(share, rel=1e-6)


def test_planted_tokens_carry_the_label_and_their_key():
    made = plant_groups(400, 5, 12, [3, 4])
    rows = np.arange(400)
    for seed in range(2):
        data = made.data.instance(seed)
        for g in range(2):
            chosen = data.tokens[rows, made.positions[seed, :, g]]
            signed = data.labels * (chosen @ made.values[seed, g])
            assert 0.9 < signed.mean() < 1.1
            assert (data.labels * (chosen @ made.values[seed, 1 - g])).mean() < 0.05
        assert (made.positions[seed, :, 0] != made.positions[seed, :, 1]).all()
    assert KEYS[0] > KEYS[1], "group B is the harder one to find"
    again = plant_groups(400, 5, 12, [4])
    assert np.array_equal(again.data.tokens[0], made.data.tokens[1])
    equal = turned_decoders(made.values, 45)
    np.testing.assert_allclose(equal[:, 0], equal[:, 1])
    assert np.array_equal(turned_decoders(made.values, 0), made.values)


def test_batches_of_all_sequences_are_plain_training_and_others_are_parts_of_the_data():
    data, v = attsvm.datasets.unit_sphere(6, 4, 5, [0, 1])
    rng = np.random.default_rng(0)
    order = e3_mini_batches.draw_batches(6, e3_mini_batches.ALL, False, 30, rng)
    W, selected = e3_mini_batches.descend_on_batches(data, v, "normalised", order, [30])
    model = Attention.cross(data, v)
    course = attsvm.train(
        model, data, SteepestDescent(model.parameters(), lr=0.1), 30, AtSteps([30])
    )
    np.testing.assert_allclose(W[-1], course.W[-1], atol=1e-12)
    assert np.array_equal(selected, course.selected[-1])
    model = Attention.cross(data, v, init=W[-1])
    part = e3_mini_batches.take_sequences(model.sequences(data), [4, 1])
    for run in range(2):
        one = data.instance(run).take([4, 1])
        alone = Attention.cross(one, v[run], init=W[-1][run]).loss(one).item()
        assert model.loss(part)[run].item() == pytest.approx(alone, rel=1e-14)


def test_dealt_batches_hold_every_sequence_once_an_epoch():
    rng = np.random.default_rng(0)
    dealt = e3_mini_batches.draw_batches(6, 2, True, 30, rng).reshape(10, 6)
    assert (np.sort(dealt, axis=1) == np.arange(6)).all()
    drawn = e3_mini_batches.draw_batches(6, 2, False, 30, rng)
    assert (drawn[:, 0] != drawn[:, 1]).all()
    assert (np.sort(drawn.reshape(10, 6), axis=1) != np.arange(6)).any()


@pytest.mark.parametrize("layers", [2, 3])
def test_layers_by_loops(layers):
    data, v = attsvm.datasets.unit_sphere(3, 4, 5, [0, 1])
    W = np.random.default_rng(0).standard_normal((2, 5, layers * 5))
    selected, margins = e4_layers.Layers(data, v)(torch.tensor(W))

    def softmax(logits):
        weights = np.exp(logits - logits.max())
        return weights / weights.sum()

    for run in range(2):
        one, (*below, last) = data.instance(run), np.split(W[run], layers, axis=1)
        for i, X in enumerate(one.tokens):
            H = X
            for own, found in zip(below, selected, strict=False):
                assert found.winner[run, i].tolist() == (H @ own @ H.T).argmax(axis=0).tolist()
                H = H + np.stack([H.T @ softmax(H @ own @ h) for h in H])
            seen = softmax(H @ last @ one.queries[i])
            value = one.labels[i] * v[run] @ (H.T @ seen)
            assert margins[run, i].item() == pytest.approx(value, rel=1e-12)
            assert selected[-1].winner[run, i, 0] == seen.argmax()


@pytest.mark.parametrize("lead", [1.0, 40.0, 600.0])
def test_attention_between_layers_has_exact_gradients_at_any_saturation(lead):
    logits = torch.tensor([[0.0, lead, lead / 2]], dtype=torch.float64, requires_grad=True)
    values = torch.tensor([[[1.0], [3.0], [2.0]]], dtype=torch.float64, requires_grad=True)
    mixed, found = attend_exactly(logits, values)
    mixed.sum().backward()
    s = found.probability[0].detach().numpy()
    away = np.array([-2.0, 0.0, -1.0])  # values behind the winner's
    mean = s @ away
    assert mixed.item() == pytest.approx(3.0 + mean, rel=1e-15)
    slopes = s * (away - mean)
    np.testing.assert_allclose(logits.grad[0], slopes, rtol=1e-12)
    np.testing.assert_allclose(values.grad[0, :, 0], s, rtol=1e-12)


@pytest.fixture(scope="module", params=[2, 3])
def hierarchy(request):
    """Instances, what each layer selects where weights are drawn for all but the last, and the
    sequences that each layer gets.
    """
    data, _ = attsvm.datasets.unit_sphere(4, 5, 10, seed=2)
    rng = np.random.default_rng(1)
    given, winners = [data.tokens], []
    for _ in range(request.param - 1):
        H, own = given[-1], rng.standard_normal((10, 10))  # what it selects can be separated
        winners.append(np.stack([(h @ own @ h.T).argmax(axis=0) for h in H]))
        given.append(H + np.stack([h[chosen] for h, chosen in zip(H, winners[-1], strict=True)]))
    return data, [*winners, rng.integers(5, size=(4, 1))], given


def test_the_programme_of_all_layers_is_their_own_side_by_side(hierarchy):
    cvxpy = pytest.importorskip("cvxpy")
    data, winners, given = hierarchy
    asked, alone = e4_layers.programmes_of_layers(data, winners)
    best = attsvm.max_margin_batch(asked)
    weights = [cvxpy.Variable((10, 10)) for _ in winners]
    wanted = []
    for i in range(data.n):
        (read,) = winners[-1][i]
        h = given[-1][i]
        above = weights[-1] @ data.queries[i]
        wanted += [(h[read] - h[t]) @ above >= 1 for t in range(5) if t != read]
        places = {read}
        for layer in range(len(winners) - 2, -1, -1):
            h, chosen = given[layer][i], winners[layer][i]
            wanted += [
                (h[chosen[place]] - h[t]) @ weights[layer] @ h[place] >= float(place in places)
                for place in range(5)
                for t in range(5)
                if t != chosen[place]
            ]
            places |= {int(chosen[place]) for place in places}
    size = sum(cvxpy.sum_squares(own) for own in weights)
    found = cvxpy.Problem(cvxpy.Minimize(size), wanted).solve(solver="CLARABEL")
    assert found == pytest.approx(sum(one.norm**2 for one in best), rel=1e-6)
    for one, own in zip(best[:-1], attsvm.max_margin_batch(alone), strict=True):
        assert one.norm > 1.001 * own.norm, "free positions cost"


def test_held_places_are_those_the_solution_leans_on(hierarchy):
    """Its dual is there, and margins of zero; what it holds has the lower logit above by chance."""
    data, winners, _ = hierarchy
    one, two = attsvm.max_margin_batch(e4_layers.programmes_of_layers(data, winners)[0])[-2:]
    found = e4_layers.lower_at_zero_margins(one, two, 5)
    margins = one.margins
    held = (margins.rhs == 0) & (one.dual > 1e-6 * one.dual.max())
    assert held.any(), "random selections are not those of least norm"
    assert np.abs(margins(one.W)[held]).max() < 1e-6
    above = np.einsum(
        "cd,de,ce->c", margins.differences, two.W, data.queries[margins.sequence // 5]
    )
    assert found["lower"] == pytest.approx(np.mean(above[held] < 0))
    loose = (margins.rhs == 0) & ~held
    assert found["lower_other"] == pytest.approx(np.mean(above[loose] < 0))


def test_positions_are_read_through_what_lies_above():
    first, second = np.array([[3, 3, 0, 1]]), np.array([[2, 2, 1, 0]])
    low, high = e4_layers.positions_read([first, second, np.array([[2]])])
    assert high.tolist() == [[False, False, True, False]]
    assert low.tolist() == [[False, True, True, False]], "position 2, and 1 that it selects"


def test_steps_of_heads_and_decoders_are_those_of_the_loss():
    data = plant_groups(3, 4, 7, [5, 6]).data
    rng = np.random.default_rng(2)
    starts = rng.standard_normal((2, 7, 7 * H)), rng.standard_normal((2, H, 7))
    W, v, selected = train_both(data, *starts, 2.0, 5)
    for run in range(2):
        one = data.instance(run)
        X, labels, z = (torch.tensor(part) for part in (one.tokens, one.labels, one.queries))
        own = [torch.tensor(start[run], requires_grad=True) for start in starts]
        for _ in range(5):
            logits = torch.einsum("ntd,dhe,ne->nht", X, own[0].unflatten(-1, (H, 7)), z)
            values = torch.einsum("nht,ntd,hd->n", logits.softmax(dim=-1), X, own[1])
            loss = torch.nn.functional.softplus(-labels * values).sum()
            for part, gradient, lr in zip(
                own, torch.autograd.grad(loss, own), (0.1, 0.2), strict=True
            ):
                part.data -= lr * gradient / gradient.norm()
        np.testing.assert_allclose(W[run], own[0].detach(), atol=1e-12)
        np.testing.assert_allclose(v[run], own[1].detach(), atol=1e-12)
        assert np.array_equal(selected[run], logits.argmax(dim=-1)), "before the last step"


def test_the_heads_programme_is_between_the_relaxed_and_that_of_fixed_decoders():
    cvxpy = pytest.importorskip("cvxpy")
    data = plant_groups(12, 5, 8, [3]).data.instance(0)
    selected = np.random.default_rng(0).integers(5, size=(12, 2))
    decoder = decoders_programme(data, selected)
    seen = data.tokens[np.arange(12)[:, None], selected].reshape(12, -1)
    assert (data.labels * (seen @ decoder.W[:, 0])).min() == pytest.approx(1.0, abs=1e-7)
    spare = (data.labels * (seen @ decoder.W[:, 0]) - 1.0) / decoder.norm
    found, whole = heads_programmes(data, selected, decoder, 1.0)
    assert heads_programmes(data, selected, decoder, 0.0)[0].norm == pytest.approx(whole.norm)
    # Of unit weights, those whose least exponent is largest; no margin may be negative.
    W, least = cvxpy.Variable((8, 16)), cvxpy.Variable()
    asked = [cvxpy.norm(W, "fro") <= 1]
    for i, X in enumerate(data.tokens):
        for h, own in enumerate(selected[i]):
            for t in set(range(5)) - {int(own)}:
                margin = (X[own] - X[t]) @ W[:, 8 * h : 8 * h + 8] @ data.queries[i]
                asked += [margin + spare[i] >= least, margin >= 0]
    cvxpy.Problem(cvxpy.Maximize(least), asked).solve(solver="CLARABEL")
    assert found.norm * least.value == pytest.approx(1.0, rel=1e-5)
    np.testing.assert_allclose(found.W / found.norm, W.value, atol=1e-4)
