"""What people bring beside bags: weights, names, patients, frames; and what they must be told."""

import warnings

import numpy as np
import pytest
from made_bags import BOTH, make_bags
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GroupKFold, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from attsvm.base.errors import InputError
from attsvm.datasets import planted_witnesses
from attsvm.datasets.bags import as_bags, bag_labels
from attsvm.sklearn import AttentionSVC, BagContext, BagFeatures, ChanceWarning, WitnessSVC
from sklearn import config_context


class Column:
    """A column the way pandas and polars answer."""

    ndim = 1

    def __init__(self, values):
        self.values = values

    def to_numpy(self):
        return np.asarray(self.values)


class Frame:
    """A data frame the way pandas and polars answer."""

    def __init__(self, **columns):
        self.columns, self._values = list(columns), columns

    def __getitem__(self, name):
        return Column(self._values[name])

    def __len__(self):
        return len(next(iter(self._values.values())))


class Series:
    """Values with an index, the way pandas answers."""

    def __init__(self, values, index):
        self._values, self.index = np.asarray(values), index

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self._values, dtype)


def planted(n=60, seed=0):
    bags = planted_witnesses("linear", n, 6, seed, d=4)
    return list(bags), (bags.labels > 0).astype(int)


@BOTH
def test_a_bag_of_weight_zero_is_not_there(kind):
    bags, labels = planted()
    plain = kind().fit(bags, labels)
    junk = [1e3 * np.abs(bag) for bag in bags]  # of the other class, and in another unit
    model = kind().fit(bags + junk, [*labels, *(1 - labels)], sample_weight=np.repeat([1, 0], 60))
    assert model.predictor_.penalty == plain.predictor_.penalty
    np.testing.assert_allclose(model.predict_proba(bags), plain.predict_proba(bags), atol=1e-3)
    np.testing.assert_allclose(model.margins_[:60], plain.margins_, rtol=1e-2)
    assert np.isnan(model.predictor_.left_out[60:]).all()


@BOTH
def test_a_bag_of_weight_two_is_two_bags(kind):
    bags, labels = planted()
    labels[:6] = 1 - labels[:6]  # so that there is something to weigh
    fold = np.arange(60) % 5
    pairs = [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(5)]
    twice = [tuple(np.r_[at, 60 + at[at < 20]] for at in pair) for pair in pairs]
    weights = np.where(np.arange(60) < 20, 2.0, 1.0)
    weighted = kind(cv=pairs).fit(bags, labels, sample_weight=weights)
    repeated = kind(cv=twice).fit(bags + bags[:20], [*labels, *labels[:20]])
    assert weighted.predictor_.penalty == repeated.predictor_.penalty
    assert weighted.calibration_ == pytest.approx(repeated.calibration_, rel=1e-2)
    np.testing.assert_allclose(
        weighted.predict_proba(bags), repeated.predict_proba(bags), atol=1e-3
    )


@BOTH
@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        ({"cat": 0.0}, "class_weight of class cat is 0.0; it must be positive and finite"),
        ({"cat": np.nan}, "class_weight of class cat is nan"),
        ({"dog": np.inf}, "class_weight of class dog is inf"),
        ({"dog": -1}, "class_weight of class dog is -1"),
        ({"dog": "2"}, "class_weight of class dog is '2'"),
        ({"cow": 1.0}, "class_weight names class 'cow', which y does not hold"),
    ],
)
def test_class_weights_that_are_none_are_one_sentence(kind, weights, sentence):
    with pytest.raises(InputError, match=sentence):
        kind(penalty=1e-2, class_weight=weights).fit(*make_bags(12))


@BOTH
def test_a_class_without_weight_is_refused(kind):
    bags, labels = make_bags(12)
    with pytest.raises(InputError, match="every bag of class dog has sample_weight 0"):
        kind(penalty=1e-2).fit(bags, labels, sample_weight=(labels == "cat").astype(float))
    one = (labels == "cat") | (np.arange(12) == 1)
    with pytest.raises(InputError, match="class dog has one bag"):
        kind(penalty=1e-2).fit(bags, labels, sample_weight=one.astype(float))


@BOTH
def test_balanced_classes_weigh_the_same_whatever_is_absent(kind):
    bags, labels = make_bags(40)
    used = np.r_[np.flatnonzero(labels == "cat")[:5], np.flatnonzero(labels == "dog")]
    weights = np.isin(np.arange(40), used).astype(float)
    some = kind(penalty=1e-2, class_weight="balanced").fit(
        [bags[i] for i in np.sort(used)], labels[np.sort(used)]
    )
    all_of = kind(penalty=1e-2, class_weight="balanced").fit(bags, labels, sample_weight=weights)
    np.testing.assert_allclose(
        all_of.decision_function(bags), some.decision_function(bags), rtol=1e-3, atol=1e-3
    )


