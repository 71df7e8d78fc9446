"""The training benchmark: many runs at once beside the loop that everybody writes, same instances,
same process, same threads.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numba
import numpy as np
import torch

from attsvm.bench.record import Cells, digits, duration, load, markdown
from attsvm.data import AttentionData, FloatArray
from attsvm.datasets import unit_sphere
from attsvm.dynamics import LogSpaced, train
from attsvm.models import Attention
from attsvm.optim import SteepestDescent
from attsvm.parallel import start_threads
from attsvm.thread_limits import at_most_threads

Progress = Callable[[str, int, int], None]
Times = tuple[float, float]
"""CPU and wall seconds."""

_BACKENDS: tuple[Literal["compiled", "autograd"], ...] = ("compiled", "autograd")
_SIZE = (6, 8, 10)
_RUNS = 100
_LR = 0.1
_LOOP = "textbook loop, one seed"


def jobs(threads: int, *, quick: bool) -> dict[str, Callable[[], dict[str, Any]]]:
    """Every job by name; a job returns its CPU and wall seconds and what one of its units is.
    ``quick``: a tenth of the steps.
    """
    short = 10 if quick else 1
    steps, many, few = 2000 // short, 20_000 // short, 40 // (4 if quick else 1)
    named: dict[str, Callable[[], dict[str, Any]]] = {_LOOP: partial(_loop, 1000 // short)}
    for backend in _BACKENDS:
        named[f"{_RUNS} seeds x {steps} steps, {backend}, 1 thread"] = partial(
            _small, steps, backend, 1
        )
    named["the same, compiled, 1 record instead of 50"] = partial(
        _small, steps, "compiled", 1, records=1
    )
    named[f"{_RUNS} seeds x {many} steps, compiled, {_plural(threads)}"] = partial(
        _small, many, "compiled", threads
    )
    for count in sorted({1, threads}):
        named[f"8000 ragged sequences, a step, {_plural(count)}"] = partial(
            _large, few, count, joint=False
        )
        named[f"the same, head trained, {_plural(count)}"] = partial(_large, few, count, joint=True)
        named[f"the same, padded torch autograd, {_plural(count)}"] = partial(_padded, count)
    return named


def _plural(threads: int) -> str:
    return f"{threads} thread{'s' if threads > 1 else ''}"


def run(threads: int, cells: Cells, progress: Progress, *, quick: bool) -> list[dict[str, Any]]:
    """Every job, measured or taken from ``cells``; compilation comes before the clock."""
    named = jobs(threads, quick=quick)
    start_threads()
    results = []
    with at_most_threads(sys.maxsize, torch, numba):
        for done, (name, job) in enumerate(named.items()):
            progress("train", done, len(named))
            cell = cells.get({"job": name})
            if cell is None:
                at = load()
                cell = cells.put({"job": name}, {**job(), "load": [at, load()]})
            results.append(cell)
    progress("train", len(named), len(named))
    return results


def table(cells: list[dict[str, Any]]) -> str:
    """Markdown: job, CPU and wall time, seed-steps per CPU second beside the textbook loop."""
    loop = next(cell for cell in cells if cell["job"] == _LOOP)
    base = loop["seed_steps"] / loop["cpu"]
    rows = []
    for cell in cells:
        rate = cell["seed_steps"] / cell["cpu"] if cell["seed_steps"] else None
        speed = "" if rate is None else f"{digits(rate)}/s ({digits(rate / base)}x)"
        rows.append([cell["job"], duration(cell["cpu"]), duration(cell["wall"]), speed])
    return markdown(["job", "CPU", "wall", "seed-steps"], rows)


def textbook(data: AttentionData, v: FloatArray, steps: int) -> FloatArray:
    """One seed as the published experiments train it: eager float64 autograd, softmax, log(1 +
    exp), division by norm + epsilon.
    """
    X, z, y, head = (torch.tensor(a) for a in (data.tokens, data.queries, data.labels, v))
    W = torch.zeros(data.d_x, data.d_z, dtype=torch.float64, requires_grad=True)
    losses = []
    for _ in range(steps):
        logits = torch.einsum("ntd,de,ne->nt", X, W, z)
        probability = torch.softmax(logits, dim=1)
        output = torch.einsum("nt,ntd->nd", probability, X)
        loss = torch.log(1 + torch.exp(-y * (output @ head))).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        assert W.grad is not None
        with torch.no_grad():
            W -= _LR * W.grad / (torch.linalg.norm(W.grad) + torch.finfo(torch.float64).eps)
            W.grad.zero_()
        losses.append(loss.item())
    return W.detach().numpy()


def _loop(steps: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    data, v = unit_sphere(*_SIZE, seed=0)
    textbook(data, v, 20)
    return _best(3, lambda: _clocked(lambda: textbook(data, v, steps)), seed_steps=steps)


def _small(
    steps: int, backend: Literal["compiled", "autograd"], threads: int, records: int = 50
) -> dict[str, Any]:
    torch.set_num_threads(threads)
    numba.set_num_threads(threads)

    def once(count: int, seeds: int) -> Times:
        data, v = unit_sphere(*_SIZE, seed=list(range(seeds)))
        model = Attention.cross(data, v)
        optimizer = SteepestDescent(model.parameters(), lr=_LR)
        return _clocked(
            lambda: train(model, data, optimizer, count, LogSpaced(records), backend=backend)
        )

    once(2, 2)  # compiles
    return _best(3, lambda: once(steps, _RUNS), seed_steps=_RUNS * steps)


def _large(steps: int, threads: int, *, joint: bool) -> dict[str, Any]:
    """Per step: 8 000 sequences of 8 to 32 tokens, d = 64."""
    numba.set_num_threads(threads)
    data, v = _ragged()
    model = Attention.cross(data, v, train_head=joint)
    optimizer = SteepestDescent(model.parameters(), lr=_LR)
    train(model, data, optimizer, 1, LogSpaced(1))

    def once() -> Times:
        cpu = time.process_time()
        trajectory = train(model, data, optimizer, steps, LogSpaced(1), snapshots=False)
        return (time.process_time() - cpu) / steps, float(trajectory.seconds[-1]) / steps

    return _best(2, once)


def _padded(threads: int) -> dict[str, Any]:
    """Per step: the usual batch of padded sequences, masked softmax and autograd, without this
    library's gradient.
    """
    torch.set_num_threads(threads)
    data, v = _ragged()
    X, z, y, head = (torch.tensor(a) for a in (data.tokens, data.queries, data.labels, v))
    hidden = torch.tensor(~data.mask)
    W = torch.zeros(data.d_x, data.d_z, dtype=torch.float64, requires_grad=True)

    def step() -> None:
        logits = (X @ (z @ W.T)[:, :, None])[:, :, 0].masked_fill(hidden, -torch.inf)
        output = (torch.softmax(logits, dim=1)[:, None, :] @ X)[:, 0]
        loss = torch.nn.functional.softplus(-y * (output @ head)).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        assert W.grad is not None
        with torch.no_grad():
            W.sub_(_LR * W.grad / torch.linalg.norm(W.grad))
            W.grad = None

    step()
    return _best(5, lambda: _clocked(step))


def _ragged() -> tuple[AttentionData, FloatArray]:
    rng = np.random.default_rng(0)
    bags = [rng.standard_normal((int(k), 64)) for k in rng.integers(8, 33, size=8000)]
    return AttentionData.from_bags(
        bags, np.sign(rng.standard_normal(8000)), rng.standard_normal((8000, 64))
    ), rng.standard_normal(64)


def _clocked(work: Callable[[], Any]) -> Times:
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


def _best(repeats: int, once: Callable[[], Times], seed_steps: int = 0) -> dict[str, Any]:
    cpu, wall = min(once() for _ in range(repeats))
    return {"cpu": cpu, "wall": wall, "seed_steps": seed_steps}
