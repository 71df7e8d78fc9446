"""A probe that is interrupted goes on: what is finished stays, and the results are the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attsvm
from attsvm.cli import main
from attsvm.progress import ProgressBars

from .conftest import family

transformers = pytest.importorskip("transformers")
BERT = transformers.BertModel, transformers.BertTokenizer, transformers.AutoModel  # loaded once


def saved(folder: Path, factor: float) -> Path:
    """A random model whose attention is sharp."""
    model = family("bert")
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.attention.self.query.weight.mul_(factor)
    model.save_pretrained(folder)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(90))]
    (folder / "words.txt").write_text("\n".join(words), "utf-8")
    transformers.BertTokenizer(str(folder / "words.txt")).save_pretrained(folder)
    return folder


def command(folder: Path, *models: Path) -> list[str]:
    text = folder / "text.txt"
    rng = np.random.default_rng(0)
    lines = [" ".join(f"w{i}" for i in rng.integers(0, 90, 7)) for _ in range(2)]
    text.write_text("\n".join(lines), "utf-8")
    options = ["--norm", "fro", "--null", "permuted", "--draws", "1", "--threshold", "0.3"]
    return ["probe", *map(str, models), "--text", str(text), *options, "--json"]


class Heads:
    """Watches the progress of a probe; raises after so many heads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stop: int | None = None) -> None:
        self.seen: list[int] = []

        def watch(bars: ProgressBars, stage: str, done: int, total: int) -> None:
            self.seen.append(done)
            if done == stop:
                raise KeyboardInterrupt

        monkeypatch.setattr(ProgressBars, "__call__", watch)


def record(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "run.json").read_text("utf-8"))
    assert not (folder / "checkpoint").exists()
    return {key: found[key] for key in ("headline", "detail", "notes", "texts", "heads")}


def test_an_interrupted_probe_repeats_no_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two models of eight heads each; stopped within each of them, and in between."""
    asked = command(tmp_path, saved(tmp_path / "one", 600.0), saved(tmp_path / "two", 900.0))
    assert main([*asked, "--out", str(tmp_path / "straight"), "--quiet"]) == 0
    straight = record(tmp_path / "straight")
    assert all(row["fro_status"] == "optimal" for row in straight["heads"])
    out = tmp_path / "out"
    first = 0
    for stop in (3, 8, 14, None):
        heads = Heads(monkeypatch, stop)
        code = main([*asked, "--out", str(out)])
        assert (code == 0) is (stop is None)
        assert heads.seen == sorted(heads.seen)
        assert heads.seen[0] >= first
        assert sorted({*heads.seen} - {first}) == list(range(first + 1, (stop or 16) + 1))
        first = stop or 16
    assert record(out) == straight
    pages = [
        (folder / "report.html").read_text("utf-8").partition("<footer>")[0]
        for folder in (out, tmp_path / "straight")
    ]
    assert pages[0] == pages[1]


def test_the_page_is_there_before_any_head_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = command(tmp_path, saved(tmp_path / "model", 600.0))
    out = tmp_path / "out"
    Heads(monkeypatch, 1)
    capsys.readouterr()
    assert main([*asked, "--out", str(out)]) != 0
    page = (out / "report.html").read_text("utf-8")
    assert page.count('class="head"') == 8
    assert "0 of 8 heads are compared with their max-margin solutions so far" in page
    assert page.count(">not solved yet<") == 8
    assert f"{out / 'report.html'}: statistics of all heads" in capsys.readouterr().err
    Heads(monkeypatch)
    assert main([*asked, "--out", str(out)]) == 0
    page = (out / "report.html").read_text("utf-8")
    assert "so far" not in page
    assert ">not solved yet<" not in page


def test_finished_models_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = command(tmp_path, saved(tmp_path / "one", 600.0), saved(tmp_path / "two", 900.0))
    Heads(monkeypatch, 11)
    assert main([*asked, "--out", str(tmp_path / "out")]) != 0
    loaded = []
    plain = transformers.AutoModel.from_pretrained

    def load(name: str) -> Any:
        loaded.append(Path(name).name)
        return plain(name)

    monkeypatch.setattr(transformers.AutoModel, "from_pretrained", load)
    Heads(monkeypatch)
    assert main([*asked, "--out", str(tmp_path / "out")]) == 0
    assert loaded == ["two"]


def test_what_is_unfinished_is_not_of_another_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other options, another text under the same name, another model in the same folder."""
    model = saved(tmp_path / "model", 600.0)
    asked = [*command(tmp_path, model), "--out", str(tmp_path / "out")]
    Heads(monkeypatch, 5)
    assert main(asked) != 0
    kept = sorted(path.name for path in (tmp_path / "out").rglob("*"))
    assert "checkpoint" in kept
    capsys.readouterr()

    def refused(*more: str) -> str:
        assert main([*asked, *more]) == 2
        assert sorted(path.name for path in (tmp_path / "out").rglob("*")) == kept
        error = capsys.readouterr().err.strip()
        assert "\n" not in error
        return error

    assert "holds another run (seed was 0, now 1)" in refused("--seed", "1")
    saved(model, 900.0)
    capsys.readouterr()
    assert f"the content of {model} was" in refused()
    saved(model, 600.0)
    (tmp_path / "text.txt").write_text("w1 w2 w3\n", "utf-8")
    capsys.readouterr()
    assert "holds another run (sha256 was" in refused()
    Heads(monkeypatch)
    assert main([*asked, "--overwrite"]) == 0
    assert len(record(tmp_path / "out")["heads"]) == 8


@pytest.mark.slow
def test_a_killed_probe_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = command(tmp_path, saved(tmp_path / "model", 600.0))
    again, out = [*asked, "--draws", "40"], tmp_path / "out"
    source = Path(attsvm.__file__).parents[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "attsvm", *again, "--out", str(out)],
        env={**os.environ, "PYTHONPATH": str(source)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 120
        while not list(out.glob("checkpoint/*-head-*.safetensors")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (out / "run.json").exists()
    heads = Heads(monkeypatch)
    assert main([*again, "--out", str(out)]) == 0
    assert heads.seen[0] >= 1  # what is there before anything is done
    assert heads.seen[-1] == 8
    assert main([*again, "--out", str(tmp_path / "straight"), "--quiet"]) == 0
    assert record(out) == record(tmp_path / "straight")
