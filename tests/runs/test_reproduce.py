"""Reproduction: cells are computed once, verdicts and pages are written, nothing is lost when it is
cut off.
"""

import json
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest

from attsvm.base.errors import InputError, UnavailableError
from attsvm.base.files import load_arrays
from attsvm.base.store.environment import environment, versions
from attsvm.claims import Claim, at_most
from attsvm.cli import main
from attsvm.report.style import canvas, render
from attsvm_papers.kit import Experiment
from attsvm_papers.runs import cells as cells_module
from attsvm_papers.runs import reproduce as module
from attsvm_papers.runs.reproduce import reproduce, summary


def pairs(seeds):
    """First seeds and how many, two at most."""
    return [(first, min(2, seeds - first)) for first in range(0, seeds, 2)]


@dataclass(frozen=True)
class Parameters:
    seeds: int = 4
    power: int = 2


def measure(first, count, power):
    state.calls.append(first)
    if first in state.broken:
        raise RuntimeError("the power went out")
    seeds = np.arange(first, first + count)
    return {"seed": seeds, "value": seeds**power}


def draw(evidence):
    with canvas(2.0) as (figure, axes):
        axes[0].plot(evidence["seed"], evidence["value"])
        yield render(figure, "line", "A line", "It rises.", "A rising line.")


state = SimpleNamespace(calls=[], broken=())
BELOW = at_most(10.0, "four seeds")
TOY = Experiment(
    id="mmts-99",
    title="Squares <b>grow</b>",
    reference="nowhere",
    protocol="Squares of seeds.",
    parameters=Parameters(),
    quick=Parameters(seeds=2),
    cells=lambda p: (
        {"first": first, "count": count, "power": p.power} for first, count in pairs(p.seeds)
    ),
    run=measure,
    claims=(Claim("S1", "Squares stay below ten.", "ours", lambda e: e["value"], BELOW),),
    plot=draw,
)


@pytest.fixture
def known(monkeypatch):
    """Makes experiments known, and these alone."""

    def make(*experiments):
        find = {each.id: each for each in experiments}
        for where in (module, cells_module):
            monkeypatch.setattr(where, "experiment", find.get)
        return list(find)

    return make


@pytest.fixture(autouse=True)
def toy(known):
    state.calls, state.broken = [], ()
    known(TOY)


def values(out, column="value"):
    return load_arrays(out / "mmts-99" / "arrays.safetensors")[column].tolist()


def test_a_run_leaves_numbers_verdicts_figures_and_pages(tmp_path):
    (run,) = reproduce(["mmts-99"], tmp_path / "out", jobs=1)
    home = tmp_path / "out" / "mmts-99"
    assert json.loads((home / "run.json").read_text()) == run
    assert values(tmp_path / "out") == [0, 1, 4, 9]
    assert [(claim["id"], claim["verdict"]) for claim in run["claims"]] == [("S1", "holds")]
    assert (home / "figures" / "line.png").exists()
    page = (home / "report.html").read_text()
    assert "Squares &lt;b&gt;grow" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert 'href="mmts-99/report.html"' in (tmp_path / "out" / "index.html").read_text()


def test_only_what_is_new_is_computed(tmp_path):
    out = tmp_path / "out"
    first = reproduce(["mmts-99"], out, jobs=1)
    assert set(summary(first[0])) == {"id", "paper", "title", "scale", "seconds", "claims"}
    assert state.calls == [0, 2]
    assert reproduce(["mmts-99"], out, jobs=1) == first
    assert state.calls == [0, 2]
    (more,) = reproduce(["mmts-99"], out, seeds=7, jobs=1)
    assert state.calls == [0, 2, 4, 6]
    assert more["trials"] == 7
    assert more["claims"][0]["verdict"] == "fails"
    (shifted,) = reproduce(["mmts-99"], out, seeds=3, shift=10, jobs=1)
    assert state.calls == [0, 2, 4, 6, 10, 12]
    assert shifted["scale"] == "paper, 3 seeds, seeds 10 later"
    assert values(out, "seed") == [10, 11, 12]


def test_seeds_are_shifted_wherever_a_cell_names_them():
    cells = [
        {"kind": 1, "arguments": {"first": 5, "count": 2}},
        {"seeds": [0, 1]},
        {"seed": 7, "d": 3},
        {"draws": 4},
    ]
    assert replace(TOY, cells=lambda p: cells).work(None, 100) == [
        {"kind": 1, "arguments": {"first": 105, "count": 2}},
        {"seeds": [100, 101]},
        {"seed": 107, "d": 3},
        {"draws": 4},
    ]
    fixed = replace(TOY, cells=lambda p: cells[3:])
    assert fixed.work(TOY.parameters)
    with pytest.raises(InputError, match="no seeds that could be shifted"):
        fixed.work(TOY.parameters, 1)