def of_patients(n=60, patients=12, seed=0):
    """Bags whose labels are those of their patients, and nothing but a patient's signature in each
    of its instances.
    """
    generator = np.random.default_rng(seed)
    patient = np.arange(n) % patients
    signature = 3.0 * generator.normal(size=(patients, 40))
    bags = [signature[k] + generator.normal(size=(4, 40)) for k in patient]
    return bags, generator.permutation(np.arange(patients) % 2)[patient], patient


@BOTH
def test_patients_are_left_out_as_one(kind):
    bags, labels, patients = of_patients()
    leaking = kind(penalty=1e-2).fit(bags, labels)
    assert np.mean(leaking.margins_ > 0) >= 0.9  # what nobody may believe
    with pytest.warns(ChanceWarning):
        apart = kind(penalty=1e-2).fit(bags, labels, groups=patients)
    assert np.mean(apart.margins_ > 0) <= 0.75
    sign = np.where(labels > 0, 1.0, -1.0)
    told = np.logaddexp(0.0, -apart.calibration_ * apart.margins_).mean()
    assert told <= 0.75
    np.testing.assert_allclose(sign * apart.predictor_.left_out[:, 0], apart.margins_)


@BOTH
def test_splits_are_those_of_a_splitter_or_of_the_caller(kind):
    bags, labels, patients = of_patients(n=36)
    splits = list(GroupKFold(3).split(bags, labels, patients))
    models = [kind(penalty=1e-2, cv=cv) for cv in (GroupKFold(3), splits)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ChanceWarning)
        first, second = (model.fit(bags, labels, groups=patients) for model in models)
    np.testing.assert_array_equal(first.margins_, second.margins_)
    with pytest.raises(InputError, match=r"cv cannot split these bags: .*'groups'"):
        kind(cv=GroupKFold(3)).fit(bags, labels)
    with pytest.raises(InputError, match="fold 0 of cv fits to bags of fewer classes"):
        kind(cv=[(np.flatnonzero(labels > 0), np.flatnonzero(labels <= 0))]).fit(bags, labels)
    with pytest.raises(InputError, match="all bags of a class belong to the group a"):
        kind().fit(bags, labels, groups=np.where(labels > 0, "a", np.arange(36).astype(str)))
    with pytest.raises(InputError, match=r"one per instance; .* the bag of each row is bag_ids"):
        kind().fit(bags, labels, groups=np.zeros(sum(map(len, bags))))


def test_groups_and_weights_are_routed():
    bags, labels, patients = of_patients()
    model = WitnessSVC(penalty=1e-2)
    with config_context(enable_metadata_routing=True), warnings.catch_warnings():
        warnings.simplefilter("ignore", ChanceWarning)
        asked = clone(model).set_fit_request(groups=True, sample_weight=True)
        asked.set_score_request(sample_weight=True)
        result = cross_validate(
            make_pipeline(BagFeatures(StandardScaler()), asked),
            bags,
            labels,
            cv=GroupKFold(3),
            params={"groups": patients, "sample_weight": np.ones(60)},
            return_estimator=True,
            error_score="raise",
        )
    for fitted, (train, _) in zip(
        result["estimator"], GroupKFold(3).split(bags, labels, patients), strict=True
    ):
        again = clone(model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ChanceWarning)
            scaled = fitted[:-1].transform([bags[i] for i in train])
            again.fit(scaled, labels[train], groups=patients[train])
        np.testing.assert_array_equal(fitted[-1].margins_, again.margins_)


def frame(rows, *names):
    return Frame(**{name: rows[:, j] for j, name in enumerate(names)})


STEPS = (
    lambda: AttentionSVC(penalty=1e-2),
    lambda: WitnessSVC(penalty=1e-2),
    lambda: BagFeatures(StandardScaler()),
    lambda: BagContext(n_components=5),
)


@pytest.mark.parametrize("make", STEPS)
def test_columns_are_read_by_name(make):
    bags, labels = planted(20)
    frames = [frame(bag, "a", "b", "c", "d") for bag in bags]
    model = make().fit(frames, labels)
    assert model.feature_names_in_.tolist() == ["a", "b", "c", "d"]
    call = model.predict if hasattr(model, "predict") else model.transform
    call(frames)
    with pytest.raises(InputError, match=r"should match .* in the same order; 'b'"):
        call([frame(bag[:, [1, 0, 2, 3]], "b", "a", "c", "d") for bag in bags])
    with pytest.raises(InputError, match=r"should match .* 'd' is the first"):
        call([frame(bag, "a", "b", "c", "e") for bag in bags])
    with pytest.warns(UserWarning, match=r"X has no feature names, but .* was fitted with"):
        call(bags)
    assert not hasattr(model.fit(bags, labels), "feature_names_in_")
    with pytest.warns(UserWarning, match=r"X has feature names, but .* was fitted without"):
        call(frames)


