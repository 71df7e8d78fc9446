"""Signals at any moment, of runs in a new folder, of runs that overwrite others and of runs in
several processes: the results are those of runs that nobody touched, no other file stays, and no
process. After Ctrl-C and SIGTERM, other than after a kill, nothing unfinished is there for a
moment, nothing but one sentence is said, and the exit code is never 0.

``python tests/pipeline/test_kills.py --count 200 --seed 1 --signal INT`` does it for as long as
asked, to commands that import and draw everything.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from attsvm.base.files import load_arrays

FORKS = pytestmark = pytest.mark.skipif(
    not (sys.platform == "linux" and hasattr(os, "fork")), reason="looks into /proc, forks"
)

HERE = Path(__file__).parent
MOMENTS = ("anytime", "request.json", "arrays.safetensors", "report.html", "run.json")
FIRST = ("checkpoint", "anytime")
"""Moments of the first two kills, of a fit and of an experiment: both meet a run."""
MARK = "ATTSVM_TEST_OF_KILLS"
SMALL = ["--steps", "200", "--records", "5", "--quiet"]
SMALL += ["--checkpoint-seconds", "0.001", "--seed"]


class Commands:
    """Starts commands of attsvm as processes that lead a group of their own, as a shell does.

    Args:
        folder: marks all that is started, and holds what the last command has said.
    """

    def __init__(self, folder: Path) -> None:
        self._mark = f"{MARK}={folder}"
        self._environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self._environment |= {MARK: str(folder)}
        self._said, self._process = folder / "said", None

    def start(self, words: list[str]) -> int:
        """The number of the process that runs this command."""
        with self._said.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "attsvm", *words],
                env=self._environment,
                stdout=subprocess.DEVNULL,
                stderr=file,
                process_group=0,
                preexec_fn=hear,
            )
        return self._process.pid

    def ended(self) -> int:
        """The exit code of the command, once it has ended."""
        return self._process.wait()

    def said(self) -> str:
        """What the last command has printed on standard error."""
        return self._said.read_text(encoding="utf-8")

    def run(self, words: list[str]) -> None:
        """Run a command to its end."""
        self.start(words)
        assert self.ended() == 0

    def wait_until_alone(self, seconds: float = 60.0) -> None:
        """Until all that commands have started has ended: a signal or a pipe tells it to."""
        deadline = time.monotonic() + seconds
        while orphans := self._started():
            assert time.monotonic() < deadline, f"processes {orphans} are still there"
            time.sleep(0.05)

    def _started(self) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != self._process.pid:
                try:
                    environment = (entry / "environ").read_bytes().split(b"\0")
                except OSError:
                    continue
                if self._mark.encode() in environment:
                    found.append(int(entry.name))
        return found

    def close(self) -> None:
        """End it."""


def hear() -> None:
    """Hear Ctrl-C, which shells switch off for what runs in the background."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class Server(Commands):
    """A process that starts commands of attsvm without the second that imports take.

    Args:
        folder: see :class:`Commands`.
        figures: ``all``, or ``one`` to a page.
    """

    def __init__(self, folder: Path, figures: str = "one") -> None:
        super().__init__(folder)
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "kill_server.py"), str(self._said), figures],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=hear,
        )

    def start(self, words: list[str]) -> int:
        """The number of the process that runs this command."""
        print(json.dumps(words), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())

    def ended(self) -> int:
        """The exit code of the command, once it has ended."""
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


