r"""Descent on the prompt of random instances: with equal scores of all but the optimal tokens, from
any start (claims T3b, T3c, T3d), and from the neighbourhood of a selection's direction (T4, T6).
"""

import itertools
from typing import Any

import numpy as np

from attsvm import (
    AttentionData,
    locally_optimal,
    max_margin_batch,
    prompt_margins,
    token_scores,
    train,
)
from attsvm.attention import Attention, LogScale
from attsvm.datasets import unit_sphere
from attsvm.datasets.attention_data import FloatArray
from attsvm.optim import SteepestDescent
from attsvm.training import AtSteps
from attsvm_papers import kit
from attsvm_papers.tfsvm.local_cones import half_angle, margin_surplus, random_weights_in_cone

CLEAR = 0.1  # least surplus of the other rivals over the margin at which a direction is tried
LEAD = 15.0  # by how much they are behind the neighbours at a start
STEP = 0.1  # in norms of the solution
SIZES = (0.1, 1.0, 5.0, 20.0)  # of starts, in the same
EQUAL, ENUMERATED = ((1, 8, 4), (4, 4, 12)), ((2, 4, 4), (2, 3, 16))
"""n, T, d of instances with equal scores, and of those of which every selection is tried."""


@kit.run(kit.rows("n T d", EQUAL), seeds=kit.seeds(20, by=100), quick={"prompt_steps": 2000})
def equal_scores(n, T, d, seeds, prompt_steps=3000):
    """One row per instance: normalised descent from four random starts of 0.1 to 20 solution norms,
    with scores that are equal but for the optimal token's, and with unequal ones.

    The least cosine, at the starts, between minus the gradient and the max-margin prompt is in
    units of the derived bound, one over the solution's norm times the longest difference; the gap
    is that of the worst start.
    """
    data, _ = unit_sphere(n, T, d, seeds)
    runs, starts_of_instance = len(seeds), len(SIZES)
    best = np.zeros(n, dtype=np.int64)
    solutions = max_margin_batch([prompt_margins(data.instance(k), best) for k in range(runs)])
    norms = solutions.norm
    widest = np.linalg.norm(data.tokens[..., :1, :] - data.tokens, axis=-1).max(axis=(-2, -1))
    draws = [np.random.default_rng([3, seed]) for seed in seeds]
    starts = np.stack([rng.standard_normal((starts_of_instance, d)) for rng in draws])
    starts *= (np.array(SIZES) * norms[:, None] / np.linalg.norm(starts, axis=-1))[..., None]
    lead = np.stack([rng.uniform(0.2, 1.5, (n, 1)) for rng in draws])
    behind = np.stack([rng.uniform(0.0, 1.0, (n, T)) for rng in draws])
    columns: dict[str, Any] = {}
    for name, share in (("", 1.0), ("_unequal", behind)):
        scores = np.where(np.arange(T) == 0, 0.0, -lead * share)
        cosine, gap = _from_anywhere(data, scores, starts, solutions, prompt_steps)
        columns[f"equal_cosine{name}"] = (cosine * (norms * widest)[:, None]).min(axis=1)
        columns[f"equal_gap{name}"] = gap.max(axis=1)
    return columns


def _from_anywhere(
    data: AttentionData, scores: FloatArray, starts: FloatArray, solutions: Any, steps: int
) -> tuple[FloatArray, FloatArray]:
    """Cosines at the starts and gaps at the end, ``(instances, starts)`` each."""
    runs, starts_of_instance, d = starts.shape
    run = np.repeat(np.arange(runs), starts_of_instance)
    third = (data.labels[..., None] * scores)[..., None]
    lifted = AttentionData(
        np.concatenate([data.tokens, third], axis=-1)[run], data.labels[run], data.queries[run]
    )
    model = Attention.prompt(
        lifted, np.eye(d + 1)[-1], keys=np.eye(d, d + 1), init=starts.reshape(-1, d)
    )
    model.loss(lifted, LogScale()).sum().backward()
    gradient = model.W.grad
    assert gradient is not None
    down = -gradient[..., 0].numpy()
    best = [solutions[int(k)] for k in run]
    goal = np.stack([solution.W[:, 0] / solution.norm for solution in best])
    cosine = np.sum(down * goal, axis=1) / np.linalg.norm(down, axis=1)
    trajectory = train(
        model,
        lifted,
        SteepestDescent(model.parameters(), lr=STEP),
        steps,
        AtSteps(()),
        step_scale=solutions.norm[run],
    )
    return cosine.reshape(runs, starts_of_instance), trajectory.direction_gap(best)[-1].reshape(
        runs, starts_of_instance
    )


@kit.run(kit.rows("n T d", ENUMERATED), seeds=kit.seeds(20, by=100), quick={"prompt_steps": 2000})
def directions(n, T, d, seeds, prompt_steps=3000):
    """One row for each selection that is feasible and clear of its other rivals: whether it is
    locally optimal, and the gap after normalised descent from a start near its direction.

    Starts of locally optimal selections are at the edge of the derived cone, see
    :mod:`attsvm_papers.tfsvm.local_cones`, those of others on the ray itself.
    """
    data, heads = unit_sphere(n, T, d, seeds)
    scores = token_scores(data, heads)
    choices = np.array(list(itertools.product(range(data.T), repeat=data.n)))
    candidates: list[Any] = []
    for k, seed in enumerate(seeds):
        rng = np.random.default_rng([4, seed])
        solutions_of_instance = max_margin_batch(
            [prompt_margins(data.instance(k), choice) for choice in choices]
        )
        for solution in solutions_of_instance:
            clear = min(margin_surplus(solution), 1.0) if solution.status == "optimal" else 0.0
            if clear >= CLEAR:
                is_local = bool(locally_optimal(solution, scores[k]).all())
                angle = half_angle(solution, 0.25 * clear) if is_local else 0.0
                candidates.append(
                    (
                        k,
                        solution,
                        is_local,
                        random_weights_in_cone(solution, angle, LEAD / clear, 1, rng)[0],
                    )
                )
    run, solutions, locally, starts = zip(*candidates, strict=True)
    instance_of_run = np.array(run)
    subset = AttentionData(
        data.tokens[instance_of_run], data.labels[instance_of_run], data.queries[instance_of_run]
    )
    model = Attention.prompt(subset, heads[instance_of_run], init=np.stack(starts)[..., 0])
    trajectory = train(
        model,
        subset,
        SteepestDescent(model.parameters(), lr=STEP),
        prompt_steps,
        AtSteps(()),
        step_scale=np.array([solution.norm for solution in solutions]),
    )
    return {
        "seed": np.array(seeds)[instance_of_run],
        "locally": np.array(locally),
        "after": trajectory.direction_gap(list(solutions))[-1],
    }
