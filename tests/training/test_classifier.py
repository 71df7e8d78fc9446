"""Training: it learns, it stops, it resumes to the bit, and cutting a batch into parts leaves its
gradient alone.
"""

import json

import numpy as np
import pytest
import torch
import training_problem as problem
from torch import nn

from attsvm.errors import InputError
from attsvm.models import VisionTransformer
from attsvm.optim import MirrorDescent
from attsvm.training import Examples, Pixels, predict, train_classifier
from attsvm.training.labelled import shuffled

HELD = {"test": problem.examples(64, 1)}


class CutError(Exception):
    """Ends a run as a kill does, at a step of the test's choice."""


def cut_at(step):
    def progress(_, done, __):
        if done == step:
            raise CutError

    return progress


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        ("mirror", {"p": 1.5, "lr": 2e-2}),
        ("mirror-normalized", {"lr": 1e-2}),
        ("adam", {"lr": 3e-3}),
        ("adamw", {"lr": 3e-3}),
        ("sgd", {"lr": 3e-2}),
        ("spectral", {"lr": 1e-2, "rest_lr": 1e-2}),
    ],
)
def test_every_optimizer_learns(optimizer, settings):
    model = problem.classifier(dropout=0.0)
    history = train_classifier(
        model, problem.examples(), HELD, problem.plan(optimizer=optimizer, epochs=12, **settings)
    )
    assert history["train_loss"][-1] < 0.6 * history["train_loss"][0]
    assert history.stopped == "epochs"
    assert history.epochs == 12


