"""Signals that end a command, at moments at which an exception would be lost."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import attsvm

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="looks into /proc, forks"),
    pytest.mark.processes,
]

SOURCES = Path(attsvm.__file__).parents[1]
COMMAND = """
import atexit, ctypes, gc, hashlib, os, pathlib, signal, sys, time, weakref

from attsvm.base.files import atomic_write
from attsvm.base.interruption import uninterrupted, work_is_kept
from attsvm.base.workers import results, workers


def strike(name="SIGINT"):
    os.kill(os.getpid(), getattr(signal, name))
    for _ in range(100):  # it comes between two lines
        time.sleep(0.01)


class Struck:
    def __del__(self):
        strike()


def writing(path):
    with atomic_write(path):
        pathlib.Path(f"{path}.begun").touch()
        time.sleep(300)


def compiled():
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)


def run(options):
BODY
    print("went on", flush=True)
    return 0


def add_parser(commands):
    commands.add_parser("act").set_defaults(run=run)
"""


def acting(folder, body, **options):
    """A process of the command ``attsvm act``, which does this and then says that it went on."""
    home = folder / "attsvm_acting-1.0.dist-info"
    home.mkdir()
    (home / "entry_points.txt").write_text("[attsvm.commands]\nact = acting_of_a_test\n")
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    (folder / "acting_of_a_test.py").write_text(COMMAND.replace("BODY", lines))
    path = os.pathsep.join(map(str, [folder, SOURCES]))
    return subprocess.Popen(
        [sys.executable, "-m", "attsvm", "act"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )


def ended(process):
    """Its exit code and what it printed."""
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    return process.returncode, out, err


SWALLOWED = {
    "destructor": "Struck()",
    "collector": "a = [Struck()]; a.append(a); del a; gc.collect()",
    "weak reference": "a = Struck.__new__(type('A', (), {})); b = weakref.ref(a, lambda _:"
    " strike()); del a",
    "everything is caught": "try:\n    strike()\nexcept BaseException:\n    pass",
    "callback of compiled code": "ctypes.CFUNCTYPE(None)(strike)()",
    "key of a sort": "try:\n    sorted([1, 2], key=lambda _: strike())\nexcept BaseException:\n"
    "    pass",
}


@pytest.mark.parametrize("body", SWALLOWED.values(), ids=list(SWALLOWED))
def test_an_interrupt_that_python_would_drop_ends_the_command(body, tmp_path):
    assert ended(acting(tmp_path, body)) == (130, "", "attsvm: interrupted\n")


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [("SIGTERM", 143, "ended by SIGTERM"), ("SIGHUP", 129, "ended by SIGHUP")],
)
def test_other_signals_that_end_a_command_have_their_own_codes(name, code, words, tmp_path):
    number = getattr(signal, name)
    before = signal.signal(number, signal.SIG_DFL)  # also where the tests run under nohup
    try:
        process = acting(tmp_path, f"strike({name!r})")
    finally:
        signal.signal(number, before)
    assert ended(process) == (code, "", f"attsvm: {words}\n")


def test_a_signal_that_the_shell_has_switched_off_stays_off(tmp_path):
    body = "signal.getsignal(signal.SIGHUP) == signal.SIG_IGN or sys.exit(1)\nstrike('SIGHUP')"
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = acting(tmp_path, body)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert ended(process) == (0, "went on\n", "")


def test_that_it_goes_on_is_said_where_something_is_kept(tmp_path):
    words = "attsvm: interrupted; the same command goes on from here\n"
    assert ended(acting(tmp_path, "work_is_kept()\nstrike()")) == (130, "", words)


def test_compiled_code_is_not_waited_for(tmp_path):
    body = "pathlib.Path('begun').touch()\ncompiled()"
    process = acting(tmp_path, body)
    until((tmp_path / "begun").exists)
    time.sleep(0.2)
    os.kill(process.pid, signal.SIGINT)
    assert ended(process) == (130, "", "attsvm: interrupted\n")


def test_an_unfinished_file_does_not_stay(tmp_path):
    process = acting(tmp_path, "writing('answer.npz')")
    until((tmp_path / "answer.npz.begun").exists)
    assert list(tmp_path.glob(".answer.*.partial.npz"))
    os.kill(process.pid, signal.SIGINT)
    assert ended(process)[0] == 130
    assert not list(tmp_path.glob(".*"))


PARALLEL = """
with workers(2) as executor:
    list(results(executor, writing, [("a.npz",), ("b.npz",)]))
