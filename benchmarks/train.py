"""Training, measured against the loop that everybody writes: same process, same instances, same number of threads.

    python benchmarks/train.py [--json FILE] [--quick]

Times are process CPU seconds (all threads) and wall seconds; compilation is done before the clock starts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch

import attsvm
from attsvm.data import AttentionData
from attsvm.datasets import unit_sphere
from attsvm.dynamics import LogSpaced, train
from attsvm.models import Attention
from attsvm.optim import SteepestDescent


def clocked(work: Callable[[], Any]) -> tuple[float, float]:
    """CPU and wall seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


def textbook(data: AttentionData, v: np.ndarray, steps: int) -> None:
    """One seed as the published experiments train it: eager float64 autograd, softmax, log(1 + exp), division by norm + epsilon."""
    X, z, y, head = (torch.tensor(a) for a in (data.tokens, data.queries, data.labels, v))
    W = torch.zeros(data.d_x, data.d_z, dtype=torch.float64, requires_grad=True)
    losses = []
    for _ in range(steps):
        logits = torch.einsum("ntd,de,ne->nt", X, W, z)
        probability = torch.softmax(logits, dim=1)
        output = torch.einsum("nt,ntd->nd", probability, X)
        loss = torch.log(1 + torch.exp(-y * (output @ head))).mean()
        loss.backward()
        with torch.no_grad():
            W -= 0.1 * W.grad / (torch.linalg.norm(W.grad) + torch.finfo(torch.float64).eps)
            W.grad.zero_()
        losses.append(loss.item())


def small(seeds: int, steps: int, backend: str, records: int = 50) -> tuple[float, float]:
    data, v = unit_sphere(6, 8, 10, seed=list(range(seeds)))
    model = Attention.cross(data, v)
    return clocked(lambda: train(model, data, SteepestDescent(model.parameters(), lr=0.1), steps, LogSpaced(records), backend=backend))


def padded_step(data: AttentionData, v: np.ndarray) -> Callable[[], None]:
    """The usual batch of padded sequences: masked softmax and autograd, without this library's gradient."""
    X, z, y, head = (torch.tensor(a) for a in (data.tokens, data.queries, data.labels, v))
    hidden = torch.tensor(~data.mask)
    W = torch.zeros(data.d_x, data.d_z, dtype=torch.float64, requires_grad=True)

    def step() -> None:
        logits = (X @ (z @ W.T)[:, :, None])[:, :, 0].masked_fill(hidden, -torch.inf)
        output = (torch.softmax(logits, dim=1)[:, None, :] @ X)[:, 0]
        torch.nn.functional.softplus(-y * (output @ head)).mean().backward()
        with torch.no_grad():
            W.sub_(0.1 * W.grad / torch.linalg.norm(W.grad))
            W.grad = None

    return step


def large(threads: int, steps: int, joint: bool) -> tuple[float, float]:
    """Seconds per step: 8 000 sequences of 8 to 32 tokens, d = 64."""
    data, v = large_data()
    model = Attention.cross(data, v, train_head=joint)
    optimizer = SteepestDescent(model.parameters(), lr=0.1)
    before = numba.get_num_threads()
    numba.set_num_threads(threads)
    try:
        train(model, data, optimizer, 1, LogSpaced(1))
        cpu = time.process_time()
        trajectory = train(model, data, optimizer, steps, LogSpaced(1), snapshots=False)
        cpu = time.process_time() - cpu
    finally:
        numba.set_num_threads(before)
    return cpu / steps, float(trajectory.seconds[-1]) / steps


def large_data() -> tuple[AttentionData, np.ndarray]:
    rng = np.random.default_rng(0)
    bags = [rng.standard_normal((int(k), 64)) for k in rng.integers(8, 33, size=8000)]
    return AttentionData.from_bags(bags, np.sign(rng.standard_normal(8000)), rng.standard_normal((8000, 64))), rng.standard_normal(64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the rows there as well")
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps")
    options = parser.parse_args()
    short = 10 if options.quick else 1
    cores = numba.get_num_threads()
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    rows: list[dict[str, Any]] = []

    def report(name: str, cpu: float, wall: float, unit: str, note: str = "") -> None:
        rows.append({"name": name, "cpu": cpu, "wall": wall, "unit": unit, "note": note})

    for backend in ("compiled", "autograd"):
        small(2, 2, backend)  # compiles
    numba.set_num_threads(1)
    data, v = unit_sphere(6, 8, 10, seed=0)
    textbook(data, v, 20)
    steps = 1000 // short
    loop = min(clocked(lambda: textbook(data, v, steps)) for _ in range(3))
    loop_rate = steps / loop[0]
    report("textbook loop, one seed", loop[0], loop[1], "s", f"{loop_rate:.0f} seed-steps/s")
    for backend in ("compiled", "autograd"):
        steps = 2000 // short
        cpu, wall = min(small(100, steps, backend) for _ in range(3))
        rate = 100 * steps / cpu
        report(f"100 seeds x {steps} steps, {backend}, one thread", cpu, wall, "s", f"{rate / loop_rate:.0f} times the textbook loop")
    with_records = min(small(100, 2000, "compiled", 50) for _ in range(5))
    without = min(small(100, 2000, "compiled", 1) for _ in range(5))
    report(
        "50 records instead of 2",
        with_records[0] - without[0],
        with_records[1] - without[1],
        "s",
        f"{with_records[0] / without[0] - 1:.1%}",
    )
    numba.set_num_threads(cores)
    cpu, wall = small(100, 20_000 // short, "compiled")
    report(f"100 seeds x {20_000 // short} steps, compiled, {cores} threads", cpu, wall, "s")
    for threads in sorted({1, cores}):
        for joint in (False, True):
            cpu, wall = min(large(threads, 40 // (4 if options.quick else 1), joint) for _ in range(2))
            report(f"8000 sequences x 8-32 tokens, d = 64{', head trained' if joint else ''}, {threads} threads", cpu, wall, "s/step")
    for threads in sorted({1, cores}):
        torch.set_num_threads(threads)
        step = padded_step(*large_data())
        step()
        cpu, wall = min(clocked(step) for _ in range(5))
        report(f"the same, padded torch autograd, {threads} threads", cpu, wall, "s/step")

    versions = {"attsvm": attsvm.__version__, "numba": numba.__version__, "numpy": np.__version__, "torch": torch.__version__}
    machine = {"python": platform.python_version(), "cores": os.cpu_count(), "load_before": load, "load_after": os.getloadavg()[0]}
    print(", ".join(f"{name} {value}" for name, value in {**versions, **machine}.items()), end="\n\n")
    print("| job | CPU | wall | unit | |\n|---|---:|---:|---|---|")
    for row in rows:
        print(f"| {row['name']} | {row['cpu']:.4g} | {row['wall']:.4g} | {row['unit']} | {row['note']} |")
    if options.json:
        options.json.write_text(json.dumps({"versions": versions, "machine": machine, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
