"""attsvm solve on data that are read in parts: the answer of the same data read at once."""

from __future__ import annotations

import json
from pathlib import Path

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


def saved(arrays, folder) -> Path:
    """A folder of these arrays."""
    shards = folder / "shards"
    shards.mkdir()
    for name, array in arrays.items():
        np.save(shards / f"{name}.npy", array)
    return shards


def solved(capsys, *words) -> dict:
    code = main(["solve", *map(str, words), "--json"])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    return json.loads(printed.out)


@pytest.mark.parametrize("tokens", ["chosen", "optimal", "first"])
def test_a_folder_gives_the_answer_of_the_file(tokens: str, arrays, tmp_path, capsys) -> None:
    np.savez(tmp_path / "data.npz", **arrays)
    shards = saved(arrays, tmp_path)
    file = solved(capsys, tmp_path / "data.npz", "--tokens", tokens)
    for words in ([], ["--memory", "100MB"]):
        parts = solved(capsys, shards, *words, "--tokens", tokens)
        assert parts["status"] == file["status"]
        assert parts["constraints"] == file["constraints"] == 200
        assert parts["passes"] >= (2 if file["status"] == "optimal" else 1)
        if file["status"] == "optimal":
            assert parts["norm"] == pytest.approx(file["norm"], rel=1e-8)
            assert sorted(parts["support"]) == sorted(file["support"])


def test_what_it_prints_and_writes(arrays, tmp_path, capsys) -> None:
    words = ["solve", str(saved(arrays, tmp_path)), "--tokens", "chosen"]
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
    ],
)
def test_what_cannot_be_done_in_parts(words, sentence, arrays, tmp_path, capsys) -> None:
    base = ["solve", str(saved(arrays, tmp_path)), "--tokens", "chosen"]
    assert main([*base, *words]) == 2
    assert sentence in capsys.readouterr().err


def test_a_head_is_needed_for_the_best_tokens(arrays, tmp_path, capsys) -> None:
    np.save(tmp_path / "X.npy", arrays["X"])
    assert main(["solve", str(tmp_path)]) == 2
    assert "needs an array v and an array y beside X" in capsys.readouterr().err
    np.savez(tmp_path / "data.npz", **arrays)
    assert main(["solve", str(tmp_path / "data.npz"), "--memory", "1MB"]) == 2
    assert "--memory is for data that are read in parts" in capsys.readouterr().err
