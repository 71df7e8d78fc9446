"""How long the first call takes beside the second, as a notebook or a command feels it.

    python benchmarks/first_call.py
    python benchmarks/first_call.py --checkout ../former   # another checkout of the library

Every row is a process of its own with an empty home, so that nothing is read from a cache, and the
least of ``--repeat``. Wall seconds: of ``import attsvm`` with the names that the call needs, of the
first call, of the second, and what the first took more. What the preparation leaves to the garbage
collector (torch is imported there) is collected before the first call.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

DATA = """
import numpy as np
data, v = attsvm.datasets.unit_sphere({n}, {T}, {d}, seed=0)
tokens = attsvm.optimal_tokens(data, v)
margins = attsvm.selection_margins(data, tokens)
"""
SIZES = {"S": (6, 8, 10), "M": (20, 16, 32)}
NORMS = ("fro", "nuc", "spec", "l1", "linf", "lp:1.75")
TRAIN = (
    "from attsvm import train",
    DATA.format(n=6, T=8, d=10) + "model = attsvm.attention.Attention.cross(data, head=v);"
    "descent = attsvm.optim.SteepestDescent([model.W], lr=0.1)",
    "train(model, data, descent, steps=100, progress=False)",
)
STEP = (
    "import torch; from attsvm.optim import MirrorDescent",
    "w = torch.nn.Parameter(torch.randn(200, 100)); w.grad = torch.randn(200, 100);"
    "optimizer = MirrorDescent([w], lr=0.1, p=1.1)",
    "optimizer.step()",
)
FIT = (
    "from attsvm.sklearn import AttentionSVC; import numpy as np",
    "rng = np.random.default_rng(0); y = np.tile([0, 1], 20);"
    "X = [rng.standard_normal((5, 8)) + label for label in y]",
    "AttentionSVC().fit(X, y)",
)
PROGRAM = """
import gc, json, time
began = time.perf_counter()
import attsvm
attsvm.max_margin
{imports}
imported = time.perf_counter() - began
{prepare}
gc.collect()
times = []
for _ in range(2):
    began = time.perf_counter()
    {call}
    times.append(time.perf_counter() - began)
print(json.dumps([imported, *times]))
"""


def rows() -> dict[str, tuple[str, str, str]]:
    """Imports, preparation and call of every row."""
    found = {}
    for size, (n, T, d) in SIZES.items():
        for norm in NORMS:
            call = f"attsvm.max_margin(margins, {norm!r})"
            found[f"max_margin {norm} {size}"] = ("", DATA.format(n=n, T=T, d=d), call)
    found |= {"train": TRAIN, "optimiser step": STEP, "AttentionSVC.fit": FIT}
    return found


def measured(imports: str, prepare: str, call: str, source: Path | None) -> list[float]:
    """Seconds of import, first and second call in a process that finds nothing compiled."""
    with tempfile.TemporaryDirectory() as home:
        environment = {
            name: value for name, value in os.environ.items() if name != "XDG_CACHE_HOME"
        }
        environment |= {"HOME": home, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        if source is not None:
            environment["PYTHONPATH"] = str(source / "src")
        program = PROGRAM.format(imports=imports, prepare=prepare, call=call)
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkout", type=Path, help="of the library; the installed one if none")
    parser.add_argument("--repeat", type=int, default=3, help="processes of each row")
    parser.add_argument("--only", default="", help="rows whose name has this in it")
    options = parser.parse_args()
    print("| call | import s | first s | second s | more s |\n|---|---|---|---|---|")
    for name, row in rows().items():
        if options.only in name:
            runs = [measured(*row, options.checkout) for _ in range(options.repeat)]
            imported, first, second = map(min, zip(*runs, strict=True))
            print(
                f"| {name} | {imported:.2f} | {first:.3f} | {second:.4f} | {first - second:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
