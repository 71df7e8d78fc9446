"""The scripts of benchmarks/ that measure steps and training: they run, and their loop is the
training that it is compared with.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[list[str]]]:
    """The cells of every row that a script prints."""

    def run(script: str, *words: str) -> list[list[str]]:
        monkeypatch.setattr(sys, "argv", [script, *words])
        runpy.run_path(str(BENCHMARKS / script))["main"]()
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]

    return run


def test_steps_have_a_row_each_beside_an_optimiser_of_torch(printed) -> None:
    words = ["--rounds", "1", "--copied", "1000", "--only", "p=2 foreach,p=1.1 fused,SGD fused"]
    rows = printed("step.py", "--parameters", "10K", *words)
    names = ["SGD fused", "MirrorDescent p=2 foreach", "MirrorDescent p=1.1 fused"]
    assert [row[0] for row in rows[2:]] == names
    assert {len(row) for row in rows} == {8}
    assert [row[3].partition("x ")[2] for row in rows[2:]] == [
        *("AdamW fused", "AdamW foreach", "AdamW fused")
    ]
    assert all(float(row[3].partition("x")[0]) > 0 for row in rows[2:])
    assert [row[6] for row in rows[2:]] == ["0.0", "0.0", "4.0"]  # bytes of state per parameter


def test_training_is_measured_beside_loops(printed) -> None:
    rows = printed("train.py", "--steps", "4", "--seeds", "2", "--sequences", "8")
    names = [row[0].partition(",")[0] for row in rows]
    assert names[2:7] == ["textbook loop", "W", "K and Q", "W", "W and the head"]
    assert names[9:] == ["padded autograd", "W", "W and the head"]
    assert all(row[-1].endswith("x") for row in rows if row[1][0].isdigit())


@pytest.mark.parametrize(("name", "size"), [("1M", 1e6), ("10M", 1e7), ("100M", 1e8), ("1G", 1e9)])
def test_lists_have_the_size_of_their_names(name: str, size: float) -> None:
    found = runpy.run_path(str(BENCHMARKS / "step.py"))["LISTS"][name]()
    assert sum(map(np.prod, found)) == pytest.approx(size, rel=0.07)


def test_the_peak_of_a_block_is_seen() -> None:
    with runpy.run_path(str(BENCHMARKS / "step.py"))["peak_memory"](torch.device("cpu")) as peak:
        torch.ones(1 << 24)  # 64 MiB
    if peak[0] is None:
        pytest.skip("this system keeps no peak of resident memory")
    assert 0.9 * 2**26 <= peak[0] <= 1.5 * 2**26


@pytest.mark.parametrize(("ragged", "steps"), [(False, 30), (True, 2)])
def test_the_loops_descend_as_the_library_does(ragged: bool, steps: int) -> None:
    from attsvm.attention import Attention
    from attsvm.datasets import unit_sphere
    from attsvm.optim import SteepestDescent
    from attsvm.training import train

    script = runpy.run_path(str(BENCHMARKS / "train.py"))
    data, v = script["ragged"](8) if ragged else unit_sphere(*script["SIZE"], seed=0)
    model = Attention.cross(data, v)
    train(model, data, SteepestDescent(model.parameters(), lr=script["LR"]), steps)
    loop = script["padded" if ragged else "textbook"](data, v, steps)
    ours = model.state_dict()["W"].numpy().reshape(loop.shape)
    # before saturation the two differ by rounding and by the epsilon in the loop's divisor
    np.testing.assert_allclose(ours, loop, atol=1e-12)
