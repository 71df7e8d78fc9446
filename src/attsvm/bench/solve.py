"""The solver benchmark: which solver reaches which certified accuracy, how often, and in how much
CPU time.

A cell is one solver asked for one accuracy on one instance. A solver that meets its own tolerance
but not the certificate has not reached the accuracy, and one that surpasses it counts for every
accuracy that it reached: the table shows the quickest run that did.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm.bench.entrants import OURS, PEERS, Answer, Peer
from attsvm.bench.instances import SIZES, RefusedError, random_instance
from attsvm.bench.record import Cells, digits, duration, load, markdown
from attsvm.bench.worker import FAILED, OVER, Worker, cpu_limit
from attsvm.data import FloatArray
from attsvm.errors import InputError
from attsvm.geometry import Norm, parse_norm
from attsvm.geometry.lifts import Entrywise, Lifted, RowLengths, SingularValues
from attsvm.margins import Margins


def certified_gap(margins: Margins, norm: Norm, W: FloatArray, dual: FloatArray) -> float:
    """The gap of weights ``(d_x, d_z)`` and multipliers ``(m,)``, negative ones counted as zero; 1
    when nothing is proved.
    """
    upper, lower = upper_bound(margins, norm, W), lower_bound(margins, norm, dual)
    if not (np.isfinite(upper) and upper > 0.0 and np.isfinite(lower)):
        return 1.0
    return min(1.0, max(0.0, 1.0 - lower / upper))


def upper_bound(margins: Margins, norm: Norm, W: FloatArray) -> float:
    r""":math:`\|W\|/\mu`; ``inf`` without a positive margin."""
    if W.shape != margins.shape or not np.isfinite(W).all():
        return float("inf")
    moved = margins.queries @ W.T
    smallest = float(np.einsum("cd,cd->c", margins.differences, moved[margins.sequence]).min())
    return _value(norm, W) / smallest if smallest > 0.0 else float("inf")


def lower_bound(margins: Margins, norm: Norm, dual: FloatArray) -> float:
    r""":math:`\mathbf 1^\top\lambda/\|A^\top\lambda\|_*`; 0 for multipliers that prove nothing."""
    if dual.shape != (margins.m,) or not np.isfinite(dual).all():
        return 0.0
    lam = np.maximum(dual, 0.0)
    pulled = np.zeros((margins.n, margins.shape[0]))
    np.add.at(pulled, margins.sequence, lam[:, None] * margins.differences)
    bottom = _value(norm, pulled.T @ margins.queries, dual=True)
    return float(lam.sum()) / bottom if bottom > 0.0 else 0.0


def _value(norm: Norm, W: FloatArray, *, dual: bool = False) -> float:
    numbers = _numbers(norm, W)
    if numbers is None or not isinstance(norm, Lifted):
        return float(norm.dual_value(W) if dual else norm.value(W))
    p = norm.p
    if dual:
        p = np.inf if p == 1.0 else 1.0 if np.isinf(p) else p / (p - 1.0)
    return float(np.linalg.norm(numbers, p))


def _numbers(norm: Norm, W: FloatArray) -> FloatArray | None:
    """The vector whose p-norm a norm of the library is."""
    if isinstance(norm, Entrywise):
        return W.ravel()
    if isinstance(norm, SingularValues):
        return np.asarray(np.linalg.svd(W, compute_uv=False))
    return np.asarray(np.linalg.norm(W, axis=1)) if isinstance(norm, RowLengths) else None


Progress = Callable[[str, int, int], None]

FINISHED, REFUSED, MISSING, NOT_TRIED = "finished", "refused", "not installed", "not tried"
MANY = "many"
"""The size name of the batch of small programmes."""

_WARM_UP = (2, 3, 4)
_REPEAT_BELOW = 0.1  # a solve shorter than this many CPU seconds is repeated, and its median counts
_REPEATS = 5


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        norms: as on the command line.
        sizes: names of ``SIZES``.
        accuracies: certified gaps asked for, each in (0, 1).
        seeds: instances per size; ``None`` for three of size S and one of each larger size.
        seconds: CPU limit of one solve.
        peers: names of contestants.
        batch: programmes of size S in the benchmark of many small ones, which is asked for the
            finest accuracy; 0 leaves it out.
        threads: of every solver.
    """

    norms: tuple[str, ...]
    sizes: tuple[str, ...]
    accuracies: tuple[float, ...]
    seeds: int | None
    seconds: float
    peers: tuple[str, ...]
    batch: int
    threads: int

    def __post_init__(self) -> None:
        for norm in self.norms:
            parse_norm(norm)
        for size in self.sizes:
            if size not in SIZES:
                raise InputError(f"unknown size {size!r}; known sizes: {', '.join(SIZES)}")
        for accuracy in self.accuracies:
            if not 0.0 < accuracy < 1.0:
                raise InputError(
                    f"accuracy {accuracy:g} is not a relative gap; give numbers between 0 and 1,"
                    " such as 1e-6"
                )

    def instances(self, size: str) -> int:
        """How many instances of a size are drawn."""
        return self.seeds or (3 if size == "S" else 1)