def test_numeric_frames_are_tables_whatever_holds_their_numbers():
    rows = np.arange(8.0).reshape(4, 2)
    table = Frame(
        yes=np.array([True, False, True, True]),
        number=np.array([0.5, 1.5, 2.5, 3.5], dtype=object),
        whole=np.array([1, 2, 3, 4], dtype=np.int32),
    )
    bags = as_bags(table, bag_ids=[0, 0, 1, 1])
    np.testing.assert_array_equal(bags.rows[:, 0], [1.0, 0.0, 1.0, 1.0])
    np.testing.assert_array_equal(bags.rows[:, 1], [0.5, 1.5, 2.5, 3.5])
    assert as_bags(rows.astype(object), bag_ids=[0, 0, 1, 1]).rows.tolist() == rows.tolist()
    with pytest.raises(InputError, match="column 'word' of X has dtype"):
        as_bags(Frame(word=np.array(["1.5", "2"], dtype=object)), bag_ids=[0, 1])
    with pytest.raises(InputError, match="bag 1 holds nan"):
        as_bags(Frame(a=np.array([1.0, None], dtype=object)), bag_ids=[0, 1])
    with pytest.raises(InputError, match="X is a table of 4 rows; give the bag of each row"):
        as_bags(table)
    with pytest.raises(InputError, match="bag 1 and bag 0 have different columns"):
        as_bags([frame(rows, "a", "b"), frame(rows, "b", "a")])


@pytest.mark.parametrize("make", [lambda X: ([X, X], None), lambda X: (X, [0, 1, 1])])
def test_sparse_rows_say_toarray(make):
    X, bag_ids = make(sparse.csr_array(np.eye(3)))
    with pytest.raises(InputError, match=r"is a sparse matrix; give .*\.toarray\(\)"):
        as_bags(X, bag_ids)


def test_masked_instances_are_left_out():
    X = np.ma.masked_array(np.arange(12.0).reshape(2, 3, 2), mask=False)
    X[1, 1:] = np.ma.masked
    assert [len(bag) for bag in as_bags(X)] == [3, 1]
    X[0, 0, 0] = np.ma.masked
    with pytest.raises(InputError, match="X masks single features of an instance"):
        as_bags(X)
    with pytest.raises(InputError, match="bag 0 holds masked values"):
        as_bags([X[0]])


def test_bags_are_a_sequence():
    bags = planted_witnesses("linear", 40, 5, 0, d=3)
    assert len(bags) == 40 == len(list(bags))
    np.testing.assert_array_equal(bags[-1], bags[39])
    assert bags[-3:].n == 3
    np.testing.assert_array_equal(bags[5:1:-2][1], bags[3])
    np.testing.assert_array_equal(bags[[4, 2]].labels, bags.labels[[4, 2]])
    assert bags[bags.labels > 0].n == 20
    with pytest.raises(IndexError, match="bag 40 of 40"):
        bags[40]
    scores = cross_val_score(WitnessSVC(penalty=1e-2), bags, bags.labels, cv=2)
    assert scores.mean() >= 0.8


def test_labels_are_aligned_by_their_index():
    rows, ids = np.arange(6.0)[:, None], ["z", "a", "z", "m", "a", "m"]
    bags = as_bags(rows, bag_ids=ids)
    assert bags.names.tolist() == ["z", "a", "m"]
    labels = Series([1, 2, 3], ["a", "m", "z"])  # as of groupby, sorted
    assert bag_labels(labels, bags).tolist() == [3, 1, 2]
    assert bag_labels(np.array([1, 2, 3]), bags).tolist() == [1, 2, 3]
    with pytest.raises(InputError, match="the index of y does not hold the bag 'z'"):
        bag_labels(Series([1, 2, 3], ["a", "m", "x"]), bags)
    with pytest.raises(InputError, match="the index of y holds a bag twice"):
        bag_labels(Series([1, 2, 3, 4], ["a", "m", "z", "z"]), bags)
    numbered = as_bags(rows, bag_ids=[2, 0, 2, 1, 0, 1])
    assert bag_labels(Series([5, 6, 7], [0, 1, 2]), numbered).tolist() == [7, 5, 6]


