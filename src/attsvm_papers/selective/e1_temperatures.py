"""Similar queries that want attention of different sharpness: large weights, or temperatures.

Five pairs of queries in d = 16 dimensions. The two of a pair ask the same six tokens for the same
one, with a logit that leads by 1 and by 8, and are apart by a distance from 1 down to .003. The
shortest W with these logits is solved exactly, and the shortest that needs them up to a positive
scale of each query, of geometric mean 1. Both are trained on the attention maps, by gradient
descent on the cross entropy from zero, 1000 steps of 2: W; W and a temperature of each query; W and
one of each pair.

Source: Selective Attention: Enhancing Transformer through Principled Context Control (Zhang, Chang,
Li, Roy-Chowdhury, Chen and Oymak, 2024), read in its abstract and in a summary

Notes: The paper's temperature is a small network of the query and its position; here it is free.
Norms are those of W alone; the logarithm of a free temperature is at most log 8 / 2, whatever the
distance.
"""

import numpy as np
from scipy.special import softmax

from attsvm import AttentionData, train
from attsvm.attention import Attention
from attsvm.optim import SteepestDescent
from attsvm.training import AtSteps
from attsvm_papers import kit

ABSTRACT, SUMMARY = "abstract", "a summary of the paper"
FLAT, SHARP = 1.0, 8.0
PAIRS, T, D = 5, 6, 16
NEAR, APART = 0.03, 0.3
WITHOUT, FREE, SHARED = "W alone", "a temperature of each query", "a temperature of each pair"
FEATURES = {FREE: np.eye(2 * PAIRS), SHARED: np.repeat(np.eye(PAIRS), 2, axis=0)}


def draw_pairs(distance, seeds):
    """Data of one instance per seed, queries of a pair next to each other, and wanted logits
    ``(seeds, n, T)``, the first token's above zeros.
    """
    tokens, queries = [], []
    for seed in seeds:
        rng = np.random.default_rng([91, seed])
        keys = rng.standard_normal((PAIRS, T, D))
        keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
        first, along = rng.standard_normal((2, PAIRS, D))
        first /= np.linalg.norm(first, axis=-1, keepdims=True)
        along -= (along * first).sum(axis=-1, keepdims=True) * first
        along /= np.linalg.norm(along, axis=-1, keepdims=True)
        angle = 2 * np.arcsin(distance / 2)
        second = np.cos(angle) * first + np.sin(angle) * along
        tokens.append(np.repeat(keys, 2, axis=0))
        queries.append(np.stack([first, second], axis=1).reshape(-1, D))
    logits = np.zeros((len(seeds), 2 * PAIRS, T))
    logits[..., 0] = np.tile([FLAT, SHARP], PAIRS)
    data = AttentionData(np.stack(tokens), np.ones(logits.shape[:2]), np.stack(queries))
    return data, logits


def shortest_weights(data, logits):
    """The shortest W ``(seeds, d, d)`` with these differences of logits, and the largest error of
    one.
    """
    weights, errors = [], []
    for X, z, a in zip(data.tokens, data.queries, logits, strict=True):
        rows = np.einsum("itd,ie->itde", X[:, :1] - X[:, 1:], z).reshape(-1, D * D)
        gaps = (a[:, :1] - a[:, 1:]).ravel()
        solution = np.linalg.lstsq(rows, gaps, rcond=None)[0]
        weights.append(solution.reshape(D, D))
        errors.append(np.abs(rows @ solution - gaps).max())
    return np.stack(weights), np.array(errors)


def map_cross_entropy(probabilities, maps):
    return -(maps * probabilities.clamp(min=1e-30).log()).sum(dim=-1)


