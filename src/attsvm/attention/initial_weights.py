"""Where the parameters of a model start, and the axis of its runs."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import AttentionData, FloatArray, broadcast, floats

Init = ArrayLike | Literal["zeros"] | tuple[Literal["uniform"], int] | tuple[ArrayLike, ArrayLike]
Shapes = dict[str, tuple[int, int]]


def run_axis(data: AttentionData, runs: int | None) -> tuple[int, ...]:
    """``(runs,)``, or ``()`` for a model without run axis.

    Raises:
        InputError: more than one leading axis, or another number of runs than the data's.
    """
    if len(data.batch_shape) > 1:
        raise InputError(
            f"data has leading axes {data.batch_shape}; a model takes at most one, the runs"
        )
    if runs is not None and runs < 1:
        raise InputError(
            f"runs is {runs}; ask for at least one run, or None for a model without run axis"
        )
    if data.batch_shape and runs not in (None, data.batch_shape[0]):
        raise InputError(
            f"runs is {runs} but data holds {data.batch_shape[0]} instances; leave runs out or make"
            " them equal"
        )
    return data.batch_shape if runs is None else (runs,)


def strengths(penalty: ArrayLike, lead: tuple[int, ...]) -> FloatArray:
    """A penalty as a number, or one per run.

    Raises:
        InputError: another shape, or a number below zero or not finite.
    """
    array = floats("penalty", penalty)
    if array.shape not in ((), lead) or not (np.isfinite(array) & (array >= 0)).all():
        count = lead[0] if lead else None
        raise InputError(
            f"penalty is {penalty!r}; give a finite number, 0 or more, or as many of them as there"
            f" are runs ({count})"
        )
    return array


def factor_shapes(d_k: int, d_z: int, inner: int | None, init: Init | None) -> Shapes:
    """The shapes of K and Q.

    Raises:
        InputError: no column, or no start.
    """
    inner = min(d_k, d_z) if inner is None else inner
    if inner < 1:
        raise InputError(f"inner is {inner}; factors need at least one column")
    if init is None:
        raise InputError(
            "factors need an init, because K = Q = 0 is a stationary point; pass ('uniform', seed)"
            " or a pair of arrays (K, Q)"
        )
    return {"K": (d_k, inner), "Q": (d_z, inner)}


def starts(shapes: Shapes, lead: tuple[int, ...], init: Any) -> dict[str, Tensor]:
    """The start of every parameter.

    Raises:
        InputError: an unknown ``init``, or arrays of another shape.
    """
    full = [(*lead, *shape) for shape in shapes.values()]
    if init is None or (isinstance(init, str) and init == "zeros"):
        arrays = [np.zeros(shape) for shape in full]
    elif (
        isinstance(init, tuple)
        and len(init) == 2
        and isinstance(init[0], str)
        and init[0] == "uniform"
    ):
        arrays = _uniform(int(init[1]), full)
    elif isinstance(init, str) or (isinstance(init, tuple) and len(shapes) == 1):
        raise InputError(f"init is {init!r}; use 'zeros', an array, or ('uniform', seed)")
    elif len(shapes) == 1:
        arrays = [broadcast("init", init, full[0], 2)]
    else:
        if not isinstance(init, (tuple, list)) or len(init) != len(shapes):
            raise InputError(
                f"init of factors is a pair of arrays ({', '.join(shapes)}), 'zeros' or ('uniform',"
                " seed)"
            )
        arrays = [broadcast(f"init[{k}]", init[k], shape, 2) for k, shape in enumerate(full)]
    return {name: torch.from_numpy(array) for name, array in zip(shapes, arrays, strict=True)}


def _uniform(seed: int, shapes: list[tuple[int, ...]]) -> list[FloatArray]:
    """Entries uniform on +-1/sqrt(d), those of run r from its own generator ``(seed, r)``."""
    count = shapes[0][0] if len(shapes[0]) == 3 else 1
    generators = [np.random.default_rng([seed, r]) for r in range(count)]
    out = []
    for shape in shapes:
        width = 1.0 / np.sqrt(shape[-2])
        runs = [generator.uniform(-width, width, shape[-2:]) for generator in generators]
        out.append(np.stack(runs).reshape(shape))
    return out