def test_labels_of_pandas_are_aligned_or_refused():
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    table = pd.DataFrame({"x": np.arange(6.0), "id": list("zazmam"), "y": [1, 0, 1, 2, 0, 2]})
    bags = as_bags(table[["x"]], bag_ids=table["id"])
    assert bag_labels(table.groupby("id")["y"].first(), bags).tolist() == [1, 0, 2]
    assert bag_labels(pd.Series([7, 8, 9]), bags).tolist() == [7, 8, 9]  # numbered from 0 on
    numbered = as_bags(table[["x"]], bag_ids=[2, 0, 2, 1, 0, 1])
    with pytest.raises(InputError, match="y is numbered from 0 to 2, and so are the bags"):
        bag_labels(pd.Series([7, 8, 9]), numbered)


@pytest.mark.parametrize("container", ["pandas", "polars"])
def test_frames_and_outputs_of_pandas_and_polars(container):
    pytest.importorskip("pandas", reason="pandas is not installed")
    pytest.importorskip("polars", reason="polars is not installed")
    bags, labels = planted(30)
    pipeline = make_pipeline(BagFeatures(StandardScaler()), BagContext(), AttentionSVC(heads=0))
    expected = clone(pipeline).fit(bags, labels).decision_function(bags)
    with config_context(transform_output=container):
        inside = clone(pipeline).fit(bags, labels).decision_function(bags)
    output = clone(pipeline).set_output(transform=container).fit(bags, labels)
    np.testing.assert_allclose(inside, expected)
    np.testing.assert_allclose(output.decision_function(bags), expected)


def test_nullable_and_arrow_columns_of_pandas_are_numbers():
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    table = pd.DataFrame({"a": [1.5, 2.5], "b": [True, False], "c": [3, 4]})
    for dtype in ("Float64", "double[pyarrow]", "float32", object):
        frame = table.assign(a=table["a"].astype(dtype))
        bags = as_bags(frame, bag_ids=[0, 1])
        assert bags.rows.tolist() == [[1.5, 1.0, 3.0], [2.5, 0.0, 4.0]]
        assert bags.feature_names.tolist() == ["a", "b", "c"]
    with pytest.raises(InputError, match="bag 1 holds nan"):
        as_bags(table.assign(a=pd.array([1.0, None], "Float64")), bag_ids=[0, 1])


def test_fit_transform_takes_bag_ids():
    bags, labels = planted(12)
    rows, ids = np.concatenate(bags), np.repeat(np.arange(12), 6)
    for step in (BagFeatures(StandardScaler()), BagContext(n_components=5)):
        together = clone(step).fit_transform(rows, labels, bag_ids=ids)
        apart = clone(step).fit(rows, bag_ids=ids).transform(rows, bag_ids=ids)
        np.testing.assert_array_equal(together.rows, apart.rows)
        assert together.names.tolist() == list(range(12))


@BOTH
def test_a_model_at_chance_is_told_once(kind):
    bags, labels = planted()
    scrambled = np.random.default_rng(3).permutation(labels)
    with pytest.warns(ChanceWarning, match="not predicted better than by chance") as told:
        kind().fit(bags, scrambled)
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kind().fit(bags, labels)


@pytest.mark.parametrize("pooling", ["soft", "hard"])
def test_contributions_of_witnesses_are_ordered_as_their_values(pooling):
    bags, labels = planted()
    model = WitnessSVC(pooling=pooling).fit(bags, labels)
    values = model.decision_function_instances(bags)
    for value, part, bag in zip(values, model.contributions(bags), bags, strict=True):
        assert np.argmax(part) == np.argmax(value)
        assert np.diff(part[np.argsort(value)]).min() >= -1e-12
        # without the likeliest witness the bag falls by more than its even share
        rest = model.decision_function([np.delete(bag, np.argmax(value), axis=0)])[0]
        fall = model.decision_function([bag])[0] - rest
        second = np.sort(part)[-2]
        assert part.max() - second <= fall + 1e-9


def test_the_probability_of_an_instance_is_its_share_with_the_null_token():
    bags, labels = planted()
    model = WitnessSVC().fit(bags, labels)
    layer = model.predictor_.layer
    for bag, shares, value in zip(
        bags, model.instance_probability(bags), model.decision_function(bags), strict=True
    ):
        powers = np.exp(bag @ layer.w[0] + layer.intercept[0])
        np.testing.assert_allclose(shares, powers / (1.0 + powers.sum()), rtol=1e-9)
        assert shares.sum() == pytest.approx(1.0 / (1.0 + np.exp(-value)))


