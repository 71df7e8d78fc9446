r"""Which head selects which: two heads on two planted groups of tokens.

Twenty sequences of six tokens in dimension 12, one token of each of two groups that carry the
label, and four of noise; nearly one query for all. Two heads with fixed decoders whose values are
added, under the logistic loss. At 0 degrees head 1 reads what group A carries and head 2 what group
B does; at 45 both read the same. Normalised gradient descent with step 0.1 from uniform random
weights, the heads' own or (at 45 degrees) common ones, both heads measured by one norm, or every
head by its own. The programme is that of the last selection, certified. Then decoders that are
trained beside the heads, both from uniform random ones, steps of the decoders half or twice as
long.

Source: this project; the papers name several heads as a direction to go

Notes: With fixed decoders the infimum of the loss separates: each head selects for itself, and the
slope of the loss, the only thing that heads share, stays between two positive bounds. So each head
goes to the max-margin solution of its own locally optimal selection, and the joint programme of all
heads, in any norm of norms, is solved by their own solutions side by side. Descent with one norm
for all finds their lengths too; descent with a norm for each makes all heads equally long. Trained
decoders tie the heads together: sequences whose labels they read with a margin to spare pull less,
and ask the heads for less.
"""

import numpy as np

from attsvm import head_pairs, train
from attsvm.optim import SteepestDescent
from attsvm.training import AtSteps, direction_gap
from attsvm_papers import kit
from attsvm_papers.multihead.planted import plant_groups, turned_decoders
from attsvm_papers.multihead.side_by_side import (
    head_norms,
    joint_programmes,
    locally_optimal_heads,
    split_heads,
    worst_gaps,
)
from attsvm_papers.multihead.sum_of_heads import sum_of_heads
from attsvm_papers.multihead.trained_decoders import (
    decoders_programme,
    heads_programmes,
    train_both,
)


def is_compared(angle, each, common, **_):
    return (angle == 0 or not each) and (angle == 45 or not common)


@kit.run(
    angle=(0, 15, 30, 45),
    each=(False, True),
    common=(False, True),
    seeds=kit.seeds(100, by=50),
    when=is_compared,
    quick={"angle": (0, 45), "seeds": 6},
    name="fixed",
)
def train_heads(angle, each, common, seeds, n=20, T=6, d=12, steps=4000):
    instances = plant_groups(n, T, d, seeds)
    data = instances.data
    pairs = head_pairs(data, 2)
    model = sum_of_heads(
        pairs, turned_decoders(instances.values, angle), init=("uniform", seeds[0])
    )
    if common:
        model.W.data[..., d:] = model.W.data[..., :d]
    descent = SteepestDescent(
        model.parameters(), lr=0.1, blocks=[d, d] if each else None, blocks_axis=-1
    )
    marks = np.unique(np.geomspace(10, steps, 12).astype(int))
    trajectory = train(model, pairs, descent, steps, AtSteps(marks))
    rows, scores = trajectory.selected[-1], model.scores(pairs).numpy()
    joint = joint_programmes(pairs, rows)
    random_rows = np.random.default_rng([19, seeds[0]]).integers(T, size=rows.shape)
    best, W = joint.W, trajectory.W
    selections = rows.reshape(len(seeds), n, 2)
    return {
        "step": kit.same(trajectory.steps),
        "gap": worst_gaps(W, best).T,
        "gap_other": worst_gaps(W, best, shift=1).T,
        "joint": trajectory.direction_gap(best).T,
        "certified": joint.optimal,
        "local": locally_optimal_heads(joint, scores),
        "local_random": locally_optimal_heads(joint_programmes(pairs, random_rows), scores),
        "ratio": head_norms(W[-1])[1] / head_norms(W[-1])[0],
        "ratio_best": head_norms(best)[1] / head_norms(best)[0],
        "shared": (selections[..., 0] == selections[..., 1]).mean(axis=1),
        "parallel": direction_gap(*split_heads(W[-1])),
        "own": (selections == instances.positions).mean(axis=1).min(axis=1),
    }


