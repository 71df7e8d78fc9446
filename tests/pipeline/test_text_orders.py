"""The orders of a small text: counts by hand, quotations that show what they claim, and the
files.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attsvm.datasets.next_token import Corpus, corpus, partial_order, winners
from attsvm.errors import InputError
from attsvm.margins import graph_margins
from attsvm.pipeline.text_orders import corpus_orders, scores, write_orders
from attsvm.solvers import max_margin

# after x, a beats b and b beats a; after y, a beats b and b beats c
TEXT = "a b x a . b a x b . a b y a . b c y b"


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return corpus(path, context=3)


def test_counts_add_up(read: Corpus) -> None:
    result = corpus_orders(read)
    rows = {row["query"]: row for row in result["table"]}
    assert (
        sum(row["sentences"] for row in rows.values())
        == result["sentences"]["all"]
        == read.data.N
        == len(TEXT.split()) - 1
    )
    assert (
        sum(row["explained"] for row in rows.values())
        == result["sentences"]["explained"]
        == int((winners(read.data) >= 0).sum())
    )
    assert sum(row["arcs"] for row in rows.values()) == result["arcs"]["all"]
    assert sum(row["cyclic_arcs"] for row in rows.values()) == result["arcs"]["cyclic"]
    counted = result["queries"]
    assert (
        counted["acyclic"] + counted["cyclic"] + counted["without_order"]
        == counted["all"]
        == len(rows)
    )
    for role in ("optimal", "non_optimal", "confused"):
        assert sum(row[role] for row in rows.values()) == result["roles"][role]
    assert rows["x"] == {
        "query": "x",
        "token": read.data.vocabulary.index("x"),
        "sentences": 2,
        "explained": 2,
        "arcs": 4,
        "cyclic_arcs": 2,
        "optimal": 0,
        "non_optimal": 1,
        "confused": 2,
    }
    assert json.loads(json.dumps(result)) == result


def test_realizable_queries_are_explained_and_acyclic(read: Corpus) -> None:
    result = corpus_orders(read)
    won, cyclic = winners(read.data) >= 0, partial_order(read.data).cyclic_queries
    queries = [
        q
        for q in np.unique(read.data.queries)
        if won[read.data.queries == q].all() and q not in cyclic
    ]
    assert result["queries"]["realizable"] == len(queries)
    assert "y" in read.data.names(queries)


def test_quotations_show_their_arcs(read: Corpus) -> None:
    examples = corpus_orders(read, examples=9)["examples"]
    chain = next(example for example in examples["acyclic"] if example["query"] == "y")
    assert chain["longest_chain"][:2] == ["a", "b"]
    assert (chain["optimal"], chain["confused"]) == (["a"], ["b"])
    for example in examples["acyclic"]:
        for (winner, loser), sentence in zip(
            itertools.pairwise(example["longest_chain"]), example["sentences"], strict=True
        ):
            assert sentence["label"] == winner
            assert sentence["tokens"][-1] == example["query"]
            assert {winner, loser} <= set(sentence["tokens"])
    circle = next(example for example in examples["cyclic"] if example["query"] == "x")
    assert set(circle["cycle"]) == {"a", "b"}
    assert circle["largest_component"] == 2
    assert {sentence["label"] for sentence in circle["sentences"]} == {"a", "b"}


def test_scores_are_those_of_the_whole_programme(read: Corpus) -> None:
    orders = partial_order(read.data)
    W = max_margin(graph_margins(read.data.embeddings, orders.arcs)).W
    for q in range(read.data.K):
        np.testing.assert_allclose(scores(orders, q), W[:, q], atol=1e-9)
    for example in [each for kind in corpus_orders(read)["examples"].values() for each in kind]:
        np.testing.assert_allclose(
            example["scores"], W[example["path"], example["token"]], atol=1e-9
        )


def test_files(read: Corpus, tmp_path: Path) -> None:
    result = corpus_orders(read, examples=1)
    write_orders(result, read.data, tmp_path / "new" / "folder")
    names = sorted(path.name for path in (tmp_path / "new" / "folder").iterdir())
    assert names == [
        ".lock",
        "acyclic-1.svg",
        "cyclic-1.svg",
        "order.json",
        "report.html",
        "request.json",
    ]
    assert (
        json.loads((tmp_path / "new" / "folder" / "order.json").read_text(encoding="utf-8"))
        == result
    )
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match="is a file, and a run needs a folder"):
        write_orders(result, read.data, tmp_path / "file")
    with pytest.raises(InputError, match="holds files that are not a run of attsvm"):
        write_orders(result, read.data, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "new"]


def test_pictures_of_an_earlier_call_go_and_files_of_others_stay(
    read: Corpus, tmp_path: Path
) -> None:
    write_orders(corpus_orders(read, examples=2), read.data, tmp_path)
    assert (tmp_path / "acyclic-2.svg").exists()
    (tmp_path / "mine.svg").write_text("", encoding="utf-8")
    write_orders(corpus_orders(read, examples=1), read.data, tmp_path)
    assert not (tmp_path / "acyclic-2.svg").exists()
    assert (tmp_path / "mine.svg").exists()
    (tmp_path / "acyclic-2.svg").write_text("mine too", encoding="utf-8")
    with pytest.raises(InputError, match=r"acyclic-2\.svg is in the way"):
        write_orders(corpus_orders(read, examples=2), read.data, tmp_path)
    assert (tmp_path / "acyclic-2.svg").read_text(encoding="utf-8") == "mine too"


@given(st.text(alphabet="abcd", min_size=2, max_size=60))
def test_any_text_has_an_account(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("any") / "text.txt"
    path.write_text(text, encoding="utf-8")
    for explanation in ("copy", "bigram"):
        read = corpus(path, level="char", context=3, explanation=explanation)
        result = corpus_orders(read)
        assert result["sentences"]["all"] == len(text) - 1
        assert len(result["examples"]["cyclic"]) == min(3, result["queries"]["cyclic"])
