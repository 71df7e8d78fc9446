"""The loss of a linear head as one operation: what the compiled passes multiply themselves and what
a library multiplies for them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from attsvm.attention import Attention
from attsvm.attention.linear import matrix_loss
from attsvm.base.errors import InputError
from attsvm.datasets import unit_sphere


@pytest.mark.parametrize("joint", [False, True])
def test_a_head_written_behind_the_back_of_torch_is_read_anew(joint: bool) -> None:
    """Scores of a fixed head are kept from call to call; a write through ``.data`` leaves no trace
    but the values.
    """
    data, v = unit_sphere(5, 4, 6, seed=[0, 1])
    model = Attention.cross(data, v, init=("uniform", 0), train_head=joint)
    sequences = model.sequences(data)
    model.loss(sequences)
    model.head.readout.data.mul_(-2.0)
    assert torch.equal(model.loss(sequences), model.loss(model.sequences(data)))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"keys": torch.ones(2, 3, 4, 4)}, r"keys has shape \(2, 3, 4, 4\)"),
        ({"values": torch.ones(2, 3, 5, 0)}, r"values has shape"),
        ({"labels": torch.ones(2, 4)}, "labels has shape"),
        ({"queries": torch.ones(1, 2, 3, 4)}, "queries has shape"),
        ({"labels": torch.ones(3, 3)}, r"of \[1, 2, 3\] instances for 2 runs"),
        ({"mask": torch.ones(2, 3, 5)}, "must be of truth values"),
        ({"mask": torch.zeros(2, 3, 5, dtype=torch.bool)}, "every query see a token"),
        ({"W": torch.ones(2, 4, 5)}, r"have shape \(2, 4, 5\); these sequences ask for"),
        ({"readout": torch.ones(3, 5, 1)}, r"the readout has shape \(3, 5\); give one, or 2"),
        ({"readout": torch.ones(2, 4, 1)}, r"the readout has shape \(2, 4\)"),
    ],
)
def test_the_compiled_pass_reads_only_what_fits(change: dict[str, Any], sentence: str) -> None:
    """It knows addresses alone, so nothing else would stop it."""
    data, v = unit_sphere(3, 5, 4, seed=[0, 1])
    model = Attention.cross(data, v)
    parts = {"W": torch.ones(2, 4, 4), "readout": torch.ones(2, 5, 1)}
    parts = {name: change.get(name, part).double() for name, part in parts.items()}
    fields = {name: each for name, each in change.items() if name not in parts}
    sequences = replace(model.sequences(data), **fields)
    with pytest.raises(InputError, match=sentence):
        matrix_loss(parts["W"], parts["readout"], True, sequences, model.objective)


def test_runs_shared_out_among_threads_have_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of seven runs of so many tokens that threads are worth their start."""
    data, v = unit_sphere(20, 50, 30, seed=list(range(7)))
    found = []
    for count in ("1", "3"):
        monkeypatch.setenv("ATTSVM_THREADS", count)
        model = Attention.cross(data, v, init=("uniform", 0), train_head=True)
        model.loss(data).sum().backward()
        found.append((model.W.grad, model.head.readout.grad))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
