"""What orders a text implies: which queries are realizable, which are cyclic, with examples in the
text's own words.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.data import BoolArray, FloatArray, IntArray
from attsvm.datasets.next_token import (
    Corpus,
    NextTokenData,
    PartialOrders,
    Role,
    partial_order,
    winners,
)
from attsvm.files import write_file
from attsvm.margins import graph_margins
from attsvm.report.orders import order_picture
from attsvm.report.sections import Section, sections_page
from attsvm.report.style import Picture
from attsvm.solvers import max_margin
from attsvm.store import RunFolder

_SHOWN = 12  # names of one example
_DRAWN = 9  # tokens of one picture
_LISTED = 50  # queries in the table of the page


def corpus_orders(corpus: Corpus, examples: int = 3) -> dict[str, Any]:
    """The orders of a corpus, JSON-ready.

    A query (the last token of a sentence) is ``realizable`` when every one of its labels is
    explained and its order has no cycle; ``acyclic`` and ``cyclic`` speak about the order of its
    explained sentences alone, as the code of Li et al. (2024) does.

    Args:
        corpus: see :func:`attsvm.datasets.next_token.corpus`.
        examples: most queries to quote of either kind, those with most explained sentences first.

    Returns:
        ``text`` (counts of the reading), ``sentences``, ``queries`` (counts), ``arcs``, ``roles``
        (counts summed over queries), ``examples`` (``acyclic``, ``cyclic``; ``scores`` are those of
        the max-margin weights of one-hot tokens, along ``path``) and ``table``: one row per query
        with its counts.
    """
    data = corpus.data
    won = winners(data) >= 0
    orders = partial_order(data)
    table = _table(data, won, orders)
    ordered = [row for row in table if row["arcs"]]
    cyclic = [row for row in ordered if row["cyclic_arcs"]]
    acyclic = [row for row in ordered if not row["cyclic_arcs"]]
    return {
        "text": {
            "tokens": corpus.length,
            "distinct": corpus.words,
            "vocabulary": data.K,
            "unknown": corpus.unknown,
            "left_out": corpus.left_out,
            "cut": corpus.cut,
        },
        "sentences": {"all": data.N, "explained": int(won.sum())},
        "queries": {
            "all": len(table),
            "realizable": sum(
                row["sentences"] == row["explained"] and not row["cyclic_arcs"] for row in table
            ),
            "acyclic": len(acyclic),
            "cyclic": len(cyclic),
            "without_order": len(table) - len(ordered),
        },
        "arcs": {"all": len(orders.arcs), "cyclic": int(orders.cyclic.sum())},
        "roles": {
            role.name.lower(): int((orders.roles == role).sum())
            for role in (Role.OPTIMAL, Role.NON_OPTIMAL, Role.CONFUSED)
        },
        "examples": {
            "acyclic": [_acyclic(data, orders, row) for row in _largest(acyclic, examples)],
            "cyclic": [_cyclic(data, orders, row) for row in _largest(cyclic, examples)],
        },
        "table": table,
    }


def _table(data: NextTokenData, won: BoolArray, orders: PartialOrders) -> list[dict[str, Any]]:
    K, query = data.K, orders.nodes[0]

    def per_query(of: IntArray) -> IntArray:
        return np.bincount(of, minlength=K)

    columns = {
        "sentences": per_query(data.queries),
        "explained": per_query(data.queries[won]),
        "arcs": per_query(orders.arcs[:, 0]),
        "cyclic_arcs": per_query(orders.arcs[orders.cyclic, 0]),
        "optimal": per_query(query[orders.roles == Role.OPTIMAL]),
        "non_optimal": per_query(query[orders.roles == Role.NON_OPTIMAL]),
        "confused": per_query(query[orders.roles == Role.CONFUSED]),
    }
    seen = np.flatnonzero(columns["sentences"])
    rows = zip(*(column[seen].tolist() for column in columns.values()), strict=True)
    names = data.names(seen)
    return [
        {"query": names[k], "token": token, **dict(zip(columns, row, strict=True))}
        for k, (token, row) in enumerate(zip(seen.tolist(), rows, strict=True))
    ]


def _largest(rows: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (-row["explained"], row["token"]))[:most]


def _acyclic(data: NextTokenData, orders: PartialOrders, row: dict[str, Any]) -> dict[str, Any]:
    roles = orders.roles_of(row["token"])
    chain = orders.longest_chain(row["token"])
    return {
        **{key: row[key] for key in ("query", "token", "explained", "arcs")},
        "path": chain.tolist(),
        "scores": scores(orders, row["token"])[chain].tolist(),
        "longest_chain": data.names(chain),
        **{
            role.name.lower(): data.names(np.flatnonzero(roles == role)[:_SHOWN])
            for role in (Role.OPTIMAL, Role.CONFUSED)
        },
        "sentences": [
            _quoted(data, n) for n in orders.sentences_of(row["token"], chain[:-1], chain[1:])
        ],
    }


def _cyclic(data: NextTokenData, orders: PartialOrders, row: dict[str, Any]) -> dict[str, Any]:
    cycle, sentences = orders.cycle(row["token"])
    query, _, component = orders.nodes
    sizes = np.unique(component[query == row["token"]], return_counts=True)[1]
    return {
        **{key: row[key] for key in ("query", "token", "explained", "arcs", "cyclic_arcs")},
        "path": list(cycle),
        "scores": scores(orders, row["token"])[list(cycle)].tolist(),
        "cycle": data.names(cycle),
        "largest_component": int(sizes.max()),
        "sentences": [_quoted(data, n) for n in sentences],
    }


def _quoted(data: NextTokenData, n: int) -> dict[str, Any]:
    return {
        "tokens": data.names(data.tokens[data.offsets[n] : data.offsets[n + 1]]),
        "label": data.names(data.labels[n])[0],
    }


def scores(orders: PartialOrders, query: int) -> FloatArray:
    r"""``(K,)``, the scores :math:`W^{mm}e_q` of one-hot tokens under one query; nan where the
    solver did not reach its accuracy.

    One-hot (or any orthonormal) tokens make :func:`attsvm.margins.graph_margins` a programme per
    query, over its own tokens alone.
    """
    pairs = orders.of(query)
    tokens, ends = np.unique(pairs, return_inverse=True)
    # the query as one more token: its column is all that the programme asks about
    column = np.full((len(pairs), 1), len(tokens))
    solution = max_margin(graph_margins(np.eye(len(tokens) + 1), np.hstack([column, ends])))
    found = np.zeros(orders.K)
    found[tokens] = solution.W[:-1, -1] if solution.status == "optimal" else np.nan
    return found


def write_orders(
    result: dict[str, Any], data: NextTokenData, folder: Path, command: str = ""
) -> None:
    """Write ``order.json``, for every quoted query a picture of its longest chain or its cycle with
    the busiest tokens around, and ``report.html`` with all of it.

    Args:
        result: of :func:`corpus_orders`.
        data: the corpus's.
        folder: made when missing.
        command: what is printed at the end of the page.

    Raises:
        InputError: a folder that cannot be made or written to, or that holds other files.
    """
    orders = partial_order(data)
    names = [_seen(name) for name in data.names(np.arange(data.K))]
    contents = {
        "order.json": (
            json.dumps(result, indent=1, ensure_ascii=False).encode("utf-8", errors="replace")
        )
    }
    pictures: list[Picture] = []
    for kind in ("acyclic", "cyclic"):
        for k, example in enumerate(result["examples"][kind], start=1):
            arcs = _around(orders.of(example["token"]), example["path"])
            notes = [
                f"{score:+.2f}".replace("-", "−") for score in scores(orders, example["token"])
            ]
            picture = order_picture(f"{kind}-{k}", _seen(example["query"]), arcs, names, notes)
            contents[f"{picture.name}.svg"] = picture.svg
            pictures.append(picture)
    contents["report.html"] = _page(result, pictures, command)
    with RunFolder(folder, {"command": "order"}, files=contents, overwrite=None) as run:
        run.remove_others(contents)
        for name, content in contents.items():
            write_file(folder / name, content)


def _page(result: dict[str, Any], pictures: list[Picture], command: str) -> bytes:
    text, sentences, queries = result["text"], result["sentences"], result["queries"]
    headline = (
        f"{queries['acyclic']} of {queries['all']} queries imply a partial order of tokens,"
        f" {queries['cyclic']} contradict themselves, {queries['without_order']} compare no tokens."
    )
    read = (
        f"{text['tokens']} tokens, {text['distinct']} of them distinct, vocabulary"
        f" {text['vocabulary']}; {sentences['all']} sentences, {sentences['explained']} of them"
        f" explained. {queries['realizable']} queries are realizable as they stand."
    )
    drawn = iter(pictures)
    parts = [Section("The text", (read,))]
    for kind, title in (("acyclic", "Partial orders"), ("cyclic", "Contradictions")):
        for example in result["examples"][kind]:
            path = example["longest_chain"] if kind == "acyclic" else example["cycle"]
            path = [_seen(name) for name in (path if kind == "acyclic" else [*path, path[0]])]
            quoted = tuple(
                f"{' '.join(map(_seen, each['tokens']))} → {_seen(each['label'])}"
                for each in example["sentences"]
            )
            query = _seen(example["query"])
            words = (f"Under the query “{query}”: {' > '.join(path)}.", "Sentences that say so:")
            parts.append(Section(title, words, quoted, pictures=(next(drawn),)))
            title = ""
    names = ("query", "sentences", "explained", "arcs", "cyclic_arcs")
    table = _largest(result["table"], _LISTED)
    parts.append(
        Section(
            "Queries",
            (f"The {len(table)} queries with most explained sentences; order.json has all.",),
            headers=tuple(name.replace("_", " ") for name in names),
            rows=tuple(
                (_seen(row["query"]), *(str(row[name]) for name in names[1:])) for row in table
            ),
        )
    )
    return sections_page("Orders that a text implies", headline, parts, command)


def _seen(name: str) -> str:
    """A token as a reader sees it: a space has a sign."""
    return name if name.strip() else "␣"


def _around(arcs: IntArray, path: list[int]) -> IntArray:
    """The arcs among the tokens of a path and those that have most arcs, a dozen in all."""
    tokens, counts = np.unique(arcs, return_counts=True)
    busiest = tokens[np.argsort(-counts, kind="stable")].tolist()
    chosen = list(dict.fromkeys([*path, *busiest]))[: max(_DRAWN, len(path))]
    return arcs[np.isin(arcs, chosen).all(axis=1)]
