"""A probe that is interrupted goes on: what is finished stays, and the results are the same."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attsvm.base.progress import ProgressBars
from attsvm.cli import main
from attsvm.transformers import run

from .conftest import saved, transformers


def command(folder: Path, *models: Path) -> list[str]:
    text = folder / "text.txt"
    rng = np.random.default_rng(0)
    lines = [" ".join(f"w{i}" for i in rng.integers(0, 90, 7)) for _ in range(2)]
    text.write_text("\n".join(lines), "utf-8")
    options = ["--norm", "fro", "--null", "permuted", "--draws", "1", "--threshold", "0.3"]
    return ["probe", *map(str, models), "--text", str(text), *options, "--json"]


class Heads:
    """Watches the progress of a probe; after so many heads does something, and raises."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        stop: int | None = None,
        then: Callable[[], Any] = lambda: None,
    ) -> None:
        self.seen: list[int] = []

        def watch(bars: ProgressBars, stage: str, done: int, total: int) -> None:
            self.seen.append(done)
            if done == stop:
                then()
                raise KeyboardInterrupt

        monkeypatch.setattr(ProgressBars, "__call__", watch)


def record(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "run.json").read_text("utf-8"))
    assert not (folder / "checkpoint").exists()
    return {key: found[key] for key in ("headline", "detail", "notes", "texts", "heads")}


def page(folder: Path) -> str:
    return (folder / "report.html").read_text("utf-8").partition("<footer>")[0]


def test_an_interrupted_probe_repeats_no_head_and_runs_no_finished_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two models of eight heads each; stopped within each of them, and in between; and killed."""
    asked = command(tmp_path, saved(tmp_path / "one", 600.0), saved(tmp_path / "two", 900.0))
    assert main([*asked, "--out", str(tmp_path / "straight"), "--quiet"]) == 0
    straight = record(tmp_path / "straight")
    assert all(row["fro_status"] == "optimal" for row in straight["heads"])
    loaded: list[str] = []
    plain = transformers.AutoModel.from_pretrained

    def load(name: str) -> Any:
        loaded.append(Path(name).name)
        return plain(name)

    monkeypatch.setattr(transformers.AutoModel, "from_pretrained", load)
    out, killed = tmp_path / "out", tmp_path / "killed"
    first = 0
    for stop, models in ((3, ["one"]), (8, ["one"]), (14, ["two"]), (None, ["two"])):
        # what is on the disk in the middle of a head is all that a killed probe leaves
        heads = Heads(monkeypatch, stop, lambda: shutil.copytree(out, killed, dirs_exist_ok=True))
        code = main([*asked, "--out", str(out)])
        assert (code == 0) is (stop is None)
        assert heads.seen == sorted(heads.seen)
        assert heads.seen[0] >= first
        assert sorted({*heads.seen} - {first}) == list(range(first + 1, (stop or 16) + 1))
        assert list(dict.fromkeys(loaded)) == models
        loaded.clear()
        first = stop or 16
    assert main([*asked, "--out", str(killed)]) == 0
    assert loaded == ["two"]
    for folder in (out, killed):
        assert record(folder) == straight
        assert page(folder) == page(tmp_path / "straight")


def test_the_page_is_there_before_any_head_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = command(tmp_path, saved(tmp_path / "model", 600.0))
    out = tmp_path / "out"
    Heads(monkeypatch, 1)
    capsys.readouterr()
    assert main([*asked, "--out", str(out)]) != 0
    assert page(out).count('class="head"') == 8
    assert "0 of 8 heads are compared with their max-margin solutions so far" in page(out)
    assert page(out).count(">not solved yet<") == 8
    assert f"{out / 'report.html'}: statistics of all heads" in capsys.readouterr().err
    clock = itertools.chain([0.0] * 3, itertools.count(1e9, 1e9))  # once the page is there, late
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    Heads(monkeypatch, 3)
    assert main([*asked, "--out", str(out)]) != 0
    assert "2 of 8 heads are compared with their max-margin solutions so far" in page(out)
    Heads(monkeypatch)
    assert main([*asked, "--out", str(out)]) == 0
    assert "so far" not in page(out)
    assert ">not solved yet<" not in page(out)


def test_what_is_unfinished_is_not_of_another_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other options, another text under the same name, another model in the same folder."""
    model, text = saved(tmp_path / "model", 600.0), tmp_path / "text.txt"
    asked = [*command(tmp_path, model), "--out", str(tmp_path / "out")]
    Heads(monkeypatch, 5)
    assert main(asked) != 0
    kept = sorted(path.name for path in (tmp_path / "out").rglob("*"))
    assert "checkpoint" in kept
    for change, more, told in (
        (lambda: None, ["--seed", "1"], "holds another run (seed was 0, now 1)"),
        (lambda: saved(model, 900.0), [], f"the content of {model} was"),
        (lambda: (saved(model, 600.0), text.write_text("w1 w2 w3\n")), [], "(sha256 was"),
    ):
        change()
        capsys.readouterr()
        assert main([*asked, *more]) == 2
        assert sorted(path.name for path in (tmp_path / "out").rglob("*")) == kept
        error = capsys.readouterr().err
        assert told in error
        assert error.count("\n") == 1
    Heads(monkeypatch)
    assert main([*asked, "--overwrite"]) == 0
    assert len(record(tmp_path / "out")["heads"]) == 8
