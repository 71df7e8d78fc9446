"""Training of the networks on real data: it learns, it stops, and cutting a batch into parts leaves
its gradient alone.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from attsvm.base.errors import InputError
from attsvm.optim import MirrorDescent
from attsvm_papers.networks.classifiers import TextClassifier, VisionTransformer
from attsvm_papers.networks.image_batches import Pixels, cropped_and_flipped, draw_shifts
from attsvm_papers.networks.labelled import Examples, shuffled_steps
from attsvm_papers.networks.training import Plan, optimizer_of, predict, train_network

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


def classifier():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return TextClassifier(30, LENGTH, width=16, depth=2, heads=2, hidden=32, dropout=0.0)


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
def test_every_optimizer_learns_and_the_columns_are_those_of_the_model(optimizer, settings):
    model, held = classifier(), HELD["test"]
    torch.manual_seed(5)
    before = torch.get_rng_state()
    history = train_network(model, texts(), HELD, plan(optimizer=optimizer, epochs=12, **settings))
    assert torch.equal(torch.get_rng_state(), before), "the caller's random numbers are left alone"
    assert history["train_loss"][-1] < 0.6 * history["train_loss"][0]
    assert (history.stopped, history.epochs) == ("epochs", 12)
    logits = predict(model, held)
    right = float(((logits > 0) == held.labels).float().mean())
    assert history["test_accuracy"][-1] == pytest.approx(right, abs=1e-7)
    loss = nn.functional.binary_cross_entropy_with_logits(logits, held.labels.float())
    assert history["test_loss"][-1] == pytest.approx(float(loss), rel=1e-6)


@pytest.mark.parametrize("mean", [False, True])
def test_two_steps_by_hand(mean):
    """An epoch is the optimiser's textbook loop over the shuffled batches, logistic loss summed or
    in the mean, p = 1.1.
    """
    examples, model, twin = texts(40), classifier(), classifier()
    asked = plan(batch=20, epochs=1, p=1.1, mean=mean)
    train_network(model, examples, {}, asked)
    optimizer = MirrorDescent(twin.parameters(), lr=asked.lr, p=asked.p)
    for rows in shuffled_steps(40, 20, asked.seed, 0):
        optimizer.zero_grad()
        batch = examples[rows]
        nn.BCELoss(reduction="mean" if mean else "sum")(
            torch.sigmoid(twin(batch.inputs, batch.mask)), batch.labels.float()
        ).backward()
        optimizer.step()
    # two steps of float32, whose roundings p = 1.1 makes ten times larger in the weights
    torch.testing.assert_close(weights(model), weights(twin), rtol=2e-5, atol=2e-6)


def test_parts_leave_the_gradient_of_a_batch_alone():
    ends = []
    for parts in (1, 3, 16):
        model = classifier().double()
        train_network(model, texts(50), {}, plan(p=1.5, pieces=parts, epochs=2))
        ends.append(weights(model))
    for end in ends[1:]:  # float64 sums in another order over eight steps
        torch.testing.assert_close(end, ends[0], rtol=1e-10, atol=1e-12)


def test_training_stops_at_its_accuracy_or_where_a_loss_is_no_number():
    asked = plan(optimizer="adam", stop_accuracy=0.95, epochs=60)
    history = train_network(classifier(), texts(), HELD, asked)
    assert history.stopped == "accuracy"
    assert history["train_accuracy"][-1] >= 0.95
    assert (history["train_accuracy"][:-1] < 0.95).all()
    history = train_network(classifier(), texts(), {}, plan(p=2.0, lr=1e30, epochs=50))
    assert history.stopped == "diverged"
    assert history.epochs < 50


def test_images_of_many_classes_with_crops_and_flips():
    rng, labels = np.random.default_rng(0), np.arange(90) % 3
    images = rng.integers(0, 60, (90, 3, 8, 8)).astype(np.uint8)
    images[np.arange(90), labels] += 120
    torch.manual_seed(0)
    network = VisionTransformer(12, 4, channels=3, classes=3, width=16, dropout=0.1)
    model = Pixels(network, (0.3,) * 3, (0.2,) * 3, side=12)
    data = Examples(torch.tensor(images), torch.tensor(labels))
    asked = plan(optimizer="adam", lr=3e-3, mean=True, augment=True, epochs=8)
    assert train_network(model, data, {"same": data}, asked)["same_accuracy"][-1] > 0.9


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
    moved = [id(parameter) for group in made.param_groups for parameter in group["params"]]
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
    steps = shuffled_steps(53, 10, seed=4, epoch=2)
    assert [len(rows) for rows in steps] == [10, 10, 10, 10, 10, 3]
    order = np.concatenate(steps)
    assert sorted(order) == list(range(53))
    assert np.array_equal(order, np.concatenate(shuffled_steps(53, 7, seed=4, epoch=2)))
    for seed, epoch in ((4, 3), (5, 2)):
        assert not np.array_equal(
            order, np.concatenate(shuffled_steps(53, 10, seed=seed, epoch=epoch))
        )


@pytest.mark.parametrize("parts", [1, 3, 50])
def test_pieces_share_out_the_rows_of_a_step_and_are_trimmed_to_their_longest_text(parts):
    examples, steps = texts(41), shuffled_steps(41, 8, 0, 0)
    for rows, pieces in zip(steps, examples.pieces(steps, parts), strict=True):
        assert sorted(int(row) for index, _ in pieces for row in index) == sorted(rows)
        for index, longest in pieces:
            assert longest == examples.lengths[index.numpy()].max()
            (ids, mask), labels = examples.take((index, longest))
            assert ids.shape == mask.shape == (len(index), 8 * -(-longest // 8))
            assert mask.sum(dim=1).tolist() == examples.lengths[index.numpy()].tolist()
            assert torch.equal(labels, examples.labels[index])


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
    shifts = draw_shifts(2000, 32, 0, 0)
    assert torch.equal(shifts, draw_shifts(2000, 32, 0, 0))
    assert not torch.equal(shifts, draw_shifts(2000, 32, 0, 1))
    # four pixels either way
    assert [sorted(set(row.tolist())) for row in shifts] == [list(range(9)), list(range(9)), [0, 1]]


def test_the_network_sees_normalised_channels_and_a_resized_ramp_is_a_ramp():
    model = Pixels(nn.Identity(), (0.2, 0.6), (0.1, 0.5), side=4)
    # 0.2 and 0.6 of 255, and 0.2 more
    images = torch.tensor([[51, 153], [102, 204]], dtype=torch.uint8).view(2, 2, 1, 1)
    expected = torch.tensor([[0.0, 0.0], [2.0, 0.4]]).view(2, 2, 1, 1).expand(2, 2, 4, 4)
    torch.testing.assert_close(model(images.expand(2, 2, 4, 4)), expected, rtol=1e-5, atol=1e-6)
    ramp = torch.arange(0, 128, 8, dtype=torch.uint8).expand(1, 1, 16, 16)
    prepared = Pixels(nn.Identity(), (0.0,), (1.0,), side=24).prepared(ramp)
    assert prepared.shape == (1, 1, 24, 24)
    steps = prepared[0, 0, 0].diff()[1:-1]
    torch.testing.assert_close(
        steps, torch.full_like(steps, 8 / 255 * 16 / 24), rtol=1e-4, atol=1e-6
    )
