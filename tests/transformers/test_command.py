"""``attsvm probe`` on a folder of every family: a page, or one sentence."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from attsvm.cli import main

from .families import tiny
from .test_families import OFTEN, OTHERS, REFUSED
from .test_kinds_of_models import save_processor, save_tokenizer

OWN_TOKENIZER = {"tapas": "check that the folder holds its own tokenizer"}
"""Families that read more than words, which a tokenizer of words does not make."""


@pytest.mark.slow
@pytest.mark.parametrize("family", [*OFTEN, *OTHERS, *REFUSED])
def test_every_family_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], family: str
) -> None:
    model, folder, out = tiny(family), tmp_path / "model", tmp_path / "out"
    model.save_pretrained(folder)
    save_tokenizer(folder)
    save_processor(folder)
    (tmp_path / "text.txt").write_text("w1 w2 w3 w4 w1 w2 w5 w6\n", "utf-8")
    (tmp_path / "pictures").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (20, 24, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "pictures" / "0.png")
    reads_text = "input_ids" in inspect.signature(model.forward).parameters
    source = ["--text", "text.txt"] if reads_text else ["--images", "pictures"]
    capsys.readouterr()
    command = ["probe", str(folder), source[0], str(tmp_path / source[1]), "--out", str(out)]
    sentence = {**REFUSED, **OWN_TOKENIZER}.get(family)
    code = main([*command, "--statistics", "--quiet"])
    error = capsys.readouterr().err
    if sentence is not None:
        assert code == 2
        assert sentence in error
        assert error.count("\n") == 1
        return
    assert code == 0, error
    record = json.loads((out / "run.json").read_text("utf-8"))
    assert all(0 < row["top"] <= 1 for row in record["heads"])
    differences = any("difference of two softmaxes" in note for note in record["notes"])
    assert differences == (family == "diffllama")
    if family == "diffllama":
        assert {row["layer"] for row in record["heads"]} == {0, 1}
