r"""Mirror descent of :math:`\ell_p` potentials as a torch optimiser.

A dual iterate is kept beside the weights. Where somebody else has written the weights since the
last step, which torch's version counter tells, the next one takes the dual anew from them. After a
checkpoint has been loaded, weights and state are believed to belong together.
"""

from __future__ import annotations

import math
import warnings
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from attsvm.base.errors import InputError
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
    held,
    momentum_buffer,
    refuse_fused,
    scalar,
    stands,
)
from attsvm.optim.native_steps import mirror_step
from attsvm.optim.powers import Exponent, mirror_exponents, signed_powers
from attsvm.optim.reductions import (
    like,
    local,
    norms,
    part,
    positive,
    refuse_flat,
    whole,
)

_DECAYS = ("dual", "primal", "l2")
_POTENTIALS = ("power", "schatten")


class MirrorDescent(DescentOptimizer):
    r"""Mirror descent with the potential :math:`\psi(W)=\frac1p\|W\|_p^p`, :math:`1<p<\infty`.

    .. math:: Y \leftarrow Y-\eta\,\nabla L,\qquad W \leftarrow
        \mathrm{sp}\big(Y,\tfrac1{p-1}\big),\qquad
              \mathrm{sp}(y,r)=\mathrm{sign}(y)\,|y|^r .

    :math:`Y=\nabla\psi(W)=\mathrm{sp}(W,p-1)` is the dual iterate. It is kept, in float32 or
    better, and the weights are its image: small gradients add up where the weights alone would
    round them away, and a low-precision parameter has its master copy in it.
    :math:`p=2` is gradient descent, bit for bit ``torch.optim.SGD``, and keeps nothing.

    On separable data the direction of the weights converges to the max-margin solution in the norm
    :math:`\|\cdot\|_p`: small :math:`p` gives sparse weights, large :math:`p` even ones. Zeros are
    sticky for :math:`p` near 1: a tensor that starts at zero (a bias, the second factor of LoRA)
    needs :math:`|Y|^{1/(p-1)}` to move; give it a group with ``p=2``.

    One step is, for the gradient :math:`G` of one parameter, all in the precision of the state:

    1. :math:`G\leftarrow G+\lambda W` if ``decay_mode`` is ``l2``;
    2. :math:`M` of :math:`G` by ``momentum``, ``dampening`` and ``nesterov``, as in
       :mod:`attsvm.optim.base`;
    3. :math:`M\leftarrow M/(\|M\|_q+\text{eps})`, :math:`\frac1p+\frac1q=1`, if ``normalize``; zero
       stays zero;
    4. :math:`Y\leftarrow\rho Y-\eta M` with :math:`\rho=1-\eta\lambda` if ``decay_mode`` is
       ``dual``, :math:`(1-\eta\lambda)^{p-1}` if it is ``primal``, 1 otherwise;
    5. :math:`W=\mathrm{sp}(Y,\frac1{p-1})`.

    Momentum averages in the dual space, where gradients live. Decay in the dual is mirror descent
    on :math:`L+\lambda\psi`; primal decay shrinks :math:`W` itself by :math:`1-\eta\lambda`, as
    AdamW and :class:`attsvm.optim.SteepestDescent` do; ``l2`` adds :math:`\frac\lambda2\|W\|_2^2`
    to the loss. At :math:`p=2` without momentum and normalisation the three are one.

    ``lr`` is the length of a step in the dual; :func:`lr_from_sgd` translates it from gradient
    descent. Set per group: everything. Changing ``p`` of a group starts a new dual from the
    weights, and so does writing the weights (loading a model, pruning, averaging); see
    :meth:`resync_`.

    Args:
        params: parameters, named parameters, or groups of them.
        lr: step length :math:`\eta\ge0`, a number or a tensor of one.
        p: exponent of the potential, :math:`1<p<\infty`.
        normalize: steps of length ``lr`` in the dual norm :math:`\|\cdot\|_q`, for every matrix of
            the last two axes. Norms neither overflow nor underflow.
        momentum: :math:`0\le\mu<1`.
        dampening: :math:`0\le\tau\le1`.
        nesterov: Nesterov's momentum.
        weight_decay: :math:`\lambda\ge0`.
        decay_mode: ``dual``, ``primal`` or ``l2``.
        eps: added to the dual norm; the published code adds :math:`2.2\cdot10^{-16}`, at which late
            steps stall.
        state_dtype: precision of the state; by default that of the parameter, float32 at least.
        maximize: ascend.
        potential: ``power``, or ``schatten`` for :math:`\frac1p\sum_i\sigma_i^p` of the singular
            values of the last two axes.
        foreach: multi-tensor calls; False goes one by one.
        fused: one compiled pass over each tensor: contiguous float32 or float64 parameters on the
            CPU, with a state of the same precision. By default it is taken where it applies.
        differentiable: not supported: the derivative of a power is infinite, or zero, at weights
            that are zero.

    Raises:
        InputError: a value out of range; a 1-D parameter with ``schatten``; ``fused`` where it does
            not apply.

    Source: Julistiono, Ataee Tarzanagh and Azizan, *Optimizing Attention with Mirror Descent*.

    Example:
        >>> import torch
        >>> from attsvm.optim import MirrorDescent
        >>> W = torch.nn.Parameter(torch.tensor([[1.0, -0.5], [0.2, 0.1]]))
        >>> optimizer = MirrorDescent([W], lr=0.1, p=1.5)
        >>> (W.sum() ** 2).backward()
        >>> optimizer.step()
        >>> [[round(w, 3) for w in row] for row in W.tolist()]
        [[0.706, -0.752], [0.082, 0.024]]
    """

    state_names = ("dual", "momentum_buffer")

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        p: float = 1.1,
        normalize: bool = False,
        momentum: float = 0.0,
        dampening: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        decay_mode: str = "dual",
        eps: float = 0.0,
        *,
        state_dtype: torch.dtype | None = None,
        maximize: bool = False,
        potential: str = "power",
        foreach: bool | None = None,
        fused: bool | None = None,
        differentiable: bool = False,
    ) -> None:
        self._written: dict[Tensor, int] = {}  # version of the weights after the last step
        settings = {
            name: value
            for name, value in locals().items()
            if name not in ("self", "params", "__class__")
        }
        super().__init__(params, settings)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._written = {}
        super().__setstate__(state)

    def _check_group(self, group: dict[str, Any]) -> None:
        p = group["p"]
        check_number(group, "p", lambda number: 1 < number < math.inf, "a number with 1 < p < inf")
        if not 1.01 <= p <= 10:
            warnings.warn(
                f"p = {p} makes the weights powers {1 / (p - 1):.3g} of the dual; 1.01 <= p <= 10"
                " is usual",
                stacklevel=4,
            )
        check_shared(group)
        check_number(group, "eps", lambda number: 0 <= number < math.inf, "0 or more")
        for name, allowed in (("decay_mode", _DECAYS), ("potential", _POTENTIALS)):
            if group[name] not in allowed:
                raise InputError(
                    f"{name} is {group[name]!r}; use one of {', '.join(map(repr, allowed))}"
                )
        dtype, schatten = group["state_dtype"], group["potential"] == "schatten"
        if dtype is not None and dtype not in (torch.float32, torch.float64):
            raise InputError(f"state_dtype is {dtype!r}; use torch.float32 or torch.float64")
        if group["normalize"] or schatten:
            refuse_flat(
                group["params"],
                f"normalize={group['normalize']!r} with potential={group['potential']!r}",
            )
        for parameter in group["params"]:
            if schatten and parameter.ndim < 2:
                raise InputError(
                    f"a parameter of shape {tuple(parameter.shape)} has no singular values; give it"
                    " a group with potential='power'"
                )
            if group["fused"]:
                refuse_fused(parameter, fused_obstacle(parameter))
                wide = state_dtype(group, parameter)
                if wide != parameter.dtype:
                    refuse_fused(parameter, f"is {parameter.dtype}, with a state of {wide}")
        _warn_of_zeros(group)
        group.setdefault("dual_p", p)  # the p of which the duals are; it travels with them

    @torch.no_grad()
    def resync_(self) -> None:
        """Start every dual anew from the present weights.

        Needed only where weights were changed behind torch's back (through ``.data`` or another
        view of the memory), between a load and the next step, and under ``torch.compile``, which
        does not see version counters; other writes are noticed.
        """
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state.get(parameter, {}).pop("dual", None)

    @torch.no_grad()
    def dual_of(self, group: dict[str, Any], parameter: Tensor) -> Tensor:
        """A copy of the dual iterate of the present weights of a parameter of this group, kept or
        not; no state is made.
        """
        known = self.state.get(parameter, {})
        if "dual" in known and not self._is_stale(group, parameter, known):
            kept: Tensor = known["dual"]
            return kept.clone()
        wide = group["state_dtype"] or torch.promote_types(parameter.dtype, torch.float32)
        return _power(group, parameter.detach().to(wide, copy=True), _exponents(group)[0])

    @torch.no_grad()
    def move_to(self, group: dict[str, Any], parameter: Tensor, dual: Tensor) -> None:
        """Put a parameter of this group at the weights of this dual iterate, and the dual that is
        kept of it there.
        """
        kept = self.state.get(parameter, {}).get("dual")
        if kept is not None:
            kept.copy_(dual)
        parameter.copy_(_power(group, dual, _exponents(group)[1]))
        self._written[parameter] = parameter._version

    def _is_stale(self, group: dict[str, Any], parameter: Tensor, known: dict[str, Any]) -> bool:
        """Whether the dual that is kept, if there is one, is not that of the weights."""
        return (
            "dual" not in known
            or group.get("dual_p", group["p"]) != group["p"]
            or self._written.get(parameter, parameter._version) != parameter._version
        )

    def _new_state(
        self, group: dict[str, Any], parameter: Tensor, known: dict[str, Any]
    ) -> dict[str, Any]:
        if self._born is None:  # a compiled step writes without a word
            self._written.pop(parameter, None)
        wide = state_dtype(group, parameter)
        added = {}
        if _keeps_dual(group, parameter) and self._is_stale(group, parameter, known):
            schatten = group["potential"] == "schatten"
            weight = (whole if schatten else local)(parameter.detach()).to(wide, copy=True)
            dual = _power(group, weight, _exponents(group)[0])
            added["dual"] = like(part(dual, parameter) if schatten else dual, parameter)
        if known.get("momentum_buffer") is None:
            added |= momentum_buffer(group, parameter, wide)
        return added

    def _prepared(
        self, group: dict[str, Any], parameters: TensorList, gradients: TensorList, *states: Any
    ) -> Write:
        duals, buffers = states
        duals = [
            dual if _keeps_dual(group, parameter) else None
            for dual, parameter in zip(duals, parameters, strict=True)
        ]
        move: Write
        if stands(scalar(group, "lr")):
            move = partial(_average, group, parameters, gradients, buffers)
        elif group["potential"] == "schatten":
            move = _schatten_step(group, parameters, gradients, duals, buffers)
        else:
            move = partial(_power_step, group, parameters, gradients, duals, buffers)

        def write() -> None:
            move()
            if group.get("dual_p") != group["p"]:
                group["dual_p"] = group["p"]
            if self._born is not None:
                for parameter, dual in zip(parameters, duals, strict=True):
                    if dual is not None:
                        self._written[parameter] = parameter._version
                    elif parameter in self.state:
                        self.state[parameter].pop("dual", None)

        return write


