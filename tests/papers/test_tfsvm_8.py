"""tfsvm-8: the selected sets of the concave head are known before training."""

import numpy as np
from scipy.optimize import check_grad

from attsvm import token_scores
from attsvm.datasets import orthonormal
from attsvm.selection import sparsemax_selection
from attsvm_papers.tfsvm import e8_concave_head as tfsvm_8
from attsvm_papers.tfsvm.nonlinear_paths import log_excess


def test_strong_heads_select_everything_at_the_predicted_probabilities() -> None:
    found = tfsvm_8.run(range(100, 104), steps=400, strengths=[0.1, 2.0])
    weak, strong = found["strength"] == 0.1, found["strength"] == 2.0
    assert found["all_selected"][strong].all()
    assert found["selected"][weak].mean() < 2
    assert np.median(found["error_fixed"][strong]) < 0.02  # jitter of steps of 0.1
    assert (found["both_fixed"] >= found["margin_fixed"] - 1e-3)[weak].all()


def test_the_log_of_the_excess_loss_is_that_of_its_definition_and_has_its_gradient() -> None:
    data, head = orthonormal(3, 4, 5)
    scores = token_scores(data, head)
    best = sparsemax_selection(scores, 0.5).probabilities
    excess = tfsvm_8.excess_of(scores, 0.5, best)
    value = log_excess(data, excess)

    def losses(s):
        own = (scores * s).sum(axis=-1) - 0.5 * (s**2).sum(axis=-1)
        return np.logaddexp(0.0, -own)

    W = 0.5 * np.random.default_rng(0).standard_normal((4, 4))
    logits = np.einsum("ntd,de,ne->nt", data.tokens, W, data.queries)
    s = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    found, gradient = value(W)
    assert np.isclose(found, np.log((losses(s) - losses(best)).mean()))
    error = check_grad(
        lambda x: value(x.reshape(4, 4))[0], lambda x: value(x.reshape(4, 4))[1].ravel(), W.ravel()
    )
    assert error < 1e-5 * max(1.0, np.linalg.norm(gradient))
