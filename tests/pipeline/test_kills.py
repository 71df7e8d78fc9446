"""SIGKILL at any moment, of runs in a new folder, of runs that overwrite others and of runs in
several processes: the results are those of runs that nobody touched, no other file stays, and no
process.

``python tests/pipeline/test_kills.py --count 200 --seed 1`` does it for as long as asked.
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

from attsvm.files import load_arrays

pytestmark = pytest.mark.skipif(
    not (sys.platform == "linux" and hasattr(os, "fork")), reason="looks into /proc, forks"
)

HERE = Path(__file__).parent
MOMENTS = ("anytime", "request.json", "arrays.safetensors", "report.html", "run.json")
FIRST = ("checkpoint", "anytime")
"""Moments of the first two kills, of a fit and of an experiment: both meet a run."""
MARK = "ATTSVM_TEST_OF_KILLS"


class Server:
    """A process that starts commands of attsvm without the second that imports take."""

    def __init__(self, folder: Path) -> None:
        self._mark = f"{MARK}={folder}"
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "kill_server.py")],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), MARK: str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, words: list[str]) -> int:
        """The number of the process that runs this command."""
        print(json.dumps(words), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())

    def ended(self) -> int:
        """The exit code of the command, once it has ended."""
        return int(self._process.stdout.readline())

    def run(self, words: list[str]) -> None:
        """Run a command to its end."""
        self.start(words)
        assert self.ended() == 0

    def wait_until_alone(self) -> None:
        """Until all that commands have started has ended: a signal or a pipe tells it to."""
        deadline = time.monotonic() + 60.0
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
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


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

    def __init__(self, server: Server, home: Path, turns: list[list[str]], *, anew: bool) -> None:
        self.server, self.folder, self.turns, self.anew = server, home / "killed", turns, anew
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
        moment = moment or chance.choice(MOMENTS)
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
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        code = self.server.ended()
        assert code in (0, -signal.SIGKILL), code
        self.server.wait_until_alone()
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
    say=lambda text: None,
) -> int:
    """Kill this often, runs of a fit and of an experiment in two processes; return how many of the
    kills met a run that was going on.
    """
    chance, generator = random.Random(seed), np.random.default_rng(0)
    X = generator.normal(size=(40, 3, 3))
    data = home / "data.npz"
    np.savez(data, X=X, y=np.where(X[:, 0, 0] > 0, 1, -1))
    small = ["--steps", "200", "--joint-steps", "20", "--records", "5", "--quiet"]
    fit = ["fit", str(data), *small, "--checkpoint-seconds", "0.001", "--seed"]
    server = Server(home)
    try:
        jobs = [
            Job(server, home / "fit", [[*fit, "1"], [*fit, "2"]], anew=False),
            Job(
                server,
                home / "reproduce",
                [["reproduce", *experiment, "--quick", "--jobs", "2", "--json"]],
                anew=True,
            ),
        ]
        done = met = 0
        first = iter([(jobs[0], 1), (jobs[1], 1), (jobs[0], 2)])  # so that few kills meet each kind
        while done < count:
            anyhow = jobs[chance.random() < 0.25], chance.choice((1, 2, 3, 5))
            job, often = next(first, anyhow)
            for _ in range(min(often, count - done)):
                met += job.kill(chance, FIRST[done] if done < len(FIRST) else "")
                done += 1
            job.finish()
            say(f"{done} kills, {met} met a run")
    finally:
        server.close()
    return met


SEED = int(os.environ.get("ATTSVM_SEED", "0"))


@pytest.mark.experiment
def test_sigkill_of_a_fit_and_of_a_sweep_in_two_processes(tmp_path):
    (tmp_path / "squares.py").write_text(FIGURE)
    assert kills(tmp_path, 2, SEED, [str(tmp_path / "squares.py")]) > 0


@pytest.mark.slow
def test_many_sigkills(tmp_path):
    assert kills(tmp_path, 200, SEED) > 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        met = kills(Path(temporary), options.count, options.seed, say=lambda text: print(text))
    print(f"{options.count} kills, {met} of them while a run went on: equal results, no leftovers")
