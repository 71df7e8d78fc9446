"""What a fitted model says of its selections, and the certificate of their margin."""

import tracemalloc

import numpy as np
import pytest
from made_bags import BOTH, make_bags

from attsvm import AttentionData
from attsvm.base.errors import InputError
from attsvm.datasets import planted_witnesses
from attsvm.norms import Frobenius, Schatten, parse_norm
from attsvm.sklearn import AttentionSVC, Limits, WitnessSVC
from attsvm.sklearn.explaining import certify
from attsvm.sklearn.stage import StageOptions

FEW = Limits(steps=300)


@pytest.fixture(scope="module")
def attention():
    bags, labels = make_bags()
    return AttentionSVC().fit(bags, labels), bags, labels


@pytest.fixture(scope="module")
def explained(attention):
    model, bags, labels = attention
    return model.explain(bags, labels, limits=Limits(steps=2000))


def test_the_margin_is_certified_and_the_direction_approaches_it(attention, explained):
    _, bags, _ = attention
    solution = explained.solution
    assert solution.status == "optimal"
    assert solution.gap <= solution.tol == 1e-9
    for bag, chosen, margin in zip(bags, explained.selected, explained.margins, strict=True):
        logits = bag @ solution.W[:, 0]
        ahead = logits[chosen] - np.delete(logits, chosen).max(initial=-np.inf)
        assert margin == pytest.approx(ahead / np.linalg.norm(solution.W), rel=1e-9)
    assert explained.margins.min() == pytest.approx(solution.margin, rel=1e-9)
    gaps = explained.trajectory.direction_gap(solution.W)
    assert gaps[-1] < 0.1 * gaps[1]
    assert "optimal" in repr(explained)


def test_the_marked_token_is_selected(attention, explained):
    _, bags, _ = attention
    marked = np.array([np.argmax(bag[:, 1]) for bag in bags])
    assert np.mean(explained.selected == marked) >= 0.95
    for i, rival in explained.support:
        assert rival != explained.selected[i]
        assert explained.margins[i] == pytest.approx(explained.solution.margin, rel=1e-4)


@pytest.fixture(scope="module")
def enlarged(attention):
    """The same bags in another unit, a power of two: the same computation."""
    _, bags, labels = attention
    large = [1024.0 * bag for bag in bags]
    return AttentionSVC().fit(large, labels), large


@pytest.mark.parametrize("norm", ["fro", "nuc", "spec", "lp:1.75", Schatten(3)])
def test_the_unit_of_the_tokens_does_not_matter_in_any_norm(attention, enlarged, norm):
    model, bags, labels = attention
    other, large = enlarged
    first = model.explain(bags[:24], labels[:24], norm=norm, limits=Limits(steps=150))
    second = other.explain(large[:24], labels[:24], norm=norm, limits=Limits(steps=150))
    known = norm if isinstance(norm, Schatten) else parse_norm(norm)
    assert first.solution.geometry == known
    assert np.array_equal(first.selected, second.selected)
    np.testing.assert_allclose(second.weights.W, first.weights.W / 1024.0, rtol=1e-9)
    assert second.solution.margin == pytest.approx(1024.0 * first.solution.margin, rel=1e-6)


def test_the_unit_of_the_queries_does_not_matter_either():
    bags, labels = make_bags(n=20)
    first, second = (
        AttentionSVC(query="first", penalty=1e-2)
        .fit([c * bag for bag in bags], labels)
        .explain([c * bag for bag in bags], labels, limits=Limits(steps=100))
        for c in (1.0, 1024.0)
    )
    np.testing.assert_allclose(second.weights.W, first.weights.W / 1024.0**2, rtol=1e-9)
    assert np.array_equal(first.selected, second.selected)


def test_names_of_one_norm_are_one_norm(attention):
    model, bags, labels = attention
    found = [model.explain(bags, labels, norm=n, limits=FEW) for n in ("fro", "lp:2", Schatten(2))]
    assert len({one.weights.W.tobytes() for one in found}) == 1
    assert len({type(one.solution.geometry) for one in found}) == 1


