"""The audit: statistics by hand, weights planted at their own max-margin solution, honest nulls."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from attsvm import Frobenius, InputError, Nuclear, max_margin, pair_margins
from attsvm.transformers import Recording, audit, demo_model
from attsvm.transformers.audit import audit_statistics, compare_pending_heads
from attsvm.transformers.comparison import AuditSettings, resample_texts, solve_or_soften
from attsvm.transformers.head_findings import Support
from attsvm.transformers.head_inputs import HeadInputs
from attsvm.transformers.recording import Layer, TextAttention
from attsvm.transformers.selections import KINDS, compute_selections, favourite_token
from attsvm.transformers.token_names import strip_marks

from .conftest import Attention, family, one_head, recorded, sharpened


def random_heads(seed: int, heads: int = 4, width: int = 24, d: int = 6) -> Attention:
    rng = np.random.default_rng(seed)
    shape = (heads * d, width)
    return Attention(rng.normal(size=shape), rng.normal(size=shape), heads)


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_statistics_by_hand() -> None:
    model = random_heads(0)
    recording = recorded(model, normal(0, 2, 9, 24))
    layer = recording.layers[0]
    found = compute_selections(recording, layer)
    for h in range(4):
        logits = np.concatenate([text.logits()[h].double().numpy() for text in layer.texts])
        order = np.sort(logits, axis=1)
        weights = np.exp(logits - order[:, -1:])
        weights /= weights.sum(axis=1, keepdims=True)
        exact = order[:, -1] - order[:, -2]
        size = np.abs(order[:, -1]).max()  # of logits in float32, whose rounding a margin inherits
        np.testing.assert_allclose(found.margin[h], exact, atol=4e-7 * size)
        np.testing.assert_allclose(found.top[h], weights.max(axis=1), rtol=1e-5)
        entropy = -(weights * np.log(np.maximum(weights, 1e-300))).sum(axis=1)
        np.testing.assert_allclose(found.entropy[h], entropy, atol=1e-5)
        assert (found.selected[h] == logits.argmax(axis=1)).all()
        own = np.tile(np.arange(9), 2)
        itself = found.kind[h] == KINDS.index("itself")
        assert (itself == (found.selected[h] == own)).all()
        lengths = [
            torch.cat([getattr(text, name)[h] for text in layer.texts]).square().sum(dim=1)
            for name in ("queries", "keys")
        ]
        size = 6**-0.5 * np.prod([float(each.mean().sqrt()) for each in lengths])
        np.testing.assert_allclose(found.scale_free[h], exact / size, atol=1e-5)
        told = audit(recording, norms=()).heads[h]
        assert told.margin[1] == pytest.approx(np.median(exact), rel=1e-5)
        assert told.scale_free[1] == pytest.approx(np.median(exact) / size, rel=1e-5)
        row = told.row()
        assert (row["margin"], row["margin_scale_free"]) == (told.margin[1], told.scale_free[1])


def test_classes_add_their_weights_and_are_no_rivals() -> None:
    recording = recorded(random_heads(1), normal(1, 1, 8, 24))
    classes = np.array([0, 0, 1, 1, 2, 2, 3, 3])
    alone = compute_selections(recording, recording.layers[0])
    joined = compute_selections(recording, recording.layers[0], [classes])
    assert (joined.margin >= alone.margin - 1e-6).all()
    assert (joined.top >= alone.top - 1e-6).all()
    h, j = 2, 5
    logits = recording.layers[0].texts[0].logits()[h, j].numpy()
    best = logits.argmax()
    other = logits[classes != classes[best]].max()
    assert joined.margin[h, j] == pytest.approx(logits[best] - other, rel=1e-5)
    with pytest.raises(InputError, match="classes of text 0 have shape"):
        compute_selections(recording, recording.layers[0], [classes[:3]])


def test_copies_that_are_declared_equivalent_change_no_null() -> None:
    """Of two heads of size two ``permuted`` has one draw: the swap of the singular vectors."""
    model = random_heads(4, heads=1, width=24, d=2)
    with torch.no_grad():
        model.q_proj.weight.mul_(0.1)  # sure of half of the queries
    x = normal(4, 6, 10, 24)
    copies = x + 1e-6 * normal(5, *x.shape)
    options = {"norms": ["fro"], "nulls": ["permuted"], "most": 10_000, "center": False}
    alone = audit(recorded(model, x), **options).heads[0]
    both = recorded(model, torch.cat([x, copies], dim=1))
    joined = audit(both, **options, classes=[np.tile(np.arange(10), 2)] * 6).heads[0]
    assert 0.2 < alone.sure[0] < 0.8
    assert joined.sure == pytest.approx(alone.sure, abs=1e-9)
    one, two = alone.fit("fro"), joined.fit("fro")
    assert two.cosine == pytest.approx(one.cosine, abs=1e-3)
    assert two.nulls["permuted"] == pytest.approx(one.nulls["permuted"], abs=1e-3)


def test_the_other_copy_of_what_a_head_selects_agrees_with_it() -> None:
    layer = recorded(random_heads(0), normal(0, 2, 6, 24)).layers[0]
    inputs = HeadInputs(layer, 0, classes=[np.array([0, 1, 2, 0, 1, 2]), np.arange(6)])
    queries = np.array([0, 1, 7, 7, 2, 2])  # two of the second text
    one, other = np.array([0, 0, 0, 3, -1, 6]), np.array([3, 1, 3, 3, -1, 0])
    found = inputs.equivalent(queries, one, other)
    assert found.tolist() == [True, False, False, True, False, False]


def planted(seed: int, norm) -> tuple[Attention, torch.Tensor]:
    """A head that is the max-margin solution of its own selections."""
    rng = np.random.default_rng(seed)
    width, T = 16, 12
    x = rng.normal(size=(6, T, width))
    x -= x.reshape(-1, width).mean(axis=0)  # the mean query is zero, so centring changes nothing
    z = np.concatenate([x, np.ones((6, T, 1))], axis=2)
    W = rng.normal(size=(width, width + 1))
    chosen = [(keys @ W @ queries.T).T.argmax(axis=1) for keys, queries in zip(x, z, strict=True)]
    W = max_margin(pair_margins(list(x), list(z), chosen, causal=False), norm, tol=1e-8).W
    return one_head(W, 8.0), torch.from_numpy(x)  # sure at every query: margins of eight nats


@pytest.mark.parametrize("norm", [Frobenius(), Nuclear()])
def test_a_planted_head_is_its_own_solution_and_its_nulls_are_not(norm) -> None:
    model, x = planted(0, norm)
    found = audit(
        recorded(model, x), norms=[norm], nulls=("permuted", "rotated", "random"), most=10_000
    )
    fit = found.head(0, 0).fit(norm)
    assert fit.status == "optimal"
    assert fit.cosine > 0.999
    assert fit.share > 0.99
    assert fit.excess > 0.15
    assert found.support(0, 0)[0].multiplier > 0


def test_other_texts_are_guessed_by_the_solution_and_by_the_usual_distance() -> None:
    """Six positions, of which each selects the one before it, and the first one itself."""
    W = np.zeros((6, 7))
    W[[0, 0, 1, 2, 3, 4], range(6)] = 1.0
    x = torch.eye(6, dtype=torch.float64).expand(4, 6, 6)
    (fit,) = audit(recorded(one_head(W, 8.0), x), nulls=[]).heads[0].fits
    assert (fit.agreement, fit.baseline) == (1.0, pytest.approx(5 / 6))


def test_the_seed_decides_and_rows_are_flat() -> None:
    recording = sharpened(recorded(family("bert"), "bert"), 200.0)
    first, again, other = (audit(recording, seed=seed, draws=1) for seed in (3, 3, 4))
    assert str(first.heads) == str(again.heads) != str(other.heads)
    rows = first.table()
    assert len(rows) == 8
    assert {"layer", "head", "margin_scale_free", "fro_excess"} <= set(rows[0])
    assert len(repr(first)) <= 300


def test_heads_are_compared_the_most_selective_first() -> None:
    """And each as it would be alone: a null and a draw of a head is of that head's own numbers."""
    model = random_heads(4)
    with torch.no_grad():
        for h, factor in enumerate((0.3, 3.0, 0.1, 1.0)):
            model.q_proj.weight[6 * h : 6 * h + 6].mul_(factor)
    x = normal(5, 3, 10, 24)
    recording = recorded(model, x)
    settings = AuditSettings(draws=1, threshold=0.2, most=20)
    found, seen = audit_statistics(recording, settings)
    assert not any(head.fits for head in found.heads)
    assert [head.head for head in found.pending] == [1, 3, 0, 2]
    heads = list(compare_pending_heads(recording, found, seen, settings))
    assert [head.head for head in heads] == [1, 3, 0, 2]
    for head in heads:
        found.replace_head(head)
    assert not found.pending
    (layer,) = recording.layers.values()
    alone = dataclasses.replace(recording, layers={0: layer})
    whole = audit(alone, draws=1, threshold=0.2, most=20)
    assert str(whole.heads) == str(found.heads)
    some = recorded(model, x, heads=[1, 3])
    for head in audit(some, nulls=["permuted"], draws=1, threshold=0.2, most=20).heads:
        one, other = head.fit("fro"), found.head(0, head.head).fit("fro")
        assert (one.cosine, one.resampled) == (other.cosine, other.resampled)


