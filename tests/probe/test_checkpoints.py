"""Several checkpoints of one training: figures over steps, in Python and on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from attsvm import InputError
from attsvm.cli import main
from attsvm.probe import Audit, Checkpoints, audit, capture
from attsvm.probe.audit_page import headline, page

from .conftest import batch, family


def audited(name: str, factor: float) -> Audit:
    """A random model whose attention is sharpened by this factor."""
    model = family(name)
    with torch.no_grad(), capture(model) as recording:
        model(**batch(name))
    for layer in recording.layers:
        layer.projection = None
        for text in layer.texts:
            text.queries.mul_(factor)
    return audit(recording, norms=["fro"], nulls=["permuted"])


def test_figures_over_steps() -> None:
    found = Checkpoints({200: audited("bert", 300.0), 0: audited("bert", 1.0)})
    assert list(found.audits) == [0, 200]
    assert found.last is found.audits[200]
    top = [head.top for head in found.head(1, 2).values()]
    assert top[0] < 0.5 < top[1]
    rows = found.table()
    assert len(rows) == 2 * 8
    assert [row["step"] for row in rows] == [0] * 8 + [200] * 8
    assert {row["layer"] for row in rows} == {0, 1}
    assert "From step 0 to step 200" in headline(found.audits)
    assert "from 0 to 8 of 8" in headline(found.audits)
    html = page(found.audits, "a model")
    assert html.count("<polyline") == 8 * html.count("<figcaption>") // 8 == 40
    assert html.count("<script") == 2, "the page's own, and its data"
    assert "class=&" not in html  # an attribute that was escaped
    assert html.count('<td class="num">') > 8 * 9


def test_checkpoints_are_of_one_model(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there are no checkpoints"):
        Checkpoints({})
    one = audited("bert", 1.0)
    other = audit(one.recording, norms=())
    other.heads.pop()
    with pytest.raises(InputError, match="steps 1 and 5 have different heads"):
        Checkpoints({1: one, 5: other})


def test_saved_into_a_folder_of_their_own(tmp_path: Path) -> None:
    one = audited("bert", 300.0)
    shown = Checkpoints({1: one, 2: one}).save(tmp_path / "run", "a model")
    assert "From step 1 to step 2" in shown.read_text("utf-8")
    assert one.save(tmp_path / "last").is_file()
    before = (tmp_path / "last" / "run.json").stat().st_mtime_ns
    one.save(tmp_path / "last")  # nothing is done twice
    assert (tmp_path / "last" / "run.json").stat().st_mtime_ns == before
    with pytest.raises(InputError):
        one.save(tmp_path / "run")
    assert one.save(tmp_path / "run", overwrite=True).is_file()
    assert set(json.loads((tmp_path / "run" / "run.json").read_text())["heads"][0]) == set(
        one.table()[0]
    )


def saved(folder: Path, tokenizer: Path) -> None:
    transformers = pytest.importorskip("transformers")
    family("bert").save_pretrained(folder)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(90))]
    (folder / "words.txt").write_text("\n".join(words), "utf-8")
    transformers.BertTokenizer(str(folder / "words.txt")).save_pretrained(tokenizer)


@pytest.mark.parametrize("inside", [True, False])
def test_folders_as_trainer_writes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], inside: bool
) -> None:
    """``checkpoint-N`` folders, by number and not by name, with a tokenizer each or one around."""
    training = tmp_path / "training"
    for step in (90, 100):
        folder = training / f"checkpoint-{step}"
        saved(folder, folder if inside else training)
    (tmp_path / "text.txt").write_text("w1 w2 w3 w1\nw4 w5\n", "utf-8")
    common = ["--text", str(tmp_path / "text.txt"), "--statistics", "--quiet", "--json", "--out"]
    assert main(["probe", str(training), *common, str(tmp_path / "one")]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["headline"].startswith("From step 90 to step 100")
    assert [row["step"] for row in record["heads"]] == [90] * 8 + [100] * 8
    named = [str(training / f"checkpoint-{step}") for step in (100, 90)]
    assert main(["probe", *named, *common, str(tmp_path / "two")]) == 0
    assert json.loads(capsys.readouterr().out)["heads"] == record["heads"]
    assert main(["probe", "demo", named[0], *common, str(tmp_path / "three")]) == 2
    assert "'demo' is one model" in capsys.readouterr().err