def _average(
    group: dict[str, Any], parameters: TensorList, gradients: TensorList, buffers: StateList
) -> None:
    """A step of length 0."""
    if group["momentum"]:
        _vectors(group, parameters, gradients, buffers)


def _power_step(
    group: dict[str, Any],
    parameters: TensorList,
    gradients: TensorList,
    duals: StateList,
    buffers: StateList,
) -> None:
    vectors = _vectors(group, parameters, gradients, buffers)
    if group["normalize"]:
        placed = [
            like(each, parameter) for each, parameter in zip(vectors, parameters, strict=True)
        ]
        vectors = _normalized(group, vectors, placed)
    lr, shrink = scalar(group, "lr"), _shrink(group)
    weights = [local(parameter) for parameter in parameters]
    rows = list(zip(weights, vectors, duals, strict=True))
    if plain := [(w, v) for w, v, dual in rows if dual is None]:  # the dual is the weight
        targets, directions = map(list, zip(*plain, strict=True))
        if isinstance(shrink, Tensor) or shrink != 1.0:
            torch._foreach_mul_(targets, shrink)
        add_scaled(targets, directions, -lr)
    kept = [(w, v, local(dual)) for w, v, dual in rows if dual is not None]
    if not kept:
        return
    moving, along, points = (list(column) for column in zip(*kept, strict=True))
    inverse = _exponents(group)[1]
    if (
        _fuses(group)
        and not isinstance(lr, Tensor)
        and not isinstance(shrink, Tensor)
        and mirror_step(moving, along, list(points), shrink, lr, inverse)
    ):
        return
    # on a CPU multi-tensor calls are loops anyway, and what they make stays in the cache
    alone = group["foreach"] is False or weights[0].device.type == "cpu"
    for some in [[row] for row in kept] if alone else [kept]:
        weights, vectors, moved = (list(column) for column in zip(*some, strict=True))
        if isinstance(shrink, Tensor) or shrink != 1.0:
            torch._foreach_mul_(moved, shrink)
        add_scaled(moved, vectors, -lr)
        torch._foreach_copy_(weights, held(lr, weights, signed_powers(moved, inverse)))


