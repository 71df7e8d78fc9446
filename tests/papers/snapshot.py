"""The snapshot of the evidence at the quick scale: what every column of it looks like.

``snapshot.json`` holds a line per column: its shape, how many values are NaN or infinite, and of
the finite ones least, quartiles, largest and mean (of words: how often each is there). It says
nothing about what is right. It says that a number has changed, in the columns that no claim reads
as well: who changes one on purpose draws it anew, and whoever reads the change sees by how much.

    python tests/papers/snapshot.py            # everything, and verdicts.json
    python tests/papers/snapshot.py mmts-1     # one experiment

A column may have ``within`` in its line, one of :data:`WITHIN`; drawing anew keeps it. Each is the
narrowest that is 30 times as wide as what was seen between kernels of BLAS (OPENBLAS_CORETYPE
of Haswell and Sandybridge, one thread and two), of NumPy (NPY_DISABLE_CPU_FEATURES), of torch
(ATEN_CPU_CAPABILITY) and of our own core (ATTSVM_PROCESSOR). A new column is ``plain`` until it is
seen to change with one of these.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.base.files import digest
from attsvm.claims import Evidence
from attsvm_papers.kit import experiment, identifiers
from attsvm_papers.ntp.text_windows import words_of_text

SNAPSHOT = Path(__file__).with_name("snapshot.json")
VERDICTS = Path(__file__).with_name("verdicts.json")
"""The verdict of every claim at this scale. One that changes, either way, is a change of the
numbers: look into it before it is drawn anew.
"""

LONG = (
    *("factored-1", "graph-1", "graph-6", "md-1c", "md-2", "md-3", "md-3b", "md-4"),
    *("benign-3", "bias-1", "context-2", "embeddings-1", "embeddings-2"),
    *("markov-3", "topics-1", "topics-2"),
    *("mmts-4", "mmts-8", "mmts-9", "multihead-1", "multihead-2", "multihead-3", "multihead-4"),
    *("ntp-3", "ntp-5", "ntp-8", "spectral-1", "spectral-2", "spectral-3"),
    *("tfsvm-1", "tfsvm-5", "tfsvm-6", "tfsvm-7", "tfsvm-8", "tfsvm-10"),
)
"""Experiments of two seconds and more: their quick evidence is kept in ``evidence/quick``, judged
on every commit, and computed anew by slow tests.
"""
KEPT = Path(__file__).parent / "evidence" / "quick"

READ_THE_REFERENCE = ("ntp-8", "topics-2")
REFERENCE = "1c6ade8ced66"
"""The digest of the reference of the language, which comes with Python and changes with its
releases. Where it is another text than that of the snapshot, what these experiments count in it is
not compared.
"""

WITHIN = {
    "plain": 1e-6,
    # Solutions of programmes, known to the root of a duality gap, and what is computed from them.
    "solved": 1e-4,
    # The end of many steps: roundings that have grown along the run.
    "rounding": 1e-2,
    # A rounding decides single trials, or where a step jumps over a kink; the others do not move.
    "trials": 0.1,
    # Roundings have grown to all they can be: networks in single precision, weights that go to and
    # fro for ever, directions drawn at random beside either. Eight times as wide as was seen: more
    # would say nothing.
    "chaotic": 0.5,
    # Nothing but rounding is measured: the size alone, within a power of ten.
    "size": 0.0,
}
"""How far a number may be from the recorded one, relative to the larger of it and of the distance
of the quartiles; and a thousandth of that absolutely: columns are of order one, or gaps, errors
and probabilities that are meant to vanish.
"""
NUMBERS = ("least", "first quartile", "median", "third quartile", "largest", "mean")
FLOOR = 1e-9  # below it a size is rounding

Row = dict[str, Any]


def measured(identifier: str) -> tuple[Any, list[Mapping[str, Any]], Evidence]:
    """The experiment, the arrays of its cells and its evidence at the quick scale."""
    chosen = experiment(identifier)
    cells = chosen.work(chosen.quick)
    results = [chosen.run(**cell) for cell in cells]
    return chosen, results, chosen.evidence(cells, results)


def kept(identifier: str) -> Evidence:
    """The quick evidence of one of :data:`LONG` as it was drawn last."""
    with np.load(KEPT / f"{identifier}.npz", allow_pickle=False) as columns:
        return Evidence(dict(columns))


def row(column: NDArray[Any]) -> Row:
    """What the snapshot holds of a column."""
    found: Row = {"shape": list(column.shape)}
    if column.dtype.kind == "U":
        words, counts = np.unique(column, return_counts=True)
        return found | {"words": dict(zip(words.tolist(), counts.tolist(), strict=True))}
    values = column.astype(np.float64)
    finite = values[np.isfinite(values)]
    for name, count in (("nan", np.isnan(values).sum()), ("inf", np.isinf(values).sum())):
        if count:
            found[name] = int(count)
    if finite.size:
        numbers = [*np.quantile(finite, (0, 0.25, 0.5, 0.75, 1)), finite.mean()]
        found["numbers"] = [float(f"{number:.9g}") for number in numbers]
    return found


def allowed(recorded: Row) -> NDArray[np.float64]:
    """How far each of the numbers of a line may be off."""
    numbers = np.array(recorded["numbers"])
    relative = WITHIN[recorded.get("within", "plain")]
    return relative * (np.maximum(np.abs(numbers), numbers[3] - numbers[1]) + 1e-3)


def beside(recorded: Row, now: Row) -> list[str]:
    """What is different in a column, in words; nothing when it is the recorded one."""
    known = {name: value for name, value in recorded.items() if name not in ("numbers", "within")}
    found = {name: value for name, value in now.items() if name != "numbers"}
    if known != found:
        return [f"recorded {known}, now {found}"]
    if "numbers" not in recorded:
        return []
    old, new = np.array(recorded["numbers"]), np.array(now["numbers"])
    within = recorded.get("within", "plain")
    if within == "size":
        sizes = [np.log10(np.maximum(np.abs(each), FLOOR)) for each in (old, new)]
        off = np.abs(sizes[0] - sizes[1]) > 1.0
    else:
        off = np.abs(new - old) > allowed(recorded)
    return [
        f"{name}: recorded {a:.9g}, now {b:.9g}, a change of {abs(b - a) / max(abs(a), 1e-300):.1e}"
        for name, a, b, wrong in zip(NUMBERS, old, new, off, strict=True)
        if wrong
    ]


def changes(identifier: str, evidence: Mapping[str, NDArray[Any]], path: Path = SNAPSHOT) -> str:
    """What is different between the evidence of an experiment and its snapshot, for a reader; an
    empty string when nothing is.
    """
    if identifier in READ_THE_REFERENCE and digest(words_of_text(""))[:12] != REFERENCE:
        return ""
    recorded: dict[str, Row] = snapshot(path).get(identifier, {})
    lines = []
    for name in dict.fromkeys((*recorded, *evidence)):
        if name not in evidence:
            lines.append(f"  {name}: recorded, and no longer in the evidence")
        elif name not in recorded:
            lines.append(f"  {name}: in the evidence, and not recorded")
        else:
            within = recorded[name].get("within", "plain")
            lines += [
                f"  {name} ({within}): {each}"
                for each in beside(recorded[name], row(evidence[name]))
            ]
    if not lines:
        return ""
    return "\n".join(
        [
            f"{identifier}: the evidence is not that of {path.name}:",
            *lines,
            f"If this is meant, `python tests/papers/snapshot.py {identifier}` draws it anew; if"
            " only another processor or library does it, a wider class is in order (see there).",
        ]
    )


def snapshot(path: Path = SNAPSHOT) -> dict[str, dict[str, Row]]:
    """All of the file."""
    found: dict[str, dict[str, Row]] = json.loads(path.read_text(encoding="utf-8"))
    return found


def write(found: Mapping[str, Mapping[str, Row]], path: Path = SNAPSHOT) -> None:
    """The file, a line per column."""
    blocks = [
        f"{json.dumps(name)}: {{\n"
        + ",\n".join(f" {json.dumps(column)}: {json.dumps(line)}" for column, line in rows.items())
        + "\n}"
        for name, rows in found.items()
    ]
    path.write_text("{\n" + ",\n".join(blocks) + "\n}\n", encoding="utf-8")


def draw(asked: list[str]) -> None:
    """Writes both files anew for these experiments, or all of them."""
    rows = snapshot() if SNAPSHOT.exists() else {}
    verdicts = json.loads(VERDICTS.read_text(encoding="utf-8")) if VERDICTS.exists() else {}
    for identifier in asked or identifiers():
        chosen, _, evidence = measured(identifier)
        before = rows.get(identifier, {})
        within = {name: line["within"] for name, line in before.items() if "within" in line}
        rows[identifier] = {
            name: row(evidence[name]) | ({"within": within[name]} if name in within else {})
            for name in evidence
        }
        if identifier in LONG:
            KEPT.mkdir(parents=True, exist_ok=True)
            np.savez_compressed(KEPT / f"{identifier}.npz", **{n: evidence[n] for n in evidence})
        verdicts[identifier] = {claim.id: claim.check(evidence).short for claim in chosen.claims}
        write({name: rows[name] for name in identifiers() if name in rows})
        ordered = {name: verdicts[name] for name in identifiers() if name in verdicts}
        VERDICTS.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    draw(sys.argv[1:])