def test_what_was_finished_before_a_crash_is_kept(tmp_path):
    state.broken = (2,)
    with pytest.raises(RuntimeError) as caught:
        reproduce(["mmts-99"], tmp_path / "out", jobs=1)
    assert "mmts-99" in "".join(caught.value.__notes__)
    state.calls, state.broken = [], ()
    reproduce(["mmts-99"], tmp_path / "out", jobs=1)
    assert state.calls == [2]


def test_scales_of_an_experiment_that_needs_minutes_and_of_one_that_needs_an_accelerator(tmp_path):
    large = replace(TOY, published=Parameters(seeds=90))
    nightly, alone = (replace(each, medium=Parameters(seeds=9)) for each in (large, TOY))
    wanted = (None, "smoke", "small", "medium", "paper")
    for each, seeds, names in (
        (TOY, [4, 2, 4, 4, 4], ["paper", "smoke", "paper", "paper", "paper"]),
        (large, [4, 2, 4, 4, 90], ["small", "smoke", "small", "small", "paper"]),
        (nightly, [4, 2, 4, 9, 90], ["small", "smoke", "small", "medium", "paper"]),
        (alone, [4, 2, 4, 9, 9], None),
    ):
        assert [each.at(scale=scale).seeds for scale in wanted] == seeds
        assert names is None or [each.scale(scale) for scale in wanted] == names
    sentence = "no scale 'huge'; choose from: smoke, small, medium, paper"
    with pytest.raises(InputError, match=sentence):
        large.at(scale="huge")
    (small,) = reproduce(["mmts-99"], tmp_path / "out", scale="small", jobs=1)
    assert (small["scale"], small["trials"]) == ("paper", 4)
    (quick,) = reproduce(["mmts-99"], tmp_path / "out", quick=True, jobs=1)
    assert (quick["scale"], quick["trials"]) == ("quick", 2)


def lacking(_):
    raise UnavailableError("mmts-98 needs the moon; wait for the night")


def test_an_experiment_that_cannot_run_here_leaves_the_others_alone(tmp_path, known):
    known(TOY, replace(TOY, id="mmts-98", cells=lacking))
    told = []
    runs = reproduce(
        ["mmts-98", "mmts-99"], tmp_path / "out", jobs=1, skipped=lambda *words: told.append(words)
    )
    assert [run["id"] for run in runs] == ["mmts-99"]
    assert told == [("mmts-98", "mmts-98 needs the moon; wait for the night")]
    assert reproduce(["mmts-98"], tmp_path / "none", jobs=1, skipped=lambda *words: None) == []
    with pytest.raises(UnavailableError, match="the moon"):
        reproduce(["mmts-98"], tmp_path / "none", jobs=1)
    assert not (tmp_path / "none").exists()


def test_experiments_that_share_a_run_share_its_results(tmp_path, known):
    names = known(TOY, replace(TOY, id="mmts-98", claims=()))
    first, second = reproduce(names, tmp_path / "out", jobs=1)
    assert state.calls == [0, 2]
    assert first["seconds"] == second["seconds"]


def test_experiments_before_and_after_one_with_further_cells_keep_their_order(tmp_path, known):
    def second(parameters, evidence):
        yield {"first": 0, "count": 2, "power": 1}

    names = known(
        replace(TOY, id="mmts-97"),
        replace(TOY, id="mmts-98", then=second),
        replace(TOY, cells=lambda p: [{"first": 4, "count": 2, "power": 1}]),
    )
    runs = reproduce(names, tmp_path / "out", jobs=1)
    assert [run["id"] for run in runs] == names
    assert [run["trials"] for run in runs] == [4, 6, 2]
    assert state.calls == [0, 2, 0, 4]


def test_further_cells_rest_on_what_the_first_ones_found(tmp_path, known):
    def largest(parameters, evidence):
        yield {"first": 10 + int(evidence["value"].max()), "count": 1, "power": 1}

    names, told = known(replace(TOY, then=largest)), []
    (run,) = reproduce(names, tmp_path / "out", jobs=1, progress=lambda *words: told.append(words))
    assert values(tmp_path / "out") == [0, 1, 4, 9, 19]
    assert run["trials"] == 5
    assert told == [
        *(("mmts-99", done, 2) for done in range(3)),
        *(("mmts-99 (2)", done, 1) for done in range(2)),
    ]
    state.calls.clear()
    reproduce(names, tmp_path / "out", jobs=1)
    assert state.calls == []


def test_other_files_are_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("months of work")
    with pytest.raises(InputError, match="holds files that are not a run of attsvm"):
        reproduce(["mmts-99"], tmp_path, jobs=1)


