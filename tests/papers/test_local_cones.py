"""The ascent of descent in a cone is the inner product with the gradient itself."""

import numpy as np
import torch

from attsvm import max_margin, optimal_tokens, selection_margins, token_scores
from attsvm.datasets import unit_sphere
from attsvm_papers.tfsvm.local_cones import ascent_at


def test_ascent_is_minus_the_gradient_of_the_loss_along_a_matrix() -> None:
    data, head = unit_sphere(3, 4, 6, 2)
    solution = max_margin(selection_margins(data, optimal_tokens(data, head)))
    scores = token_scores(data, head)
    generator = np.random.default_rng(1)
    along, W = generator.standard_normal((2, 6, 6))
    tokens, queries, gamma = (torch.tensor(each) for each in (data.tokens, data.queries, scores))
    free = torch.tensor(W, requires_grad=True)
    s = torch.softmax((tokens @ (queries @ free.T)[..., None])[..., 0], dim=-1)
    torch.nn.functional.softplus(-(s * gamma).sum(dim=-1)).mean().backward()
    slope = -float((free.grad * torch.tensor(along)).sum())
    for size in (1.0, 2.0):
        share = ascent_at(solution, scores, W[None], size * along)[0]
        assert np.sign(share) == np.sign(slope)
    # The same share from the terms of attention, far from saturation.
    logits = np.einsum("ntd,de,ne->nt", data.tokens, W, data.queries)
    s = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    mean = (s * scores).sum(axis=-1, keepdims=True)
    there = np.einsum("ntd,de,ne->nt", data.tokens, along, data.queries)
    best = optimal_tokens(data, head)[:, None]
    ahead = np.take_along_axis(there, best, axis=-1) - there
    terms = s * (mean - scores) * ahead / (1.0 + np.exp(mean))
    assert np.isclose(terms.sum() / 3.0, slope)
    assert np.isclose(
        ascent_at(solution, scores, W[None], along)[0], terms.sum() / np.abs(terms).sum()
    )
