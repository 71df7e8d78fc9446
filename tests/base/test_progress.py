"""Progress on standard error: bars on a terminal, few lines elsewhere, never a reason to fail."""

import io
import sys

import pytest

from attsvm.base.progress import LineOptions, ProgressBars


class Clock:
    """Seconds, moved by hand."""

    now = 0.0

    def __call__(self):
        return self.now


def steps(bars, clock, count, seconds):
    """A stage of so many steps, which take so long each."""
    for done in range(count + 1):
        bars("selection", done, count)
        clock.now += seconds


def test_a_stage_that_is_short_has_two_lines_where_there_is_no_terminal(capsys):
    clock = Clock()
    steps(ProgressBars(clock=clock), clock, 1000, 0.001)
    lines = ["selection: 0 of 1000 steps", "selection: 1000 of 1000 steps, 1 s"]
    assert capsys.readouterr().err.splitlines() == lines


def test_lines_are_ever_fewer_and_say_how_long_it_takes(capsys):
    clock = Clock()
    steps(ProgressBars(clock=clock), clock, 3600, 1.0)
    lines = capsys.readouterr().err.splitlines()
    # after 10 seconds, then 20, 40, ... later: 10 (2^k - 1) < 3600 for k up to 8
    marks = [10 * (2**k - 1) for k in range(1, 9)]
    between = [
        f"selection: {mark} of 3600 steps, {mark} s, about {3600 - mark} s left" for mark in marks
    ]
    ends = ["selection: 0 of 3600 steps", "selection: 3600 of 3600 steps, 3600 s"]
    assert lines == [ends[0], *between, ends[1]]


def test_what_was_done_before_is_not_counted_as_speed(capsys):
    clock = Clock()
    bars = ProgressBars(clock=clock, lines=LineOptions(first=1.0))
    bars("heads", 90, 100)
    clock.now = 4.0
    bars("heads", 92, 100)
    lines = ["heads: 90 of 100 steps", "heads: 92 of 100 steps, 4 s, about 16 s left"]
    assert [line.strip() for line in capsys.readouterr().err.splitlines()] == lines


def test_a_stage_that_was_finished_before_has_one_line(capsys):
    bars = ProgressBars()
    bars("joint", 60, 60)
    bars("joint", 60, 60)
    bars("margin", 0, 1)
    bars("margin", 1, 1)
    lines = [line.strip() for line in capsys.readouterr().err.splitlines()]
    assert lines == ["joint: 60 of 60 steps", "margin: solving"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_has_a_bar(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    bars = ProgressBars()
    bars("joint", 0, 10)
    bars("joint", 10, 10)
    assert "100%" in sys.stderr.getvalue()


class Full(io.StringIO):
    def write(self, text):
        raise OSError(28, "No space left on device")


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [None, Full(), closed()], ids=["none", "full", "closed"])
def test_a_standard_error_that_takes_nothing_is_left_in_peace(stream, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", stream)
    bars = ProgressBars()
    for stage, total in (("joint", 10), ("margin", 1)):
        bars(stage, 0, total)
        bars(stage, total, total)
    bars.close()
    assert capsys.readouterr().out == ""
