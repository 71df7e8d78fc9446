"""``attsvm order``: the partial orders that a text implies, query by query."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from attsvm.cli.arguments import add_output, positive_int
from attsvm.cli.output import show, show_json


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "order",
        help=(
            "read a text as next-token data: which queries are realizable, which orders are cyclic"
        ),
        description=(
            "Every window of a text is a sentence, its last token the query, the token after it the"
            " label. For every query, which token wins over which, is that a partial order, and"
            " which sentences contradict each other?"
        ),
    )
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="a UTF-8 text file, plain, .gz or .xz"
    )
    parser.add_argument(
        "--level", choices=("word", "char"), default="word", help="what a token is (default word)"
    )
    parser.add_argument(
        "--context",
        type=positive_int,
        default=8,
        metavar="L",
        help="tokens of a sentence (default 8)",
    )
    parser.add_argument(
        "--vocabulary",
        type=positive_int,
        default=1000,
        metavar="K",
        help="the K most frequent tokens have names (default 1000)",
    )
    parser.add_argument(
        "--limit",
        type=positive_int,
        default=1_000_000,
        metavar="N",
        help="most sentences (default 1000000)",
    )
    parser.add_argument(
        "--explanation",
        choices=("copy", "bigram"),
        default="copy",
        help=(
            "copy: the label is the token that wins; bigram: it is the usual successor of the token"
            " that wins (default copy)"
        ),
    )
    parser.add_argument(
        "--examples",
        type=positive_int,
        default=3,
        metavar="E",
        help="queries quoted of either kind (default 3)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help=(
            "write report.html, order.json (with a row per query) and a picture of each quoted"
            " order there"
        ),
    )
    add_output(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Read, order, print."""
    from attsvm.datasets.next_token import corpus
    from attsvm.pipeline.text_orders import corpus_orders, write_orders

    read = corpus(
        options.file,
        level=options.level,
        context=options.context,
        vocabulary=options.vocabulary,
        limit=options.limit,
        explanation=options.explanation,
    )
    result = {"source": str(options.file), **corpus_orders(read, options.examples)}
    if options.out is not None:
        write_orders(result, read.data, options.out, options.command_line)
    if options.json:
        show_json(result)
    else:
        _print(result, options)
    return 0


def _print(result: dict[str, Any], options: argparse.Namespace) -> None:
    text, sentences, queries = result["text"], result["sentences"], result["queries"]
    share = 100 * sentences["explained"] / sentences["all"]
    what = (
        "is in its window"
        if options.explanation == "copy"
        else "is the usual successor of a token in its window"
    )
    counted = (
        f"{text['tokens']} tokens, {text['distinct']} distinct, vocabulary {text['vocabulary']}"
    )
    show(f"{options.file}: {counted}, {sentences['all']} sentences")
    show(
        f"  {sentences['explained']} sentences ({share:.1f} %) are explained: the next token {what}"
    )
    show(f"  {queries['realizable']} of {queries['all']} queries are realizable as they stand")
    show(
        f"  without the unexplained sentences: {queries['acyclic']} queries have a partial order,"
        f" {queries['cyclic']} contradict themselves, {queries['without_order']} compare no tokens"
    )
    join = "" if options.level == "char" else " "
    for example in result["examples"]["acyclic"]:
        chain = " > ".join(
            f"{name!r} {score:+.2f}"
            for name, score in zip(example["longest_chain"], example["scores"], strict=True)
        )
        show(
            f"  partial order under {example['query']!r}: {chain} (longest chain, max-margin"
            " scores)"
        )
        _quote(example, join)
    for example in result["examples"]["cyclic"]:
        circle = [*example["cycle"], example["cycle"][0]]
        show(
            f"  cycle under {example['query']!r}: {' > '.join(map(repr, circle))}"
            f" ({example['largest_component']} tokens are tied)"
        )
        _quote(example, join)
    if options.out is not None:
        show(f"written: {options.out / 'report.html'}")


def _quote(example: dict[str, Any], join: str) -> None:
    for sentence in example["sentences"]:
        show(f"      {join.join(sentence['tokens'])!r} then {sentence['label']!r}")
