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

from attsvm.datasets.bags import Bags

ASKED = {"musk1": 2.0, "elephant": 5.0, "100 x 50 x 64": None, "10,000 x 50 x 64": 60.0}
LARGE = "10,000 x 50 x 64"


def _fits() -> dict[str, Any]:
    """Fits without a choice of hyper-parameters, except those that a method makes itself."""
    import ours

    found: dict[str, Any] = {
        "attsvm collective, context": ours.METHODS["attsvm collective, context"],
        "attsvm collective": ours.GRADED["attsvm collective"],
        "attsvm standard": one_by_one(ours.Ours, [{"assumption": "standard"}]),
    }
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


def run(folder: Path, data: Path, say: Callable[[str], None], until: float) -> None:
    """CPU and wall seconds of each fit, the better of two; the large one is timed once, without
    NSK, whose kernel needs the square of its instances: a hundred bags show its ratio.
    """
    path = folder / "speed.json"
    answers = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for name in ASKED:
        bags, y = (
            made(int(name.split()[0].replace(",", ""))) if " x " in name else sets.load(name, data)
        )
        bags = Scale.of(bags.rows)(bags)
        for method, fit in _fits().items():
            if (name == LARGE and method == "sawmil NSK") or method in answers.get(name, {}):
                continue
            if time.monotonic() > until:
                return
            times = []
            for _ in range(1 if name == LARGE else 2):
                cpu, wall = time.process_time(), time.perf_counter()
                next(fit(bags, y, [np.arange(bags.n)], 0))
                times.append([time.process_time() - cpu, time.perf_counter() - wall])
            answers.setdefault(name, {})[method] = min(times)
            path.write_text(json.dumps(answers), encoding="utf-8")
            say(f"speed {name} {method}: {min(times)}")


def table(folder: Path, show: Callable[[list[str], list[list[str]]], None]) -> None:
    """Seconds, and what part of the peers' they are."""
    if not (folder / "speed.json").exists():
        return
    for name, found in json.loads((folder / "speed.json").read_text(encoding="utf-8")).items():
        asked = "no bound" if ASKED[name] is None else f"a fit within {ASKED[name]:g} s"
        print(f"{name}: {asked}\n")
        peers = [found.get(peer, [np.nan])[0] for peer in ("attention-MIL", "sawmil NSK")]
        show(
            ["method", "CPU s", "wall s", "CPU, attention-MIL = 1", "CPU, sawmil NSK = 1"],
            [
                [m, f"{c:.2f}", f"{w:.2f}", *(f"{c / peer:.2f}" for peer in peers)]
                for m, (c, w) in found.items()
            ],
        )
