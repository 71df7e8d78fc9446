"""Heads beside the max-margin solutions of their own selections: the decoder, its optimisers, the
nulls, and claims that can fail.
"""

import numpy as np
import pytest
import torch

from attsvm import max_margin
from attsvm.base.errors import UnavailableError
from attsvm.claims import Evidence
from attsvm.transformers import capture
from attsvm.transformers.demo import Stories
from attsvm_papers.heads import e4_explanations as heads_4
from attsvm_papers.heads import e6_pretrained as heads_6
from attsvm_papers.heads import networks, rotary
from attsvm_papers.heads.decoder import MADE, OPTIMISERS, Decoder, DecoderSizes, attention_optimiser
from attsvm_papers.heads.excesses import excess_over_nulls
from attsvm_papers.heads.networks import (
    TINY,
    LayerAttention,
    attention_layers,
    checkpoints,
    trained_decoder,
)
from attsvm_papers.heads.own_solutions import (
    KINDS,
    HeadOptions,
    average,
    draw_sure_queries,
    null_weights,
    own_solutions,
    programme_of,
)
from attsvm_papers.kit import experiment


def table(rows):
    return Evidence({name: np.array([row[name] for row in rows]) for name in rows[0]})


def test_weights_and_inputs_give_the_logits_of_the_model() -> None:
    torch.manual_seed(0)
    model, texts = Decoder(9, DecoderSizes(10, 12, 2, 2)), torch.randint(9, (3, 10))
    seen, block = [], model.blocks[1]
    for part in (block.queries, block.keys):
        part.register_forward_hook(lambda _, __, out: seen.append(out.detach()))
    layer = attention_layers(model, texts)[1]
    q, k = (each.unflatten(-1, (2, 6)).transpose(1, 2).double() for each in seen)
    expected = (q @ k.mT / np.sqrt(6)).numpy()
    for head, W in enumerate(layer.weights):
        logits = (layer.inputs @ W.T) @ layer.inputs.transpose(0, 2, 1)
        np.testing.assert_allclose(logits, expected[:, head], atol=1e-5)
    assert np.array_equal(layer.tokens, texts.numpy())


KINDS_OF = ("AdamW", "SGD", "Muon", "SteepestDescent", "MirrorDescent")


@pytest.mark.parametrize(("name", "kind"), [*zip(OPTIMISERS, KINDS_OF, strict=True)])
def test_queries_and_keys_alone_have_the_named_optimiser(name, kind) -> None:
    model = Decoder(9, DecoderSizes(10, 12, 2, 2))
    made = attention_optimiser(model, name, 0.1)
    own, rest = made.param_groups
    mine = {id(part.weight) for block in model.blocks for part in (block.queries, block.keys)}
    assert {id(each) for each in own["params"]} == mine
    assert len(rest["params"]) == len(list(model.parameters())) - len(mine)
    assert (own["lr"], own.get("weight_decay", 0.0), rest["lr"]) == (0.1, 0.0, 1e-3)
    assert type(made.optimizers[0]).__name__ == kind


def test_a_training_is_kept_and_read_where_a_folder_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("ATTSVM_TRAINED", raising=False)
    plain = trained_decoder(MADE, TINY, "muon", 3)
    monkeypatch.setenv("ATTSVM_TRAINED", str(tmp_path / "kept"))
    first = trained_decoder(MADE, TINY, "muon", 3)
    runs = []
    monkeypatch.setattr(networks, "held_out_loss", lambda *_: runs.append(1) or 0.0)
    again = trained_decoder(MADE, TINY, "muon", 3)
    assert not runs, "it was read"
    for key, value in plain.weights[-1].items():
        assert np.array_equal(value, first.weights[-1][key])
        assert np.array_equal(value, again.weights[-1][key])
    assert np.array_equal(first.losses, plain.losses)
    monkeypatch.setitem(networks.RATES, "muon", 0.02)
    trained_decoder(MADE, TINY, "muon", 3)
    assert runs, "another rate is another training"


def test_checkpoints_are_twenty_from_the_first_weights_to_the_last() -> None:
    steps = checkpoints(450)
    assert (len(steps), steps[0], steps[-1]) == (20, 0, 450)
    assert np.all(np.diff(np.diff(steps)) >= -1), "denser early"
    training = trained_decoder(MADE, TINY, "sgd", 0)
    assert training.nearest(training.losses[2]) == 2
    torch.manual_seed(0)
    fresh = Decoder(training.vocabulary, DecoderSizes(**TINY))
    assert torch.equal(training.model(0).tokens.weight, fresh.tokens.weight)