def test_two_steps_by_hand():
    """The engine's epoch is the optimiser's textbook loop over the shuffled batches, summed
    logistic loss, p = 1.1.
    """
    examples, model, twin = (
        problem.examples(40),
        problem.classifier(dropout=0.0),
        problem.classifier(dropout=0.0),
    )
    plan = problem.plan(batch=20, epochs=1)
    train_classifier(model, examples, {}, plan)
    optimizer = MirrorDescent(twin.parameters(), lr=plan.lr, p=plan.p)
    for rows in shuffled(40, 20, plan.seed, 0):
        optimizer.zero_grad()
        batch = examples[rows]
        nn.BCELoss(reduction="sum")(
            torch.sigmoid(twin(batch.inputs, batch.mask)), batch.labels.float()
        ).backward()
        optimizer.step()
    # two steps of float32, whose roundings p = 1.1 makes ten times larger in the weights
    torch.testing.assert_close(problem.weights(model), problem.weights(twin), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_parts_leave_the_gradient_of_a_batch_alone(reduction):
    ends = []
    for parts in (1, 3, 16):
        model = problem.classifier(dropout=0.0).double()
        train_classifier(
            model,
            problem.examples(50),
            {},
            problem.plan(p=1.5, parts=parts, loss_reduction=reduction, epochs=2),
        )
        ends.append(problem.weights(model))
    # float64 sums in another order over eight steps
    torch.testing.assert_close(ends[1], ends[0], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(ends[2], ends[0], rtol=1e-10, atol=1e-12)


def test_training_stops_at_its_accuracy():
    model = problem.classifier(dropout=0.0)
    history = train_classifier(
        model,
        problem.examples(),
        HELD,
        problem.plan(optimizer="adam", stop_accuracy=0.95, epochs=60),
    )
    assert history.stopped == "accuracy"
    assert history["train_accuracy"][-1] >= 0.95
    assert (history["train_accuracy"][:-1] < 0.95).all()
    assert history.epochs < 60


def test_a_loss_that_is_no_number_ends_the_run():
    history = train_classifier(
        problem.classifier(),
        problem.examples(),
        {},
        problem.plan(optimizer="sgd", lr=1e30, epochs=50),
    )
    assert history.stopped == "diverged"
    assert history.epochs < 50
    assert (
        json.loads(json.dumps(history.to_json(), allow_nan=False))["columns"]["train_loss"][-1]
        is None
    )


def test_the_columns_are_those_of_the_model(tmp_path):
    model = problem.classifier()
    history = train_classifier(model, problem.examples(), HELD, problem.plan(), folder=tmp_path)
    logits = predict(model, HELD["test"])
    assert history.last("test") == pytest.approx(
        float(((logits > 0) == HELD["test"].labels).float().mean()), abs=1e-7
    )
    loss = nn.functional.binary_cross_entropy_with_logits(logits, HELD["test"].labels.float())
    assert history["test_loss"][-1] == pytest.approx(float(loss), rel=1e-6)
    rows = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4]
    assert [row["test_accuracy"] for row in rows] == history["test_accuracy"].tolist()


@pytest.mark.parametrize(
    ("optimizer", "p"),
    [("mirror", 1.1), ("mirror", 2.0), ("mirror", 3.0), ("adam", 2.0), ("spectral", 2.0)],
)
def test_a_run_that_was_cut_ends_with_the_same_bits(tmp_path, optimizer, p):
    """Cut inside the second epoch, where a checkpoint lies within an epoch, and again at an epoch's
    last step, before its checkpoint.
    """
    settings = {"optimizer": optimizer, "p": p, "lr": 1e-4 if p == 3 else 3e-3, "parts": 2}
    whole = problem.classifier()
    expected = train_classifier(whole, problem.examples(), HELD, problem.plan(**settings))
    for step in (13, 20):
        with pytest.raises(CutError):
            train_classifier(
                problem.classifier(),
                problem.examples(),
                HELD,
                problem.plan(**settings),
                folder=tmp_path,
                checkpoint_seconds=0,
                progress=cut_at(step),
            )
    for _ in range(2):  # the second time reads a finished run
        model = problem.classifier()
        history = train_classifier(
            model, problem.examples(), HELD, problem.plan(**settings), folder=tmp_path
        )
        assert torch.equal(problem.weights(model), problem.weights(whole))
        for column in ("train_loss", "train_accuracy", "test_loss", "test_accuracy"):
            assert np.array_equal(history[column], expected[column])
        assert history.stopped == expected.stopped


def test_a_folder_belongs_to_one_run(tmp_path):
    train_classifier(
        problem.classifier(), problem.examples(), {}, problem.plan(epochs=1), folder=tmp_path
    )
    for model, data, plan in (
        (problem.classifier(1), problem.examples(), problem.plan(epochs=1)),
        (problem.classifier(), problem.examples(seed=5), problem.plan(epochs=1)),
        (problem.classifier(), problem.examples(), problem.plan(epochs=1, seed=4)),
    ):
        with pytest.raises(InputError, match="another computation"):
            train_classifier(model, data, {}, plan, folder=tmp_path)


def test_learning_curves_of_somebody_else_are_left_alone(tmp_path):
    (tmp_path / "history.jsonl").write_text("years of work")
    with pytest.raises(InputError, match=r"history\.jsonl is in the way"):
        train_classifier(
            problem.classifier(), problem.examples(), {}, problem.plan(epochs=1), folder=tmp_path
        )
    assert (tmp_path / "history.jsonl").read_text() == "years of work"


def test_the_callers_random_numbers_and_precision_are_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    before = torch.get_float32_matmul_precision()
    train_classifier(
        problem.classifier(), problem.examples(), HELD, problem.plan(epochs=1, precision="tf32")
    )
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_float32_matmul_precision() == before


def test_bfloat16_keeps_float32_weights():
    plain, low = problem.classifier(dropout=0.0), problem.classifier(dropout=0.0)
    exact = train_classifier(plain, problem.examples(), HELD, problem.plan())
    rounded = train_classifier(low, problem.examples(), HELD, problem.plan(precision="bf16"))
    assert {parameter.dtype for parameter in low.parameters()} == {torch.float32}
    assert not torch.equal(problem.weights(plain), problem.weights(low))
    # bfloat16 has 8 bits: losses of order one agree to a few parts in a hundred
    np.testing.assert_allclose(rounded["train_loss"], exact["train_loss"], rtol=0.05)


def test_images_of_many_classes_with_crops_and_flips():
    rng = np.random.default_rng(0)
    labels = np.arange(90) % 3
    images = rng.integers(0, 60, (90, 3, 8, 8)).astype(np.uint8)
    images[np.arange(90), labels] += 120
    torch.manual_seed(0)
    model = Pixels(
        VisionTransformer(12, 4, channels=3, classes=3, width=16, dropout=0.1),
        (0.3,) * 3,
        (0.2,) * 3,
        side=12,
    )
    data = Examples(images, labels)
    plan = problem.plan(optimizer="adam", lr=3e-3, loss_reduction="mean", augment=True, epochs=8)
    history = train_classifier(model, data, {"same": data}, plan)
    assert history.last("same") > 0.9
    # nine patches and [CLS]
    assert history["tokens_per_second"][-1] * history["seconds"][-1] == pytest.approx(90 * 10)


def test_frozen_tensors_are_reported():
    torch.manual_seed(0)
    images = Examples(np.zeros((8, 1, 8, 8), np.float32), np.arange(8) % 2)
    model = VisionTransformer(8, 4, classes=2, width=8, heads=2)
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    history = train_classifier(model, images, {}, problem.plan(loss_reduction="mean", epochs=2))
    assert "blocks.0.before_attention.bias" in history.frozen
    assert "started at zero and hardly move" in str(history)
    moved = dict(model.named_parameters())
    for name in history.frozen:
        assert not start[name].any()
        # eight steps of 3e-3: |dual| < 0.1, so weights below 1e-10
        assert moved[name].abs().max() < 1e-12


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler about itself
def test_compiled_steps_end_where_plain_ones_do():
    plain, compiled = problem.classifier(dropout=0.0), problem.classifier(dropout=0.0)
    train_classifier(plain, problem.examples(48), {}, problem.plan(epochs=1, p=1.5))
    torch.compiler.reset()
    train_classifier(
        compiled, problem.examples(48), {}, problem.plan(epochs=1, p=1.5, compile=True)
    )
    # three steps; fused kernels round otherwise
    torch.testing.assert_close(
        problem.weights(compiled), problem.weights(plain), rtol=1e-4, atol=1e-5
    )


def test_what_does_not_go_together():
    data, plan = problem.examples(), problem.plan(epochs=1)
    with pytest.raises(InputError, match="held-out set is called 'train'"):
        train_classifier(problem.classifier(), data, {"train": data}, plan)
    three = Examples(data.inputs, np.arange(len(data)) % 3, data.mask)
    with pytest.raises(InputError, match="tells 2 classes apart and the labels have 3"):
        train_classifier(problem.classifier(), three, {}, plan)
    with pytest.raises(InputError, match="must return"):
        train_classifier(Wrong(), data, {}, plan)
    with pytest.raises(InputError, match="square images"):
        train_classifier(problem.classifier(), data, {}, problem.plan(augment=True))


class Wrong(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, ids, mask):
        return (ids.float() * self.weight).sum()
