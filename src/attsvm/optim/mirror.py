r"""Mirror descent of :math:`\ell_p` potentials as a torch optimiser.

A dual iterate is stored beside the weights. Where somebody else has written the weights since the
last step, which torch's version counter tells, the next one takes the dual anew from them. After a
checkpoint has been loaded, weights and state are believed to belong together.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from attsvm.base.errors import InputError
from attsvm.optim.base import (
    DescentOptimizer,
    GroupTensors,
    StateList,
    TensorList,
    add_scaled,
    average_gradients,
    check_number,
    check_shared_settings,
    fused_obstacle,
    is_known_zero,
    keep_where_zero,
    new_momentum,
    read_scalar,
    refuse_fused,
)
from attsvm.optim.native_steps import mirror_step
from attsvm.optim.powers import Exponent, mirror_exponents, signed_powers
from attsvm.optim.reductions import (
    compute_in_turns,
    distribute_like,
    full_tensor,
    local_tensor,
    norms,
    refuse_flattened,
    replace_zeros_by_ones,
    shard_of,
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

    _versions: dict[Tensor, int]
    """Version counters of torch of the weights that a step wrote: a larger one says that somebody
    else has written them since. A parameter that is missing is believed to belong to its dual.
    """

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
    ) -> None:
        self._versions = {}
        defaults = {
            "lr": lr,
            "p": p,
            "normalize": normalize,
            "momentum": momentum,
            "dampening": dampening,
            "nesterov": nesterov,
            "weight_decay": weight_decay,
            "decay_mode": decay_mode,
            "eps": eps,
            "state_dtype": state_dtype,
            "maximize": maximize,
            "potential": potential,
            "foreach": foreach,
            "fused": fused,
        }
        super().__init__(params, defaults)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._versions = {}
        super().__setstate__(state)

    def _check_group(self, group: dict[str, Any]) -> None:
        p = group["p"]
        check_number(group, "p", lambda number: 1 < number < math.inf, "a number with 1 < p < inf")
        if not 1.01 <= p <= 10:  # powers of the dual up to 100, and down to 1/9
            warnings.warn(
                f"p = {p} makes the weights powers {1 / (p - 1):.3g} of the dual; 1.01 <= p <= 10"
                " is usual",
                stacklevel=4,
            )
        mirror_exponents(float(p))  # remembered before a step is compiled: a graph must not do it
        check_shared_settings(group)
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
            refuse_flattened(
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
                dtype = state_dtype(group, parameter)
                if dtype != parameter.dtype:
                    refuse_fused(parameter, f"is {parameter.dtype}, with a state of {dtype}")
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
        """Return a copy of the dual iterate of the present weights of a parameter of this group,
        stored or not; no state is made.
        """
        state = self.state.get(parameter, {})
        if "dual" in state and not self._is_stale(group, parameter, state):
            dual: Tensor = state["dual"]
            return dual.clone()
        dtype = group["state_dtype"] or torch.promote_types(parameter.dtype, torch.float32)
        return _power(group, parameter.detach().to(dtype, copy=True), _map_exponents(group)[0])

    @torch.no_grad()
    def move_to(self, group: dict[str, Any], parameter: Tensor, dual: Tensor) -> None:
        """Put a parameter of this group at the weights of this dual iterate, and its stored dual
        there.
        """
        stored = self.state.get(parameter, {}).get("dual")
        if stored is not None:
            stored.copy_(dual)
        parameter.copy_(_power(group, dual, _map_exponents(group)[1]))
        self._versions[parameter] = parameter._version

    def _is_stale(self, group: dict[str, Any], parameter: Tensor, state: dict[str, Any]) -> bool:
        """Return whether the stored dual is missing, or not that of the weights."""
        return (
            "dual" not in state
            or group.get("dual_p", group["p"]) != group["p"]
            or self._versions.get(parameter, parameter._version) != parameter._version
        )

    def _missing_state(
        self, group: dict[str, Any], parameter: Tensor, state: dict[str, Any]
    ) -> dict[str, Any]:
        dtype = state_dtype(group, parameter)
        entries = {}
        if _stores_dual(group, parameter) and self._is_stale(group, parameter, state):
            if group["potential"] == "schatten":
                # the image of singular values needs the whole matrix
                weight = full_tensor(parameter.detach()).to(dtype, copy=True)
                dual = shard_of(_power(group, weight, _map_exponents(group)[0]), parameter)
            else:
                # an entry needs nothing but itself
                weight = local_tensor(parameter.detach()).to(dtype, copy=True)
                dual = _power(group, weight, _map_exponents(group)[0])
            entries["dual"] = distribute_like(dual, parameter)
        if state.get("momentum_buffer") is None:
            entries |= new_momentum(group, parameter, dtype)
        return entries

    def _init_group(
        self, index: int, parameters: TensorList, gradients: TensorList, *states: StateList
    ) -> None:
        # a compiled step does not see versions: duals belong to their weights
        for parameter in self.param_groups[index]["params"]:
            self._versions.pop(parameter, None)
        super()._init_group(index, parameters, gradients, *states)

    def _compute_group(self, tensors: GroupTensors, loss: Any) -> SchattenUpdate | None:
        if tensors.group["potential"] != "schatten" or _stands_still(tensors.group):
            return None
        return _compute_schatten(tensors, _stored_duals(tensors))

    def _apply_group(self, tensors: GroupTensors, results: SchattenUpdate | None) -> None:
        group, duals = tensors.group, _stored_duals(tensors)
        if results is not None:
            _write_schatten(tensors, duals, results)
        elif not _stands_still(group):
            _move_entrywise(tensors, duals)
        elif group["momentum"]:
            # averages of gradients go on
            _step_vectors(tensors, tensors.states[1])
        # of which p the duals are, and of which weights
        if group.get("dual_p") != group["p"]:
            group["dual_p"] = group["p"]
        # writes of a graph raise no version
        if torch.compiler.is_compiling():
            return
        for parameter, dual in zip(tensors.parameters, duals, strict=True):
            if dual is not None:
                self._versions[parameter] = parameter._version
            else:
                # at p = 2 the dual is the weights themselves
                self.state.get(parameter, {}).pop("dual", None)


class SchattenUpdate(NamedTuple):
    """A step of singular values before it is written, one tensor per parameter. Every process has
    whole matrices of the first two.

    Attributes:
        weights: the new weights.
        duals: the new dual iterates.
        averages: the new momentum, as this process holds it; None without.
    """

    weights: TensorList
    duals: TensorList
    averages: StateList


def _stands_still(group: dict[str, Any]) -> bool:
    """Return whether the host knows that a step of this group has length zero."""
    return is_known_zero(read_scalar(group, "lr"))


def _stored_duals(tensors: GroupTensors) -> StateList:
    """Return the dual iterate of every parameter, None where it is the weights themselves."""
    return [
        dual if _stores_dual(tensors.group, parameter) else None
        for dual, parameter in zip(tensors.states[0], tensors.parameters, strict=True)
    ]


def _move_entrywise(tensors: GroupTensors, duals: StateList) -> None:
    """Take the steps 1 to 5 of the class entry by entry, in place: with a compiled pass over each
    tensor where that applies, otherwise by calls of torch.
    """
    group, parameters = tensors.group, tensors.parameters
    # 1 and 2: gradients with l2 decay and momentum
    vectors = _step_vectors(tensors, tensors.states[1])
    # 3: over their dual norms
    if group["normalize"]:
        distributed = [
            distribute_like(vector, parameter)
            for vector, parameter in zip(vectors, parameters, strict=True)
        ]
        vectors = _divide_by_norms(group, vectors, distributed)
    lr, shrink = read_scalar(group, "lr"), _shrink_factor(group)
    weights = [local_tensor(parameter) for parameter in parameters]
    rows = list(zip(weights, vectors, duals, strict=True))
    # 4 where the dual is the weight
    if plain := [(weight, vector) for weight, vector, dual in rows if dual is None]:
        targets, directions = map(list, zip(*plain, strict=True))
        _move_dual(targets, directions, lr, shrink)
    # 4 and 5 where it is stored
    stored = [(w, vector, local_tensor(dual)) for w, vector, dual in rows if dual is not None]
    if not stored:
        return
    weights, vectors, points = (list(column) for column in zip(*stored, strict=True))
    inverse = _map_exponents(group)[1]
    if (
        _may_fuse(group)
        and not isinstance(lr, Tensor)
        and not isinstance(shrink, Tensor)
        and mirror_step(weights, vectors, list(points), shrink, lr, inverse)
    ):
        return
    # on a CPU multi-tensor calls are loops anyway, and what one tensor makes stays in the cache
    one_by_one = group["foreach"] is False or weights[0].device.type == "cpu"
    for batch in [[row] for row in stored] if one_by_one else [stored]:
        weights, vectors, points = (list(column) for column in zip(*batch, strict=True))
        # 4: the dual
        _move_dual(points, vectors, lr, shrink)
        # 5: the weights, its image
        images = signed_powers(points, inverse)
        torch._foreach_copy_(weights, keep_where_zero(lr, weights, images))


def _move_dual(
    points: TensorList, vectors: TensorList, lr: float | Tensor, shrink: float | Tensor
) -> None:
    r"""Write :math:`Y\leftarrow\rho Y-\eta M`, step 4 of the class."""
    if isinstance(shrink, Tensor) or shrink != 1.0:
        torch._foreach_mul_(points, shrink)
    add_scaled(points, vectors, -lr)


def _compute_schatten(tensors: GroupTensors, duals: StateList) -> SchattenUpdate:
    """Return the steps 1 to 5 of the class on singular values. Every process has the step of
    whole matrices, whose decompositions are dealt to the processes; nothing is changed.
    """
    group, parameters = tensors.group, tensors.parameters
    buffers = tensors.states[1]
    averages = [None if buffer is None else local_tensor(buffer).clone() for buffer in buffers]
    # 1 and 2: gradients with l2 decay and momentum
    vectors = [
        full_tensor(distribute_like(vector, parameter))
        for vector, parameter in zip(_step_vectors(tensors, averages), parameters, strict=True)
    ]
    # 3: over their dual norms
    if group["normalize"]:
        vectors = compute_in_turns(
            vectors, parameters, lambda share: _divide_by_norms(group, share, share), can_fail=True
        )
    # 4; at p = 2 the weights are their own dual
    lr, shrink, inverse = read_scalar(group, "lr"), _shrink_factor(group), _map_exponents(group)[1]
    points = [
        full_tensor(parameter if dual is None else dual).detach()
        for parameter, dual in zip(parameters, duals, strict=True)
    ]
    moved = [point * shrink - vector * lr for point, vector in zip(points, vectors, strict=True)]
    moved = keep_where_zero(lr, points, moved)
    # 5: the weights, powers of the singular values of the dual
    weights = compute_in_turns(
        moved,
        parameters,
        lambda share: [_power(group, point, inverse) for point in share],
        can_fail=True,
    )
    if isinstance(lr, Tensor):
        before = [full_tensor(parameter).detach() for parameter in parameters]
        weights = keep_where_zero(lr, before, weights)
    return SchattenUpdate(weights, moved, averages)


def _write_schatten(tensors: GroupTensors, duals: StateList, update: SchattenUpdate) -> None:
    """Write this process's shards of the new weights and duals, and the new momentum."""
    rows = zip(tensors.parameters, duals, update.weights, update.duals, strict=True)
    for parameter, dual, new_weight, new_dual in rows:
        local_tensor(parameter).copy_(shard_of(new_weight, parameter))
        if dual is not None:
            local_tensor(dual).copy_(shard_of(new_dual, parameter))
    for buffer, average in zip(tensors.states[1], update.averages, strict=True):
        if buffer is not None and average is not None:
            local_tensor(buffer).copy_(average)


