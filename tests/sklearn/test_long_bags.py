"""Bags longer than what is read at once: nothing of their size is ever made of features."""

import numpy as np
import pytest
from scipy.special import logsumexp, softmax

from attsvm.sklearn import AttentionSVC, WitnessSVC

MOST = 4 * 4096  # rows that are read together
LENGTHS = (150, 17_000, *[150] * 14)


class Stored:
    """A table on disk, of which nobody reads more than a few thousand rows."""

    def __init__(self, rows):
        self.rows, self.shape, self.dtype = rows, rows.shape, rows.dtype
        self.longest = 0

    def __getitem__(self, chosen):
        rows = self.rows[chosen]
        self.longest = max(self.longest, len(rows))
        return rows.copy()


def stored_bags():
    """Bags of which every second holds 2 % witnesses, their arrays and labels."""
    generator = np.random.default_rng(0)
    labels = np.arange(len(LENGTHS)) % 2
    arrays = []
    for length, label in zip(LENGTHS, labels, strict=True):
        rows = generator.normal(size=(length, 4)).astype(np.float32)
        if label:
            rows[generator.choice(length, length // 50, replace=False), 0] += 8.0
        arrays.append(rows)
    return [Stored(rows) for rows in arrays], arrays, labels


@pytest.mark.parametrize(
    "model", [WitnessSVC(penalty=1e-3, cv=2), AttentionSVC(penalty=1e-3, cv=2)]
)
@pytest.mark.filterwarnings("ignore:bags left out are not predicted")
def test_a_bag_of_any_length_is_read_in_pieces(model):
    bags, arrays, labels = stored_bags()
    model.fit(bags, labels)
    values, attention = model.decision_function(bags), model.attention(bags)
    evidence, chosen = model.evidence(bags), model.select(bags)
    assert len(model.deciding_set(bags)[1]) > 0
    assert max(bag.longest for bag in bags) <= MOST
    layer = model.predictor_.layer
    for rows, value, shares, best, weightiest in zip(
        arrays, values, attention, chosen, evidence.instances, strict=True
    ):
        if isinstance(model, WitnessSVC):
            scores = rows @ layer.w[0] + layer.intercept[0]
            expected, known = softmax(scores), logsumexp(scores)
        else:
            expected = softmax(rows @ layer.W[0, :, 0])
            known = expected @ (rows @ layer.V[0, :, 0]) + layer.intercept[0]
        # both sum a bag's terms in float64, of rows in single precision
        np.testing.assert_allclose(shares, expected, rtol=1e-4, atol=1e-12)
        np.testing.assert_allclose(value, known, rtol=1e-4, atol=1e-4)
        assert best == weightiest[0]
    assert ((values > 0) == (labels > 0)).all()


def test_queries_of_long_bags_are_those_of_their_rows():
    bags, arrays, labels = stored_bags()
    model = AttentionSVC(query="mean", penalty=1e-2, cv=2).fit(bags, labels)
    mean = arrays[1].mean(axis=0, dtype=np.float64)
    query = np.append(1.0, mean / np.linalg.norm(mean)) / np.sqrt(2.0)
    layer = model.predictor_.layer
    shares = softmax(arrays[1] @ (layer.W[0] @ query))
    np.testing.assert_allclose(model.attention(bags)[1], shares, rtol=1e-4, atol=1e-12)
    assert max(bag.longest for bag in bags) <= MOST
