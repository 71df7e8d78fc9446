"""Steepest descent in a norm: the optimiser that moves along the norm's own steepest direction."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from attsvm.base.errors import InputError
from attsvm.norms import Frobenius, Lp, Norm, Spectral, as_norm
from attsvm.optim.base import (
    DescentOptimizer,
    StateList,
    TensorList,
    Write,
    add_scaled,
    averaged,
    check_number,
    check_shared,
    fused_obstacle,
    momentum_buffer,
    refuse_fused,
    scalar,
    stands,
)
from attsvm.optim.directions import (
    aligned_length,
    sharded_directions,
    steepest_direction,
    takes_singular_values,
)
from attsvm.optim.matrices import Blocks, assembled, check_blocks, matrices, portions, together
from attsvm.optim.native_steps import normalized_step
from attsvm.optim.polar import Polar
from attsvm.optim.reductions import is_sharded, local, refuse_flat

_FROBENIUS, _SPECTRAL = Frobenius(), Spectral()  # asked for at every step
_KERNELS: dict[Norm, str] = {_FROBENIUS: "normalized_step", Lp(math.inf): "sign_step"}
"""The norms with a compiled step."""


def _read_back(*norms: Norm) -> None:
    """A checkpoint holds the norm of each group; torch.load(weights_only=True), its default, may
    read it.
    """
    kinds = {*Norm.known.values(), *(type(each) for norm in norms for each in (norm, norm.dual))}
    torch.serialization.add_safe_globals(list(kinds))


_read_back()


class SteepestDescent(DescentOptimizer):
    r"""Steepest descent in a norm, normalised or not, with momentum before the direction.

    .. math::
        D_t=\arg\max_{\|D\|\le1}\langle M_t,D\rangle,\qquad
        W_{t+1}=(1-\eta\lambda)W_t-\eta\,D_t,

    with :math:`M_t` of the gradients as in :mod:`attsvm.optim.base`, and
    :math:`\eta\|M_t\|_*D_t` in the last term if not ``normalize``. Members of the family:

    * ``Frobenius()``: normalised gradient descent; not normalised it is ``torch.optim.SGD``, bit
      for bit (with momentum too).
    * ``Lp(inf)``: sign descent; with momentum Signum.
    * ``Lp(1)``: greedy coordinate descent, one entry a step.
    * ``Spectral()``: spectral descent; with momentum Muon, exact by default.
      ``polar="newton-schulz"``, ``momentum=0.95, dampening=0.95, nesterov=True`` and
      ``weight_decay=0.1`` is ``torch.optim.Muon`` on matrices with no more rows than columns (on
      others Muon enlarges ``lr`` by the root of rows over columns; set it in their group).
    * ``Nuclear()``: rank-one steps (Frank-Wolfe's direction).
    * ``Lp(p)``, ``Schatten(p)``: all between.

    The last two axes of a parameter are one matrix and every axis in front counts independent runs,
    each with its own norm; a vector or a scalar is one column, and has no singular values. A
    convolution kernel ``(out, in, h, w)`` is therefore ``out * in`` matrices of ``(h, w)``, which
    is seldom meant by a spectral norm: give such parameters an entrywise norm. ``blocks`` cuts a
    matrix into several with a direction each, such as the heads of a fused query-key-value
    projection.

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
        step_size: ``fixed``, or ``polyak`` for :math:`\eta\,(L-L^\star)/(c\|\nabla L\|_*)` in place
            of :math:`\eta`, per run where the loss is given per run. The matrices of the group
            count as one point; ``lr`` is a factor, usually 1. The loss comes from the closure or
            from ``step(loss=...)``.
        loss_floor: :math:`L^\star`, the infimum of the loss, one number or a tensor of one per run.
        polyak_factor: :math:`c`.
        blocks: the number of equal blocks of a matrix, or a list of their sizes.
        blocks_axis: -2 for blocks of rows, -1 for blocks of columns.
        maximize: ascend instead.
        foreach: update all parameters in one call and gather equal shapes into one batch; False
            goes one by one. None is True.
        fused: one compiled pass per parameter, for normalised steps in the norms ``Frobenius()``
            and ``Lp(inf)`` of contiguous float32 or float64 parameters on the CPU. By default it is
            taken where it applies.
        differentiable: not supported: steepest directions have no derivative where they matter.

    Raises:
        InputError: a hyper-parameter outside its range, a norm of singular values for a vector,
            blocks that do not divide a matrix; at
            :meth:`step`, a sparse gradient, a closure that returns None, ``polyak`` without a loss.

    Source: Fan, Schmidt and Thrampoulidis, *Implicit Bias of Spectral Descent and Muon on
    Multiclass Separable Data* (NSD and NMD, every norm); Tarzanagh et al., *Transformers as Support
    Vector Machines* (normalised gradient descent); Vasudeva, Deora and Thrampoulidis, *Implicit
    Bias and Fast Convergence Rates for Self-attention* (Polyak's step); Jordan et al., *Muon*.

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
    _loss: Any = None  # of the step that is being taken

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
        step_size: Literal["fixed", "polyak"] = "fixed",
        loss_floor: float | Tensor = 0.0,
        polyak_factor: float = 2.0,
        blocks: Blocks = None,
        blocks_axis: int = -2,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        differentiable: bool = False,
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
            "step_size": step_size,
            "loss_floor": loss_floor,
            "polyak_factor": polyak_factor,
            "blocks": blocks,
            "blocks_axis": blocks_axis,
            "maximize": maximize,
            "foreach": foreach,
            "fused": fused,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults)

    @overload
    def step(self, closure: None = None, *, loss: Any = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], Any], *, loss: Any = None) -> Any: ...
    def step(self, closure: Callable[[], Any] | None = None, *, loss: Any = None) -> Any:
        """See :meth:`DescentOptimizer.step`.

        Args:
            closure: evaluates the model anew, with gradients, and returns the loss.
            loss: the loss at the present weights, where there is no closure; only Polyak's step
                reads it. One number, or one per run.
        """
        if closure is None and loss is None:
            return super().step()
        self._loss = loss
        try:
            if closure is None:
                return super().step()

            def remembered() -> Any:
                self._loss = closure()
                return self._loss

            return super().step(remembered)
        finally:
            self._loss = None

    def _new_state(
        self, group: dict[str, Any], parameter: Tensor, known: dict[str, Any]
    ) -> dict[str, Any]:
        if known.get("momentum_buffer") is not None:
            return {}
        return momentum_buffer(
            group, parameter, torch.promote_types(parameter.dtype, torch.float32)
        )

    def _prepared(
        self, group: dict[str, Any], parameters: TensorList, gradients: TensorList, *states: Any
    ) -> Write:
        lr, buffers = scalar(group, "lr"), states[0]
        if not isinstance(lr, Tensor) and lr and takes_kernel(group, parameters):
            return partial(_compiled_step, group, parameters, gradients, buffers, lr)
        columns = parameters, gradients, buffers
        rows = [row for row in zip(*columns, strict=True) if row[0].numel()]
        if group["step_size"] == "polyak":  # one step for all
            parts = [rows] if rows else []
        elif group["foreach"] is False:
            parts = [[row] for row in rows]
        else:
            parts = portions(rows)
        found = (
            [self._moved(group, lr, part, copied=True) for part in parts]
            if decomposes(group) and not stands(lr)
            else None  # nothing can fail, and each part stays in the cache
        )

        def write() -> None:
            for index, part in enumerate(parts):
                move = self._moved(group, lr, part) if found is None else found[index]
                move()

        return write

    def _moved(
        self,
        group: dict[str, Any],
        lr: float | Tensor,
        rows: list[tuple[Any, ...]],
        copied: bool = False,
    ) -> Write:
        """The directions of some parameters, and what moves them; averages are written now, or with
        the parameters where they are ``copied``.
        """
        placed, gradients, kept = (list(column) for column in zip(*rows, strict=True))
        # what is elementwise stays in this process
        parameters = [local(parameter) for parameter in placed]
        gradients = [
            local(gradient, parameter)
            for gradient, parameter in zip(gradients, placed, strict=True)
        ]
        buffers = [None if buffer is None else local(buffer) for buffer in kept]
        averages = [b.clone() if copied and b is not None else b for b in buffers]
        vectors = _averaged(group, gradients, averages)
        if stands(lr):
            return _nothing
        steps: Tensor | None = None
        if group["step_size"] == "polyak" or group["normalize"] or group["norm"] != _FROBENIUS:
            if any(is_sharded(parameter) for parameter in placed):
                vectors, steps = sharded_directions(group, vectors, placed, self._directions)
            else:
                vectors, steps = self._directions(group, vectors)

        def write() -> None:
            if group["weight_decay"]:
                torch._foreach_mul_(parameters, 1 - lr * group["weight_decay"])
            moves = vectors
            if steps is not None:  # one step length, or one per run
                moves = [vector * _column(steps, vector) for vector in vectors]
            add_scaled(parameters, moves, -lr)
            for buffer, average in zip(buffers, averages, strict=True):
                if copied and buffer is not None and average is not None:
                    buffer.copy_(average)

        return write

    def _directions(
        self, group: dict[str, Any], vectors: TensorList
    ) -> tuple[TensorList, Tensor | None]:
        """Steepest directions, scaled as ``normalize`` says, and Polyak's step for them."""
        normalize, spectral = group["normalize"], group["norm"] == _SPECTRAL
        blocks, axis = group["blocks"], group["blocks_axis"]
        parts = [matrices(vector, blocks, axis) for vector in vectors]
        batches = [batch for part in parts for batch in part]
        # a transposed matrix has the transposed polar factor: both shapes go into one batch
        shapes = {b.shape[-2:] for b in batches}
        turned = [
            spectral and m > n and torch.Size((n, m)) in shapes
            for m, n in (b.shape[-2:] for b in batches)
        ]
        batches = [b.mT if turn else b for b, turn in zip(batches, turned, strict=True)]

        def direct(batch: Tensor) -> Tensor:
            return steepest_direction(batch, group["norm"], group["polar"], group["ns_steps"])

        directions = (
            together(batches, direct)
            if group["foreach"] is not False
            else [direct(batch) for batch in batches]
        )
        steps = None
        if group["step_size"] == "polyak" or not normalize:
            lengths = [
                aligned_length(batch, direction)
                for batch, direction in zip(batches, directions, strict=True)
            ]
            if not normalize:
                directions = [
                    length[:, None, None] * direction
                    for length, direction in zip(lengths, directions, strict=True)
                ]
            if group["step_size"] == "polyak":
                runs = [
                    math.prod(vector.shape[:-2])
                    for vector, part in zip(vectors, parts, strict=True)
                    for _ in part
                ]
                steps = polyak_step(
                    self._loss,
                    group["loss_floor"],
                    group["polyak_factor"],
                    lengths,
                    runs,
                    normalize,
                )
        directions = [d.mT if turn else d for d, turn in zip(directions, turned, strict=True)]
        found = iter(directions)
        return [
            assembled([next(found) for _ in part], vector, axis)
            for vector, part in zip(vectors, parts, strict=True)
        ], steps

    def check_step(self, loss: Any = None) -> None:
        """See :meth:`DescentOptimizer.check_step`."""
        super().check_step()
        loss = self._loss if loss is None else loss
        for group in self.param_groups:
            if group["step_size"] != "polyak":
                continue
            _check_polyak(group)
            moving = [p for p in group["params"] if p.grad is not None and p.numel()]
            if moving:
                runs = [math.prod(parameter.shape[:-2]) for parameter in moving]
                check_loss(loss, group["loss_floor"], runs)

    def _check_group(self, group: dict[str, Any]) -> None:
        group["norm"] = norm = as_norm(group["norm"])
        _read_back(norm)
        check_settings(group)
        if (
            group["step_size"] == "polyak"
            and sum(other["step_size"] == "polyak" for other in self.param_groups) > 1
        ):
            raise InputError(
                "two groups have step_size='polyak', and the loss cannot be shared out; put their"
                " parameters into one group"
            )