def _step_vectors(tensors: GroupTensors, buffers: StateList) -> TensorList:
    """Update the momentum in ``buffers``, and return the vectors that the step goes along, as this
    process holds them: steps 1 and 2 of the class.
    """
    group, parameters = tensors.group, tensors.parameters
    vectors = [
        local_tensor(gradient, parameter).to(state_dtype(group, parameter))
        for gradient, parameter in zip(tensors.gradients, parameters, strict=True)
    ]
    if group["maximize"]:
        vectors = list(torch._foreach_neg(vectors))
    # 1: decay as part of the loss
    if group["weight_decay"] and group["decay_mode"] == "l2":
        weights = [local_tensor(p).to(v.dtype) for p, v in zip(parameters, vectors, strict=True)]
        vectors = list(torch._foreach_add(vectors, weights, alpha=group["weight_decay"]))
    # 2: averages, in the dual space
    local_buffers = [None if buffer is None else local_tensor(buffer) for buffer in buffers]
    return average_gradients(group, vectors, local_buffers)


def _divide_by_norms(
    group: dict[str, Any], vectors: TensorList, distributed: TensorList
) -> TensorList:
    """Return the vectors over their dual norms, step 3 of the class.

    Args:
        group: the parameter group.
        vectors: as this process holds them.
        distributed: the same vectors, spread over processes like their parameters.
    """
    if group["potential"] == "schatten":
        distributed = [_singular_values(matrix)[..., None, :] for matrix in distributed]
    q = 1.0 + _map_exponents(group)[1].value
    lengths: list[Tensor] = list(vectors)
    counts = [max(0, tensor.ndim - 2) for tensor in distributed]
    # one message per number of leading axes
    for run_axes in sorted(set(counts)):
        members = [index for index, count in enumerate(counts) if count == run_axes]
        values = norms([distributed[index] for index in members], q, run_axes)
        divisors = replace_zeros_by_ones(values)
        if group["eps"]:
            torch._foreach_add_(divisors, group["eps"])
        for index, divisor in zip(members, divisors, strict=True):
            lengths[index] = divisor.to(vectors[index].dtype)
    return list(torch._foreach_div(vectors, lengths))


