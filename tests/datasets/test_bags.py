"""What people have as one table of instances, and what is refused in one sentence."""

from types import SimpleNamespace

import numpy as np
import pytest

from attsvm import AttentionData
from attsvm.base.errors import InputError
from attsvm.datasets.bags import as_bags, bag_labels

A = np.arange(6.0).reshape(3, 2)
B = np.array([[7.0, 8.0]])


class Record(dict):
    """A bag the way a TensorDict answers: ``keys``, ``get`` and items."""


def same(bags, *expected):
    assert bags.n == len(expected)
    for i, instances in enumerate(expected):
        np.testing.assert_array_equal(bags[i], instances)
    np.testing.assert_array_equal(bags.bag, np.repeat(np.arange(bags.n), bags.lengths))


def test_arrays_of_every_form_and_padded_sequences():
    for form in (list, tuple, lambda x: np.array(x, dtype=object)):
        same(as_bags(form([A, B])), A, B)
    same(as_bags(np.stack([A, A + 1])), A, A + 1)
    data = AttentionData.from_bags([A, B], [1.0, -1.0])
    bags = as_bags(data)
    assert as_bags(bags) is bags
    same(bags, A, B)
    np.testing.assert_array_equal(bags.labels, [1.0, -1.0])
    again = bags.data(bags.labels)
    np.testing.assert_array_equal(again.tokens, data.tokens)
    np.testing.assert_array_equal(again.mask, data.mask)


def test_a_table_with_bag_ids_in_order_of_appearance_and_rows_where_they_came_from():
    rows = np.arange(10.0).reshape(5, 2)
    bags = as_bags(rows, bag_ids=["z", "a", "z", "m", "a"])
    same(bags, rows[[0, 2]], rows[[1, 4]], rows[[3]])
    np.testing.assert_array_equal(bags.rows, rows[bags.source])


def test_bags_of_sawmil_and_torchmil_bring_their_labels():
    torch = pytest.importorskip("torch")
    pairs = ((A, 1), (B, 0))
    made = [SimpleNamespace(X=x, y=y, intra_bag_mask=np.ones(len(x))) for x, y in pairs]
    records = [Record(X=torch.tensor(x), Y=torch.tensor(y)) for x, y in pairs]
    tokens, mask = torch.zeros(2, 3, 2), torch.tensor([[1, 1, 1], [1, 0, 0]], dtype=torch.uint8)
    tokens[0], tokens[1, 0] = torch.tensor(A), torch.tensor(B[0])
    batch = Record(X=tokens, Y=torch.tensor([1, 0]), mask=mask)
    for given in (made, SimpleNamespace(bags=made), records, batch):
        bags = as_bags(given)
        same(bags, A, B)
        np.testing.assert_array_equal(bag_labels(None, bags), [1, 0])
    made[1].intra_bag_mask = np.zeros(1)
    with pytest.raises(InputError, match="bag 1 has an intra_bag_mask"):
        as_bags(made)


@pytest.mark.parametrize("form", [lambda x: x, lambda x: [x[0], x[1]], AttentionData])
def test_the_table_is_not_written_to(form):
    X = np.ones((2, 3, 2))
    bags = as_bags(form(X, [1.0, -1.0]) if form is AttentionData else form(X))
    for table in (bags, as_bags(X[0], bag_ids=[0, 0, 1])):
        assert not table.rows.flags.writeable
    assert X.flags.writeable


def test_taking_bags_keeps_their_instances_labels_and_sources():
    bags = as_bags(AttentionData.from_bags([A, B, A + 1], [1.0, -1.0, 1.0]))
    part = bags.take([2, 1])
    same(part, A + 1, B)
    np.testing.assert_array_equal(part.labels, [1.0, -1.0])
    np.testing.assert_array_equal(bags.rows[part.source], part.rows)
    same(bags.take(np.array([True, False, False])), A)


@pytest.mark.parametrize(
    ("X", "bag_ids", "sentence"),
    [
        ([], None, "X holds no bags"),
        ([A, np.empty((0, 2))], None, "bag 1 has no instances"),
        ([A, np.ones((2, 3))], None, "bag 1 has 3 features and bag 0 has 2"),
        ([A, np.array([[1.0, np.nan]])], None, "bag 1 holds nan in instance 0, feature 1"),
        ([A, np.ones(2)], None, r"bag 1 has shape \(2,\)"),
        ([np.ones(2)], None, r"bag 0 has shape \(2,\)"),
        ([A, np.array([["x", "y"]])], None, "bag 1 has dtype"),
        (A, None, "give the bag of each row as bag_ids"),
        (np.empty((2, 0, 3)), None, "bag 0 has no instances"),
        (np.empty((0, 2, 3)), None, "it must be bags x instances x features"),
        (A, [0, 1], r"bag_ids has shape \(2,\); it must be \(3,\)"),
        (A, [0.0, np.nan, 1.0], "bag_ids has no bag for row 1"),
        (A, ["a", None, "b"], "bag_ids has no bag for row 1"),
        (np.empty((0, 2)), [], "X holds no instances"),
        ([A, B], [0, 1], "X"),
        (np.empty((3, 0)), [0, 0, 1], "instances without features"),
        (Record(X=A), None, "give a list of bags"),
        (AttentionData(np.ones((2, 2, 1, 1)), np.ones((2, 2))), None, "leading axes"),
        (Record(X=np.ones((2, 3, 2)), mask=np.ones((2, 2))), None, r"mask has shape \(2, 2\)"),
        (3.0, None, "give a list of bags, each an array"),
    ],
)
def test_what_cannot_be_bags_is_one_sentence(X, bag_ids, sentence):
    with pytest.raises(InputError, match=sentence) as caught:
        as_bags(X, bag_ids)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("y", "sentence"),
    [
        (None, "give one label per bag"),
        ([1, 1, 1, 0], "one per instance; give one per bag"),
        ([1], "it must be"),
        ([1.0, np.nan], "no label for bag 1"),
        (np.array(["a", None], dtype=object), "no label for bag 1"),
    ],
)
def test_labels_that_do_not_fit_are_one_sentence(y, sentence):
    with pytest.raises(InputError, match=sentence):
        bag_labels(y, as_bags([A, B]))


def test_a_dictionary_of_bags_has_their_names():
    bags = as_bags({"b": np.ones((2, 3)), "a": np.zeros((1, 3), np.float16)})
    assert bags.names.tolist() == ["b", "a"]
    assert bags.lengths.tolist() == [2, 1]


def test_a_data_set_of_torch_gives_bags_and_labels():
    torch = pytest.importorskip("torch")

    class Slides(torch.utils.data.Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, i):
            return torch.full((i + 1, 2), float(i)), torch.tensor(i % 2)

    bags = as_bags(Slides())
    assert bags.lengths.tolist() == [1, 2, 3]
    assert bags.labels.tolist() == [0, 1, 0]
    tensors = torch.utils.data.TensorDataset(torch.ones(4, 5, 2))
    assert as_bags(tensors).lengths.tolist() == [5] * 4
