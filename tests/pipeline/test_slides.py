"""A folder of slides: patients stay together, patches stay on disk, the page shows where.

``python -m tests.pipeline.test_slides --kills 10`` kills a fit ten times before it may end.
"""

import argparse
import csv
import json
import random
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from attsvm.cli import main
from attsvm.datasets import load, rows
from attsvm.pipeline.slides import split_patients
from attsvm.report.slides_page import axis_ticks, heatmap, heatmap_axes, slides_to_show

from .test_kills import FORKS, Kill, Server, state_of


def write_slides(folder, n=24, seed=0):
    """Small slides with coordinates, two of a patient; half of the patients hold witnesses."""
    rng = np.random.default_rng(seed)
    folder.mkdir()
    table = [["slide_id", "label", "case_id"]]
    for k in range(n):
        features = rng.normal(size=(rng.integers(12, 20), 5)).astype(np.float16)
        label = k // 2 % 2
        features[:2, 0] += 6 * label
        coordinates = 256 * np.argwhere(np.ones((5, 4)))[: len(features)]
        np.savez(folder / f"s{k}.npz", features=features, coords=coordinates)
        table.append([f"s{k}", ("benign", "tumour")[label], f"p{k // 2}"])
    with (folder / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows(table)
    return folder


def _read(path):
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    home = tmp_path_factory.mktemp("slides")
    slides = write_slides(home / "slides")
    command = ["fit", str(slides), "--group", "case_id", "--assumption", "standard", "--quiet"]
    assert main([*command, "--out", str(home / "run")]) == 0
    return home / "run", slides, json.loads((home / "run" / "run.json").read_text())


def test_patients_are_on_one_side_of_the_split(run):
    answers, labels = _read(run[0] / "predictions.csv"), _read(run[1] / "labels.csv")
    assert [row["id"] for row in answers] == [row["slide_id"] for row in labels]
    sides = {}
    for answer, row in zip(answers, labels, strict=True):
        sides.setdefault(row["case_id"], set()).add(answer["split"])
    assert {len(splits) for splits in sides.values()} == {1}
    assert sum(row["split"] == "test" for row in answers) == run[2]["dataset"]["n_test"] == 6
    assert "Patients were kept apart" in run[2]["verdict"]["sentences"][1]


def test_the_witnesses_are_the_patches_that_decide(run):
    answers = [row for row in _read(run[0] / "predictions.csv") if row["split"] == "test"]
    assert all(row["prediction"] == row["label"] for row in answers)
    chosen = {int(row["position"]) for row in answers if row["label"] == "tumour"}
    assert chosen <= {1, 2}
    assert {row["chosen"] for row in answers if row["position"] == "2"} <= {"x 0, y 256"}
    accuracy = {entry["name"]: entry["test"] for entry in run[2]["results"]["accuracy"]}
    assert accuracy["soft"] == accuracy["hard"] == 1.0
    assert accuracy["majority"] == pytest.approx(0.5, abs=0.2)


@pytest.mark.experiment
def test_a_slide_of_more_patches_than_are_read_at_once(tmp_path, monkeypatch):
    """Whatever its length, a slide has an answer, a row for each patch, and a place on the page."""
    monkeypatch.setattr(rows, "_LONG", 1)  # times the rows of a block, so that fewer are many
    slides = write_slides(tmp_path / "slides", n=12)
    rng = np.random.default_rng(1)
    long = rng.normal(size=(rows.BLOCK + 904, 5)).astype(np.float16)
    long[:100, 0] += 6  # of a tumour
    coordinates = 256 * np.argwhere(np.ones((50, 100)))
    np.savez(slides / "s2.npz", features=long, coords=coordinates)
    words = ["fit", str(slides), "--group", "case_id", "--assumption", "standard", "--quiet"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    answers = {row["id"]: row for row in _read(tmp_path / "run" / "predictions.csv")}
    assert answers["s2"]["prediction"] == "tumour"
    assert int(answers["s2"]["position"]) <= 100
    out = ["--out", str(tmp_path / "a.csv"), "--patches", str(tmp_path / "p.csv")]
    assert main(["predict", str(tmp_path / "run"), str(slides), *out]) == 0
    patches = _read(tmp_path / "p.csv")
    assert sum(row["slide"] == "s2" for row in patches) == len(long)


def test_the_table_of_patches_has_those_of_the_slides_held_out(run):
    patches, answers = _read(run[0] / "patches.csv"), _read(run[0] / "predictions.csv")
    test = [row["id"] for row in answers if row["split"] == "test"]
    assert list(dict.fromkeys(row["slide"] for row in patches)) == test
    for answer in answers:
        if answer["split"] == "test":
            slide = [row for row in patches if row["slide"] == answer["id"]]
            chosen = slide[int(answer["position"]) - 1]
            assert chosen["probability"] == answer["instance_probability"]
            assert answer["chosen"] == f"x {chosen['x']}, y {chosen['y']}"


def test_a_table_of_labels_with_semicolons_is_answered_alike(run, tmp_path):
    table, out, places = (tmp_path / name for name in ("labels.csv", "new.csv", "patches.csv"))
    content = (run[1] / "labels.csv").read_text()
    table.write_text(content.replace(",", ";"))
    command = ["predict", str(run[0]), str(run[1]), "--labels", str(table), "--out", str(out)]
    assert main([*command, "--patches", str(places)]) == 0
    fitted = _read(run[0] / "predictions.csv")
    with out.open(encoding="utf-8-sig", newline="") as file:
        for row, known in zip(csv.DictReader(file, delimiter=";"), fitted, strict=True):
            assert row["probability"].replace(",", ".") == known["probability"]
    assert places.read_text("utf-8-sig").startswith("slide;patch;x;y;probability")


def test_predict_gives_the_same_slides_the_same_numbers(run, tmp_path):
    out, table = tmp_path / "new.csv", tmp_path / "patches.csv"
    command = ["predict", str(run[0]), str(run[1]), "--out", str(out), "--patches", str(table)]
    assert main([*command, "--labels", "labels.csv"]) == 0
    for new, row in zip(_read(out), _read(run[0] / "predictions.csv"), strict=True):
        assert {**new, "split": ""} == {**row, "split": ""}
    assert _read(run[0] / "patches.csv")[0] in _read(table)
    assert main(command) == 0  # labels.csv of a folder is not asked for
    assert {row["label"] for row in _read(out)} == {""}


def test_the_page_names_slides_and_is_drawn_again_alike(run):
    page = (run[0] / "report.html").read_text(encoding="utf-8")
    assert page.count('alt="heatmap of s') == page.count('class="scale"') == 6
    assert "Patients were kept apart" in page
    assert "of 6 slides held out, of 3 patients" in page.replace("\n", " ")
    assert main(["report", str(run[0])]) == 0
    assert (run[0] / "report.html").read_text(encoding="utf-8") == page


def test_a_second_fit_reads_the_first_and_never_copies_features(run, capsys):
    command = ["fit", str(run[1]), "--group", "case_id", "--assumption", "standard", "--quiet"]
    assert main([*command, "--out", str(run[0]), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == run[2]
    assert sum(path.stat().st_size for path in run[0].iterdir()) < 200_000


def test_pictures_of_slides_stand_beside_their_heatmaps(run, tmp_path, capsys):
    from PIL import Image

    (tmp_path / "pictures").mkdir()
    for k in range(24):
        Image.new("RGB", (900, 600), "white").save(tmp_path / "pictures" / f"s{k}.png")
    command = ["fit", str(run[1]), "--group", "case_id", "--assumption", "standard", "--quiet"]
    command += ["--images", str(tmp_path / "pictures")]
    assert main([*command, "--out", str(tmp_path / "run")]) == 0
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert page.count("data:image/jpeg;base64,") == page.count('alt="heatmap of s') == 6
    for k in range(24):
        (tmp_path / "pictures" / f"s{k}.png").write_bytes(b"nothing")
    assert main([*command, "--out", str(tmp_path / "other")]) == 2
    assert "is no picture" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_slides_without_signal_are_said_to_be_at_chance(tmp_path, capsys):
    rng = np.random.default_rng(1)
    (tmp_path / "slides").mkdir()
    for k in range(24):
        np.save(tmp_path / "slides" / f"s{k}.npy", rng.normal(size=(5, 3)))
    rows = "".join(f"s{k},{rng.integers(2)}\n" for k in range(24))
    (tmp_path / "slides" / "labels.csv").write_text(f"slide_id,label\n{rows}")
    command = ["fit", str(tmp_path / "slides"), "--assumption", "standard", "--quiet"]
    assert main([*command, "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr()
    assert "Slides left out are not predicted better than by chance" in said.out
    assert "Patients are not named" in said.out
    assert said.err == ""
    assert "hold no coordinates" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--group", "case"], "no column case (group)"),
        (["--id", "slide"], "did you mean slide_id?"),
        (["--text", "text"], "option --text does not go with slides"),
        (["--steps", "5"], "--steps belongs to the descent"),
        (["--labels", "nothing.csv"], "nothing.csv"),
        (["--images", "nowhere"], "nowhere is no folder"),
    ],
)
def test_what_cannot_be_fitted_is_one_sentence(run, options, message, tmp_path, capsys):
    command = ["fit", str(run[1]), *options, "--out", str(tmp_path / "run"), "--quiet"]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_patches_are_of_slides_alone(run, tmp_path, capsys):
    np.savez(tmp_path / "wide.npz", features=np.ones((3, 7)))
    command = ["predict", str(run[0]), str(tmp_path), "--out", str(tmp_path / "new.csv")]
    assert main(command) == 2
    assert "7 features per instance" in capsys.readouterr().err
    assert not (tmp_path / "new.csv").exists()


def test_groups_of_one_class_alone_cannot_be_held_out():
    labels, groups = np.array([0, 0, 1, 1, 1]), np.array(["a", "b", "c", "c", "c"])
    with pytest.raises(Exception, match="class 1 are of one group"):
        split_patients(labels, groups, 0.25, 0)


def test_slides_that_teach_most_come_first():
    labels = np.array([0, 0, 1, 1, 0, 1])
    predicted = np.array([0, 0, 1, 1, 1, 0])
    probability = np.array([0.9, 0.6, 0.95, 0.7, 0.8, 0.99])
    shown = slides_to_show(labels, predicted, probability)
    assert [i for i, _ in shown] == [5, 4, 1, 3, 2, 0]
    assert [reason for _, reason in shown][:3] == ["wrong", "wrong", "least sure"]


def test_a_heatmap_has_a_cell_for_each_patch():
    from base64 import b64decode
    from io import BytesIO

    from PIL import Image

    coordinates = np.array([[0, 0], [512, 0], [0, 256]])  # two cells wide, two high
    uri = heatmap(coordinates * 1.0, np.array([1.0, 0.0, 0.5]), None)
    picture = np.asarray(Image.open(BytesIO(b64decode(uri.partition(",")[2]))))
    corner, side = picture[0, 0], picture[0, -1]
    assert corner[0] > 150 > corner[1]  # red
    assert np.ptp(side.astype(int)) < 15  # gray
    assert picture[-1, -1].tolist() == [255, 255, 255]  # no patch
    axes = heatmap_axes(coordinates * 1.0, np.array([0.3, 0.0, 0.1]), 1.0)
    assert axes.colour == "#" + "".join(f"{part:02x}" for part in corner[:3])
    assert (axes.top, axes.ratio) == (0.3, 1.5)  # the smaller distance is that of both axes
    assert [tick["label"] for tick in axes.x] == ["0", "200", "400", "600"]


@pytest.mark.parametrize("low", [0.0, 12_000.0, -3.7])
@pytest.mark.parametrize("span", [0.8, 1.0, 7.0, 512.0, 40_960.0])
def test_ticks_of_a_heatmap_stand_at_their_coordinates(low, span):
    ticks = axis_ticks(low, span)
    assert 2 <= len(ticks) <= 5
    values = [float(tick["label"].replace(",", "")) for tick in ticks]
    places = [low + span * tick["place"] / 100.0 for tick in ticks]
    np.testing.assert_allclose(values, places, atol=1e-4 * span)  # places have two decimals
    assert all(0.0 <= tick["place"] <= 100.0 for tick in ticks)


def test_slides_without_labels_are_read_for_a_model(run):
    dataset = load(run[1], classes=("benign", "tumour"))
    assert set(dataset.labels.tolist()) == {-1}
    labelled = load(run[1], classes=("tumour", "benign"), labels="labels.csv")
    assert labelled.labels[:4].tolist() == [1, 1, 0, 0]


def kill_and_finish(slides, folder, kills, seed):
    """Start a fit that many times and kill it at a random moment of its work, then let it end."""
    command = ["fit", str(slides), "--group", "case_id"]
    command += ["--assumption", "standard", "--quiet", "--out", str(folder)]
    generator, server = random.Random(seed), Server(folder.parent)
    try:
        for _ in range(kills):
            process = server.start(command)
            while state_of(process) not in "ZX" and not (folder / "request.json").exists():
                time.sleep(0.01)
            time.sleep(generator.uniform(0.0, 1.5))
            Kill().send(process)
            server.ended()
        server.run(command)
    finally:
        server.close()
    return same_numbers(folder)


def same_numbers(folder):
    """What two runs of the same command have in common: numbers, answers and weights."""
    run = json.loads((folder / "run.json").read_text())
    contents = {
        name: (folder / name).read_bytes()
        for name in ("predictions.csv", "patches.csv", "model.safetensors", "page.json")
    }
    return run["results"], contents, sorted(path.name for path in folder.iterdir())


@FORKS
@pytest.mark.processes
def test_a_fit_that_is_killed_ends_with_the_same_numbers(run, tmp_path):
    assert kill_and_finish(run[1], tmp_path / "run", kills=1, seed=0) == same_numbers(run[0])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Kill a fit of slides and finish it.")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        slides = write_slides(Path(home) / "slides")
        untouched = kill_and_finish(slides, Path(home) / "untouched", 0, 0)
        killed = kill_and_finish(slides, Path(home) / "killed", options.kills, options.seed)
    sys.exit(None if killed == untouched else "the numbers differ")
