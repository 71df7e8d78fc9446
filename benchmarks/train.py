"""Training attention beside the loops that everybody writes: CPU time, as Markdown.

    python benchmarks/train.py
    python benchmarks/train.py --steps 200 --seeds 20 --sequences 800

Above, instances of (n, T, d) = (6, 8, 10): many seeds in one call beside a textbook loop of eager
float64 autograd, one seed at a time. Below, a step on ragged sequences beside padded autograd. Each
ratio is of the CPU time of the loop over that of the row, after a first call that is not counted.
Threads are those of OMP_NUM_THREADS, one where it is not set.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "ATTSVM_THREADS")
THREADS = os.environ.get(VARIABLES[0], "1")
if __name__ == "__main__":  # libraries read them when they are loaded
    os.environ.update({name: os.environ.get(name, THREADS) for name in VARIABLES})

import numpy as np  # noqa: E402
import torch  # noqa: E402

from attsvm.attention import Attention  # noqa: E402
from attsvm.datasets import unit_sphere  # noqa: E402
from attsvm.datasets.attention_data import AttentionData, FloatArray  # noqa: E402
from attsvm.optim import MirrorDescent, SteepestDescent  # noqa: E402
from attsvm.training import LogSpaced, train  # noqa: E402

SIZE = (6, 8, 10)
LR = 0.1
RECORDS = 50
Times = tuple[float, float]
"""CPU and wall seconds."""


def textbook(data: AttentionData, v: FloatArray, steps: int) -> FloatArray:
    """One seed as the published experiments train it: eager float64 autograd, softmax, log(1 +
    exp), division by norm + epsilon.
    """
    X, z, y, head = (torch.tensor(a) for a in (data.tokens, data.queries, data.labels, v))
    W = torch.zeros(data.d_x, data.d_z, dtype=torch.float64, requires_grad=True)
    losses = []
    for _ in range(steps):
        logits = torch.einsum("ntd,de,ne->nt", X, W, z)
        output = torch.einsum("nt,ntd->nd", torch.softmax(logits, dim=1), X)
        loss = torch.log(1 + torch.exp(-y * (output @ head))).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        assert W.grad is not None
        with torch.no_grad():
            W -= LR * W.grad / (torch.linalg.norm(W.grad) + torch.finfo(torch.float64).eps)
            W.grad.zero_()
        losses.append(loss.item())
    return W.detach().numpy()


def padded(data: AttentionData, v: FloatArray, steps: int) -> FloatArray:
    """Padded sequences, masked softmax and autograd."""
    X, z, y, head = (torch.tensor(a) for a in (data.tokens, data.queries, data.labels, v))
    hidden = torch.tensor(~data.mask)
    W = torch.zeros(data.d_x, data.d_z, dtype=torch.float64, requires_grad=True)
    for _ in range(steps):
        logits = (X @ (z @ W.T)[:, :, None])[:, :, 0].masked_fill(hidden, -torch.inf)
        output = (torch.softmax(logits, dim=1)[:, None, :] @ X)[:, 0]
        torch.nn.functional.softplus(-y * (output @ head)).mean().backward()
        assert W.grad is not None
        with torch.no_grad():
            W.sub_(LR * W.grad / torch.linalg.norm(W.grad))
            W.grad = None
    return W.detach().numpy()


def ours(
    data: Any, v: FloatArray, make: Callable[..., Any] = SteepestDescent, **of_model: Any
) -> Callable[[int], Any]:
    """A training of this library, by its number of steps."""

    def run(steps: int) -> Any:
        model = Attention.cross(data, v, **of_model)
        optimizer = make(model.parameters(), lr=LR)
        return train(model, data, optimizer, steps, LogSpaced(RECORDS), snapshots=False)

    return run


def mirror(parameters: Any, lr: float) -> MirrorDescent:
    return MirrorDescent(parameters, lr=lr, p=1.75)


def ragged(sequences: int) -> tuple[AttentionData, FloatArray]:
    """Sequences of 8 to 32 tokens in 64 dimensions."""
    rng = np.random.default_rng(0)
    bags = [rng.standard_normal((int(k), 64)) for k in rng.integers(8, 33, size=sequences)]
    labels, queries = np.sign(rng.standard_normal(sequences)), rng.standard_normal((sequences, 64))
    return AttentionData.from_bags(bags, labels, queries), rng.standard_normal(64)


def clocked(work: Callable[[int], Any], steps: int, repeats: int = 3) -> Times:
    """The least seconds of some calls, after a short one."""
    work(2)

    def once() -> Times:
        cpu, wall = time.process_time(), time.perf_counter()
        work(steps)
        return time.process_time() - cpu, time.perf_counter() - wall

    return min(once() for _ in range(repeats))


def small(steps: int, seeds: int) -> None:
    """Print the table of many seeds."""
    data, v = unit_sphere(*SIZE, seed=0)
    alone = max(1, steps // 2)
    cpu, wall = clocked(lambda count: textbook(data, v, count), alone)
    base = alone / cpu
    print(f"\n**{SIZE}, seed-steps per CPU second**\n")
    print("| training | CPU s | wall s | seed-steps/s | beside the loop |\n|---|---|---|---|---|")
    print(f"| textbook loop, 1 x {alone} | {cpu:.3g} | {wall:.3g} | {base:.3g} | 1x |", flush=True)
    data, v = unit_sphere(*SIZE, seed=list(range(seeds)))
    factors: dict[str, Any] = {"parameterization": "KQ", "init": ("uniform", 0)}
    rows = {
        "W": ours(data, v),
        "K and Q": ours(data, v, **factors),
        "W, mirror p = 1.75": ours(data, v, mirror),
        "W and the head": ours(data, v, train_head=True),
    }
    for name, work in rows.items():
        cpu, wall = clocked(work, steps)
        rate = seeds * steps / cpu
        row = f"| {name}, {seeds} x {steps} | {cpu:.3g} | {wall:.3g} | {rate:.3g}"
        print(f"{row} | {rate / base:.3g}x |", flush=True)


def large(sequences: int, steps: int) -> None:
    """Print the table of ragged sequences."""
    data, v = ragged(sequences)
    print(f"\n**{sequences} ragged sequences of 8 to 32 tokens, d = 64, a step**\n")
    print("| training | CPU ms | wall ms | beside padded |\n|---|---|---|---|")
    rows: dict[str, Callable[[int], Any]] = {
        "padded autograd": lambda count: padded(data, v, count),
        "W": ours(data, v),
        "W and the head": ours(data, v, train_head=True),
    }
    base = 0.0
    for name, work in rows.items():
        cpu, wall = (1e3 * each / steps for each in clocked(work, steps, 2))
        base = base or cpu
        print(f"| {name} | {cpu:.3g} | {wall:.3g} | {base / cpu:.3g}x |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000, help="of every seed")
    parser.add_argument("--seeds", type=int, default=100, help="trained in one call")
    parser.add_argument("--sequences", type=int, default=8000, help="of the ragged data")
    options = parser.parse_args()
    small(options.steps, options.seeds)
    large(options.sequences, max(1, options.steps // 100))


if __name__ == "__main__":
    main()
