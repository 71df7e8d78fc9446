"""Sentences of noisy in-context recall, and their risk."""

import numpy as np
import pytest
import torch

from attsvm_papers.association import recall
from attsvm_papers.association.recall import (
    ANSWERS,
    NOISE,
    TRIGGERS,
    Risk,
)


@pytest.mark.parametrize("held", [False, True])
def test_a_sentence_holds_its_trigger_and_its_answer(held: bool) -> None:
    found = recall.drawn([3, 4], 300, 0.3, 0, held)
    before, word = found.words[..., :-1], found.words[..., 1:]
    asked = before == found.query[..., None]
    answered = asked & (word == found.answer[..., None])
    noisy = asked & (word == NOISE)
    assert (answered.sum(axis=-1) == 1).all()
    assert (asked.sum(axis=-1) == 1 + noisy.sum(axis=-1)).all()
    assert abs((noisy.sum(axis=-1) > 0).mean() - 0.3) < 0.06  # three standard errors
    assert ((found.answer >= TRIGGERS + ANSWERS) == held).all()
    for row in found.words.reshape(-1, found.words.shape[-1]):
        others = row[row >= TRIGGERS]
        assert len(np.unique(others)) == len(others), "no word occurs twice but the trigger"


def test_the_risk_is_the_cross_entropy_word_by_word() -> None:
    alpha, sentences = 0.2, recall.drawn([5], 6, 0.2, 0)
    theta = torch.from_numpy(np.random.default_rng(0).normal(size=(1, TRIGGERS, 3 * recall.P)))
    W, U, F = theta[0].reshape(TRIGGERS, 3, recall.P).unbind(1)
    losses = []
    for q, answer, words in zip(*(each[0].tolist() for each in sentences), strict=True):
        logits = F[q, : NOISE + 1].clone()
        for before, word in zip([recall.START, *words], words, strict=False):
            logits[word] += W[q, before] + U[q, word]
        told = torch.log_softmax(logits, dim=0)
        losses.append(-(1 - alpha) * told[answer] - alpha * told[NOISE])
    expected = torch.stack(losses).mean()
    torch.testing.assert_close(Risk(sentences, alpha)(theta)[0], expected, rtol=1e-12, atol=0)