def test_shares_by_chance_are_those_of_uniform_selection() -> None:
    """A causal text of four tokens, two of them alike."""
    visible = np.tri(4, dtype=bool)
    queries, keys = torch.zeros(1, 4, 2), torch.zeros(1, 4, 2)
    text = TextAttention(queries, keys, np.arange(4), visible, None, 1.0, 0, 4)
    layer = Layer(0, "", [0], False, True, [text])
    recording = Recording({0: layer}, [np.array([5, 7, 5, 7])], [["a", "b", "a", "b"]])
    found = compute_selections(recording, layer)
    chance = dict(zip(KINDS, found.chance, strict=True))
    own = 1 + 1 / 2 + 1 / 3 + 1 / 4
    assert chance["itself"] == pytest.approx(own / 4)
    assert chance["previous"] == pytest.approx((own - 1) / 4)
    assert chance["first"] == pytest.approx((1 / 3 + 1 / 4) / 4)  # not where it is the one before
    assert chance["same token"] == pytest.approx(1 / 16)  # b of the last
    assert sum(chance.values()) == pytest.approx(1)
    np.testing.assert_allclose(found.entropy[0], np.log([1, 2, 3, 4]), atol=1e-6)
    assert found.rival[0, 0] == -1
    assert found.sure(0, 0.2).tolist() == [False, True, True, True], "the first has no choice"
    word, share, at_random = favourite_token(recording, layer, found, 0)
    assert (word, share) == ("a", 1.0), "all logits are equal, and the first token wins"
    assert at_random == pytest.approx((1 + 1 / 2 + 2 / 3 + 1 / 2) / 4)