def _schatten_step(
    group: dict[str, Any],
    parameters: TensorList,
    gradients: TensorList,
    duals: StateList,
    buffers: StateList,
) -> Write:
    """Every process takes the step of whole matrices, and keeps its part."""
    averages = [None if buffer is None else local(buffer).clone() for buffer in buffers]
    vectors = [
        whole(like(vector, parameter))
        for vector, parameter in zip(
            _vectors(group, parameters, gradients, averages), parameters, strict=True
        )
    ]
    if group["normalize"]:
        vectors = _normalized(group, vectors, vectors)
    lr, shrink, inverse = scalar(group, "lr"), _shrink(group), _exponents(group)[1]
    points = [
        whole(parameter if dual is None else dual).detach()
        for parameter, dual in zip(parameters, duals, strict=True)
    ]
    moved = held(
        lr,
        points,
        [point * shrink - vector * lr for point, vector in zip(points, vectors, strict=True)],
    )
    images = [_power(group, each, inverse) for each in moved]
    if isinstance(lr, Tensor):
        images = held(lr, [whole(parameter).detach() for parameter in parameters], images)

    def write() -> None:
        for parameter, image, dual, each in zip(parameters, images, duals, moved, strict=True):
            local(parameter).copy_(part(image, parameter))
            if dual is not None:
                local(dual).copy_(part(each, parameter))
        for buffer, average in zip(buffers, averages, strict=True):
            if buffer is not None and average is not None:
                local(buffer).copy_(average)

    return write


