r"""Factors answer what they were not told, their product cannot.

Three groups of 1 to 3 known and 1 to 3 new subjects, at random and in all groups alike. Normalised
descent with steps of 0.05 on output and value matrix from Gaussian starts of size 0.001, six
columns, and on their product from zero. The same from starts of 0.001 to 1 and with one to six
columns. Last, softmax attention over a subject and a question is trained beside either, by gradient
descent with steps of 2, from a start of 0.1 and from zero.

Source: Generalization or Hallucination? Understanding Out-of-Context Reasoning in Transformers
(Huang et al., 2025), read in its abstract and in a summary of its theorems; sizes are this
project's

Notes: Groups are alike, as symmetry asks for; of uneven ones the product is no exact tie, and may
answer some of the new questions. The share of the best nuclear margin needs no
solution that is unique: the least margin of told answers over the nuclear norm of the weights, of
the largest one. The paper's attention is linear; here it is softmax.
"""

import numpy as np
import torch
from torch import nn

from attsvm import AttentionData, train
from attsvm.attention import Attention
from attsvm.theory.next_token import StepRule, factored_output_stage, output_stage
from attsvm.training import AtSteps, LogSpaced, direction_gap
from attsvm_papers import kit
from attsvm_papers.context.e1_two_norms import solve_facts
from attsvm_papers.context.facts import random_facts

ABSTRACT, SUMMARY = "abstract", "Theorem 3, in a summary of the paper"
GROUPS, WIDTH = 3, 20  # subjects, at most 18, and two questions
CONTEXTS = 2 * (WIDTH - 2)
RULE = StepRule(0.05)


def train_factors(sentences, seeds, size, columns, steps, records):
    """Trajectories of factors from Gaussian starts of this size."""
    starts = np.stack(
        [np.random.default_rng([92, seed]).normal(0, size, (26, columns)) for seed in seeds]
    )
    init = starts[:, : 2 * GROUPS], starts[:, 2 * GROUPS :]
    return factored_output_stage(sentences, RULE, steps, init=init, records=records)


def share_answered(instances, W):
    """The share ``(runs, ...)`` of questions about new subjects that weights ``(..., runs, answers,
    d)`` answer, by a hundredth of the least margin of what was told.
    """
    return np.stack(
        [
            (
                facts.unseen_leads(W[..., run, :, :])
                > 0.01 * np.maximum(facts.least_margin(W[..., run, :, :]), 0.0)[..., None]
            ).mean(axis=-1)
            for run, facts in enumerate(instances)
        ]
    )


@kit.run(seeds=kit.seeds(100, by=50), quick={"seeds": 10, "steps": 3000}, name="trained")
def train_to_solutions(seeds, steps=20_000):
    instances = [random_facts(GROUPS, seed, alike=True) for seed in seeds]
    sentences = [facts.sentences(CONTEXTS, WIDTH) for facts in instances]
    records = LogSpaced(30)
    factored = train_factors(sentences, seeds, 1e-3, 2 * GROUPS, steps, records)
    zero = np.zeros((2 * GROUPS, WIDTH))
    merged = output_stage(sentences, RULE, steps, init=zero, records=records)
    fro, nuc = solve_facts(instances)
    columns = {"step": kit.same(factored.steps)}
    for name, W in (("factored", factored.W), ("merged", merged.W)):
        leads, margins = [], []
        gaps = {"fro": np.zeros(len(seeds)), "nuc": np.zeros(len(seeds))}
        for run, facts in enumerate(instances):
            used = W[:, run, :, : facts.training.shape[1]]
            margins.append(facts.least_margin(used))
            leads.append(facts.unseen_leads(used).min(axis=-1))
            for norm, solutions in (("fro", fro), ("nuc", nuc)):
                gaps[norm][run] = direction_gap(used[-1], solutions[run].W)
        columns |= {f"gap_{norm}_{name}": values for norm, values in gaps.items()}
        columns[f"answered_{name}"] = share_answered(instances, W)
        size = np.linalg.norm(W, ord="nuc", axis=(-2, -1)).T
        margin = np.array(margins)
        # there is no lead to speak of before all that is told is answered
        lead = np.array(leads) / np.where(margin > 0, margin, np.inf)
        columns[f"lead_{name}"] = np.clip(lead, -1.0, 1.0)
        columns[f"share_{name}"] = margin / np.maximum(size, 1e-300) * nuc.norm[:, None]
    return columns


