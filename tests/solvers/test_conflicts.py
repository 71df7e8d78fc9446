"""Verdicts of infeasibility in the words of the programme, each for a contradiction that a person
can check.
"""

from __future__ import annotations

import numpy as np
import pytest

from attsvm.datasets.attention_data import AttentionData
from attsvm.margins import Margins, decoder_margins, multi_token_margins, ratio_margins
from attsvm.margins import sequence_margins as positions
from attsvm.norms import Frobenius, Nuclear
from attsvm.solvers import max_margin
from attsvm.theory import graph_margins, order_margins, output_margins


def data(tokens: object, labels: object = None) -> AttentionData:
    X = np.array(tokens, dtype=np.float64)
    return AttentionData(
        X, np.ones(len(X)) if labels is None else np.array(labels, dtype=np.float64)
    )


ONE = np.zeros(3, dtype=int)
VOCABULARY = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])

CASES: dict[str, tuple[Margins, str]] = {
    "labels": (
        decoder_margins(data([[[1.0, 2.0]], [[2.0, 4.0]], [[1.0, -1.0]]], [1, -1, 1]), ONE),
        (
            "no head gives their labels to token 0 of sequence 0 and token 0 of sequence 1 together"
            " (certificate over 2 constraints"
        ),
    ),
    "a zero token": (
        decoder_margins(data([[[1.0, 2.0]], [[0.0, 0.0]], [[1.0, -1.0]]]), ONE),
        "token 0 of sequence 1 is zero, so no head can give it its label",
    ),
    # -x prefers 2 to 1 where x prefers 1 to 2: the same weights, and position 0 asks for the
    # opposite.
    "positions": (
        positions(data([[[1.0], [-1.0]]]), np.array([[0, 0]])),
        (
            "no weights select token 0 for position 0 of sequence 0 and token 0 for position 1 of"
            " sequence 0 together"
        ),
    ),
    "a zero position": (
        positions(data([[[1.0], [0.0]]]), np.array([[0, 0]])),
        "the token at position 1 of sequence 0 is zero, so as a query it can prefer no token",
    ),
    "a repeated token": (
        positions(data([[[1.0], [1.0]]]), np.array([[0, 1]])),
        "token 1 of sequence 0 equals the selected token 0, so position 0 cannot tell them apart",
    ),
    "classes": (
        output_margins([[1.0], [2.0]], [0, 1], classes=2),
        "no output matrix predicts class 0 for input 0 and class 1 for input 1 together",
    ),
    "a zero input": (
        output_margins([[1.0], [0.0]], [0, 1], classes=2),
        "input 1 is zero, so no output matrix can predict its class 1",
    ),
    "a cycle": (
        order_margins(VOCABULARY, [[0, 0, 1], [0, 1, 2], [0, 2, 0]]),
        (
            "no weights put token 0 above token 1 for query 0, token 1 above token 2 for query 0"
            " and token 2 above token 0 for query 0"
        ),
    ),
    "a zero query": (
        order_margins(VOCABULARY, [[3, 0, 1]]),
        "query 3 is zero, so no weights can put token 0 above token 1",
    ),
    # On a line, weights that see no difference between 2 and 1 see none between 2 and 0.
    "levels": (
        graph_margins(np.array([[2.0], [1.0], [0.0]]), [[0, 0, 1], [0, 1, 0], [0, 0, 2]]),
        (
            "no weights put token 0 above token 2 for query 0 and token 0 level with token 1 for"
            " query 0 together"
        ),
    ),
    "a set": (
        multi_token_margins(data([[[2.0], [1.0], [0.0]]]), np.array([[True, True, False]])),
        "no weights select the set with token 0 of sequence 0 (certificate over",
    ),
    "ratios": (
        ratio_margins(
            data([[[1.0], [2.0], [3.0]]]), np.ones((1, 3), dtype=bool), np.array([[0.5, 0.3, 0.2]])
        ),
        (
            "no weights split attention as asked over the set with token 0 of sequence 0"
            " (certificate over 2 constraints"
        ),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_sentence_fits_the_programme(case: str) -> None:
    margins, sentence = CASES[case]
    for norm in (Frobenius(),) if case == "ratios" else (Frobenius(), Nuclear()):
        solution = max_margin(margins, norm)
        assert solution.message.startswith(f"infeasible: {sentence}")
        assert solution.farkas_residual() <= 1e-12


def test_long_contradictions_count_what_they_leave_out() -> None:
    rng = np.random.default_rng(0)
    solution = max_margin(
        output_margins(rng.standard_normal((40, 3)), rng.integers(8, size=40), classes=8)
    )
    assert solution.status == "infeasible"
    assert " more inputs together (certificate over" in solution.message
