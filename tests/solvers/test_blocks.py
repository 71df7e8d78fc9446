"""Programmes of blocks: the solution of all rows, proved for all rows, within the memory given."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
from streamed import Changing, Selections

from attsvm import (
    AttentionData,
    Frobenius,
    InputError,
    Margins,
    MarginSolution,
    max_margin,
    pair_margins,
    parse_norm,
    relaxed_margins,
    selection_margins,
)
from attsvm.solvers import max_margin_blocks
from attsvm.solvers.blocks import RowsInBlocks, parse_memory
from attsvm.solvers.outcomes import Request
from attsvm.solvers.working_sets import solve_on_working_sets


def in_blocks(blocks: Selections) -> object:
    return Margins.from_blocks(blocks, blocks.count)


def size(norm: str, M: np.ndarray) -> float:
    """Of a matrix in this norm, by its definition."""
    if norm in ("nuc", "spec"):
        values = np.linalg.svd(M, compute_uv=False)
        return float(values.sum() if norm == "nuc" else values.max())
    p = {"fro": 2.0, "l1": 1.0, "linf": np.inf}.get(norm) or float(norm[3:])
    return float(np.linalg.norm(M.ravel(), p))


def dual_name(norm: str) -> str:
    pairs = {"fro": "fro", "nuc": "spec", "spec": "nuc", "l1": "linf", "linf": "l1"}
    p = None if norm in pairs else float(norm[3:])
    return pairs[norm] if p is None else f"lp:{p / (p - 1.0)}"


@pytest.mark.parametrize("norm", ["fro", "lp:1.75", "lp:3", "l1", "linf", "nuc", "spec"])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_solution_and_its_proof_are_those_of_all_rows(norm: str, seed: int) -> None:
    blocks = Selections(60, 9, 5, seed)
    A, names = blocks.rows()
    tol = parse_norm(norm).tolerance
    found = max_margin_blocks(in_blocks(blocks), norm)
    assert found.status == "optimal"
    assert found.constraints == len(A)
    assert found.margins.m < len(A)
    # the primal: the weights meet every row of the data
    assert np.tensordot(A, found.W).min() >= 1.0 - 1e-13
    assert size(norm, found.W) == pytest.approx(found.norm, rel=1e-12)
    # the dual: multipliers of rows of the data
    at = {tuple(name): c for c, name in enumerate(names.tolist())}
    numbers = found.margins.numbers[found.margins.sequence]
    rows = [at[i, t] for i, t in zip(numbers.tolist(), found.margins.token.tolist(), strict=True)]
    assert (found.dual >= 0.0).all()
    lower = found.dual.sum() / size(dual_name(norm), np.tensordot(found.dual, A[rows], 1))
    assert 1.0 - lower / found.norm <= tol
    assert found.gap == pytest.approx(1.0 - lower / found.norm, abs=1e-12)
    # and the solver that has all rows finds the same
    data = AttentionData(blocks.X, np.ones(60), blocks.Z, blocks.mask)
    whole = max_margin(selection_margins(data, blocks.selected), norm)
    assert found.norm == pytest.approx(whole.norm, rel=2.0 * tol)


def test_support_tokens_are_named_by_their_sequences_in_the_programme() -> None:
    blocks = Selections(60, 9, 5, 2)
    found = max_margin_blocks(in_blocks(blocks))
    data = AttentionData(blocks.X, np.ones(60), blocks.Z, blocks.mask)
    whole = max_margin(selection_margins(data, blocks.selected))
    assert set(map(tuple, found.support_tokens().tolist())) == set(
        map(tuple, whole.support_tokens().tolist())
    )
    assert "540" not in found.message
    assert f"{found.constraints} constraints in 9 blocks" in found.message


def test_every_form_of_a_block_gives_the_same_solution() -> None:
    blocks = Selections(40, 8, 4, 3)
    expected = max_margin_blocks(in_blocks(blocks))
    parts = [blocks(k) for k in range(blocks.count)]
    written = [
        selection_margins(AttentionData(X, np.ones(len(X)), Z, mask), chosen)
        for X, Z, chosen, mask in parts
    ]
    pairs = [(m.differences, m.queries[m.sequence]) for m in written]
    for form in (parts, written, pairs):
        found = max_margin_blocks(Margins.from_blocks(form))
        assert found.status == "optimal"
        assert found.norm == pytest.approx(expected.norm, rel=1e-9)
    narrow = [(X.astype(np.float32), *rest) for X, *rest in parts]
    assert max_margin_blocks(Margins.from_blocks(narrow)).norm == pytest.approx(
        expected.norm, rel=1e-5
    )
    vectors = [each[0] for each in pairs]
    found = max_margin_blocks(Margins.from_blocks(vectors))
    together = np.concatenate(vectors)
    prompt = Margins(
        together,
        np.ones((1, 1)),
        [0, len(together)],
        np.ones(len(together)),
        np.arange(len(together)),
        [0],
    )
    assert found.status == max_margin(prompt).status


def test_texts_of_pairs_are_numbered_through() -> None:
    rng = np.random.default_rng(0)
    texts = [(rng.standard_normal((30, 4)), rng.standard_normal((30, 4))) for _ in range(4)]
    blocks = [pair_margins(*text) for text in texts]
    found = max_margin_blocks(Margins.from_blocks(blocks))
    whole = max_margin(pair_margins([k for k, _ in texts], [q for _, q in texts]))
    assert found.status == whole.status == "optimal"
    assert found.norm == pytest.approx(whole.norm, rel=1e-8)
    part = found.margins
    assert part.origin is not None
    for row, i, token in zip(part.differences, part.sequence, part.token, strict=True):
        text, place = part.origin[i].tolist()
        keys, queries = texts[text]
        chosen = int((keys[: place + 1] @ queries[place]).argmax())
        np.testing.assert_array_equal(row, keys[chosen] - keys[token])


def test_a_contradiction_of_some_rows_is_one_of_all() -> None:
    blocks = Selections(50, 9, 2, 4, chance=True)
    A, names = blocks.rows()
    found = max_margin_blocks(in_blocks(blocks))
    assert found.status == "infeasible"
    assert "these rows prove it for all" in found.message
    at = {tuple(name): c for c, name in enumerate(names.tolist())}
    pull = np.zeros((2, 2))
    numbers = found.margins.numbers[found.margins.sequence]
    for i, t, lam in zip(numbers, found.margins.token, found.dual, strict=True):
        assert lam >= 0.0
        pull += lam * A[at[int(i), int(t)]]
    assert np.abs(pull).max() <= 1e-12 * found.dual.sum()
    for i, selected, _ in found.conflict().tolist():
        assert blocks.selected[i] == selected
        assert f"token {selected} of sequence {i}" in found.message or len(found.conflict()) > 3


def one_bit(X: np.ndarray) -> np.ndarray:
    X[0, 1, 0] = np.nextafter(X[0, 1, 0], np.inf)
    return X


@pytest.mark.parametrize(
    "change",
    [
        one_bit,
        np.negative,
        lambda X: X[:, :, ::-1],
        lambda X: np.random.default_rng().random(X.shape),
    ],
)
def test_a_block_that_has_changed_is_refused_by_its_number(change) -> None:
    blocks = Selections(40, 6, 4, 5)
    changing = Changing(blocks, 3, change)
    with pytest.raises(InputError, match="block 3 has changed since the first pass"):
        max_margin_blocks(Margins.from_blocks(changing, blocks.count))
    same = Changing(blocks, 3, lambda X: X)
    assert max_margin_blocks(Margins.from_blocks(same, blocks.count)).status == "optimal"


def test_workers_of_an_executor_find_the_same_bits() -> None:
    blocks = Selections(60, 9, 5, 6)
    alone = max_margin_blocks(in_blocks(blocks))
    with ThreadPoolExecutor(3) as threads:
        shared = max_margin_blocks(in_blocks(blocks), executor=threads)
    with ProcessPoolExecutor(2, get_context("spawn")) as processes:
        apart = max_margin_blocks(in_blocks(blocks), executor=processes)
        with pytest.raises(InputError, match="cannot be sent to another process"):
            max_margin_blocks(Margins.from_blocks(lambda k: blocks(k), 9), executor=processes)
        with pytest.raises(InputError, match="block 3 has changed"):
            max_margin_blocks(
                Margins.from_blocks(Unsteady(blocks), blocks.count), executor=processes
            )
    for other in (shared, apart):
        np.testing.assert_array_equal(other.W, alone.W)
        np.testing.assert_array_equal(other.dual, alone.dual)
        assert (other.gap, other.passes) == (alone.gap, alone.passes)


class Unsteady:
    """Block 3 is drawn without a seed."""

    def __init__(self, blocks: Selections) -> None:
        self.blocks = blocks

    def __call__(self, k: int) -> tuple[np.ndarray, ...]:
        X, *rest = self.blocks(k)
        return (X + 1e-6 * np.random.default_rng().random(X.shape) * (k == 3), *rest)


def test_little_memory_makes_the_working_sets_small_and_not_the_answer() -> None:
    blocks = Selections(400, 20, 6, 7, each=10)
    norm = Frobenius()

    def solve_counted(memory: str) -> tuple[MarginSolution, int]:
        sizes = []

        def solve_subset(margins, tol, dual, seconds):
            sizes.append(margins.m)
            return max_margin(margins, norm, tol=tol, warm_start=dual)

        source = RowsInBlocks(in_blocks(blocks), norm, parse_memory(memory), None)
        request = Request(norm.tolerance, None, None, None)
        return solve_on_working_sets(source, norm, request, solve_subset), max(sizes)

    expected, plenty = solve_counted("2GiB")
    solution, few = solve_counted("150kB")
    assert solution.status == expected.status == "optimal"
    assert solution.norm == pytest.approx(expected.norm, rel=1e-9)
    assert few < plenty / 2
    with pytest.raises(InputError, match=r"room for \d+ rows of 6 x 6 weights beside blocks"):
        max_margin_blocks(in_blocks(blocks), memory="20 KB")


def test_memory_for_fewer_rows_than_matter_is_said_to_be_too_little() -> None:
    blocks = Selections(300, 30, 12, 8, each=1)
    found = max_margin_blocks(in_blocks(blocks))
    assert int((found.dual > 0.0).sum()) > 70
    with pytest.raises(InputError, match="all of them matter after"):
        max_margin_blocks(in_blocks(blocks), memory=180_000)


@pytest.mark.parametrize(
    ("norm", "n", "d", "memory"),
    [("fro", 800, 12, 4_000_000), ("lp:1.75", 400, 10, 4_000_000)],
)
def test_the_peak_stays_within_the_memory(norm: str, n: int, d: int, memory: int) -> None:
    blocks = Selections(n, 60, d, 9, each=20)
    few = Selections(20, 9, d, 9, each=20)
    max_margin_blocks(in_blocks(few), norm, memory=memory)  # imports and compiles
    tracemalloc.start()
    try:
        found = max_margin_blocks(in_blocks(blocks), norm, memory=memory)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.status == "optimal"
    assert peak <= memory


def test_what_a_text_says_of_memory() -> None:
    assert parse_memory("2GiB") == parse_memory(None) == 2**31
    assert parse_memory("1.5 MB") == 1_500_000
    assert parse_memory(4096) == 4096
    for wrong in ("2 gibs", "-1MB", 0, True, 1.5, "MB", "0kB"):
        with pytest.raises(InputError, match="memory is"):
            parse_memory(wrong)


def test_tokens_far_from_zero_lose_no_digits() -> None:
    blocks = Selections(60, 9, 5, 10)
    expected = max_margin_blocks(in_blocks(blocks))
    blocks.X += 1e7  # products of tokens are then rounded to 1e-8 of a margin
    found = max_margin_blocks(in_blocks(blocks))
    assert found.status == "optimal"
    assert found.norm == pytest.approx(expected.norm, rel=1e-7)
    A, _ = blocks.rows()
    assert np.tensordot(A, found.W).min() >= 1.0 - 1e-12


def test_right_hand_sides_of_zero() -> None:
    rng = np.random.default_rng(11)
    X, p = rng.standard_normal((60, 6, 3)), rng.standard_normal(3)
    data, tokens = AttentionData(X, np.ones(60)), (X @ p).argmax(axis=1)
    support = np.arange(60) % 3 == 0
    whole = max_margin(relaxed_margins(data, tokens, support))
    parts = [
        relaxed_margins(data.take(part), tokens[part], support[part])
        for part in np.array_split(np.arange(60), 7)
    ]
    found = max_margin_blocks(Margins.from_blocks(parts))
    assert found.status == whole.status == "optimal"
    assert found.norm == pytest.approx(whole.norm, rel=1e-8)
    values = relaxed_margins(data, tokens, support)(found.W)
    assert (values >= np.where(np.repeat(support, 5), 1.0, 0.0) - 1e-9).all()
    nothing = [relaxed_margins(data, tokens, np.zeros(60, dtype=bool))]
    assert max_margin_blocks(Margins.from_blocks(nothing)).norm == 0.0


def test_sequences_without_rivals() -> None:
    one = [(np.ones((3, 1, 2)), np.ones((3, 2)), np.zeros(3, dtype=int))] * 2
    found = max_margin_blocks(Margins.from_blocks(one))
    assert (found.status, found.norm, found.constraints) == ("optimal", 0.0, 0)


def test_what_is_known_when_the_time_is_over_comes_back() -> None:
    blocks = Selections(200, 20, 6, 12)
    found = max_margin_blocks(in_blocks(blocks), max_seconds=1e-6)
    assert found.status == "inaccurate"
    assert found.passes == 2
    assert np.isfinite(found.W).all()


def test_a_solution_can_be_kept(tmp_path) -> None:
    found = max_margin_blocks(in_blocks(Selections(30, 6, 4, 13)))
    found.save(tmp_path / "solution.npz")
    again = type(found).load(tmp_path / "solution.npz")
    assert (again.constraints, again.passes) == (found.constraints, found.passes)
    np.testing.assert_array_equal(again.margins.numbers, found.margins.numbers)
    np.testing.assert_array_equal(again.support_tokens(), found.support_tokens())