@kit.run(
    kappa=(0.5, 2.0),
    seeds=kit.seeds(100, by=50),
    quick={"kappa": (2.0,), "seeds": 6},
    name="trained",
)
def train_heads_and_decoders(kappa, seeds, n=20, T=6, d=12, steps=4000):
    """Decoders trained beside the heads: gaps of both to their programmes."""
    data = plant_groups(n, T, d, seeds).data
    generators = [np.random.default_rng([31, seed]) for seed in seeds]
    starts = np.stack([rng.uniform(-1, 1, (d + 1, 2 * d)) for rng in generators]) / np.sqrt(d)
    W, v, selected = train_both(data, starts[:, :d], starts[:, d].reshape(-1, 2, d), kappa, steps)
    rows = []
    for k, selections in enumerate(selected):
        decoder = decoders_programme(data.instance(k), selections)
        beside, fixed = heads_programmes(data.instance(k), selections, decoder, kappa)
        rows.append(
            {
                "decoder": direction_gap(v[k].reshape(-1, 1), decoder.W),
                "decoder_other": direction_gap(v[k, ::-1].reshape(-1, 1), decoder.W),
                "heads": direction_gap(W[k], beside.W),
                "heads_fixed": direction_gap(W[k], fixed.W),
            }
        )
    return kit.stacked(rows)


ONE_NORM = kit.exchanged("each head measured by a norm of its own", "each", False, True)
TWO_NORMS = kit.exchanged("one norm for both heads", "each", False, True)
EQUAL = kit.exchanged("two heads with equal decoders", "angle", 0, 45)


def rows_of_one_norm(e, **fixed):
    return e.where(**{"each": False, "common": False, **fixed})


@kit.claim(
    kit.true("the groups are planted; a start may lead one head elsewhere", share=kit.MOST),
    null=EQUAL,
)
def MH1(e):
    """At 0 degrees head 1 selects the token of group A, and head 2 that of group B, in every
    sequence.
    """
    return rows_of_one_norm(e, angle=0)["own"] == 1


@kit.claim(
    kit.true("as with one head; a few runs are still moving", share=kit.MOST),
    where={"part": "fixed"},
    null=kit.replaced("random tokens", local="local_random"),
)
def MH2(e):
    """Both heads end at selections that are locally optimal, each under its own decoder."""
    return e["local"]


@kit.claim(
    kit.at_most(0.01, "8 degrees; the gap falls like log(k)/k", share=kit.MOST),
    assumes="certified",
    where={"part": "fixed"},
    null=kit.replaced("the solution of the other head", gap="gap_other"),
)
def MH3(e):
    """Each head converges in direction to the max-margin solution of its own selection, whatever
    the other one does.
    """
    return e["gap"][:, -1]


@kit.claim(
    kit.at_most(0.005, "half of what one head is allowed", share=kit.MOST),
    assumes={"certified": lambda e: rows_of_one_norm(e, angle=0)["certified"]},
    null=ONE_NORM,
)
def MH4(e):
    """Measured by one norm, both heads together converge to the joint max-margin solution (0
    degrees).
    """
    return rows_of_one_norm(e, angle=0)["joint"][:, -1]


@kit.claim(kit.between(0.95, 1.05, "5 %", share=kit.MOST), null=TWO_NORMS)
def MH5(e):
    """Each measured by its own norm, both heads become equally long, whatever their solutions are
    (0 degrees).
    """
    return e.where(angle=0, each=True)["ratio"]


@kit.claim(
    kit.at_most(0.02, "twice what either is allowed to its solution", share=kit.MOST),
    assumes={"both select the same tokens": lambda e: rows_of_one_norm(e, angle=45)["shared"] == 1},
    null=EQUAL,
)
def MH6(e):
    """Heads that share all their tokens become parallel: with equal decoders one of them is
    redundant.
    """
    return rows_of_one_norm(e, angle=45)["parallel"]


@kit.claim(
    kit.true("set by this project", share=0.1),
    assumes={"twenty trials": lambda e: len(e.levels("seed")) >= 20},
    null=kit.exchanged("both heads from one start", "common", False, True),
)
def MH6s(e):
    """Equal decoders do not make equal heads: from starts of their own they end with different
    tokens in at least one trial of ten.
    """
    return rows_of_one_norm(e, angle=45)["shared"] < 1