class Kill:
    """SIGKILL of a command."""

    number, codes, moments = signal.SIGKILL, (-signal.SIGKILL,), MOMENTS

    def send(self, process: int) -> bool:
        """Send it; whether the command surely had not ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, self.number)
        return False

    def check(self, server: Commands, folder: Path, met: bool) -> None:
        """What must hold as soon as the command has ended."""
        server.wait_until_alone()


class Interrupt(Kill):
    """A signal that commands heed, to all processes of a command as a terminal sends it.

    Before the command hears it and after its end the system ends it, and shells print the same
    code.
    """

    def __init__(self, number: signal.Signals) -> None:
        self.number, self.codes = number, (128 + number, -number)
        self.moments = (*MOMENTS, "anytime", "anytime", "anytime")
        self.slowest, self._began = 0.0, 0.0

    def send(self, process: int) -> bool:
        """Send it to a command that is stopped for that, so that it surely has not ended; whether
        it had not.
        """
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGSTOP)
            while (state := state_of(process)) not in "TZX":
                time.sleep(0.001)
            if state == "T":
                os.killpg(process, self.number)
                self._began = time.monotonic()
                os.kill(process, signal.SIGCONT)
                return True
        return False

    def check(self, server: Commands, folder: Path, met: bool) -> None:
        """No process, no file that is not finished, and no words but one sentence."""
        if not met:
            return
        self.slowest = max(self.slowest, time.monotonic() - self._began)
        server.wait_until_alone(5.0)  # Python's tracker of semaphores ends after the command
        unfinished = [name for name in names(folder) if ".partial" in name or "safetensors" in name]
        unfinished = [name for name in unfinished if Path(name).name.startswith(".")]
        assert not unfinished, (unfinished, server.said())
        words = server.said()
        assert not set(words.splitlines()[:-1]) - {""}, words
        assert not words or words.splitlines()[-1].startswith("attsvm: "), words
        patterns = ("run.json", "checkpoint/*.safetensors", "cells/*/*.safetensors")
        if "goes on from here" in words:
            assert any(list(folder.glob(pattern)) for pattern in patterns)


def state_of(process: int) -> str:
    """The letter that /proc has for its state; X when it is not there."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except OSError:
        return "X"
    return text.rpartition(")")[2].split()[0]


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def kept(folder: Path) -> dict[str, object]:
    """The results in a folder: bits of arrays, and run.json but for times."""
    arrays = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("arrays.*")}
    runs = {}
    for path in folder.rglob("run.json"):
        run = json.loads(path.read_text(encoding="utf-8"))
        other = ("timing", "seconds", "command_line")
        runs[str(path.relative_to(folder))] = {k: v for k, v in run.items() if k not in other}
    return {**arrays, **runs}


def changed(path: Path) -> int:
    """When it was written last, 0 while it is not there."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def check_final_names(folder: Path) -> None:
    """Whatever stands under a final name is whole."""
    for path in folder.rglob("*"):
        if not path.name.startswith("."):
            if path.suffix == ".json":
                json.loads(path.read_text(encoding="utf-8"))
            elif path.suffix == ".safetensors":
                load_arrays(path)
            elif path.suffix == ".html":
                assert path.read_text(encoding="utf-8").rstrip().endswith("</html>")


class Job:
    """What is killed: runs that take turns in a folder, each overwriting the one before; the first
    finds no folder, and with ``anew`` all others too.
    """

    def __init__(self, server: Commands, home: Path, turns: list[list[str]], *, anew: bool) -> None:
        self.server, self.folder, self.turns, self.anew = server, home / "killed", turns, anew
        self.kind = Kill()
        self.home, self.whole, self.names, self.seconds, self.turn = home, [], [], [], 0
        self.first = True

    def run_whole(self) -> None:
        """The run whose turn it is, when nobody kills it."""
        folder = self.home / f"whole-{self.turn}"
        began = time.monotonic()
        self.server.run([*self.turns[self.turn], "--out", str(folder)])
        self.seconds.append(time.monotonic() - began)
        self.whole.append(kept(folder))
        self.names.append(names(folder))

    def kill(self, chance: random.Random, moment: str = "") -> bool:
        """Start the run and kill it, at a moment of the whole run or shortly after a file was
        written, or in its first half; whether it was still running.
        """
        if self.turn == len(self.whole):
            self.run_whole()
        before, early = self.turn, moment == "anytime"
        moment = moment or chance.choice(self.kind.moments)
        written = [*self.folder.glob(f"*/{moment}"), self.folder / moment]
        stamps = [changed(path) for path in written]
        process = self.server.start(self.words)
        began = time.monotonic()
        limit = self.seconds[before] * (chance.random() if moment == "anytime" else 2.0)
        limit *= 0.5 if early else 1.0
        while time.monotonic() - began < limit and moment != "anytime":
            if [changed(path) for path in written] != stamps:
                limit = 0.0
            time.sleep(0.001)
        time.sleep(limit if moment == "anytime" else chance.random() ** 2 * 0.1)
        met = self.kind.send(process)
        code = self.server.ended()
        assert code in (self.kind.codes if met else (0, *self.kind.codes)), code
        self.kind.check(self.server, self.folder, code != 0)
        check_final_names(self.folder)
        self.check_state()
        return code != 0

    @property
    def words(self) -> list[str]:
        more = [] if self.anew or self.first else ["--overwrite"]
        return [*self.turns[self.turn], *more, "--out", str(self.folder)]

    def check_state(self) -> None:
        """It is the run before, whole, or the new one."""
        if self.anew or not (self.folder / "request.json").exists():
            return
        request = json.loads((self.folder / "request.json").read_text(encoding="utf-8"))["request"]
        run = self.folder / "run.json"
        old = str(request["parameters"]["seed"]) not in self.turns[self.turn]
        if old:
            assert kept(self.folder) == self.whole[self.turn - 1]
        elif (
            run.exists()
            and json.loads(run.read_text(encoding="utf-8"))["key"]
            == json.loads((self.folder / "request.json").read_text(encoding="utf-8"))["key"]
        ):
            assert kept(self.folder) == self.whole[self.turn]

    def finish(self) -> None:
        """Let it through, compare, and let the next one have its turn."""
        self.server.run(self.words)
        self.server.wait_until_alone()
        assert kept(self.folder) == self.whole[self.turn]
        assert names(self.folder) == self.names[self.turn]
        self.turn, self.first = (self.turn + 1) % len(self.turns), False
        if self.anew:
            shutil.rmtree(self.folder)


FIGURE = '''"""Squares.

