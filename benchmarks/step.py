"""Steps of attsvm's optimisers beside torch's: time, bytes per second and memory, as Markdown.

    python benchmarks/step.py
    python benchmarks/step.py --parameters 10M,100M --rounds 11 --only "p=1.1,Muon"
    python benchmarks/step.py --device cuda

A row is an optimiser over float32 parameters of its own, beside the one of torch that its line
names, over the same gradients: in each round both take a step, so that a drift of the machine meets
both. Time is the wall time of a step, the median with quartiles. Ratios are medians over rounds, of
CPU time with one thread and of wall time otherwise. GB/s is what the algorithm has to read and
write, over the time, beside a copy in the same rounds; extra is memory that a step needs beyond
parameters, gradients and state. Threads are those of OMP_NUM_THREADS, one where it is not set.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "ATTSVM_THREADS")
THREADS = os.environ.get(VARIABLES[0], "1")
if __name__ == "__main__":  # libraries read them when they are loaded
    os.environ.update({name: os.environ.get(name, THREADS) for name in VARIABLES})

import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.optim import Optimizer  # noqa: E402

from attsvm.norms import as_norm  # noqa: E402
from attsvm.optim import MirrorDescent, SteepestDescent  # noqa: E402

LR = 1e-4
BYTES = 4  # of a float32
COPIED = 64 << 20  # numbers of the copied buffer: many times any cache
WARM_UP = 2
Shapes = list[tuple[int, ...]]
Make = Callable[[list[Tensor]], Optimizer]


def transformer(width: int, layers: int, vocabulary: int) -> Shapes:
    """A decoder: embedding, then per layer two norms, fused QKV, projection and a four-fold MLP,
    with biases.
    """
    linear = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)]
    layer = [(width,)] * 4 + [shape for matrix in linear for shape in (matrix, matrix[:1])]
    return [(vocabulary, width), *(layer * layers), (width,), (width,)]


LISTS: dict[str, Callable[[], Shapes]] = {
    "10K": partial(transformer, 16, 2, 128),
    "1M": partial(transformer, 128, 4, 2_048),
    "10M": partial(transformer, 256, 8, 16_384),
    "100M": partial(transformer, 768, 9, 48_000),
    "1G": partial(transformer, 2_048, 18, 50_000),
    "heads": lambda: [(64, 64)] * 1024,
}
"""Transformers by their rough number of parameters, and many matrices of the size of a head."""


def hidden_matrices(shapes: Shapes) -> Shapes:
    """What spectral methods are meant for: matrices without the embedding, whose rows are many
    times its columns.
    """
    return [shape for shape in shapes if len(shape) == 2 and shape[0] <= 4 * shape[1]]


@dataclass(frozen=True)
class Contender:
    """An optimiser, the name of the one beside it, float32 numbers per parameter that a step has to
    read or write, and whether it steps the hidden matrices only.
    """

    make: Make
    beside: str
    traffic: int
    matrices: bool = False


def _torch(name: str, **options: Any) -> Make:
    return lambda parameters: getattr(torch.optim, name)(parameters, lr=LR, **options)


def _mirror(p: float, **options: Any) -> Make:
    return lambda parameters: MirrorDescent(parameters, lr=LR, p=p, **options)


def _steepest(norm: str, **options: Any) -> Make:
    return lambda parameters: SteepestDescent(parameters, lr=LR, norm=as_norm(norm), **options)


AS_MUON: dict[str, Any] = {
    "momentum": 0.95,
    "dampening": 0.95,
    "nesterov": True,
    "weight_decay": 0.1,
    "polar": "newton-schulz",
}
"""The settings of torch.optim.Muon."""
FOREACH, FUSED, MUON = "AdamW foreach", "AdamW fused", "Muon"
PEERS = {
    FOREACH: Contender(_torch("AdamW", foreach=True), FOREACH, 7),
    FUSED: Contender(_torch("AdamW", fused=True), FUSED, 7),
    MUON: Contender(_torch("Muon"), MUON, 5, matrices=True),
}
# A step reads the gradient, reads and writes the weights, and reads and writes what it keeps; a
# dual iterate replaces reading the weights.
CONTENDERS = {
    "SGD foreach": Contender(_torch("SGD", foreach=True), FOREACH, 3),
    "SGD fused": Contender(_torch("SGD", fused=True), FUSED, 3),
    **{
        f"MirrorDescent p={p:g} {form}": Contender(
            _mirror(p, **{form: True}), f"AdamW {form}", 3 if p == 2 else 4
        )
        for form in ("foreach", "fused")
        for p in (1.1, 1.5, 1.75, 2.0, 3.0)
    },
    "SteepestDescent fro": Contender(_steepest("fro"), FOREACH, 4),
    "SteepestDescent linf": Contender(_steepest("linf"), FOREACH, 3),
    "SteepestDescent l1": Contender(_steepest("l1"), FOREACH, 4),
    "SteepestDescent lp:1.75": Contender(_steepest("lp:1.75"), FOREACH, 4),
    "SteepestDescent spec, as Muon": Contender(
        _steepest("spec", **AS_MUON), MUON, 5, matrices=True
    ),
    "SteepestDescent spec, Newton-Schulz": Contender(
        _steepest("spec", polar="newton-schulz"), MUON, 3, matrices=True
    ),
    "SteepestDescent spec, exact": Contender(_steepest("spec"), MUON, 3, matrices=True),
}
"""Every contestant by name, with the one it is compared with. A new one is a new line here."""


class Runner:
    """An optimiser over parameters of its own, and the seconds of its steps, wall and CPU."""

    def __init__(self, contender: Contender, gradients: list[Tensor]) -> None:
        self.parameters = [
            torch.nn.Parameter(torch.randn_like(gradient) * 0.02) for gradient in gradients
        ]
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        self.optimizer = contender.make(list(self.parameters))
        self.seconds: list[tuple[float, float]] = []
        for _ in range(WARM_UP):
            timed(self.optimizer.step, gradients[0].device)
        with peak_memory(gradients[0].device) as peak:
            timed(self.optimizer.step, gradients[0].device)
        self.extra = peak[0]

    def state_bytes(self) -> int:
        """Bytes of all tensors of the state, counters apart."""
        values = (value for state in self.optimizer.state.values() for value in state.values())
        return sum(value.nbytes for value in values if isinstance(value, Tensor) and value.ndim)


def timed(work: Callable[[], Any], device: torch.device) -> tuple[float, float]:
    """Wall and CPU seconds of ``work``, to its end on the device."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    wait()
    return time.perf_counter() - wall, time.process_time() - cpu


