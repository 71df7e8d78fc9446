"""Judge solvers on hard programmes: ``python tests/solvers/judge/run.py --seed 0 --count 1000``.

Programme i is of kind i mod K, in the norm that is (i div K)-th, with seed ``seed + i``; so any
consecutive K * 13 programmes hold every kind in every norm, and every line of the report names what
makes the programme again: ``--kind KIND --norm NORM --seed SEED --count 1``.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parents[1]))

from judge.exact import Claim, Question, judge
from judge.kinds import KINDS, Hard, hard
from judge.least import answerable, least

NORMS = (
    "fro",
    "nuc",
    "spec",
    "schatten:1.5",
    "schatten:3",
    "l1",
    "lp:1.1",
    "lp:1.5",
    "lp:1.75",
    "lp:2.5",
    "lp:3",
    "lp:10",
    "linf",
)
NAMED = ("optimal", "infeasible", "inaccurate", "refused", "error", "stopped")
SECONDS = 5.0
TOLERANCE = 1e-9  # where no solution says which it was
LIMIT = 20.0  # of processor time, after which a programme is given up


@dataclass
class Line:
    """One programme, what was said of it, and what is wrong with that."""

    kind: str
    norm: str
    seed: int
    path: str
    status: str
    wrong: list[str] = field(default_factory=list)
    misreported: list[str] = field(default_factory=list)
    feasible: bool | None = None
    gap: float | None = None
    short: float | None = None
    own: float | None = None
    residual: float | None = None
    answerable: bool | None = None
    seconds: float = 0.0
    judged: float = 0.0
    message: str = ""
    solver: str = ""

    @property
    def name(self) -> str:
        return f"--kind {self.kind} --norm {self.norm} --seed {self.seed}"


def plan(
    seed: int, count: int, kinds: Sequence[str] = tuple(KINDS), norms: Sequence[str] = NORMS
) -> Iterator[tuple[str, str, int]]:
    """Kind, norm and seed of each programme."""
    for i in range(count):
        yield kinds[i % len(kinds)], norms[i // len(kinds) % len(norms)], seed + i


class TooLong(BaseException):
    """The limit was met; no ``except Exception`` on the way may take it."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Stop Python code inside after this much processor time, where the system has a timer."""
    if (
        not hasattr(signal, "setitimer")
        or threading.current_thread() is not threading.main_thread()
    ):
        yield
        return

    def stop(*_: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def one(kind: str, norm: str, seed: int, batched: bool = False) -> Line:
    """Solve a programme and judge what came back; ``batched`` through a list of one."""
    from attsvm.base.errors import InputError
    from attsvm.norms import parse_norm
    from attsvm.solvers import max_margin, max_margin_batch

    programme = hard(kind, seed)
    path = "list" if batched else "single"
    begun = time.process_time()
    try:
        with limited(LIMIT):
            if batched:
                found: Any = max_margin_batch(
                    [programme.margins], parse_norm(norm), slack=programme.slack
                )[0]
            else:
                found = max_margin(programme.margins, parse_norm(norm), slack=programme.slack)
    except TooLong:
        return _unanswered(programme, Line(kind, norm, seed, path, "stopped"), begun)
    except InputError as error:
        line = Line(kind, norm, seed, path, "refused", message=str(error)[:200])
        if "float64" not in str(error):  # the one reason for which these programmes may be refused
            line.status, line.wrong = "error", [f"refused: {error}"[:200]]
        return _unanswered(programme, line, begun)
    except Exception as error:
        spent = time.process_time() - begun
        if spent > 0.9 * LIMIT:  # compiled code turns the stop into an error of its own
            return _unanswered(programme, Line(kind, norm, seed, path, "stopped"), begun)
        said = f"{type(error).__name__}: {error}"
        return Line(
            kind, norm, seed, path, "error", [said[:200]], seconds=spent, message=said[:200]
        )
    spent = time.process_time() - begun
    begun = time.process_time()
    verdict = judge(programme.margins, norm, programme.slack, Claim.of(found))
    return Line(
        kind,
        norm,
        seed,
        path,
        verdict.status,
        verdict.wrong,
        verdict.misreported,
        verdict.feasible,
        verdict.gap,
        verdict.short,
        verdict.own,
        verdict.residual,
        _answerable(verdict.status, verdict.feasible, programme, norm, float(found.tol)),
        spent,
        time.process_time() - begun,
        str(found.message)[:200],
        str(found.solver),
    )


def _unanswered(programme: Hard, line: Line, begun: float) -> Line:
    """A line without a solution, with the truth about one."""
    line.seconds = time.process_time() - begun
    question = Question(programme.margins, line.norm, programme.slack)
    line.feasible = programme.slack is not None or question.feasibility().feasible
    line.answerable = _answerable(line.status, line.feasible, programme, line.norm, TOLERANCE)
    return line


def _answerable(
    status: str, feasible: bool | None, programme: Hard, norm: str, tol: float
) -> bool | None:
    """Whether float64 can hold an answer to a feasible programme that got none, asked in the
    Frobenius norm (``None`` when that is not known).
    """
    if status in ("optimal", "infeasible") or not feasible:
        return None
    if programme.slack is not None:
        return True
    question = Question(programme.margins, norm)
    found = least(question)
    if found is None or found.W is None:
        return None
    return answerable(question, found, tol)


def judged(programmes: Iterator[tuple[str, str, int]], lists: bool = True) -> Iterator[Line]:
    """Each programme judged; in the Frobenius norm a hard margin also through a list, which takes
    another way. A slow one is timed again: the first call of a kernel compiles it.
    """
    for kind, norm, seed in programmes:
        ways = (False, True) if lists and norm == "fro" and "soft" not in kind else (False,)
        for batched in ways:
            line = one(kind, norm, seed, batched)
            if line.seconds > SECONDS:
                line = one(kind, norm, seed, batched)
            yield line


@dataclass
class Summary:
    """Counts over many lines."""

    lines: list[Line]

    @property
    def statuses(self) -> Counter[str]:
        return Counter(line.status for line in self.lines)

    def wrong(self, status: str | None = None) -> list[Line]:
        return [each for each in self.lines if each.wrong and status in (None, each.status)]

    @property
    def open(self) -> list[Line]:
        """Feasible programmes that were answered ``inaccurate``."""

        return [each for each in self.lines if each.status == "inaccurate" and each.feasible]

    @property
    def between(self) -> list[Line]:
        """What is neither called by a known name nor refused, such as almost infeasible."""
        return [each for each in self.lines if each.status not in NAMED]

    @property
    def dodged(self) -> list[Line]:
        """Feasible programmes with another answer than optimal, or refused, though float64 can hold
        a solution. Together with :attr:`open` what the solvers leave unanswered.
        """
        return [
            each
            for each in self.lines
            if each.status not in ("optimal", "infeasible", "inaccurate", "error")
            and each.feasible
            and each.answerable is not False
        ]

    @property
    def slow(self) -> list[Line]:
        return [each for each in self.lines if each.seconds > SECONDS]

    @property
    def feasible(self) -> int:
        """Programmes that have a solution."""
        return sum(each.feasible is True for each in self.lines)

    def text(self) -> str:
        out = [
            f"{len(self.lines)} programmes: {dict(self.statuses)}",
            f"wrong optimal {len(self.wrong('optimal'))}, wrong infeasible"
            f" {len(self.wrong('infeasible'))}, errors {len(self.wrong('error'))}",
            f"inaccurate though feasible {len(self.open)} of {self.feasible}"
            f" ({100 * len(self.open) / max(1, self.feasible):.2f} %), of them"
            f" {sum(each.answerable is not False for each in self.open)} with an answer that"
            f" float64 can hold",
            f"in between {len(self.between)}, refused {self.statuses['refused']}, of them feasible"
            f" with an answer that float64 can hold {len(self.dodged)}",
            f"numbers that are not true: {sum(bool(x.misreported) for x in self.lines)}",
            f"above {SECONDS:g} s: {len(self.slow)}; solving"
            f" {sum(x.seconds for x in self.lines):.0f} s, judging"
            f" {sum(x.judged for x in self.lines):.0f} s of CPU",
        ]
        return "\n".join(out)

    def table(self) -> str:
        """Markdown: kinds with what failed, and names of the first failures."""
        by_kind: dict[str, list[Line]] = defaultdict(list)
        for each in self.lines:
            by_kind[each.kind].append(each)
        out = [
            "| kind | judged | wrong optimal | wrong infeasible | misreported"
            " | inaccurate, feasible | inaccurate, infeasible | between | refused | dodged"
            " | error | slow |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|",
        ]
        for kind, lines in by_kind.items():
            part = Summary(lines)
            status = part.statuses
            out.append(
                f"| {kind} | {len(lines)} | {len(part.wrong('optimal'))}"
                f" | {len(part.wrong('infeasible'))}"
                f" | {sum(bool(x.misreported) for x in lines)} | {len(part.open)}"
                f" | {status['inaccurate'] - len(part.open)}"
                f" | {len(part.between)} | {status['refused']} | {len(part.dodged)}"
                f" | {status['error']} | {len(part.slow)} |"
            )
        return "\n".join(out)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=len(KINDS) * len(NORMS))
    parser.add_argument("--kind", action="append", choices=list(KINDS))
    parser.add_argument("--norm", action="append")
    parser.add_argument("--json", type=Path, help="write one line per programme")
    parser.add_argument("--max-seconds", type=float, help="stop after this much wall time")
    asked = parser.parse_args(arguments)
    warnings.simplefilter("error")  # a warning that reaches the caller is a fault, as in the tests
    begun, lines = time.monotonic(), []
    programmes = plan(
        asked.seed, asked.count, tuple(asked.kind or KINDS), tuple(asked.norm or NORMS)
    )
    with ExitStack() as stack:
        out = None if asked.json is None else stack.enter_context(asked.json.open("w"))
        for line in judged(programmes):
            lines.append(line)
            if out is not None:
                out.write(json.dumps(asdict(line)) + "\n")
                out.flush()
            if line.wrong or line.misreported or asked.count == 1:
                said = line.wrong + line.misreported
                print(line.name, line.path, line.status, said, line.message, flush=True)
            if asked.max_seconds is not None and time.monotonic() - begun > asked.max_seconds:
                break
    summary = Summary(lines)
    print(summary.text())
    print(summary.table())
    return 1 if summary.wrong() else 0


if __name__ == "__main__":
    raise SystemExit(main())
