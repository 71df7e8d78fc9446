"""Keys and values that are trained: gradients of the textbook, and the same layer when they are
fixed.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from attsvm import AttentionData, InputError, train
from attsvm.attention import Attention, LogScale, WordEmbeddings
from attsvm.optim import SteepestDescent
from attsvm.training import unsupported

RNG = np.random.default_rng(3)
WORDS = RNG.integers(7, size=(4, 5))
MASK = np.ones((4, 5), dtype=bool)
MASK[2, 3:] = False
DATA = AttentionData(WORDS[..., None], [1.0, -1.0, -1.0, 1.0], mask=MASK)
START, PROMPT, HEAD = RNG.standard_normal((7, 3)), RNG.standard_normal(3), RNG.standard_normal(3)


def embedded(weight: np.ndarray = START) -> tuple[Attention, WordEmbeddings]:
    E = WordEmbeddings(weight)
    return Attention.prompt(DATA, HEAD, init=PROMPT, keys=E, values=E), E


def textbook(E: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """The logistic loss of the embedded texts, word by word."""
    losses = []
    for words, mask, label in zip(WORDS, MASK, DATA.labels, strict=True):
        X = E[torch.tensor(words[mask])]
        losses.append(nn.functional.softplus(-label * torch.softmax(X @ p, 0) @ X @ HEAD_T))
    return torch.stack(losses).mean()


HEAD_T = torch.tensor(HEAD)


def test_embeddings_and_prompt_have_the_gradients_of_the_textbook() -> None:
    model, E = embedded()
    weight, p = torch.tensor(START, requires_grad=True), torch.tensor(PROMPT, requires_grad=True)
    expected = textbook(weight, p)
    expected.backward()
    loss = model.loss(DATA)
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-14)
    assert E.weight.grad is not None
    assert model.W.grad is not None
    assert weight.grad is not None
    assert p.grad is not None
    np.testing.assert_allclose(E.weight.grad, weight.grad, atol=1e-15)
    np.testing.assert_allclose(model.W.grad[:, 0], p.grad, atol=1e-15)


def test_both_are_trained_and_the_prompt_alone_as_on_fixed_tokens() -> None:
    model, E = embedded()
    descent = SteepestDescent(model.parameters(), lr=0.5, normalize=False)
    assert unsupported(model, descent) == "keys and values are made by a module"
    weight, p = torch.tensor(START, requires_grad=True), torch.tensor(PROMPT, requires_grad=True)
    textbook(weight, p).backward()
    train(model, DATA, descent, 1)
    assert weight.grad is not None
    assert p.grad is not None
    np.testing.assert_allclose(E.weight.detach(), START - 0.5 * weight.grad.numpy(), atol=1e-14)
    np.testing.assert_allclose(model.W.detach()[:, 0], PROMPT - 0.5 * p.grad.numpy(), atol=1e-14)
    prompt_alone, _ = embedded()
    texts = AttentionData(START[WORDS], DATA.labels, mask=MASK)
    fixed = Attention.prompt(texts, HEAD, init=PROMPT)
    runs = [
        train(layer, data, SteepestDescent([layer.W], lr=0.1), 20).W[-1]
        for layer, data in ((prompt_alone, DATA), (fixed, texts))
    ]
    np.testing.assert_allclose(*runs, atol=1e-12)  # twenty steps, each rounded
    assert (prompt_alone.scores(DATA) - fixed.scores(texts))[MASK].abs().max() < 1e-14


def test_a_map_of_keys_is_trained_beside_fixed_values() -> None:
    rng = np.random.default_rng(4)
    tokens = AttentionData(rng.standard_normal((4, 5, 6)), DATA.labels, rng.standard_normal((4, 2)))
    keys = nn.Linear(6, 3, bias=False).double()
    model = Attention.cross(tokens, np.ones(6), keys=keys, init=rng.standard_normal((3, 2)))
    fixed = Attention.cross(tokens, np.ones(6), keys=keys.weight.detach(), init=model.W.detach())
    assert dict(model.named_parameters()).keys() == {"W", "key_module.weight"}
    torch.testing.assert_close(model(tokens), fixed(tokens))
    before = keys.weight.detach().clone()
    train(model, tokens, torch.optim.Adam(model.parameters(), lr=0.1), 5)
    assert (keys.weight - before).abs().min() > 0
    twin = copy.deepcopy(model)
    assert twin.key_module is twin.inputs.keys is not keys


def test_what_is_no_word_ends_in_a_sentence() -> None:
    with pytest.raises(InputError, match="are no numbers of 3 words; give whole numbers from 0"):
        embedded(START[:3])[0].loss(DATA)
    with pytest.raises(InputError, match=r"weight has shape \(3,\); give \(words, features\)"):
        WordEmbeddings(np.zeros(3))
    with pytest.raises(InputError, match="keys or values are trained, so the gradients cannot"):
        embedded()[0].loss(DATA, LogScale())
