"""A probe that is interrupted goes on: what is finished stays, and the results are the same."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attsvm.base.errors import InputError
from attsvm.transformers.probe import ProbeRequest, probe

from .conftest import saved, transformers


def request(folder: Path, *models: Path, **changes: Any) -> ProbeRequest:
    text = folder / "text.txt"
    if not text.exists():
        rng = np.random.default_rng(0)
        lines = [" ".join(f"w{i}" for i in rng.integers(0, 90, 7)) for _ in range(2)]
        text.write_text("\n".join(lines), "utf-8")
    settings = {"nulls": ("permuted",), "draws": 1, "threshold": 0.3, **changes}
    return ProbeRequest(tuple(map(str, models)), text, **settings)


class Heads:
    """Progress of a probe; after so many heads it does something, and interrupts."""

    def __init__(self, stop: int | None = None, then: Callable[[], Any] = lambda: None) -> None:
        self.done: list[int] = []
        self._stop, self._then = stop, then

    def __call__(self, done: int, total: int) -> None:
        self.done.append(done)
        if done == self._stop:
            self._then()
            raise KeyboardInterrupt


def interrupted(asked: ProbeRequest, out: Path, stop: int, **options: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        probe(asked, out, progress=Heads(stop), **options)


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
    asked = request(tmp_path, saved(tmp_path / "one", 600.0), saved(tmp_path / "two", 900.0))
    probe(asked, tmp_path / "straight")
    straight = record(tmp_path / "straight")
    assert all(row["fro_status"] == "optimal" for row in straight["heads"])
    loaded: list[str] = []
    plain = transformers.AutoModel.from_pretrained

    def load(name: str, **options: Any) -> Any:
        loaded.append(Path(name).name)
        return plain(name, **options)

    monkeypatch.setattr(transformers.AutoModel, "from_pretrained", load)
    out, killed = tmp_path / "out", tmp_path / "killed"
    first = 0
    for stop, models in ((3, ["one"]), (8, ["one"]), (14, ["two"]), (None, ["two"])):
        # what is on the disk in the middle of a head is all that a killed probe leaves
        heads = Heads(stop, lambda: shutil.copytree(out, killed, dirs_exist_ok=True))
        with contextlib.suppress(KeyboardInterrupt):
            probe(asked, out, progress=heads)
            assert stop is None
        assert heads.done == sorted(heads.done)
        assert heads.done[0] >= first
        assert sorted({*heads.done} - {first}) == list(range(first + 1, (stop or 16) + 1))
        assert list(dict.fromkeys(loaded)) == models
        loaded.clear()
        first = stop or 16
    probe(asked, killed)
    assert loaded == ["two"]
    for folder in (out, killed):
        assert record(folder) == straight
        assert page(folder) == page(tmp_path / "straight")


def test_the_page_is_there_before_any_head_is_compared(tmp_path: Path) -> None:
    asked, out = request(tmp_path, saved(tmp_path / "model", 600.0)), tmp_path / "out"
    first: list[Path] = []
    interrupted(asked, out, 1, on_first_page=first.append)
    assert first == [out / "report.html"]
    assert page(out).count('class="head"') == 8
    assert "0 of 8 heads are compared with their max-margin solutions so far" in page(out)
    assert page(out).count(">not solved yet<") == 8
    interrupted(asked, out, 3, page_share=1e9, page_interval=0.0)
    assert "2 of 8 heads are compared with their max-margin solutions so far" in page(out)
    probe(asked, out)
    assert "so far" not in page(out)
    assert ">not solved yet<" not in page(out)


def test_what_is_unfinished_is_not_of_another_request(tmp_path: Path) -> None:
    """Other options, another text under the same name, another model in the same folder."""
    model, text, out = saved(tmp_path / "model", 600.0), tmp_path / "text.txt", tmp_path / "out"
    asked = request(tmp_path, model)
    interrupted(asked, out, 5)
    kept = sorted(path.name for path in out.rglob("*"))
    assert "checkpoint" in kept
    for change, other, told in (
        (lambda: None, {"seed": 1}, r"holds another run \(seed was 0, now 1\)"),
        (lambda: saved(model, 900.0), {}, f"the content of {model} was"),
        (lambda: (saved(model, 600.0), text.write_text("w1 w2 w3\n")), {}, r"\(sha256 was"),
    ):
        change()
        with pytest.raises(InputError, match=told):
            probe(request(tmp_path, model, **other), out)
        assert sorted(path.name for path in out.rglob("*")) == kept
    probe(asked, out, overwrite=True)
    assert len(record(out)["heads"]) == 8
