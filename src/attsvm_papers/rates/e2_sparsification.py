"""Sparsification of the attention map.

The runs of rates-1: four step rules on Gaussian tokens. Attention off the optimal token is computed
from differences of logits, so it is exact far below the spacing of floats; slopes are fitted from
step 1000 on.

Source: Implicit Bias and Fast Convergence Rates for Self-attention, sparsification rate (recalled)
"""

import numpy as np

from attsvm_papers.kit import (
    ATTENTION,
    BEST,
    FAINT,
    INK,
    MOST,
    TRAINED,
    VERDICT,
    blocks,
    claim,
    close_to,
    each,
    grid,
    legend,
    loglog,
    picture,
    same,
    scales,
    shuffled,
    slopes,
)
from attsvm_papers.rates.adaptive import (
    CONSTANT,
    NAMES,
    PLAIN,
    POLYAK,
    ROOT,
    RULES,
    log_missing,
    trained,
)

SCALES = scales(steps=10_000, seeds=20, first_seed=VERDICT, quick={"seeds": 4})

LATE = 1000  # the fit starts here: before, other tokens than the rivals at the margin still count


@grid(rule=RULES, seeds=blocks(20))
def run(rule, seeds, steps):
    found = trained(rule, seeds, steps)
    trajectory = found.trajectory
    return {
        "step": same(trajectory.steps),
        "norm": trajectory.norm.T,
        "log_missing": log_missing(found.data, found.tokens, trajectory.W).T,
        "best_norm": found.solutions.norm,
    }


@each(
    claim(
        close_to(1.0, 0.1, "derived, up to o(1)", share=MOST),
        id=f"C5.3{letter}",
        statement=(
            f"{NAMES[rule].capitalize()}: the logarithm of the attention off the optimal token"
            " falls by one per norm of the solution."
        ),
        interval=True,
        null=shuffled("best_norm", within="rule", words="the norm of another instance's solution"),
        rule=rule,
    )
    for letter, rule in (("", CONSTANT), ("a", ROOT), ("b", POLYAK), ("c", PLAIN))
)
def slope(e, rule):
    # Slope of :math:`-\log(1-\varphi_o)` against the norm, times the norm of the solution.
    rows = e.where(rule=rule)
    return -slopes(rows["norm"], rows["log_missing"], rows["step"] >= LATE) * rows["best_norm"]


@picture(
    "Attention becomes sparse exponentially in the norm",
    "Curves by step differ by orders of magnitude; against the norm all points lie on the"
    " diagonal.",
    3.0,
    1,
    2,
    width=7.6,
)
def sparsification(evidence, axes):
    """Left: minus the base-ten logarithm of the attention that is not on the optimal token, median
    over seeds. Right: the same in natural logarithms against the norm, all seeds and records: every
    rule runs along the same line.
    """
    colours = {CONSTANT: TRAINED, ROOT: BEST, POLYAK: ATTENTION, PLAIN: INK}
    for rule, colour in colours.items():
        rows = evidence.where(rule=rule)
        step = rows["step"][0]
        late = step >= 1
        size = (rows["norm"] / rows["best_norm"][:, None])[:, late]
        missing = -rows["log_missing"][:, late]
        axes[0].plot(
            step[late],
            np.median(missing, axis=0) / np.log(10.0),
            color=colour,
            label=NAMES[rule],
        )
        axes[1].plot(size.T, missing.T, ".", color=colour, markersize=2.5, alpha=0.6)
    line = np.array([0.5, 1e4])
    axes[1].plot(line, line, color=FAINT, linewidth=0.8)
    axes[1].text(900, 250, "one per norm", color=FAINT, fontsize=8.5)
    for ax in axes:
        loglog(ax, np.array([1.0, 1e4]), np.array([1.0, 1e4]))
    axes[0].set_ylim(0.08, 5000)
    axes[1].set(xlim=(0.5, 1e4), ylim=(0.1, 1e4))
    axes[0].set_title("nines of the attention on the optimal token")
    axes[1].set_title("-log(1 - attention), worst sequence")
    axes[0].set_xlabel("step")
    axes[1].set_xlabel("norm of W / norm of the solution")
    legend(axes[0], loc="upper left")
