"""Training of the networks on real data: it learns, it stops, it goes on with the same bits, and
cutting a batch into parts leaves its gradient alone.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from attsvm.errors import InputError
from attsvm.optim import MirrorDescent
from attsvm_papers.networks.classifiers import TextClassifier, VisionTransformer
from attsvm_papers.networks.image_batches import Pixels, cropped_and_flipped, draw_shifts
from attsvm_papers.networks.labelled import Examples, shuffled
from attsvm_papers.networks.training import Plan, optimizer_of, predict, train

LENGTH = 16


def texts(n=160, seed=0):
    """Is token 7 in the text?"""
    rng = np.random.default_rng(seed)
    ids = rng.integers(2, 30, (n, LENGTH))
    mask = np.arange(LENGTH) < rng.integers(3, LENGTH + 1, n)[:, None]
    ids[:, 0] = 1
    ids[~mask] = 0
    labels = (ids == 7).any(axis=1).astype(np.int64)
    return Examples(torch.tensor(ids), torch.tensor(labels), torch.tensor(mask))


HELD = {"test": texts(64, 1)}


def classifier(dropout=0.1):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return TextClassifier(30, LENGTH, width=16, depth=2, heads=2, hidden=32, dropout=dropout)


def plan(**settings):
    return Plan(
        **{"optimizer": "mirror", "lr": 3e-3, "epochs": 4, "batch": 16, "seed": 3} | settings
    )


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        ("mirror", {"p": 1.5, "lr": 2e-2}),
        ("adam", {"lr": 3e-3}),
        ("spectral", {"lr": 1e-2, "rest_lr": 1e-2}),
    ],
)
def test_every_optimizer_learns(optimizer, settings):
    model = classifier(dropout=0.0)
    history = train(model, texts(), HELD, plan(optimizer=optimizer, epochs=12, **settings))
    assert history["train_loss"][-1] < 0.6 * history["train_loss"][0]
    assert (history.stopped, history.epochs) == ("epochs", 12)


def test_two_steps_by_hand():
    """An epoch is the optimiser's textbook loop over the shuffled batches, summed logistic loss,
    p = 1.1.
    """
    examples, model, twin = texts(40), classifier(dropout=0.0), classifier(dropout=0.0)
    asked = plan(batch=20, epochs=1, p=1.1)
    train(model, examples, {}, asked)
    optimizer = MirrorDescent(twin.parameters(), lr=asked.lr, p=asked.p)
    for rows in shuffled(40, 20, asked.seed, 0):
        optimizer.zero_grad()
        batch = examples[rows]
        nn.BCELoss(reduction="sum")(
            torch.sigmoid(twin(batch.inputs, batch.mask)), batch.labels.float()
        ).backward()
        optimizer.step()
    # two steps of float32, whose roundings p = 1.1 makes ten times larger in the weights
    torch.testing.assert_close(weights(model), weights(twin), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("mean", [False, True])
def test_parts_leave_the_gradient_of_a_batch_alone(mean):
    ends = []
    for parts in (1, 3, 16):
        model = classifier(dropout=0.0).double()
        train(model, texts(50), {}, plan(p=1.5, parts=parts, mean=mean, epochs=2))
        ends.append(weights(model))
    # float64 sums in another order over eight steps
    torch.testing.assert_close(ends[1], ends[0], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(ends[2], ends[0], rtol=1e-10, atol=1e-12)


def test_training_stops_at_its_accuracy():
    asked = plan(optimizer="adam", stop_accuracy=0.95, epochs=60)
    history = train(classifier(dropout=0.0), texts(), HELD, asked)
    assert history.stopped == "accuracy"
    assert history["train_accuracy"][-1] >= 0.95
    assert (history["train_accuracy"][:-1] < 0.95).all()
    assert history.epochs < 60


def test_a_loss_that_is_no_number_ends_the_run():
    history = train(classifier(), texts(), {}, plan(optimizer="mirror", p=2.0, lr=1e30, epochs=50))
    assert history.stopped == "diverged"
    assert history.epochs < 50


def test_the_columns_are_those_of_the_model():
    model = classifier()
    history = train(model, texts(), HELD, plan())
    logits, labels = predict(model, HELD["test"]), HELD["test"].labels
    right = float(((logits > 0) == labels).float().mean())
    assert history["test_accuracy"][-1] == pytest.approx(right, abs=1e-7)
    loss = nn.functional.binary_cross_entropy_with_logits(logits, labels.float())
    assert history["test_loss"][-1] == pytest.approx(float(loss), rel=1e-6)


def test_the_callers_random_numbers_are_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(classifier(), texts(), HELD, plan(epochs=1))
    assert torch.equal(torch.rand(3), expected)


def test_images_of_many_classes_with_crops_and_flips():
    rng = np.random.default_rng(0)
    labels = np.arange(90) % 3
    images = rng.integers(0, 60, (90, 3, 8, 8)).astype(np.uint8)
    images[np.arange(90), labels] += 120
    torch.manual_seed(0)
    network = VisionTransformer(12, 4, channels=3, classes=3, width=16, dropout=0.1)
    model = Pixels(network, (0.3,) * 3, (0.2,) * 3, side=12)
    data = Examples(torch.tensor(images), torch.tensor(labels))
    asked = plan(optimizer="adam", lr=3e-3, mean=True, augment=True, epochs=8)
    history = train(model, data, {"same": data}, asked)
    assert history["same_accuracy"][-1] > 0.9


@pytest.mark.parametrize(
    ("optimizer", "named"),
    [
        ("mirror", "MirrorDescent"),
        ("adam", "Adam"),
        ("adamw", "AdamW"),
        ("spectral", "CombinedOptimizer"),
    ],
)
@pytest.mark.parametrize("kind", ["text", "vision"])
def test_every_tensor_is_moved_once_by_the_optimiser_of_that_name(optimizer, named, kind):
    model = classifier() if kind == "text" else VisionTransformer(8, 4, width=8, heads=2)
    made = optimizer_of(model, plan(optimizer=optimizer))
    assert type(made).__name__ == named
    groups = made.param_groups
    moved = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(moved) == sorted(id(parameter) for parameter in model.parameters())


def test_no_other_optimiser_takes_the_place_of_one_that_is_not_there():
    with pytest.raises(InputError, match="no optimiser 'sgd'"):
        optimizer_of(classifier(), plan(optimizer="sgd"))


def test_a_spectral_step_of_a_fused_map_is_three_steps():
    """Queries, keys and values each move by the polar factor of their own gradient: singular values
    near lr, all of them.
    """
    model = classifier()
    optimizer = optimizer_of(model, plan(optimizer="spectral", lr=0.5))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    moved = {name: each.detach() - before[name] for name, each in model.named_parameters()}
    parts = (*moved["blocks.0.attention.qkv.weight"].chunk(3), moved["blocks.1.network.0.weight"])
    for part in parts:
        values = torch.linalg.svdvals(part) / 0.5
        # the iteration leaves singular values within some hundredths of one, small ones below
        assert values.max() < 1.2
        assert values.median() > 0.8
    # Adam's first step has length lr in every entry; no matrix of a block is among what it moves
    readout = moved["readout.weight"].abs()
    torch.testing.assert_close(readout, torch.full_like(readout, 0.5), rtol=1e-4, atol=0)


def test_an_epoch_is_a_permutation_of_seed_and_epoch():
    steps = shuffled(53, 10, seed=4, epoch=2)
    assert [len(rows) for rows in steps] == [10, 10, 10, 10, 10, 3]
    order = np.concatenate(steps)
    assert sorted(order) == list(range(53))
    assert np.array_equal(order, np.concatenate(shuffled(53, 7, seed=4, epoch=2)))
    assert not np.array_equal(order, np.concatenate(shuffled(53, 10, seed=4, epoch=3)))
    assert not np.array_equal(order, np.concatenate(shuffled(53, 10, seed=5, epoch=2)))


@pytest.mark.parametrize("parts", [1, 3, 50])
def test_pieces_share_out_the_rows_of_a_step(parts):
    examples, steps = texts(41), shuffled(41, 8, 0, 0)
    for rows, pieces in zip(steps, examples.pieces(steps, parts), strict=True):
        assert sorted(int(row) for index, _ in pieces for row in index) == sorted(rows)
        for index, longest in pieces:
            assert len(index)
            assert longest == examples.lengths[index.numpy()].max()


def test_a_piece_is_trimmed_to_its_longest_text():
    examples = texts(40)
    rows = torch.tensor([k for k, length in enumerate(examples.lengths) if length <= 6][:4])
    (ids, mask), labels = examples.take((rows, int(examples.lengths[rows].max())))
    assert ids.shape == mask.shape == (4, 8)  # six tokens, rounded up to a multiple of eight
    assert torch.equal(mask.sum(dim=1), torch.as_tensor(examples.lengths)[rows])
    assert torch.equal(labels, examples.labels[rows])
    everything = torch.arange(40), int(examples.lengths.max())
    assert examples.take(everything)[0][0].shape == (40, LENGTH)


def test_predictions_come_in_the_order_of_the_examples():
    model, examples = classifier().double().eval(), texts(300)
    with torch.no_grad():
        expected = model(examples.inputs, examples.mask)
    torch.testing.assert_close(predict(model, examples), expected, rtol=1e-12, atol=1e-13)


def test_crops_and_flips_are_slices_of_the_padded_image():
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (30, 3, 16, 16), dtype=torch.uint8, generator=generator)
    shifts = draw_shifts(30, 16, seed=1, epoch=2)
    found = cropped_and_flipped(images, shifts)
    padded = np.pad(images.numpy(), ((0, 0), (0, 0), (2, 2), (2, 2)))
    for k in range(30):
        row, column, mirrored = shifts[:, k].tolist()
        crop = padded[k, :, row : row + 16, column : column + 16]
        assert np.array_equal(found[k].numpy(), crop[..., ::-1] if mirrored else crop)


def test_shifts_are_of_seed_and_epoch_and_cover_their_range():
    shifts = draw_shifts(2000, 32, 0, 0)
    assert torch.equal(shifts, draw_shifts(2000, 32, 0, 0))
    assert not torch.equal(shifts, draw_shifts(2000, 32, 0, 1))
    # four pixels either way
    assert [sorted(set(row.tolist())) for row in shifts] == [list(range(9)), list(range(9)), [0, 1]]


def test_the_network_sees_normalised_channels():
    model = Pixels(nn.Identity(), (0.2, 0.6), (0.1, 0.5))
    # 0.2 and 0.6 of 255
    images = torch.tensor([51, 153], dtype=torch.uint8).view(1, 2, 1, 1).expand(1, 2, 4, 4)
    assert model(images).abs().max() < 1e-6
    brighter = model(images + torch.tensor([51, 51], dtype=torch.uint8).view(2, 1, 1))
    torch.testing.assert_close(brighter[0, :, 0, 0], torch.tensor([2.0, 0.4]), rtol=1e-5, atol=1e-6)


def test_resizing_keeps_a_ramp_a_ramp():
    ramp = torch.arange(0, 128, 8, dtype=torch.uint8).expand(1, 1, 16, 16)
    prepared = Pixels(nn.Identity(), (0.0,), (1.0,), side=24).prepared(ramp)
    steps = prepared[0, 0, 0].diff()[1:-1]
    assert prepared.shape == (1, 1, 24, 24)
    expected = torch.full_like(steps, 8 / 255 * 16 / 24)
    torch.testing.assert_close(steps, expected, rtol=1e-4, atol=1e-6)
