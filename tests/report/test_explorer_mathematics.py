"""The explorer's module, run by node: its solver against the library's, its descent against the
library's and the published angles.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from typing import Any

import numpy as np
import pytest
from scipy.optimize import nnls

import attsvm
import attsvm.report.explorer as explorer
from attsvm.datasets import toy
from attsvm.report.explorer.states import preset, presets

NODE = shutil.which("node")

pytestmark = pytest.mark.skipif(NODE is None, reason="node is not on this machine")


def computed(expression: str, given: Any) -> Any:
    """The value of a JavaScript expression of ``E``, the module, and ``given``, in JSON."""
    module = "data:text/javascript;base64," + base64.b64encode(explorer.script().encode()).decode()
    programme = (
        f"import * as E from {json.dumps(module)};"
        "let text = ''; for await (const part of process.stdin) text += part;"
        "const given = JSON.parse(text);"
        f"console.log(JSON.stringify({expression}));"
    )
    assert NODE is not None
    done = subprocess.run(
        [NODE, "--input-type=module", "-e", programme],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def planar(rng: np.random.Generator) -> attsvm.AttentionData:
    """One to five sequences of two to six tokens, half of them shifted apart so that most choices
    are possible.
    """
    n = int(rng.integers(1, 6))
    lengths = rng.integers(2, 7, size=n)
    bags = [rng.standard_normal((length, 2)) for length in lengths]
    if rng.random() < 0.7:
        away = rng.standard_normal(2)
        for bag in bags:
            bag[0] += 3.0 * away / np.linalg.norm(away)
    scale = 10.0 ** rng.uniform(-2, 2)
    return attsvm.AttentionData.from_bags(
        [scale * bag for bag in bags], np.ones(n), queries=np.ones((n, 1))
    )


def test_solver_agrees_with_the_library() -> None:
    rng = np.random.default_rng(0)
    instances = [planar(rng) for _ in range(100)]
    exponents = [1.1, 1.5, 2.0, 3.0, float("inf")]
    states = [explorer.state_of(data) for data in instances]
    answers = computed(
        "given.states.map((state) => [1.1, 1.5, 2, 3, Infinity].map((p) => {"
        " const { status, w, norm, conflict, rows } = E.marginOf({ ...E.complete(state), p });"
        " return { status, w, norm, rows: conflict.map((k) => rows[k]) }; }))",
        {"states": states},
    )
    infeasible = 0
    for data, answer in zip(instances, answers, strict=True):
        margins = attsvm.selection_margins(data, np.zeros(data.n, dtype=int))
        for p, found in zip(exponents, answer, strict=True):
            # A gap of g leaves the direction free by about the root of g: the reference is solved
            # to its last digits.
            best = attsvm.max_margin(margins, attsvm.Lp(p), tol=1e-13)
            assert best.status in ("optimal", "infeasible")
            assert found["status"] == best.status
            if best.status == "infeasible":
                infeasible += 1
                rows = np.array([row["a"] for row in found["rows"]])
                assert 0 < len(rows) <= 3
                # Farkas: some shares of these few rows add up to zero
                assert farkas_residual(rows) < 1e-9
                continue
            assert found["norm"] == pytest.approx(best.norm, rel=1e-6)
            w = np.array(found["w"])
            assert margins(w[:, None]).min() >= 1 - 1e-9
            if best.unique or p < float("inf"):
                ours, theirs = w / np.linalg.norm(w), best.W[:, 0] / np.linalg.norm(best.W)
                assert np.abs(ours - theirs).max() < 1e-6
    assert 30 < infeasible < 400  # both outcomes are tried


def farkas_residual(rows: np.ndarray) -> float:
    """How far the sum of shares of these rows stays from zero, the shares adding up to one."""
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    _, residual = nnls(np.vstack([units.T, np.ones(len(units))]), np.array([0.0, 0.0, 1.0]))
    return float(residual)


def test_presets_have_the_published_solutions() -> None:
    def found(key: str) -> Any:
        return computed("E.marginOf(E.complete(given))", preset(key).state)

    for key, name in (
        ("one", "single_global"), ("trap", "single_local"), ("seven", "multiple_global")
    ):  # fmt: skip
        np.testing.assert_allclose(found(key)["w"], toy(name).reference["p"], atol=5.1e-5)
    for key, name in (("joint", "joint"), ("relaxed", "joint_nonsupport")):
        both = found(key)
        np.testing.assert_allclose(both["w"], toy(name).reference["p_relaxed"], atol=1e-12)
        np.testing.assert_allclose(both["head"]["w"], toy(name).reference["v"], atol=1e-12)


def test_joint_descent_passes_the_published_angles() -> None:
    steps = {50: 11.17, 100: 12.03, 200: 13.01, 1000: 13.84, 10_000: 14.02}
    records = computed(
        "E.descend(E.complete(given.state), 10000, 0.1, given.steps)",
        {"state": preset("joint").state, "steps": list(steps)},
    )
    angles = [np.degrees(np.arctan2(*record["w"][::-1])) for record in records]
    np.testing.assert_allclose(angles, list(steps.values()), atol=0.0051)
    np.testing.assert_allclose(records[2]["w"], [17.68, 4.08], atol=0.0051)
    np.testing.assert_allclose(records[2]["v"], [0.222, 19.78], atol=0.0051)


@pytest.mark.parametrize("p", [1.5, 2.0, 3.0])
def test_descent_is_that_of_the_library(p: float) -> None:
    problem = toy("single_local")
    assert problem.lifted is not None
    start = np.array([0.3, -0.4])
    model = attsvm.attention.Attention.prompt(
        problem.lifted, problem.value_head, keys=problem.keys, init=start
    )
    step = attsvm.optim.MirrorDescent(model.parameters(), lr=0.1, p=p, normalize=True)
    theirs = attsvm.train(model, problem.lifted, step, 400, attsvm.LogSpaced(8))
    state = {**preset("trap").state, "p": p, "start": start.tolist()}
    ours = computed(
        "E.descend(E.complete(given.state), 400, 0.1, given.steps)",
        {"state": state, "steps": theirs.steps.tolist()},
    )
    weights = theirs.W[-1].reshape(-1)
    np.testing.assert_allclose(ours[-1]["w"], weights, rtol=1e-8)
    np.testing.assert_allclose([record["loss"] for record in ours], theirs.loss.ravel(), rtol=1e-10)


def test_direction_keeps_its_digits_beyond_underflow() -> None:
    """At 1e6 times the solution the losers weigh exp(-1e6): the direction is that of the larger
    loser, which a plain softmax cannot tell from none.
    """
    state = {**preset("one").state, "start": [-1e5, 1e6]}
    push = computed(
        "(({ push }) => push)(E.landscape(E.complete(given))(given.start, [0, 0]))", state
    )
    tokens = np.array(state["sequences"][0]["tokens"])
    logits = tokens @ np.array(state["start"])
    loser = tokens[0] - tokens[int(np.argsort(logits)[-2])]
    cosine = push @ loser / np.linalg.norm(push) / np.linalg.norm(loser)
    assert cosine == pytest.approx(1.0, abs=1e-12)


def test_several_chosen_tokens_end_at_equal_shares() -> None:
    state = preset("several").state
    solved, last = computed(
        "[E.marginOf(E.complete(given)), E.descend(E.complete(given), 4000, 0.1, [4000])[0]]", state
    )
    first = np.array(state["sequences"][0]["tokens"])
    assert abs((first[0] - first[1]) @ np.array(solved["w"])) < 1e-12
    w = np.array(last["w"])
    assert w @ solved["w"] / np.linalg.norm(w) / np.linalg.norm(solved["w"]) > 1 - 1e-4
    assert last["mass"] > 0.99


def test_trap_ends_at_another_choice() -> None:
    last = computed("E.descend(E.complete(given), 1000, 0.1, [1000])[0]", preset("trap").state)
    assert last["picked"] == [1]
    higher = {**preset("trap").state, "start": [0.0, 0.5]}
    assert computed("E.descend(E.complete(given), 1000, 0.1, [1000])[0].picked", higher) == [0]


def test_states_survive_the_address() -> None:
    there_and_back = computed(
        "given.map((state) => [E.complete(state), E.decode(E.encode(E.complete(state)))]"
        ".map((s) => ({ ...s, p: String(s.p) })))",
        [{**each.state, "p": "inf"} for each in presets()],
    )
    for sent, back in there_and_back:
        for given, found in zip(sent["sequences"], back["sequences"], strict=True):
            np.testing.assert_allclose(found["tokens"], given["tokens"], atol=5.1e-5)
            assert found["chosen"] == given["chosen"]
        assert sent["p"] == back["p"] == "Infinity"
        assert sent["mode"] == back["mode"]


def test_a_broken_address_is_no_state() -> None:
    broken = [
        "", "2~fixed", "2~other~0,0~0,0~1;1;0,0,1*;1,1,0", "2~fixed~0,0~0,0~1;1;0,0,1;1,1,0",
        "2~fixed~0,x~0,0~1;1;0,0,1*;1,1,0", "1~fixed~0,0~0,0~1;1;0,0,1*;1,1,0", "NaN~fixed~,~,~",
    ]  # fmt: skip
    assert computed("given.map((text) => E.decode(text))", broken) == [None] * len(broken)