def test_selections_that_contradict_each_other_have_a_soft_solution() -> None:
    """One query twice, which selects one token and then the other."""
    programme = pair_margins([np.eye(2)], [np.ones((2, 3))], [np.array([0, 1])], causal=False)
    solution, status = solve_or_soften(programme, Frobenius(), AuditSettings())
    assert status == "soft"
    assert (solution.status, solution.slack) == ("optimal", pytest.approx(10.0 / 3.0))


def test_texts_are_drawn_with_replacement_and_one_is_left_out() -> None:
    texts, rng = np.repeat(np.arange(20), 2), np.random.default_rng(0)
    drawn = np.array([resample_texts(texts, rng) for _ in range(200)])
    np.testing.assert_array_equal(drawn[:, ::2], drawn[:, 1::2])  # whole texts
    assert not drawn.all(axis=1).any()
    assert drawn.mean() == pytest.approx(1 - (19 / 20) ** 20, abs=0.02)


def test_a_head_on_one_text_is_a_table_a_drawing_and_a_plot() -> None:
    """Selected token, probability, margin and rival of every query, as its logits have them."""
    model, tokenizer, batch = demo_model(tokens=30)
    recording = recorded(model, batch["input_ids"]).name_tokens(tokenizer)
    result = audit(recording, nulls=["permuted"], draws=1, threshold=0.3)
    table = result.selections(text=0, layer=1, head=3)
    logits = recording.layers[1].texts[0].logits()[3].double()
    weights = logits.softmax(dim=-1)
    order = logits.sort(dim=-1, descending=True)
    assert [row.query for row in table] == list(range(30))
    for row in table.rows[1:]:
        assert (row.selected, row.rival) == tuple(order.indices[row.query, :2].tolist())
        assert row.probability == pytest.approx(float(weights[row.query, row.selected]), rel=1e-4)
        gap = float(order.values[row.query, 0] - order.values[row.query, 1])
        assert row.margin == pytest.approx(gap, abs=1e-5)
        assert row.token == table.words[row.query]
    assert (table[0].rival, table[0].rival_token) == (-1, "")
    assert "Lily" in repr(table)
    assert table._repr_html_().count("<line") == 30
    assert len(table.plot().lines) == 30
    assert set(table.table()[0]) == {field.name for field in dataclasses.fields(table[0])}
    compared = next(head for head in result.heads if head.support)
    pair = compared.support[0]
    query, selected, _ = map(strip_marks, pair.words)
    assert f"{query} ({pair.query}) selects {selected} ({pair.selected})" in str(compared)
    with pytest.raises(InputError, match="layer 1 has no text 3; it has texts 0 to 0"):
        result.selections(text=3, layer=1, head=3)
    empty = dataclasses.replace(result, recording=Recording())
    with pytest.raises(InputError, match="holds no keys and queries"):
        empty.selections(text=0, layer=1, head=3)


