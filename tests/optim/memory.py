"""Compiled passes under arrays that do not fit: run as ``memory.py NAME SEED ROUNDS`` by
``test_memory.py``, because what it looks for ends a process.

Every array ends where a page begins that nobody may touch, so that one number too many is a crash
and no luck.
"""

from __future__ import annotations

import ctypes
import dataclasses
import mmap
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from attsvm.attention import Attention, Logistic
from attsvm.attention.exact_softmax import attend, query_logits
from attsvm.attention.linear import linear_loss, matrix_loss
from attsvm.datasets import unit_sphere
from attsvm.datasets.attention_data import AttentionData
from attsvm.optim import MirrorDescent, SteepestDescent
from attsvm.optim.native_steps import mirror_step, normalized_step
from attsvm.optim.powers import mirror_exponents
from attsvm.theory.next_token import Problem, StepRule, attention_stage
from attsvm.theory.sentences import bipartite
from attsvm.training.native_loop import NativeLoop, unsupported

Array = np.ndarray[Any, Any]
_PAGE = mmap.PAGESIZE
_LIBRARY = ctypes.CDLL(None, use_errno=True)
_KEPT: list[Any] = []


def guarded(array: Any) -> Array:
    """A copy that ends at a page without permissions."""
    array = np.asarray(array)
    pages = -(-max(array.nbytes, 1) // _PAGE)
    block = mmap.mmap(-1, (pages + 1) * _PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(block))
    _LIBRARY.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    assert _LIBRARY.mprotect(start + pages * _PAGE, _PAGE, 0) == 0
    _KEPT.append(block)
    copy = np.frombuffer(block, array.dtype, array.size, pages * _PAGE - array.nbytes)
    copy = copy.reshape(array.shape)
    copy[...] = array
    return copy


def spoiled(draw: np.random.Generator, array: Array) -> Array:
    """The array with another shape, kind or order of memory."""
    if array.ndim == 0:
        return guarded(np.stack([array] * 2))
    axis = int(draw.integers(array.ndim))
    length = array.shape[axis]
    every = [slice(None)] * axis
    changes: list[Callable[[], Any]] = [
        lambda: guarded(np.delete(array, -1, axis)),
        lambda: guarded(np.take(array, range(-(-length // 2)), axis)),
        lambda: guarded(np.take(array, [0], axis)),
        lambda: guarded(np.take(array, [], axis)),
        lambda: guarded(np.concatenate([array, array], axis)),
        lambda: guarded(array.astype(draw.choice(["f4", "c16"]))),
        lambda: guarded(np.ones(draw.integers(1, 4, array.ndim))),
        lambda: guarded(np.repeat(array, 2, axis))[(*every, slice(None, None, 2))],
        lambda: guarded(array.swapaxes(0, -1)).swapaxes(0, -1),
        lambda: array[None],
        lambda: array.reshape(-1),
        lambda: array.swapaxes(0, -1),
        lambda: np.flip(array, axis),
        lambda: np.broadcast_to(np.take(array, [0], axis), array.shape),
    ]
    return changes[draw.integers(len(changes))]()


def tensor(array: Array) -> torch.Tensor:
    if any(step < 0 for step in array.strides) or not array.flags.writeable:
        array = guarded(array)
    return torch.from_numpy(array)


def problem_data(draw: np.random.Generator) -> tuple[AttentionData, Array]:
    return unit_sphere(3, 5, 4, seed=[int(draw.integers(9)) for _ in range(2)])


def sequences_pass(draw: np.random.Generator, spoil: Callable[[Array], Array]) -> None:
    data, v = problem_data(draw)
    model = Attention.cross(data, v)
    good = model.sequences(data)
    fields = {
        name: tensor(spoil(guarded(getattr(good, name))))
        for name in ("values", "keys", "queries", "labels", "mask")
    }
    bad = dataclasses.replace(good, **fields)
    readout = tensor(spoil(guarded(np.ones((2, 5, 1)))))
    matrix = tensor(spoil(guarded(np.ones((2, 4, 4)))))
    moved = tensor(spoil(guarded(np.ones((2, 3, 4)))))
    for argument in (readout, matrix, moved):
        if argument.is_floating_point():
            argument.requires_grad_()
    loss, which = Logistic(), draw.integers(3)
    if which == 0:
        linear_loss(moved, readout, True, bad, loss).sum().backward()
    elif which == 1:
        matrix_loss(matrix, readout, True, bad, loss).sum().backward()
    else:
        attend(query_logits(moved, bad.keys), bad.values, bad.mask).sum().backward()


def descents(draw: np.random.Generator, spoil: Callable[[Array], Array]) -> None:
    data, v = problem_data(draw)
    if draw.integers(3) == 0:
        data = data.instance(0)
    kind = draw.integers(3)
    form: dict[str, Any] = {"train_head": True} if kind else {"parameterization": "KQ"}
    model = Attention.cross(data, v, runs=2, init=("uniform", 0), **form)
    make: Any = MirrorDescent if kind == 2 else SteepestDescent
    options: dict[str, Any] = {"p": 1.75, "normalize": True} if kind == 2 else {}
    for parameter in model.parameters():
        parameter.data = tensor(spoil(guarded(parameter.detach().numpy())))
    optimizer = make(model.parameters(), lr=0.1, **options)
    if unsupported(model, optimizer, None) is not None:
        return
    loop = NativeLoop(model, data, optimizer)
    loop.advance(0, 2)
    loop.restore({name: spoil(guarded(value)) for name, value in loop.state().items()})
    loop.advance(2, 2)
    loop.evaluate()


def sentences(draw: np.random.Generator, spoil: Callable[[Array], Array]) -> None:
    data = [bipartite(10, 3, int(draw.integers(5))) for _ in range(2)]
    good = Problem.of(data)
    names = ("values", "token", "count", "start", "run_start", "query", "label", "weight", "winner")
    wild = spoil(np.zeros(3)).shape != (3,)
    fields = {name: spoil(guarded(getattr(good, name))) for name in names}
    if wild:
        name = names[draw.integers(1, len(names))]
        fields[name] = guarded(fields[name] + draw.choice([-1, 1, 100]))
    bad = dataclasses.replace(good, **fields)
    values = guarded(np.ones(good.values.shape))
    bad.gradient(
        spoil(guarded(np.ones(good.values.shape))), spoil(values) if draw.integers(2) else None
    )
    attention_stage(bad, StepRule(0.1), 3)


def optimisers(draw: np.random.Generator, spoil: Callable[[Array], Array]) -> None:
    dtype = draw.choice(["f4", "f8"])
    shape = [(40, 60), (5,), (2, 3, 4), (1,)][draw.integers(4)]
    weight, gradient, dual = (guarded(np.full(shape, 0.5, dtype=dtype)) for _ in range(3))
    which = draw.integers(4)
    if which == 0:
        mirror_step(
            [tensor(spoil(weight))],
            [tensor(spoil(gradient))],
            [tensor(spoil(dual)) if draw.integers(2) else None],
            1.0,
            0.1,
            mirror_exponents(1.75)[1],
        )
    elif which == 1:
        kernel = str(draw.choice(["normalized_step", "sign_step"]))
        normalized_step(kernel, [tensor(spoil(weight))], [tensor(spoil(gradient))], 1.0, 0.1)
    else:
        parameter = nn.Parameter(tensor(spoil(weight)))
        parameter.grad = torch.ones_like(parameter)
        parameter.grad.data = tensor(spoil(guarded(parameter.grad.numpy())))
        form = [{}, {"fused": True}, {"foreach": True}, {"foreach": False}][draw.integers(4)]
        momentum = float(draw.choice([0.0, 0.9]))
        make = MirrorDescent if which == 2 else SteepestDescent
        optimizer = make([parameter], lr=0.1, momentum=momentum, **form)
        optimizer.step()
        for entry in optimizer.state.values():
            for name, value in entry.items():
                entry[name] = tensor(spoil(guarded(value.numpy())))
        optimizer.step()


ENTRIES = {
    "sequences": sequences_pass,
    "descents": descents,
    "sentences": sentences,
    "optimisers": optimisers,
}


def main(name: str, seed: int, rounds: int) -> None:
    warnings.simplefilter("ignore")
    refused = 0
    for number in range(rounds):
        draw = np.random.default_rng([seed, number])
        share = draw.choice([0.0, 0.15, 0.4])

        def spoil(array: Array, draw: np.random.Generator = draw, share: float = share) -> Array:
            return spoiled(draw, array) if draw.random() < share else array

        try:
            ENTRIES[name](draw, spoil)
        except Exception as error:  # any refusal will do: what must not happen ends the process
            refused += 1
            if share == 0.0:
                raise AssertionError(f"round {number}: good arrays were refused") from error
        _KEPT.clear()
    print(f"{rounds} rounds, {refused} refused")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
