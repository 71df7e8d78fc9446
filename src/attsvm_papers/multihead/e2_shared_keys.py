"""Heads that share their keys share directions: the nuclear norm of both side by side.

Random tokens and queries on the unit sphere, n = 6, T = 8, d = 10, two heads with random decoders
under the logistic loss. Either both heads share their keys, Wₕ = KQₕᵀ (multi-query attention), or
each has its own, Wₕ = KₕQₕᵀ; normalised gradient descent with step 0.05 on each factor from uniform
random ones. Programmes of the last selection in two norms: the nuclear norm of [W₁ W₂], and the sum
of the nuclear norms of the heads.

Source: this project; the papers name several heads as a direction to go

Notes: The least half sum of squares of K, Q₁ and Q₂ over factors of given heads is the nuclear norm
of [W₁ W₂]; with keys of their own it is the sum of the two nuclear norms.
The second programme is solved by the heads' own solutions, the first is not: it ties them together.
Margins are compared, since a nuclear solution need not be the only one.
"""

import numpy as np

from attsvm import AttentionData, head_pairs, train
from attsvm.datasets import unit_sphere
from attsvm.optim import SteepestDescent
from attsvm.training import AtSteps, direction_gap
from attsvm_papers import kit
from attsvm_papers.multihead.side_by_side import joint_programmes, margin_shares, split_heads
from attsvm_papers.multihead.sum_of_heads import sum_of_heads

HEADS = 2


def rows_in_blocks(rows):
    """Rows of pairs ``(..., n * H, k)``, those of head h in the h-th of H blocks of columns."""
    block_of_head = np.eye(HEADS)[np.arange(rows.shape[1]) % HEADS]
    spread = block_of_head[:, :, None] * rows[..., None, :]
    return spread.reshape(*rows.shape[:-1], -1)


@kit.run(shared=(True, False), seeds=kit.seeds(100, by=50), quick={"seeds": 8, "steps": 3000})
def run(shared, seeds, n=6, T=8, d=10, steps=4000):
    data, _ = unit_sphere(n, T, d, seeds)
    pairs = head_pairs(data, HEADS)
    generators = [np.random.default_rng([29, seed]) for seed in seeds]
    v = np.stack([rng.standard_normal((HEADS, d)) for rng in generators])
    v /= np.linalg.norm(v, axis=-1, keepdims=True)
    layer_pairs, readers = pairs, v
    if not shared:  # tokens of different heads in blocks of their own, as their queries are
        tokens = rows_in_blocks(np.swapaxes(pairs.tokens, 1, 2).reshape(-1, n * HEADS, d))
        tokens = tokens.reshape(len(seeds), T, n * HEADS, HEADS * d).swapaxes(1, 2)
        layer_pairs = AttentionData(tokens, pairs.labels, pairs.queries, pairs.mask)
        readers = rows_in_blocks(v)
    inner = layer_pairs.d_x
    starts = [
        np.stack([rng.uniform(-1, 1, (rows, inner)) for rng in generators]) / np.sqrt(rows)
        for rows in (layer_pairs.d_x, layer_pairs.d_z)
    ]
    model = sum_of_heads(
        layer_pairs, readers, init=tuple(starts), parameterization="KQ", inner=inner
    )
    descent = SteepestDescent(model.parameters(), lr=0.05)
    trajectory = train(model, layer_pairs, descent, steps, AtSteps([steps]))
    W, rows = trajectory.W[-1], trajectory.selected[-1]
    if not shared:
        blocks_of_heads = [W[:, d * h : d * h + d, d * h : d * h + d] for h in range(HEADS)]
        W = np.concatenate(blocks_of_heads, axis=-1)
    joint = joint_programmes(pairs, rows, "nuc")
    solutions_of_heads = [joint_programmes(data, rows[:, h::HEADS], "nuc") for h in range(HEADS)]
    side_by_side = np.concatenate([solution.W for solution in solutions_of_heads], axis=-1)
    least = np.sum([solution.norm for solution in solutions_of_heads], axis=0)
    smallest = [solution.margins(weights).min() for solution, weights in zip(joint, W, strict=True)]
    certified = np.all([solution.optimal for solution in (joint, *solutions_of_heads)], axis=0)
    return {
        "certified": certified,
        "share_joint": margin_shares(W, joint),
        "share_alone": smallest / sum(np.linalg.norm(split_heads(W), "nuc", axis=(-2, -1))) * least,
        "gap_joint": direction_gap(W, joint.W),
        "gap_beside": direction_gap(W, side_by_side),
    }


OWN_KEYS = kit.exchanged("keys of their own", "shared", True, False)
SHARED_KEYS = kit.exchanged("shared keys", "shared", True, False)


def certified_trials(shared):
    return {"certified": lambda e: e.where(shared=shared)["certified"]}


@kit.claim(
    kit.at_least(0.96, "tends to one; 4000 steps of factors are not the limit", share=kit.MOST),
    assumes=certified_trials(True),
    null=OWN_KEYS,
)
def MH10(e):
    """With shared keys the margin of two heads tends to the best one for the nuclear norm of both
    side by side: the smallest margin over the best.
    """
    return e.where(shared=True)["share_joint"]


@kit.claim(
    kit.at_least(0.96, "tends to one; 4000 steps of factors are not the limit", share=kit.MOST),
    assumes=certified_trials(False),
    null=SHARED_KEYS,
)
def MH11(e):
    """With keys of their own the margin of two heads tends to the best one for the sum of the
    heads' nuclear norms: each goes its own way.
    """
    return e.where(shared=False)["share_alone"]


@kit.claim(
    kit.at_most(1.0, "as near to one as to the other", share=kit.MOST),
    assumes=certified_trials(True),
    null=OWN_KEYS,
)
def MH12(e):
    """With shared keys both heads end nearer to the joint solution than to their own ones: the gap
    to the first over that to the second.
    """
    rows = e.where(shared=True)
    return rows["gap_joint"] / rows["gap_beside"]


@kit.picture(
    "Shared keys tie the heads together",
    "With shared keys all points lie near one upwards, with keys of their own near one to the"
    " right.",
    3.2,
    width=4.6,
    name="shares",
)
def draw_shares(evidence, axes):
    """The smallest margin over the best, a point per trial: in the sum of nuclear norms, and in the
    nuclear norm of both side by side.
    """
    for shared, colour, label in (
        (True, kit.TRAINED, "shared keys"),
        (False, kit.ATTENTION, "own keys"),
    ):
        rows = evidence.where(shared=shared)
        axes[0].plot(rows["share_alone"], rows["share_joint"], "o", ms=3, color=colour, label=label)
    axes[0].set(
        title="Share of the best margin",
        xlabel="sum of the heads' nuclear norms",
        ylabel="nuclear norm of both",
    )
    axes[0].legend(frameon=False, fontsize=8.5)