def identities(plan: Plan, name: str, peer: Peer) -> Iterator[dict[str, Any]]:
    """The cells of one contestant, easiest first: what is over the limit there need not be tried
    harder.
    """
    for norm in plan.norms:
        if not peer.takes(parse_norm(norm)):
            continue
        sizes = sorted(plan.sizes, key=list(SIZES).index)
        accuracies = (
            sorted(plan.accuracies, reverse=True) if peer.tolerance else [min(plan.accuracies)]
        )
        if plan.batch and peer.batch is not None:
            yield {
                "solver": name,
                "norm": norm,
                "size": MANY,
                "count": plan.batch,
                "seed": 0,
                "asked": accuracies[-1],
            }
        for size in sizes:
            for asked in accuracies:
                for seed in range(plan.instances(size)):
                    yield {
                        "solver": name,
                        "norm": norm,
                        "size": size,
                        "count": 1,
                        "seed": seed,
                        "asked": asked,
                    }


def run(
    plan: Plan, cells: Cells, progress: Progress, peers: Mapping[str, Peer] = PEERS
) -> list[dict[str, Any]]:
    """Every cell of the plan, measured or taken from ``cells``."""
    todo = {name: list(identities(plan, name, peers[name])) for name in plan.peers}
    total, done = sum(map(len, todo.values())), 0
    results: list[dict[str, Any]] = []
    for name, wanted in todo.items():
        missing = peers[name].missing()
        work = functools.partial(measure, peers[name], norms=tuple(map(parse_norm, plan.norms)))
        with Worker(work, threads=plan.threads) as worker:
            mine: list[dict[str, Any]] = []
            for identity in wanted:
                cell = cells.get(identity)
                if cell is None:
                    progress("solve", done, total)
                    cell = cells.put(identity, _cell(identity, mine, missing, worker, plan.seconds))
                mine.append(cell)
                done += 1
            results += mine
    progress("solve", total, total)
    return results


def _cell(
    identity: dict[str, Any],
    earlier: list[dict[str, Any]],
    missing: list[str],
    worker: Worker,
    seconds: float,
) -> dict[str, Any]:
    if missing:
        return {"outcome": MISSING, "reason": f"{', '.join(missing)}: pip install 'attsvm[peers]'"}
    easier = next((cell for cell in earlier if _easier(cell, identity)), None)
    if easier is not None:
        return {
            "outcome": NOT_TRIED,
            "reason": f"{easier['outcome']} at {easier['size']}, {easier['asked']:.0e}",
        }
    before = load()
    result = worker(identity, seconds * identity["count"])
    return {**result, "load": [before, load()]}


def _easier(cell: dict[str, Any], identity: dict[str, Any]) -> bool:
    """Whether ``cell`` was over the limit at an easier task: a smaller size or the same instance,
    at no finer accuracy.
    """
    if (
        cell["outcome"] != OVER
        or cell["norm"] != identity["norm"]
        or cell["asked"] < identity["asked"]
    ):
        return False
    if cell["size"] == identity["size"]:
        return bool(cell["seed"] == identity["seed"])
    return MANY not in (cell["size"], identity["size"])


