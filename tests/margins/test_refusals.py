"""What programmes refuse, in which words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import AttentionData
from attsvm.margins import (
    Margins,
    MarginsBatch,
    decoder_margins,
    least_norm,
    multi_token_margins,
    pair_margins,
    prompt_margins,
    ratio_margins,
    recombine,
    relax,
    relaxed_margins,
    selection_batch,
    selection_margins,
    sequence_margins,
    split,
)
from attsvm.solvers import max_margin, max_margin_batch
from attsvm.theory import (
    graph_margins,
    log_odds_margins,
    order_arcs,
    order_margins,
    output_margins,
    soft_label_margins,
    strong_components,
)
from attsvm.theory.sentences import NextTokenData

MASK = np.array([[True, True, False], [True, True, True]])
DATA = AttentionData(np.arange(18.0).reshape(2, 3, 3) ** 2, np.ones(2), mask=MASK)
SEVERAL = AttentionData(np.ones((2, 2, 3, 2)), np.ones((2, 2)))
SETS = np.array([[True, True, False], [True, False, True]])
TIED = multi_token_margins(DATA, SETS)
S = np.full((2, 3), 0.5)
KEYS = np.random.default_rng(0).normal(size=(30, 4))
PLAIN = selection_margins(DATA, [0, 0])
NARROW = selection_margins(AttentionData(DATA.tokens, [1, 1], np.ones((2, 1)), MASK), [0, 0])
I2, I3 = np.eye(2), np.eye(3)

REFUSED: list[tuple[Callable[..., Any], tuple[Any, ...], str]] = [
    (selection_margins, ("text", [0]), r"data is 'text'; give attsvm\.AttentionData"),
    (selection_margins, (DATA, [0, 1, 0]), r"tokens has shape \(3,\)"),
    (selection_margins, (DATA, [0.0, 1.0]), "dtype float64"),
    (selection_margins, (DATA, [0, 3]), r"tokens\[1\] is 3; sequence 1 has positions 0 to 2"),
    (selection_margins, (DATA, [-1, 0]), r"tokens\[0\] is -1"),
    (selection_margins, (DATA, [2, 0]), "mask of sequence 0 hides"),
    (selection_margins, (SEVERAL, [0, 0]), "leading axes"),
    (decoder_margins, (DATA, [0, 3]), "sequence 1 has positions 0 to 2"),
    (decoder_margins, (SEVERAL, [0, 0]), "leading axes"),
    (prompt_margins, (DATA, [0, 0], I2), r"keys has shape \(2, 2\); it must be \(d_k, 3\)"),
    (prompt_margins, (DATA, [0, 0], np.full((2, 3), np.nan)), "keys holds nan"),
    (relaxed_margins, (DATA, [0, 0], [0, 2]), "support holds 2; sequences are numbered 0 to 1"),
    (relaxed_margins, (DATA, [0, 0], [True]), r"support has shape \(1,\)"),
    (relaxed_margins, (DATA, [0, 0], [[0]]), r"support has shape \(1, 1\)"),
    (relaxed_margins, (DATA, [0, 0], [0.5]), "support has dtype float64"),
    (relax, (TIED, [0]), "relax takes inequalities only"),
    (multi_token_margins, (DATA, SETS.astype(int)), r"sets has shape \(2, 3\) and dtype int64"),
    (multi_token_margins, (DATA, SETS[:1]), r"sets has shape \(1, 3\)"),
    (multi_token_margins, (DATA, SETS & [[1], [0]] > 0), "selects no token of sequence 1"),
    (multi_token_margins, (DATA, SETS | True), "token 2 of sequence 0, which the mask hides"),
    (ratio_margins, (DATA, SETS, S[0]), r"probabilities has shape \(3,\)"),
    (ratio_margins, (DATA, SETS, S * np.nan), "probabilities holds nan"),
    (ratio_margins, (DATA, SETS, S - 0.5), r"probabilities\[0, 0\] is 0; .* must be positive"),
    (split, (np.ones((2, 2)), TIED), r"W has shape \(2, 2\)"),
    (least_norm, (replace(TIED, queries=np.full((2, 3), np.nan)),), r"margins\.queries holds"),
    (
        least_norm,
        (replace(TIED, differences=np.broadcast_to(1.0, (3, 1 << 21))),),
        "are too many to write out",
    ),
    (recombine, (np.ones((2, 3)), np.ones((3, 2)), np.ones((2, 3))), "finite has shape"),
    (sequence_margins, (DATA, [0, 1]), r"tokens has shape \(2,\)"),
    (sequence_margins, (DATA, [[0, 1, 9], [0, 0, 3]]), r"tokens\[1, 2\] is 3, outside .* 0 to 2"),
    (sequence_margins, (DATA, [[0, 2, 0], [0, 0, 0]]), r"tokens\[0, 1\] is 2, which the mask"),
    (sequence_margins, (DATA, [[1, 1, 0], [0, 0, 0]], True), r"tokens\[0, 0\] is 1, which a caus"),
    (sequence_margins, (SEVERAL, [0, 0]), "leading axes"),
    (selection_batch, (SEVERAL, [0, 0, 0]), r"tokens has shape \(3,\); it must be \(2, 2\)"),
    (selection_batch, (SEVERAL, np.zeros((2, 2))), "give integer positions"),
    (selection_batch, (SEVERAL, [[0, 0], [0, 3]]), r"holds 3 at \[1, 1\], which is not a visible"),
    (selection_batch, (SEVERAL, [[0, 0], [-1, 0]]), r"tokens holds -1 at \[1, 0\]"),
    (selection_batch, (DATA, [2, 0]), r"tokens holds 2 at \[0\]"),
    (MarginsBatch.stack, ([],), "there are no programmes"),
    (MarginsBatch.stack, ([PLAIN, NARROW],), r"programme 1 has weights \(3, 1\), .* \(3, 3\)"),
    (MarginsBatch.stack, ([PLAIN, TIED],), "programme 1 holds equalities"),
    (pair_margins, (KEYS, KEYS, np.full(30, 29)), r"selected\[0\] is 29, which the query at pos"),
    (
        pair_margins,
        ([KEYS] * 2, [KEYS] * 2, [[0] * 30, [30] * 30]),
        r"selected\[0\] of text 1 is 30",
    ),
    (pair_margins, (KEYS, KEYS, np.full(30, 30)), "the text has positions 0 to 29"),
    (pair_margins, (KEYS, KEYS[:, :3]), "give selected"),
    (pair_margins, (KEYS[:3], KEYS), "30 queries have 3 keys; give the positions"),
    (pair_margins, ([KEYS], [KEYS, KEYS]), "keys has 1 texts and queries 2"),
    (pair_margins, ([], []), "keys is empty"),
    (pair_margins, ([KEYS, KEYS[:, :2]], [KEYS, KEYS]), r"keys have widths \[2, 4\]"),
    (pair_margins, ([KEYS, KEYS], [KEYS, KEYS], [[0]]), "selected has 1 entries for 2 texts"),
    (output_margins, (I2,), "following is missing"),
    (output_margins, (I3, [0, 1]), r"following has shape \(2,\)"),
    (output_margins, (I3, [0, 1, 3]), r"following\[2\] is 3; classes are 0 to 2"),
    (order_margins, (I2,), "arcs is missing"),
    (graph_margins, (I2,), "arcs is missing"),
    (order_margins, (NextTokenData.from_sentences([[0, 1]], [0]),), "sentence 0 has no one token"),
    (order_margins, (I3, [[0, 1, 3]]), r"arcs\[0\] is \[0, 1, 3\]; tokens are numbered 0 to 2"),
    (order_margins, (I3, [[0, 1, 1]]), "cannot come before itself"),
    (order_margins, (I3, [[0, 1, 2], [0, 1, 1]]), r"arcs\[1\] is \[0, 1, 1\]; a token cannot"),
    (order_margins, (I3, [0, 1, 2]), r"arcs has shape \(3,\)"),
    (order_margins, (np.full((3, 3), np.inf), [[0, 1, 2]]), "embeddings holds inf"),
    (graph_margins, (np.ones(3), [[0, 1, 2]]), r"embeddings has shape \(3,\)"),
    (strong_components, ([[0.0, 1.0, 2.0]], 3), "arcs has dtype float64"),
    (order_arcs, ([[1, 0]], [3]), r"no token of sentences\[0\] realises its label 3"),
    (order_arcs, ([[1, 0]], [5], [5, 5]), r"tokens 0 and 1 of .* are both followed by 5"),
    (order_arcs, ([[1, 0], []], [1, 1]), r"sentences\[1\] has shape \(0,\)"),
    (order_arcs, ([[1, -1]], [1]), r"sentences\[0\] holds a token outside 0 to K - 1"),
    (order_arcs, ([[1, 4]], [1], [1, 2, 3, 0]), r"outside 0 to 3"),
    (order_arcs, ([[1, 0]], [1, 2]), r"labels has shape \(2,\)"),
    (order_arcs, ([[1, 0]], [1], None, "skip"), "missing is 'skip'"),
    # an axis of any length is not an empty one
    (output_margins, (np.ones((3, 0)), [0, 1, 2]), r"embeddings has shape \(3, 0\)"),
    (order_margins, (np.ones((3, 0)), [[0, 1, 2]]), r"embeddings has shape \(3, 0\)"),
    (graph_margins, (np.ones((0, 2)), [[0, 1, 2]]), r"embeddings has shape \(0, 2\)"),
    (soft_label_margins, (I2, np.ones((2, 0))), r"counts has shape \(2, 0\)"),
    (prompt_margins, (DATA, [0, 0], np.ones((0, 3))), r"keys has shape \(0, 3\)"),
    (pair_margins, (KEYS[:, :0], KEYS), r"keys has shape \(30, 0\)"),
    (recombine, (np.ones((2, 0)),) * 3, r"W has shape \(2, 0\)"),
    *(
        (make, arguments, words)
        for make in (soft_label_margins, log_odds_margins)
        for arguments, words in [
            ((I2, [[1, 0], [0, -1]]), r"counts\[1, 1\] is -1; counts are not negative"),
            ((I2, [[1, 0], [0, 0]]), r"counts\[1\] is all zero, so nothing follows context 1"),
            ((I2, [[1, 0]]), r"counts has shape \(1, 2\); it must be \(2, V\)"),
            ((np.ones(2), [[1, 0]]), r"embeddings has shape \(2,\)"),
            ((I2, [[1, np.nan], [1, 1]]), "every value must be finite"),
        ]
    ),
]


@pytest.mark.parametrize(("make", "arguments", "sentence"), REFUSED)
def test_a_refusal_names_what_is_wrong(make, arguments, sentence) -> None:
    with pytest.raises(InputError, match=sentence) as told:
        make(*arguments)
    assert "\n" not in str(told.value)


def test_numbers_whose_squares_overflow_are_numbers() -> None:
    margins = output_margins(1e200 * I3, [0, 1, 2])
    np.testing.assert_array_equal(margins.queries, 1e200 * I3)


@pytest.mark.parametrize("name", ["positions", "classes", "visible"])
def test_options_of_pairs_fit_the_text(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} has shape"):
        pair_margins(KEYS, KEYS, **{name: np.arange(5)})


def small() -> Margins:
    places = np.zeros(6, dtype=int)
    return Margins(np.ones((6, 3)), np.ones((2, 3)), [0, 3, 6], np.ones(6), places, places[:2])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"offsets": [0, 3, 10**9]}, r"offsets must rise from 0 to 6, the number of"),
        ({"offsets": [0, 10**12, 6]}, "offsets must rise"),
        ({"offsets": [-5, 3, 6]}, "offsets must rise"),
        ({"offsets": [0, 6]}, "offsets has 2 entries; it must have 3"),
        ({"offsets": [0.0, 3.0, 6.0]}, "offsets has dtype float64; give integers"),
        ({"offsets": [[0, 3, 6]]}, r"offsets has shape \(1, 3\); it must have one axis"),
        ({"rhs": np.ones(5)}, "rhs has 5 rows; it must have 6, one per constraint"),
        ({"rhs": np.ones(6, dtype=complex)}, "rhs has dtype complex128; give real numbers"),
        ({"token": np.zeros(7, dtype=int)}, "token has 7 rows; it must have 6"),
        ({"selected": np.zeros(1, dtype=int)}, "selected has 1 rows; it must have 2"),
        ({"differences": np.ones((6, 3), dtype=object)}, "differences has dtype object"),
        ({"differences": np.ones(6)}, r"differences has shape \(6,\); it must have two axes"),
        ({"queries": np.ones((2, 3, 1))}, "queries has shape"),
        ({"queries": [[1.0], [1.0, 2.0]]}, "queries is not an array"),
        ({"equality": np.zeros(6)}, "equality has dtype float64; give booleans"),
        ({"equality": np.zeros(3, dtype=bool)}, "equality has 3 rows"),
        ({"origin": np.zeros((3, 1), dtype=int)}, "origin has 3 rows"),
        ({"numbers": np.zeros(3, dtype=int)}, "numbers has 3 rows"),
        ({"kind": "other"}, "kind is 'other'; use one of selection, set"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(change: dict[str, Any], sentence: str) -> None:
    arrays = {name: np.array(value) for name, value in change.items() if name == "offsets"}
    with pytest.raises(InputError, match=f"margins.{sentence}"):
        replace(small(), **{**change, **arrays})


def test_arrays_that_changed_since_are_refused_before_compiled_code_reads_them() -> None:
    margins, batch = small(), MarginsBatch.stack([small(), small()])
    with pytest.raises(InputError, match="instances must rise from 0 to 4, the number of"):
        replace(batch, instances=np.array([0, 9, 4]))
    margins.offsets[2] = 10**9
    batch.instances[1] = 40
    with pytest.raises(InputError, match="offsets must rise from 0"):
        max_margin(margins)
    with pytest.raises(InputError, match="instances must rise"):
        max_margin_batch(batch)


def test_lists_become_arrays() -> None:
    margins = Margins([[1.0, 0.0]], [[1.0]], [0, 1], [1.0], [1], [0])
    np.testing.assert_array_equal(max_margin(margins).W, [[1.0], [0.0]])
