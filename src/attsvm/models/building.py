"""From what a caller writes to a model: shapes checked, starts drawn, run axes spread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from attsvm.data import AttentionData, FloatArray, floats
from attsvm.errors import InputError
from attsvm.models.attention import Attention
from attsvm.models.heads import LinearHead
from attsvm.models.losses import Logistic, Loss, PerRun, as_loss
from attsvm.models.parameterizations import FactoredAttention, FixedPromptAttention, PromptAttention
from attsvm.models.sequences import Reading

Init = ArrayLike | Literal["zeros"] | tuple[Literal["uniform"], int] | tuple[ArrayLike, ArrayLike]
Head = ArrayLike | nn.Module | Callable[[Tensor], Tensor]
Losses = Loss | Callable[[Tensor], Tensor] | Sequence[Loss | Callable[[Tensor], Tensor]]


def build(
    data: AttentionData,
    head: Head,
    intercept: ArrayLike | None,
    runs: int | None,
    init: Init | None,
    train_head: bool,
    loss: Losses | None,
    penalty: ArrayLike,
    reading: Reading,
    factors: tuple[int | None, bool] | None,
) -> Attention:
    """A model of weights W, or of factors with ``(inner, stacked)``."""
    lead, common = _common(data, head, intercept, runs, train_head, loss, penalty, reading)
    d_x, d_z = reading.dimensions(data)
    if factors is None:
        (W,) = _starts({"W": (d_x, d_z)}, lead, init)
        return Attention({"W": W}, **common)
    inner = min(d_x, d_z) if factors[0] is None else factors[0]
    if inner < 1:
        raise InputError(f"inner is {inner}; factors need at least one column")
    if init is None:
        raise InputError(
            "factors need an init, because K = Q = 0 is a stationary point; pass ('uniform', seed)"
            " or a pair of arrays (K, Q)"
        )
    K, Q = _starts({"K": (d_x, inner), "Q": (d_z, inner)}, lead, init)
    return FactoredAttention({"K": K, "Q": Q}, **common, stacked=factors[1])


def build_prompt(
    data: AttentionData,
    head: Head,
    intercept: ArrayLike | None,
    runs: int | None,
    init: Init | None,
    train_head: bool,
    loss: Losses | None,
    penalty: ArrayLike,
    keys: ArrayLike | None,
    prompt: ArrayLike | None,
) -> Attention:
    """A model with a trained prompt, or with a trained W under the fixed prompt."""
    mapped = None if keys is None else _matrix("keys", keys, data.d_x)
    reading = Reading(keys=mapped, prompt=True)
    lead, common = _common(data, head, intercept, runs, train_head, loss, penalty, reading)
    if prompt is None:
        d_k = reading.dimensions(data)[0]
        if init is not None and not isinstance(init, (str, tuple)):
            init = np.asarray(init.detach().cpu() if isinstance(init, Tensor) else init)[..., None]
        (p,) = _starts({"p": (d_k, 1)}, lead, init)
        return PromptAttention({"p": p}, **common)
    if keys is not None:
        raise InputError(
            "keys and prompt are both given; W is the key map that is trained under a fixed prompt,"
            " so leave keys out"
        )
    u = floats("prompt", prompt)
    if u.ndim != 1 or not np.isfinite(u).all() or not u.any():
        raise InputError(
            f"prompt has shape {u.shape}; give a finite vector (d_u,) that is not zero"
        )
    (W,) = _starts({"W": (len(u), data.d_x)}, lead, init)
    return FixedPromptAttention({"W": W}, **common, u=torch.from_numpy(u[:, None].copy()))


def position_labels(data: AttentionData, labels: ArrayLike) -> FloatArray:
    """Labels of positions as floats, zero at hidden positions.

    Raises:
        InputError: another shape, or a label other than -1 and +1 at a visible position.
    """
    signs = np.array(labels, dtype=np.float64)
    shape = data.mask.shape
    if signs.shape not in (shape, shape[len(data.batch_shape) :]):
        raise InputError(
            f"labels has shape {signs.shape}; it must be {shape}, one label per position"
        )
    seen = (
        data.mask
        if signs.shape == shape
        else data.mask.any(axis=tuple(range(len(data.batch_shape))))
    )
    wrong = seen & (np.abs(signs) != 1.0)
    if wrong.any():
        where = np.argwhere(wrong)[0].tolist()
        raise InputError(
            f"labels holds {signs[tuple(where)]:g} at {where}; labels must be -1 or +1"
        )
    return np.where(seen, signs, 0.0)


def _common(
    data: AttentionData,
    head: Head,
    intercept: ArrayLike | None,
    runs: int | None,
    train_head: bool,
    loss: Losses | None,
    penalty: ArrayLike,
    reading: Reading,
) -> tuple[tuple[int, ...], dict[str, Any]]:
    """The run axis, and what every kind of model is built from."""
    count = _runs(data, runs)
    lead = () if count is None else (count,)
    objective = Logistic() if loss is None else as_loss(loss)
    if isinstance(objective, PerRun) and len(objective.losses) != count:
        raise InputError(
            f"loss lists {len(objective.losses)} losses but the model has runs={count}; give one"
            " per run"
        )
    strength = floats("penalty", penalty)
    if strength.shape not in ((), lead) or not (np.isfinite(strength) & (strength >= 0)).all():
        raise InputError(
            f"penalty is {penalty!r}; give a finite number, 0 or more, or as many of them as there"
            f" are runs ({count})"
        )
    built = _head(head, intercept, lead, data.d_x, train_head)
    return lead, {
        "head": built,
        "runs": count,
        "objective": objective,
        "penalty": strength,
        "reading": reading,
    }


def _head(
    head: Head, intercept: ArrayLike | None, lead: tuple[int, ...], d_x: int, train_head: bool
) -> Any:
    if isinstance(head, nn.Module) or (callable(head) and not isinstance(head, Tensor)):
        if train_head:
            raise InputError(
                "train_head makes a linear head a parameter; the parameters of a module are trained"
                " when the optimizer has them"
            )
        return head
    v = spread("head", head, (*lead, d_x), 1)
    b = None if intercept is None else torch.from_numpy(spread("intercept", intercept, lead, 0))
    return LinearHead(torch.from_numpy(v), b, train_head)


def _runs(data: AttentionData, runs: int | None) -> int | None:
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
    return data.batch_shape[0] if data.batch_shape else runs


def spread(name: str, value: Any, shape: tuple[int, ...], own: int) -> FloatArray:
    """``value`` as a fresh float64 array of ``shape``, of which the last ``own`` axes must be
    given.

    Raises:
        InputError: another shape, or a value that is not finite.
    """
    array = np.asarray(
        value.detach().cpu() if isinstance(value, Tensor) else value, dtype=np.float64
    )
    if array.shape not in (shape, shape[len(shape) - own :]):
        raise InputError(
            f"{name} has shape {array.shape}; it must be {shape[len(shape) - own :]} or {shape}"
        )
    if not np.isfinite(array).all():
        raise InputError(f"{name} holds a value that is not finite; every value must be finite")
    return np.array(np.broadcast_to(array, shape), order="C")


def _matrix(name: str, value: ArrayLike, columns: int) -> FloatArray:
    array = np.array(value, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] != columns or not np.isfinite(array).all():
        raise InputError(
            f"{name} has shape {array.shape}; it must be a finite matrix (d_k, {columns})"
        )
    return array


def _starts(
    shapes: dict[str, tuple[int, int]], lead: tuple[int, ...], init: Init | None
) -> list[Tensor]:
    """The start of every parameter, in order."""
    full = [(*lead, *shape) for shape in shapes.values()]
    if init is None or (isinstance(init, str) and init == "zeros"):
        arrays = [np.zeros(shape) for shape in full]
    elif (
        isinstance(init, tuple)
        and len(init) == 2
        and isinstance(init[0], str)
        and init[0] == "uniform"
    ):
        seed: Any = init[1]
        arrays = _uniform(int(seed), full)
    elif isinstance(init, str) or (isinstance(init, tuple) and len(shapes) == 1):
        raise InputError(f"init is {init!r}; use 'zeros', an array, or ('uniform', seed)")
    elif len(shapes) == 1:
        arrays = [spread("init", init, full[0], 2)]
    else:
        if not isinstance(init, (tuple, list)) or len(init) != len(shapes):
            raise InputError(
                f"init of factors is a pair of arrays ({', '.join(shapes)}), 'zeros' or ('uniform',"
                " seed)"
            )
        arrays = [spread(f"init[{k}]", init[k], shape, 2) for k, shape in enumerate(full)]
    return [torch.from_numpy(array) for array in arrays]


def _uniform(seed: int, shapes: list[tuple[int, ...]]) -> list[FloatArray]:
    count = shapes[0][0] if len(shapes[0]) == 3 else 1
    generators = [np.random.default_rng([seed, r]) for r in range(count)]
    out = []
    for shape in shapes:
        width = 1.0 / np.sqrt(shape[-2])
        out.append(
            np.stack(
                [generator.uniform(-width, width, shape[-2:]) for generator in generators]
            ).reshape(shape)
        )
    return out
