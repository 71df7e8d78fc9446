r"""The nuclear solution answers what it was not told, the Frobenius solution cannot.

Groups of subjects, 2 to 5 of them, each with known subjects, of whom both facts are told, and new
ones, of whom the first alone is; 1 to 8 of either. Output matrices that answer all that is told
with margin one, of least Frobenius and of least nuclear norm. Then three groups of random sizes, 1
to 3 of either kind.

Source: Generalization or Hallucination? Understanding Out-of-Context Reasoning in Transformers
(Huang et al., 2025), read in its abstract and in a summary of its theorems; sizes are this
project's

Notes: By symmetry differences between groups decouple from the rest, and leave a matrix with the
entries √p, √q, √p and an unknown x, whose nuclear norm is least at x = min(√p, √q): the margin of
a new subject is min(1, √(p/q)), with p known and q new subjects in a group.
"""

import numpy as np

from attsvm import max_margin_batch
from attsvm_papers import kit
from attsvm_papers.context.facts import facts_of_groups, random_facts

SUMMARY = "Theorem 2, in a summary of the paper"


def solve_facts(facts):
    """Frobenius and nuclear solutions of every instance."""
    margins = [instance.margins() for instance in facts]
    return max_margin_batch(margins), max_margin_batch(margins, "nuc")


@kit.run(
    groups=(2, 3, 5),
    known=(1, 2, 4, 8),
    new=(1, 2, 4, 8),
    quick={"groups": (2, 3), "known": (1, 2), "new": (1, 2, 4)},
    name="equal",
)
def solve_equal_groups(groups, known, new):
    facts = facts_of_groups([known] * groups, [new] * groups)
    columns = {"law": np.minimum(1.0, np.sqrt(known / new)), "ratio": known / new}
    for name, (solution,) in zip(("fro", "nuc"), solve_facts([facts]), strict=True):
        columns[f"certified_{name}"] = solution.status == "optimal"
        columns[f"lead_{name}"] = facts.unseen_leads(solution.W).min()
    columns["bound"] = known / (known + new)
    return {name: np.asarray(value)[None] for name, value in columns.items()}


@kit.run(seeds=kit.seeds(60, by=30), quick={"seeds": 8}, name="random")
def solve_random_groups(seeds, number=3):
    instances = [random_facts(number, seed) for seed in seeds]
    columns = {}
    for name, solutions in zip(("fro", "nuc"), solve_facts(instances), strict=True):
        leads = [
            facts.unseen_leads(solution.W)
            for facts, solution in zip(instances, solutions, strict=True)
        ]
        columns[f"certified_{name}"] = solutions.optimal
        columns[f"answered_{name}"] = np.array([(lead > 1e-3).mean() for lead in leads])
    return columns


CERTIFIED = {"solutions are certified": lambda e: e["certified_fro"] & e["certified_nuc"]}
FROBENIUS = kit.replaced("the Frobenius solution", lead_nuc="lead_fro", answered_nuc="answered_fro")
NUCLEAR = kit.replaced("the nuclear solution", lead_fro="lead_nuc", answered_fro="answered_nuc")
SIZES = "groups known new"


@kit.claim(
    kit.at_least(-1e-3, "the bound, up to the gaps of the solutions"),
    "recalled",
    SUMMARY,
    where={"part": "equal"},
    assumes=CERTIFIED,
    trials=SIZES,
    null=FROBENIUS,
)
def OC1(e):
    """The nuclear solution answers new subjects with a margin of at least p / (p + q), where p
    subjects of a group are known and q are new: excess.
    """
    return e["lead_nuc"] - e["bound"]


@kit.claim(
    kit.close_to(0.0, 1e-3, "the gaps of the solutions"),
    "recalled",
    SUMMARY,
    where={"part": "equal"},
    assumes=CERTIFIED,
    trials=SIZES,
    null=NUCLEAR,
)
def OC2(e):
    """The Frobenius solution leaves all answers about a new subject tied: its margin."""
    return e["lead_fro"]


@kit.claim(
    kit.close_to(0.0, 1e-3, "derived; the gaps of the solutions"),
    "ours",
    "derived",
    where={"part": "equal"},
    assumes=CERTIFIED,
    trials=SIZES,
    null=kit.replaced("the bound of the theorem", law="bound"),
)
def OC3(e):
    """The margin of the nuclear solution is min(1, √(p / q)): difference."""
    return e["lead_nuc"] - e["law"]


@kit.claim(
    kit.at_least(1.0, "all of them", share=kit.MOST),
    where={"part": "random"},
    assumes=CERTIFIED,
    null=FROBENIUS,
)
def OC4(e):
    """In groups of any sizes the nuclear solution answers all questions about new subjects: share
    of them.
    """
    return e["answered_nuc"]


@kit.picture(
    "What each norm answers",
    "Dots of the nuclear solution lie on a curve that rises like a root up to one and stays there;"
    " those of the Frobenius solution lie at zero; a dotted line below is the bound.",
    2.9,
    width=5.4,
)
def margins_of_new(e, axes):
    """Margin of the answers about new subjects, by known over new subjects of a group, a dot for
    each number of groups. The line is the derived law, the dotted one the bound of the theorem.
    """
    rows, (axis,) = e.where(part="equal"), axes
    ratio = np.geomspace(rows["ratio"].min(), rows["ratio"].max(), 100)
    for law, style, label in (
        (np.minimum(1.0, np.sqrt(ratio)), "-", "min(1, √(p / q))"),
        (ratio / (1 + ratio), ":", "bound, p / (p + q)"),
    ):
        axis.plot(ratio, law, style, color=kit.INK, linewidth=0.8, label=label)
    for name, colour, label in (("nuc", kit.BEST, "nuclear"), ("fro", kit.ATTENTION, "Frobenius")):
        axis.plot(rows["ratio"], rows[f"lead_{name}"], "o", color=colour, markersize=4, label=label)
    axis.set(xscale="log", xlabel="known over new subjects, p / q", title="margin of new answers")
    axis.set_xticks([0.125, 0.25, 0.5, 1, 2, 4, 8], ["1/8", "1/4", "1/2", "1", "2", "4", "8"])
    axis.minorticks_off()
    kit.legend_below(axis, 4)
