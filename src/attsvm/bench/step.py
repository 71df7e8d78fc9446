"""The optimiser benchmark: time, memory traffic and memory of one step.

Contestants step parameter lists of their own with shared gradients, in rounds: everybody steps
once, then everybody again, so that a drift of the machine meets all alike. Ratios are taken within
a round.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numba
import torch
from torch import Tensor
from torch.optim import Optimizer

import attsvm.optim
from attsvm.bench.record import Cells, digits, duration, load, markdown
from attsvm.errors import InputError
from attsvm.geometry import parse_norm
from attsvm.parallel import start_threads
from attsvm.thread_limits import at_most_threads

Make = Callable[[list[Tensor]], Optimizer]

_LR = 1e-4

Shapes = list[tuple[int, ...]]


def transformer(width: int, layers: int, vocabulary: int) -> Shapes:
    """A decoder: embedding, then per layer two norms, fused QKV, projection and a four-fold MLP,
    with biases.
    """
    linear = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)]
    layer = [(width,)] * 4 + [shape for matrix in linear for shape in (matrix, matrix[:1])]
    return [(vocabulary, width), *(layer * layers), (width,), (width,)]


LISTS: dict[str, Callable[[], Shapes]] = {
    "1M": partial(transformer, 128, 4, 2_048),
    "10M": partial(transformer, 256, 8, 16_384),
    "100M": partial(transformer, 768, 9, 48_000),
    "1G": partial(transformer, 2_048, 18, 50_000),
    "heads": lambda: [(64, 64)] * 1024,
}
"""Lists of parameter shapes: transformers by their rough number of parameters, and many equal
matrices of the size of a head.
"""


def hidden_matrices(name: str) -> Shapes:
    """What spectral methods are meant for: the matrices without the embedding, whose rows are many
    times its columns.
    """
    return [shape for shape in LISTS[name]() if len(shape) == 2 and shape[0] <= 4 * shape[1]]


@dataclass(frozen=True)
class Contender:
    """An optimiser under a name.

    Attributes:
        make: the optimiser over a list of parameters. It may raise, when this version of the
            package lacks it.
        traffic: float32 numbers per parameter that one step has to read or write.
        state: float32 numbers per parameter that it keeps.
        reference: the contender beside which its time is given.
        matrices: it steps the hidden matrices only.
    """

    make: Make
    traffic: int
    state: int
    reference: str
    matrices: bool = False


def _torch(name: str, **options: Any) -> Make:
    return lambda parameters: getattr(torch.optim, name)(parameters, lr=_LR, **options)


def _mirror(p: float, **options: Any) -> Make:
    return lambda parameters: attsvm.optim.MirrorDescent(parameters, lr=_LR, p=p, **options)


def _steepest(norm: str, **options: Any) -> Make:
    return lambda parameters: attsvm.optim.SteepestDescent(
        parameters, lr=_LR, norm=parse_norm(norm), **options
    )


_FORMS: dict[str, dict[str, bool]] = {"foreach": {"foreach": True}, "fused": {"fused": True}}
_AS_MUON: dict[str, Any] = {
    "momentum": 0.95,
    "dampening": 0.95,
    "nesterov": True,
    "weight_decay": 0.1,  # the defaults of torch.optim.Muon
    "polar": "newton-schulz",
}
ADAMW = {form: f"AdamW {form}" for form in ("for-loop", "foreach", "fused")}

CONTENDERS: dict[str, Contender] = {
    # A step reads the gradient, reads and writes the weights, and reads and writes each kept
    # number; a dual iterate replaces reading W.
    ADAMW["for-loop"]: Contender(_torch("AdamW", foreach=False), 7, 2, ADAMW["for-loop"]),
    ADAMW["foreach"]: Contender(_torch("AdamW", foreach=True), 7, 2, ADAMW["foreach"]),
    ADAMW["fused"]: Contender(_torch("AdamW", fused=True), 7, 2, ADAMW["fused"]),
    "SGD foreach": Contender(_torch("SGD", foreach=True), 3, 0, ADAMW["foreach"]),
    "SGD fused": Contender(_torch("SGD", fused=True), 3, 0, ADAMW["fused"]),
    **{
        f"MirrorDescent p={p:g} {form}": Contender(
            _mirror(p, **options), 3 if p == 2 else 4, 0 if p == 2 else 1, ADAMW[form]
        )
        for form, options in _FORMS.items()
        for p in (1.1, 1.5, 1.75, 2.0, 3.0)
    },
    "MirrorDescent p=1.5 fused, no state": Contender(
        _mirror(1.5, fused=True, dual_state=False), 3, 0, ADAMW["fused"]
    ),
    "SteepestDescent fro": Contender(_steepest("fro"), 4, 0, ADAMW["foreach"]),
    "SteepestDescent linf": Contender(_steepest("linf"), 3, 0, ADAMW["foreach"]),
    "SteepestDescent l1": Contender(_steepest("l1"), 4, 0, ADAMW["foreach"]),
    "SteepestDescent lp:1.75": Contender(_steepest("lp:1.75"), 4, 0, ADAMW["foreach"]),
    "Muon": Contender(_torch("Muon"), 5, 1, "Muon", matrices=True),
    "SteepestDescent spec, as Muon": Contender(
        _steepest("spec", **_AS_MUON), 5, 1, "Muon", matrices=True
    ),
    "SteepestDescent spec, Newton-Schulz": Contender(
        _steepest("spec", polar="newton-schulz"), 3, 0, "Muon", matrices=True
    ),
    "SteepestDescent spec, exact": Contender(_steepest("spec"), 3, 0, "Muon", matrices=True),
}
"""Every contestant by name, with the one it is compared with. A new one is a new line here."""


_HEADERS = [
    "optimiser",
    "step",
    "quartiles",
    "beside",
    "GB/s",
    "of copy",
    "state B/param",
    "extra B/param",
    "peak GiB",
]
Progress = Callable[[str, int, int], None]

_BYTES = 4  # of a float32
_COPIED = 64 << 20  # numbers in the buffer whose copy measures the bandwidth: many times any cache
_SHARE = 0.4  # of the free memory that the contestants of a round may take together
_WARM_UP = 2


@dataclass(frozen=True)
class Plan:
    """What is measured: parameter lists by name, device, threads, rounds, and seconds after which a
    contestant is not asked again.
    """

    parameters: tuple[str, ...]
    device: str
    threads: int
    rounds: int
    seconds: float
    contenders: tuple[str, ...]

    def __post_init__(self) -> None:
        for name in self.parameters:
            if name not in LISTS:
                raise InputError(
                    f"unknown parameter list {name!r}; known lists: {', '.join(LISTS)}"
                )
        for name in self.contenders:
            if name not in CONTENDERS:
                raise InputError(
                    f"unknown optimiser {name!r}; known optimisers: {', '.join(CONTENDERS)}"
                )
        if self.device not in ("cpu", "cuda"):
            raise InputError(f"unknown device {self.device!r}; use cpu or cuda")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise InputError(
                "the device cuda needs a GPU that this PyTorch can use, and there is none; use cpu"
            )
        for name in self.parameters:
            needed, free = 5 * _BYTES * _count(LISTS[name]()), _free_memory(self.device)
            if needed > free:
                raise InputError(
                    f"the list {name} needs {needed / 2**30:.1f} GiB for one optimiser and"
                    f" {free / 2**30:.1f} GiB are free; choose a smaller list"
                )

    @property
    def by_cpu(self) -> bool:
        """Whether ratios are of CPU time, which other work on the machine disturbs less; it means
        nothing for several threads or a GPU.
        """
        return self.device == "cpu" and self.threads == 1


class Runner:
    """One optimiser over parameters of its own, and the times of its steps."""

    def __init__(self, name: str, gradients: list[Tensor]) -> None:
        self.name = name
        self.parameters = [
            torch.nn.Parameter(torch.randn_like(gradient) * 0.02) for gradient in gradients
        ]
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        self.optimizer = CONTENDERS[name].make(list(self.parameters))
        self.wall: list[float] = []
        self.cpu: list[float] = []
        self.temporary: int | None = None

    def step(self) -> tuple[float, float]:
        """Wall and CPU seconds of a step, to its end on the device."""
        _synchronise(self.parameters[0].device)
        wall, cpu = time.perf_counter(), time.process_time()
        self.optimizer.step()
        _synchronise(self.parameters[0].device)
        return time.perf_counter() - wall, time.process_time() - cpu

    def warm_up(self) -> None:
        """Build the state, compile, and see what a step needs besides."""
        for _ in range(_WARM_UP):
            self.step()
        with peak_memory(self.parameters[0].device) as peak:
            self.step()
        self.temporary = peak[0]

    def round(self) -> None:
        """One measured step."""
        wall, cpu = self.step()
        self.wall.append(wall)
        self.cpu.append(cpu)

    def state_bytes(self) -> int:
        """Bytes of all tensors of the state, counters apart."""
        tensors = (
            value
            for state in self.optimizer.state.values()
            for value in state.values()
            if isinstance(value, Tensor)
        )
        return sum(tensor.nbytes for tensor in tensors if tensor.ndim)


def run(plan: Plan, cells: Cells, progress: Progress) -> list[dict[str, Any]]:
    """Every cell of the plan, measured or taken from ``cells``."""
    lots = [(name, lot) for name in plan.parameters for lot in _lots(plan, name)]
    results: list[dict[str, Any]] = []
    start_threads()
    with at_most_threads(sys.maxsize, torch, numba):
        torch.set_num_threads(plan.threads)
        numba.set_num_threads(min(plan.threads, numba.get_num_threads()))
        for number, (name, lot) in enumerate(lots):
            progress("step", number, len(lots))
            identities = [
                {"parameters": name, "optimiser": contender, "lot": number} for contender in lot
            ]
            known = [cell for identity in identities if (cell := cells.get(identity)) is not None]
            if len(known) < len(lot):
                figures = _measure(plan, name, lot)
                known = [
                    cells.put(identity, each)
                    for identity, each in zip(identities, figures, strict=True)
                ]
            results += known
    progress("step", len(lots), len(lots))
    return results


def _lots(plan: Plan, name: str) -> Iterator[list[str]]:
    """Contestants that fit into the memory together, each with the one it is compared with."""
    budget = _SHARE * _free_memory(plan.device) / (_BYTES * _count(LISTS[name]()))
    for matrices in (False, True):
        lot: list[str] = []
        for contender in (
            each for each in plan.contenders if CONTENDERS[each].matrices == matrices
        ):
            joined = list(dict.fromkeys([*lot, CONTENDERS[contender].reference, contender]))
            if lot and sum(1 + CONTENDERS[each].state for each in joined) > budget - 1:
                yield lot
                joined = list(dict.fromkeys([CONTENDERS[contender].reference, contender]))
            lot = joined
        if lot:
            yield lot


def _measure(plan: Plan, name: str, lot: list[str]) -> list[dict[str, Any]]:
    """The figures of the contestants of one lot, in its order."""
    before = load()
    torch.manual_seed(0)
    wanted = hidden_matrices(name) if CONTENDERS[lot[0]].matrices else LISTS[name]()
    gradients = [torch.randn(shape, device=plan.device) * 1e-3 for shape in wanted]
    copy = Copy(plan.device)
    runners: dict[str, Runner] = {}
    refused: dict[str, str] = {}
    for contender in lot:
        try:
            runner = Runner(contender, gradients)
            runner.warm_up()
        except (AttributeError, TypeError, ValueError, RuntimeError, NotImplementedError) as error:
            refused[contender] = f"{type(error).__name__}: {error}"[:200]
        else:
            runners[contender] = runner
    for _ in range(plan.rounds):
        copy.round()
        for runner in runners.values():
            if sum(runner.wall) < plan.seconds:
                runner.round()
    count = _count(wanted)
    figures: list[dict[str, Any]] = []
    for contender in lot:
        if contender in refused:
            figures.append(
                {"outcome": "not available", "reason": refused[contender], "count": count}
            )
            continue
        reference = runners.get(CONTENDERS[contender].reference)
        figures.append(
            {
                "outcome": "finished",
                **_figures(runners[contender], reference, count, by_cpu=plan.by_cpu),
                "copy": copy.bandwidth(),
            }
        )
        figures[-1]["load"] = [before, load()]
    del runners
    gc.collect()
    return figures


def _figures(
    runner: Runner, reference: Runner | None, count: int, *, by_cpu: bool
) -> dict[str, Any]:
    contender: Contender = CONTENDERS[runner.name]
    ratio = None
    if reference is not None:
        pairs = (
            zip(runner.cpu, reference.cpu, strict=False)
            if by_cpu
            else zip(runner.wall, reference.wall, strict=False)
        )
        ratio = statistics.median(mine / max(theirs, 1e-9) for mine, theirs in pairs)
    wall = statistics.median(runner.wall)
    low, high = (
        (statistics.quantiles(runner.wall, n=4, method="inclusive")[k] for k in (0, 2))
        if len(runner.wall) > 1
        else (wall, wall)
    )
    state = runner.state_bytes()
    return {
        "count": count,
        "rounds": len(runner.wall),
        "wall": wall,
        "wall_quartiles": [low, high],
        "cpu": statistics.median(runner.cpu),
        "ratio": ratio,
        "reference": contender.reference,
        "bytes_per_second": contender.traffic * _BYTES * count / wall,
        "state_bytes": state,
        "temporary_bytes": runner.temporary,
        "peak_bytes": (
            None if runner.temporary is None else 2 * _BYTES * count + state + runner.temporary
        ),
    }


class Copy:
    """Copying one large tensor into another: what the memory of the device can do, in the same
    rounds as everybody.
    """

    def __init__(self, device: str) -> None:
        self._source = torch.ones(_COPIED, device=device)
        self._target = torch.empty_like(self._source)
        self.seconds: list[float] = []
        self.round()
        self.seconds.clear()  # the first touch of the pages

    def round(self) -> None:
        """One measured copy."""
        _synchronise(self._source.device)
        start = time.perf_counter()
        self._target.copy_(self._source)
        _synchronise(self._source.device)
        self.seconds.append(time.perf_counter() - start)

    def bandwidth(self) -> float:
        """Bytes per second, read and written, the median over the rounds."""
        return 2 * self._source.nbytes / statistics.median(self.seconds)


@contextlib.contextmanager
def peak_memory(device: torch.device) -> Iterator[list[int | None]]:
    """Bytes that the block needed on top of what was there: asked of CUDA, or of Linux; ``[None]``
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
        resident = _status("VmRSS")
    except OSError:
        yield peak
        return
    yield peak
    peak[0] = max(0, _status("VmHWM") - resident)


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:"))


