"""Does the guard warn before training breaks, and does clipping hold it? The table and the figure
of docs/guard.md.

    python benchmarks/guard.py sweep   --shakespeare input.txt --wikitext valid.txt.xz
    python benchmarks/guard.py verdict --shakespeare input.txt --wikitext valid.txt.xz
    python benchmarks/guard.py clips   --shakespeare input.txt --wikitext valid.txt.xz
    python benchmarks/guard.py table
    python benchmarks/guard.py table   --first 20000
    python benchmarks/guard.py pace    --shakespeare input.txt --wikitext valid.txt.xz
    python benchmarks/guard.py table   --first 40000
    python benchmarks/guard.py default --shakespeare input.txt --wikitext valid.txt.xz
    python benchmarks/guard.py table   --first 50000
    python benchmarks/guard.py again   --shakespeare input.txt --wikitext valid.txt.xz
    python benchmarks/guard.py table   --first 40000 50000 70000
    python benchmarks/guard.py figure --out guard.png
    python benchmarks/guard.py overhead --shakespeare input.txt

A decoder of 4 blocks of width 128 with 4 heads and no normalised queries and keys, context 32,
batches of 4 texts of characters, 300 steps. All but W_Q and W_K is trained by AdamW at 3e-3. The
rate of W_Q and W_K rises with the square of the step to a *peak* at step 200, so that a run meets
the rate at which it breaks if that is below the peak: by AdamW (betas .9 and .95, no weight decay)
or by spectral steps (momentum .95, Newton-Schulz). In the last 100 steps all rates fall to zero.
A *constant* run takes 1,500 steps at the rates of healthy runs, which only rise in the first 30.
Runs are kept in --runs, a JSON each, and not made again; 7 CPU seconds each, 26 a constant one.

Fixed before any run of the verdict was made:

* The *course* of a run is the mean of its last 25 training losses. A run *breaks* at the first step
  at which the course is .15 nats above its lowest earlier value, or not finite. A run that never
  breaks is *healthy*.
* Seed 0 on tinyshakespeare chose the peaks of the verdict: the lowest of the sweep that broke
  training, and, for healthy runs, the one with the best held-out loss. It chose tau and horizon,
  too; the levels of the other alarms were set without looking. The verdict is made on seeds from
  10,000 on.
* The guard of these runs measures every 10 steps, warns at tau = 100, and clips, measuring every
  step, by K2's rule alone at tau = 10.
* ``clips`` compares the guard's own clipping (later steps shortened, too) with QK-norm, at the
  lowest peak of the sweep that broke seed 0 on that text. Seeds 0 and 1 at these peaks chose
  tau = 8 of 4, 6, 8 and 10. Its verdict is made on seeds from 20,000 on.
* ``pace`` asks the same of the guard's present rule, with constant runs among the healthy ones, on
  seeds from 40,000 on. What the rule asks of the pace was chosen on all earlier runs and on
  constant ones of seeds 0 and 1. The course of a constant run is the mean of its last 125 losses:
  of 25 it rises by .18 through noise alone. It asks that nine tenths of the runs that break are
  warned of in time, and at most one tenth of the healthy ones, constant ones counted by themselves,
  too, and with measurements every 50 steps.
* When the guard measures by default (every 50 steps, and sooner while logits grow fast) was chosen
  on the runs of seeds below 40,000: of factors 1.5, 2 and 2.7 by which logits may grow before they
  are measured again, the middle one. Its verdict is that of the recorded runs of ``pace``, and of
  ``default``: the same runs on seeds from 50,000 on, beside which a guard as it is by default
  trains along. ``default`` asks of it what ``pace`` asks, and at most 3 % more CPU time.
* ``again`` is ``default`` on seeds from 70,000 on, with nothing changed. Written before any of
  them: the shares of warnings in time and of false alarms are those of all runs from 50,000 on,
  with their intervals, and those of ``again`` alone beside them.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor, nn
from torch.nn import functional as F

from attsvm.norms import Spectral
from attsvm.optim import CombinedOptimizer, SteepestDescent
from attsvm.report.style import INK, canvas, label_ends, logarithmic
from attsvm.transformers import LogitGuard
from attsvm.transformers.growth import (
    HeadGrowth,
    HeadMetrics,
    LogitRecord,
    steps_to_next_measurement,
)
from attsvm.transformers.guard import in_trouble

WIDTH, HEADS, BLOCKS, CONTEXT, BATCH, STEPS = 128, 4, 4, 32, 4, 300
FALL = 100  # steps at the end in which rates fall to zero
RATE = 3e-3
EVERY, USUAL = 10, 50
WINDOW, RISE = 25, 0.15
LONGER = 5  # times the steps, and the window, of a constant run
TAU, CLIP_TAU, SHORTEN_TAU, HORIZON = 100.0, 10.0, 8.0, 4 * EVERY
DATA = ("shakespeare", "wikitext")
CLIPS = ("clip", "shorten")
PEAKS = {"adamw": (0.003, 0.03, 0.1), "spectral": (0.03, 0.3, 1.0)}
HEALTHY = {"adamw": 0.003, "spectral": 0.03}
BROKEN = {"adamw": 0.1, "spectral": 1.0}
MILD = {"adamw": 0.03, "spectral": 0.3}  # clipping alone is judged here, too
LOWEST = {  # peak of a sweep by half decades that broke training
    ("shakespeare", "adamw"): 0.1,
    ("shakespeare", "spectral"): 1.0,
    ("wikitext", "adamw"): 0.1,
    ("wikitext", "spectral"): 0.3,
}
LEAD = 50  # steps before the break that count as in time


class Attention(nn.Module):
    def __init__(self, normalised: bool) -> None:
        super().__init__()
        self.num_heads, self.hidden_size = HEADS, WIDTH
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)
        )
        self.q_norm, self.k_norm = (
            nn.LayerNorm(WIDTH // HEADS) if normalised else nn.Identity() for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        maps = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (m(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for m in maps)
        found = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v, is_causal=True)
        return self.out_proj(found.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, normalised: bool) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention(normalised)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Decoder(nn.Module):
    def __init__(self, characters: int, normalised: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, WIDTH)
        self.position = nn.Parameter(0.02 * torch.randn(CONTEXT, WIDTH))
        self.blocks = nn.ModuleList(Block(normalised) for _ in range(BLOCKS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, characters, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=WIDTH**-0.5)
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@dataclass(frozen=True)
class Cell:
    """One run; ``arm`` is nothing, clip, shorten (clip, and shorten later steps) or qknorm.
    ``constant`` runs keep their rates after 30 steps and take five times as many.
    """

    data: str
    optimizer: str
    peak: float
    arm: str
    seed: int
    tau: float = TAU
    constant: bool = False

    @property
    def name(self) -> str:
        tau = f"-tau{self.tau:g}" if self.arm in CLIPS else ""
        kind = f"{self.optimizer}-constant" if self.constant else self.optimizer
        return f"{self.data}-{kind}-{self.peak:g}-{self.arm}{tau}-{self.seed}"

    @property
    def steps(self) -> int:
        return LONGER * STEPS if self.constant else STEPS

    def rates(self, step: int) -> tuple[float, float]:
        """Of W_Q and W_K, and of the rest."""
        warm = min(1.0, (step + 1) / 30)
        if self.constant:
            return self.peak * warm, RATE * warm
        ends = min(1.0, (STEPS - step) / FALL)
        return (
            self.peak * min(ends, ((step + 1) / (STEPS - FALL)) ** 2),
            RATE * min(ends, warm),
        )


def sweep() -> list[Cell]:
    cells = [Cell(d, o, p, "nothing", 0) for d in DATA for o in PEAKS for p in PEAKS[o]]
    clips = [Cell(DATA[0], "adamw", BROKEN["adamw"], "clip", 0, tau) for tau in (5, 10, 30)]
    return [*clips, *cells, Cell(DATA[0], "adamw", BROKEN["adamw"], "qknorm", 0)]


def verdict(rounds: int) -> list[Cell]:
    """Every beginning of the list is balanced over data and optimisers; arms after each round."""
    cells = []
    for seed in range(10_000, 10_000 + rounds):
        both = [(data, kind) for data in DATA for kind in PEAKS]
        for peaks in (BROKEN, HEALTHY):
            cells += [Cell(data, kind, peaks[kind], "nothing", seed) for data, kind in both]
        for peaks in (BROKEN, MILD):
            for data, kind in both:
                cells += [Cell(data, kind, peaks[kind], arm, seed) for arm in ("nothing", "qknorm")]
                cells.append(Cell(data, kind, peaks[kind], "clip", seed, CLIP_TAU))
    return list(dict.fromkeys(cells))


def clips(rounds: int) -> list[Cell]:
    """Clipping against QK-norm at the lowest peak that breaks training; whole seeds first."""
    taus = {"clip": CLIP_TAU, "shorten": SHORTEN_TAU}
    return [
        Cell(data, kind, peak, arm, seed, taus.get(arm, TAU))
        for seed in range(20_000, 20_000 + rounds)
        for (data, kind), peak in LOWEST.items()
        for arm in ("qknorm", "shorten", "nothing", "clip")
    ]


def pace(rounds: int, first: int = 40_000) -> list[Cell]:
    """Runs at the peaks that break (the lowest, too) and at healthy ones; whole seeds first."""
    both = [(data, kind) for data in DATA for kind in PEAKS]
    peaks = [(*where, BROKEN[where[1]], False) for where in both]
    peaks += [(*where, peak, False) for where, peak in LOWEST.items()]
    peaks += [(*where, HEALTHY[where[1]], constant) for constant in (False, True) for where in both]
    return [
        Cell(data, kind, peak, "nothing", seed, constant=constant)
        for seed in range(first, first + rounds)
        for data, kind, peak, constant in dict.fromkeys(peaks)
    ]


def characters(path: Path) -> tuple[Tensor, int]:
    """The text as numbers of its bytes in order of their value, and how many differ."""
    raw = path.read_bytes()
    raw = lzma.decompress(raw) if path.suffix == ".xz" else raw
    values, ids = torch.unique(
        torch.frombuffer(bytearray(raw), dtype=torch.uint8), return_inverse=True
    )
    return ids, len(values)


def optimizer_of(net: Decoder, kind: str, peak: float) -> torch.optim.Optimizer:
    both: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, parameter in net.named_parameters():
        both[name.endswith(("q_proj.weight", "k_proj.weight"))].append(parameter)
    settings: dict[str, Any] = {"betas": (0.9, 0.95), "weight_decay": 0.0, "fused": True}
    if kind == "adamw":
        groups = [{"params": both[False], "lr": RATE}, {"params": both[True], "lr": peak}]
        return torch.optim.AdamW(groups, **settings)
    spectral = SteepestDescent(
        both[True], lr=peak, norm=Spectral(), momentum=0.95, nesterov=True, polar="newton-schulz"
    )
    return CombinedOptimizer([torch.optim.AdamW(both[False], lr=RATE, **settings), spectral])


def batches(ids: Tensor, seed: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(ids) - CONTEXT - 1, (BATCH,), generator=generator)
        yield ids[starts[:, None] + torch.arange(CONTEXT + 1)]


def loss_of(net: nn.Module, batch: Tensor) -> Tensor:
    return F.cross_entropy(net(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


@torch.no_grad()
def held_out(net: Decoder, ids: Tensor) -> float:
    net.eval()
    starts = torch.linspace(0, len(ids) - CONTEXT - 2, 512).long()
    rows = ids[starts[:, None] + torch.arange(CONTEXT + 1)]
    return statistics.fmean(float(loss_of(net, some)) for some in rows.split(64))


class Steady(LogitGuard):
    """Measures at equal distances, whatever it sees, so that others can be replayed from it."""

    def _steps_to_next_measurement(self) -> int:
        return self.every


def run(cell: Cell, ids: Tensor, kinds: int) -> dict[str, Any]:
    torch.manual_seed(cell.seed)
    net = Decoder(kinds, cell.arm == "qknorm")
    optimizer = optimizer_of(net, cell.optimizer, cell.peak)
    alarms: list[dict[str, Any]] = []
    clips, usual = cell.arm in CLIPS, cell.seed >= 50_000
    early: list[dict[str, Any]] = []
    beside = (
        LogitGuard(
            net,
            tau=cell.tau,
            action=lambda heads: early.extend(asdict(each) for each in heads),
            optimizer=optimizer,
        )
        if usual
        else None
    )
    guard = Steady(
        net,
        tau=cell.tau,
        action="clip" if clips else lambda heads: alarms.extend(asdict(each) for each in heads),
        every=1 if clips else EVERY,
        optimizer=optimizer,
        horizon=HORIZON,
        shorten=cell.arm == "shorten",
    )
    train = ids[: int(0.9 * len(ids))]
    losses, sizes, records, measured = [], [], [], 0
    start = time.process_time()
    for step, batch in zip(range(cell.steps), batches(train, cell.seed), strict=False):
        rest, ours = optimizer.param_groups
        ours["lr"], rest["lr"] = cell.rates(step)
        optimizer.zero_grad()
        loss = loss_of(net, batch)
        loss.backward()
        gradients = [p.grad.norm() for p in net.parameters() if p.grad is not None]
        sizes.append(float(torch.stack(gradients).norm()))
        optimizer.step()
        losses.append(float(loss.detach()))
        measured += beside is not None and beside.measured == step
        if step % EVERY == 0:
            records.append([asdict(each) for each in guard.metrics()])
    seconds = time.process_time() - start
    return {
        "cell": asdict(cell),
        "losses": losses,
        "gradients": sizes,
        "records": records,
        "alarms": alarms,
        **({"default": {"alarms": early, "measured": measured}} if usual else {}),
        "final": held_out(net, ids[int(0.9 * len(ids)) :]),
        "seconds": seconds,
    }


def make(cells: list[Cell], folder: Path, texts: dict[str, Path]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    read: dict[str, tuple[Tensor, int]] = {}
    for cell in cells:
        path = folder / f"{cell.name}.json"
        if path.exists():
            continue
        if cell.data not in read:
            read[cell.data] = characters(texts[cell.data])
        found = run(cell, *read[cell.data])
        part = folder / f"{cell.name}.part"
        part.write_text(json.dumps(found), encoding="utf-8")
        part.rename(path)
        print(
            f"{cell.name:44s} final {found['final']:.3f}  breaks {breaks(found)}"
            f"  warned {warned(found)}  {found['seconds']:.0f} s",
            flush=True,
        )


def window_of(found: dict[str, Any]) -> int:
    return WINDOW * (LONGER if found["cell"].get("constant") else 1)


def course(found: dict[str, Any]) -> np.ndarray:
    """Mean of the last losses, from the first step on that has a window of them."""
    sums, window = np.cumsum([0.0, *found["losses"]]), window_of(found)
    return (sums[window:] - sums[:-window]) / window


def rises(found: dict[str, Any], by: float) -> int | None:
    """The first step at which the course is this much above its lowest earlier value."""
    means = course(found)
    lowest = np.minimum.accumulate(np.nan_to_num(means, nan=np.inf))
    broken = ~(means <= lowest + by)
    return int(np.argmax(broken)) + window_of(found) - 1 if broken.any() else None


def breaks(found: dict[str, Any]) -> int | None:
    return rises(found, RISE)


def warned(found: dict[str, Any]) -> int | None:
    """The step of the guard's first warning."""
    return min((each["step"] for each in found["alarms"]), default=None)