def _nothing() -> None:
    """What moves nothing."""


def _compiled_step(
    group: dict[str, Any],
    parameters: TensorList,
    gradients: TensorList,
    buffers: StateList,
    lr: float,
) -> None:
    vectors = _averaged(group, gradients, buffers)
    keep = 1 - lr * group["weight_decay"]
    normalized_step(_KERNELS[group["norm"]], parameters, vectors, keep, lr)


def _averaged(group: dict[str, Any], gradients: TensorList, buffers: StateList) -> TensorList:
    """What the direction is of, at least in single precision; the gradients themselves are left as
    they are.
    """
    vectors = [
        gradient if gradient.dtype in (torch.float32, torch.float64) else gradient.float()
        for gradient in gradients
    ]
    if group["maximize"]:
        vectors = list(torch._foreach_neg(vectors))
    return averaged(group, vectors, buffers)


def _column(steps: Tensor, vector: Tensor) -> Tensor:
    """``()`` as it is, ``(runs,)`` against the leading axis of ``vector``."""
    return (
        steps.to(vector.dtype).reshape(-1, *[1] * (vector.ndim - 1))
        if steps.ndim
        else steps.to(vector.dtype)
    )


def check_settings(group: dict[str, Any]) -> None:
    """Refuse the settings of a parameter group that have no meaning, alone or together.

    Raises:
        InputError: the setting, its value, and what to give.
    """
    _check_numbers(group)
    norm, polar = group["norm"], group["polar"]
    if not isinstance(norm, Norm):
        raise InputError(f"norm is {norm!r}; give an attsvm.norms.Norm such as Frobenius()")
    if polar not in ("exact", "newton-schulz", "polar-express"):
        raise InputError(f"polar is {polar!r}; use 'exact', 'newton-schulz' or 'polar-express'")
    if group["normalize"] or norm != _FROBENIUS:
        refuse_flat(group["params"], f"the direction of {norm!r}")
    for parameter in group["params"]:
        if parameter.ndim < 2 and takes_singular_values(norm):
            raise InputError(
                f"norm is {norm!r} for a parameter of shape {tuple(parameter.shape)}, which has no"
                " singular values; put vectors into a group with Frobenius() or an Lp norm"
            )
        check_blocks(group["blocks"], group["blocks_axis"], parameter)
    if group["step_size"] not in ("fixed", "polyak"):
        raise InputError(f"step_size is {group['step_size']!r}; use 'fixed' or 'polyak'")
    _check_polyak(group)
    if group["fused"]:
        _check_fused(group)


