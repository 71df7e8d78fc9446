"""Steepest descent in a norm: the optimiser that moves along the norm's own steepest direction."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from attsvm.base.errors import InputError
from attsvm.norms import Frobenius, Lp, Norm, Spectral, as_norm
from attsvm.optim.base import (
    DescentOptimizer,
    GroupTensors,
    StateList,
    TensorList,
    add_scaled,
    average_gradients,
    check_shared_settings,
    fused_obstacle,
    is_known_zero,
    new_momentum,
    read_scalar,
    refuse_fused,
)
from attsvm.optim.directions import AdjustLr, step_directions, takes_singular_values
from attsvm.optim.matrices import Blocks, check_blocks, group_into_portions, matrix_shape
from attsvm.optim.native_steps import normalized_step
from attsvm.optim.polar import Polar
from attsvm.optim.reductions import local_tensor, process_count, refuse_flattened

_FROBENIUS, _SPECTRAL = Frobenius(), Spectral()  # compared with at every step
_KERNELS: dict[Norm, str] = {_FROBENIUS: "normalized_step", Lp(math.inf): "sign_step"}
"""The norms with a compiled step."""


def _let_torch_load(*norms: Norm) -> None:
    """Tell torch that a checkpoint may hold these norms: ``torch.load(weights_only=True)``, its
    default, reads the norm of each group.
    """
    kinds = {*Norm.known.values(), *(type(n) for norm in norms for n in (norm, norm.dual))}
    torch.serialization.add_safe_globals(list(kinds))


_let_torch_load()


class Portion(NamedTuple):
    """Parameters that move in one call, as this process holds them, and their update.

    Attributes:
        weights: the tensors that move.
        directions: those along which they move; None for a step of length zero.
        buffers: the momentum of each, None without.
        averages: the momentum after this step; the buffers themselves where it is in them already.
    """

    weights: TensorList
    directions: TensorList | None
    buffers: StateList
    averages: StateList


class SteepestDescent(DescentOptimizer):
    r"""Steepest descent in a norm, normalised or not, with momentum before the direction.

    .. math::
        D_t=\arg\max_{\|D\|\le1}\langle M_t,D\rangle,\qquad
        W_{t+1}=(1-\eta\lambda)W_t-\eta\,D_t,

    with :math:`M_t` of the gradients as in :mod:`attsvm.optim.base`, and
    :math:`\eta\|M_t\|_*D_t` in the last term if not ``normalize``. One step is:

    1. :math:`M_t`, in float32 or better;
    2. its steepest direction :math:`D_t`, times :math:`\|M_t\|_*` if not ``normalize``;
    3. :math:`W\leftarrow(1-\eta\lambda)W-\eta D_t`.

    Members of the family:

    * ``Frobenius()``: normalised gradient descent; not normalised it is ``torch.optim.SGD``, bit
      for bit (with momentum too).
    * ``Lp(inf)``: sign descent; with momentum Signum.
    * ``Lp(1)``: greedy coordinate descent, one entry a step.
    * ``Spectral()``: spectral descent; with momentum Muon, exact by default.
      ``polar="newton-schulz"``, ``momentum=0.95, dampening=0.95, nesterov=True``,
      ``weight_decay=0.1`` and ``adjust_lr_fn="original"`` are the defaults of
      ``torch.optim.Muon``.
    * ``Nuclear()``: rank-one steps (Frank-Wolfe's direction).
    * ``Lp(p)``, ``Schatten(p)``: all between.

    The last two axes of a parameter are one matrix and every axis in front counts independent runs,
    each with its own norm; a vector or a scalar is one column, and has no singular values. A
    convolution kernel ``(out, in, h, w)`` is therefore ``out * in`` matrices of ``(h, w)``, which
    is seldom meant by a spectral norm; with ``flatten`` it is one of ``(out, in * h * w)``.
    ``blocks`` cuts a matrix into several with a direction each, such as the heads of a fused
    query-key-value projection.

    Nothing is added to a divisor: a normalised step does not see a positive factor in its gradient,
    from 1e-30 to 1e30 in float32, and a zero gradient moves nothing. Half-precision parameters keep
    their momentum, and compute their direction, in float32. State: one tensor per parameter with
    ``momentum``, none without.

    Args:
        params: parameters, named parameters or groups; every argument below may be set per group.
        lr: step length :math:`\eta\ge0`, a number or a tensor of one (the length of every step, in
            the norm, when normalised).
        norm: the geometry or its name, :class:`~attsvm.norms.Frobenius` if None.
        normalize: steps of length ``lr`` in the norm, for every matrix of the last two axes; False
            for steps of length :math:`\eta\|M_t\|_*`.
        momentum: :math:`0\le\mu<1`.
        dampening: :math:`0\le\tau\le1`. ``dampening = momentum`` is the moving average of Fan et
            al.'s NMD; when normalised it moves exactly like ``dampening = 0``, up to rounding.
        nesterov: Nesterov's momentum.
        weight_decay: :math:`\lambda\ge0`, decoupled as in AdamW: it shrinks the weights and never
            enters the direction.
        polar: how the spectral norm finds its direction: ``exact``, ``newton-schulz`` or
            ``polar-express``; :mod:`attsvm.optim.polar` states their accuracy.
        ns_steps: the number of iterations of the last two.
        blocks: the number of equal blocks of a matrix, or a list of their sizes.
        blocks_axis: -2 for blocks of rows, -1 for blocks of columns.
        adjust_lr_fn: for the spectral norm, by the names of ``torch.optim.Muon``: ``original``
            multiplies the length of a step by the root of rows over columns where that is above
            one, ``match_rms_adamw`` by 0.2 times the root of the longer side, so that a rate of
            AdamW serves matrices of every shape; of blocks, it is the shape of the block. None
            leaves steps of length ``lr``; the decay is by ``lr`` itself in any case.
        flatten: a parameter of more than two axes is one matrix, its first axis by all others.
        maximize: ascend instead.
        foreach: update all parameters in one call and gather equal shapes into one batch; False
            goes one by one. None is True.
        fused: one compiled pass per parameter, for normalised steps in the norms ``Frobenius()``
            and ``Lp(inf)`` of contiguous float32 or float64 parameters on the CPU. By default it is
            taken where it applies.

    Raises:
        InputError: a hyper-parameter outside its range, a norm of singular values for a vector,
            blocks that do not divide a matrix, ``adjust_lr_fn`` without normalised steps in the
            spectral norm; at :meth:`step`, a sparse gradient, a closure that returns None.

    Source: Fan, Schmidt and Thrampoulidis, *Implicit Bias of Spectral Descent and Muon on
    Multiclass Separable Data* (NSD and NMD, every norm); Tarzanagh et al., *Transformers as Support
    Vector Machines* (normalised gradient descent); Jordan et al., *Muon*.

    Example:
        >>> import torch
        >>> from attsvm.optim import SteepestDescent
        >>> W = torch.nn.Parameter(torch.zeros(2, 2))
        >>> optimizer = SteepestDescent([W], lr=0.1, norm="linf")
        >>> (W * torch.tensor([[1.0, -2.0], [3.0, -4.0]])).sum().backward()
        >>> optimizer.step()  # by the sign of the gradient
        >>> [[round(w, 3) for w in row] for row in W.tolist()]
        [[-0.1, 0.1], [-0.1, 0.1]]
    """

    state_names = ("momentum_buffer",)

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        norm: Norm | str | None = None,
        normalize: bool = True,
        momentum: float = 0.0,
        dampening: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        *,
        polar: Polar = "exact",
        ns_steps: int = 5,
        blocks: Blocks = None,
        blocks_axis: int = -2,
        adjust_lr_fn: AdjustLr = None,
        flatten: bool = False,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "norm": as_norm(norm),
            "normalize": normalize,
            "momentum": momentum,
            "dampening": dampening,
            "nesterov": nesterov,
            "weight_decay": weight_decay,
            "polar": polar,
            "ns_steps": ns_steps,
            "blocks": blocks,
            "blocks_axis": blocks_axis,
            "adjust_lr_fn": adjust_lr_fn,
            "flatten": flatten,
            "maximize": maximize,
            "foreach": foreach,
            "fused": fused,
        }
        super().__init__(params, defaults)

    def _check_group(self, group: dict[str, Any]) -> None:
        group["norm"] = norm = as_norm(group["norm"])
        _let_torch_load(norm)
        check_settings(group)

    def _missing_state(
        self, group: dict[str, Any], parameter: Tensor, state: dict[str, Any]
    ) -> dict[str, Any]:
        dtype = torch.promote_types(parameter.dtype, torch.float32)
        momentum = state.get("momentum_buffer")
        if momentum is None:
            return new_momentum(group, parameter, dtype)
        # a model may change its type between steps, and a checkpoint may have another one
        return {} if momentum.dtype == dtype else {"momentum_buffer": momentum.to(dtype)}

    def _compute_group(self, tensors: GroupTensors, loss: Any) -> list[Portion] | None:
        group, lr = tensors.group, read_scalar(tensors.group, "lr")
        # without a decomposition nothing can fail
        if not decomposes(group) or is_known_zero(lr):
            return None
        return [_compute_portion(group, lr, rows, in_place=False) for rows in _portions(tensors)]

    def _apply_group(self, tensors: GroupTensors, results: list[Portion] | None) -> None:
        group, lr = tensors.group, read_scalar(tensors.group, "lr")
        if results is not None:
            # directions are there already
            for portion in results:
                _move(group, lr, portion)
        elif not isinstance(lr, Tensor) and lr and takes_kernel(group, tensors.parameters):
            _move_compiled(tensors, lr)
        else:
            # each portion moves while it is in the cache
            for rows in _portions(tensors):
                _move(group, lr, _compute_portion(group, lr, rows, in_place=True))


def _portions(tensors: GroupTensors) -> list[list[tuple[Any, ...]]]:
    """Return the parameters that have entries, each with its gradient and its momentum, in the
    portions that move in one call.
    """
    columns = tensors.parameters, tensors.gradients, tensors.states[0]
    rows = [row for row in zip(*columns, strict=True) if row[0].numel()]
    if tensors.group["foreach"] is False:
        return [[row] for row in rows]
    processes = 1
    for parameter, *_ in rows:  # a generator would break the graph of a compiled step
        processes = max(processes, process_count(parameter))
    return group_into_portions(rows, processes=processes)


def _compute_portion(
    group: dict[str, Any], lr: float | Tensor, rows: list[tuple[Any, ...]], in_place: bool
) -> Portion:
    """Return the update of some parameters: steps 1 and 2 of the class.

    Args:
        group: the parameter group.
        lr: its step length.
        rows: parameter, gradient and momentum of each.
        in_place: write the momentum now; otherwise nothing is changed.
    """
    parameters, gradients, buffers = (list(column) for column in zip(*rows, strict=True))
    # what is elementwise stays in this process
    gradients = [local_tensor(g, p) for g, p in zip(gradients, parameters, strict=True)]
    buffers = [None if buffer is None else local_tensor(buffer) for buffer in buffers]
    averages = buffers if in_place else [None if b is None else b.clone() for b in buffers]
    # 1: averages of gradients
    vectors = average_gradients(group, descent_gradients(group, gradients), averages)
    weights = [local_tensor(parameter) for parameter in parameters]
    # a step of length zero moves no bit, whatever the direction
    if is_known_zero(lr):
        return Portion(weights, None, buffers, averages)
    # 2: directions; the gradient of the Frobenius norm is its own
    if group["normalize"] or group["norm"] != _FROBENIUS:
        vectors = step_directions(group, vectors, parameters)
    return Portion(weights, vectors, buffers, averages)


def _move(group: dict[str, Any], lr: float | Tensor, portion: Portion) -> None:
    """Move weights along their directions, step 3 of the class, and keep their momentum."""
    if portion.directions is None:
        return
    # decoupled decay, then the step
    if group["weight_decay"]:
        torch._foreach_mul_(portion.weights, 1 - lr * group["weight_decay"])
    add_scaled(portion.weights, portion.directions, -lr)
    # momentum that was computed aside
    if portion.averages is not portion.buffers:
        for buffer, average in zip(portion.buffers, portion.averages, strict=True):
            if buffer is not None and average is not None:
                buffer.copy_(average)


def _move_compiled(tensors: GroupTensors, lr: float) -> None:
    """Take the whole step of contiguous parameters on a CPU, one compiled pass over each."""
    group = tensors.group
    gradients = descent_gradients(group, tensors.gradients)
    vectors = average_gradients(group, gradients, tensors.states[0])
    shrink = 1 - lr * group["weight_decay"]
    normalized_step(_KERNELS[group["norm"]], tensors.parameters, vectors, shrink, lr)


def descent_gradients(group: dict[str, Any], gradients: TensorList) -> TensorList:
    """Return the gradients of what is minimised, at least in single precision; the gradients
    themselves are left as they are.
    """
    vectors = [
        gradient if gradient.dtype in (torch.float32, torch.float64) else gradient.float()
        for gradient in gradients
    ]
    return list(torch._foreach_neg(vectors)) if group["maximize"] else vectors


def check_settings(group: dict[str, Any]) -> None:
    """Refuse the settings of a parameter group that have no meaning, alone or together.

    Raises:
        InputError: the setting, its value, and what to give.
    """
    check_shared_settings(group)
    norm, polar, ns_steps = group["norm"], group["polar"], group["ns_steps"]
    if isinstance(ns_steps, bool) or not isinstance(ns_steps, int) or not 1 <= ns_steps < 100:
        raise InputError(f"ns_steps is {ns_steps!r}; give a whole number from 1 to 99")
    if not isinstance(norm, Norm):
        raise InputError(f"norm is {norm!r}; give an attsvm.norms.Norm such as Frobenius()")
    if polar not in ("exact", "newton-schulz", "polar-express"):
        raise InputError(f"polar is {polar!r}; use 'exact', 'newton-schulz' or 'polar-express'")
    if group["blocks_axis"] not in (-2, -1):
        raise InputError(
            f"blocks_axis is {group['blocks_axis']!r}; give -2 for blocks of rows or -1 for blocks"
            " of columns"
        )
    if group["adjust_lr_fn"] not in (None, "original", "match_rms_adamw"):
        raise InputError(
            f"adjust_lr_fn is {group['adjust_lr_fn']!r}; use 'original', 'match_rms_adamw' or None"
        )
    if group["adjust_lr_fn"] and not (group["normalize"] and norm == _SPECTRAL):
        raise InputError(
            f"adjust_lr_fn is {group['adjust_lr_fn']!r} with norm={norm!r} and"
            f" normalize={group['normalize']}; it sets the length of normalised steps in the"
            " spectral norm alone: leave it out"
        )
    if not isinstance(group["flatten"], bool):
        raise InputError(
            f"flatten is {group['flatten']!r}; give True for one matrix of every parameter, or"
            " False"
        )
    if group["normalize"] or norm != _FROBENIUS:
        refuse_flattened(group["params"], f"the direction of {norm!r}")
    for parameter in group["params"]:
        if parameter.ndim < 2 and takes_singular_values(norm):
            raise InputError(
                f"norm is {norm!r} for a parameter of shape {tuple(parameter.shape)}, which has no"
                " singular values; put vectors into a group with Frobenius() or an Lp norm"
            )
        if group["blocks"] is not None:
            shape = matrix_shape(parameter, group["flatten"])
            check_blocks(group["blocks"], group["blocks_axis"], shape)
    if group["fused"]:
        _check_fused(group)


def decomposes(group: dict[str, Any]) -> bool:
    """Return whether the direction takes a singular value decomposition, or may."""
    norm = group["norm"]
    return takes_singular_values(norm) and not (group["polar"] != "exact" and norm == _SPECTRAL)


def takes_kernel(group: dict[str, Any], parameters: TensorList) -> bool:
    """Return whether the compiled step applies and is asked for, or not declined."""
    if torch.compiler.is_compiling() or _setting_without_kernel(group) is not None:
        return False
    is_chosen = group["fused"] or (group["fused"] is None and group["foreach"] is None)
    return bool(is_chosen) and all(fused_obstacle(parameter) is None for parameter in parameters)


def _setting_without_kernel(group: dict[str, Any]) -> str | None:
    """Return the setting that the compiled step does not know, or None."""
    if group["norm"] not in _KERNELS:
        return f"norm={group['norm']!r}"
    if not group["normalize"]:
        return "normalize=False"
    if group["flatten"]:
        return "flatten=True"
    return None if group["blocks"] is None else f"blocks={group['blocks']!r}"


def _check_fused(group: dict[str, Any]) -> None:
    setting = _setting_without_kernel(group)
    if setting is not None:
        raise InputError(
            f"fused is True with {setting}; the compiled kernel takes normalised steps in the"
            " norms Frobenius() and Lp(inf): leave fused out"
        )
    for parameter in group["params"]:
        refuse_fused(parameter, fused_obstacle(parameter))