@kit.run(
    size=(0.001, 0.01, 0.1, 1.0),
    columns=(1, 2, 3, 4, 6),
    seeds=kit.seeds(40, by=40, name="starts"),
    quick={"size": (0.001, 1.0), "columns": (1, 3), "starts": 6, "short": 800},
    name="starts",
)
def train_both_outputs(size, columns, seeds, short=4000):
    instances = [random_facts(GROUPS, seed, alike=True) for seed in seeds]
    sentences = [facts.sentences(CONTEXTS, WIDTH) for facts in instances]
    W = train_factors(sentences, seeds, size, columns, short, AtSteps([short])).W[-1]
    margins = [facts.least_margin(weights) for facts, weights in zip(instances, W, strict=True)]
    return {"fits": np.array(margins) > 0, "answers": share_answered(instances, W)}


class FactoredHead(nn.Module):
    r"""The head :math:`W_oW_v^\top`."""

    def __init__(self, output, value):
        super().__init__()
        self.output, self.value = (nn.Parameter(torch.tensor(start)) for start in (output, value))

    def forward(self, outputs):
        """Logits ``(..., answers)``."""
        return (outputs @ self.value) @ self.output.mT


@kit.run(
    seed=kit.seeds(20, name="attended"),
    quick={"attended": 2, "attention_steps": 300},
    name="attention",
)
def train_attention_too(seed, attention_steps=1000):
    facts, rng = random_facts(GROUPS, seed, alike=True), np.random.default_rng([93, seed])
    subjects = np.eye(facts.training.shape[1])
    data, questions = (
        AttentionData(subjects[pairs], np.ones(len(pairs)), subjects[pairs[:, 1]])
        for pairs in map(_subject_and_question, (facts.training, facts.questions))
    )
    records, columns = LogSpaced(20), {}
    factors = (rng.normal(0, 0.1, (rows, 6)) for rows in (2 * GROUPS, len(subjects)))
    merged = np.zeros((2 * GROUPS, len(subjects)))
    heads = {"factored": FactoredHead(*factors), "merged": nn.Linear(1, 1, bias=False)}
    heads["merged"].weight = nn.Parameter(torch.tensor(merged))
    for name, head in heads.items():
        model = Attention.cross(data, head, targets=facts.answers, loss="cross_entropy")
        losses = [0.0][:0]

        def observe(*_, model=model, losses=losses):
            losses.append(_loss_of_second_facts(model, questions, facts))
            return {}

        descent = torch.optim.SGD(model.parameters(), lr=2.0)
        trajectory = train(model, data, descent, attention_steps, record=records, observe=observe)
        columns[f"loss_{name}"] = trajectory.loss
        columns[f"new_{name}"] = np.array(losses)
    columns = {name: column[None] for name, column in columns.items()}
    return columns | {"step_of": kit.same(trajectory.steps)}


def _subject_and_question(contexts):
    """Places ``(m, 2)`` of the two ones in every context."""
    return np.nonzero(contexts)[1].reshape(-1, 2)


def _loss_of_second_facts(model, questions, facts):
    """The mean cross-entropy of what is asked, among second facts."""
    with torch.no_grad():
        logits = model.head(model.outputs(questions))[:, facts.groups :]
    expected = torch.tensor(facts.expected - facts.groups)
    return nn.functional.cross_entropy(logits, expected).item()


MERGED = kit.replaced(
    "the product",
    **{f"{name}_factored": f"{name}_merged" for name in ("answered", "share", "new")},
)
FACTORED = kit.replaced(
    "factors", **{f"{name}_merged": f"{name}_factored" for name in ("answered", "lead", "new")}
)
TRAINED, ATTENTION = {"part": "trained"}, {"part": "attention"}


@kit.claim(
    kit.at_least(1.0, "all of them", share=kit.MOST), "paper", ABSTRACT, where=TRAINED, null=MERGED
)
def OC5(e):
    """Factors learn to answer all questions about new subjects: share of them."""
    return e.end("answered_factored")


@kit.claim(
    kit.close_to(0.0, 1e-6, "a tie, up to rounding"),
    "paper",
    "abstract: a model with combined weights cannot",
    where=TRAINED,
    null=FACTORED,
)
def OC6(e):
    """The product, trained from zero, leaves every question about a new subject open: its lead over
    the least margin of what was told.
    """
    return e.end("lead_merged")