def measure(
    peer: Peer, job: tuple[dict[str, Any], float], norms: Sequence[Norm] = ()
) -> dict[str, Any]:
    """Solve one cell in this process, under its CPU limit, and certify the answer; a short solve is
    repeated.

    ``norms`` bring their classes with them into a process that has not imported them.
    """
    identity, seconds = job
    norm, asked = parse_norm(identity["norm"]), identity["asked"]
    size = "S" if identity["size"] == MANY else identity["size"]
    many = [random_instance(*SIZES[size], identity["seed"] + k) for k in range(identity["count"])]
    solve = functools.partial(_solve, peer, many, norm, asked, batch=identity["size"] == MANY)
    _warm_up(peer, identity["norm"])
    try:
        with cpu_limit(seconds):
            elapsed, answers = _timed(solve)
    except RefusedError as reason:
        return {"outcome": REFUSED, "reason": str(reason)}
    # Under the limit CPU time is counted in ticks of milliseconds, see worker: a short solve is
    # timed again without it.
    times = [elapsed] if elapsed > _REPEAT_BELOW else []
    while len(times) < _REPEATS and sum(times) < _REPEAT_BELOW:
        elapsed, answers = _timed(solve)
        times.append(elapsed)
    gaps, own = [], True
    for margins, (W, dual) in zip(many, answers, strict=True):
        own = own and dual is not None
        lam = _our_bound(margins, norm) if dual is None else np.asarray(dual)
        gaps.append(certified_gap(margins, norm, np.asarray(W), lam))
    return {
        "outcome": FINISHED,
        "seconds": statistics.median(times),
        "repeats": len(times),
        "gaps": gaps,
        "multipliers": "its own" if own else OURS,
    }


def _timed(solve: Callable[[], list[Answer]]) -> tuple[float, list[Answer]]:
    """CPU seconds of all threads, and the answers."""
    start = time.process_time()
    answers = solve()
    return time.process_time() - start, answers


@functools.cache
def _warm_up(peer: Peer, norm: str) -> None:
    """Imports and compilation, once per process and norm; a failure shows again where it counts."""
    tiny = [random_instance(*_WARM_UP, 0)]
    for batch in (False, True) if peer.batch else (False,):
        with contextlib.suppress(Exception):
            _solve(peer, tiny, parse_norm(norm), 1e-3, batch=batch)


def _solve(
    peer: Peer, many: list[Margins], norm: Norm, asked: float, *, batch: bool
) -> list[Answer]:
    if batch and peer.batch is not None:
        return peer.batch(many, norm, asked)
    return [peer.solve(margins, norm, asked) for margins in many]


def _our_bound(margins: Margins, norm: Norm) -> FloatArray:
    """Our multipliers, for solvers that report none."""
    dual = PEERS[OURS].solve(margins, norm, 1e-10)[1]
    assert dual is not None
    return dual


