"""Heads beside the max-margin solutions of their own selections: the decoder, its optimisers, the
nulls, and claims that can fail.
"""

import numpy as np
import pytest
import torch

from attsvm import max_margin
from attsvm.claims import Evidence
from attsvm.errors import UnavailableError
from attsvm.probe import capture
from attsvm.probe.demo import Stories
from attsvm_papers.heads import e4_explanations as heads_4
from attsvm_papers.heads import e6_pretrained as heads_6
from attsvm_papers.heads import networks, rotary
from attsvm_papers.heads.decoder import (
    MADE,
    OPTIMISERS,
    Decoder,
    Sizes,
    characters,
    optimiser,
    training,
)
from attsvm_papers.heads.networks import RATES, attention, checkpoints, trained
from attsvm_papers.heads.own_solutions import (
    KINDS,
    NULLS,
    STRICT,
    Look,
    average,
    cosine,
    own_solutions,
    programme_of,
    sees,
    variant,
)
from attsvm_papers.heads.reading import NORMS
from attsvm_papers.kit import experiment

TINY = Sizes(context=10, width=12, depth=2, heads=2, batch=4, steps=6)


def claims(name):
    return {one.id: one for one in experiment(name).claims}


def test_weights_and_inputs_give_the_logits_of_the_model() -> None:
    torch.manual_seed(0)
    model, texts = Decoder(9, TINY), torch.randint(9, (3, 10))
    seen = []
    block = model.blocks[1]
    hooks = [
        part.register_forward_hook(lambda _, __, out: seen.append(out.detach()))
        for part in (block.queries, block.keys)
    ]
    layer = attention(model, texts)[1]
    for hook in hooks:
        hook.remove()
    q, k = (each.unflatten(-1, (2, 6)).transpose(1, 2).double() for each in seen)
    expected = (q @ k.mT / np.sqrt(6)).numpy()
    for head, W in enumerate(layer.weights):
        logits = (layer.inputs @ W.T) @ layer.inputs.transpose(0, 2, 1)
        np.testing.assert_allclose(logits, expected[:, head], atol=1e-5)
    assert np.array_equal(layer.tokens, texts.numpy())


def test_optimisers_differ_in_queries_and_keys_alone() -> None:
    train, _, vocabulary = characters(MADE)
    after = {}
    for name in OPTIMISERS:
        steps = dict(training(train, vocabulary, TINY, name, RATES[name], 0))
        after[name] = {k: v.detach().numpy().copy() for k, v in steps[6].named_parameters()}
    first = {}
    for name in OPTIMISERS:
        for step, model in training(train, vocabulary, TINY, name, RATES[name], 0):
            if step == 1:
                first[name] = {k: v.detach().numpy().copy() for k, v in model.named_parameters()}
                break
    for key, value in first["adamw"].items():
        own = key.endswith(("queries.weight", "keys.weight"))
        for name in OPTIMISERS[1:]:
            assert np.array_equal(first[name][key], value) != own, (name, key)
            assert not np.array_equal(after[name][key], after["adamw"][key])


def test_all_queries_and_keys_have_the_named_optimiser() -> None:
    model = Decoder(9, TINY)
    for name, kind in zip(
        OPTIMISERS, ("AdamW", "SGD", "Muon", "SteepestDescent", "MirrorDescent"), strict=True
    ):
        combined = optimiser(model, name, 0.1)
        own = combined.param_groups[0]
        assert len(own["params"]) == 2 * TINY.depth
        assert own["lr"] == 0.1
        assert own.get("weight_decay", 0.0) == 0.0
        assert type(combined.optimizers[0]).__name__ == kind


def test_a_training_is_kept_and_read_where_a_folder_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("ATTSVM_TRAINED", raising=False)
    plain = trained(MADE, TINY, "muon", 0.01, 3)
    monkeypatch.setenv("ATTSVM_TRAINED", str(tmp_path / "kept"))
    first = trained(MADE, TINY, "muon", 0.01, 3)
    runs = []
    monkeypatch.setattr(networks, "held_out_loss", lambda *_: runs.append(1) or 0.0)
    again = trained(MADE, TINY, "muon", 0.01, 3)
    assert not runs, "it was read"
    for key, value in plain.weights[-1].items():
        assert np.array_equal(value, first.weights[-1][key])
        assert np.array_equal(value, again.weights[-1][key])
    assert np.array_equal(first.losses, plain.losses)
    trained(MADE, TINY, "muon", 0.02, 3)
    assert runs, "another rate is another training"


def test_checkpoints_are_twenty_from_the_first_weights_to_the_last() -> None:
    steps = checkpoints(450)
    assert (len(steps), steps[0], steps[-1]) == (20, 0, 450)
    assert np.all(np.diff(np.diff(steps)) >= -1), "denser early"
    training = trained(MADE, TINY, "sgd", 0.1, 0)
    assert training.nearest(training.losses[2]) == 2
    torch.manual_seed(0)
    fresh = Decoder(training.vocabulary, TINY)
    assert torch.equal(training.model(0).tokens.weight, fresh.tokens.weight)