def _vectors(
    group: dict[str, Any], parameters: TensorList, gradients: TensorList, buffers: StateList
) -> TensorList:
    """What the step goes along, as this process holds it."""
    vectors = [
        local(gradient, parameter).to(state_dtype(group, parameter))
        for gradient, parameter in zip(gradients, parameters, strict=True)
    ]
    if group["maximize"]:
        vectors = list(torch._foreach_neg(vectors))
    if group["weight_decay"] and group["decay_mode"] == "l2":
        weights = [local(p).to(v.dtype) for p, v in zip(parameters, vectors, strict=True)]
        vectors = list(torch._foreach_add(vectors, weights, alpha=group["weight_decay"]))
    return averaged(
        group, vectors, [None if buffer is None else local(buffer) for buffer in buffers]
    )


def _normalized(group: dict[str, Any], vectors: TensorList, placed: TensorList) -> TensorList:
    """Vectors over their dual norms; ``placed`` are the same, spread over processes like their
    parameters.
    """
    if group["potential"] == "schatten":
        placed = [_singular_values(each)[..., None, :] for each in placed]
    q = 1.0 + _exponents(group)[1].value
    lengths: list[Tensor] = list(vectors)
    runs = [max(0, each.ndim - 2) for each in placed]
    for keep in sorted(set(runs)):
        members = [index for index, count in enumerate(runs) if count == keep]
        found = positive(norms([placed[index] for index in members], q, keep))
        if group["eps"]:
            torch._foreach_add_(found, group["eps"])
        for index, length in zip(members, found, strict=True):
            lengths[index] = length.to(vectors[index].dtype)
    return list(torch._foreach_div(vectors, lengths))


