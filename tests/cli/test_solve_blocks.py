"""attsvm solve on data that are read in parts: the answer of the same data read at once."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import pytest

from attsvm.cli import main


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    X, W = rng.standard_normal((40, 6, 4)), rng.standard_normal((4, 4))
    Z, v = rng.standard_normal((40, 4)), rng.standard_normal(4)
    y = np.where(rng.random(40) < 0.5, 1.0, -1.0)
    best = np.einsum("ntd,de,ne->nt", X, W, Z).argmax(axis=1)
    return {"X": X, "Z": Z, "y": y, "v": v, "chosen": best}


def solved(capsys, *words) -> dict:
    code = main(["solve", *map(str, words), "--json"])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    return json.loads(printed.out)


@pytest.mark.parametrize("tokens", ["chosen", "optimal", "first"])
def test_a_folder_and_a_file_in_parts_give_the_answer_of_the_file(
    tokens: str, arrays, tmp_path, capsys
) -> None:
    np.savez(tmp_path / "data.npz", **arrays)
    shards = tmp_path / "shards"
    shards.mkdir()
    for name, array in arrays.items():
        np.save(shards / f"{name}.npy", array)
    file = solved(capsys, tmp_path / "data.npz", "--tokens", tokens)
    for source in ([shards], [tmp_path / "data.npz", "--memory", "100MB"]):
        parts = solved(capsys, *source, "--tokens", tokens)
        assert parts["status"] == file["status"]
        assert parts["constraints"] == file["constraints"] == 200
        assert parts["passes"] >= (2 if file["status"] == "optimal" else 1)
        if file["status"] == "optimal":
            assert parts["norm"] == pytest.approx(file["norm"], rel=1e-8)
            assert sorted(parts["support"]) == sorted(file["support"])


@pytest.mark.processes
@pytest.mark.parametrize(
    "where", ["local:2", "dask", pytest.param("submitit:local", marks=pytest.mark.slow)]
)
def test_workers_find_the_same_numbers(where: str, arrays, tmp_path, monkeypatch, capsys) -> None:
    if where != "local:2":
        package = pytest.importorskip({"dask": "distributed"}.get(where, "submitit"))
    monkeypatch.chdir(tmp_path)
    np.savez("data.npz", **arrays)
    words = ["data.npz", "--tokens", "chosen", "--memory", "100MB"]
    alone = solved(capsys, *words)
    with contextlib.ExitStack() as stack:
        if where == "dask":
            options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
            cluster = stack.enter_context(package.LocalCluster(**options))
            where = cluster.scheduler_address.replace("tcp", "dask")
        shared = solved(capsys, *words, "--executor", where)
    assert shared == alone


def test_what_it_prints_and_writes(arrays, tmp_path, capsys) -> None:
    np.savez(tmp_path / "data.npz", **arrays)
    words = ["solve", str(tmp_path / "data.npz"), "--tokens", "chosen", "--memory", "100MB"]
    out = tmp_path / "answer.npz"
    assert main([*words, "--out", str(out)]) == 0
    assert main([*words, "--out", str(out)]) == 0  # its own file may be written again
    printed = capsys.readouterr().out
    assert "for all 200 constraints in 1 blocks, " in printed
    with np.load(out) as written:
        i = int(written["numbers"][written["sequence"][0]])
        assert written["selected"][written["sequence"][0]] == arrays["chosen"][i]
        assert written["margins"].min() >= 1.0 - 1e-9
        X, Z = arrays["X"][i], arrays["Z"][i]
        difference = X[arrays["chosen"][i]] - X[written["token"][0]]
        assert difference @ written["W"] @ Z == pytest.approx(written["margins"][0])
    for line in printed.splitlines():
        if line.strip().startswith("sequence "):
            sequence, token = (int(word) for word in line.replace(":", "").split()[1:4:2])
            assert arrays["chosen"][sequence] == token


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--memory", "much"], "memory is 'much'"),
        (["--memory", "1kB"], "has room for"),
        (["--memory", "1MB", "--programme", "prompt"], "reads all data at once"),
        (["--memory", "1MB", "--slack", "1"], "slack is not for programmes of blocks"),
        (["--memory", "1MB", "--tokens", "0,1"], "no array 0,1 of selected tokens"),
        (["--memory", "1MB", "--executor", "many"], "give local:J"),
        (["--executor", "local:2"], "--executor is for data that are read in parts"),
    ],
)
def test_what_cannot_be_done_in_parts(words, sentence, arrays, tmp_path, capsys) -> None:
    np.savez(tmp_path / "data.npz", **arrays)
    base = ["solve", str(tmp_path / "data.npz"), "--tokens", "chosen"]
    assert main([*base, *words]) == 2
    assert sentence in capsys.readouterr().err


def test_a_head_is_needed_for_the_best_tokens(arrays, tmp_path, capsys) -> None:
    np.save(tmp_path / "X.npy", arrays["X"])
    assert main(["solve", str(tmp_path)]) == 2
    assert "needs an array v and an array y beside X" in capsys.readouterr().err
    np.savez_compressed(tmp_path / "small.npz", **arrays)
    assert main(["solve", str(tmp_path / "small.npz"), "--memory", "1MB"]) == 2
    assert "save them with numpy.savez" in capsys.readouterr().err