def test_without_the_text_or_the_models_an_experiment_says_so(monkeypatch, tmp_path):
    chosen, others = experiment("heads-1"), experiment("heads-6").parameters
    monkeypatch.delenv("ATTSVM_DATA", raising=False)
    with pytest.raises(UnavailableError, match="ATTSVM_DATA is not set"):
        list(chosen.cells(chosen.parameters))
    monkeypatch.setenv("ATTSVM_DATA", str(tmp_path))
    with pytest.raises(UnavailableError, match=r"has no tinyshakespeare/input\.txt"):
        list(chosen.cells(chosen.parameters))
    with pytest.raises(UnavailableError, match="all-MiniLM-L6-v2"):
        heads_6.layer_cells(others)
    for part in ("tinyshakespeare", "rxnmapper", "reactions"):
        (tmp_path / part).mkdir()
    (tmp_path / "tinyshakespeare" / "input.txt").write_text("abc", encoding="utf-8")
    assert list(chosen.cells(chosen.parameters))
    assert heads_6.layer_cells(others) == [("rxnmapper", k) for k in range(12)]


@pytest.mark.parametrize("kind", KINDS)
def test_nulls_keep_what_they_say(kind) -> None:
    rng = np.random.default_rng(0)
    W = rng.normal(size=(12, 3)) @ rng.normal(size=(3, 12))
    V = null_weights(W, kind, rng)
    U, s, Vt = np.linalg.svd(W)
    np.testing.assert_allclose(np.linalg.svd(V, compute_uv=False)[:3], s[:3], rtol=1e-10)
    outside = max(np.abs(U[:, 3:].T @ V).max(), np.abs(V @ Vt[3:].T).max())
    assert (outside > 0.1) == (kind == "random")
    core = U[:, :3].T @ V @ Vt[:3].T
    if kind in ("permuted", "again"):
        np.testing.assert_allclose(np.diag(core), 0, atol=1e-10)
        assert np.count_nonzero(np.abs(core) > 1e-9) == 3
    elif kind == "rotated":
        assert np.count_nonzero(np.abs(core) > 1e-9) == 9


def some_inputs(n=20, T=16, d=8):
    rng = np.random.default_rng(1)
    return rng.normal(size=(n, T, d)), rng.integers(30, size=(n, T)), rng


def test_sure_queries_are_counted_and_weights_scaled_until_there_are_enough() -> None:
    inputs, _, rng = some_inputs()
    W = rng.normal(size=(8, 8))
    own = draw_sure_queries(W, inputs, HeadOptions(20), rng)
    logits = np.einsum("ntd,de,nqe->nqt", inputs, W, inputs)
    logits = np.where(np.arange(16) <= np.arange(16)[:, None], logits, -np.inf)
    top = np.exp(logits - logits.max(axis=2, keepdims=True))
    top = top.max(axis=2) / top.sum(axis=2)
    sure = (top > 0.5) & (np.arange(16) >= 8)
    assert (own.count, own.sure) == (sure.sum(), pytest.approx(sure.sum() / 160))
    assert len(own.members) == 20
    assert sure.ravel()[own.members].all()
    assert len(own.others) == own.count - 20
    assert not np.intersect1d(own.members, own.others).size
    small = draw_sure_queries(1e-3 * W, inputs, HeadOptions(20), rng)
    assert (small.count, len(small.members)) == (0, 20)
    assert np.array_equal(small.selected, own.selected), "scaling moves no selection"
    surest = draw_sure_queries(W, inputs, HeadOptions(20, surest=True), rng)
    assert top.ravel()[surest.members].min() >= top.ravel()[surest.others].max()
    wide = draw_sure_queries(W, inputs, HeadOptions(20), rng, target_count=100)
    assert len(wide.members) + len(wide.others) == 100


def test_equal_characters_are_no_rivals_where_they_count_as_one() -> None:
    inputs, tokens, rng = some_inputs()
    tokens[:] = np.arange(16) % 2
    seen = draw_sure_queries(rng.normal(size=(8, 8)), inputs, HeadOptions(20), rng)
    full, halved = (
        programme_of(seen, inputs, tokens, HeadOptions(20, classes=c)) for c in (False, True)
    )
    assert halved.m < full.m


