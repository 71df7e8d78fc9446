"""Runs in processes of their own: killed with SIGKILL, two that share a model, and several side by
side.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import training_problem as problem
from filelock import FileLock

from attsvm.errors import AttsvmError, InputError
from attsvm.training import train_classifier, train_many

SCRIPT = problem.__file__
HELD = {"test": problem.examples(64, 1)}


def environment(**variables):
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": os.pathsep.join(sys.path),
        **variables,
    }


def finished(folder):
    weights, history = torch.load(folder / "end.pt", weights_only=True)
    return weights, {
        name: values
        for name, values in history["columns"].items()
        if name not in ("seconds", "cpu_seconds", "tokens_per_second")
    }


@pytest.mark.slow
@pytest.mark.parametrize("waits", [(0.17,), (0.03, 0.11, 0.23, 0.31, 0.41)])
def test_sigkill_and_the_same_numbers(tmp_path, waits):
    """Killed at moments that nobody chose, then let through: the bits of a run that nobody
    touched.
    """
    epochs = 10 + 10 * len(waits)
    model = problem.classifier()
    whole = train_classifier(model, problem.examples(), HELD, problem.plan(epochs=epochs))
    command = [sys.executable, SCRIPT, str(tmp_path), str(epochs)]
    partial, before = tmp_path / "checkpoint" / "training.partial.safetensors", 0
    for wait in waits:
        process = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE)
        while process.poll() is None and (
            not partial.exists() or partial.stat().st_mtime_ns == before
        ):
            time.sleep(0.01)
        time.sleep(wait)
        assert process.poll() is None, process.communicate()[1].decode()  # it was still training
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        before = partial.stat().st_mtime_ns
    assert not (tmp_path / "end.pt").exists()
    subprocess.run(command, env=environment(), check=True, timeout=120)
    weights, columns = finished(tmp_path)
    assert torch.equal(weights, problem.weights(model))
    assert columns == {
        name: values for name, values in whole.to_json()["columns"].items() if name in columns
    }


@pytest.mark.slow
@pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()),
    reason="needs torch.distributed with gloo",
)
def test_torchrun_with_two_processes_ends_where_one_does(tmp_path):
    """With a last batch of one text, of which the second process has nothing."""
    settings = {"batch": 53, "p": 1.5, "parts": 2}
    model = problem.classifier(dropout=0.0)
    whole = train_classifier(model, problem.examples(), HELD, problem.plan(epochs=5, **settings))
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        SCRIPT,
        str(tmp_path),
        "5",
    ]
    subprocess.run(
        command,
        env=environment(DROPOUT="0", SETTINGS=json.dumps(settings)),
        check=True,
        timeout=180,
        capture_output=True,
    )
    weights, columns = finished(tmp_path)
    # gradients are summed in another order: roundings of float32, of which weights see 1 / (p - 1)
    # times
    torch.testing.assert_close(weights, problem.weights(model), rtol=0, atol=1e-6)
    for name, values in columns.items():
        assert values == pytest.approx(whole[name].tolist(), abs=1e-6), name
    rows = (tmp_path / "history.jsonl").read_text().splitlines()
    assert [json.loads(row)["epoch"] for row in rows] == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_side_by_side_is_one_after_another(tmp_path):
    plans = [problem.plan(seed=seed, lr=lr) for seed, lr in ((1, 1e-3), (2, 3e-3), (2, 1e-2))]

    def train(workers, **options):
        models = [problem.classifier(seed) for seed in range(3)]
        seen = []
        histories = train_many(
            models,
            problem.examples(),
            HELD,
            plans,
            workers=workers,
            progress=lambda *told: seen.append(told),
            **options,
        )
        assert seen == [("runs", k, 3) for k in (1, 2, 3)]
        return [problem.weights(model) for model in models], [
            history["train_loss"].tolist() for history in histories
        ]

    ends, losses = train(1)
    beside, told = train(2, folder=tmp_path)
    assert told == losses
    assert all(torch.equal(a, b) for a, b in zip(beside, ends, strict=True))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run-0", "run-1", "run-2"]


@pytest.mark.slow
def test_what_a_killed_call_left_is_removed_and_two_calls_do_not_share_a_folder(tmp_path):
    def train():
        models = [problem.classifier(seed) for seed in range(2)]
        plans = [problem.plan(epochs=1)] * 2
        train_many(models, problem.examples(), {}, plans, workers=2, folder=tmp_path)

    exchange = tmp_path / ".exchange"
    exchange.mkdir()
    (exchange / "examples.pt").write_bytes(b"half of the examples")
    with (
        FileLock(exchange / "lock"),
        pytest.raises(InputError, match="another process is"),
    ):
        train()
    train()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run-0", "run-1"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells processes of their parent's end")
def test_processes_of_torchrun_end_with_it(tmp_path):
    words = [*("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"), SCRIPT]
    runner = subprocess.Popen(
        [sys.executable, *words, str(tmp_path), "100000"], env=environment(ATTSVM_TEST="torchrun")
    )
    partial = tmp_path / "checkpoint" / "training.partial.safetensors"

    def started():
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if b"ATTSVM_TEST=torchrun" in (entry / "environ").read_bytes():
                    found.append(entry.name)
        return found

    while runner.poll() is None and not partial.exists():
        time.sleep(0.05)
    assert len(started()) >= 3
    runner.kill()
    runner.wait()
    deadline = time.monotonic() + 20.0
    while started():
        assert time.monotonic() < deadline, started()
        time.sleep(0.05)


def test_as_many_plans_as_models():
    with pytest.raises(InputError, match="1 models and 2 plans"):
        train_many([problem.classifier()], problem.examples(), {}, [problem.plan()] * 2)
    with pytest.raises(InputError, match="workers is 0"):
        train_many([problem.classifier()], problem.examples(), {}, [problem.plan()], workers=0)


class Deadly(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, ids, mask):
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_worker_that_is_killed_is_one_sentence():
    with pytest.raises(AttsvmError, match="ended before its run did"):
        train_many([Deadly()] * 2, problem.examples(), {}, [problem.plan()] * 2, workers=2)
