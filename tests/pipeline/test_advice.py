"""A fit advises more steps, more time or another tolerance only where its numbers speak for it."""

import json

import numpy as np
from safetensors.numpy import load_file

from attsvm.cli import main

FEW = ["--records", "12", "--quiet"]


def fitted(folder, tokens, labels, *words):
    """``run.json`` of a fit of these sequences, and all that it says."""
    np.savez(folder / "bags.npz", X=tokens, y=labels)
    command = ["fit", str(folder / "bags.npz"), *FEW, "--out", str(folder / "run"), *words]
    assert main(command) in (0, 3)
    assert (folder / "run" / "bags.html").exists()  # of vectors, each bag with its evidence
    run = json.loads((folder / "run" / "run.json").read_text(encoding="utf-8"))
    reasons = [claim["reason"] for claim in run["claims"]]
    return run, " ".join([run["verdict"]["headline"], *run["verdict"]["sentences"], *reasons])


def easy(n=60):
    """One token of each sequence carries its label, the others carry nothing."""
    rng = np.random.default_rng(0)
    tokens, labels = 0.3 * rng.normal(size=(n, 3, 4)), np.where(np.arange(n) % 2, 1.0, -1.0)
    tokens[np.arange(n), rng.integers(3, size=n), 0] += 2.0 * labels
    tokens[..., 1] += np.abs(tokens[..., 0])
    return tokens, labels


def test_more_steps_are_advised_while_sequences_come_to_one_token(tmp_path):
    said = fitted(tmp_path, *easy(), "--steps", "10")[1]
    arrays = load_file(tmp_path / "run" / "arrays.safetensors")
    counts = len(arrays["selected"]) * arrays["trajectory_saturated"]
    half = np.searchsorted(arrays["trajectory_step"], 5)
    gained = round(counts[-1] - counts[half])
    assert 0 < gained < counts[-1] < 0.95 * len(arrays["selected"])
    assert f"{gained} of them came to it between step {arrays['trajectory_step'][half]}" in said
    assert "more steps (--steps) may bring in others" in said


def test_more_time_is_not_advised_where_there_was_time(tmp_path):
    run, said = fitted(tmp_path, *easy(), "--steps", "400", "--tol", "1e-17")
    margin = run["results"]["margin"]
    assert margin["status"] == "inaccurate"
    assert "--solve-seconds" not in said
    for name, value in (("relative gap", margin["gap"]), ("violation", margin["violation"])):
        assert (f"{name} of {value:.2g}" in said) == (value > margin["tol"])
