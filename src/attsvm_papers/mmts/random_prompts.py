r"""Descent on the prompt of random instances: with equal scores of all but the optimal tokens, from
any start (claims T3b, T3d, and the law T3e, T3f, T3g), and from the neighbourhood of a selection's
direction (T4, T6).
"""

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
from attsvm.training import AtSteps, Trajectory, direction_gap
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
    runs, starts_of_instance, _ = starts.shape
    run = np.repeat(np.arange(runs), starts_of_instance)
    down, trajectory = _descend_from(data, scores, starts, solutions.norm[run], steps)
    best = [solutions[int(k)] for k in run]
    goal = np.stack([solution.W[:, 0] / solution.norm for solution in best])
    cosine = np.sum(down * goal, axis=1) / np.linalg.norm(down, axis=1)
    return cosine.reshape(runs, starts_of_instance), trajectory.direction_gap(best)[-1].reshape(
        runs, starts_of_instance
    )


def _descend_from(
    data: AttentionData, scores: FloatArray, starts: FloatArray, step: FloatArray, steps: int
) -> tuple[FloatArray, Trajectory]:
    """Minus the gradients ``(runs, d)`` at starts ``(instances, starts, d)``, and normalised
    descent from them under these scores, with steps of ``step`` ``(runs,)`` each.
    """
    runs, starts_of_instance, d = starts.shape
    run = np.repeat(np.arange(runs), starts_of_instance)
    lifted = _with_scores(data, scores)
    lifted = AttentionData(lifted.tokens[run], lifted.labels[run], lifted.queries[run])
    model = Attention.prompt(
        lifted, np.eye(d + 1)[-1], keys=np.eye(d, d + 1), init=starts.reshape(-1, d)
    )
    model.loss(lifted, LogScale()).sum().backward()
    gradient = model.W.grad
    assert gradient is not None
    trajectory = train(
        model,
        lifted,
        SteepestDescent(model.parameters(), lr=STEP),
        steps,
        AtSteps(()),
        step_scale=step,
    )
    return -gradient[..., 0].numpy(), trajectory


@kit.run(
    kit.rows("n T d", EQUAL[1:]),
    seeds=kit.seeds(100, by=100, name="law_seeds"),
    quick={"law_seeds": 40},
)
def stuck_runs(n, T, d, seeds, law_steps=3000):
    """One row per run, four starts of each instance with equal scores: how many sequences end at a
    wrong token, the gaps of the end to the max-margin prompt of the rightly selecting sequences
    alone and of all, and by how many unit margins of the former the wrong tokens lead, at least.
    """
    data, _ = unit_sphere(n, T, d, seeds)
    draws = [np.random.default_rng([5, seed]) for seed in seeds]
    best = np.zeros(n, dtype=np.int64)
    of_all = max_margin_batch([prompt_margins(data.instance(k), best) for k in range(len(seeds))])
    starts = np.stack([rng.standard_normal((len(SIZES), d)) for rng in draws])
    starts *= (np.array(SIZES) * of_all.norm[:, None] / np.linalg.norm(starts, axis=-1))[..., None]
    lead = np.stack([rng.uniform(0.2, 1.5, (n, 1)) for rng in draws])
    scores = np.where(np.arange(T) == 0, 0.0, -lead)
    run = np.repeat(np.arange(len(seeds)), len(SIZES))
    _, trajectory = _descend_from(data, scores, starts, of_all.norm[run], law_steps)
    wrong = trajectory.selected[-1] != 0
    # of the runs that select rightly everywhere nothing is asked
    stuck = np.flatnonzero(wrong.any(axis=1) & ~wrong.all(axis=1))
    names = ("law_gap", "law_gap_all", "law_lead", "law_lead_other")
    columns = {name: np.full(len(run), np.nan) for name in names}
    instances = [data.instance(int(run[row])) for row in stuck]
    right = max_margin_batch(
        [
            prompt_margins(_sequences(instance, ~wrong[row]), best[~wrong[row]])
            for row, instance in zip(stuck, instances, strict=True)
        ]
    )
    for k, (row, instance) in enumerate(zip(stuck, instances, strict=True)):
        end = trajectory.W[-1, row]
        columns["law_gap"][row] = direction_gap(end, right[k])
        columns["law_gap_all"][row] = direction_gap(end, of_all[int(run[row])])
        for name, prompt in (("law_lead", right[k].W), ("law_lead_other", right[k - 1].W)):
            logits = instance.tokens[wrong[row]] @ prompt[:, 0]
            columns[name][row] = (logits.max(axis=1) - logits[:, 0]).min()
    return {"seed": np.array(seeds)[run], "law_wrong": wrong.sum(axis=1), **columns}


@kit.run(start_lead=(0.5, 0.8, 0.9, 0.95, 1.05, 1.1, 1.25, 2.0))
def boundary(start_lead, boundary_steps=20_000):
    """Two sequences of two tokens in the plane, best minus other (1, 0) and (-lead, 1): whether the
    second still selects its other token in the end, from (200, 0), and from (5, 0).
    """
    tokens = np.zeros((2, 2, 2))
    tokens[:, 0] = [[1.0, 0.0], [-start_lead, 1.0]]
    data = _with_scores(
        AttentionData(tokens, np.ones(2)), np.broadcast_to(np.array([0.0, -1.0]), (2, 2))
    )
    starts = np.array([[200.0, 0.0], [5.0, 0.0]])
    model = Attention.prompt(data, np.eye(3)[-1], keys=np.eye(2, 3), init=starts, runs=2)
    descent = SteepestDescent(model.parameters(), lr=STEP)
    far, near = train(model, data, descent, boundary_steps, AtSteps(())).selected[-1, :, 1]
    return {"ends_wrong": np.array([float(far)]), "ends_wrong_near": np.array([float(near)])}


def _sequences(data: AttentionData, chosen: NDArray[np.bool_]) -> AttentionData:
    """Some of the sequences of an instance."""
    return AttentionData(data.tokens[chosen], data.labels[chosen], data.queries[chosen])


def _with_scores(data: AttentionData, scores: FloatArray) -> AttentionData:
    """The data with a last feature, which a head of the last unit vector reads as these scores."""
    third = (data.labels[..., None] * scores)[..., None]
    return AttentionData(np.concatenate([data.tokens, third], axis=-1), data.labels, data.queries)


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
