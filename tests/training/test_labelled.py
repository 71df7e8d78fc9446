"""Examples, their order, and the pieces of a step: every row once, padding trimmed, processes
disjoint.
"""

import numpy as np
import pytest
import torch
import training_problem as problem

from attsvm.errors import InputError
from attsvm.training import Examples, predict
from attsvm.training.labelled import Placed, Schedule, shuffled


def test_an_epoch_is_a_permutation_of_seed_and_epoch():
    steps = shuffled(53, 10, seed=4, epoch=2)
    assert [len(rows) for rows in steps] == [10, 10, 10, 10, 10, 3]
    order = np.concatenate(steps)
    assert sorted(order) == list(range(53))
    assert np.array_equal(order, np.concatenate(shuffled(53, 7, seed=4, epoch=2)))
    assert not np.array_equal(order, np.concatenate(shuffled(53, 10, seed=4, epoch=3)))
    assert not np.array_equal(order, np.concatenate(shuffled(53, 10, seed=5, epoch=2)))


@pytest.mark.parametrize("parts", [1, 3, 50])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_pieces_and_processes_share_out_the_rows_of_a_step(parts, size):
    placed = Placed(problem.examples(41), torch.device("cpu"))
    steps = shuffled(41, 8, 0, 0)
    schedules = [Schedule(placed, steps, parts, rank, size) for rank in range(size)]
    for number, rows in enumerate(steps):
        found = [piece for schedule in schedules for piece in schedule.pieces(number)]
        assert sorted(int(row) for index, _ in found for row in index) == sorted(rows)
        for index, longest in found:
            assert len(index)
            assert longest == placed.lengths[index.numpy()].max()


def test_a_piece_is_trimmed_to_its_longest_text():
    examples = problem.examples(40)
    placed = Placed(examples, torch.device("cpu"))
    rows = torch.tensor([k for k, length in enumerate(examples.lengths) if length <= 6][:4])
    (ids, mask), labels = placed.take(rows, int(examples.lengths[rows].max()))
    assert ids.shape == mask.shape == (4, 8)  # six tokens, rounded up to a multiple of eight
    assert torch.equal(mask.sum(dim=1), torch.as_tensor(examples.lengths)[rows])
    assert torch.equal(labels, examples.labels[rows])
    longest = torch.arange(40)
    assert placed.take(longest, int(examples.lengths.max()))[0][0].shape == (40, problem.LENGTH)


def test_predictions_come_in_the_order_of_the_examples():
    model, examples = problem.classifier().double().eval(), problem.examples(300)
    with torch.no_grad():
        torch.testing.assert_close(
            predict(model, examples), model(examples.inputs, examples.mask), rtol=1e-12, atol=1e-13
        )


def test_signs_are_classes():
    assert Examples(np.zeros((3, 2)), np.array([-1.0, 1.0, -1.0])).labels.tolist() == [0, 1, 0]


def test_the_digest_sees_everything():
    examples = problem.examples(20)
    assert examples.digest() == problem.examples(20).digest()
    others = (
        examples[:19],
        Examples(examples.inputs, 1 - examples.labels, examples.mask),
        Examples(examples.inputs, examples.labels),
        Examples(examples.inputs.int(), examples.labels, examples.mask),
    )
    assert len({examples.digest(), *(other.digest() for other in others)}) == 5


@pytest.mark.parametrize(
    ("inputs", "labels", "mask", "told"),
    [
        (np.zeros((2, 3)), [0, 1, 1], None, "one label per input"),
        (np.zeros((0, 3)), [], None, "one label per input"),
        (np.zeros((2, 3)), [0, 0.5], None, "not classes"),
        (np.zeros((2, 3)), [-1, 0], None, "not classes"),
        (np.zeros((2, 3)), [0, 1], np.ones((2, 2)), "one entry per token"),
        (np.zeros((2, 3)), [0, 1], [[1, 0, 1], [1, 1, 1]], "padding before a token"),
        (np.zeros((2, 3)), [0, 1], [[0, 0, 0], [1, 1, 1]], "padding before a token"),
    ],
)
def test_what_are_no_examples(inputs, labels, mask, told):
    with pytest.raises(InputError, match=told):
        Examples(inputs, np.array(labels), None if mask is None else np.array(mask))
