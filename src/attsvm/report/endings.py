"""What each end of a fit means and what to do about it: on the page of a fit, and in
``docs/my-report.md``.
"""

from __future__ import annotations

ENDS = {
    "yes": (
        "Yes",
        "Nearly every training sequence gives its attention to one token, the max-margin solution"
        " of these selections is proved optimal, and the trained weights point where it does. So"
        " the theory holds in this run, and the selected token is more than the largest of"
        " several: the others have next to no attention left. This says nothing of held-out"
        " sequences: how often one token is right there is the first sentence of the report.",
    ),
    "not yet": (
        "Not yet",
        "The limit of the theory is not reached: too many sequences still spread their attention"
        " over several tokens, or the trained weights point away from the solution. The limit is"
        " approached slowly. More steps (--steps) bring a run closer while its direction gap still"
        " falls, and change little otherwise. Predictions and chosen tokens are fitted before and"
        " stay as they are. With fewer features (--dimension) steps are cheaper, and sequences"
        " come to one token sooner.",
    ),
    "undecided": (
        "Undecided",
        "The solver stopped before the solution was proved to the tolerance, so there is no"
        " certified direction to compare with. A sentence at the top names the number that is"
        " too large, the relative gap or the violation, and says whether time was the reason. If"
        " it was, more of it (--solve-seconds) may help. If it was not, a tolerance above that"
        " number (--tol) accepts the weights as they are. Predictions do not depend on it.",
    ),
    "infeasible": (
        "Infeasible",
        "No weights at all put every selected token ahead of its rivals: some selections contradict"
        " each other, and this is proved. It happens with many sequences and few features. The"
        " soft margin is solved instead, which lets some fall short at a price (--slack). More"
        " features (--dimension) make room for all. Predictions do not depend on it.",
    ),
    "almost infeasible": (
        "Almost infeasible",
        "Weights that put every selected token ahead, if there are any, are too large for numbers"
        " of 64 bits to hold: some selections contradict each other all but exactly, as when two"
        " tokens are nearly the same. Merge tokens that are nearly equal, or scale features to"
        " like sizes. The soft margin is solved instead. Predictions do not depend on it.",
    ),
}
"""Title and paragraph of each name in ``verdict.ends`` of ``run.json``."""
