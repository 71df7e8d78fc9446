"""The joint regularisation path.

Best pairs of W and v with both sizes bounded in the norm of p = 1.75, 2, 3, on the data of md-3 and
on random tokens and queries on the unit sphere, n = 2, T = 3, d = 4. The theorem assumes that
the label margin drops in proportion to the attention that leaves the best selection. That is proven
for each instance and p by a lower bound over all attention; other instances are not counted.

Source: Optimizing Attention with Mirror Descent, joint convergence (number recalled)

Notes: Sizes of W end at 24 solutions, because what W still changes there is e^-24 of the margins,
close to the rounding of the loss.
"""

import itertools
from typing import Any

import numpy as np

from attsvm import (
    AttentionData,
    Lp,
    PowerPotential,
    decoder_margins,
    max_margin,
    max_margin_batch,
    regularization_path,
    selection_margins,
)
from attsvm.datasets import unit_sphere
from attsvm.theory import margin_drop_bound
from attsvm_papers import kit
from attsvm_papers.md.e3_joint_training import two_sequences
from attsvm_papers.md.mirror_runs import COLOURS, POTENTIALS

TOY, RANDOM = "toy", "random"
SIZES = (2.0, 4.0, 8.0, 16.0, 24.0)  # of W along the path, in solutions
HEADS = (5.0, 20.0, 80.0, 1280.0, 5120.0)
# share of the label margin that the proven drop must exceed: solutions are certified to 1e-9
PROVEN = 1e-6


@kit.run(p=POTENTIALS, quick={"toy_starts": 0}, name="toy")
def toy_instance(p, toy_starts=8):
    return joint_paths([two_sequences()], p, toy_starts)


@kit.run(
    p=POTENTIALS,
    seeds=kit.seeds(100, by=10, start=1),
    quick={"starts": 0, "seeds": 2},
    name="random",
)
def random_instances(p, seeds, starts=2):
    data, _ = unit_sphere(2, 3, 4, seeds)
    return joint_paths([data.instance(k) for k in range(len(seeds))], p, starts)


def joint_paths(instances, p, starts):
    return kit.stacked([joint_path_of(instance, p, starts) for instance in instances])


def joint_path_of(data: AttentionData, p: float, starts: int) -> dict[str, Any]:
    """The path, and the selection of largest label margin in this norm: the pair of solutions that
    it should go to.

    ``drop`` is the proven drop of the label margin as a share of it; where nothing is proven there
    is no path.
    """
    selections = list(itertools.product(range(data.T), repeat=data.n))
    heads = max_margin_batch([decoder_margins(data, tokens) for tokens in selections], Lp(p))
    margins = np.array(
        [0.0 if solution.status != "optimal" else 1.0 / solution.norm for solution in heads]
    )
    index = int(np.argmax(margins))
    best, decoder = selections[index], heads[index]
    columns: dict[str, Any] = {
        "drop": -np.inf,
        "path_W": np.full(len(SIZES), np.nan),
        "path_v": np.full(len(SIZES), np.nan),
    }
    mm = max_margin(selection_margins(data, best), Lp(p))
    if decoder.status != "optimal" or mm.status != "optimal":
        return columns
    columns["drop"] = margin_drop_bound(data, best, Lp(p)) * decoder.norm
    if columns["drop"] <= PROVEN:
        return columns
    radii, head_radii = [size * mm.norm for size in SIZES], [size * decoder.norm for size in HEADS]
    path = regularization_path(
        data, decoder.W[:, 0], Lp(p), radii, "joint W", starts=starts, head_radii=head_radii
    )
    assert path.head is not None
    divergence = PowerPotential(p).direction_divergence
    columns["path_W"] = divergence(np.broadcast_to(mm.W, path.W.shape), path.W)
    columns["path_v"] = divergence(
        np.broadcast_to(decoder.W, (len(SIZES), *decoder.W.shape)), path.head[..., None]
    )
    return columns


TITLES_OF_PARTS = {TOY: "the data of joint training", RANDOM: "random instances"}


def instances_with_proof(e):
    """The instances for which the assumption is proved, by the title of their table."""
    applicable = e.take(e["drop"] > PROVEN)
    return {
        TITLES_OF_PARTS[table]: applicable.where(part=table) for table in applicable.levels("part")
    }


@kit.claim(
    kit.at_most(0.0, "logarithm of the ratio of neighbours: decreasing", share=kit.MOST),
    "recalled",
    "md, joint convergence (number recalled)",
    null=kit.mixed_records("path_W", "path_v", words="its sizes in random order"),
)
def M5(e):
    """On the data of joint training and on random instances the joint regularisation path of W and
    v turns to the pair of solutions of largest label margin: both divergences fall at every size.
    """
    return {
        title: np.diff(np.log([rows["path_W"], rows["path_v"]]), axis=-1).max(axis=(0, -1))
        for title, rows in instances_with_proof(e).items()
    }


@kit.claim(
    kit.at_most(0.01, "set by this project", share=kit.MOST),
    "recalled",
    "md, joint convergence (number recalled)",
    null=kit.at_start("path_W", "path_v", words="the smallest size"),
)
def M5b(e):
    """On the data of joint training and on random instances, at the largest sizes of W and v, 24
    and 5120 solutions, both divergences are small.
    """
    return {
        title: np.maximum(rows.end("path_W"), rows.end("path_v"))
        for title, rows in instances_with_proof(e).items()
    }


@kit.picture(
    "The joint regularisation path",
    "Both divergences fall at every size for every p.",
    2.9,
    1,
    2,
    width=8.0,
    name="joint-path",
)
def draw_joint_path(evidence, axes):
    """The best pair of W and v of given sizes, both grown together; divergence from the solutions
    for the tokens of largest label margin in the same norm. Median and 5 to 95 % of random
    instances that meet the assumption; crosses: the data of md-3.
    """
    applies = evidence.take(evidence["drop"] > PROVEN)
    for ax, name, sizes, title in (
        (axes[0], "path_W", SIZES, "W, by its size in solutions"),
        (axes[1], "path_v", HEADS, "v, by its size in solutions"),
    ):
        for p, colour in COLOURS.items():
            rows = applies.where(part=RANDOM, p=p)[name]
            kit.band(ax, sizes, rows, colour, shares=(0.05, 0.95), label=f"p = {p:g}", shade=0.13)
            ax.plot(sizes, applies.where(part=TOY, p=p)[name][0], "x", color=colour, markersize=6)
        ax.set(xscale="log", yscale="log", title=title)
    axes[0].set_ylabel("divergence")
    axes[0].plot([], [], "x", color=kit.FAINT, label="data of md-3")
    kit.legend(axes[0], loc="lower left")