def summary(plan: Plan, cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per norm, size, solver and accuracy: success rate, median CPU seconds of the
    successes, what stopped the others.
    """
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for cell in cells:
        groups.setdefault((cell["norm"], cell["size"], cell["solver"]), []).append(cell)
    rows = []
    for (norm, size, solver), group in groups.items():
        for accuracy in sorted(plan.accuracies, reverse=True):
            shares, times = _successes(group, accuracy)
            finished = [max(cell["gaps"]) for cell in group if cell["outcome"] == FINISHED]
            rows.append(
                {
                    "norm": norm,
                    "size": size,
                    "solver": solver,
                    "accuracy": accuracy,
                    "success_rate": statistics.fmean(shares),
                    "seconds": statistics.median(times) if times else None,
                    "best_gap": min(finished, default=None),
                    "stopped_by": None if times else _stopped_by(group),
                    "multipliers": next(
                        (cell["multipliers"] for cell in group if cell["outcome"] == FINISHED), None
                    ),
                }
            )
    return rows


def _successes(group: list[dict[str, Any]], accuracy: float) -> tuple[list[float], list[float]]:
    """Share of programmes that reached the accuracy and the quickest time of it, instance by
    instance.
    """
    shares, times = [], []
    for seed in sorted({cell["seed"] for cell in group}):
        runs = [cell for cell in group if cell["seed"] == seed and cell["outcome"] == FINISHED]
        shares.append(
            max((float(np.mean(np.array(cell["gaps"]) <= accuracy)) for cell in runs), default=0.0)
        )
        whole = [cell["seconds"] for cell in runs if max(cell["gaps"]) <= accuracy]
        times += [min(whole)] if whole else []
    return shares, times


def _stopped_by(group: list[dict[str, Any]]) -> str:
    """The outcome to name when no run reached the accuracy."""
    outcomes = {cell["outcome"] for cell in group}
    if MISSING in outcomes:
        return MISSING
    for outcome in (OVER, FAILED, REFUSED):
        if outcome in outcomes:
            return outcome
    return OVER if NOT_TRIED in outcomes else "fell short"


def tables(plan: Plan, rows: list[dict[str, Any]], cells: list[dict[str, Any]]) -> str:
    """Markdown: a table per norm and size, then what stopped whom."""
    accuracies = sorted(plan.accuracies, reverse=True)
    parts = []
    for norm, size in dict.fromkeys(
        (row["norm"], row["size"]) for row in sorted(rows, key=lambda row: _order(plan, row))
    ):
        chosen = [row for row in rows if (row["norm"], row["size"]) == (norm, size)]
        ours = {row["accuracy"]: row["seconds"] for row in chosen if row["solver"] == OURS}
        lines = []
        for solver in dict.fromkeys(row["solver"] for row in chosen):
            mine = {row["accuracy"]: row for row in chosen if row["solver"] == solver}
            row = mine[accuracies[0]]
            mark = "" if row["multipliers"] in (None, "its own") else " †"
            best = "" if row["best_gap"] is None else f"{row['best_gap']:.0e}"
            lines.append(
                [
                    solver + mark,
                    *(_entry(mine[accuracy], ours.get(accuracy)) for accuracy in accuracies),
                    best,
                ]
            )
        parts.append(f"**{_title(plan, norm, size)}**\n")
        parts.append(
            markdown(
                ["solver", *(f"gap {accuracy:.0e}" for accuracy in accuracies), "best gap"], lines
            )
            + "\n"
        )
    parts.append(
        "CPU seconds of a whole call (median over the instances that reached the accuracy), in"
        " brackets over ours, then the share of instances whose certified gap reached the accuracy"
        " within the limit. The gap is recomputed from weights, multipliers and data with one"
        f" formula for everybody; limit {plan.seconds:g} CPU s per solve."
    )
    if any(row["multipliers"] == OURS and row["solver"] != OURS for row in rows):
        parts.append("† reports no multipliers: certified against our lower bound.")
    parts += _reasons(cells)
    return "\n".join(parts)


def _entry(row: dict[str, Any], ours: float | None) -> str:
    share = f"{100 * row['success_rate']:.0f}%"
    if row["seconds"] is None:
        return f"{row['stopped_by']}, {share}" if row["stopped_by"] != MISSING else MISSING
    ratio = f" ({digits(row['seconds'] / ours)}x)" if ours and row["solver"] != OURS else ""
    return f"{duration(row['seconds'])}{ratio}, {share}"


def _title(plan: Plan, norm: str, size: str) -> str:
    if size == MANY:
        return f"{norm}, {plan.batch} programmes of size S in one call"
    (n, T, d), count = SIZES[size], plan.instances(size)
    return (
        f"{norm}, {size}: (n, T, d) = ({n}, {T}, {d}), {n * (T - 1)} constraints, {count}"
        f" instance{'s' if count > 1 else ''}"
    )


def _order(plan: Plan, row: dict[str, Any]) -> tuple[int, int]:
    return plan.norms.index(row["norm"]), (
        -1 if row["size"] == MANY else list(SIZES).index(row["size"])
    )


def _reasons(cells: list[dict[str, Any]]) -> list[str]:
    """Each failure in words, once per solver, norm and size."""
    told: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        if cell["outcome"] in (FAILED, REFUSED, MISSING) and cell["reason"]:
            where = told.setdefault((cell["solver"], cell["reason"]), [])
            place = f"{cell['norm']} {cell['size']}"
            where += [place] if place not in where else []
    lines = [
        f"- {solver}: {reason} ({', '.join(where)})" for (solver, reason), where in told.items()
    ]
    return ["", *lines] if lines else []