def test_cells_tell_where_they_were_computed(tmp_path, monkeypatch):
    """Not where they were put together."""
    (here,) = reproduce(["mmts-99"], tmp_path / "out", jobs=1)
    assert here["environment"] == environment()
    assert "environments" not in here
    moon = {**environment(), "platform": "moon"}
    monkeypatch.setattr("attsvm.base.store.entries.environment", lambda: moon)
    (same,) = reproduce(["mmts-99"], tmp_path / "out", jobs=1)
    assert same["environment"] == environment()
    (mixed,) = reproduce(["mmts-99"], tmp_path / "out", seeds=6, jobs=1)
    assert mixed["environment"] == environment()
    assert [(each["platform"], each["cells"]) for each in mixed["environments"]] == [
        (environment()["platform"], 2),
        ("moon", 1),
    ]
    page = (tmp_path / "out" / "mmts-99" / "report.html").read_text()
    assert "Cells were computed in 2 environments" in page
    assert "moon" in page


def test_cells_of_other_versions_are_not_served(tmp_path, monkeypatch):
    reproduce(["mmts-99"], tmp_path / "out", jobs=1)
    state.calls.clear()
    monkeypatch.setattr(
        "attsvm.base.store.entries.versions", lambda: {**versions(), "numpy": "99.0"}
    )
    reproduce(["mmts-99"], tmp_path / "out", jobs=1)
    assert state.calls == [0, 2]


def test_what_others_put_into_the_folder_stays(tmp_path):
    out = tmp_path / "out"
    reproduce(["mmts-99"], out, jobs=1)
    cells = next((out / "cells").iterdir())
    theirs = [
        *(out / "thesis.txt", out / "mmts-99" / "figures" / "mine.svg", cells / "mine.safetensors"),
        *(cells / "mine" / "a.py", cells / ".mine.00000000.partial.safetensors"),
        cells / ".mine.safetensors.lock",
    ]
    for path in theirs:
        path.parent.mkdir(exist_ok=True)
        path.write_text("years of work")
    left = [
        cells / f".{'0' * 32}.{end}" for end in ("00000000.partial.safetensors", "safetensors.lock")
    ]
    for path in left:
        path.write_text("of a process that was killed")
    reproduce(["mmts-99"], out, seeds=6, jobs=1)
    assert all(path.read_text() == "years of work" for path in theirs)
    assert not any(path.exists() for path in left)


def test_a_file_in_the_way_is_named_before_anything_is_computed(tmp_path):
    out = tmp_path / "out"
    reproduce(["mmts-99"], out, jobs=1)
    request = out / "request.json"
    request.write_text(request.read_text().replace('"index.html",', ""))
    state.calls.clear()
    with pytest.raises(InputError, match=r"index\.html is in the way"):
        reproduce(["mmts-99"], out, seeds=6, jobs=1)
    assert state.calls == []


def draw_at_step(evidence):
    for when in (10, 100):
        with canvas(2.0) as (figure, axes):
            axes[0].plot(evidence["seed"], evidence.at("value", when))
            yield render(figure, f"step-{when}", "Values", "By seed.", "A line.")


def recorded(first, count, power):
    seeds = np.arange(first, first + count)
    values = np.stack([seeds, seeds**power], axis=1)
    return {"seed": seeds, "step": np.tile([1, 10], (count, 1)), "value": values}


def test_figures_and_page_of_a_run_that_lacks_a_step_are_made_and_say_so(tmp_path, known):
    claims = (replace(TOY.claims[0], measure=lambda e: e.at("value", 100)),)
    known(replace(TOY, run=recorded, plot=draw_at_step, claims=claims))
    (run,) = reproduce(["mmts-99"], tmp_path / "out", jobs=1)
    (claim,) = run["claims"]
    assert (claim["verdict"], claim["unmet"]) == ("not applicable", ["a record of step 100"])
    page = (tmp_path / "out" / "mmts-99" / "report.html").read_text()
    assert "no instance has: a record of step 100" in page
    assert page.count("(step 10 in place of 100)</") == 1  # in the title of the second figure alone


def test_the_page_and_the_terminal_say_which_parameters_were_changed(tmp_path, capsys):
    command = ["reproduce", "mmts-99", "--jobs", "1", "--out", str(tmp_path / "out")]
    page = tmp_path / "out" / "mmts-99" / "report.html"
    words = "Parameters were changed (power = 3): claims about published numbers may not apply."
    assert main([*command, "--set", "power=3"]) == 0
    assert words in capsys.readouterr().out
    assert words in page.read_text()
    assert "--set power=3" in page.read_text()
    assert main([*command, "--set", "power=2"]) == 0  # as it was
    assert "Parameters were changed" not in capsys.readouterr().out + page.read_text()
