"""Regularisation paths of losses that no linear head has: a head that wants a mixture, selections
that tie, and a head of ReLU units (claim T9).
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import minimize

from attsvm import (
    finite_component,
    max_margin,
    max_margin_batch,
    multi_token_margins,
    selection_margins,
    token_scores,
)
from attsvm.base.softmax import softmax_rows
from attsvm.datasets import orthonormal, unit_sphere
from attsvm.datasets.attention_data import FloatArray
from attsvm.margins import split
from attsvm.theory import sparsemax_selection
from attsvm.training import direction_gap
from attsvm_papers import kit

FAR = 30.0  # of the weights, in norms of the solution


@kit.run(
    seeds=kit.seeds(60, by=100, name="mixture_seeds"),
    strength=(0.2, 0.3),
    quick={"mixture_seeds": 12, "strength": (0.3,)},
)
def mixture(seeds, strength, sizes=(3.0, 5.0, 8.0, 12.0, 24.0)):
    r"""The regularisation path under the concave head :math:`\gamma^\top s-\lambda\|s\|^2`, its
    finite and its diverging part.

    The loss is linear and its infimum that of the mixture :math:`s^\star`; the excess is
    :math:`\lambda\|s-s^\star\|^2` and what leaks to the other tokens, times their distance to the
    common slope of the selected ones: no cancellation.
    """
    rows = []
    for seed in seeds:
        data, head = orthonormal(2, 4, seed)
        scores = token_scores(data, head)
        sets, best = sparsemax_selection(scores, strength)
        margins = multi_token_margins(data, sets)
        likeliest = selection_margins(data, best.argmax(axis=1))
        direction, single = (max_margin(programme).W for programme in (margins, likeliest))
        finite = finite_component(data, sets, np.where(sets, best, 1.0)).W
        slope = np.where(sets, scores - 2.0 * strength * best, -np.inf).max(axis=1, keepdims=True)
        leak = np.where(sets, 0.0, slope - scores)

        def excess(s, leak=leak, best=best):
            return (
                np.sum(leak * s + strength * (s - best) ** 2, axis=1),
                leak + 2.0 * strength * (s - best),
            )

        several = bool((sets.sum(axis=1) > 1).any())
        instance_columns = {
            "seed": seed,
            "mixture_seed": seed if several else np.nan,
            "several": several + 0.0,
        }
        rng = np.random.default_rng(seed)
        for size in sizes:
            start = finite + size * direction
            starts = [start, *rng.standard_normal((4, *start.shape))]
            W = best_on_sphere(log_mean_excess(data, excess), starts, float(np.linalg.norm(start)))
            inside, outside = split(W, margins)
            rows.append(
                instance_columns
                | {
                    "size": size,
                    "path_gap": direction_gap(W, direction),
                    "outside_gap": direction_gap(outside, direction),
                    "outside_other": direction_gap(outside, single),
                    "path_other": direction_gap(W, single),
                    "finite_error": np.linalg.norm(inside - finite),
                    "finite_size": np.linalg.norm(inside),
                }
            )
    return kit.stacked(rows)


@kit.run(seeds=kit.seeds(20, by=100))
def ties(seeds):
    """Two best tokens of equal score in each sequence and a convex head, under which mixing hurts:
    which selection the path takes.

    Four independent tokens in four dimensions make every function of the attention one of the
    output.
    """
    scores = np.array([[1.0, 1.0, 0.5, 0.2], [0.3, 0.8, 0.8, 0.0]])
    score_gaps = scores.max(axis=1, keepdims=True) - scores

    def excess(s):
        others = s @ (1.0 - np.eye(s.shape[1]))  # 1 - s without cancellation
        return np.sum(s * score_gaps + s * others, axis=1), score_gaps + 2.0 * others

    rows = []
    for seed in seeds:
        data, _ = unit_sphere(2, 4, 4, seed)
        candidates = itertools.product((0, 1), (1, 2))
        solutions = max_margin_batch([selection_margins(data, choice) for choice in candidates])
        least, second, *_ = sorted(solutions, key=lambda solution: solution.norm)
        random_starts = np.random.default_rng(seed).standard_normal((6, *least.W.shape))
        starts = [*(solution.W for solution in solutions), *random_starts]
        W = best_on_sphere(log_mean_excess(data, excess), starts, FAR * least.norm)
        gaps = {"tie_gap": direction_gap(W, least.W), "tie_other": direction_gap(W, second.W)}
        rows.append(gaps | {"second": second.norm / least.norm})
    return kit.stacked(rows)


@kit.run(seeds=kit.seeds(200, by=100, name="hidden_seeds"), quick={"hidden_seeds": 20})
def hidden_units(seeds):
    """The path under a head of eight ReLU units: the gap to the max-margin direction of the tokens
    of largest output, and to that of the tokens of which one is second; NaN where a mixture of
    tokens has as large an output, or no weights select the tokens.
    """
    gaps, others = np.full((2, len(seeds)), np.nan)
    for k, seed in enumerate(seeds):
        data, _ = unit_sphere(2, 3, 6, seed)
        rng = np.random.default_rng([9, seed])
        hidden, outer = rng.standard_normal((8, 6)), rng.standard_normal(8)
        inner = data.tokens @ hidden.T
        order = np.argsort(-data.labels[:, None] * (np.maximum(inner, 0.0) @ outer), axis=1)
        best, second = order[:, 0], np.append(order[:1, 1], order[1:, 0])
        top = inner[np.arange(data.n), best][:, None]
        away, signed = top - inner, data.labels[:, None] * outer

        def excess(s, away=away, top=top[:, 0], signed=signed):
            """Best output minus that of the mixture, from differences: no cancellation."""
            fall = np.einsum("...nt,ntm->...nm", s, away)
            left = top - fall
            drop = np.where(top > 0, np.minimum(fall, top), -np.maximum(left, 0.0))
            slope = np.einsum("...nm,ntm->...nt", signed * (left > 0), away)
            return np.sum(signed * drop, axis=-1), slope

        mixtures = rng.dirichlet(np.full(data.T, 0.5), (2000, data.n))
        solution, other = max_margin_batch(
            [selection_margins(data, tokens) for tokens in (best, second)]
        )
        if solution.status != "optimal" or (excess(mixtures)[0] <= 0).any():
            continue
        starts = [solution.W, *rng.standard_normal((4, *solution.W.shape))]
        W = best_on_sphere(log_mean_excess(data, excess), starts, FAR * solution.norm)
        gaps[k] = direction_gap(W, solution.W)
        others[k] = direction_gap(W, other.W) if other.has_weights else np.nan
    return {"hidden_gap": gaps, "hidden_other": others}


def best_on_sphere(
    value: Callable[[FloatArray], tuple[float, FloatArray]],
    starts: list[FloatArray],
    R: float,
    rounds: int = 3,
) -> FloatArray:
    """The best weights of norm R for a function of W and its gradient, searched from several
    starts.
    """
    shape = starts[0].shape

    def on_sphere(x: FloatArray) -> tuple[float, FloatArray]:
        size = float(np.linalg.norm(x))
        loss, gradient = value((R / size) * x.reshape(shape))
        flat = gradient.reshape(-1)
        return loss, (R / size) * (flat - (flat @ x) * x / size**2)

    ends = []
    for start in starts:
        x = start.reshape(-1) / np.linalg.norm(start)
        for _ in range(rounds):  # a restart forgets a metric that has gone stale
            result = minimize(
                on_sphere, x, jac=True, method="BFGS", options={"gtol": 1e-10, "maxiter": 2000}
            )
            x = result.x / np.linalg.norm(result.x)
        ends.append((float(result.fun), R * x.reshape(shape)))
    return min(ends, key=lambda end: end[0])[1]


def log_mean_excess(
    data: Any, excess: Callable[[FloatArray], tuple[FloatArray, FloatArray]]
) -> Callable[[FloatArray], tuple[float, FloatArray]]:
    """The logarithm of the mean of a function of the probabilities, as a function of W."""

    def value(W: FloatArray) -> tuple[float, FloatArray]:
        logits = np.einsum("ntd,nd->nt", data.tokens, data.queries @ W.T)
        s = softmax_rows(logits)
        excesses, slope = excess(s)
        pull = s * (slope - np.sum(s * slope, axis=1, keepdims=True))
        total = float(excesses.mean())
        gradient = np.einsum("nt,ntd,ne->de", pull, data.tokens, data.queries) / (data.n * total)
        return float(np.log(total)), gradient

    return value
