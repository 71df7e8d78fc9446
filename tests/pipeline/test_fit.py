"""The main job on the digits: every number of run.json recomputed from the arrays and the data
beside it.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from attsvm.base.files import load_arrays
from attsvm.cli import main
from attsvm.cli.arguments import default_folder
from attsvm.datasets import load


@pytest.fixture(scope="module")
def run(finished_run):
    folder, record, _ = finished_run
    arrays = load_arrays(folder / "arrays.safetensors")
    digits = load("digits")
    encoded = digits.encode(arrays["train"])
    data = encoded.data(2 * digits.labels - 1)
    return folder, record, arrays, data


def test_the_folder_holds_what_is_listed_and_nothing_unfinished(run, quick_pictures):
    folder, record, _, _ = run
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert found == {*record["files"], ".lock"}
    assert {"run.json", "arrays.safetensors", "examples.json", "report.html"} <= found
    assert sum(name.endswith(".svg") for name in found) == len(quick_pictures.figures)
    assert not (folder / "checkpoint").exists()
    assert record["format"] == "attsvm-run/1"


def test_the_parts_divide_the_data(run):
    _, record, arrays, data = run
    together = np.concatenate([arrays["train"], arrays["test"]])
    assert np.array_equal(np.sort(together), np.arange(data.n))
    for part in ("train", "test"):
        assert record["dataset"][f"n_{part}"] == len(arrays[part])


def test_the_max_margin_solution_is_optimal_for_the_selected_tokens(run):
    """KKT conditions by explicit d x d constraint matrices, nothing of attsvm used."""
    _, record, arrays, data = run
    train, W, dual = arrays["train"], arrays["W_margin"], arrays["dual"]
    i, t = arrays["constraint_sequence"], arrays["constraint_token"]
    X, Z = data.tokens[train], data.queries[train]
    differences = X[i, arrays["selected"][i]] - X[i, t]
    margins = np.einsum("cd,de,ce->c", differences, W, Z[i])
    assert len(i) == len(train) * 15
    assert margins.min() >= 1 - 1e-9
    assert dual.min() >= 0
    np.testing.assert_allclose(
        np.einsum("c,cd,ce->de", dual, differences, Z[i]), W, atol=1e-6 * np.abs(W).max()
    )
    norm = np.linalg.norm(W)
    assert dual.sum() / norm <= norm * (1 + 1e-12)
    assert 1 - dual.sum() / norm**2 <= 1e-9
    assert record["results"]["margin"]["margin"] == pytest.approx(1 / norm, rel=1e-12)
    assert record["results"]["margin"]["support_constraints"] == (margins < 1 + 1e-5).sum()


def test_the_selected_tokens_are_those_of_the_trained_weights(run):
    _, record, arrays, data = run
    train = arrays["train"]
    logits = np.einsum("ntd,de,ne->nt", data.tokens[train], arrays["W"], data.queries[train])
    assert np.array_equal(np.argmax(logits, axis=1), arrays["selected"])
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    probability = shifted.max(axis=1) / shifted.sum(axis=1)
    np.testing.assert_allclose(probability, arrays["probability"], rtol=1e-9)
    assert record["results"]["selection"]["saturated"] == (probability >= 0.99).sum()
    scores = data.labels[train][:, None] * (data.tokens[train] @ arrays["head"])
    optimal = np.argmax(scores, axis=1) == arrays["selected"]
    assert record["results"]["selection"]["optimal"] == optimal.sum()


def test_the_direction_gap_is_the_angle_between_the_two_weights(run):
    _, record, arrays, _ = run
    W, best = arrays["W"], arrays["W_margin"]
    cosine = np.sum(W * best) / np.linalg.norm(W) / np.linalg.norm(best)
    direction = record["results"]["direction"]
    assert direction["cosine"] == pytest.approx(cosine, abs=1e-12)
    assert direction["angle_degrees"] == pytest.approx(np.degrees(np.arccos(cosine)), rel=1e-6)
    assert 0 < direction["certified_angle_degrees"] < 0.01  # of the solution from the exact one
    assert arrays["trajectory_norm"][-1] == pytest.approx(np.linalg.norm(W), rel=1e-12)
    assert arrays["trajectory_direction_gap"][-1] == pytest.approx(1 - cosine, rel=1e-6)


def test_accuracies_are_recomputed(run):
    _, record, arrays, data = run
    accuracy = {entry["name"]: entry for entry in record["results"]["accuracy"]}
    y = data.labels
    logits = np.einsum("ntd,de,ne->nt", data.tokens, arrays["W_soft"], data.queries)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    soft = np.einsum("nt,ntd,d->n", weights, data.tokens, arrays["head_soft"])
    soft += arrays["intercept_soft"]
    for part in ("train", "test"):
        rows = arrays[part]
        right = np.mean((soft[rows] > 0) == (y[rows] > 0))
        assert accuracy["soft"][part] == pytest.approx(right, abs=1e-12)
    assert accuracy["random_token"]["std"] > 0
    chosen = {"soft", "hard", "margin"}
    assert set(accuracy) == chosen | {"mean_pooling", "random_token", "extreme_token", "majority"}


def test_examples_show_what_they_say(run):
    folder, _, arrays, data = run
    examples = json.loads((folder / "examples.json").read_text(encoding="utf-8"))
    assert {"support", "confident", "typical"} <= {example["group"] for example in examples}
    for example in examples:
        i = example["sequence"]
        assert (i in arrays["test"]) == (example["part"] == "test")
        logits = data.tokens[i] @ arrays["W_soft"] @ data.queries[i]
        share = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
        np.testing.assert_allclose(example["probability"], share, rtol=1e-9)
        value = share @ data.tokens[i] @ arrays["head_soft"] + arrays["intercept_soft"]
        assert example["value"] == pytest.approx(abs(value), rel=1e-9)
        assert example["predicted"] == int(value > 0)
        assert example["label"] == int(data.labels[i] > 0)
        chosen = np.argmax(data.tokens[i] @ arrays["W_hard"] @ data.queries[i])
        assert example["selected"] == chosen
        assert sum(example["probability"]) == pytest.approx(1.0)
        assert len(example["probability"]) == len(example["view"]["boxes"]) == 16
        assert np.array_equal(np.array(example["view"]["pixels"]).shape, (8, 8))
        assert example["rival"] != example["selected"]
        if example["group"] == "wrong":
            assert example["predicted"] != example["label"]


def test_doing_it_again_does_nothing_and_prints_the_same(finished_run, capsys):
    folder, record, command = finished_run
    before = (folder / "run.json").stat().st_mtime_ns
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == record
    assert (folder / "run.json").stat().st_mtime_ns == before


def test_another_seed_needs_another_folder(finished_run, capsys):
    _, _, command = finished_run
    assert main([*command, "--seed", "5"]) == 2
    assert "seed was 0, now 5" in capsys.readouterr().err


def test_a_refused_overwrite_changes_nothing(finished_run, tmp_path, capsys):
    folder, _, command = finished_run
    kept = tmp_path / "run"
    shutil.copytree(folder, kept)
    (kept / "thesis.txt").write_text("years of work")
    listed = json.loads((kept / "request.json").read_text())
    listed["files"].remove("report.html")  # as if somebody else had written it
    (kept / "request.json").write_text(json.dumps(listed))
    before = {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()}
    assert main([*command[:-1], str(kept), "--seed", "5", "--overwrite"]) == 2
    assert "report.html is in the way" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()} == before


def test_the_default_folder_is_inside_runs():
    for data in (".b.npz", "..", "/", "...", "a/.hidden", "."):
        assert default_folder(data).parent == Path("runs")
        assert default_folder(data).name not in ("", ".", "..")
    assert default_folder("x/.b.npz") == Path("runs/b")
    assert default_folder("toy:a,3") == Path("runs/toy-a-3")


def test_every_claim_has_a_verdict_and_the_numbers_behind_it(run):
    _, record, _, _ = run
    assert " ".join(claim["id"] for claim in record["claims"]) == (
        "selection certificate direction approach accuracy majority control"
    )
    for claim in record["claims"]:
        assert claim["verdict"] in ("holds", "fails", "not applicable")
        assert np.isfinite([claim["measured"], claim["threshold"]]).all()


def test_a_fit_in_another_norm_says_so_everywhere(tmp_path, capsys):
    folder = tmp_path / "lp"
    short = ["--steps", "400", "--records", "12", "--quiet"]
    assert main(["fit", "digits", "--norm", "lp:1.75", *short, "--out", str(folder)]) == 0
    assert "ℓ1.75 norm" in capsys.readouterr().out.splitlines()[3]
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    results, arrays = record["results"], load_arrays(folder / "arrays.safetensors")
    assert record["parameters"]["norm"] == results["margin"]["geometry"] == "lp:1.75"
    assert results["training"]["descent"] == "mirror descent in the ℓ1.75 norm"
    best, trained = arrays["W_margin"], arrays["W"]

    def size(W):
        return np.sum(np.abs(W) ** 1.75) ** (1 / 1.75)

    pull = np.sign(trained) * np.abs(trained) ** 0.75 / size(trained) ** 0.75
    assert results["direction"]["certified_angle_degrees"] is None
    assert results["margin"]["unique"] is True
    divergence = 1 - np.sum(pull * best) / size(best)
    assert results["direction"]["distance"] == pytest.approx(divergence, rel=1e-9)
    assert results["margin"]["margin"] == pytest.approx(1 / size(best), rel=1e-12)
    assert results["margin"]["trained_norm"] == pytest.approx(size(trained), rel=1e-12)
    assert arrays["trajectory_norm"][-1] == pytest.approx(size(trained), rel=1e-12)
    assert arrays["trajectory_distance"][-1] == pytest.approx(divergence, rel=1e-9)
    page = (folder / "report.html").read_text(encoding="utf-8")
    for phrase in ("weights of smallest", "subgradient of the"):
        assert f"{phrase} ℓ1.75 norm" in page
    assert "Bregman divergence" in page
    assert "Frobenius norm of the weights" not in page