Of whole numbers.

Source: nowhere
"""

import time


def cells(parameters):
    return [{"first": first} for first in range(12)]


def run(first):
    time.sleep(0.1)
    return {"square": [first**2]}
'''


def kills(
    home: Path,
    count: int,
    seed: int,
    experiment: Sequence[str] = ("tfsvm-4", "--seeds", "1"),
    kind: Kill | None = None,
    say=lambda text: None,
    *,
    everything: bool = False,
) -> int:
    """Kill this often, runs of a fit and of an experiment in two processes; return how many of the
    kills met a run that was going on. With ``everything`` all figures are drawn, and a sixth of the
    runs are fits of digits in processes that begin with their imports.
    """
    server = Server(home, "all" if everything else "one")
    try:
        jobs = fit_and_sweep(server, home, experiment)
        if everything:
            (home / "digits").mkdir()
            jobs.append(Job(Commands(home / "digits"), home / "digits", fits("digits"), anew=False))
        return killed(jobs, count, seed, kind or Kill(), say)
    finally:
        server.close()


def fit_and_sweep(server: Server, home: Path, experiment: Sequence[str]) -> list[Job]:
    """Fits that take turns in a folder, and an experiment in two processes."""
    X = np.random.default_rng(0).normal(size=(40, 3, 3))
    data = home / "data.npz"
    np.savez(data, X=X, y=np.where(X[:, 0, 0] > 0, 1, -1))
    sweep = ["reproduce", *experiment, "--quick", "--jobs", "2", "--json"]
    return [
        Job(server, home / "fit", fits(str(data)), anew=False),
        Job(server, home / "reproduce", [sweep], anew=True),
    ]


def killed(jobs: list[Job], count: int, seed: int, kind: Kill, say=lambda text: None) -> int:
    """Kill these jobs that often in turn; see :func:`kills`."""
    chance, done, met = random.Random(seed), 0, 0
    weights = [3, 1, 0.8][: len(jobs)]
    first = iter([(jobs[0], 1), (jobs[1], 1), (jobs[0], 2)])  # so that few kills meet each kind
    while done < count:
        anyhow = chance.choices(jobs, weights)[0], chance.choice((1, 2, 3, 5))
        job, often = next(first, anyhow)
        job.kind = kind
        for _ in range(min(often, count - done)):
            met += job.kill(chance, FIRST[done] if done < len(FIRST) else "")
            done += 1
        job.finish()
        say(f"{done} kills, {met} met a run")
    return met


def fits(data: str) -> list[list[str]]:
    """Two runs that take turns."""
    return [["fit", data, *SMALL, "1"], ["fit", data, *SMALL, "2"]]


SEED = int(os.environ.get("ATTSVM_SEED", "0"))


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """A fit and a sweep, whose server and whose runs that nobody kills both tests share."""
    home = tmp_path_factory.mktemp("kills")
    (home / "squares.py").write_text(FIGURE)
    server = Server(home)
    yield fit_and_sweep(server, home, [str(home / "squares.py")])
    server.close()


@pytest.mark.experiment
def test_sigkill_of_a_fit_and_of_a_sweep_in_two_processes(jobs):
    assert killed(jobs, 2, SEED, Kill()) > 0


@pytest.mark.experiment
def test_an_interrupted_fit_and_an_interrupted_sweep_go_on(jobs):
    assert killed(jobs, 2, SEED, Interrupt(signal.SIGINT)) > 0


@pytest.mark.slow
def test_many_sigkills(tmp_path):
    assert kills(tmp_path, 200, SEED) > 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--signal", choices=("KILL", "INT", "TERM", "HUP"), default="KILL")
    options = parser.parse_args()
    chosen = signal.Signals[f"SIG{options.signal}"]
    kind = Kill() if chosen == signal.SIGKILL else Interrupt(chosen)
    with tempfile.TemporaryDirectory() as temporary:
        met = kills(
            Path(temporary),
            options.count,
            options.seed,
            kind=kind,
            say=lambda text: print(text, flush=True),
            everything=isinstance(kind, Interrupt),
        )
    print(f"{options.count} kills, {met} of them while a run went on: equal results, no leftovers")
    if isinstance(kind, Interrupt):
        print(f"the slowest ended after {kind.slowest:.2f} s")