def _shrink_factor(group: dict[str, Any]) -> float | Tensor:
    r"""Return :math:`\rho`, the factor of the dual in step 4 of the class."""
    if not group["weight_decay"] or group["decay_mode"] == "l2":
        return 1.0
    shrink = 1.0 - read_scalar(group, "lr") * group["weight_decay"]
    if group["decay_mode"] == "primal" and group["p"] != 2:
        return shrink ** _map_exponents(group)[0].value
    return shrink


def _map_exponents(group: dict[str, Any]) -> tuple[Exponent, Exponent]:
    r"""Return :math:`p-1`, from weights to the dual, and :math:`\frac1{p-1}`, back."""
    return mirror_exponents(float(group["p"]))


def _power(group: dict[str, Any], matrix: Tensor, exponent: Exponent) -> Tensor:
    """Return the mirror map of a group, or its inverse, of a plain tensor."""
    if group["potential"] == "power":
        return signed_powers([matrix], exponent)[0]
    if exponent.value == 1.0:
        return matrix
    # powers of the singular values; torch refuses to decompose what is not finite
    is_finite = _are_finite(matrix)
    U, sigma, Vh = torch.linalg.svd(torch.where(is_finite, matrix, 0.0), full_matrices=False)
    image = (U * signed_powers([sigma], exponent)[0][..., None, :]) @ Vh
    return torch.where(is_finite, image, math.nan)