@kit.claim(
    kit.at_least(0.05, "of the sequences, from one angle to the next"),
    null=kit.shuffled("shared", within="each"),
)
def MH7(e):
    """The more alike the decoders, the more tokens the heads share: the mean share grows with the
    angle.
    """
    return np.diff(
        [rows_of_one_norm(e, angle=angle)["shared"].mean() for angle in e.levels("angle")]
    )


@kit.claim(
    kit.at_most(0.01, "8 degrees, as beside fixed decoders", share=kit.MOST),
    null=kit.replaced(
        "the heads exchanged, and the programme beside fixed decoders",
        decoder="decoder_other",
        heads="heads_fixed",
    ),
)
def MH8(e):
    """Decoders that are trained beside the heads converge in direction to the max-margin solution
    of the labels on the tokens that all heads select, side by side, and the heads to a programme
    that asks for a margin of one where a sequence supports the decoders, and elsewhere for what its
    label margin leaves of it.
    """
    return {
        f"{column}, kappa = {k:g}": e.where(part="trained", kappa=k)[column]
        for k in e.levels("kappa")
        for column in ("decoder", "heads")
    }


@kit.picture(
    "Each head has its own solution",
    "Gaps to the own solution fall to a thousandth, those to the other head's stay near one;"
    " the joint gap falls with one norm only.",
    2.9,
    1,
    2,
    width=8.0,
    name="courses",
)
def draw_gaps_of_heads(evidence, axes):
    """Median and range over trials at 0 degrees. Left: the larger gap of the two heads. Right: both
    together, to the joint solution.
    """
    one_norm, two_norms = rows_of_one_norm(evidence, angle=0), evidence.where(angle=0, each=True)
    step = one_norm["step"][0]
    gaps_of_one = (
        (one_norm["gap"], kit.TRAINED, "own solution"),
        (one_norm["gap_other"], kit.ATTENTION, "other's"),
    )
    gaps_of_both = (
        (one_norm["joint"], kit.TRAINED, "one norm"),
        (two_norms["joint"], kit.ATTENTION, "a norm each"),
    )
    for ax, lines in zip(axes, (gaps_of_one, gaps_of_both), strict=True):
        kit.bands(ax, step, lines)
        ax.legend(frameon=False, fontsize=8.5)
    axes[0].set(title="1 - cosine, worse head")
    axes[1].set(title="1 - cosine, both together")


@kit.picture(
    "Which head selects which, and what they share",
    "Ratios lie near the diagonal with one norm and at one with two; shares grow with the angle.",
    2.9,
    1,
    2,
    width=8.0,
    name="ratios",
)
def draw_ratios(evidence, axes):
    """Left: length of head 2 over that of head 1 at 0 degrees, against the ratio of their
    solutions. Right: share of sequences in which both heads select the same token, a point per
    trial, and the mean.
    """
    for own_norm, colour, label in (
        (False, kit.TRAINED, "one norm"),
        (True, kit.ATTENTION, "a norm each"),
    ):
        rows = evidence.where(angle=0, each=own_norm)
        axes[0].plot(rows["ratio_best"], rows["ratio"], "o", ms=3, color=colour, label=label)
    best = evidence.where(angle=0)["ratio_best"]
    ends = [best.min(), best.max()]
    axes[0].plot(ends, ends, color="0.7", linewidth=0.8, zorder=0)
    axes[0].set(xlabel="of the solutions", title="Length of head 2 over head 1")
    axes[0].legend(frameon=False, fontsize=8.5)
    angles = evidence.levels("angle")
    for position, angle in enumerate(angles):
        shares = rows_of_one_norm(evidence, angle=angle)["shared"]
        kit.dots(axes[1], [position], [shares], ms=2.5, color=kit.TRAINED, alpha=0.6)
        axes[1].plot([position - 0.3, position + 0.3], [shares.mean()] * 2, color=kit.ATTENTION)
    axes[1].set(
        xlabel="angle of the decoders", title="Tokens that the heads share", ylim=(-0.03, 1.03)
    )
    axes[1].set_xticks(range(len(angles)), [f"{angle:.0f}°" for angle in angles])
