"""Both loops do what the plainest loop does, to the last few bits, at any saturation."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from references import extended_descent, needs_wide

from attsvm import native
from attsvm.attention import Attention
from attsvm.base.errors import InputError
from attsvm.datasets import unit_sphere
from attsvm.datasets.attention_data import AttentionData
from attsvm.optim import MirrorDescent, SteepestDescent
from attsvm.optim.polyak import PolyakDescent
from attsvm.training import AtSteps, LogSpaced, Record, Trajectory, train
from attsvm.training.native_loop import unsupported


def run(
    data: AttentionData,
    v: np.ndarray,
    steps: int,
    lr: float = 0.1,
    normalize: bool = True,
    **options: object,
) -> Trajectory:
    model_options = {
        name: options.pop(name)
        for name in ("init", "runs", "intercept", "train_head")
        if name in options
    }
    model = Attention.cross(data, v, **model_options)
    return train(
        model,
        data,
        SteepestDescent(model.parameters(), lr=lr, normalize=normalize),
        steps,
        **options,
    )


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Largest relative Frobenius distance over records and runs (absolute where b is zero)."""
    size = np.linalg.norm(b, axis=(-2, -1))
    return float((np.linalg.norm(a - b, axis=(-2, -1)) / np.where(size > 0, size, 1.0)).max())


