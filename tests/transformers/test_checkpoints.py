"""Several checkpoints of one training: figures over steps, in Python and on the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from attsvm import InputError
from attsvm.cli import main
from attsvm.transformers import Audit, Checkpoints, audit
from attsvm.transformers.audit_page import headline, render_audit_page

from .conftest import family, recorded, saved, sharpened


@pytest.fixture(scope="module")
def audits() -> dict[int, Audit]:
    """A random model, and one whose attention is sharp."""
    return {
        step: audit(sharpened(recorded(family("bert"), "bert"), factor), nulls=["permuted"])
        for step, factor in ((300, 300.0), (100, 1.0))
    }


def test_figures_over_steps(audits: dict[int, Audit], tmp_path: Path) -> None:
    found = Checkpoints(audits)
    assert list(found.audits) == [100, 300]
    top = [head.top for head in found.head(1, 2).values()]
    assert top[0] < 0.5 < top[1]
    heads = [(step, each.top) for step, one in found.audits.items() for each in one.heads]
    assert [(row["step"], row["top"]) for row in found.table()] == heads
    assert "From step 100 to step 300" in headline(found.audits)
    assert "from 0 to 8 of 8" in headline(found.audits)
    html = render_audit_page(found.audits, "a model")
    ends = re.findall(r'points="([\d.]+),\S+ ([\d.]+),', html)
    assert set(ends) == {("0.0", "160.0")}
    assert html.count("<polyline") == html.count("<figcaption>") == 40
    assert html.count("<script") == 2, "the page's own, and its data"
    assert "class=&" not in html  # an attribute that was escaped
    assert html.count('<td class="num">') > 8 * 9


def test_checkpoints_are_of_one_model(audits: dict[int, Audit]) -> None:
    with pytest.raises(InputError, match="there are no checkpoints"):
        Checkpoints({})
    other = audit(audits[100].recording, norms=())
    other.heads.pop()
    with pytest.raises(InputError, match="steps 1 and 5 have different heads"):
        Checkpoints({1: audits[100], 5: other})


def test_saved_into_a_folder_of_their_own(audits: dict[int, Audit], tmp_path: Path) -> None:
    shown = Checkpoints(audits).save(tmp_path / "run", "a model")
    assert "From step 100 to step 300" in shown.read_text("utf-8")
    assert audits[100].save(tmp_path / "last").is_file()
    before = (tmp_path / "last" / "run.json").stat().st_mtime_ns
    audits[100].save(tmp_path / "last")  # nothing is done twice
    assert (tmp_path / "last" / "run.json").stat().st_mtime_ns == before
    with pytest.raises(InputError, match="holds another run"):
        audits[100].save(tmp_path / "run")
    assert audits[100].save(tmp_path / "run", overwrite=True).is_file()
    rows = json.loads((tmp_path / "run" / "run.json").read_text())["heads"]
    assert set(rows[0]) == set(audits[100].table()[0])


@pytest.mark.parametrize("inside", [True, False])
def test_folders_as_trainer_writes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], inside: bool
) -> None:
    """``checkpoint-N`` folders, by number and not by name, with a tokenizer each or one around."""
    training = tmp_path / "training"
    for step in (90, 100):
        saved(training / f"checkpoint-{step}", tokenizer=None if inside else training)
    (training / "checkpoint-best").mkdir()
    (tmp_path / "text.txt").write_text("w1 w2 w3 w1\nw4 w5\n", "utf-8")
    common = ["--text", str(tmp_path / "text.txt"), "--statistics", "--quiet", "--json", "--out"]
    assert main(["probe", str(training), *common, str(tmp_path / "one")]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["headline"].startswith("From step 90 to step 100")
    assert [row["step"] for row in record["heads"]] == [90] * 8 + [100] * 8
    assert "Folders without the number of a step were passed over: checkpoint-best." in " ".join(
        record["notes"]
    )
    named = [str(training / f"checkpoint-{step}") for step in (100, 90)]
    assert main(["probe", *named, *common, str(tmp_path / "two")]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["heads"] == record["heads"]
    assert "passed over" not in " ".join(again["notes"])
