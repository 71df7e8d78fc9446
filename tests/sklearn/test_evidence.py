"""Evidence of predictions, recomputed from the bags that are left."""

from functools import partial

import numpy as np
import pytest

from attsvm.base.errors import InputError
from attsvm.datasets import planted_witnesses
from attsvm.sklearn import AttentionSVC, WitnessSVC


@pytest.fixture(
    scope="module", params=[WitnessSVC, AttentionSVC, partial(AttentionSVC, query="mean")]
)
def fitted(request):
    bags = planted_witnesses("linear", 100, 6, 0, d=5)
    model = request.param(reject=0.5)
    return model.fit(bags, bags.labels), [bags[i] for i in range(40)]


@pytest.mark.parametrize("count", [1, 2, 9])
def test_sufficient_and_necessary_are_predictions_of_what_is_left(fitted, count):
    model, bags = fitted
    found = model.evidence(bags, count)
    predicted = model.predict(bags)
    for i, bag in enumerate(bags):
        chosen = found.instances[i]
        assert len(set(chosen.tolist())) == min(count, len(bag))
        assert found.sufficient[i] == (model.predict([bag[chosen]])[0] == predicted[i])
        rest = np.delete(bag, chosen, axis=0)
        changed = len(rest) == 0 or model.predict([rest])[0] != predicted[i]
        assert found.necessary[i] == changed
    assert [int(part[0]) for part in found.instances] == model.select(bags).tolist()


def test_the_margins_are_those_of_the_values(fitted):
    model, bags = fitted
    found = model.evidence(bags)
    np.testing.assert_allclose(found.margin, np.abs(model.decision_function(bags)))
    assert np.array_equal(found.rejected, found.margin < 0.5)
    for i, values in enumerate(model.decision_function_instances(bags)):
        sign = 1.0 if model.decision_function(bags)[i] > 0 else -1.0
        best = max(sign * values) - max(-sign * values)
        assert found.runner_up[i] == pytest.approx(best)
    assert found.sufficient.mean() >= 0.95
    assert "sufficient" in repr(found)


def test_instances_come_by_falling_contribution(fitted):
    model, bags = fitted
    values, parts = model.decision_function(bags), model.contributions(bags)
    assert min((values > 0).sum(), (values < 0).sum()) >= 5
    for part, value, chosen in zip(parts, values, model.evidence(bags, 6).instances, strict=True):
        toward = part if isinstance(model, WitnessSVC) else np.sign(value) * part
        assert np.array_equal(toward[chosen], np.sort(toward)[::-1])


def test_it_agrees_where_the_instance_with_the_most_attention_alone_says_the_same():
    generator = np.random.default_rng(0)
    labels = np.arange(120) % 2
    bags = generator.normal(size=(120, 5, 3))
    bags[:, :, 0] += 0.5 * (2 * labels - 1)[:, None]
    bags[:, 0, 1] += 3.0  # what draws attention says little
    model = AttentionSVC(penalty=1e-3).fit(bags, labels)
    top = [np.argmax(part) for part in model.attention(bags)]
    values = model.decision_function_instances(bags)
    alone = np.array([each[t] for each, t in zip(values, top, strict=True)])
    expected = (alone > 0) == (model.decision_function(bags) > 0)
    assert 0.1 < expected.mean() < 0.9
    assert np.array_equal(model.evidence(bags).agrees, expected)


def test_the_evidence_of_a_hard_witness_suffices_by_its_form():
    bags = planted_witnesses("linear", 80, 6, 1, d=5)
    model = WitnessSVC(pooling="hard").fit(bags, bags.labels)
    assert model.evidence(bags).sufficient.all()


def test_no_instances_are_refused(fitted):
    model, bags = fitted
    with pytest.raises(InputError, match="instances is 0; give at least 1"):
        model.evidence(bags, 0)