def train_on_maps(data, maps, variant, lr, steps):
    """The trajectory, and what it ends with: the logarithms of the scales, and the probabilities of
    the tokens that are to be selected, ``(seeds, n)``.
    """
    model = Attention.cross(
        data,
        lambda outputs: outputs,
        targets=maps,
        loss=map_cross_entropy,
        values=np.broadcast_to(np.eye(T), (*maps.shape, T)),
        temperature=FEATURES.get(variant),
    )
    descent = SteepestDescent(model.parameters(), lr=lr, normalize=False)
    records = AtSteps(np.rint(np.geomspace(10, steps, 30)).astype(int).tolist())
    trajectory = train(model, data, descent, steps, records)
    selected = model.probabilities(data)[..., 0].detach().numpy()
    if variant == WITHOUT:
        return trajectory, np.zeros(maps.shape[:2]), selected
    return (
        trajectory,
        trajectory.parameters["log_scale"][-1, ..., 0] @ FEATURES[variant].T,
        selected,
    )


@kit.run(
    distance=(1.0, 0.3, 0.1, 0.03, 0.01, 0.003),
    seeds=kit.seeds(40, by=20),
    quick={"seeds": 10},
    name="shortest",
)
def solve_shortest(distance, seeds):
    data, logits = draw_pairs(distance, seeds)
    equal = np.where(logits > 0, np.sqrt(FLAT * SHARP), 0.0)  # scales of geometric mean 1
    without, error = shortest_weights(data, logits)
    with_scales, error_scaled = shortest_weights(data, equal)
    return {
        "norm": np.linalg.norm(without, axis=(1, 2)),
        "norm_scaled": np.linalg.norm(with_scales, axis=(1, 2)),
        "missed": np.maximum(error, error_scaled),
    }


@kit.run(
    variant=(WITHOUT, FREE, SHARED),
    apart=(NEAR, APART),
    seeds=kit.seeds(10, by=10, name="trained"),
    quick={"trained": 5, "apart": (NEAR,), "steps": 300},
    name="trained",
)
def train_similar_queries(variant, apart, seeds, lr=2.0, steps=1000):
    data, logits = draw_pairs(apart, seeds)
    maps = softmax(logits, axis=-1)
    floor = -(maps * np.log(maps)).sum(axis=-1).mean(axis=-1)
    trajectory, log_scales, selected = train_on_maps(data, maps, variant, lr, steps)
    return {
        "step": kit.same(trajectory.steps),
        "excess": (trajectory.loss - floor).T,
        "trained_norm": np.linalg.norm(trajectory.W[-1], axis=(-2, -1)),
        "selected": selected,
        "target": maps[..., 0],
        "scale_ratio": np.exp(np.diff(log_scales.reshape(len(maps), PAIRS, 2), axis=-1)[..., 0]),
    }


def by_distance(e, column):
    """``(distances, seeds)``, distances falling, and these."""
    rows = e.where(part="shortest")
    distances = rows.levels("distance")[::-1]
    return np.stack([rows.where(distance=x)[column] for x in distances]), np.array(distances)


SCALED = kit.replaced("with temperatures", norm="norm_scaled")
UNSCALED = kit.replaced("without temperatures", norm_scaled="norm")


@kit.claim(
    kit.between(-1.02, -0.98, "one over the distance, while that is small"),
    "recalled",
    f"{SUMMARY}: large norms for similar queries; the power is derived",
    null=SCALED,
)
def SA1(e):
    """The shortest weights with both maps grow like one over the distance of the queries: exponent
    from .1 to .003.
    """
    norms, distances = by_distance(e, "norm")
    small = distances <= 0.1
    return np.polyfit(np.log(distances[small]), np.log(norms[small]), 1)[0]


@kit.claim(
    kit.at_most(1.5, "no growth but that of the queries' span"),
    "recalled",
    f"{SUMMARY}: smaller norms; the bound is this project's",
    null=UNSCALED,
)
def SA2(e):
    """With a temperature of each query they do not: norm at the distance of .003 over that at 1."""
    norms, _ = by_distance(e, "norm_scaled")
    return norms[-1] / norms[0]


@kit.claim(
    kit.at_least(5.0, "a fifth of the norm", share=kit.MOST),
    null=kit.replaced("no temperatures on either side", norm_scaled="norm"),
)
def SA3(e):
    """At a distance of .1 the temperatures save the larger part of the norm: ratio."""
    rows = e.where(part="shortest", distance=0.1)
    return rows["norm"] / rows["norm_scaled"]