def _check_polyak(group: dict[str, Any]) -> None:
    if group["step_size"] == "polyak" and group["momentum"]:
        raise InputError(
            f"momentum is {group['momentum']!r} with step_size='polyak', which is the step of a"
            " gradient; set one of them, and cycle_momentum=False where a scheduler sets momentum"
        )


def decomposes(group: dict[str, Any]) -> bool:
    """Whether the direction takes a singular value decomposition, or may."""
    norm = group["norm"]
    return takes_singular_values(norm) and not (group["polar"] != "exact" and norm == _SPECTRAL)


def takes_kernel(group: dict[str, Any], parameters: TensorList) -> bool:
    """Whether the compiled step applies and is wanted."""
    if torch.compiler.is_compiling() or _unfused(group) is not None:
        return False
    wanted = group["fused"] or (group["fused"] is None and group["foreach"] is None)
    return bool(wanted) and all(fused_obstacle(parameter) is None for parameter in parameters)


def _unfused(group: dict[str, Any]) -> str | None:
    """The setting that the compiled step does not know, or None."""
    if group["norm"] not in _KERNELS:
        return f"norm={group['norm']!r}"
    if not group["normalize"]:
        return "normalize=False"
    if group["step_size"] != "fixed":
        return f"step_size={group['step_size']!r}"
    return None if group["blocks"] is None else f"blocks={group['blocks']!r}"


