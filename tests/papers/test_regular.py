"""Words, their chains of thought, and attention on them."""

import numpy as np
import pytest

from attsvm.models import Attention
from attsvm_papers.regular import language
from attsvm_papers.regular.language import CHAIN, EVEN, PARITY, Words, asked


def test_even_pairs_are_counted_pairs() -> None:
    """The first letter is the last one where 01 and 10 occur an even number of times together."""
    letters = language.every(6)
    changes = (letters[:, 1:] != letters[:, :-1]).sum(axis=1)
    data = asked(EVEN, 6, Words(letters, np.full(64, 6)))
    assert np.array_equal(data.labels > 0, changes % 2 == 0)
    at_once = asked(PARITY, 6, Words(letters, np.full(64, 6)))
    assert np.array_equal(at_once.labels > 0, letters.sum(axis=1) % 2 == 0)


def test_letters_of_a_chain_are_right_answers_and_end_at_the_parity() -> None:
    size, drawn = 4, language.drawn(CHAIN, 4, 200, [3, 4])
    letters, lengths = drawn
    for k in range(1, size - 1):
        assert np.array_equal(letters[..., size - 1 + k], (
            letters[..., :k].sum(axis=-1) + letters[..., size - 1]
        ) % 2)  # fmt: skip
    yes = asked(CHAIN, size, drawn).labels > 0
    for length in range(size, 2 * size - 2):
        own = lengths == length
        assert np.array_equal(yes[own], letters[own][:, length] == 0)
    full = lengths == 2 * size - 2
    assert np.array_equal(yes[full], letters[full][:, :size].sum(axis=1) % 2 == 0)


def test_attention_is_the_library_s_and_its_outputs_are_averages() -> None:
    data = asked(EVEN, 5, language.drawn(EVEN, 5, 9, [0, 1]))
    W = np.random.default_rng(0).normal(size=(2, 10, 10))
    model = Attention.cross(data, np.zeros((2, 10)), init=W)
    assert np.allclose(language.attention(data, W), model.probabilities(data).detach(), atol=1e-12)
    assert np.allclose(language.outputs(data, W), model.outputs(data).detach(), atol=1e-12)


@pytest.mark.parametrize(("task", "size"), [(EVEN, 3), (CHAIN, 3)])
def test_weights_that_look_at_one_letter_find_every_parity(task, size) -> None:
    """The letter that is asked for has weight where it differs from the last one, and is held
    against; a little attention on the others speaks for it.
    """
    T = 5
    W, v = np.zeros((2 * T, 2 * T)), np.zeros(2 * T)
    v[:] = 1.0
    for last in range(T):
        partner = max(last + 1 - size, 0)
        for letter in (0, 1):
            W[2 * partner + 1 - letter, 2 * last + letter] = 50.0
    v[[0, 1, 2, 3]] = (-1.0, -1.0, 1.0, 1.0) if task == EVEN else (-1.0, -1.0, -1.0, -1.0)
    if task == CHAIN:  # a letter in its own place speaks for it, wherever the word is
        for last in range(T):
            W[[2 * last, 2 * last + 1], [2 * last, 2 * last + 1]] = 25.0
    right = language.parities(task, W[None], v[None], size)
    assert right.tolist() == [1.0]
    assert language.parities(task, 0 * W[None], v[None], size)[0] < 1.0