def test_without_labels_it_is_what_the_model_predicts(attention):
    model, bags, _ = attention
    own = model.explain(bags, limits=FEW)
    told = model.explain(bags, model.predict(bags), limits=FEW)
    assert own.weights.W.tobytes() == told.weights.W.tobytes()


@BOTH
def test_repeated_instances_are_left_out(kind):
    bags, labels = make_bags(n=20)
    doubled = [np.vstack([bag, bag[:1]]) for bag in bags]
    model = kind(penalty=1e-2).fit(bags, labels)
    first, second = (model.explain(given, labels, limits=FEW) for given in (bags, doubled))
    assert second.solution.margins.m == first.solution.margins.m
    assert second.solution.status == first.solution.status == "optimal"
    assert all(t < len(bag) for t, bag in zip(second.selected, bags, strict=True))


def test_a_selection_that_no_weights_make_gets_the_soft_margin():
    generator = np.random.default_rng(0)
    bags = [
        generator.permutation([[0.0], [1.0]]) + 0.01 * generator.normal(size=(2, 1))
        for _ in range(40)
    ]
    labels = np.where(np.arange(40) % 2, 1.0, -1.0)
    data = AttentionData.from_bags(bags, labels, np.ones((40, 1)))
    # Training itself can only end on selections that some weights make; the first token of each bag
    # is not one of them.
    first = np.zeros(40, dtype=np.int64)
    solution, hard_status = certify(data, first, Frobenius(), Limits(slack=0.5))
    assert hard_status == "infeasible"
    assert solution.status == "optimal"
    assert solution.slack == 0.5
    values = solution.margins(solution.W)
    np.testing.assert_allclose(solution.slacks, np.maximum(1.0 - values, 0.0), atol=1e-9)
    # One unknown: the soft-margin optimum of a scalar is where the subgradient of W^2/2 + C sum (1
    # - a W)_+ changes sign.
    a = solution.margins.differences[:, 0]
    objective = [
        0.5 * w**2 + 0.5 * np.maximum(1.0 - a * w, 0.0).sum() for w in np.linspace(-3, 3, 6001)
    ]
    W = float(solution.W[0, 0])
    assert 0.5 * W**2 + 0.5 * np.maximum(1.0 - a * W, 0.0).sum() <= min(objective) + 1e-9


def test_the_margin_of_witnesses_is_certified_with_a_null_token():
    train = planted_witnesses("linear", 30, 8, 0, d=5)
    found = WitnessSVC().fit(train, train.labels).explain(train)
    solution = found.solution
    assert solution.status == "optimal"
    assert solution.slack is None  # else the margins below are not promised
    w = solution.W[:, 0]
    unit = 4.0 * np.sqrt((train.rows**2).sum(axis=1).mean())
    scores = np.split(train.rows @ w[:-1] + unit * w[-1], train.offsets[1:-1])
    for bag, label, selected in zip(scores, train.labels, found.selected, strict=True):
        if label < 0:
            assert bag.max() <= -1 + 1e-8
        else:
            assert bag[selected] >= 1 - 1e-8
            assert bag[selected] - np.delete(bag, selected).max() >= 1 - 1e-8


