"""Sentences as arrays: construction, distinct tokens, selection, batches, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attsvm.base.errors import InputError
from attsvm.theory.sentences import NextTokenData, bipartite, embed, stack, total, winners

SENTENCES = st.lists(
    st.tuples(st.lists(st.integers(0, 5), min_size=1, max_size=7), st.integers(0, 5)),
    min_size=1,
    max_size=8,
)


def made(drawn: list[tuple[list[int], int]], **more: object) -> NextTokenData:
    return NextTokenData.from_sentences(
        [s for s, _ in drawn], [y for _, y in drawn], embeddings=6, **more
    )  # type: ignore[arg-type]


@given(SENTENCES)
def test_distinct_tokens_by_loops(drawn: list[tuple[list[int], int]]) -> None:
    data = made(drawn)
    tokens, multiplicities = data.distinct()
    assert tokens.shape == multiplicities.shape == (len(drawn), max(len(set(s)) for s, _ in drawn))
    for n, (sentence, label) in enumerate(drawn):
        real = multiplicities[n] > 0
        assert dict(
            zip(tokens[n, real].tolist(), multiplicities[n, real].tolist(), strict=True)
        ) == {v: sentence.count(v) for v in sentence}
        assert (tokens[n, ~real] == sentence[-1]).all()
        assert (data.sentences[n].tolist(), data.labels[n], data.queries[n]) == (
            sentence,
            label,
            sentence[-1],
        )
    assert multiplicities.sum() == len(data.tokens)
    np.testing.assert_allclose(data.weights, 1 / len(drawn))


@given(SENTENCES, st.data())
def test_a_selection_is_the_data_of_the_selected(
    drawn: list[tuple[list[int], int]], more: st.DataObject
) -> None:
    weights = np.arange(1.0, len(drawn) + 1)
    data = made(drawn, weights=weights)
    rows = more.draw(st.lists(st.integers(0, len(drawn) - 1), min_size=1))
    part = data.select(rows)
    alone = made([drawn[n] for n in rows], weights=weights[rows], following=data.following)
    for name in ("tokens", "offsets", "labels", "following"):
        np.testing.assert_array_equal(getattr(part, name), getattr(alone, name))
    np.testing.assert_allclose(part.weights, alone.weights, rtol=1e-14)
    kept = np.isin(np.arange(len(drawn)), rows)
    np.testing.assert_array_equal(
        data.select(kept).tokens, data.select(np.flatnonzero(kept)).tokens
    )


def test_the_collocation_is_read_from_one_token_sentences() -> None:
    data = NextTokenData.from_sentences(
        [[0], [0], [0], [1], [1, 2]], [1, 2, 2, 0, 3], weights=[3, 1, 1, 1, 1]
    )
    assert data.following.tolist() == [1, 0, -1, -1]  # the heavier label of token 0
    assert data.select([4]).following.tolist() == [1, 0, -1, -1]
    tied = NextTokenData.from_sentences([[0], [0]], [2, 1])
    assert tied.following.tolist() == [1, -1, -1]


def test_a_batch_holds_every_run() -> None:
    runs = [
        total(K=6, seed=0),
        bipartite(K=6, per_query=2, seed=1).select(range(3, 18)),
        total(K=6, seed=2),
    ]
    batch = stack(runs)
    for r, data in enumerate(runs):
        tokens, multiplicities = data.distinct()
        J = tokens.shape[1]
        np.testing.assert_array_equal(batch.tokens[r, : data.N, :J], tokens)
        np.testing.assert_array_equal(batch.multiplicities[r, : data.N, :J], multiplicities)
        assert not batch.multiplicities[r, : data.N, J:].any()
        np.testing.assert_array_equal(batch.queries[r, : data.N], data.queries)
        np.testing.assert_array_equal(batch.labels[r, : data.N], data.labels)
        np.testing.assert_array_equal(
            np.take_along_axis(batch.tokens[r], batch.star[r, :, None], 1)[: data.N, 0],
            winners(data),
        )
        np.testing.assert_array_equal(batch.embeddings[r], data.embeddings)
        assert not batch.weights[r, data.N :].any()
    np.testing.assert_allclose(batch.weights.sum(axis=1), 1.0)
    assert (batch.multiplicities.sum(axis=2) > 0).all()  # no padded sentence divides by zero


def test_embeddings() -> None:
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(embed("identity", 5, 5, rng), np.eye(5))
    ortho, unit, corr = (
        embed("ortho", 5, 7, rng),
        embed("random", 5, 3, rng),
        embed("equi-corr", 5, 7, rng, correlation=0.3),
    )
    np.testing.assert_allclose(ortho @ ortho.T, np.eye(5), atol=1e-14)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1.0, rtol=1e-14)
    np.testing.assert_allclose(corr @ corr.T, 0.3 + 0.7 * np.eye(5), atol=1e-14)


def test_a_large_identity_takes_no_room() -> None:
    data = NextTokenData.from_sentences([[0, 1]], [1], embeddings=200_000)
    assert data.embeddings.shape == (200_000, 200_000)
    assert data.embeddings[123_456, 123_456] == 1.0
    assert data.embeddings[7].sum() == 1.0


def test_sentences_of_words() -> None:
    data = NextTokenData.from_words(["fox", "hen  fox eats"], ["runs", "runs"], weights=[1, 3])
    assert data.vocabulary == ("fox", "runs", "hen", "eats")
    assert [s.tolist() for s in data.sentences] == [[0], [2, 0, 3]]
    assert data.labels.tolist() == [1, 1]
    assert data.weights.tolist() == [0.25, 0.75]
    assert data.numbers("eats hen").tolist() == [3, 2]
    assert data.names([3, 2]) == ["eats", "hen"]
    assert NextTokenData.from_sentences([[0, 1]], [1]).names(1) == ["1"]


def sentences(sentences: list[list[float]], labels: list[int], **options: Any) -> Any:
    return NextTokenData.from_sentences(sentences, labels, **options)


def embedded(*given: Any) -> Any:
    return embed(*given, np.random.default_rng(0))


def test_refusals() -> None:
    good, one = bipartite(K=5), np.array([0])
    for call, message in [
        (lambda: sentences([], []), "there is no sentence"),
        (lambda: sentences([[0], []], [0, 0]), r"sentence 1 has shape \(0,\)"),
        (lambda: sentences([[0], [1, 3, 0]], [0, 0], embeddings=3), "sentence 1 holds token 3"),
        (lambda: sentences([[0, -1]], [0], embeddings=3), "sentence 0 holds token -1"),
        (lambda: sentences([[0], [1]], [0, 3], embeddings=3), r"labels\[1\] is 3"),
        (lambda: sentences([[0], [1]], [0]), "there are 1 labels for 2 sentences"),
        (lambda: sentences([[0.5]], [0]), "sentence 0 has dtype float64"),
        (lambda: sentences([[0]], [[0]]), r"labels has shape \(1, 1\)"),
        (lambda: sentences([[0], [1]], [0, 1], weights=[1, -1]), r"weights\[1\] is -1"),
        (lambda: sentences([[0], [1]], [0, 1], weights=[np.nan, 1]), r"weights\[0\] is nan"),
        (lambda: sentences([[0], [1]], [0, 1], weights=[1]), r"weights has shape \(1,\)"),
        (lambda: sentences([[0]], [0], embeddings=[[np.nan, 1]]), r"embeddings\[0\] holds a value"),
        (lambda: sentences([[0]], [0], embeddings=np.ones(3)), r"embeddings has shape \(3,\)"),
        (lambda: sentences([[0]], [0], embeddings=0), "a vocabulary of 0 tokens is empty"),
        (lambda: sentences([[0]], [0], embeddings=2, vocabulary=["a"]), "has 1 names; there are 2"),
        (lambda: sentences([[0]], [0], following=[1]), "following must hold 1 numbers"),
        (lambda: NextTokenData(one, np.array([0, 1, 1]), np.zeros(2, int)), "sentence 1 is empty"),
        (lambda: NextTokenData(one, np.array([0, 2]), one), "offsets of 2 entries do not cut 1"),
        (lambda: NextTokenData.from_words(["a"], ["b c"]), r"labels\[0\] is 'b c'; give one word"),
        (lambda: NextTokenData.from_words(["a"], []), "there are 0 labels for 1 sentences"),
        (lambda: good.numbers("a"), "'a' is not in the vocabulary of 0 names"),
        (lambda: good.select([]), "rows selects no sentence"),
        (lambda: good.select([99]), "outside 0 to 24"),
        (lambda: good.select(np.ones(3, dtype=bool)), r"rows has shape \(3,\)"),
        (lambda: stack([]), "there is no data to stack"),
        (lambda: stack([good, bipartite(K=6)]), r"data set 1 has embeddings \(6, 6\)"),
        (lambda: embedded("identity", 3, 4), "leave d out"),
        (lambda: embedded("ortho", 3, 2), "choose d >= 3"),
        (lambda: embedded("equi-corr", 3, 3), "choose d >= 4"),
        (lambda: embedded("word2vec", 3, 4), "embeddings is 'word2vec'"),
        (lambda: embedded("random", 3, 0), "both must be at least 1"),
        (
            lambda: embed("equi-corr", 3, 4, np.random.default_rng(0), 1.0),
            "correlation is 1; it must",
        ),
    ]:
        with pytest.raises(InputError, match=message):
            call()
