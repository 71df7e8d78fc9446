"""An embedding trained with its attention, then read by the estimator."""

import numpy as np
import pytest
import torch
from sklearn.preprocessing import FunctionTransformer
from torch.nn.functional import binary_cross_entropy_with_logits

from attsvm.data import AttentionData
from attsvm.errors import InputError
from attsvm.models import BagClassifier
from attsvm.sklearn import BagFeatures, WitnessSVC


def rings(n, seed):
    """Bags in which an instance far from the middle, in any direction, makes the label."""
    generator = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    bags = [0.5 * generator.normal(size=(generator.integers(2, 6), 2)) for _ in range(n)]
    for bag in bags[1::2]:
        bag[0] *= 3.0 / np.linalg.norm(bag[0])
    return bags, labels


def test_an_embedding_learns_what_no_linear_score_can():
    bags, labels = rings(160, 0)
    data = AttentionData.from_bags(bags, 2.0 * labels - 1.0)
    examples, mask = torch.tensor(data.tokens).float(), torch.tensor(data.mask)
    targets = torch.tensor(labels).float()
    torch.manual_seed(0)
    embedding = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh())
    model = BagClassifier(embedding, 16)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(240):
        rows = torch.randint(160, (40,))
        logits = model(examples[rows], mask[rows])
        optimizer.zero_grad()
        binary_cross_entropy_with_logits(logits, targets[rows]).backward()
        optimizer.step()
    features = BagFeatures(FunctionTransformer(model.embed)).fit(bags)
    estimator = WitnessSVC().fit(features.transform(bags), labels)
    test, expected = rings(80, 1)
    assert estimator.score(features.transform(test), expected) >= 0.95
    chosen = estimator.select(features.transform(test))
    assert np.mean(chosen[1::2] == 0) >= 0.95
    plain = WitnessSVC().fit(bags, labels)
    assert plain.score(test, expected) <= 0.8


@pytest.mark.parametrize("assumption", ["standard", "collective"])
def test_padding_changes_nothing(assumption):
    torch.manual_seed(0)
    model = BagClassifier(torch.nn.Linear(3, 4), 4, assumption)
    bag = torch.randn(1, 2, 3)
    padded = torch.cat([bag, torch.randn(1, 3, 3)], dim=1)
    mask = torch.tensor([[True, True, False, False, False]])
    torch.testing.assert_close(model(padded, mask), model(bag))


def test_another_assumption_is_refused():
    with pytest.raises(InputError, match="choose 'standard' or 'collective'"):
        BagClassifier(torch.nn.Identity(), 2, "both")