def _singular_values(matrix: Tensor) -> Tensor:
    """Return the singular values ``(..., r)``, NaN for a matrix that is not finite, which torch
    refuses.
    """
    is_finite = _are_finite(matrix)
    sigma = torch.linalg.svdvals(torch.where(is_finite, matrix, 0.0))
    return torch.where(is_finite[..., 0], sigma, math.nan)


def _are_finite(matrix: Tensor) -> Tensor:
    """Return whether all entries of each matrix are finite, ``(..., 1, 1)``."""
    return torch.isfinite(matrix).all(dim=-1, keepdim=True).all(dim=-2, keepdim=True)


def _may_fuse(group: dict[str, Any]) -> bool:
    """Return whether the compiled pass is asked for, or not declined."""
    if torch.compiler.is_compiling():
        return False
    return bool(group["fused"]) or (group["fused"] is None and group["foreach"] is None)


def _stores_dual(group: dict[str, Any], parameter: Tensor) -> bool:
    """Return whether the dual is another tensor than the weights."""
    return bool(group["p"] != 2 or state_dtype(group, parameter) != parameter.dtype)


def _warn_of_zeros(group: dict[str, Any]) -> None:
    """Warn of a group of zeros whose weights are powers of the dual above 2: a step of ``lr g``
    from zero is a weight of ``(lr g)^(1/(p-1))``, which is hardly any.
    """
    if group["p"] >= 1.5 or group["normalize"]:
        return
    weights = [local_tensor(parameter.detach()) for parameter in group["params"]]
    if weights and not any(weight.is_meta or bool(weight.any()) for weight in weights):
        warnings.warn(
            f"every parameter of a group is zero, where steps at p = {group['p']} hardly move it;"
            " give it p=2, or to AdamW",
            stacklevel=5,
        )


def state_dtype(group: dict[str, Any], parameter: Tensor) -> torch.dtype:
    """Return the precision of the dual of a parameter, and of its steps."""
    if group["state_dtype"] is not None:
        return group["state_dtype"]
    if group["p"] == 2 and group["potential"] == "power":
        return parameter.dtype
    return parameter.dtype if parameter.dtype.itemsize >= 4 else torch.float32


def lr_from_sgd(lr: float, p: float, typical: float) -> float:
    r"""Return the step length :math:`\eta_p\approx\eta_2\,(p-1)\,\bar w^{\,p-2}` that moves weights
    of size :math:`\bar w` as SGD does.

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