def last_excess(e, variant):
    return e.where(part="trained", apart=NEAR, variant=variant).end("excess")


@kit.claim(
    kit.at_least(10.0, "ten times closer to the best loss", share=kit.MOST),
    "paper",
    f"{ABSTRACT}: aids the optimisation process; the factor is this project's",
    null=kit.exchanged("one temperature of each pair", "variant", FREE, SHARED),
)
def SA4(e):
    """At a distance of .03 training with a temperature of each query gets nearer to the best loss:
    excess without over the excess with it, after the last step.
    """
    return last_excess(e, WITHOUT) / last_excess(e, FREE)


@kit.claim(
    kit.between(6.0, 9.0, "eight, once trained to the end", share=kit.MOST),
    "paper",
    f"{ABSTRACT}: distinct sparsity levels across queries",
    where={"part": "trained", "apart": NEAR, "variant": FREE},
    null=kit.replaced("no temperature", scale_ratio=lambda e: np.ones_like(e["scale_ratio"])),
)
def SA5(e):
    """The trained temperatures are the sharpness: ratio of the scales of a pair, where the logits
    that are wanted have a ratio of 8.
    """
    return e["scale_ratio"].mean(axis=1)


@kit.picture(
    "The price of similar queries",
    "On the left a line that rises as queries come closer, and a flat one far below; on the right"
    " losses of two variants that hardly fall, and one that falls by orders.",
    3.0,
    1,
    2,
    width=7.6,
)
def price(e, axes):
    """Left: norm of the shortest weights by the distance of the queries of a pair, medians over
    trials and their range. Right: cross entropy above the best one by step, at a distance of .03.
    """
    for column, colour, label in (
        ("norm", kit.ATTENTION, WITHOUT),
        ("norm_scaled", kit.BEST, FREE),
    ):
        norms, distances = by_distance(e, column)
        kit.band(axes[0], distances, norms.T, colour, label=label)
    axes[0].set(xscale="log", yscale="log", xlabel="distance of the queries", title="norm of W")
    kit.legend(axes[0])
    for variant, colour in zip((WITHOUT, SHARED, FREE), kit.COLOURS[2::-1], strict=True):
        rows = e.where(part="trained", apart=NEAR, variant=variant)
        kit.band(axes[1], rows["step"][0, 1:], rows["excess"][:, 1:], colour, label=variant)
    axes[1].set(xscale="log", yscale="log", xlabel="step", title="excess loss")
    kit.legend(axes[1])


@kit.picture(
    "Sharpness of the two queries of a pair",
    "With W alone the queries of a pair have nearly the same attention, with one temperature they"
    " are hardly apart; with a temperature of each they lie on the dashed lines, what they want.",
    2.8,
    width=5.2,
)
def sharpness(e, axes):
    """Attention to the token that is to be selected, of all queries of all trials, at a distance of
    .03: those that want flat and those that want sharp attention. Dashed: what they want.
    """
    rows = e.where(part="trained", apart=NEAR)
    for k, variant in enumerate((WITHOUT, SHARED, FREE)):
        of_variant = rows.where(variant=variant)
        for first, colour, label in ((0, kit.TRAINED, "flat wanted"), (1, kit.ATTENTION, "sharp")):
            values = of_variant["selected"][:, first::2]
            at = [k + 0.25 * (first - 0.5)]
            kit.dots(
                axes[0],
                at,
                [np.sort(values.ravel())],
                color=colour,
                markersize=2,
                alpha=0.5,
                label=None if k else label,
            )
    for level in np.unique(rows["target"]):
        axes[0].axhline(level, color=kit.FAINT, linestyle="--", linewidth=0.8)
    axes[0].set_xticks(range(3), [WITHOUT, "temperature of each pair", "of each query"])
    axes[0].set(ylim=(0, 1.05), ylabel="attention to the token")
    kit.legend(axes[0], loc="lower left")
