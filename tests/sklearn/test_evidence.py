"""Evidence of predictions, recomputed from the bags that are left."""

import numpy as np
import pytest

from attsvm.datasets import planted_witnesses
from attsvm.errors import InputError
from attsvm.sklearn import AttentionSVC, WitnessSVC


@pytest.fixture(scope="module", params=[WitnessSVC, AttentionSVC])
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


def test_the_evidence_of_a_hard_witness_suffices_by_its_form():
    bags = planted_witnesses("linear", 80, 6, 1, d=5)
    model = WitnessSVC(pooling="hard").fit(bags, bags.labels)
    assert model.evidence(bags).sufficient.all()


def test_no_instances_are_refused(fitted):
    model, bags = fitted
    with pytest.raises(InputError, match="instances is 0; give at least 1"):
        model.evidence(bags, 0)