def _check_fused(group: dict[str, Any]) -> None:
    setting = _unfused(group)
    if setting is not None:
        raise InputError(
            f"fused is True with {setting}; the compiled kernel takes normalised steps in the"
            " norms Frobenius() and Lp(inf): leave fused out"
        )
    for parameter in group["params"]:
        refuse_fused(parameter, fused_obstacle(parameter))


def _check_numbers(group: dict[str, Any]) -> None:
    check_shared(group)
    check_number(group, "polyak_factor", lambda number: 0 < number < math.inf, "a positive number")
    steps, floor = group["ns_steps"], group["loss_floor"]
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps < 100:
        raise InputError(f"ns_steps is {steps!r}; give a whole number from 1 to 99")
    if not isinstance(floor, (int, float, Tensor)) or not bool(
        torch.isfinite(torch.as_tensor(floor)).all()
    ):
        raise InputError(
            f"loss_floor is {floor!r}; give the infimum of the loss, a finite number or a tensor of"
            " one per run"
        )


def polyak_step(
    loss: Any,
    floor: float | Tensor,
    factor: float,
    lengths: list[Tensor],
    runs: list[int],
    normalize: bool,
) -> Tensor:
    r""":math:`(L-L^\star)/(c\,\|g\|_*)` for unit directions, :math:`(L-L^\star)/(c\,\|g\|_*^2)` for
    directions of length :math:`\|g\|_*`.

    Several matrices are one point: unit directions belong to the largest of their norms, whose dual
    is the sum of dual norms; the others to the root of the sum of squares, which is its own dual.

    Args:
        loss: the loss at the point of the gradient, one number or one per run.
        floor: its infimum :math:`L^\star`, likewise.
        factor: :math:`c`, 2 in Vasudeva et al.
        lengths: the dual norms ``(k,)`` of the matrices of each batch, runs first.
        runs: how many runs each batch counts.
        normalize: whether directions have unit norm.

    Returns:
        ``()`` or ``(runs,)``: zero where the gradient vanishes or the loss is at or below its
        floor, NaN where a gradient or the loss is.

    Raises:
        InputError: what :func:`check_loss` refuses.
    """
    check_loss(loss, floor, runs)
    value, lowest = (
        torch.as_tensor(loss).detach().to(lengths[0]),
        torch.as_tensor(floor).to(lengths[0]),
    )
    gap = (value - lowest).clamp(min=0.0)
    rows = len(gap) if gap.ndim else 1
    per_run = torch.cat([length.reshape(rows, -1) for length in lengths], dim=1)
    total = per_run.sum(dim=1) if normalize else torch.linalg.vector_norm(per_run, dim=1)
    safe = torch.where(total == 0, torch.ones_like(total), total)
    step = gap.reshape(rows) / (factor * safe)
    step = torch.where(total == 0, torch.zeros_like(step), step if normalize else step / safe)
    return step if gap.ndim else step[0]


def check_loss(loss: Any, floor: float | Tensor, runs: list[int]) -> None:
    """Raise :class:`~attsvm.InputError` for no loss, and for one loss or floor per run of
    another number of runs than the parameters have.
    """
    if loss is None:
        raise InputError(
            "step_size='polyak' needs the loss: give step() a closure that returns it, or loss="
        )
    for name, number in (("loss", torch.as_tensor(loss)), ("loss_floor", torch.as_tensor(floor))):
        if number.ndim > 1 or (number.ndim == 1 and any(count != len(number) for count in runs)):
            raise InputError(
                f"the {name} has shape {tuple(number.shape)} for parameters with {runs} runs; give"
                " one number, or one per run"
            )
