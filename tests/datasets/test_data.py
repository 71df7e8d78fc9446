"""AttentionData: what it refuses, in which words, and what it keeps."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from attsvm import AttentionData, InputError
from attsvm.datasets.attention_data import axes


def tokens(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def signalling(kind: type) -> np.ndarray:
    """A NaN that processors tell of when they meet it."""
    bits = {np.float64: np.uint64(0x7FF0000000000001), np.float32: np.uint32(0x7F800001)}[kind]
    return np.array([[[bits]]]).view(kind)


ONE = np.ones((1, 1, 1))
REFUSED = [
    ({"tokens": np.ones((2, 3))}, r"tokens has shape \(2, 3\); it needs at least three axes"),
    ({"tokens": np.ones((0, 2, 3))}, r"tokens has shape \(0, 2, 3\), so there are no sequences"),
    ({"tokens": np.ones((1, 0, 3))}, r"tokens has shape \(1, 0, 3\), so there are no tokens"),
    ({"tokens": np.ones((1, 2, 0))}, r"tokens has shape \(1, 2, 0\), so there are no features"),
    ({"tokens": [[[1.0]], [[1.0], [2.0]]]}, "tokens is not a rectangular array .*from_bags"),
    ({"tokens": np.full((1, 1, 1), "a")}, "tokens has dtype <U1; give real numbers"),
    ({"tokens": ONE * 1j}, "tokens has dtype complex128"),
    ({"tokens": [[[0, 1], [np.nan, 0]]]}, r"tokens of shape \(1, 2, 2\) holds nan at \[0, 1, 0\]"),
    ({"tokens": signalling(np.float64)}, r"tokens of shape \(1, 1, 1\) holds nan"),
    ({"tokens": signalling(np.float32)}, r"tokens of shape \(1, 1, 1\) holds nan"),
    ({"tokens": [[[0], [-np.inf]]]}, r"tokens of shape \(1, 2, 1\) holds -inf at \[0, 1, 0\]"),
    (
        {"tokens": np.ones((3, 1, 1)), "labels": [0, 1, 2]},
        r"labels holds 3 different values; .* np\.where\(labels == 2, 1, -1\)$",
    ),
    ({"labels": [1]}, r"labels has shape \(1,\); it must be \(2,\)"),
    ({"labels": [1, 0]}, r"labels holds 0 at \[1\]; labels must be -1 or \+1 .*2\*y-1"),
    ({"labels": [np.nan, 1]}, r"labels holds nan at \[0\]"),
    ({"queries": np.ones((3, 1))}, r"queries has shape \(3, 1\); it must be \(2, d_z\)"),
    ({"queries": np.ones(2)}, r"queries has shape \(2,\)"),
    ({"queries": np.ones((2, 0))}, r"queries has shape \(2, 0\), so it has no features"),
    ({"queries": [[1, 0], [0, np.nan]]}, r"queries of shape \(2, 2\) holds nan at \[1, 1\]"),
    ({"mask": [[True]]}, r"mask has shape \(1, 1\); it must be \(2, 1\)"),
    ({"mask": [[1], [2]]}, r"mask holds 2 at \[1, 0\]; use booleans or 0 and 1"),
    ({"mask": [[1], [0]]}, r"mask hides every token of sequence \[1\]"),
]


@pytest.mark.parametrize(("change", "sentence"), REFUSED)
def test_a_refusal_names_array_shape_and_index(change, sentence):
    n = len(change.get("tokens", (1, 2)))
    arguments = {"tokens": np.ones((2, 1, 1)), "labels": np.ones(n)} | change
    with pytest.raises(InputError, match=f"^{sentence}") as caught:
        AttentionData(**arguments)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


@given(st.data())
def test_one_bad_value_is_found_where_it_is(data):
    shape = data.draw(hnp.array_shapes(min_dims=3, max_dims=4, max_side=4))
    where = tuple(data.draw(st.integers(0, side - 1)) for side in shape)
    value = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    X = np.zeros(shape)
    X[where] = value
    with pytest.raises(
        InputError, match="holds " + str(value) + r" at \[" + ", ".join(map(str, where)) + r"\]"
    ):
        AttentionData(X, np.ones(shape[:-2]))
    mask = np.ones(shape[:-1], bool)
    mask[where[:-1]] = False
    if mask.any(axis=-1).all():  # what the mask hides need not be finite
        assert AttentionData(X, np.ones(shape[:-2]), mask=mask).tokens[where] == 0.0


@given(
    hnp.arrays(
        st.sampled_from([np.float16, np.float32, np.int8, np.int64, np.bool_]),
        hnp.array_shapes(min_dims=3, max_dims=4, max_side=4),
    )
)
def test_any_real_dtype_is_taken_exactly(X):
    if X.dtype.kind == "f":
        X = np.nan_to_num(X, posinf=1, neginf=-1)
    data = AttentionData(X, np.ones(X.shape[:-2]))
    assert data.tokens.dtype == np.float64
    assert np.array_equal(data.tokens, X.astype(np.float64))
    assert np.array_equal(data.queries, data.tokens[..., 0, :])  # self-attention by default
    assert data.mask.all()


def test_torch_tensors_are_taken_off_their_graph():
    import torch

    X = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert np.array_equal(AttentionData(X, torch.ones(2)).tokens, X.detach().double().numpy())
    half = X.detach().bfloat16()
    assert np.array_equal(AttentionData(half, torch.ones(2)).tokens, half.double().numpy())


def test_arrays_are_read_only_and_independent_of_the_caller():
    X, y = tokens(2, 3, 4), np.ones(2)
    data = AttentionData(X, y)
    before = data.tokens.copy()
    X[:] = 7.0
    y[:] = -1.0
    assert np.array_equal(data.tokens, before)
    assert (data.labels == 1.0).all()
    for array in (data.tokens, data.labels, data.queries, data.mask):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        data.labels = y


def test_a_read_only_array_is_shared_and_never_written():
    X = tokens(2, 3, 4)
    X.setflags(write=False)
    assert AttentionData(X, [1, 1]).tokens is X
    before = X.copy()
    hidden = AttentionData(X, [1, 1], mask=[[1, 1, 0], [1, 1, 1]])
    assert np.array_equal(X, before)
    assert (hidden.tokens[0, 2] == 0.0).all()


def test_sizes_with_leading_axes_and_instance():
    mask = tokens(5, 2, 3) < 0.5
    mask[..., 1] = True
    data = AttentionData(tokens(5, 2, 3, 4), np.ones((5, 2)), tokens(5, 2, 7), mask)
    assert (data.batch_shape, data.n, data.T, data.d_x, data.d_z) == ((5,), 2, 3, 4, 7)
    assert np.array_equal(data.lengths, mask.sum(axis=2))
    one = data.instance(3)
    assert one.batch_shape == ()
    for name in ("tokens", "labels", "queries", "mask"):
        assert np.array_equal(getattr(one, name), getattr(data, name)[3])
    with pytest.raises(InputError, match=r"needs 1 indices for leading axes \(5,\), got 2"):
        data.instance(0, 0)
    first, (zeroth, second) = mask[..., :1], np.moveaxis(data.tokens, 2, 0)[:2]
    asked = AttentionData(data.tokens, data.labels, mask=mask).queries
    assert np.array_equal(asked, np.where(first, zeroth, second))


@pytest.mark.parametrize(
    ("bags", "sentence"),
    [
        ([], "bags is empty"),
        ([np.ones(3)], r"bags\[0\] has shape \(3,\); each sequence must be \(tokens, features\)"),
        ([np.ones((1, 2)), np.ones((0, 2))], r"bags\[1\] has no tokens"),
        ([np.ones((1, 2)), np.ones((1, 3))], r"bags\[1\] has 3 features, bags\[0\] has 2"),
        ([np.ones((1, 2)), np.full((1, 2), "x")], r"bags\[1\] has dtype"),
        ([1.0, -1.0], "give the bags first and the labels second"),
        (3, r"^bags is .*; give a list of arrays"),
        ("digits", r"^bags is .*; give a list of arrays"),
        (AttentionData(ONE, [1]), r"^bags is .*; give a list of arrays"),
    ],
)
def test_bags_that_are_refused(bags, sentence):
    with pytest.raises(InputError, match=sentence):
        AttentionData.from_bags(bags, [ONE[0]] if "first" in sentence else [1, -1])


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.data())
def test_take_keeps_the_chosen_sequences_and_trims_the_padding(lengths, data):
    bags = [tokens(length, 2, seed=k) for k, length in enumerate(lengths)]
    whole = AttentionData.from_bags(bags, np.ones(len(bags)))
    chosen = data.draw(st.lists(st.integers(0, len(bags) - 1), min_size=1, max_size=6))
    part = whole.take(chosen)
    assert not np.shares_memory(part.tokens, whole.tokens)
    assert part.tokens.shape[1] == max(lengths[i] for i in chosen)
    for row, i in enumerate(chosen):
        assert np.array_equal(part.tokens[row][part.mask[row]], bags[i])
        assert not part.tokens[row][~part.mask[row]].any()
        assert np.array_equal(part.queries[row], bags[i][0])
    some = np.isin(np.arange(len(bags)), chosen)
    assert np.array_equal(whole.take(some).tokens, whole.take(np.flatnonzero(some)).tokens)


@given(
    hnp.arrays(
        np.int64,
        st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(1, 2)),
        elements=st.integers(-1, 1),
    ),
    st.sampled_from([1e-300, 1.0, 1e307]),
    st.data(),
)
def test_duplicates_are_the_later_equal_visible_tokens(X, scale, data):
    X = scale * X
    mask = data.draw(hnp.arrays(np.bool_, X.shape[:-1]))
    mask[:, data.draw(st.integers(0, X.shape[1] - 1))] = True
    held = AttentionData(X, np.ones(len(X)), mask=mask)
    expected = np.zeros(mask.shape, bool)
    for i in range(len(X)):
        for t in range(X.shape[1]):
            expected[i, t] = mask[i, t] and any(
                mask[i, s] and (X[i, s] == X[i, t]).all() for s in range(t)
            )
    assert np.array_equal(held.duplicate_tokens(), expected)
    alone = held.without_duplicates()
    assert not alone.duplicate_tokens().any()
    assert np.array_equal(alone.mask, mask & ~expected)


def test_negative_zero_is_zero():
    assert AttentionData([[[0.0], [-0.0]]], [1]).duplicate_tokens().tolist() == [[False, True]]


def test_axes_of_what_holds_bags() -> None:
    ragged = np.empty(2, dtype=object)
    ragged[:] = [np.ones((3, 2)), np.ones((1, 2))]
    for value, expected in (
        (np.ones((4, 3, 2)), 3),
        (ragged, 3),
        (list(ragged), 3),
        ([[[1.0]], [[1.0], [2.0]]], 3),
        ([0, 1], 1),
        (["a", "b"], 1),
        (np.array(["a", None], dtype=object), 1),
        ([], 1),
        ("text", 0),
        ({"a": 1}, 0),
        (None, 0),
        (3.0, 0),
    ):
        assert axes(value) == expected
