"""One attention layer for many seeds at once, and where two trainings are compared."""

import numpy as np
import pytest
import torch

from attsvm_papers.md import e4_frozen_encoder as md_4
from attsvm_papers.md.frozen_states import (
    FrozenSequences,
    data_folder,
    frozen_sequences,
    opinion_words,
)
from attsvm_papers.md.one_layer import (
    CONTROLS,
    OPTIMISERS,
    Training,
    initial_weights,
    measure_examples,
    train_side_by_side,
)

RATES = {"adam": 0.01, "frozen": 0.01, "adam shuffled": 0.01}


@pytest.fixture(scope="module")
def drawn() -> FrozenSequences:
    rng = np.random.default_rng(0)
    mask = np.arange(5) < rng.integers(2, 6, 90)[:, None]
    tokens = rng.standard_normal((90, 5, 6)) * mask[..., None]
    labels = (tokens[..., 0].sum(axis=1) > 0).astype(np.int64)
    queries = tokens.sum(axis=1)
    return FrozenSequences(
        torch.from_numpy(tokens).float(),
        torch.from_numpy(mask),
        torch.from_numpy(queries).float(),
        torch.from_numpy(labels),
        torch.from_numpy(mask & (tokens[..., 0] > 0)),
        (40, 20),
        20,
    )


@pytest.mark.parametrize("method", [*OPTIMISERS, *CONTROLS])
def test_a_seed_is_trained_as_if_it_were_alone(drawn, method) -> None:
    lr = RATES.get(method, 0.1)
    together, alone = (Training(drawn, method, lr, seeds) for seeds in ([3, 4], [4]))
    for training, seeds in ((together, [3, 4]), (alone, [4])):
        train_side_by_side(drawn, [training], seeds, 3, 16)
    for both, one in zip(together.weights, alone.weights, strict=True):
        # Sums of single precision in another order.
        torch.testing.assert_close(both[1], one[0], rtol=1e-4, atol=1e-5)
    start = initial_weights(drawn, [4])
    moved = not torch.equal(alone.weights.W, start.W)
    assert moved == (method != "frozen")
    assert not torch.equal(alone.weights.V, start.V)


def test_shuffled_labels_are_the_same_ones_in_another_order(drawn) -> None:
    plain, mixed = (Training(drawn, name, 0.1, [0, 1]).labels for name in ("adam", "adam shuffled"))
    assert torch.equal(plain.sum(dim=1), mixed.sum(dim=1))
    assert not torch.equal(plain, mixed)


def test_parts_are_apart_and_an_official_test_part_is_everybodys(drawn) -> None:
    for seed in (0, 1):
        parts = drawn.split(seed)
        assert [len(rows) for rows in parts[:2]] == [40, 20]
        assert len(np.unique(np.concatenate(parts))) == sum(map(len, parts))
        assert (parts[2] == np.arange(70, 90)).all()
    assert (drawn.split(0)[0] != drawn.split(1)[0]).any()


def test_what_is_measured_is_that_of_one_sequence_by_hand(drawn) -> None:
    weights = initial_weights(drawn, [7, 8])
    found = measure_examples(weights, drawn, [7, 8])
    for i, s in ((3, 0), (11, 1)):
        X = drawn.tokens[i][drawn.mask[i]].double().numpy()
        W, V, b = (each[s].double().numpy() for each in weights)
        scores = X @ W @ drawn.queries[i].double().numpy() / 6**0.5
        share = np.exp(scores) / np.exp(scores).sum()
        entropy = -(share @ np.log(share)) / np.log(len(X))
        top = int(scores.argmax())
        assert found["entropy"][i, s] == pytest.approx(entropy, abs=1e-5)
        for name, mixed in (("right", share @ X), ("top", X[top])):
            assert found[name][i, s] == ((mixed @ V + b[0]).argmax() == int(drawn.labels[i]))
        if drawn.opinion[i].any():
            assert found["opinion"][i, s] == drawn.opinion[i, top]


def test_words_of_opinion_tell_the_label() -> None:
    texts = [["the", "good", "film"], ["the", "bad", "film"]] * 10 + [["the"]]
    few = opinion_words(texts, np.array([1, 0] * 10 + [1]))
    assert {"good", "bad"} < few
    many = [[f"w{k}", "good"] if k % 2 else [f"w{k}", "bad"] for k in range(300)]
    told = opinion_words(many, np.arange(300) % 2)
    assert len(told) == 200
    assert {"good", "bad"} < told


def test_patches_add_up_to_the_image() -> None:
    digits = frozen_sequences("digits")
    assert digits.tokens.shape == (1797, 16, 64)
    assert int((digits.tokens != 0).sum(dim=1).max()) == 1, "every pixel is in one patch"
    assert not digits.opinion.any()


def test_texts_without_files_are_left_out(monkeypatch) -> None:
    monkeypatch.delenv("ATTSVM_DATA", raising=False)
    cells = list(md_4.cells(md_4.SCALES.parameters))
    assert {cell["data"] for cell in cells} == {"digits"}
    assert len(cells) == len(OPTIMISERS)
    with pytest.raises(md_4.UnavailableError, match="ATTSVM_DATA"):
        data_folder("sst2")
