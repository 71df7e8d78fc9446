"""This checkout beside another one of the same library: CPU time and memory of the same calls.

    git worktree add ../former f3dc63a
    python benchmarks/against_commit.py ../former --parts solve,step,train,start --rounds 7

Both run under this interpreter with one thread. A round starts one process for each checkout, in an
order that changes from round to round, and a process measures every row of a part: the least CPU
time of a few calls after one that compiles. The ratio of a row is the median over rounds of this
checkout's time over the other's, with its quartiles; a row counts as slower where the lower
quartile is above 1.05. Memory is the peak of a call beyond what its process held before; of the
part ``start``, that of the process. ``null`` rows use no code of the library: they show the noise.
The difference is that of gaps and sizes of weights, relative above one. A ``CHECKOUT`` that is this
one is a null of all rows.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
BAR = 1.05
NORMS = ("fro", "l1", "lp:1.1", "lp:1.75", "lp:3", "linf", "nuc", "spec", "schatten:3")
SOFT = ("fro", "l1", "lp:1.75", "linf")
STARTS = {
    "null: python -c pass": ["-c", "pass"],
    "null: import numpy, scipy.linalg, numba": ["-c", "import numpy, scipy.linalg, numba"],
    "null: import torch": ["-c", "import torch"],
    "import attsvm": ["-c", "import attsvm"],
    "attsvm.max_margin": ["-c", "import attsvm; attsvm.max_margin"],
    "attsvm.train": ["-c", "import attsvm; attsvm.train"],
    "attsvm --version": ["-m", "attsvm", "--version"],
    "attsvm solve --help": ["-m", "attsvm", "solve", "--help"],
    "attsvm fit --help": ["-m", "attsvm", "fit", "--help"],
}
Job = tuple[str, Callable[[], Any]]


def solve_rows() -> Iterator[Job]:
    """Programmes of the sizes of ``peers.py`` in every norm, and of every kind."""
    import numpy as np

    import attsvm
    from attsvm.datasets.next_token import bipartite
    from programmes import SIZES, random_instance

    parse, solve = attsvm.parse_norm, attsvm.max_margin
    sizes = {"tiny": (2, 3, 4), **{name: SIZES[name] for name in ("S", "M", "L")}}
    for size, shape in sizes.items():
        programme = random_instance(*shape, 0)
        yield f"{size}: the programme from data", partial(random_instance, *shape, 0)
        for norm in NORMS:
            yield f"{size} {norm}", partial(solve, programme, parse(norm))
        if size in ("S", "M"):
            for norm in SOFT:
                # one instance more or less in Newton's favour says nothing: several
                some = [random_instance(*shape, seed) for seed in range(4)]
                work = partial(each_of, solve, some, parse(norm), slack=0.1)
                yield f"{size} {norm}, soft, four instances", work
    many = [random_instance(*sizes["S"], seed) for seed in range(50)]
    for norm in ("fro", "l1", "lp:1.75", "linf", "nuc", "spec"):
        yield f"50 of S at once, {norm}", partial(solve, many, parse(norm))
    data, v = attsvm.datasets.unit_sphere(*sizes["M"], seed=0)
    scores = data.labels[:, None] * (data.tokens @ v).reshape(data.n, -1)
    sets = scores >= np.sort(scores, axis=1)[:, -2:-1]
    equal = attsvm.multi_token_margins(data, sets)
    for norm in ("fro", "l1", "lp:1.75", "nuc", "spec"):
        yield f"M {norm}, equalities", partial(solve, equal, parse(norm))
    none = random_instance(20, 8, 3, 0)
    for norm in ("fro", "l1", "lp:1.75", "nuc", "spec"):
        yield f"no solution, {norm}", partial(solve, none, parse(norm))
    programme, sentences = random_instance(*sizes["M"], 0), bipartite(20)
    exponents = [parse(f"lp:{p}") for p in (2, 1.75, 1.5, 1.3, 1.1)]
    yield "M, a path over five norms", partial(attsvm.margin_path, programme, exponents)
    yield "token-priority graphs of 20 tokens", partial(attsvm.graph_svm, sentences)
    data, v = attsvm.datasets.unit_sphere(*sizes["S"], seed=0)
    path = partial(attsvm.regularization_path, data, v, radii=(10.0, 100.0), starts=3)
    yield "S, regularisation path", path


def each_of(
    solve: Callable[..., Any], programmes: Sequence[Any], *arguments: Any, **options: Any
) -> list[Any]:
    return [solve(each, *arguments, **options) for each in programmes]


def step_rows(lists: tuple[str, ...] = ("1M", "10M")) -> Iterator[Job]:
    """A step of every optimiser of ``attsvm bench step``, after three that warm up."""
    import torch

    from attsvm.bench.step import CONTENDERS, LISTS, Runner, hidden_matrices

    torch.set_num_threads(1)
    torch.manual_seed(0)
    for name in lists:
        for contender, described in CONTENDERS.items():
            shapes = hidden_matrices(name) if described.matrices else LISTS[name]()
            runner = Runner(contender, [torch.randn(shape) * 1e-3 for shape in shapes])
            runner.warm_up()
            own = contender.startswith(("Mirror", "Steepest"))
            yield f"{'' if own else 'null: '}{name} {contender}", partial(stepped, runner)


def stepped(runner: Any) -> Any:
    runner.step()
    return runner


def train_rows() -> Iterator[Job]:
    """The jobs of ``attsvm bench train --quick`` that one thread does, and other models."""
    import attsvm
    from attsvm.bench.train import jobs
    from attsvm.models import Attention
    from attsvm.optim import MirrorDescent, SteepestDescent

    for name, job in jobs(1, quick=True).items():
        own = "textbook" not in name and "padded" not in name
        yield f"{'' if own else 'null: '}{name}", job
    data, v = attsvm.datasets.unit_sphere(6, 8, 10, seed=list(range(100)))

    def run(make: Callable[..., Any], **options: Any) -> Any:
        model = Attention.cross(data, v, **options)
        return attsvm.train(model, data, make(model.parameters(), lr=0.1), 200).W[-1]

    yield "100 seeds x 200 steps, factors K and Q", partial(run, SteepestDescent, inner=3, **KQ)
    yield "100 seeds x 200 steps, p = 1.5", partial(run, partial(MirrorDescent, p=1.5))
    yield "100 seeds x 200 steps, head trained", partial(run, SteepestDescent, train_head=True)


KQ = {"parameterization": "KQ", "init": ("uniform", 0)}
ROWS = {"solve": solve_rows, "step": step_rows, "train": train_rows}


def measure(part: str, words: list[str]) -> dict[str, dict[str, Any]]:
    """Every row of a part, in this process."""
    import torch

    from attsvm.bench.step import peak_memory

    found: dict[str, dict[str, Any]] = {}
    for name, work in ROWS[part]():
        if words and not any(word in name for word in words):
            continue
        with peak_memory(torch.device("cpu")) as peak:
            answer = work()
        # A job of `bench train` has its own clock.
        seconds = [answer["cpu"]] if isinstance(answer, dict) else clocked(work)
        found[name] = {"cpu": min(seconds), "memory": peak[0] or 0, "result": numbers(answer)}
    return found


def clocked(work: Callable[[], Any]) -> list[float]:
    """CPU seconds of two to forty calls, fewer of those that take long."""
    seconds: list[float] = []
    while not seconds or (len(seconds) < 40 and sum(seconds) < 0.1):
        before = time.process_time()
        work()
        seconds.append(time.process_time() - before)
    return seconds


def numbers(answer: Any) -> list[float]:
    """The size of the weights of an answer and what is proved of them."""
    import numpy as np

    if isinstance(answer, list):
        return [number for each in answer for number in numbers(each)]
    if isinstance(answer, np.ndarray):
        return [float(np.linalg.norm(answer))]
    if hasattr(answer, "parameters"):
        return [float(each.detach().double().norm()) for each in answer.parameters]
    if not hasattr(answer, "gap"):
        return []
    size, gap = (np.asarray(value, dtype=float) for value in (answer.norm, answer.gap))
    return [float(size[np.isfinite(size)].sum()), float(gap.max())]


def child(checkout: Path, arguments: list[str]) -> tuple[str, float, int]:
    """What a process with the sources of a checkout prints, its CPU seconds and peak bytes."""
    environment = os.environ | dict.fromkeys(THREADS, "1")
    environment["PYTHONPATH"] = str(checkout / "src")
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        printed = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed with the sources of {checkout}")
    return printed, used.ru_utime + used.ru_stime, used.ru_maxrss << 10


def one_round(checkout: Path, part: str, words: list[str]) -> dict[str, dict[str, Any]]:
    """The rows of a part in one checkout."""
    if part == "start":
        rows = {}
        for name, arguments in STARTS.items():
            if not words or any(word in name for word in words):
                _, cpu, peak = child(checkout, arguments)
                rows[name] = {"cpu": cpu, "memory": peak, "result": []}
        return rows
    given = [str(Path(__file__).resolve()), str(checkout), "--measure", part, "--only", *words]
    rows: dict[str, dict[str, Any]] = json.loads(child(checkout, given)[0].splitlines()[-1])
    return rows


def compared(mine: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> dict[str, Any]:
    """One row of the table from the rounds of both."""
    ratios = [a["cpu"] / max(b["cpu"], 1e-9) for a, b in zip(mine, theirs, strict=True)]
    low, _, high = (
        statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    )
    pairs = zip(mine[0]["result"], theirs[0]["result"], strict=True)
    return {
        "ratio": statistics.median(ratios),
        "quartiles": [low, high],
        "cpu": [statistics.median(each["cpu"] for each in rows) for rows in (mine, theirs)],
        "memory": [statistics.median(each["memory"] for each in rows) for rows in (mine, theirs)],
        "result": [mine[0]["result"][:2], theirs[0]["result"][:2]],
        "difference": max((abs(a - b) / max(1.0, abs(b)) for a, b in pairs), default=0.0),
        "slower": low > BAR,
    }


def line(part: str, name: str, row: dict[str, Any]) -> str:
    """A row of the table in Markdown."""
    low, high = row["quartiles"]
    (mine, theirs), (held, former) = row["cpu"], row["memory"]
    mark = " **slower**" if row["slower"] else ""
    return (
        f"| {part}: {name} | {1e3 * mine:.3g} | {1e3 * theirs:.3g} | {row['ratio']:.2f}{mark} |"
        f" {low:.2f} to {high:.2f} | {held / 2**20:.1f} | {former / 2**20:.1f} |"
        f" {row['difference']:.0e} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--parts", default="solve,step,train,start")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="*", default=[], help="words in names of rows")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", choices=list(ROWS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.only)))
        return 0
    here, there = Path(__file__).resolve().parents[1], options.checkout.resolve()
    if not (there / "src" / "attsvm").is_dir():
        parser.error(f"{there} holds no src/attsvm; give the folder of a checkout")
    print("| row | CPU ms here | there | ratio | quartiles | MiB here | there | difference |")
    print("|---|---|---|---|---|---|---|---|")
    table: dict[str, dict[str, Any]] = {}
    for part in options.parts.split(","):
        sides: list[list[dict[str, dict[str, Any]]]] = [[], []]
        for number in range(-1, options.rounds):  # the first round compiles
            order = (0, 1) if number % 2 else (1, 0)
            for side in order:
                rows = one_round((here, there)[side], part, options.only)
                if number >= 0:
                    sides[side].append(rows)
        for name in sides[0][0]:
            row = compared(*([rows[name] for rows in side] for side in sides))
            table[f"{part}: {name}"] = row
            print(line(part, name, row), flush=True)
    if options.json:
        options.json.write_text(json.dumps(table, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