@pytest.mark.parametrize("name", [f"heads-{k}" for k in (1, 2, 3, 4)])
def test_without_the_text_an_experiment_says_so_in_one_sentence(name, monkeypatch, tmp_path):
    chosen = experiment(name)
    monkeypatch.delenv("ATTSVM_DATA", raising=False)
    with pytest.raises(UnavailableError, match="ATTSVM_DATA is not set") as caught:
        list(chosen.cells(chosen.parameters))
    assert "\n" not in str(caught.value)
    monkeypatch.setenv("ATTSVM_DATA", str(tmp_path))
    with pytest.raises(UnavailableError, match=r"has no tinyshakespeare/input\.txt"):
        list(chosen.cells(chosen.parameters))
    (tmp_path / "tinyshakespeare").mkdir()
    (tmp_path / "tinyshakespeare" / "input.txt").write_text("abc", encoding="utf-8")
    assert list(chosen.cells(chosen.parameters))


def test_without_models_heads_6_says_so(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("ATTSVM_DATA", str(tmp_path))
    with pytest.raises(UnavailableError, match="all-MiniLM-L6-v2"):
        heads_6.layers(experiment("heads-6").parameters)
    for part in ("rxnmapper", "reactions"):
        (tmp_path / part).mkdir()
    assert heads_6.layers(experiment("heads-6").parameters) == [("rxnmapper", k) for k in range(12)]


@pytest.mark.parametrize("kind", KINDS)
def test_nulls_keep_what_they_say(kind) -> None:
    rng = np.random.default_rng(0)
    W = rng.normal(size=(12, 3)) @ rng.normal(size=(3, 12))
    V = variant(W, kind, rng)
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
    own = sees(W, inputs, Look(20), rng)
    logits = np.where(
        np.arange(16) <= np.arange(16)[:, None],
        np.einsum("ntd,de,nqe->nqt", inputs, W, inputs),
        -np.inf,
    )
    top = np.exp(logits - logits.max(axis=2, keepdims=True))
    top = top.max(axis=2) / top.sum(axis=2)
    sure = (top > 0.5) & (np.arange(16) >= 8)
    assert own.scale == 1.0
    assert own.count == sure.sum()
    assert own.sure == pytest.approx(sure.sum() / 160)
    assert len(own.members) == 20
    assert sure.ravel()[own.members].all()
    assert not np.intersect1d(own.members, own.others).size
    small = sees(1e-3 * W, inputs, Look(20), rng)
    assert small.count == 0
    assert small.scale > 10
    assert len(small.members) == 20
    assert np.array_equal(small.selected, own.selected), "scaling moves no selection"
    surest = sees(W, inputs, Look(20, surest=True), rng)
    assert top.ravel()[surest.members].min() >= top.ravel()[surest.others].max()


def test_equal_characters_are_no_rivals_where_they_count_as_one() -> None:
    inputs, tokens, rng = some_inputs()
    tokens[:] = np.arange(16) % 2
    W = rng.normal(size=(2, 8, 8))
    full, halved = (
        own_solutions(W, 0, inputs, tokens, ["fro"], Look(20, classes=c), 0)[0]
        for c in (False, True)
    )
    assert halved.rows < full.rows


@pytest.mark.parametrize("norm", ["nuc", "fro"])
def test_a_planted_head_is_found_and_a_random_one_is_not(norm) -> None:
    inputs, tokens, rng = some_inputs(n=10, d=40)
    excesses = {}
    for planted in (True, False):
        found = []
        for seed in range(3):
            W, other = (rng.normal(size=(40, 2)) @ rng.normal(size=(2, 40)) for _ in range(2))
            if planted:  # a head at its limit: the solution of what another one selects
                seen = sees(1e3 * W, inputs, Look(10_000), rng)
                W = 40 * max_margin(programme_of(seen, inputs, tokens, Look()), norm).W
            heads = np.stack([W, other])
            (own,) = own_solutions(heads, 0, inputs, tokens, [norm], Look(40), seed)
            assert own.optimal
            assert 0 < own.share <= 1 + 1e-6
            found.append(own.excess)
        excesses[planted] = np.mean(found)
    assert excesses[True] > 0.15
    assert excesses[False] < 0.05


def test_the_average_is_the_gradient_of_the_mean_margin() -> None:
    inputs, tokens, rng = some_inputs(n=4)
    W, look = rng.normal(size=(8, 8)), Look(6)
    seen = sees(W, inputs, look, rng)
    expected = np.zeros((8, 8))
    for query in seen.members:
        x, t = inputs[query // 16], query % 16
        chosen = seen.selected.ravel()[query]
        rivals = np.delete(x[: t + 1], chosen, axis=0)
        expected += np.outer(x[chosen] - rivals.mean(axis=0), x[t])
    np.testing.assert_allclose(average(programme_of(seen, inputs, tokens, look)), expected)


def test_another_draw_has_other_queries_and_the_same_nulls() -> None:
    inputs, tokens, rng = some_inputs(n=40)
    W = rng.normal(size=(2, 8, 8))
    one, other = (
        own_solutions(W, 0, inputs, tokens, ["fro"], Look(15), 0, draw=k)[0] for k in (0, 1)
    )
    assert one.nulls == other.nulls
    assert cosine(one.solution, other.solution) < 0.999


def test_a_head_that_is_sure_of_no_other_queries_has_no_say_about_them() -> None:
    columns = {"agreement": [0.8, np.nan, 0.7, 0.9], "usual": [0.3, np.nan, 0.5, 0.4]}
    names = [heads_4.PAIR[k] for k in (0, 0, 1, 1)]
    counted = {
        "part": ["samples"] * 4,
        "optimiser": names,
        "seed": [0, 1, 0, 1],
        "queries": [160] * 4,
    }
    table = {**counted, **columns, "norm": [0] * 4}
    evidence = Evidence({name: np.array(each) for name, each in table.items()})
    h8b = next(each for each in experiment("heads-4").claims if each.id == "H8b")
    np.testing.assert_allclose(h8b.measure(evidence), [0.5, 0.35])


def test_surrogates_have_the_moments_and_the_geometry_of_the_layer_norm() -> None:
    torch.manual_seed(0)
    norm = torch.nn.LayerNorm(6)
    with torch.no_grad():
        norm.weight.copy_(torch.rand(6) + 0.5)
        norm.bias.copy_(torch.randn(6))
        raw = torch.randn(300, 10, 6) @ torch.randn(6, 6)
        inputs = norm(raw).double().numpy()
    made = heads_4.surrogate(inputs, norm, np.random.default_rng(0))
    scale, shift = (each.detach().double().numpy() for each in (norm.weight, norm.bias))
    inner = (made - shift) / scale
    np.testing.assert_allclose(inner.mean(axis=-1), 0, atol=1e-10)
    np.testing.assert_allclose(inner.std(axis=-1), 1, atol=1e-10)
    rows, others = made.reshape(-1, 6), inputs.reshape(-1, 6)
    assert np.abs(np.cov(rows.T) - np.cov(others.T)).max() < 0.25
    assert np.abs(rows - others).max() > 0.5, "they are other vectors"


def matched_evidence(apart: float, reflected: float) -> Evidence:
    """Heads with cosine .4, and an excess of .2 in heads-1, beside these nulls."""
    rng, table = np.random.default_rng(0), []
    for name in OPTIMISERS:
        for seed in range(5):
            row = {"part": "matched", "norm": 0, "optimiser": name, "seed": seed, "digest": "a"}
            row |= {"cosine": 0.4, "heads": 0.0}
            row |= {"random": np.nan, "rotated": 0.2, "permuted": 0.2, "average": 0.4}
            row |= {"optimal": 1, "gap": 0.0, "worst": 0.0}
            for draw in range(heads_4.DRAWS):
                row[f"apart {draw}"] = apart + 0.005 * rng.normal()
                row[f"reflected {draw}"] = reflected + 0.005 * rng.normal()
            table.append(row)
    return Evidence({name: np.array([row[name] for row in table]) for name in table[0]})


@pytest.mark.parametrize(
    ("apart", "reflected", "holding"),
    [(0.2, 0.35, {"H11", "H11a"}), (0.2, 0.4, {"H11"})],
)
def test_nulls_that_match_the_covariance_can_explain_the_excess(apart, reflected, holding) -> None:
    known, evidence = claims("heads-4"), matched_evidence(apart, reflected)
    for name in ("H11", "H11a"):
        assert (known[name].check(evidence).verdict == "holds") == (name in holding), name
    wild = dict(evidence)
    wild["apart 0"] = np.full(len(wild["apart 0"]), apart + 0.2)
    assert known["H11"].check(wild).null.verdict == "holds", "a draw is as far above the others"


def heads_evidence(own: float, *, null: float = 0.2, muon: float = 10.0) -> Evidence:
    """Five seeds of five optimisers with these cosines."""
    rng, table = np.random.default_rng(0), []
    for optimiser_name in OPTIMISERS:
        for seed in range(5):
            for moment, norm in ((0, 0), (0, 1), (1, 0)):
                for head in range(2):
                    row = {"optimiser": optimiser_name, "seed": seed, "digest": "a"}
                    row |= {"moment": moment, "norm": norm, "head": head, "heads": 0.05}
                    row |= {kind: null + 0.01 * rng.normal() for kind in KINDS}
                    row["cosine"] = own + 0.01 * rng.normal()
                    row |= {"average": own - 0.1, "average_null": null, "optimal": 1, "gap": 0.0}
                    row["rank"] = muon if optimiser_name == "muon" else 2.0
                    table.append(row)
    return Evidence({name: np.array([row[name] for row in table]) for name in table[0]})


@pytest.mark.parametrize(
    ("own", "verdict"), [(0.4, "holds"), (0.2, "fails"), (0.1, "fails")], ids=str
)
def test_the_finding_holds_for_near_heads_and_fails_for_their_nulls(own, verdict) -> None:
    known, evidence = claims("heads-1"), heads_evidence(own)
    for name in ("H1", "H1b", "H2"):
        assert known[name].check(evidence).verdict == verdict, name
    assert known["H1"].check(evidence).null.verdict == "fails"


def test_other_claims_can_fail() -> None:
    known = claims("heads-1")
    assert known["H3"].check(heads_evidence(0.4)).verdict == "holds"
    assert known["H3"].check(heads_evidence(0.4, muon=2.0)).verdict == "fails"
    assert known["H4"].check(heads_evidence(0.4)).verdict == "holds"
    worse = dict(heads_evidence(0.4))
    worse["average"] = np.full(len(worse["average"]), 0.9)
    assert known["H4"].check(worse).verdict == "fails"
    worse["again"] = np.full(len(worse["again"]), 0.4)
    assert known["H1"].check(worse).verdict == "not shown"
    few = heads_evidence(0.4)
    few = few.take(few["seed"] < 4)
    assert known["H1"].check(few).verdict == "not applicable"


@pytest.mark.parametrize("best", NORMS)
def test_the_norm_of_the_largest_excess_decides(best) -> None:
    following = NORMS[(NORMS.index(best) + 1) % len(NORMS)]
    rng, table = np.random.default_rng(0), []
    for name in OPTIMISERS:
        for seed in range(5):
            for k, norm in enumerate(NORMS):
                row = {"optimiser": name, "seed": seed, "norm": k, "digest": "a", "heads": 0.0}
                row |= {"random": np.nan, "rotated": 0.1, "permuted": 0.1}
                ahead = norm == (following if name == "muon" else best)
                row["cosine"] = (0.5 if ahead else 0.3) + 0.005 * rng.normal()
                table.append(row)
    evidence = Evidence({name: np.array([row[name] for row in table]) for name in table[0]})
    known = claims("heads-2")
    found = {name: claim.check(evidence) for name, claim in known.items()}
    assert (found["H6"].verdict == "fails") == (best in ("l1", "linf"))
    assert (found["H6"].null.verdict == "fails") == (best == "nuc")
    assert (found["H6b"].verdict == "holds") == (best == "fro")


def test_lifted_weights_give_the_logits_of_a_rotary_head() -> None:
    model = Stories().eval()
    ids = rotary.stories(model, 2, 24)
    assert len(set(map(tuple, ids.tolist()))) == 2
    with torch.no_grad(), capture(model, layers=[2]) as recording:
        model(ids)
    inputs, factors = model.seen(ids, 2).double().numpy(), rotary.weights(model, 2)
    for text in (0, 1):
        expected = recording.layers[0].texts[text].logits().double().numpy()
        for head in (0, 5):
            W = rotary.lifted(*factors[head])
            for z, keys, place in rotary.queries_of(inputs[text : text + 1], 8):
                found = keys @ (W @ z)
                np.testing.assert_allclose(found, expected[head, place, : place + 1], atol=1e-4)


@pytest.mark.parametrize("kind", rotary.NULLS[1:])
def test_nulls_of_rotary_heads_are_rotary_heads_of_the_same_size(kind) -> None:
    rng = np.random.default_rng(0)
    K, Q = rng.normal(size=(2, 8, 24))
    inputs = rng.normal(size=(3, 30, 24)) + 1.0
    other, further = rotary.variant(K, Q, kind, inputs, rng)
    for new, old in ((other, K), (further, Q)):
        np.testing.assert_allclose(
            np.linalg.svd(new, compute_uv=False), np.linalg.svd(old, compute_uv=False), rtol=1e-10
        )
    assert np.abs(rotary.lifted(other, further) - rotary.lifted(K, Q)).max() > 0.1
    if kind == "permuted":
        planes = other.reshape(4, 2, 24)
        moved = [np.allclose(planes[j], K.reshape(4, 2, 24)[j]) for j in range(4)]
        assert not any(moved), "no frequency keeps its features"
    if kind == "rotated":
        np.testing.assert_allclose(other.T @ other, K.T @ K, atol=1e-9)


def test_strict_nulls_are_nulls() -> None:
    assert set(STRICT) < set(NULLS)