def test_line_breaks_of_tokens_are_written_out() -> None:
    """A row of a table, a label of a drawing and a pair of tokens are one line each."""
    text = TextAttention(
        normal(0, 1, 3, 4), normal(1, 1, 3, 4), np.arange(3), np.tri(3, dtype=bool), None, 1.0, 0, 3
    )
    recording = Recording({0: Layer(0, "", [0], False, True, [text])})
    recording.words = [["<s>\n", "▁a\r\n\t", "\x1b["]]
    table = audit_statistics(recording, AuditSettings())[0].selections(text=0, layer=0, head=0)
    assert table.words == [r"<s>\n", r"a\r\n\t", "␛["]
    assert table[0].token == r"<s>\n"
    assert str(Support(0, 1, 0, 2, 1.0, ("\n", "b", "c"))).startswith(r"\n (1) selects b (0) over")


def test_a_head_may_be_wider_than_its_inputs() -> None:
    layer = recorded(random_heads(0, heads=2, width=5, d=8), normal(0, 2, 6, 5)).layers[0]
    inputs = HeadInputs(layer, 1)
    U, s, Vt = inputs.singular
    np.testing.assert_allclose((U * s) @ Vt, inputs.weights(), atol=1e-12)
    assert len(s) == 5


class Names:
    """A tokenizer that says which tokens are special."""

    def __init__(self, special: list[int], names: dict[int, str]) -> None:
        self.all_special_ids, self._names = special, names

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [self._names.get(number, "word") for number in ids]


def test_separators_are_special_tokens_of_the_tokenizer_and_punctuation() -> None:
    """Random selections would be separators as often as these stand where a query sees them."""
    texts = torch.tensor([[5, 6, 7, 8, 9, 10, 11, 12]])

    def chance(tokenizer: Names) -> float:
        recording = recorded(family("bert"), {"input_ids": texts})
        layer = recording.name_tokens(tokenizer).layers[0]
        selections = compute_selections(recording, layer)
        return float(selections.chance[KINDS.index("special")])

    # at 5 of 8 queries position 4 is neither itself nor a neighbour
    assert chance(Names([], {})) == 0.0
    assert chance(Names([9], {})) == pytest.approx(5 / 64)
    assert chance(Names([], {9: "Ġ,"})) == pytest.approx(5 / 64)
    assert chance(Names([9], {7: "!"})) == pytest.approx(10 / 64)


def test_refusals() -> None:
    recording = recorded(family("bert"), "bert")
    found = audit(recording, norms=())
    for wrong, words in (
        (lambda: audit(3), "recording is 3; give the one of"),
        (lambda: audit(Recording()), "the recording has no texts"),
        (lambda: audit(recording, nulls=["mean"]), "unknown null 'mean'"),
        (lambda: found.head(0, 9), "no head 9 in layer 0; layers 0 to 1 have heads 0 to 3"),
        (lambda: found.head(0, 0).fit("nuc"), "was not compared in the norm nuc"),
    ):
        with pytest.raises(InputError, match=words):
            wrong()


def test_heads_whose_logits_have_a_bias_are_not_compared() -> None:
    found = audit(recorded(family("t5"), "t5"), threshold=0.05)
    why = {head.uncompared for head in found.heads if not head.fits}
    assert "something is added to their logits" in why