@pytest.mark.parametrize("norm", ["nuc", "fro"])
def test_a_planted_head_is_found_and_a_random_one_is_not(norm) -> None:
    inputs, tokens, rng = some_inputs(n=10, d=40)
    for planted in (True, False):
        found = []
        for seed in range(3):
            W, other = (rng.normal(size=(40, 2)) @ rng.normal(size=(2, 40)) for _ in range(2))
            if planted:  # a head at its limit: the solution of what another one selects
                seen = draw_sure_queries(1e3 * W, inputs, HeadOptions(10_000), rng)
                W = 40 * max_margin(programme_of(seen, inputs, tokens, HeadOptions(40)), norm).W
            layer = LayerAttention(inputs, tokens, np.stack([W, other]))
            found += own_solutions(layer, 0, [norm], HeadOptions(40), seed)
        assert all(own["optimal"] and 0 < own["share"] <= 1 + 1e-6 for own in found)
        above = excess_over_nulls(table(found)).mean()
        assert above > 0.15 if planted else above < 0.05


def test_the_average_is_the_gradient_of_the_mean_margin() -> None:
    inputs, tokens, rng = some_inputs(n=4)
    W, look, expected = rng.normal(size=(8, 8)), HeadOptions(6), np.zeros((8, 8))
    seen = draw_sure_queries(W, inputs, look, rng)
    for query in seen.members:
        x, t = inputs[query // 16], query % 16
        chosen = seen.selected.ravel()[query]
        rivals = np.delete(x[: t + 1], chosen, axis=0)
        expected += np.outer(x[chosen] - rivals.mean(axis=0), x[t])
    np.testing.assert_allclose(average(programme_of(seen, inputs, tokens, look)), expected)


def test_surrogates_have_the_moments_and_the_geometry_of_the_layer_norm() -> None:
    torch.manual_seed(0)
    norm = torch.nn.LayerNorm(6)
    with torch.no_grad():
        norm.weight.copy_(torch.rand(6) + 0.5)
        norm.bias.copy_(torch.randn(6))
        inputs = norm(torch.randn(300, 10, 6) @ torch.randn(6, 6)).double().numpy()
    made = heads_4.gaussian_surrogate(inputs, norm, np.random.default_rng(0))
    scale, shift = (each.detach().double().numpy() for each in (norm.weight, norm.bias))
    inner = (made - shift) / scale
    np.testing.assert_allclose(inner.mean(axis=-1), 0, atol=1e-10)
    np.testing.assert_allclose(inner.std(axis=-1), 1, atol=1e-10)
    rows, others = made.reshape(-1, 6), inputs.reshape(-1, 6)
    assert np.abs(np.cov(rows.T) - np.cov(others.T)).max() < 0.25
    assert np.abs(rows - others).max() > 0.5, "they are other vectors"


def test_lifted_weights_give_the_logits_of_a_rotary_head() -> None:
    model = Stories().eval()
    ids = rotary.write_stories(model, 2, 24)
    assert len(set(map(tuple, ids.tolist()))) == 2
    with torch.no_grad(), capture(model, layers=[2]) as recording:
        model(ids)
    inputs, factors = model.layer_inputs(ids, 2).double().numpy(), rotary.rotary_weights(model, 2)
    for text in (0, 1):
        expected = recording.layers[2].texts[text].logits().double().numpy()
        for head in (0, 5):
            W = rotary.stack_cosines_and_sines(*factors[head])
            for z, keys, place in rotary.queries_of(inputs[text : text + 1], 8):
                found = keys @ (W @ z)
                np.testing.assert_allclose(found, expected[head, place, : place + 1], atol=1e-4)


@pytest.mark.parametrize("kind", rotary.NULLS[1:])
def test_nulls_of_rotary_heads_are_rotary_heads_of_the_same_size(kind) -> None:
    rng = np.random.default_rng(0)
    K, Q = rng.normal(size=(2, 8, 24))
    other, further = rotary.rotary_null_factors(K, Q, kind, rng.normal(size=(3, 30, 24)) + 1.0, rng)
    for new, old in ((other, K), (further, Q)):
        np.testing.assert_allclose(
            np.linalg.svd(new, compute_uv=False), np.linalg.svd(old, compute_uv=False), rtol=1e-10
        )
    assert (
        np.abs(
            rotary.stack_cosines_and_sines(other, further) - rotary.stack_cosines_and_sines(K, Q)
        ).max()
        > 0.1
    )
    if kind == "permuted":
        pairs = zip(other.reshape(4, 2, 24), K.reshape(4, 2, 24), strict=True)
        assert not any(np.allclose(*each) for each in pairs), "no frequency keeps its features"
    if kind == "rotated":
        np.testing.assert_allclose(other.T @ other, K.T @ K, atol=1e-9)
