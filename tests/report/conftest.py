"""Run folders of small fits: digits with patches, texts with words, plain arrays."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import attsvm.report
from attsvm.datasets import load
from attsvm.pipeline.fit import fit_dataset
from attsvm.pipeline.settings import FitSettings
from attsvm.report import figures, style

GOOD, BAD, PLAIN = "lovely warm moving", "dull stale weak", "the film plot city sea story train"
SOURCES = {
    "text": ("text.jsonl", {"dim": 8}),
    "image": ("digits", {"patch": 4}),
    "array": ("unit_sphere:60,5,4,0", {}),
}


def texts() -> str:
    """Ninety sentences whose class shows in a few words, some of them long, one of a few words."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(90):
        told = [*rng.choice(PLAIN.split(), 5), *rng.choice((GOOD if i % 2 else BAD).split(), 2)]
        text = " ".join(rng.permutation(told)) + " נפלא 50 % <b>no</b> & more"
        rows.append({"text": text * (1 + 30 * (i % 5 == 0)), "label": ["bad", "good"][i % 2]})
    return "\n".join(map(json.dumps, rows))


@pytest.fixture(scope="session")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a fit of a kind, not to be changed."""

    @cache
    def get(kind: str) -> Path:
        folder = tmp_path_factory.mktemp("fitted")
        (folder / "text.jsonl").write_text(texts(), encoding="utf-8")
        spec, options = SOURCES[kind]
        dataset = load(folder / spec if kind == "text" else spec, **options)
        settings = FitSettings(selection_steps=60, records=8)
        command = f"attsvm fit {spec} --out {kind}"
        fit_dataset(dataset, settings, folder / kind, command_line=command)
        return folder / kind

    return get


@pytest.fixture
def make_folder(fitted: Callable[[str], Path], tmp_path: Path) -> Callable[..., Path]:
    """``make_folder(kind, change)``: a copy without its page, its record, arrays and examples
    changed in place.
    """

    def make(kind: str = "text", change: Any = None, above: Path = tmp_path) -> Path:
        folder = above / kind
        shutil.copytree(fitted(kind), folder)
        shutil.rmtree(folder / "figures")
        (folder / "report.html").unlink()
        run, shown = (json.loads((folder / f"{name}.json").read_text()) for name in FILES)
        arrays = load_file(folder / "arrays.safetensors")
        if change is not None:
            change(run, arrays, shown)
        for name, content in zip(FILES, (run, shown), strict=True):
            (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
        save_file(arrays, folder / "arrays.safetensors")
        return folder

    return make


FILES = ("run", "examples")


@pytest.fixture(scope="package", autouse=True)
def every_figure(quick_pictures: Any) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "FIGURES", quick_pictures.figures)
        yield


@pytest.fixture(scope="session")
def written(
    tmp_path_factory: pytest.TempPathFactory, fitted: Callable[[str], Path]
) -> Callable[[str], Path]:
    """The folder of a fit of a kind with its report, laid out as for readers; written once, not to
    be changed.
    """

    @cache
    def get(kind: str) -> Path:
        folder = tmp_path_factory.mktemp("written") / kind
        shutil.copytree(fitted(kind), folder)
        with style.saved_with(style.PictureOptions(dots=30)):
            attsvm.report.write(folder)
        return folder

    return get


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of a page's words."""
    monkeypatch.setattr("attsvm.report.page.draw", lambda run: {})
