"""Facts that are told and asked, and texts whose embeddings are trained."""

from __future__ import annotations

import json

import numpy as np
import pytest

from attsvm import InputError, max_margin
from attsvm_papers.context.facts import facts_of_groups, random_facts
from attsvm_papers.embeddings.word_texts import (
    one_step,
    random_start,
    texts_of_biased_words,
    texts_of_file,
    texts_with_one_important_word,
)


def test_facts_are_told_of_all_and_second_ones_asked_of_new_subjects():
    facts = facts_of_groups([2, 1], [1, 2])
    assert facts.training.shape == (6 + 3, 8)
    assert facts.questions.shape == (3, 8)
    np.testing.assert_array_equal(facts.training.sum(axis=1), 2.0)
    np.testing.assert_array_equal(np.bincount(facts.answers), [3, 3, 2, 1])
    np.testing.assert_array_equal(facts.expected, [2, 3, 3])
    subject = facts.questions[:, :6].argmax(axis=1)
    np.testing.assert_array_equal(subject, [2, 4, 5])
    # weights that add up what is known of a subject's group answer everything by one
    W = np.zeros((4, 8))
    W[[0, 0, 0, 2, 2, 2], [0, 1, 2, 0, 1, 2]] = W[[1, 1, 1, 3, 3, 3], [3, 4, 5, 3, 4, 5]] = 1.0
    W[:2, 6] = W[2:, 7] = 1.0
    assert facts.least_margin(W) == 1.0
    np.testing.assert_array_equal(facts.unseen_leads(W), 1.0)
    np.testing.assert_array_equal(facts.unseen_leads(np.stack([W, 2 * W])), [[1] * 3, [2] * 3])


@pytest.mark.parametrize(("known", "new"), [(1, 3), (2, 1)])
def test_the_margin_of_new_answers_is_the_derived_one(known, new):
    facts = facts_of_groups([known] * 3, [new] * 3)
    lead = facts.unseen_leads(max_margin(facts.margins(), "nuc").W)
    # gaps of 1e-6 move weights by their root
    assert lead == pytest.approx(min(1.0, np.sqrt(known / new)), abs=1e-3)


def test_groups_that_are_alike_have_one_size():
    sizes = {len(random_facts(3, seed, alike=True).expected) % 3 for seed in range(20)}
    assert sizes == {0}
    assert {len(random_facts(3, seed).expected) % 3 for seed in range(20)} > {0}


def test_one_step_from_zero_is_the_signed_frequency():
    texts = texts_with_one_important_word(n=30, T=5, kinds=2, plain=6, seed=1)
    assert (np.count_nonzero(texts.words < 4, axis=1) == 1).all()
    start = random_start(texts.size, 7, 0)._replace(E=np.zeros((texts.size, 7)))
    moves = one_step(texts, start, 4.0)
    expected = 2.0 * np.outer(texts.frequencies(), start.head)
    np.testing.assert_allclose(moves, expected, atol=1e-15)
    counts = [(texts.words == word).sum(axis=1) @ texts.labels for word in range(texts.size)]
    np.testing.assert_allclose(texts.frequencies(), np.array(counts) / 150, atol=1e-15)
    assert texts.frequencies(signed=False).sum() == pytest.approx(1.0)


def test_texts_of_a_file_are_its_frequent_words(tmp_path):
    path = tmp_path / "reviews.jsonl"
    lines = [
        {"text": f"{'good' if k % 2 else 'bad'} film " * (1 + k % 3), "label": k % 2}
        for k in range(12)
    ]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    texts = texts_of_file(str(path), n=6, T=4, size=3, seed=0)
    assert texts.words.shape == (6, 4)
    assert set(texts.mask.sum(axis=1).tolist()) <= {2, 4}  # of two, four and six words
    signed, frequency = texts.frequencies(), texts.frequencies(signed=False)
    assert sorted(np.abs(signed) < frequency) == [False, False, True]  # film says nothing
    with pytest.raises(InputError, match="has 12 texts and 3 words; give a file with 400 and 200"):
        texts_of_file(str(path), n=400, T=4, size=200, seed=0)


def test_biased_words_are_drawn_by_their_label():
    texts = texts_of_biased_words(n=2000, T=20, size=30, seed=0)
    signed, frequency = texts.frequencies(), texts.frequencies(signed=False)
    assert (np.diff(frequency[:5]) < 0.01).all()
    assert np.abs(signed / frequency).max() > 0.5
