"""Stage 1 of two-stage training: the output matrix walks a straight line (specification P3-E1)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm.claims import Claim, Evidence, at_most
from attsvm_papers.kit import Cell, Experiment
from attsvm_papers.ntp.two_stages import by_run, output_targets, rates

if TYPE_CHECKING:
    from attsvm.report.style import Picture


@dataclass(frozen=True)
class Parameters:
    """Collocations of a vocabulary of K tokens, uniform weights; normalised descent from zero."""

    K: int = 20
    steps: int = 1000
    seeds: int = 10


QUICK = Parameters(seeds=3)
EMBEDDINGS = ("identity", "ortho")


def cells(parameters: Parameters) -> Iterator[Cell]:
    for embeddings in EMBEDDINGS:
        yield {
            "K": parameters.K,
            "steps": parameters.steps,
            "first": 0,
            "count": parameters.seeds,
            "embeddings": embeddings,
        }


def run(K: int, steps: int, first: int, count: int, embeddings: str) -> dict[str, Any]:
    from attsvm.datasets.next_token import bipartite
    from attsvm.dynamics import LogSpaced
    from attsvm.dynamics.next_token import Rule, output_stage

    eta, _ = rates(K)
    sets = [bipartite(K, 1, seed, embeddings) for seed in range(first, first + count)]  # type: ignore[arg-type]
    course = output_stage(sets, Rule(eta), steps, records=LogSpaced(100), watch=True)
    assert course.rises is not None
    target = output_targets(sets)
    gap = eta * course.steps / math.sqrt(K - 1)
    closed = np.log1p((K - 1) * np.exp(-gap))
    columns = {
        "norm": course.norm,
        "loss": course.loss,
        "error": course.direction_error(target),
    }
    return {
        "embedded": np.full(count, EMBEDDINGS.index(embeddings)),
        "K": np.full(count, K),
        "step": np.tile(course.steps, (count, 1)),
        "eta": np.full(count, eta),
        "closed": np.tile(closed, (count, 1)),
        "rises": course.rises,
        **by_run(columns),
    }


def _measure_gap(evidence: Evidence) -> Any:
    return 0.5 * evidence["error"][:, 1:].max(axis=1) ** 2


def _measure_norm(evidence: Evidence) -> Any:
    expected = evidence["eta"][:, None] * evidence["step"][:, 1:]
    return np.abs(evidence["norm"][:, 1:] / expected - 1.0).max(axis=1)


def _measure_loss(evidence: Evidence) -> Any:
    return np.abs(evidence["loss"] / evidence["closed"] - 1.0).max(axis=1)


REFERENCE = "P3, Figure 2, left panels; specification C3.1"
CLAIMS = (
    Claim(
        "C3.1a",
        "From zero and with uniform weights the output matrix moves along its max-margin direction"
        " from the first step on.",
        "ours",
        _measure_gap,
        at_most(1e-12, "1 - cosine at every record from step 1: rounding, the specification's"),
        reference=REFERENCE,
    ),
    Claim(
        "C3.1b",
        "Its norm is the step size times the number of steps.",
        "ours",
        _measure_norm,
        at_most(1e-10, "relative, at every record: a thousand roundings"),
        reference=REFERENCE,
    ),
    Claim(
        "C3.1c",
        "Its loss is log(1 + (K - 1) exp(-alpha_t)) with alpha_t = eta t / sqrt(K - 1).",
        "ours",
        _measure_loss,
        at_most(1e-10, "relative, at every record"),
        reference=REFERENCE,
    ),
    Claim(
        "C3.3",
        "The loss falls at every step when 2 eta exp(2 eta) < 1 / sqrt(K - 1).",
        "ours",
        lambda e: e["rises"],
        at_most(
            0, "derived from the descent inequality for inputs of unit norm; counted at every step"
        ),
        {
            "a step as small as that": lambda e: (
                2 * e["eta"] * np.exp(2 * e["eta"]) < 1 / np.sqrt(e["K"] - 1)
            )
        },
        "specification C3.3",
    ),
)


def plot(evidence: Evidence) -> Iterator[Picture]:
    from attsvm.report.style import ATTENTION, FAINT, TRAINED, canvas, logarithmic, render

    rows = evidence.where(embedded=0)
    step = rows["step"][0]
    with canvas(2.7, 1, 3, width=8.6) as (figure, axes):
        loss, direction, norm = axes
        loss.plot(step, rows["loss"][0], color=TRAINED)
        loss.plot(
            step[::8],
            rows["closed"][0][::8],
            "x",
            color=ATTENTION,
            markersize=5,
            label="closed form",
        )
        logarithmic(loss.yaxis, rows["loss"][0])
        loss.legend(frameon=False, fontsize=8.5, labelcolor=FAINT)
        direction.plot(step[1:], rows["error"][:, 1:].max(axis=0), color=TRAINED)
        logarithmic(direction.yaxis, np.array([1e-17, 1e-5]))
        direction.set_ylim(1e-17, 1e-5)
        direction.axhline(np.sqrt(2e-12), color=ATTENTION, linewidth=0.8)
        direction.text(
            0.97,
            2.5e-6,
            "claimed bound",
            transform=direction.get_yaxis_transform(),
            ha="right",
            color=ATTENTION,
            fontsize=8.5,
        )
        norm.plot(step, rows["norm"][0], color=TRAINED)
        norm.plot(
            step[-1::-6],
            (rows["eta"][0] * step)[-1::-6],
            "x",
            color=ATTENTION,
            markersize=5,
            label="step size × steps",
        )
        norm.legend(frameon=False, fontsize=8.5, labelcolor=FAINT)
        for ax, title in zip(
            axes,
            ("Loss of stage 1", "Direction error, worst seed", "Norm of the output matrix"),
            strict=True,
        ):
            ax.set_title(title)
            ax.set_xlabel("step")
        yield render(
            figure,
            "stage-one",
            "Stage 1 walks a straight line",
            "Collocations with uniform weights, from zero: direction, norm and loss have closed"
            " forms. What is off is rounding.",
            "The loss falls along its closed form, the direction is exact to rounding at every"
            " step, the norm is linear.",
        )


EXPERIMENT = Experiment(
    id="ntp-1",
    title="Stage 1: the output matrix",
    reference="Huang, Liang and Yang (2024), Figure 2, left three panels; specification P3-E1",
    protocol=(
        "K = d = 20, a random permutation as collocation, uniform weights, zero start, normalised"
        " gradient descent with step 0.2 / sqrt(d), 1000 steps. Identity and random orthogonal"
        " embeddings."
    ),
    parameters=Parameters(),
    quick=QUICK,
    cells=cells,
    run=run,
    claims=CLAIMS,
    plot=plot,
    notes=(
        "The number of steps is ours; the root sign in the step size is lost in the extract that"
        " was read."
    ),
)