def beyond(found: dict[str, Any], level: float) -> int | None:
    """The first measurement at which any logit is beyond a level, whatever its growth."""
    peaks = [(heads[0]["step"], max(h["largest"] for h in heads)) for heads in found["records"]]
    return next((step for step, peak in peaks if not peak <= level), None)


def steep(found: dict[str, Any], factor: float) -> int | None:
    """The first step from 30 on whose gradient is this many times the median of the 30 before."""
    sizes = found["gradients"]
    for step in range(30, len(sizes)):
        if not sizes[step] <= factor * statistics.median(sizes[step - 30 : step]):
            return step
    return None


def heads_at(
    found: dict[str, Any], waits: Callable[[Iterable[HeadGrowth]], int]
) -> Iterator[tuple[int, list[HeadMetrics]]]:
    """Step by step what a guard would have known of the heads with measurements at other distances,
    multiples of :data:`EVERY`.

    A direction that is looked at less often is taken to have turned by the sum of the angles.
    """
    tracks: dict[tuple[int, int], HeadGrowth] = {}
    angles: dict[tuple[int, int], float] = {}
    then = 0
    for heads in found["records"]:
        step = heads[0]["step"]
        for each in heads:
            key = (each["layer"], each["head"])
            angles[key] = angles.get(key, 0.0) + math.acos(min(max(1 - each["turned"], -1), 1))
            if step >= then:
                turned = 1 - math.cos(min(angles.pop(key), math.pi))
                values = [each[name] for name in ("largest", "margin", "entropy", "norm")]
                track = tracks.setdefault(key, HeadGrowth(each["name"]))
                track.records.append(LogitRecord(step, *values, turned))
        if step >= then:
            yield step, [track.metrics(*key, TAU) for key, track in tracks.items()]
            then = step + max(waits(tracks.values()) // EVERY, 1) * EVERY


def replayed(
    found: dict[str, Any], waits: Callable[[Iterable[HeadGrowth]], int]
) -> tuple[int | None, int]:
    """The first step at which the guard's rule holds, and how many measurements the run takes."""
    first, count = None, 0
    for step, heads in heads_at(found, waits):
        count += 1
        if first is None and any(in_trouble(head, TAU, 4 * USUAL) for head in heads):
            first = step
    return first, count


def without(found: dict[str, Any], changes: dict[str, Any]) -> int | None:
    """The guard's rule every 10 steps for heads that are changed in one respect."""
    for step, heads in heads_at(found, lambda _: EVERY):
        if any(in_trouble(replace(each, **changes), TAU, HORIZON) for each in heads):
            return step
    return None


def fastest(found: dict[str, Any]) -> float:
    """The largest pace of a head of which all but its pace asks for a warning, every 10 steps."""
    paces = [0.0]
    for _, heads in heads_at(found, lambda _: EVERY):
        close = [h for h in heads if in_trouble(replace(h, pace=math.inf), TAU, HORIZON)]
        paces += [head.pace for head in close if not math.isnan(head.pace)]
    return max(paces)


def by_default(found: dict[str, Any]) -> tuple[int | None, int]:
    """:func:`replayed` at the distances of a guard as it is by default."""
    return replayed(found, lambda heads: steps_to_next_measurement(heads, TAU, USUAL))


def shuffled(found: dict[str, Any], order: Iterable[int]) -> int | None:
    """The first step at which the guard's rule holds for measurements in another order."""
    tracks: dict[tuple[int, int], HeadGrowth] = {}
    for place, source in enumerate(order):
        for each in found["records"][source]:
            key = (each["layer"], each["head"])
            values = [each[name] for name in ("largest", "margin", "entropy", "norm", "turned")]
            track = tracks.setdefault(key, HeadGrowth(each["name"]))
            track.records.append(LogitRecord(place * EVERY, *values))
            if in_trouble(track.metrics(*key, TAU), TAU, HORIZON):
                return place * EVERY
    return None


def permuted(found: dict[str, Any], seed: int) -> int | None:
    """The first step at which the guard's rule holds for measurements in a random order."""
    order = np.random.default_rng(seed).permutation(len(found["records"]))
    return shuffled(found, order.tolist())


def usual(found: dict[str, Any]) -> int | None:
    """The first warning of a guard as it is by default: its own, or replayed."""
    if "default" in found:
        return min((each["step"] for each in found["default"]["alarms"]), default=None)
    return by_default(found)[0]


ALARMS: dict[str, Callable[[dict[str, Any]], int | None]] = {
    "guard": usual,
    "guard, replayed from every tenth step": lambda found: by_default(found)[0],
    "guard, measured every 10 steps": lambda found: without(found, {}),
    "guard, measured every 50 steps": lambda found: replayed(found, lambda _: USUAL)[0],
    "guard without the pace": lambda found: without(found, {"pace": math.inf}),
    "guard without the direction": lambda found: without(found, {"state": "unstable"}),
    "largest logit beyond 100": lambda found: beyond(found, 100.0),
    "gradient norm 3 times its median": lambda found: steep(found, 3.0),
    "loss .07 above its lowest": lambda found: rises(found, 0.07),
}


def judged(runs: list[dict[str, Any]], alarm: Callable[[dict[str, Any]], int | None]) -> list[str]:
    """Cells of one row: in time, median lead, false alarms, those of constant runs."""
    broken = [found for found in runs if breaks(found) is not None]
    healthy = [found for found in runs if breaks(found) is None]
    leads = []
    for found in broken:
        step = alarm(found)
        leads.append(-1 if step is None else int(breaks(found) or 0) - step)
    long = [found for found in healthy if found["cell"].get("constant")]
    false = [sum(alarm(found) is not None for found in some) for some in (healthy, long)]
    early = sum(lead >= LEAD for lead in leads)
    middle = f"{statistics.median(leads):.0f}" if leads else ""
    wrong = [f"{n} of {len(some)}" for n, some in zip(false, (healthy, long), strict=True)]
    return [f"{early} of {len(broken)}", middle, *wrong]


def table(folder: Path, firsts: list[int]) -> str:
    """Alarms, runs and arms of seeds, 10,000 from each of ``firsts`` on: tables in Markdown."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    mine = [r for r in found if any(0 <= r["cell"]["seed"] - n < 10_000 for n in firsts)]
    alone = [r for r in mine if r["cell"]["arm"] == "nothing"]
    chosen = {(kind, peaks[kind]) for kind in PEAKS for peaks in (BROKEN, HEALTHY)}
    chosen |= {(kind, peak) for (_, kind), peak in LOWEST.items() if min(firsts) >= 40_000}
    runs = [r for r in alone if (r["cell"]["optimizer"], r["cell"]["peak"]) in chosen]
    return "\n\n".join([alarm_table(runs), distances(runs), run_table(alone), arm_table(mine)])


def alarm_table(runs: list[dict[str, Any]]) -> str:
    head = ["alarm", f"at least {LEAD} steps before the break", "median lead", "false alarms"]
    head.append("of them at constant rates")
    rows = [[name, *judged(runs, alarm)] for name, alarm in ALARMS.items()]
    broken = [found for found in runs if breaks(found) is not None]
    healthy = len(runs) - len(broken)
    draws = [judged(runs, lambda found, s=s: permuted(found, s)) for s in range(5)]
    early, false = (statistics.fmean(float(row[c].split(" ")[0]) for row in draws) for c in (0, 2))
    rate = sum(usual(found) is not None for found in runs) / max(len(runs), 1)
    chance = sum(rate * max(int(breaks(found) or 0) - LEAD, 0) / STEPS for found in broken)
    for name, hits, wrong in (
        ("guard, measurements in random order", early, false),
        ("a random step, as often as the guard warns", chance, rate * healthy),
    ):
        rows.append([name, f"{hits:.1f} of {len(broken)}", "", f"{wrong:.1f} of {healthy}", ""])
    return _markdown(head, rows)


def distances(runs: list[dict[str, Any]]) -> str:
    """How often a guard measures by default, in runs that break and in healthy ones."""
    parts: dict[str, list[dict[str, Any]]] = {"break": [], "healthy": [], "at constant rates": []}
    for found in runs:
        long = "at constant rates" if found["cell"].get("constant") else "healthy"
        parts["break" if breaks(found) is not None else long].append(found)
    told = []
    for name, some in parts.items():
        taken = sum(r["default"]["measured"] if "default" in r else by_default(r)[1] for r in some)
        steps = sum(len(r["losses"]) for r in some)
        told.append(f"{name} {steps / max(taken, 1):.1f}")
    return f"steps from one measurement to the next, by default: {', '.join(told)}"


def run_table(runs: list[dict[str, Any]]) -> str:
    head = ["data", "W_Q, W_K by", "peak", "break at step", "warned at step"]
    head += ["largest pace of a head that is close", "held-out loss"]
    rows = []
    for condition in sorted({_condition(found) for found in runs}):
        some = [found for found in runs if _condition(found) == condition]
        steps = [
            ", ".join("-" if f(r) is None else str(f(r)) for r in some) for f in (breaks, usual)
        ]
        paces = ", ".join(f"{fastest(r):.2f}" for r in some)
        ends = ", ".join(f"{r['final']:.3f}" for r in some)
        rows.append([*map(str, condition), *steps, paces, ends])
    return _markdown(head, rows)


def arm_table(runs: list[dict[str, Any]]) -> str:
    """Held-out losses of the arms, a mean over seeds with the range of each clip less QK-norm."""
    ends: dict[tuple[Any, ...], dict[str, dict[int, float]]] = {}
    for found in runs:
        cell = found["cell"]
        arm = f"{cell['arm']}, tau {cell['tau']:g}" if cell["arm"] in CLIPS else cell["arm"]
        ends.setdefault(_condition(found), {}).setdefault(arm, {})[cell["seed"]] = found["final"]
    rows = []
    for condition, arms in sorted(ends.items()):
        for arm, losses in arms.items():
            less = [losses[s] - x for s, x in arms.get("qknorm", {}).items() if s in losses]
            if less and arm != "qknorm":
                spread = [f"{f(less):+.3f}" for f in (statistics.fmean, min, max)]
                mean = f"{statistics.fmean(losses.values()):.3f}"
                rows.append([*map(str, condition), arm, str(len(less)), mean, *spread])
    head = ["data", "W_Q, W_K by", "peak", "arm", "seeds", "held-out loss", "less QK-norm"]
    return _markdown([*head, "least", "largest"], rows)


def _condition(found: dict[str, Any]) -> tuple[str, str, float]:
    cell = found["cell"]
    kind = f"{cell['optimizer']}, constant" if cell.get("constant") else cell["optimizer"]
    return cell["data"], kind, cell["peak"]


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def joined(ends: list[tuple[float, str, str]], axes: Axes) -> list[tuple[float, str, str]]:
    """Labels of lines, one for two lines that end within 1 % of the axis of each other."""
    height = (axes.transData + axes.transAxes.inverted()).transform
    found: list[tuple[float, str, str]] = []
    for value, name, colour in sorted(ends):
        if found and height((0, value))[1] - height((0, found[-1][0]))[1] < 0.01:
            _, other, _ = found.pop()
            name, colour = f"{other} and\n{name}", INK
        found.append((value, name, colour))
    return found


def figure(folder: Path, out: Path, seed: int = 20_000) -> None:
    """Loss and largest logit of one run as it is, clipped, and with normalised queries and keys."""
    cell = Cell("shakespeare", "adamw", BROKEN["adamw"], "nothing", seed)
    arms = {
        "nothing": (cell, "#b3261e"),
        "K2's rule": (replace(cell, arm="clip", tau=CLIP_TAU), "#b07c1e"),
        "clip": (replace(cell, arm="shorten", tau=SHORTEN_TAU), "#1f5fa8"),
        "QK-norm": (replace(cell, arm="qknorm"), "#6b6b6b"),
    }
    steps: dict[str, int | None] = {}
    with canvas(3.6, 1, 2, width=8.0) as (drawing, axes):
        ends: tuple[list[tuple[float, str, str]], ...] = ([], [])
        for name, (one, colour) in arms.items():
            found = json.loads((folder / f"{one.name}.json").read_text(encoding="utf-8"))
            if name == "nothing":
                steps = {"warning": warned(found), "break": breaks(found)}
            means = course(found)
            peaks = [max(h["largest"] for h in heads) for heads in found["records"]]
            axes[0].plot(range(WINDOW - 1, STEPS), means, color=colour)
            axes[1].plot(range(0, STEPS, EVERY), peaks, color=colour)
            for side, values in enumerate((means, peaks)):
                ends[side].append((float(values[-1]), name, colour))
        logarithmic(axes[1].yaxis, np.array([1.0, 1e5]))
        for bound, colour in ((CLIP_TAU, "#b07c1e"), (SHORTEN_TAU, "#1f5fa8")):
            axes[1].axhline(bound, color=colour, linewidth=0.8, linestyle="--")
        titles = ("training loss, nats", "largest logit (dashed: where it is clipped)")
        for side, heights in enumerate(((0.92, 0.92), (0.92, 0.5))):
            axes[side].set_title(titles[side], loc="left")
            axes[side].set_xlabel("step")
            axes[side].set_xlim(0, STEPS)
            label_ends(axes[side], joined(ends[side], axes[side]), spacing=0.07)
            for (word, step), height in zip(steps.items(), heights, strict=True):
                axes[side].axvline(step, color="#6b6b6b", linewidth=0.8, linestyle=":")
                axes[side].annotate(
                    word,
                    (step, height),
                    xycoords=("data", "axes fraction"),
                    xytext=(4, 0),
                    textcoords="offset points",
                )
        drawing.savefig(out, dpi=160, metadata={"Software": None})


def overhead(text: Path, steps: int = 600) -> None:
    """CPU seconds of a step without guard, and with a guard as it is by default on steps that it
    measures and on others; three trainings in turns, the third with an own guard for each step.
    """
    ids, kinds = characters(text)
    nets, optimizers = [], []
    for _ in range(3):
        torch.manual_seed(0)
        nets.append(Decoder(kinds))
        optimizers.append(optimizer_of(nets[-1], "adamw", RATE))
    default = LogitGuard(nets[1], optimizer=optimizers[1])
    LogitGuard(nets[2], every=1, optimizer=optimizers[2])
    times: dict[str, list[float]] = {"plain": [], "default": [], "measured": []}
    taken_at: list[int] = []
    for step, batch in zip(range(steps), batches(ids, 0), strict=False):
        turns = list(zip(nets, optimizers, times, strict=True))
        for net, optimizer, kind in turns[step % 3 :] + turns[: step % 3]:
            start = time.process_time()
            optimizer.zero_grad()
            loss_of(net, batch).backward()
            optimizer.step()
            times[kind].append(time.process_time() - start)
        taken_at += [step] if default.measured == step else []
    count = len(taken_at)
    plain, left, measured = (statistics.median(taken[10:]) for taken in times.values())
    print(f"step {1e3 * plain:.2f} ms, with an idle guard {1e3 * left:.2f} ms", end=", ")
    print(f"measured {1e3 * measured:.2f} ms; {count} of {steps} steps were measured by default")
    shares = {f"every {n} steps": 1 / n for n in (1, 10, 50)} | {"by default": count / steps}
    for name, share in shares.items():
        extra = ((1 - share) * left + share * measured) / plain - 1
        print(f"{name}: {100 * extra:+.1f} %")
    whole = sum(times["default"][10:]) / sum(times["plain"][10:]) - 1
    for many in (100, 300):
        print(f"of the first {many} steps {sum(each < many for each in taken_at)} were measured")
    print(f"whole training, by default, less one without a guard: {100 * whole:+.1f} %")


PLANS = {"sweep": lambda rounds: sweep(), "verdict": verdict, "clips": clips, "pace": pace}
PLANS["default"] = lambda rounds: pace(rounds, 50_000)
PLANS["again"] = lambda rounds: pace(rounds, 70_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("what", choices=[*PLANS, "table", "figure", "overhead"])
    parser.add_argument("--runs", type=Path, default=Path("runs/guard"))
    parser.add_argument("--shakespeare", type=Path, help="the text of tinyshakespeare")
    parser.add_argument("--wikitext", type=Path, help="a text of wikitext2, .xz or not")
    parser.add_argument("--rounds", type=int, default=3, help="seeds of the verdict per cell")
    parser.add_argument(
        "--first", type=int, nargs="+", default=[10_000], help="first seeds of the table"
    )
    parser.add_argument("--out", type=Path, default=Path("guard.png"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    texts = {"shakespeare": given.shakespeare, "wikitext": given.wikitext}
    needed = {"table": (), "figure": (), "overhead": DATA[:1]}.get(given.what, DATA)
    missing = [name for name in needed if texts[name] is None or not texts[name].is_file()]
    if missing:
        sys.exit(f"--{missing[0]} names no file; give the path of the text")
    if given.what in PLANS:
        make(PLANS[given.what](given.rounds), given.runs, texts)
    elif given.what == "table":
        print(table(given.runs, given.first))
    elif given.what == "figure":
        figure(given.runs, given.out)
    else:
        overhead(given.shakespeare)


if __name__ == "__main__":
    main()
