"""What the solvers say of hard programmes is true: judged in exact arithmetic.

The slow test takes its first seed and its number of programmes from ``ATTSVM_JUDGE_SEED`` and
``ATTSVM_JUDGE_COUNT``; ``python tests/solvers/judge/run.py`` does the same and prints a table.
"""

from __future__ import annotations

import os

import pytest

from attsvm.norms import parse_norm
from attsvm.solvers import max_margin
from judge.kinds import KINDS, hard
from judge.run import NORMS, Summary, judged, one, plan

SHARE = 0.02  # of the feasible programmes may end inaccurate, or otherwise without the answer that
# float64 can hold


def checked(seed: int, count: int) -> Summary:
    """No false verdict, no false number, no crash."""
    summary = Summary(list(judged(plan(seed, count))))
    false = [f"{x.name} {x.path} {x.status}: {x.wrong + x.misreported}" for x in summary.lines]
    false = [text for text, x in zip(false, summary.lines, strict=True) if x.wrong or x.misreported]
    assert not false, "\n".join([summary.text(), *false[:20]])
    return summary


@pytest.mark.experiment
def test_every_kind_in_every_norm() -> None:
    """Each kind once in each norm."""
    checked(0, len(KINDS) * len(NORMS))


@pytest.mark.slow
def test_ten_thousand_programmes() -> None:
    seed = int(os.environ.get("ATTSVM_JUDGE_SEED", "0"))
    count = int(os.environ.get("ATTSVM_JUDGE_COUNT", "10000"))
    summary = checked(seed, count)
    unanswered = len(summary.open) + len(summary.dodged)
    assert unanswered <= SHARE * summary.feasible, summary.text()
    assert not summary.slow, [each.name for each in summary.slow]


@pytest.mark.parametrize("norm", NORMS)
def test_known_answers(norm: str) -> None:
    """Diagonal programmes of powers of two, whose least norm is that of their diagonal: what is
    called optimal has it. One in six may end inaccurate: entries are up to 2**400 apart.
    """
    solved = 0
    for seed in range(6):
        programme = hard("powers-of-two", seed)
        assert programme.optimum is not None
        geometry = parse_norm(norm)
        found = max_margin(programme.margins, geometry)
        assert found.status in ("optimal", "inaccurate"), found.message
        if found.status == "optimal":
            solved += 1
            optimum = programme.optimum(getattr(geometry, "p", 2.0))
            assert found.norm == pytest.approx(optimum, rel=2 * found.tol)
    assert solved >= 5


def test_a_programme_is_named_by_its_line() -> None:
    line = one("single", "lp:1.1", 5)
    assert line.name == "--kind single --norm lp:1.1 --seed 5"
    assert line.status == "optimal"
    assert line.wrong == []