@pytest.mark.parametrize(
    "model",
    [
        WitnessSVC(penalty=1e-3),
        WitnessSVC(penalty=1e-3, pooling="hard"),
        AttentionSVC(penalty=1e-3),
        AttentionSVC(penalty=1e-3, pooling="hard"),
        AttentionSVC(penalty=1e-3, heads=0),
    ],
)
def test_the_deciding_set_is_the_smallest(model):
    generator = np.random.default_rng(0)
    labels = np.arange(60) % 2
    bags = [generator.normal(size=(5, 3)) for _ in labels]
    for bag, label in zip(bags, labels, strict=True):
        bag[: 2 if label else 0, 0] += 4.0  # two witnesses
    model = model.fit(bags, labels)
    calls, sizes = model.predict(bags), set()
    for bag, call, chosen in zip(bags, calls, model.deciding_set(bags), strict=True):
        sizes.add(len(chosen))
        codes = range(1, 2**5 - 1)  # every set of instances that leaves one
        away = [np.flatnonzero([code >> t & 1 for t in range(5)]) for code in codes]
        others = model.predict([np.delete(bag, each, axis=0) for each in away])
        changing = [len(each) for each, other in zip(away, others, strict=True) if other != call]
        if isinstance(model, WitnessSVC) and call == 0:
            assert not changing
            assert len(chosen) == 0
        else:
            assert len(chosen) == min(changing, default=5)
            rest = np.delete(bag, chosen, axis=0)
            assert len(rest) == 0 or model.predict([rest])[0] != call
    assert len(sizes) > 1


def test_deciding_sets_are_of_two_classes_and_one_head():
    bags, labels = make_bags(24)
    model = AttentionSVC(heads=2, penalty=1e-2).fit(bags, labels)
    with pytest.raises(InputError, match="deciding_set needs two classes and one head"):
        model.deciding_set(bags)


def slides(count=16, length=90, d=16):
    """Bags of different length in single precision, a few instances of the positive ones tumour."""
    generator = np.random.default_rng(0)
    labels = np.arange(count) % 2
    bags = [generator.normal(size=(length + 7 * k, d)).astype(np.float32) for k in range(count)]
    for bag, label in zip(bags, labels, strict=True):
        bag[: 6 * label, 0] += 5.0
    return bags, labels


@BOTH
def test_the_fit_is_the_same_wherever_instances_are(tmp_path, kind):
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    bags, labels = slides(count=8, length=30)
    table, lengths = np.concatenate(bags), [len(bag) for bag in bags]
    ids = np.repeat(np.arange(len(bags)), lengths)
    table.tofile(tmp_path / "rows")
    with h5py.File(tmp_path / "bags.h5", "w") as file:
        forms = {
            "list": (bags, None),
            "memmap": (np.memmap(tmp_path / "rows", np.float32, "r").reshape(-1, 16), ids),
            "h5py": ([file.create_dataset(str(k), data=bag) for k, bag in enumerate(bags)], None),
            "zarr": (zarr.array(table, store=tmp_path / "rows.zarr"), ids),
        }
        models = {
            name: kind(penalty=1e-3, cv=2).fit(X, labels, bag_ids=bag_ids)
            for name, (X, bag_ids) in forms.items()
        }
        values = {
            name: models[name].decision_function(X, bag_ids=bag_ids)
            for name, (X, bag_ids) in forms.items()
        }
    for name, model in models.items():
        assert model.convex_steps_ == models["list"].convex_steps_
        np.testing.assert_allclose(values[name], values["list"], rtol=1e-9)
    half = kind(penalty=1e-3, cv=2).fit([bag.astype(np.float16) for bag in bags], labels)
    np.testing.assert_allclose(
        half.decision_function(bags), values["list"], atol=0.02 * np.abs(values["list"]).max()
    )


@pytest.mark.parametrize(
    "model",
    [
        WitnessSVC(penalty=1e-3),
        AttentionSVC(penalty=1e-2, cv=2),
        AttentionSVC(heads=0),
    ],
)
def test_a_fit_of_long_bags_needs_a_fraction_of_their_memory(model):
    import tracemalloc

    bags, labels = slides(count=40, length=900, d=32)
    for bag, label in zip(bags, labels, strict=True):
        bag[:, 1] += label  # so that the mean tells the classes apart, too
    tracemalloc.start()
    try:
        model.fit(bags, labels)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= 0.8 * sum(bag.nbytes for bag in bags)
    assert model.convex_steps_[-1].status == "optimal"
    assert model.score(bags, labels) >= 0.9
