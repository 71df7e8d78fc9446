"""Gradients that round, and gradients that do not.

ntp-3 for 40 000 steps, with p - 1 and phi (g - mean g) as textbooks write them, and with scores
relative to the winner, residuals as sums and factors as logarithms. float64 throughout.

Source: this project, in the setting of Huang, Liang and Yang (2024)
"""

import numpy as np

from attsvm import LogSpaced
from attsvm.dynamics.next_token import Rule, two_stage
from attsvm_papers import kit
from attsvm_papers.ntp.two_stages import KINDS, attention_solutions, by_run, draw, rates


@kit.run(kind=KINDS, textbook=[False, True], seeds=kit.seeds(10, by=10), quick={"seeds": 1})
def run(kind, textbook, seeds, K=20, per_query=4, steps=40_000):
    eta0, eta = rates(K)
    sets = draw(kind, K, per_query, seeds)
    attention = two_stage(
        sets, Rule(eta0), Rule(eta), (1000, steps), records=LogSpaced(250), textbook=textbook
    ).attention
    solutions = attention_solutions(sets)
    return {
        "step": kit.same(attention.steps),
        "stopped_at": attention.stopped_at,
        **by_run(
            {
                "cosine": attention.cosine(solutions),
                "norm": attention.norm,
                "log_missing": attention.log_missing,
            }
        ),
    }


EXCHANGED = kit.exchanged("each gradient for the other", "textbook", False, True)


def of(kind, textbook):
    return {"where": {"kind": kind, "textbook": textbook}, "null": EXCHANGED}


def fallen(e):
    """From its maximum to the end."""
    return e["cosine"].max(axis=1) - e.end("cosine")


@kit.claim(
    kit.at_most(0.9, "after 40 000 steps; an independent program has .80", share=kit.MOST),
    id="P3-E6a",
    **of(KINDS[0], True),
)
def P3_E6a(e):
    """No confused tokens: with the textbook gradient the cosine falls below .9."""
    return e.end("cosine")


@kit.claim(
    kit.at_least(0.999, "2.6 degrees", share=kit.MOST),
    id="P3-E6b",
    **of(KINDS[0], False),
)
def P3_E6b(e):
    """No confused tokens: with the stable gradient it ends at .999 or more."""
    return e.end("cosine")


@kit.claim(
    kit.at_least(0.01, "set by this project", share=kit.MOST),
    id="P3-E6c",
    **of(KINDS[1], True),
)
def P3_E6c(e):
    """Confused tokens: with the textbook gradient the cosine ends below its own maximum."""
    return fallen(e)


@kit.claim(
    kit.at_most(1e-12, "the error is still falling", share=kit.MOST),
    id="P3-E6d",
    **of(KINDS[1], False),
)
def P3_E6d(e):
    """Confused tokens: with the stable gradient it ends within rounding of its maximum."""
    return fallen(e)


@kit.picture(
    "Where the textbook gradient loses its way",
    "Both gradients agree at first; then the textbook one turns away from the solution"
    " while the stable one keeps converging.",
    3.1,
    1,
    2,
    width=8.6,
    sharex=True,
    sharey=True,
    name="textbook",
)
def draw_textbook(evidence, axes):
    """Distance to the max-margin direction, medians and ranges over seeds. When no sentence leaves
    more than the last digit of its attention to other tokens, differences of probabilities are
    rounding and normalised steps follow them.
    """
    last = float(evidence["step"].max())
    for kind, ax in zip(KINDS, axes, strict=True):
        for textbook, colour, words in (
            (False, kit.TRAINED, "stable gradient"),
            (True, kit.ATTENTION, "textbook gradient"),
        ):
            rows = evidence.where(kind=kind, textbook=textbook)
            step = rows["step"][0]
            late = step >= 100
            kit.band(ax, step[late], 1.0 - rows["cosine"][:, late], colour, label=words)
        rows = evidence.where(kind=kind, textbook=False)
        lost = [
            float(np.interp(np.log(2.0**-53), path[::-1], rows["step"][0][::-1]))
            for path in rows["log_missing"]
        ]
        if np.median(lost) < last:
            ax.axvline(np.median(lost), color=kit.FAINT, linewidth=0.8, linestyle=":")
            text = "worst sentence's 1 − φ\npasses the last digit"
            ax.text(
                np.median(lost) * 0.93,
                0.97,
                text,
                transform=ax.get_xaxis_transform(),
                color=kit.FAINT,
                fontsize=8.5,
                ha="right",
                va="top",
            )
        ax.set(xlabel="step")
    axes[0].set_title("No confused tokens")
    axes[1].set_title("Confused tokens")
    axes[0].set_ylabel("1 − cosine to the solution")
    kit.loglog(axes[0], np.array([100.0, last]), np.array([1e-4, 1.0]))
    kit.legend(axes[0], loc="lower left")