def _shrink(group: dict[str, Any]) -> float | Tensor:
    """What the dual is multiplied with."""
    if not group["weight_decay"] or group["decay_mode"] == "l2":
        return 1.0
    shrink = 1.0 - scalar(group, "lr") * group["weight_decay"]
    if group["decay_mode"] == "primal" and group["p"] != 2:
        return shrink ** _exponents(group)[0].value
    return shrink


def _exponents(group: dict[str, Any]) -> tuple[Exponent, Exponent]:
    return mirror_exponents(float(group["p"]))


def _power(group: dict[str, Any], matrix: Tensor, exponent: Exponent) -> Tensor:
    """The mirror map of a group, or its inverse, of a plain tensor."""
    if group["potential"] == "power":
        return signed_powers([matrix], exponent)[0]
    if exponent.value == 1.0:
        return matrix
    finite = _finite(matrix)
    U, sigma, Vh = torch.linalg.svd(torch.where(finite, matrix, 0.0), full_matrices=False)
    image = (U * signed_powers([sigma], exponent)[0][..., None, :]) @ Vh
    return torch.where(finite, image, math.nan)


def _singular_values(matrix: Tensor) -> Tensor:
    """``(..., r)``, NaN for a matrix that is not finite, which torch refuses."""
    finite = _finite(matrix)
    sigma = torch.linalg.svdvals(torch.where(finite, matrix, 0.0))
    return torch.where(finite[..., 0], sigma, math.nan)


def _finite(matrix: Tensor) -> Tensor:
    """``(..., 1, 1)``: whether all entries of each matrix are finite."""
    return torch.isfinite(matrix).all(dim=-1, keepdim=True).all(dim=-2, keepdim=True)


def _fuses(group: dict[str, Any]) -> bool:
    """Whether the compiled pass is wanted."""
    if torch.compiler.is_compiling():
        return False
    return bool(group["fused"]) or (group["fused"] is None and group["foreach"] is None)


def _keeps_dual(group: dict[str, Any], parameter: Tensor) -> bool:
    return bool(group["p"] != 2 or state_dtype(group, parameter) != parameter.dtype)


def _warn_of_zeros(group: dict[str, Any]) -> None:
    """At p near 1 a weight of zero hardly moves: y = lr g is a weight of y^(1/(p-1))."""
    if group["p"] >= 1.5 or group["normalize"]:
        return
    mine = [local(parameter.detach()) for parameter in group["params"]]
    if mine and not any(each.is_meta or bool(each.any()) for each in mine):
        warnings.warn(
            f"every parameter of a group is zero, where steps at p = {group['p']} hardly move it;"
            " give it p=2, or to AdamW",
            stacklevel=5,
        )


def state_dtype(group: dict[str, Any], parameter: Tensor) -> torch.dtype:
    """The precision of the dual of a parameter, and of its steps."""
    if group["state_dtype"] is not None:
        return group["state_dtype"]
    if group["p"] == 2 and group["potential"] == "power":
        return parameter.dtype
    return parameter.dtype if parameter.dtype.itemsize >= 4 else torch.float32


def lr_from_sgd(lr: float, p: float, typical: float) -> float:
    r"""The step length :math:`\eta_p\approx\eta_2\,(p-1)\,\bar w^{\,p-2}` that moves weights of
    size :math:`\bar w` as SGD does.

    To first order mirror descent moves a weight by :math:`\eta\frac{|w|^{2-p}}{p-1}g`. For
    un-normalised steps.

    Args:
        lr: step length of gradient descent, :math:`\eta_2`.
        p: exponent of the potential.
        typical: typical modulus :math:`\bar w` of a weight, for instance the standard deviation of
            its initialisation.

    Raises:
        InputError: a value that is not positive and finite, ``p`` not above 1.

    Example:
        >>> from attsvm.optim import lr_from_sgd
        >>> round(lr_from_sgd(0.1, p=1.5, typical=0.04), 4)
        0.25
    """
    if not (1.0 < p < math.inf and 0.0 < lr < math.inf and 0.0 < typical < math.inf):
        raise InputError(
            f"lr_from_sgd got lr={lr!r}, p={p!r}, typical={typical!r}; give lr > 0, 1 < p < inf and"
            " typical > 0"
        )
    return float(lr * (p - 1.0) * typical ** (p - 2.0))
