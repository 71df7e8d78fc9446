"""How long one fit takes, in one process and one run, beside NSK of sawmil and attention-MIL."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import sets
from shared import Scale, one_by_one

from attsvm.bags import Bags

BARS = {"musk1": 2.0, "elephant": 5.0, "10,000 x 50 x 64": 60.0}


def _fits() -> dict[str, Any]:
    """Fits without a choice of hyper-parameters, except those that a method makes itself."""
    import ours

    found: dict[str, Any] = dict(ours.METHODS)
    try:
        import attention

        found |= {name: fit for name, fit in attention.METHODS.items() if name == "attention-MIL"}
        from sawmil_peers import Sawmil

        found["sawmil NSK"] = one_by_one(Sawmil, [{"name": "NSK", "C": 100.0}])
    except ImportError:
        pass
    return found


def made(n: int = 10_000, instances: int = 50, d: int = 64) -> tuple[Bags, Any]:
    """Bags with a linear witness."""
    from attsvm.datasets import planted_witnesses

    bags = planted_witnesses("linear", n, instances, 0, d=d)
    return bags, bags.labels


def run(folder: Path, data: Path, say: Callable[[str], None]) -> None:
    """CPU and wall seconds of each fit, the better of two; the large one is timed once, and only
    for attsvm and attention-MIL, because the kernel of NSK needs the square of its instances.
    """
    answers: dict[str, dict[str, list[float]]] = {}
    for name in BARS:
        bags, y = made() if "x" in name else sets.load(name, data)
        bags = Scale.of(bags.rows)(bags)
        for method, fit in _fits().items():
            if "x" in name and method == "sawmil NSK":
                continue
            times = []
            for _ in range(1 if "x" in name else 2):
                cpu, wall = time.process_time(), time.perf_counter()
                next(fit(bags, y, [np.arange(bags.n)], 0))
                times.append([time.process_time() - cpu, time.perf_counter() - wall])
            answers.setdefault(name, {})[method] = min(times)
            say(f"speed {name} {method}: {min(times)}")
    (folder / "speed.json").write_text(json.dumps(answers), encoding="utf-8")


def table(folder: Path, show: Callable[[list[str], list[list[str]]], None]) -> None:
    """Seconds, and their ratio to the attention network's."""
    if not (folder / "speed.json").exists():
        return
    for name, found in json.loads((folder / "speed.json").read_text(encoding="utf-8")).items():
        print(f"{name}: a fit within {BARS[name]:g} s\n")
        peer = found.get("attention-MIL", [float("nan")])[0]
        show(
            ["method", "CPU s", "wall s", "CPU, attention-MIL = 1"],
            [[m, f"{c:.2f}", f"{w:.2f}", f"{c / peer:.2f}"] for m, (c, w) in found.items()],
        )