@contextlib.contextmanager
def peak_memory(device: torch.device) -> Iterator[list[int | None]]:
    """Bytes that the block needs on top of what is there: asked of CUDA or of Linux; ``[None]``
    where neither can say.
    """
    peak: list[int | None] = [None]
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield peak
        peak[0] = torch.cuda.max_memory_allocated(device) - before
        return
    try:
        with contextlib.suppress(AttributeError, OSError):
            # what was freed earlier would be reused without showing
            ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts anew
        resident = status("VmRSS")
    except OSError:
        yield peak
        return
    yield peak
    peak[0] = max(0, status("VmHWM") - resident)


def status(field: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:"))


def pair(name: str, shapes: Shapes, options: argparse.Namespace) -> tuple[str, float]:
    """The row of an optimiser, and the bytes per second of a copy in its rounds."""
    chosen, device = CONTENDERS[name], torch.device(options.device)
    torch.manual_seed(0)
    gradients = [torch.randn(shape, device=device) * 1e-3 for shape in shapes]
    source = torch.ones(options.copied, device=device)
    target = torch.empty_like(source)
    ours, theirs = Runner(chosen, gradients), Runner(PEERS[chosen.beside], gradients)
    copies = []
    for _ in range(options.rounds):
        copies.append(timed(partial(target.copy_, source), device)[0])
        for runner in (theirs, ours):
            runner.seconds.append(timed(runner.optimizer.step, device))
    count = sum(map(math.prod, shapes))
    clock = 1 if THREADS == "1" and device.type == "cpu" else 0
    ratio = statistics.median(
        mine[clock] / max(other[clock], 1e-9)
        for mine, other in zip(ours.seconds, theirs.seconds, strict=True)
    )
    bandwidth = 2 * source.nbytes / statistics.median(copies)
    wall = sorted(seconds[0] for seconds in ours.seconds)
    middle = statistics.median(wall)
    low, high = (wall[round(share * (len(wall) - 1))] for share in (0.25, 0.75))
    moved = chosen.traffic * BYTES * count / middle
    extra = "" if ours.extra is None else f"{ours.extra / count:.1f}"
    times = f"{1e3 * middle:.3g} ms | {1e3 * low:.3g} to {1e3 * high:.3g}"
    speed = f"{moved / 1e9:.3g} | {100 * moved / bandwidth:.0f}%"
    memory = f"{ours.state_bytes() / count:.1f} | {extra}"
    return f"| {name} | {times} | {ratio:.2f}x {chosen.beside} | {speed} | {memory} |", bandwidth


def table(name: str, options: argparse.Namespace) -> None:
    """Print the table of a list of parameters: entries first, then the hidden matrices."""
    words = [word for word in options.only.split(",") if word]
    for matrices in (False, True):
        shapes = hidden_matrices(LISTS[name]()) if matrices else LISTS[name]()
        count = sum(map(math.prod, shapes)) / 1e6
        names = [
            label
            for label, contender in CONTENDERS.items()
            if contender.matrices == matrices
            and (not words or any(word in f"{label} {contender.beside}" for word in words))
        ]
        if not names:
            continue
        print(f"\n**{name}, {count:.3g} million{' in hidden matrices' if matrices else ''}**\n")
        print("| optimiser | step | quartiles, ms | beside | GB/s | of copy | state B | extra B |")
        print("|---" * 8 + "|")
        copies = []
        for label in names:
            try:
                row, bandwidth = pair(label, shapes, options)
            except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError) as e:
                reason = f"{type(e).__name__}: {str(e)[:120]}"
                print(f"| {label} | not available: {reason} |", flush=True)
            else:
                copies.append(bandwidth)
                print(row, flush=True)
        if copies:
            print(f"\nA copy moves {statistics.median(copies) / 1e9:.3g} GB/s.")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parameters", default="10M", help=f"of {', '.join(LISTS)}")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--rounds", type=int, default=9, help="measured steps of each")
    parser.add_argument("--only", default="", help="rows whose names have one of these words")
    parser.add_argument("--copied", type=int, default=COPIED, help="numbers of the copied buffer")
    options = parser.parse_args()
    for name in options.parameters.split(","):
        table(name, options)


if __name__ == "__main__":
    main()
