"""The tables of docs/experiments/heads.md, from what ``attsvm reproduce heads-N`` has computed:

    attsvm reproduce --paper heads --scale small --out runs/reproduce
    python benchmarks/probe_heads.py runs/reproduce

Cells that are not there are left out, and how many of them there are is said. Means are over the
heads of a training, then over seeds, with Student's 95 % interval over seeds in brackets.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import spearmanr

from attsvm.claims import Evidence
from attsvm.errors import UnavailableError
from attsvm.store.entries import load_entry
from attsvm_papers.heads import e1_own_solutions as heads_1
from attsvm_papers.heads import e2_norms as heads_2
from attsvm_papers.heads import e5_other_inputs as heads_5
from attsvm_papers.heads import e6_pretrained as heads_6
from attsvm_papers.heads import e8_matched as heads_8
from attsvm_papers.heads import e9_sizes as heads_9
from attsvm_papers.heads import e10_rotary as heads_10
from attsvm_papers.heads.own_solutions import THRESHOLD
from attsvm_papers.heads.reading import NAMES, NORMS, by_seed, excess, over_seeds
from attsvm_papers.kit import experiment, interval
from attsvm_papers.runs.cells import tasks_of

CERTIFIED = 1e-5
"""Relative duality gap below which a solution counts as certified."""


def number(value: float, digits: int = 3) -> str:
    """Without the zero before the point."""
    text = f"{value:.{digits}f}"
    return text.replace("0.", ".", 1) if abs(value) < 1 else text


def told(values: ArrayLike) -> str:
    """The mean of one value per seed, with its interval."""
    found = interval(values)
    if not np.isfinite(found.low):
        return number(found.mean)
    return f"{number(found.mean)} ({number(found.low)} to {number(found.high)})"


def mean(e: Evidence, name: str) -> str:
    value = over_seeds(e, e[name])
    return "" if np.isnan(value) else number(value, 2)


def table(head: list[str], rows: Iterable[list[str]]) -> None:
    for row in (head, ["---"] * len(head), *rows):
        print(f"| {' | '.join(row)} |")
    print()


def optimisers(e: Evidence) -> list[str]:
    return [name for name in NAMES if np.any(e["optimiser"] == name)]


def seeds(e: Evidence) -> str:
    return str(len(np.unique(e["seed"])))


def own_solutions(e: Evidence) -> None:
    rows, simple, differences = [], [], []
    for name in optimisers(e):
        nuc, fro = heads_1.of(e, name), heads_1.of(e, name, "fro")
        level = heads_1.of(e, name, "nuc", heads_1.LEVEL)
        nulls = [
            ", ".join(mean(part, kind) for kind in ("random", "rotated", "permuted", "heads"))
            for part in (nuc, fro)
        ]
        rows.append(
            [NAMES[name], seeds(nuc), f"{mean(nuc, 'cosine')} / {mean(fro, 'cosine')}", *nulls]
            + [told(by_seed(part, excess(part))) for part in (nuc, fro, level)]
            + [mean(nuc, "rank"), told(by_seed(nuc, excess(nuc, "again")))]
        )
        sums = nuc["average"] - nuc["average_null"]
        further = [
            told(by_seed(p, excess(p) - (p["average"] - p["average_null"]))) for p in (nuc, fro)
        ]
        simple.append([NAMES[name], told(by_seed(nuc, sums)), *further])
        ratio = float(np.median(nuc["cosine"] / nuc["rotated"]))
        above, share = np.mean(excess(nuc) > 0), np.median(nuc["share"])
        differences.append(
            [
                *(NAMES[name], told(by_seed(fro, excess(fro)) - by_seed(nuc, excess(nuc)))),
                *(number(ratio, 1), f"{100 * above:.0f} %", f"{100 * share:.1f} %"),
                *(mean(level, "step"), mean(nuc, "loss")),
            ]
        )
    head = ["queries and keys by", "seeds", "own, nuc / fro", "nuc nulls", "fro nulls"]
    head += ["nuc excess", "fro excess", "nuc at equal loss", "stable rank", "null of H1"]
    table(head, rows)
    table(["", "excess of the plain sum", "nuc excess less that", "fro excess less that"], simple)
    head = ["", "fro less nuc excess", "own / rotated", "above every null", "share of best margin"]
    table([*head, "step of equal loss", "loss at the end"], differences)


def norms(e: Evidence) -> None:
    rows, shares = [], []
    sgd = heads_2.excesses(e, "sgd")
    base = sgd["spec"] - sgd["nuc"]
    for name in optimisers(e):
        found = heads_2.excesses(e, name)
        parts = [e.where(optimiser=name, norm=k) for k in range(len(NORMS))]
        best = max(found, key=lambda norm: float(np.mean(found[norm])))
        row = [NAMES[name], seeds(parts[0]), *(told(found[norm]) for norm in NORMS), best]
        further = found["spec"] - found["nuc"]
        lead = found.pop(best) - max(found.values(), key=np.mean)
        rows.append([*row, told(lead), told(further - base) if base.shape == further.shape else ""])
        attained = [[100 * p["share"], 100 * p["share"] * p["balance"]] for p in parts]
        shares.append(
            [NAMES[name], *(f"{np.median(w):.2f}, {np.median(f):.3f}" for w, f in attained)]
        )
    table(["", "seeds", *NORMS, "largest", "less the next", "spec less nuc, less SGD's"], rows)
    print("share of the best margin, percent: of W, of its factors\n")
    table(["", *NORMS], shares)


def course(e: Evidence) -> None:
    places, rows = np.unique(e["checkpoint"]), []
    for name in optimisers(e):
        for k in dict.fromkeys([*places[:: max(1, len(places) // 6)], places[-1]]):
            part = e.where(optimiser=name, checkpoint=k)
            null = np.maximum(part["rotated"], part["permuted"])
            rows.append(
                [
                    *(NAMES[name], seeds(part), str(int(part["step"][0])), mean(part, "loss")),
                    *(mean(part, "cosine"), number(float(by_seed(part, null).mean()), 2)),
                    number(float(by_seed(part, excess(part)).mean())),
                    f"{100 * by_seed(part, part['sure']).mean():.0f} %",
                    *(mean(part, "size"), mean(part, "rank")),
                ]
            )
    head = ["", "seeds", "step", "loss", "cosine", "stricter null", "excess", "sure", "norm"]
    table([*head, "stable rank"], rows)


def samples(e: Evidence) -> None:
    few = e.take(e["threshold"] != THRESHOLD).levels("queries")[0]
    told = ("agreement", "usual", "stranger")
    for axis, fixed in (
        ("queries", {"threshold": THRESHOLD}),
        ("threshold", {"queries": few}),
    ):
        rows = []
        for name in optimisers(e):
            for k, norm in enumerate(NORMS[:2]):
                whole = e.where(optimiser=name, norm=k, **fixed)
                for level in whole.levels(axis):
                    part = whole.where(**{axis: level})
                    rows.append(
                        [NAMES[name], norm, seeds(part), f"{level:g}", mean(part, "cosine")]
                        + [number(float(by_seed(part, excess(part)).mean()))]
                        + [mean(part, each) for each in told]
                    )
        head = ["", "norm", "seeds", axis, "cosine", "excess", "agreement", "usual position"]
        table([*head, "rotated weights' solution"], rows)
    nuclear = e.where(norm=0)
    rows = [
        [NAMES[n], *(mean(nuclear.where(optimiser=n), x) for x in ("alike", "shared", "chance"))]
        for n in optimisers(e)
    ]
    table(["", "cosine of two samples' solutions", "support shared", "by chance"], rows)


def changes(e: Evidence) -> None:
    rows = []
    for k, change in enumerate(heads_5.CHANGES):
        parts = [e.where(optimiser=name, change=k) for name in optimisers(e)]
        rows.append([change, *(told(by_seed(part, excess(part))) for part in parts)])
    table(["change", *(NAMES[name] for name in optimisers(e))], rows)
    print(f"{seeds(e)} seeds\n")


def pretrained(e: Evidence) -> None:
    def spread(values: ArrayLike) -> str:
        low, middle, high = (number(float(v)) for v in np.quantile(values, (0.05, 0.5, 0.95)))
        return f"{middle} ({low} to {high})"

    for model in e.levels("model"):
        rows = []
        for k, norm in enumerate(NORMS[:2]):
            whole = e.where(model=model, norm=k)
            rank = spearmanr(heads_6.excesses(whole, k)[model], whole["sure"])[0]
            ratio = np.median(whole["cosine"] / whole["rotated"])
            print(f"{model}, {norm}: own over rotated {ratio:.2f} in the median; rank correlation")
            print(f"of the excess and the share of sure queries {rank:.2f}\n")
            for layer in [None, *whole.levels("layer")]:
                part = whole if layer is None else whole.where(layer=layer)
                above = heads_6.excesses(part, k)[model]
                rows.append(
                    [norm, "all" if layer is None else str(layer), str(len(part["head"]))]
                    + [spread(part[each]) for each in ("cosine", "rotated", "permuted")]
                    + [spread(above), f"{100 * np.mean(above > 0):.0f} %"]
                    + [spread(part["cosine"] - part["reflected"])]
                    + [number(float(np.median(part[x])), 2) for x in ("agreement", "usual")]
                    + [f"{part['gap'].max():.1e}"]
                )
        head = ["norm", "layer", "heads", "own cosine", "rotated", "permuted", "excess"]
        head += ["above every null", "over reflected"]
        table([*head, "agreement", "usual position", "largest gap"], rows)


def rotary(e: Evidence) -> None:
    rows = []
    for k in e.levels("norm"):
        for layer in [None, *e.levels("layer")]:
            part = e.where(norm=k) if layer is None else e.where(norm=k, layer=layer)
            over = {n: heads_10.excesses(part, n, NORMS[k]) for n in heads_10.CHOICES}
            rows.append(
                [NORMS[k], "all" if layer is None else str(layer), str(part.rows)]
                + [number(float(np.median(part[x])), 2) for x in ("cosine", *heads_10.NULLS)]
                + [number(float(np.median(each))) for each in over.values()]
                + [f"{100 * np.mean(each > 0):.0f} %" for each in over.values()]
                + [f"{part['gap'].max():.1e}"]
            )
    head = ["norm", "layer", "heads", "own cosine", *heads_10.NULLS, "excess", "over reflected"]
    table([*head, "above every null", "above reflected", "largest gap"], rows)


def matched(e: Evidence) -> None:
    rows = []
    for name in optimisers(e):
        part = e.where(optimiser=name)
        first = by_seed(part, excess(part))
        over = {kind: heads_8.over(e, name, kind) for kind in heads_8.MATCHED}
        sums = heads_8.over(e, name, "reflected", "average")
        own, *others = (part[f"reflected {draw}"] for draw in range(heads_8.DRAWS))
        rows.append(
            [NAMES[name], seeds(part), mean(part, "cosine"), told(first)]
            + [told(over[kind]) for kind in heads_8.MATCHED]
            + [told(sums), told(over["reflected"] - sums)]
            + [number(float(over["reflected"].mean() / first.mean()), 2)]
            + [told(by_seed(part, own - np.mean(others, axis=0)))]
        )
    head = ["", "seeds", "own cosine", "excess of heads-1", "over apart", "over reflected"]
    head += ["plain sum over reflected", "margin less plain sum", "left", "null of H11"]
    table(head, rows)


def sizes(e: Evidence) -> None:
    rows = []
    for k in e.levels("change"):
        for name in optimisers(e):
            part = e.where(change=k, optimiser=name)
            null = np.maximum(part["rotated"], part["permuted"])
            what = ", ".join(f"{each} {int(part[each][0])}" for each in heads_9.CHANGED)
            rows.append(
                [
                    *(what, NAMES[name], seeds(part), mean(part, "loss"), mean(part, "cosine")),
                    number(float(by_seed(part, null).mean()), 2),
                    *(told(by_seed(part, excess(part))), mean(part, "rank")),
                ]
            )
    head = ["sizes", "", "seeds", "loss", "cosine", "stricter null", "excess", "stable rank"]
    table(head, rows)


TABLES: dict[str, Callable[[Evidence], None]] = {
    "heads-1": own_solutions,
    "heads-2": norms,
    "heads-3": course,
    "heads-4": samples,
    "heads-5": changes,
    "heads-6": pretrained,
    "heads-8": matched,
    "heads-9": sizes,
    "heads-10": rotary,
}


def kept(identifier: str, folder: Path, scale: str, count: int | None) -> Evidence | None:
    """The cells of an experiment that are there; says how many."""
    chosen = experiment(identifier)
    try:
        cells = chosen.work(chosen.at(scale=scale, seeds=count))
    except UnavailableError as error:
        print(f"{identifier}: {error}\n")
        return None
    tasks = tasks_of(chosen, cells, folder / "cells")
    places = [(cell, path) for cell, (_, _, path) in zip(cells, tasks, strict=True)]
    there = [(cell, load_entry(path)[0]) for cell, path in places if path.exists()]
    print(f"## {identifier}: {len(there)} of {len(cells)} cells\n")
    if not there:
        return None
    found = chosen.evidence(*zip(*there, strict=True))
    if "gap" in found:
        known = found["gap"] < CERTIFIED
        known &= found["optimal"] == 1 if "optimal" in found else known
        known &= found["worst"] < CERTIFIED if "worst" in found else known
        print(f"heads and norms with certified solutions, nulls and all: {known.sum()} of", end=" ")
        print(f"{len(known)}; largest relative gap of a head {found['gap'].max():.1e}\n")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("folder", type=Path, help="what was given to attsvm reproduce as --out")
    parser.add_argument("identifiers", nargs="*", default=list(TABLES), metavar="heads-N")
    parser.add_argument("--scale", default="small")
    parser.add_argument("--seeds", type=int, help="where reproduce had another number of them")
    given = parser.parse_args()
    if not (given.folder / "cells").is_dir():
        sys.exit(f"{given.folder} has no cells; give the folder of `attsvm reproduce --out`")
    for identifier in given.identifiers:
        random = identifier not in ("heads-6", "heads-10")
        e = kept(identifier, given.folder, given.scale, given.seeds if random else None)
        if e is not None:
            TABLES[identifier](e)


if __name__ == "__main__":
    main()