"""


@pytest.mark.parametrize("all_of_them", [False, True], ids=["the command", "as a terminal does"])
def test_processes_end_before_the_command_and_leave_no_files(all_of_them, tmp_path):
    process = acting(tmp_path, PARALLEL)
    until(lambda: all((tmp_path / f"{name}.npz.begun").exists() for name in "ab"))
    send = os.killpg if all_of_them else os.kill
    send(process.pid, signal.SIGINT)
    assert ended(process) == (130, "", "attsvm: interrupted\n")
    assert not list(tmp_path.glob(".*"))
    until(lambda: not processes_of_session(process.pid))


def test_processes_that_begin_say_nothing_when_they_are_interrupted(tmp_path):
    """From the first moment of their Python on, which hears Ctrl-C as well."""
    body = """
with workers(2) as executor:
    executor.submit(print)
    time.sleep(0.05)
    os.killpg(os.getpid(), signal.SIGINT)
    time.sleep(300)
"""
    assert ended(acting(tmp_path, body)) == (130, "", "attsvm: interrupted\n")


def test_a_signal_waits_for_the_end_of_a_block_that_must_not_be_cut(tmp_path):
    body = """with uninterrupted():
    os.kill(os.getpid(), 2)
    time.sleep(0.5)  # until another thread has heard it: this one hears no Ctrl-C in the block
    print('whole', flush=True)"""
    assert ended(acting(tmp_path, body)) == (130, "whole\n", "attsvm: interrupted\n")


def test_after_its_work_a_command_is_still_ended(tmp_path):
    """Nobody reads 0 after Ctrl-C."""
    process = acting(tmp_path, "atexit.register(strike)")
    assert ended(process) == (130, "went on\n", "attsvm: interrupted\n")


def test_where_python_is_taken_down_the_system_ends_it(tmp_path):
    """And shells say 130."""
    body = "class Last:\n    def __del__(self, kill=os.kill, process=os.getpid()):\n"
    body += "        kill(process, 2)\nsys.modules[__name__].last = Last()"
    assert ended(acting(tmp_path, body)) == (-signal.SIGINT, "went on\n", "")


STUBBORN = """
import pathlib, signal, time
signal.signal(signal.SIGTERM, lambda *_, asked=pathlib.Path("asked"): asked.touch())
pathlib.Path("begun").touch()
while True:
    time.sleep(1)
"""


def test_a_second_signal_does_not_wait_for_processes(tmp_path):
    """Nor for words: after two seconds they would be said."""
    call = f"results(executor, exec, [({STUBBORN!r},)])"
    process = acting(tmp_path, f"with workers(2) as executor:\n    list({call})")
    for name in ("begun", "asked"):
        until((tmp_path / name).exists)
        os.kill(process.pid, signal.SIGINT)
    code, _, err = ended(process)
    assert code == 130
    assert "interrupted" not in err


def test_a_pipe_that_breaks_elsewhere_is_not_taken_for_a_reader_that_has_left(tmp_path):
    code, out, err = ended(acting(tmp_path, "raise BrokenPipeError(32, 'Broken pipe')"))
    assert (code, out) == (2, "")
    assert "Broken pipe" in err


def test_solving_keeps_nothing_to_go_on_from(tmp_path):
    words = "['solve', 'unit_sphere:400,30,40,0', '--norm', 'nuc', '--tol', '1e-14']"
    body = f"from attsvm.cli import main\npathlib.Path('begun').touch()\nmain({words})"
    process = acting(tmp_path, body)
    until((tmp_path / "begun").exists)
    time.sleep(1.5)
    os.kill(process.pid, signal.SIGINT)
    assert ended(process) == (130, "", "attsvm: interrupted\n")


def until(true, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def processes_of_session(leader):
    """Those that run in the session that this process has begun."""
    numbers = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == leader:
                numbers.append(int(entry.name))
    return numbers
