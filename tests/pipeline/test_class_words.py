"""Which words belong to a class."""

import numpy as np
import pytest
from scipy.stats import binom, fisher_exact

from attsvm.pipeline.class_words import class_words

FILLERS = ["the", "a", "it", "film", "plot", "story", "was", "of"]


@pytest.fixture
def rng():
    """A generator for each test, so that no test depends on those that ran before it."""
    return np.random.default_rng(5)


def corpus(rng, n, witnesses):
    """Texts of fillers, those of class ``c`` with one of ``witnesses[c]`` at a random place; the
    witness is chosen, or a filler where a class has none.
    """
    texts, chosen, classes = [], [], rng.integers(len(witnesses), size=n)
    for c in classes:
        words = list(rng.choice(FILLERS, 8))
        if witnesses[c]:
            words[rng.integers(8)] = word = str(rng.choice(witnesses[c]))
        texts.append(words)
        chosen.append(word if witnesses[c] else "the" if "the" in words else words[0])
    return texts, chosen, classes


@pytest.mark.parametrize("classes", [2, 4])
def test_a_class_that_is_everything_else_has_no_words(classes, rng):
    witnesses = [[f"w{c}{k}" for k in range(3)] for c in range(classes - 1)]
    words = class_words(*corpus(rng, 300, [*witnesses, []]))
    assert {c: sorted(words[c]) for c in range(classes - 1)} == dict(enumerate(witnesses))
    assert words[classes - 1] == []  # *the* is chosen there twice as often as it stands there


def test_words_chosen_by_chance_belong_to_no_class(rng):
    texts = [list(rng.choice(FILLERS, 8)) for _ in range(400)]
    chosen = [str(rng.choice(text)) for text in texts]
    assert class_words(texts, chosen, rng.integers(3, size=400)) == {0: [], 1: [], 2: []}


def test_the_order_is_that_of_how_often_they_are_chosen(rng):
    texts, chosen, classes = corpus(rng, 300, [["rare", "often", "often", "often"], ["other"]])
    assert class_words(texts, chosen, classes) == {0: ["often", "rare"], 1: ["other"]}


def test_the_bound_is_above_the_probability_of_chance(rng):
    """Hoeffding: no sum of independent events with the same mean is as often so large."""
    shares = rng.uniform(0, 0.3, 60)
    sums = (rng.random((20_000, 60)) < shares).sum(axis=1)
    for times in range(int(shares.sum()) + 2, 25):
        bound = binom.sf(times - 1, 60, shares.mean())
        share = (sums >= times).mean()
        assert share <= bound + 4 * np.sqrt(bound / 20_000)  # four standard errors


def test_a_word_that_stands_in_all_texts_alike_needs_more_than_being_chosen():
    texts = [["the", "x"] for _ in range(100)]
    classes = np.repeat([0, 1], 50)
    assert class_words(texts, ["the"] * 100, classes) == {0: [], 1: []}
    texts[:25] = [["dull", "x"]] * 25
    words = class_words(texts, ["dull"] * 25 + ["the"] * 75, classes)
    assert words[0] == ["dull"]
    assert fisher_exact([[25, 25], [0, 50]], alternative="greater").pvalue < 1e-8


def test_texts_without_a_chosen_word_are_left_out():
    assert class_words([[], []], ["", ""], np.array([0, 1])) == {}
