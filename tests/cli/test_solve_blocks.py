"""attsvm solve on data that are read in parts: the answer of the same data read at once."""

import json

import numpy as np
import pytest

from attsvm.cli import main


@pytest.fixture
def arrays(tmp_path):
    """Arrays, which lie in a file and in a folder of files."""
    rng = np.random.default_rng(0)
    X, W = rng.standard_normal((40, 6, 4)), rng.standard_normal((4, 4))
    Z, v = rng.standard_normal((40, 4)), rng.standard_normal(4)
    y = np.where(rng.random(40) < 0.5, 1.0, -1.0)
    best = np.einsum("ntd,de,ne->nt", X, W, Z).argmax(axis=1)
    found = {"X": X, "Z": Z, "y": y, "v": v, "chosen": best}
    np.savez(tmp_path / "data.npz", **found)
    (tmp_path / "shards").mkdir()
    for name, array in found.items():
        np.save(tmp_path / "shards" / f"{name}.npy", array)
    return found


@pytest.mark.parametrize("tokens", ["chosen", "optimal", "first"])
def test_a_folder_gives_the_answer_of_the_file(tokens, arrays, tmp_path, capsys):
    def solved(*words):
        assert main(["solve", *map(str, words), "--tokens", tokens, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    file = solved(tmp_path / "data.npz")
    for words in ([], ["--memory", "100MB"]):
        parts = solved(tmp_path / "shards", *words)
        assert parts["status"] == file["status"]
        assert parts["constraints"] == file["constraints"] == 200
        assert parts["sequences"] == file["sequences"] == 40
        assert parts["unique"] == file["unique"] == (True if file["status"] == "optimal" else None)
        assert parts["passes"] >= (2 if file["status"] == "optimal" else 1)
        if file["status"] == "optimal":
            assert parts["norm"] == pytest.approx(file["norm"], rel=1e-8)
            assert sorted(parts["support"]) == sorted(file["support"])


def test_what_it_prints_and_writes(arrays, tmp_path, capsys):
    out = tmp_path / "answer.npz"
    words = ["solve", str(tmp_path / "shards"), "--tokens", "chosen", "--out", str(out)]
    assert main(words) == 0
    assert main(words) == 0  # its own file may be written again
    printed = capsys.readouterr().out
    assert " of 200 constraints support it); proved for all 200 constraints in 1 block, " in printed
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
