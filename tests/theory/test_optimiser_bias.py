"""Which margin an optimiser maximises: shares, what counts, and runs that leave others alone."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from matplotlib.text import Text
from torch import nn

import attsvm
from attsvm.base.errors import InputError
from attsvm.claims import Claim, Null, at_least
from attsvm.cli import main
from attsvm.datasets import unit_sphere
from attsvm.optim import SteepestDescent
from attsvm.theory import BiasOptions, ImplicitBias, implicit_bias
from attsvm.theory.optimiser_per_run import Lion, OptimizerPerRun, named_optimizer

OWN = '''
import torch

class Normed(torch.optim.Optimizer):
    """Steps of one length, over all parameters that it is given."""

    def __init__(self, params, lr, factor=1.0):
        super().__init__(params, {"lr": lr, "factor": factor})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            size = torch.sqrt(sum((p.grad**2).sum() for p in group["params"]))
            for p in group["params"]:
                p -= group["lr"] * group["factor"] * p.grad / size
'''


def steepest(norm, lr):
    return lambda parameters: SteepestDescent(parameters, lr=lr, norm=norm)


@pytest.mark.parametrize(("norm", "lr"), [("fro", 0.1), ("linf", 0.01)])
def test_steepest_descent_leads_in_its_own_norm(norm, lr):
    bias = implicit_bias(steepest(norm, lr), seeds=6, steps=3000, norms=("fro", "linf", "nuc"))
    assert bias.leader == norm == bias.rows()[0]["norm"]
    assert bias.selects.all()
    # shares of the best margin are at most one, up to the gap of the best
    assert bias.share.max() <= 1.0 + bias.options.tolerance
    assert bias.last(norm).mean > 0.9 > bias.rows()[1]["share"] > bias.null.mean()
    assert bias.last(norm).low < bias.last(norm).mean < bias.last(norm).high
    # directions of a Frobenius share s have a cosine of s at least
    fro = bias.norms.index("fro")
    assert (bias.cosine[-1, :, fro] >= bias.share[-1, :, fro] - 1e-6).all()


def test_a_share_is_the_normalised_margin_over_the_best_one():
    data, head = unit_sphere(4, 5, 6, seed=3)
    tokens = attsvm.optimal_tokens(data, head)
    bias = implicit_bias(
        steepest("fro", 0.1), data, head, seeds=1, steps=2000, norms=["fro", "spec"]
    )
    assert bias.optimal.all()
    model = attsvm.attention.Attention.cross(data, head, runs=1, init=first_weights(6))
    run = attsvm.train(model, data, steepest("fro", 0.1)(model.parameters()), 2000)
    margins, W = attsvm.selection_margins(data, tokens), run.W[-1, 0]
    for k, norm in enumerate(("fro", "spec")):
        best, size = attsvm.max_margin(margins, norm).norm, attsvm.parse_norm(norm).value(W)
        expected = margins(W).min() / float(size) * best
        assert bias.share[-1, 0, k] == pytest.approx(expected, rel=1e-5)  # gaps of both solutions


def first_weights(d):
    """The start of seed 0."""
    W = np.random.default_rng([54, 0, 0]).standard_normal((d, d))
    return BiasOptions().start * W[None] / np.linalg.norm(W)


def test_runs_that_select_nothing_do_not_count_and_are_named():
    bias = implicit_bias(steepest("fro", 1e-4), seeds=3, steps=2, norms=("fro", "linf"))
    assert not bias.selects.any()
    assert bias.leader is None
    assert "has selected no tokens in any of 3 runs" in bias.verdict
    assert all(math.isnan(row["share"]) for row in bias.rows())


def test_an_optimiser_over_all_its_parameters_sees_one_run_alone(tmp_path, monkeypatch):
    (tmp_path / "mine_of_a_test.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    title, make = named_optimizer("mine_of_a_test:Normed", lr=0.05, factor=2.0)
    mine = implicit_bias(make, seeds=3, steps=300, norms=["fro"], name=title)
    ours = implicit_bias(steepest("fro", 0.1), seeds=3, steps=300, norms=["fro"])
    assert mine.optimizer == "Normed"
    np.testing.assert_allclose(mine.share, ours.share, rtol=1e-6)


def test_stacked_runs_are_those_that_are_stepped_one_by_one():
    rng = np.random.default_rng(0)
    start = torch.tensor(rng.standard_normal((3, 4, 2)))
    gradients = [torch.tensor(rng.standard_normal((3, 4, 2))) for _ in range(5)]
    for name in ("adam", "adamw", "momentum", "lion", "sign", "muon", "mirror:1.5"):
        _, make = named_optimizer(name, lr=0.1)
        together, apart = (nn.Parameter(start.clone()) for _ in range(2))
        optimizers = make([together]), OptimizerPerRun([apart], make)
        for gradient in gradients:
            together.grad, apart.grad = gradient.clone(), gradient.clone()
            for optimizer in optimizers:
                optimizer.step()
        torch.testing.assert_close(together, apart, rtol=1e-12, atol=1e-12, msg=name)


def test_schedules_reach_the_optimisers_of_single_runs():
    W = nn.Parameter(torch.zeros(2, 1, 1, dtype=torch.float64))
    optimizer = OptimizerPerRun([W], lambda params: torch.optim.SGD(params, lr=0.5))
    optimizer.param_groups[0]["lr"] = 0.1
    W.grad = torch.ones_like(W)
    optimizer.step()
    np.testing.assert_allclose(W.detach().numpy(), -0.05)


def test_lion_decays_and_moves_by_signs():
    W = nn.Parameter(torch.tensor([1.0, -1.0]))
    optimizer = Lion([W], lr=0.1, weight_decay=0.5)
    W.grad = torch.tensor([2.0, 0.0])
    optimizer.step()
    torch.testing.assert_close(W.detach(), torch.tensor([0.85, -0.95]))


@pytest.mark.parametrize("parameters", ["KQ", "W and head"])
def test_factors_and_a_head_are_trained_too(parameters):
    bias = implicit_bias(
        steepest("fro", 0.02), seeds=2, steps=400, norms=("fro", "nuc"), parameters=parameters
    )
    assert np.isfinite(bias.share[-1]).all()


def test_the_picture_and_the_table_have_a_line_per_norm():
    bias = implicit_bias(steepest("fro", 0.1), seeds=2, steps=2000, norms=("fro", "linf"))
    ax = bias.plot()
    assert [line.get_label() for line in ax.lines][:2] == ["Frobenius norm", "ℓ∞ norm"]
    assert str(bias).count("\n") == 3
    assert set(bias.arrays()) >= {"share", "null"}


def shares(last, tenth, norms=("fro", "l1")):
    """Two runs whose shares end near ``last``, one per norm, from those at a tenth."""
    share = np.array([tenth, last])[:, None] + np.array([-0.001, 0.001])[:, None]
    return ImplicitBias(
        "momentum", norms, np.array([10, 100]), share, share, np.zeros_like(share[0]),
        np.ones(2, bool), np.ones(2, bool),
    )  # fmt: skip


def test_the_verdict_begins_with_the_answer_and_says_what_to_do():
    rising = shares([0.43, 0.3], [0.2, 0.1]).verdict
    assert rising.startswith("The Frobenius margin leads so far: after 100 steps momentum reaches")
    assert "take more steps or a larger lr" in rising
    settled = shares([0.43, 0.3], [0.43, 0.3]).verdict
    assert settled.startswith("The Frobenius margin leads: after 100 steps momentum reaches 0.43")
    assert "take more steps" not in settled
    assert shares([0.43, 0.43], [0.2, 0.2]).verdict.startswith("None yet: ")
    assert shares([0.43, 0.43], [0.43, 0.43]).verdict.startswith("None leads: ")


def test_names_of_curves_that_end_close_together_do_not_overlap():
    norms = ("fro", "lp:1.5", "lp:3", "spec", "l1")
    axes = shares([0.43, 0.42, 0.425, 0.05, 0.01], [0.1] * 5, norms).plot()
    axes.figure.canvas.draw()
    boxes = [Text.get_window_extent(text) for text in axes.texts]  # without lines to the curves
    heights = sorted((box.y0 + box.height / 2, box.height) for box in boxes)
    assert len(heights) == 5
    for (low, height), (high, _) in itertools.pairwise(heights):
        assert high - low >= 0.75 * height  # lines of text, whose boxes hold empty space above


def test_the_table_says_what_a_negative_share_means():
    early = implicit_bias(steepest("fro", 0.1), seeds=3, steps=150, norms=("fro",))
    assert early.rows()[0]["tenth"] < 0
    assert "negative while some token still has a larger logit" in str(early)
    late = implicit_bias(steepest("fro", 0.1), seeds=3, steps=2000, norms=("fro",))
    assert late.rows()[0]["tenth"] > 0
    assert "negative" not in str(late)


def test_what_cannot_be_measured_is_refused():
    data, head = unit_sphere(3, 4, 5, seed=0)
    make = steepest("fro", 0.1)
    bias = ImplicitBias(
        "x", ("fro",), np.arange(2), *(np.zeros((2, 1, 1)),) * 2, np.zeros((1, 1)),
        np.ones(1, bool), np.ones(1, bool),
    )  # fmt: skip
    for call, words in (
        (lambda: implicit_bias(make, data, seeds=2), "data needs a head"),
        (lambda: implicit_bias(make, None, head, seeds=2), "belongs to nothing"),
        (lambda: implicit_bias(make, seeds=0), "no seeds"),
        (lambda: implicit_bias(make, seeds=2, norms=()), "no norm"),
        (lambda: implicit_bias(make, seeds=2, parameters="Q"), "parameters is 'Q'"),
        (lambda: implicit_bias(lambda parameters: 3, seeds=2), "make_optimizer gives int"),
        (lambda: implicit_bias(make, *unit_sphere(3, 4, 5, [0, 1]), seeds=3), "for 3 seeds"),
        (lambda: bias.last("nuc"), "was not measured"),
        (lambda: named_optimizer("adamm", 0.1), "did you mean adam"),
        (lambda: named_optimizer("mirror:one", 0.1), "exponent above 1"),
        (lambda: named_optimizer("nowhere.at.all:X", 0.1), "cannot be imported"),
        (lambda: named_optimizer("math:pi", 0.1), "is no class"),
        (lambda: named_optimizer("adam", 0.1, warmth=2), "does not take these options"),
        (lambda: named_optimizer("adam", 0.1, eps=-1), "does not take these options"),
        (lambda: named_optimizer("torch.optim:LBFGS", 0.1), "give one that needs no closure"),
        (lambda: named_optimizer("types:SimpleNamespace", 0.1), "not (an optimiser|take)"),
    ):
        with pytest.raises(InputError, match=words):
            call()


def test_the_command_writes_one_page_of_a_class_of_this_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine_in_a_folder.py").write_text(OWN)
    words = "bias --optimizer mine_in_a_folder:Normed --lr .1 --seeds 3 --steps 400 --quiet"
    assert main([*words.split(), "--norm", "fro", "--norm", "linf", "--set", "factor=1.5"]) == 0
    out = capsys.readouterr().out
    assert "after 400 steps Normed reaches" in out
    folder = tmp_path / "runs" / "bias-mine-in-a-folder-Normed"
    page = (folder / "report.html").read_text()
    run = json.loads((folder / "run.json").read_text())
    assert run["verdict"] in page
    assert run["norms"][0]["norm"] == run["leader"] == "fro"
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert main(["bias", "--optimizer", "adam", "--set", "eps"]) == 2
    assert "is not of the form NAME=VALUE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--set eps=.9,amsgrad=True", "a comma joins eps and amsgrad; separate options by spaces"),
        ("--set eps=-1", "does not take these options"),
        ("--norm lq", "unknown norm 'lq'"),
        ("--first-seed -3", "-3 is not a whole number from 0"),
        ("--decay nan", "nan is not a finite number of at least 0"),
    ],
)
def test_what_is_refused_leaves_no_run_in_the_way(tmp_path, monkeypatch, capsys, words, why):
    monkeypatch.chdir(tmp_path)
    assert main(["bias", "--optimizer", "adam", "--out", "o", "--quiet", *words.split()]) == 2
    assert why in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_runs_that_select_nothing_have_a_page_that_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = "bias --optimizer ngd --lr .0001 --seeds 2 --steps 50 --norm fro --quiet --out o"
    assert main(words.split()) == 0
    assert "has selected no tokens in any of 2 runs" in capsys.readouterr().out
    assert "has selected no tokens" in (tmp_path / "o" / "report.html").read_text()


def test_a_claim_reads_the_evidence_of_an_optimiser():
    bias = implicit_bias(steepest("fro", 0.1), seeds=6, steps=2000, norms=("linf", "fro"))
    claim = Claim(
        "B1",
        "Its own norm is ahead.",
        "ours",
        lambda e: e["share fro"] - e["share linf"],
        at_least(0.0, "the limit"),
        {"a token of every sequence is selected": lambda e: e["selects"]},
        null=Null("random margins", lambda e: e.but({"share fro": e["null fro"]})),
    )
    verdict = claim.check(bias.evidence())
    assert (verdict.verdict, verdict.trials) == ("holds", 6)
    assert verdict.measured == (bias.share[-1, :, 1] - bias.share[-1, :, 0]).min()
    assert verdict.null.measured == (bias.null[:, 1] - bias.share[-1, :, 0]).min()