def _free_memory(device: str) -> int:
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        return next(
            int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")
        )
    except (OSError, StopIteration):
        return (
            int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) // 2
            if hasattr(os, "sysconf")
            else 4 << 30
        )


def _count(wanted: list[tuple[int, ...]]) -> int:
    return sum(map(math.prod, wanted))


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def tables(cells: list[dict[str, Any]], *, by_cpu: bool) -> str:
    """Markdown: a table per parameter list, the matrix optimisers apart, then who could not take
    part.
    """
    parts = []
    for name in dict.fromkeys(cell["parameters"] for cell in cells):
        for count in dict.fromkeys(cell["count"] for cell in cells if cell["parameters"] == name):
            chosen = [
                cell for cell in cells if (cell["parameters"], cell["count"]) == (name, count)
            ]
            # One that others are compared with runs in several lots; its first row is enough.
            rows: dict[str, dict[str, Any]] = {}
            for cell in chosen:
                if cell["outcome"] == "finished":
                    rows.setdefault(cell["optimiser"], cell)
            if not rows:
                continue
            copy = max(cell["copy"] for cell in rows.values())
            which = (
                ""
                if count == max(cell["count"] for cell in cells if cell["parameters"] == name)
                else " (hidden matrices only)"
            )
            parts.append(
                f"**{name}: {count / 1e6:.1f} million float32 parameters{which}; copying moves"
                f" {copy / 1e9:.3g} GB/s**\n"
            )
            parts.append(markdown(_HEADERS, [_row(cell) for cell in rows.values()]) + "\n")
    parts.append(
        "Wall time of a step, median and quartiles over the rounds. Beside: the median over the"
        f" rounds of the time ({'CPU' if by_cpu else 'wall'}) over that of the optimiser named."
        " GB/s: the bytes that the algorithm has to move, over the time. Extra: memory a step"
        " needs beyond parameters, gradients and state."
    )
    absent: dict[str, list[str]] = {}
    for cell in cells:
        if cell["outcome"] != "finished" and cell["optimiser"] not in absent.setdefault(
            cell["reason"], []
        ):
            absent[cell["reason"]].append(cell["optimiser"])
    parts += (
        [
            "",
            *(
                f"- not available: {', '.join(names)} ({reason})"
                for reason, names in absent.items()
            ),
        ]
        if absent
        else []
    )
    return "\n".join(parts)


def _row(cell: dict[str, Any]) -> list[str]:
    low, high = cell["wall_quartiles"]
    itself = cell["reference"] == cell["optimiser"]
    beside = (
        "" if itself or cell["ratio"] is None else f"{digits(cell['ratio'])}x {cell['reference']}"
    )
    extra = (
        "" if cell["temporary_bytes"] is None else f"{cell['temporary_bytes'] / cell['count']:.1f}"
    )
    return [
        cell["optimiser"],
        duration(cell["wall"]),
        f"{duration(low)} to {duration(high)}",
        beside,
        digits(cell["bytes_per_second"] / 1e9),
        f"{100 * cell['bytes_per_second'] / cell['copy']:.0f}%",
        f"{cell['state_bytes'] / cell['count']:.1f}",
        extra,
        "" if cell["peak_bytes"] is None else f"{cell['peak_bytes'] / 2**30:.2f}",
    ]
