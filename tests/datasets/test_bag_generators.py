"""Bags that are made: what each kind promises, in its own numbers, and equal bits for equal
seeds.
"""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from attsvm.base.errors import InputError
from attsvm.datasets import assumption_test, planted_witnesses
from attsvm.datasets.bag_generators import TESTS, WITNESSES


def largest(values, bags):
    return np.maximum.reduceat(values, bags.offsets[:-1])


def holds(bags, kind):
    return np.add.reduceat(bags.instance_labels == kind, bags.offsets[:-1])


MADE = {
    **{name: (lambda seed, name=name: assumption_test(name, 20, "test", seed)) for name in TESTS},
    **{kind: (lambda seed, kind=kind: planted_witnesses(kind, 20, 7, seed)) for kind in WITNESSES},
}


@pytest.mark.parametrize("name", MADE)
def test_equal_seeds_give_equal_bits_and_others_do_not(name):
    one, again, other = MADE[name](3), MADE[name](3), MADE[name](4)
    for field in ("rows", "offsets", "labels", "source", "instance_labels"):
        np.testing.assert_array_equal(getattr(one, field), getattr(again, field))
    assert one.rows.shape != other.rows.shape or (one.rows != other.rows).any()


@pytest.mark.parametrize("name", ["single concept", "several concepts"])
def test_poison_changes_sides_between_training_and_test(name):
    for part, poisoned in (("train", -1.0), ("test", 1.0)):
        bags = assumption_test(name, 400, part, seed=1)
        assert bags.n == 400
        assert bags.labels.sum() == 0
        np.testing.assert_array_equal(holds(bags, -1), bags.labels == poisoned)
        poison = bags.rows[bags.instance_labels == -1]
        assert abs(poison.mean() + 10) < 0.01
        assert abs(poison.std() - 0.1) < 0.01
        # What the tests are for: "no poison, so positive" is 1 in training and 0 in the test.
        lacking = largest(-bags.rows.mean(axis=1), bags)
        assert roc_auc_score(bags.labels, -lacking) == (1.0 if part == "train" else 0.0)


def test_positive_bags_of_a_single_concept_hold_it_and_negative_ones_do_not():
    bags = assumption_test("single concept", 400, "test", seed=1)
    count = holds(bags, 1)
    assert set(count[bags.labels > 0]) == {1, 2, 3, 4}
    assert not count[bags.labels < 0].any()
    assert (holds(bags, 0) == 10).all()
    concept = bags.rows[bags.instance_labels == 1]
    wide = concept.std(axis=1) > 1.8
    assert 0.4 < wide.mean() < 0.6
    assert abs(concept[~wide].mean() - 1) < 0.05


def test_several_concepts_are_all_in_positive_bags_and_one_is_in_negative_ones():
    bags = assumption_test("several concepts", 400, "train", seed=1)
    mean = bags.rows.mean(axis=1).round()
    concept = bags.instance_labels == 1
    two, three = (np.add.reduceat(concept & (mean == value), bags.offsets[:-1]) for value in (2, 3))
    positive = bags.labels > 0
    assert two[positive].min() == three[positive].min() == 1
    assert two.max() == three.max() == 4
    assert (two + three)[~positive].tolist() == [1] * 200
    assert 60 < two[~positive].sum() < 140


def test_a_false_frequency_is_in_the_negative_bags_of_the_test_only():
    lengths = {}
    for part in ("train", "test"):
        bags = assumption_test("false frequency", 400, part, seed=1)
        lengths[part] = holds(bags, 1)[bags.labels < 0]
        assert not (bags.instance_labels == -1).any()
    assert set(lengths["train"]) == {1, 2}
    assert set(lengths["test"]) == set(range(35, 46))


@pytest.mark.parametrize("kind", WITNESSES)
def test_who_knows_the_rule_finds_the_witness(kind):
    # The best rule of each kind, with the directions read off the instances themselves: its share
    # bounds what a classifier can reach, and must leave room above what the benchmark asks for.
    bags = planted_witnesses(kind, 400, 50, seed=5)
    known = bags.instance_labels == 1
    np.testing.assert_array_equal(holds(bags, 1), bags.labels > 0)
    if kind == "shell":
        score = np.linalg.norm(bags.rows, axis=1)
    else:
        score = bags.rows @ (bags.rows[known].mean(axis=0) - bags.rows[~known].mean(axis=0))
    best = largest(score, bags)
    found = score[known] == best[bags.labels > 0]
    assert found.mean() >= 0.985
    assert roc_auc_score(bags.labels, best) >= 0.985


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: assumption_test("poison", 10, "train", 0), "there is no test 'poison'"),
        (lambda: assumption_test("single concept", 1, "train", 0), "too few"),
        (lambda: planted_witnesses("round", 10, 10, 0), "there is no kind 'round'"),
        (lambda: planted_witnesses("linear", 10, 3, 0), "too small"),
    ],
)
def test_what_makes_no_bags_is_one_sentence(call, sentence):
    with pytest.raises(InputError, match=sentence):
        call()