@needs_wide
@pytest.mark.parametrize(("size", "steps"), [((6, 8, 10), 10_000), ((4, 5, 40), 3_000)])
def test_thousands_of_steps_keep_twelve_digits(
    size: tuple[int, int, int], steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On every set of instructions; logits of hundreds are rounded at 1e-13, and attention by as
    much.
    """
    data, v = unit_sphere(*size, seed=3)
    expected = extended_descent(data, v, np.zeros((size[2], size[2])), [steps])[steps]
    for level in ["baseline", "avx2"][: 1 + native.library.fast_processor()]:
        monkeypatch.setattr(native, "library", native.open_library(level))
        found = run(data, v, steps, record=LogSpaced(1))
        assert found.log_gradient_norm[-1] < -0.015 * steps  # attention is saturated
        assert distance(found.W[-1], expected) < 1e-12
        monkeypatch.undo()


def test_loops_agree_on_ragged_data(ragged_data: tuple[AttentionData, np.ndarray]) -> None:
    data, v = ragged_data
    W0 = np.random.default_rng(5).standard_normal((5, 4))
    ours, auto = (
        run(data, v, 500, init=W0, intercept=0.4, backend=backend)
        for backend in ("compiled", "autograd")
    )
    assert distance(ours.W, auto.W) < 1e-12
    np.testing.assert_allclose(ours.loss, auto.loss, rtol=1e-12)
    np.testing.assert_allclose(
        ours.log_gradient_norm, auto.log_gradient_norm, rtol=1e-11, atol=1e-11
    )
    np.testing.assert_allclose(ours.softmax_probability, auto.softmax_probability, rtol=1e-10)
    assert (ours.selected == auto.selected).all()


def test_records_say_what_they_promise(ragged_data: tuple[AttentionData, np.ndarray]) -> None:
    data, v = ragged_data
    trajectory = run(data, v, 300, init=("uniform", 1), runs=2, record=LogSpaced(6))
    assert trajectory.runs == 2
    assert trajectory.W.shape == (len(trajectory.steps), 2, 5, 4)
    assert trajectory.head.shape == (1, 2, 5)
    for k in range(len(trajectory.steps)):
        model = Attention.cross(data, v, runs=2, init=trajectory.W[k])
        loss = model.loss(data)
        loss.sum().backward()
        np.testing.assert_allclose(trajectory.loss[k], loss.detach(), rtol=1e-12)
        np.testing.assert_allclose(
            trajectory.norm[k], np.linalg.norm(trajectory.W[k], axis=(1, 2)), rtol=1e-14
        )
        np.testing.assert_allclose(
            np.exp(trajectory.log_gradient_norm[k]),
            torch.linalg.matrix_norm(model.W.grad),
            rtol=1e-8,
        )
        assert (trajectory.selected[k] == model.selected(data).numpy()).all()
        np.testing.assert_allclose(
            trajectory.softmax_probability[k],
            model.probabilities(data).detach().amax(-1),
            rtol=1e-10,
        )
    assert (np.diff(trajectory.seconds) >= 0).all()


def test_final_weights_are_left_in_the_model(ragged_data: tuple[AttentionData, np.ndarray]) -> None:
    data, v = ragged_data
    for backend in ("compiled", "autograd"):
        model = Attention.cross(data, v, train_head=True)
        step = SteepestDescent(model.parameters(), lr=0.1)
        trajectory = train(model, data, step, 20, backend=backend, snapshots=False)
        assert (model.W.detach().numpy() == trajectory.W[-1]).all()
        assert (model.head.weight.detach().numpy() == trajectory.head[-1]).all()
        assert float(model.head.intercept.detach()) == trajectory.intercept[-1]
        assert trajectory.W.shape == (1, 5, 4)
        assert trajectory.head.shape == (len(trajectory.steps), 5)


@pytest.mark.parametrize("backend", ["compiled", "autograd"])
@pytest.mark.parametrize("kind", [SteepestDescent, partial(MirrorDescent, p=3.0, normalize=True)])
def test_tied_scores_stop_the_run_and_only_that_run(kind: Any, backend: Any) -> None:
    """Under a head that is zero, where all queries are, and of single tokens."""
    data, v = unit_sphere(3, 4, 5, seed=0)
    model = Attention.cross(data, np.stack([v, np.zeros(5), v]), init=("uniform", 0), runs=3)
    start = model.W.detach().numpy().copy()
    optimizer = kind(model.parameters(), lr=0.1)
    trajectory = train(model, data, optimizer, 50, LogSpaced(4), backend=backend)
    assert trajectory.stopped_at.tolist() == [-1, 0, -1]
    for still in (
        AttentionData(data.tokens, data.labels, 0.0 * data.queries),
        AttentionData(data.tokens[:, :1], data.labels),
    ):
        other = Attention.cross(still, v)
        assert train(other, still, kind([other.W], lr=0.1), 5, backend=backend).stopped_at == 0
        assert not other.W.any()
    np.testing.assert_allclose(trajectory.W[-1, 1], start[1], rtol=1e-15)
    assert (trajectory.log_gradient_norm[:, 1] == -np.inf).all()
    assert np.isfinite(trajectory.W).all()
    assert (np.linalg.norm(trajectory.W[-1] - start, axis=(1, 2))[[0, 2]] > 0.5).all()


class SharedHead(torch.nn.Module):
    """Two layers for all runs."""

    def __init__(self, hidden: int = 4) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.V = torch.nn.Parameter(torch.randn(5, hidden, generator=generator).double())
        self.v = torch.nn.Parameter(torch.randn(hidden, generator=generator).double())

    def forward(self, outputs: torch.Tensor) -> torch.Tensor:
        return torch.tanh(outputs @ self.V) @ self.v


@pytest.mark.parametrize("head_first", [True, False])
def test_a_head_that_runs_share_is_trained_with_them(head_first: bool) -> None:
    """Its parameters have no axis of runs, here as long as if they had."""
    data, _ = unit_sphere(4, 3, 5, seed=[0, 1, 2])
    # the first entry of every gradient is zero
    data = AttentionData(np.where(np.arange(5) == 0, 0.0, data.tokens), data.labels, data.queries)
    model = Attention.cross(data, SharedHead(3))
    parameters = sorted(model.parameters(), key=lambda each: (each.ndim == 3) == head_first)
    start = model.head.v.detach().clone()
    optimizer = SteepestDescent(parameters, lr=0.1, normalize=False)
    trajectory = train(model, data, optimizer, 5, AtSteps([0, 5]))
    assert (trajectory.stopped_at == -1).all()
    assert not torch.equal(model.head.v, start)
    assert (np.linalg.norm(trajectory.W[-1], axis=(-2, -1)) > 0.0).all()


@pytest.mark.parametrize("trained", ["weights", "weights and head"])
def test_a_run_at_rest_beside_a_shared_head(trained: str) -> None:
    """Equal tokens give the weights no gradient; a head that moves still moves the run."""
    data, _ = unit_sphere(4, 3, 5, seed=[0, 1, 2])
    tokens = np.array(data.tokens)
    tokens[1] = 1.0
    data = AttentionData(tokens, data.labels, data.queries)
    model = Attention.cross(data, SharedHead())
    parameters = [model.W] if trained == "weights" else list(model.parameters())
    trajectory = train(model, data, SteepestDescent(parameters, lr=0.1), 3)
    assert trajectory.stopped_at.tolist() == [-1, 0 if trained == "weights" else -1, -1]


def test_bits_do_not_depend_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    bags = [rng.standard_normal((k % 9 + 1, 40)) for k in range(600)]
    signs = np.sign(rng.standard_normal(600))
    large = AttentionData.from_bags(bags, signs, rng.standard_normal((600, 30)))
    many, heads = unit_sphere(4, 5, 6, seed=list(range(40)))
    results = []
    for count in (1, 3):
        monkeypatch.setenv("ATTSVM_THREADS", str(count))
        joint = run(large, np.linspace(-1, 1, 40), 30, train_head=True)
        results.append((joint.W, joint.head, run(many, heads, 2000).W))
    for first, other in zip(*results, strict=True):
        assert (first == other).all()


def test_observe_stop_and_progress() -> None:
    data, v = unit_sphere(3, 4, 5, seed=0)
    seen: list[int] = []
    calls: list[tuple[int, int]] = []

    def observe(
        step: int, W: np.ndarray, head: np.ndarray, intercept: np.ndarray
    ) -> dict[str, float]:
        seen.append(step)
        assert W.shape == (5, 5)
        assert head.shape == (5,)
        assert intercept.shape == ()
        return {"size": float(np.linalg.norm(W))}

    def stop(record: Record) -> bool:
        return record.observed["size"] > 5.0

    model = Attention.cross(data, v)
    optimizer = SteepestDescent(model.parameters(), lr=0.1)
    trajectory = train(
        model,
        data,
        optimizer,
        1000,
        observe=observe,
        stop=stop,
        progress=lambda step, steps, info: calls.append((step, steps)),
    )
    assert seen == trajectory.steps.tolist()
    np.testing.assert_allclose(trajectory.observed["size"], trajectory.norm, rtol=1e-12)
    assert trajectory.norm[-1] > 5.0 >= trajectory.norm[-2]
    assert calls[-1] == (trajectory.steps[-1], 1000)


LEFT_TO_TORCH: list[tuple[dict[str, Any], Callable[[Any], torch.optim.Optimizer], str]] = [
    ({}, torch.optim.Adam, "is Adam, neither SteepestDescent nor MirrorDescent"),
    ({}, partial(SteepestDescent, lr=0.1, norm="spec"), "norm is not Frobenius"),
    ({}, partial(SteepestDescent, lr=0.1, momentum=0.9), "momentum"),
    ({}, partial(SteepestDescent, lr=0.1, weight_decay=0.1), "weight decay"),
    ({}, partial(SteepestDescent, lr=0.1, maximize=True), "maximises"),
    ({}, partial(SteepestDescent, lr=0.1, blocks=5), "blocks"),
    ({"train_head": True}, PolyakDescent, "Polyak"),
    ({}, partial(MirrorDescent, lr=0.1, p=1.5, momentum=0.9), "momentum"),
    ({}, partial(MirrorDescent, lr=0.1, p=1.5, potential="schatten"), "Schatten"),
    (
        {"parameterization": "KQ", "init": ("uniform", 0)},
        partial(MirrorDescent, lr=0.1, p=1.5),
        "on factors",
    ),
    ({"similarity": torch.matmul}, SteepestDescent, "has a similarity of its own"),
    ({"head": torch.tanh}, SteepestDescent, "and not linear"),
    ({"targets": np.ones(4)}, SteepestDescent, "values are compared with targets"),
    ({"loss": torch.neg}, SteepestDescent, "does not know the loss FunctionLoss"),
]


@pytest.mark.parametrize(("options", "make", "reason"), LEFT_TO_TORCH)
def test_what_the_compiled_loop_does_not_train_is_said(
    options: dict[str, Any], make: Callable[[Any], torch.optim.Optimizer], reason: str
) -> None:
    data, v = unit_sphere(4, 4, 5, seed=0)
    model = Attention.cross(data, **{"head": v, **options})
    optimizer = make(model.parameters())
    assert reason in str(unsupported(model, optimizer, None))
    with pytest.raises(InputError, match=rf"{reason}.*; use backend="):
        train(model, data, optimizer, 1, backend="compiled")


def test_what_the_compiled_loop_trains() -> None:
    data, v = unit_sphere(4, 4, 5, seed=0)
    model = Attention.cross(data, v)
    optimizer = MirrorDescent(model.parameters(), lr=0.1, p=1.5, normalize=True)
    for known in (SteepestDescent(model.parameters(), lr=0.1), optimizer):
        assert unsupported(model, known, None) is None
    train(model, data, optimizer, 2, backend="autograd")
    assert "earlier steps" in str(unsupported(model, optimizer, None))
    single = Attention.cross(data, v).float()
    reason = unsupported(single, SteepestDescent(single.parameters(), lr=0.1), None)
    assert "float32" in str(reason)


def test_records_are_spaced_evenly_or_chosen() -> None:
    assert LogSpaced(50).steps(0).tolist() == [0]
    assert LogSpaced(50).steps(3).tolist() == [0, 1, 2, 3]
    assert LogSpaced(1).steps(100).tolist() == [0, 1, 100]
    assert LogSpaced(5).steps(10_000).tolist() == [0, 1, 10, 100, 1000, 10_000]
    assert AtSteps((7, 3, 3, 50)).steps(20).tolist() == [0, 3, 7, 20]
    assert AtSteps(()).steps(0).tolist() == [0]
    for make, words in (
        (lambda: LogSpaced(0), "ask for at least one record"),
        (lambda: AtSteps((-1, 2)), "mark at step -1"),
    ):
        with pytest.raises(InputError, match=words):
            make()


def test_a_bar_of_progress(capsys: pytest.CaptureFixture[str]) -> None:
    data, v = unit_sphere(4, 4, 6, seed=0)
    run(data, v, 40, record=LogSpaced(3), progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert re.search(r"training: 40 of 40 steps", shown.err)
    run(data, v, 40, progress=True, stop=lambda record: record.step > 0)
    assert "training:" in capsys.readouterr().err
    run(data, v, 40, progress=False)
    assert capsys.readouterr().err == ""


def test_what_does_not_fit_is_one_sentence() -> None:
    data, head = unit_sphere(n=4, T=4, d=6, seed=0)
    model = Attention.cross(data, head=head)
    step = SteepestDescent(model.parameters(), lr=0.1)
    good: dict[str, Any] = {"model": model, "data": data, "optimizer": step, "steps": 3}
    for change, words in (
        ({"model": data}, r"model is AttentionData; .*train\(model, data, optim"),
        ({"data": data.tokens}, r"data is ndarray of shape \(4, 4, 6\); give"),
        ({"data": unit_sphere(3, 4, 5, seed=0)[0]}, "d_x=5"),
        ({"optimizer": "spectral"}, "optimizer is 'spectral'; give one of torch"),
        ({"record": 7}, r"record is 7; give attsvm.LogSpaced\(50\)"),
        ({"steps": -1}, "steps is -1"),
        ({"checkpoint_seconds": -1}, "checkpoint_seconds is -1"),
        ({"backend": "cuda"}, "backend is 'cuda'"),
        ({"model": Attention.cross(data, head)}, "a parameter that the model does not have"),
        ({"step_scale": {"K": 1.0}}, "step_scale names 'K'"),
        ({"step_scale": [1.0, 2.0]}, r"step_scale of W has shape \(2,\)"),
    ):
        with pytest.raises(InputError, match=words):
            train(**(good | change))
