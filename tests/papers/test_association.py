"""Sentences of noisy in-context recall, their risk, and the least that one layer leaves."""

import itertools

import numpy as np
import pytest
import torch

from attsvm_papers.association import recall
from attsvm_papers.association.recall import ANSWERS, NOISE, TRIGGERS, Risk


@pytest.mark.parametrize("held", [False, True])
def test_a_sentence_holds_its_trigger_and_its_answer(held: bool) -> None:
    found = recall.draw_sentences([3, 4], 300, 0.3, 0, held)
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
    alpha, sentences = 0.2, recall.draw_sentences([5], 6, 0.2, 0)
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


def test_the_least_risks_of_one_layer_are_those_of_its_best_weights() -> None:
    """Without attention the best feed-forward layer gives noise its share and the rest to others.
    Without a feed-forward layer words behind other words are no answers, and no pair of numbers for
    the answer and for noise is better than the one that is found.
    """
    alpha, sentences = 0.2, recall.draw_sentences([1], 4_000, 0.2, 0)
    risk, theta = Risk(sentences, alpha), recall.constructed(0.0, alpha)
    flat = theta.unflatten(-1, (3, -1))
    flat[..., 2, NOISE] = np.log(NOISE * alpha / (1 - alpha))
    assert float(risk(theta)) == pytest.approx(recall.without_attention(alpha), rel=1e-12)
    found = []
    for strength, noise in itertools.product(np.linspace(2, 6, 9), np.linspace(-1, 3, 9)):
        flat.zero_()
        flat[0, :, 0] = -40.0
        flat[0, range(TRIGGERS), 0, range(TRIGGERS)] = strength
        flat[0, :, 1, NOISE] = noise - strength
        found.append(float(risk(theta)))
    # three standard errors of the share of sentences with noise, and the grid
    assert -0.01 < min(found) - recall.without_feed_forward(alpha) < 0.03