@BOTH
def test_positions_are_those_of_the_sequences_given(kind):
    train = planted_witnesses("linear", 30, 5, 0, d=5)
    plain = train.data(train.labels)
    tokens = np.repeat(plain.tokens, 2, axis=1)  # a masked copy in front of every instance
    mask = np.tile([False, True], (train.n, 5))
    spread = AttentionData(tokens, plain.labels, np.ones((train.n, 1)), mask)
    model = kind(penalty=1e-2).fit(spread)
    known = kind(penalty=1e-2).fit(train, plain.labels)
    first = known.explain(train, plain.labels, limits=FEW)
    second = model.explain(spread, limits=FEW)
    assert np.array_equal(second.selected, 2 * first.selected + 1)
    assert np.array_equal(model.select(spread), 2 * known.select(train) + 1)
    chosen = [part[0] for part in model.evidence(spread).instances]
    assert np.array_equal(chosen, model.select(spread))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"norm": "euclid"}, "unknown norm 'euclid'"),
        ({"norm": "lp:1.001"}, r"fit trains for lp:1\.001 by mirror descent"),
        ({"norm": "lp:10", "limits": Limits(lr=1e-90)}, "in the dual of mirror descent"),
        ({"y": ["cat"] * 59 + ["cow"]}, "y holds cow, which is none of the classes of the fit"),
    ],
)
def test_what_cannot_be_explained_is_one_sentence(attention, options, sentence):
    model, bags, _ = attention
    with pytest.raises(InputError, match=sentence):
        model.explain(bags, **options)


def test_two_heads_have_no_single_selection():
    bags, labels = make_bags(24)
    model = AttentionSVC(heads=2, penalty=1e-2).fit(bags, labels)
    with pytest.raises(InputError, match="explain needs one head; there are 2"):
        model.explain(bags)


@BOTH
@pytest.mark.filterwarnings("ignore:bags left out are not predicted")
def test_single_instances_select_nothing(kind):
    bags, labels = make_bags(12)
    single = [bag[:1] for bag in bags]
    with pytest.raises(InputError, match="each of the 12 sequences has a single token"):
        kind(penalty=1e-2).fit(single, labels).explain(single)


@pytest.mark.parametrize(
    ("limit", "sentence"),
    [
        ({"steps": 0}, "steps is 0"),
        ({"lr": 1e200}, "lr is 1e.200"),
        ({"lr": -1.0}, "lr is -1.0"),
        ({"slack": 0.0}, "slack is 0.0"),
        ({"tol": float("nan")}, "tol is nan"),
        ({"seconds": -1.0}, "seconds is -1.0"),
    ],
)
def test_limits_out_of_range_are_refused(limit, sentence):
    with pytest.raises(InputError, match=sentence):
        Limits(**limit)


@pytest.mark.parametrize(
    ("across", "status"), [(0.0, "infeasible"), (1e-15, "almost infeasible"), (0.5, "optimal")]
)
def test_a_soft_margin_says_what_the_hard_one_was(across, status):
    """Two rivals of one token, opposite but for a part ``across``."""
    u, v = np.linalg.qr(np.random.default_rng(0).standard_normal((4, 4)))[0][:2]
    tokens = [[np.zeros(4), -u - across * v, u - across * v]]
    data = AttentionData(tokens, [1.0], np.ones((1, 1)))
    solution, hard_status = certify(data, np.array([0]), Frobenius(), Limits())
    assert hard_status == status
    assert (solution.slack is None) == (status == "optimal")
    assert solution.status == "optimal"


def test_memory_holds_one_copy_of_the_sequences_while_attention_is_trained():
    bags = np.random.default_rng(0).normal(size=(60, 200, 24))
    labels = np.arange(60) % 2
    bags[:, :, 0] += labels[:, None]
    model = AttentionSVC(penalty=1e-2).fit(list(bags), labels)
    peaks = []

    def progress(name: str, done: int, total: int) -> None:
        if name == "selection":
            peaks.append(tracemalloc.get_traced_memory()[1])

    limits = Limits(steps=2, seconds=1.0)
    model.explain(list(bags[:9]), labels[:9], limits=limits)  # modules take memory, too
    tracemalloc.start()
    try:
        model.explain(list(bags), labels, limits=limits, stage=StageOptions(progress=progress))
    finally:
        tracemalloc.stop()
    # the table of the bags, the sequences, and while these are centred three arrays more
    assert peaks[-1] <= 5.5 * bags.nbytes