@kit.claim(
    kit.at_least(0.98, "set on tuning seeds; one is the limit", share=kit.MOST),
    "paper",
    "abstract: gradient descent favours the least nuclear norm",
    where=TRAINED,
    null=MERGED,
)
def OC7(e):
    """Factors reach the largest margin in the nuclear norm: share of it."""
    return e.end("share_factored")


@kit.claim(
    kit.at_most(1e-3, "set on tuning seeds; zero is the limit", share=kit.MOST),
    "recalled",
    "Theorem 1, in a summary of the paper",
    where=TRAINED,
    null=kit.replaced("the nuclear solution", gap_fro_merged="gap_nuc_merged"),
)
def OC8(e):
    """The product goes to the Frobenius solution: 1 - cosine."""
    return e["gap_fro_merged"]


@kit.claim(
    kit.at_least(1.0, "all of them", share=kit.MOST),
    where={"part": "starts", "size": 0.001, "columns": 3},
    null=kit.exchanged("a single column", "columns", 3, 1),
)
def OC9(e):
    """As many columns as groups are enough: share of the questions about new subjects that are
    answered, of factors that answer all that is told.
    """
    return np.where(e["fits"], e["answers"], 0.0)


@kit.claim(
    kit.at_least(np.log(GROUPS) - 1e-9, "log of the number of second facts"),
    "recalled",
    SUMMARY,
    where=ATTENTION,
    null=FACTORED,
)
def OC10(e):
    """Where attention is trained beside the product, from zero, the loss of new answers is never
    below that of guessing: least one of a run.
    """
    return e["new_merged"].min(axis=1)


@kit.claim(
    kit.at_most(0.1, "a tenth of guessing", share=kit.MOST),
    "paper",
    ABSTRACT,
    where=ATTENTION,
    null=MERGED,
)
def OC11(e):
    """Where attention is trained beside factors, new answers are learned: their loss at the end."""
    return e.end("new_factored")


@kit.picture(
    "Answers that nobody gave, by step",
    "The share of the nuclear margin of factors rises to one and their new answers are ahead; those"
    " of the product stay at zero.",
    2.9,
    1,
    3,
    width=8.8,
)
def learning(e, axes):
    """Medians over trials, and 90 % of them. Left: least margin of told answers over the nuclear
    norm, as a share of the best. Middle: least lead of new answers over least margin of told ones,
    from where all told ones are right. Right: attention trained as well; loss of new answers,
    dashed that of guessing.
    """
    rows, attention = e.where(part="trained"), e.where(part="attention")
    for name, colour, label in (
        ("factored", kit.BEST, "factors"),
        ("merged", kit.ATTENTION, "product"),
    ):
        step = rows["step"][0, 1:]
        for axis, column in zip(axes, ("share", "lead"), strict=False):
            values = rows[f"{column}_{name}"][:, 1:]
            kit.band(axis, step, values, colour, shares=(0.05, 0.95), label=label)
        values = attention[f"new_{name}"][:, 1:]
        kit.band(axes[2], attention["step_of"][0, 1:], values, colour, shares=(0.05, 0.95))
    axes[2].axhline(np.log(GROUPS), color=kit.INK, linewidth=0.6, linestyle="--")
    for axis, title in zip(
        axes, ("share of nuclear margin", "lead of new answers", "loss of new answers"), strict=True
    ):
        axis.set(xscale="log", xlabel="step", title=title)
    axes[0].set(ylim=(-0.05, 1.05))
    axes[1].set(ylim=(-0.3, 1.05))
    axes[2].set(ylim=(-0.05, 1.6))
    kit.legend(axes[0], loc="lower right")


@kit.picture(
    "Starts and columns",
    "With three columns or more nearly all is answered from small starts, less from starts of size"
    " one; one and two columns do not do.",
    2.8,
    width=4.8,
    name="starts",
)
def draw_starts(e, axes):
    """Share of the questions about new subjects that are answered, mean over trials, by columns of
    the factors and size of the start.
    """
    rows, (axis,) = e.where(part="starts"), axes
    for colour, size in zip(kit.COLOURS, rows.levels("size"), strict=False):
        chosen = rows.where(size=size)
        columns = chosen.levels("columns")
        mean = [chosen.where(columns=m)["answers"].mean() for m in columns]
        axis.plot(columns, mean, "o-", color=colour, markersize=4, label=f"start {size:g}")
    axis.set(xlabel="columns", title="new questions answered", ylim=(-0.05, 1.05), xticks=columns)
    kit.legend(axis, loc="lower right")
