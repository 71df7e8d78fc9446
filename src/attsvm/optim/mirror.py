r"""Mirror descent of :math:`\ell_p` potentials as a torch optimiser.

A dual iterate is kept beside the weights, so every step asks whether the weights are still those
that the last one wrote. In one process torch's version counter tells. A checkpoint has none: it
holds a digest of the weights' bits instead. Only where both say that somebody else has written,
single entries are compared with what the step would have written, by the very operations of that
step.
"""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from attsvm.errors import InputError
from attsvm.optim.base import DescentOptimizer, StateList, TensorList, fused_obstacle, reads_host
from attsvm.optim.mirror_maps import MAPS, PowerMap
from attsvm.optim.mirror_step import LONG, take_step
from attsvm.optim.reductions import (
    is_sharded,
    like,
    local,
    max_dtype,
    norms,
    part,
    refuse_flat,
    whole,
)

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_BLOCK = 1 << 20  # numbers: what a digest needs beside the weights is a few times this
_PLACE, _FIRST, _SECOND = -7046029254386353131, -4658895280553007687, -7723592293110705685
_DECAYS = ("dual", "primal", "l2")
_NOTHING = (-1, None)  # no version, and no knowledge of who wrote it
_NORMALIZATIONS = (None, False, True, "tensor", "run", "global")


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
    :math:`\|\cdot\|_p`: small
    :math:`p` gives sparse weights, large :math:`p` even ones. Zeros are sticky for :math:`p` near
    1: a tensor that starts at zero (a bias, the second factor of LoRA) needs :math:`|Y|^{1/(p-1)}`
    to move; give it a group with ``p=2``.

    One step is, for the gradient :math:`g` of one parameter :math:`w`, all in the precision of the
    state::

        g = -g                                    if maximize
        g = g + weight_decay * w                  if decay_mode is "l2"
        m = momentum * m + (1 - dampening) * g    if momentum (first step: m = g), then g = g +
        momentum * m (nesterov) or g = m g = g / (||g||_q + eps)                   if normalize; a
        gradient that is exactly zero stays zero y = y * (1 - lr * weight_decay)           if
        decay_mode is "dual" y = y * (1 - lr * weight_decay)**(p - 1)  if decay_mode is "primal"
        y = y - lr * g
        w = sp(y, 1 / (p - 1))

    Momentum averages in the dual space, where gradients live. Decay in the dual is mirror descent
    on :math:`L+\lambda\psi`; primal decay shrinks :math:`W` itself by :math:`1-\eta\lambda`, as
    AdamW does; ``l2`` adds :math:`\frac\lambda2\|W\|_2^2` to the loss. At :math:`p=2` without
    momentum and normalisation the three are one.

    ``lr`` is the length of a step in the dual; :func:`lr_from_sgd` translates it from gradient
    descent. Set per group: everything. Changing ``p`` of a group starts a new dual from the
    weights. Weights that somebody else has written (a loaded model, a pruning mask, averaged
    weights) are noticed by their version counter, and the dual follows where they differ; see
    :meth:`resync_`.

    Sparse COO gradients touch their own entries alone and give the dense step there; they go
    without momentum and decay.

    Args:
        params: parameters, named parameters, or groups of them.
        lr: step length :math:`\eta>0`, a number or a tensor of one.
        p: exponent of the potential, :math:`1<p<\infty`.
        momentum: :math:`\mu\ge0`.
        dampening: of momentum.
        nesterov: Nesterov's momentum.
        weight_decay: :math:`\lambda\ge0`.
        decay_mode: ``dual``, ``primal`` or ``l2``.
        normalize: None; ``tensor`` (or True), by the dual norm :math:`\|g\|_q`,
            :math:`\frac1p+\frac1q=1`, of each parameter; ``run``, the same with the last two axes
            as one matrix and the axes before them as independent runs; ``global``, by one norm over
            all parameters that say so, which then share one ``p``. Norms neither overflow nor
            underflow.
        eps: added to the dual norm; the published code adds :math:`2.2\cdot10^{-16}`, at which late
            steps stall.
        dual_state: False keeps nothing and takes :math:`Y` from the weights at every step, as the
            published code does.
        state_dtype: precision of the state; by default that of the parameter, float32 at least.
        maximize: ascend.
        potential: ``power``, or ``schatten`` for :math:`\frac1p\sum_i\sigma_i^p` of the singular
            values of the last two axes.
        foreach: multi-tensor calls.
        fused: one compiled kernel for the whole list, with or without a dual: contiguous float32 or
            float64 parameters on the CPU, with a state of the same precision. By default it is
            taken where it applies and the list is long, ``foreach`` on accelerators, and a plain
            loop elsewhere.
        capturable: the step reads nothing on the host, so that a CUDA graph can hold it: ``lr`` is
            a tensor where the parameters are; the compiled kernel, ``schatten`` and sparse
            gradients are refused.
        differentiable: not supported: the derivative of a power is infinite, or zero, at weights
            that are zero.

    Raises:
        InputError: a value out of range; a 1-D parameter with ``schatten``; ``fused`` where it does
            not apply; at :meth:`step`, what sparse gradients do not go with.

    Source: Julistiono, Ataee Tarzanagh and Azizan, *Optimizing Attention with Mirror Descent*.
    """

    state_names = ("dual", "momentum_buffer")
    accepts_sparse = True

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        p: float = 1.1,
        momentum: float = 0.0,
        dampening: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        decay_mode: str = "dual",
        normalize: bool | str | None = None,
        eps: float = 0.0,
        *,
        dual_state: bool = True,
        state_dtype: torch.dtype | None = None,
        maximize: bool = False,
        potential: str = "power",
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        self._forget()
        settings = {
            name: value
            for name, value in locals().items()
            if name not in ("self", "params", "__class__")
        }
        super().__init__(params, settings)

    def _forget(self) -> None:
        """Nothing is known of who wrote the weights."""
        self._written: dict[Tensor, tuple[int, bool]] = {}  # version, and whether by the kernel
        self._traced = False  # a compiled step writes without a word

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._forget()
        super().__setstate__(state)

    def __getstate__(self) -> dict[str, Any]:
        plain: dict[str, Any] = super().__getstate__()
        digests = self._digests()
        state = defaultdict(dict, plain["state"])
        state.update((p, {**plain["state"][p], "digest": value}) for p, value in digests.items())
        return {**plain, "state": state}

    def state_dict(self) -> dict[str, Any]:
        """As torch lays it out; beside every dual a digest of the weights that it belongs to, by
        which a loaded optimiser knows them again.
        """
        saved = super().state_dict()
        digests, state = self._digests(), dict(saved["state"])
        for mine, theirs in zip(self.param_groups, saved["param_groups"], strict=True):
            for parameter, index in zip(mine["params"], theirs["params"], strict=True):
                if parameter in digests:
                    state[index] = {**state[index], "digest": digests[parameter]}
        return {**saved, "state": state}

    @torch.no_grad()
    def _digests(self) -> dict[Tensor, Tensor]:
        """Of the weights that belong to each dual: those that are there, or those that the last
        step wrote where somebody else has written since.
        """
        found: dict[Tensor, Tensor] = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                known = self.state.get(parameter, {})
                if "dual" not in known or "digest" in known:  # loaded, and not stepped since
                    continue
                weight, wrote = parameter.detach(), self._written.get(parameter)
                if not self._in_step(parameter) and wrote is not None and not is_sharded(weight):
                    weight = written_images(
                        group, mirror_map(group), known["dual"], weight, wrote[1]
                    )[0]
                found[parameter] = digest(weight)
        return found

    def _in_step(self, parameter: Tensor) -> bool:
        """Whether nobody else has written the weights since the last step, as far as can be
        seen.
        """
        return self._written.get(parameter, _NOTHING)[0] == parameter._version or self._traced

    def _check_group(self, group: dict[str, Any]) -> None:
        p = group["p"]
        if isinstance(p, bool) or not isinstance(p, (int, float)) or not 1.0 < p < math.inf:
            raise InputError(f"p is {p!r}; the potential needs a number with 1 < p < inf")
        if not 1.01 <= p <= 10:
            warnings.warn(
                f"p = {p} makes the weights powers {1 / (p - 1):.3g} of the dual; 1.01 <= p <= 10"
                " is usual",
                stacklevel=4,
            )
        for name in ("momentum", "weight_decay", "eps"):
            if not (isinstance(group[name], (int, float)) and 0 <= group[name] < math.inf):
                raise InputError(f"{name} is {group[name]!r}; give a finite number, 0 or more")
        if not (isinstance(group["dampening"], (int, float)) and math.isfinite(group["dampening"])):
            raise InputError(f"dampening is {group['dampening']!r}; give a finite number")
        if group["nesterov"] and (group["momentum"] == 0 or group["dampening"] != 0):
            raise InputError("nesterov is True; it needs a momentum above 0 and a dampening of 0")
        for name, allowed in (
            ("decay_mode", _DECAYS),
            ("normalize", _NORMALIZATIONS),
            ("potential", tuple(MAPS)),
        ):
            if group[name] not in allowed:
                raise InputError(
                    f"{name} is {group[name]!r}; use one of {', '.join(map(repr, allowed))}"
                )
        dtype = group["state_dtype"]
        if dtype is not None and dtype not in (torch.float32, torch.float64):
            raise InputError(f"state_dtype is {dtype!r}; use torch.float32 or torch.float64")
        if group["foreach"] and group["fused"]:
            raise InputError("foreach and fused are both True; choose one")
        if group["normalize"] or group["potential"] != "power":
            refuse_flat(
                group["params"],
                f"normalize={group['normalize']!r} with potential={group['potential']!r}",
            )
        if group["capturable"] and group["potential"] == "schatten":
            raise InputError(
                "capturable is True with potential='schatten', whose singular values are found with"
                " the host; leave it False"
            )
        for parameter in group["params"]:
            if group["potential"] == "schatten" and parameter.ndim < 2:
                raise InputError(
                    f"a parameter of shape {tuple(parameter.shape)} has no singular values; give it"
                    " a group with potential='power'"
                )
            obstacle = fused_obstacle(parameter) if group["fused"] else None
            if (
                group["fused"]
                and obstacle is None
                and state_dtype(group, parameter) != parameter.dtype
            ):
                obstacle = f"is {parameter.dtype}, with a state of {state_dtype(group, parameter)}"
            if obstacle is not None:
                raise InputError(
                    f"fused is True for a parameter of shape {tuple(parameter.shape)} that"
                    f" {obstacle}; leave fused out"
                )
        group.setdefault("dual_p", p)  # the p of which the duals are; it travels with them

    @torch.no_grad()
    def resync_(self) -> None:
        """Start every dual anew from the present weights.

        Needed only where weights were changed behind torch's back (through ``.data`` or another
        view of the memory) and under ``torch.compile``, which does not see version counters; other
        writes are noticed.
        """
        for group in self.param_groups:
            self._drop_duals(group)

    def _drop_duals(self, group: dict[str, Any]) -> None:
        for parameter in group["params"]:
            for name in ("dual", "digest"):
                self.state.get(parameter, {}).pop(name, None)

    @torch.no_grad()
    def dual_of(self, group: dict[str, Any], parameter: Tensor) -> Tensor:
        """A copy of the dual iterate of the present weights of a parameter of this group, kept or
        not; no state is made.
        """
        added = self._new_state(group, parameter, self.state.get(parameter, {}))
        kept: Tensor | None = added.get("dual", self.state.get(parameter, {}).get("dual"))
        if kept is None:
            wide = group["state_dtype"] or torch.promote_types(parameter.dtype, torch.float32)
            return mirror_map(group).mirror(parameter.to(wide))
        return kept if added else kept.clone()

    @torch.no_grad()
    def move_to(self, group: dict[str, Any], parameter: Tensor, dual: Tensor) -> None:
        """Put a parameter of this group at the weights of this dual iterate, and the dual that is
        kept of it there.
        """
        kept = self.state.get(parameter, {}).get("dual")
        if kept is not None:
            kept.copy_(dual)
        parameter.copy_(mirror_map(group).image(dual))
        self._written[parameter] = parameter._version, False

    def _new_state(
        self, group: dict[str, Any], parameter: Tensor, known: dict[str, Any]
    ) -> dict[str, Any]:
        if group.setdefault("dual_p", group["p"]) != group["p"]:
            group["dual_p"] = group["p"]
            self._drop_duals(group)
        if not _keeps_dual(group, parameter):
            if "dual" in known or "digest" in known:
                self._drop_duals({"params": [parameter]})
            return {}
        if "dual" in known:
            if "digest" in known or not self._in_step(parameter):
                self._follow(group, parameter, known)
            return {}
        weight = _gather(group)(parameter.detach()).to(state_dtype(group, parameter))
        fresh = _part(mirror_map(group).mirror(weight), parameter, group)
        return {"dual": like(fresh, parameter)}

    def _init_group(
        self,
        group: dict[str, Any],
        parameters: TensorList,
        gradients: TensorList,
        *states: StateList,
    ) -> None:
        super()._init_group(group, parameters, gradients, *states)
        self._traced = self._traced or torch.compiler.is_compiling()

    def _follow(self, group: dict[str, Any], parameter: Tensor, known: dict[str, Any]) -> None:
        """Take the dual anew from every entry of the weights that somebody else has written."""
        potential, gather = mirror_map(group), _gather(group)
        weight, mine, before = gather(parameter.detach()), gather(known["dual"]), None
        if "digest" in known:
            before = digest(parameter) == known.pop("digest")
            if reads_host(group, before) and before:
                return
        fused = self._written.get(parameter, _NOTHING)[1]
        kept = weight.new_zeros((), dtype=torch.bool) if before is None else before
        for image in written_images(group, potential, mine, weight, fused):
            kept = kept | potential.agreement(weight, image)
        dual = torch.where(kept, mine, potential.mirror(weight.to(mine.dtype)))
        local(known["dual"]).copy_(_part(dual, parameter, group))

    def check_step(self) -> None:
        """See :meth:`DescentOptimizer.check_step`."""
        super().check_step()
        shared = {
            (group["p"], group["potential"])
            for group in self.param_groups
            if group["normalize"] == "global"
            and any(parameter.grad is not None for parameter in group["params"])
        }
        if len(shared) > 1:
            raise InputError(
                "groups with normalize='global' have different p or potential; one norm needs one"
                " of each"
            )

    def _check_gradients(self, group: dict[str, Any]) -> None:
        super()._check_gradients(group)
        if group["potential"] != "schatten" or torch.compiler.is_compiling():
            return
        for gradient in (parameter.grad for parameter in group["params"]):
            if (
                gradient is not None
                and not is_sharded(gradient)  # each process would see its own part
                and not bool(torch.isfinite(gradient).all())
            ):
                raise InputError(
                    f"a gradient of shape {tuple(gradient.shape)} is not finite and has no singular"
                    " values; nothing was moved: skip this step, or lower lr"
                )

    def _check_sparse(self, group: dict[str, Any], parameter: Tensor, gradient: Tensor) -> None:
        super()._check_sparse(group, parameter, gradient)
        if (
            group["momentum"]
            or group["weight_decay"]
            or group["normalize"] == "run"
            or group["potential"] == "schatten"
            or group["capturable"]
        ):
            raise InputError(
                "a sparse gradient moves its own entries alone; use it without momentum,"
                " weight_decay, normalize='run', potential='schatten' and capturable, or give a"
                " dense gradient"
            )

    def risky_groups(self) -> list[dict[str, Any]]:
        """See :meth:`DescentOptimizer.risky_groups`."""
        return [group for group in self.param_groups if group["potential"] == "schatten"]

    def _update_groups(self, moving: list[tuple[Any, ...]]) -> None:
        works = [Moving(*arguments[:-1]) for arguments in moving]
        for work, (group, parameters, _, _, buffers) in zip(works, moving, strict=True):
            self._directions(group, parameters, work, buffers)
            if group["potential"] == "schatten":
                work.gather()
        normalize(works)
        for work, (_, parameters, *_) in zip(works, moving, strict=True):
            fused = take_step(
                work.group, mirror_map(work.group), work.weights, work.gradients, work.duals
            )
            work.write_back()
            if not torch.compiler.is_compiling() and any(d is not None for d in work.duals):
                self._written.update((p, (p._version, fused)) for p in parameters)

    def _moved(self, moving: list[tuple[Any, ...]]) -> None:
        for parameter in (each for _, parameters, *_ in moving for each in parameters):
            if parameter in self._written:
                self._written[parameter] = parameter._version, self._written[parameter][1]

    def _directions(
        self, group: dict[str, Any], parameters: TensorList, work: Moving, buffers: StateList
    ) -> None:
        """Turn gradients into directions: sign, l2 decay, momentum. The gradients themselves are
        never written.
        """
        if group["maximize"]:
            work.gradients = list(torch._foreach_neg(work.gradients))
        if group["weight_decay"] and group["decay_mode"] == "l2":
            weights = [w.to(g.dtype) for w, g in zip(work.weights, work.gradients, strict=True)]
            work.gradients = list(
                torch._foreach_add(work.gradients, weights, alpha=group["weight_decay"])
            )
        if not group["momentum"]:
            return
        averages: TensorList = []
        for parameter, gradient, buffer in zip(parameters, work.gradients, buffers, strict=True):
            if buffer is None:
                averages.append(gradient.clone())
                self.state[parameter]["momentum_buffer"] = like(averages[-1], parameter)
            else:
                averages.append(
                    local(buffer)
                    .mul_(group["momentum"])
                    .add_(gradient, alpha=1 - group["dampening"])
                )
        work.gradients = (
            list(torch._foreach_add(work.gradients, averages, alpha=group["momentum"]))
            if group["nesterov"]
            else averages
        )


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
    """
    if not (1.0 < p < math.inf and 0.0 < lr < math.inf and 0.0 < typical < math.inf):
        raise InputError(
            f"lr_from_sgd got lr={lr!r}, p={p!r}, typical={typical!r}; give lr > 0, 1 < p < inf and"
            " typical > 0"
        )
    return float(lr * (p - 1.0) * typical ** (p - 2.0))


def _part(values: Tensor, parameter: Tensor, group: dict[str, Any]) -> Tensor:
    """What this process keeps of a dual, which a Schatten potential maps whole and another one in
    its parts.
    """
    return part(values, parameter) if group["potential"] == "schatten" else values


def _gather(group: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    return whole if group["potential"] == "schatten" else local


def _keeps_dual(group: dict[str, Any], parameter: Tensor) -> bool:
    return bool(group["dual_state"]) and (
        group["p"] != 2 or state_dtype(group, parameter) != parameter.dtype
    )


class Moving:
    """The tensors of one group that move in this step, as this process holds them.

    The entries that a sparse gradient names stand in for their parameter.
    """

    def __init__(
        self, group: dict[str, Any], parameters: TensorList, gradients: TensorList, duals: StateList
    ) -> None:
        self.group = group
        self.weights: TensorList = []
        self.gradients: TensorList = []
        self.duals: StateList = []
        self._parameters = parameters
        self._targets: list[tuple[Tensor, tuple[Tensor, ...], Tensor]] = []
        self._shards: list[tuple[Tensor, Tensor, Tensor]] = []
        for parameter, gradient, dual in zip(parameters, gradients, duals, strict=True):
            weight, mine = local(parameter), None if dual is None else local(dual)
            if gradient.is_sparse:
                weight, gradient, mine = self._gathered(weight, gradient.coalesce(), mine)
            else:
                gradient = local(gradient, parameter)
            self.weights.append(weight)
            wanted = state_dtype(group, parameter)
            self.gradients.append(gradient if gradient.dtype is wanted else gradient.to(wanted))
            self.duals.append(mine)

    def _gathered(
        self, weight: Tensor, gradient: Tensor, dual: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        entries = tuple(gradient.indices())
        rows = weight[entries]
        self._targets.append((weight, entries, rows))
        if dual is None:
            return rows, gradient.values(), None
        images = dual[entries]
        self._targets.append((dual, entries, images))
        return rows, gradient.values(), images

    def gather(self) -> None:
        """Bring shards together, for what needs whole matrices: every process takes the same step
        and keeps its part.
        """
        for index, parameter in enumerate(self._parameters):
            if not is_sharded(parameter):
                continue
            self.gradients[index] = whole(like(self.gradients[index], parameter))
            for column in (self.weights, self.duals):
                mine = column[index]
                if mine is not None:
                    gathered = whole(like(mine, parameter))
                    self._shards.append((mine, gathered, parameter))
                    column[index] = gathered

    def placed(self) -> TensorList:
        """The directions, placed like their parameters, so that norms are those of whole
        parameters.
        """
        if self._targets or self._shards:
            return self.gradients
        return [like(g, w) for g, w in zip(self.gradients, self._parameters, strict=True)]

    def divide(self, dual_norms: TensorList) -> None:
        """Divide every direction by its norm; what is exactly zero stays zero."""
        eps = self.group["eps"]
        divisors = [
            torch.where(norm == 0, torch.ones_like(norm), norm + eps) for norm in dual_norms
        ]
        self.gradients = [g / d.to(g.dtype) for g, d in zip(self.gradients, divisors, strict=True)]

    def write_back(self) -> None:
        """Put gathered entries, and this process's part of gathered shards, where they came
        from.
        """
        for shard, gathered, parameter in self._shards:
            shard.copy_(part(gathered, parameter))
        for target, entries, values in self._targets:
            target[entries] = values


def normalize(works: list[Moving]) -> None:
    """Divide the directions by their dual norms: of a tensor, of each run, or of all groups
    together, as each group asks.
    """
    shared = [work for work in works if work.group["normalize"] == "global"]
    for work in works:
        if work.group["normalize"] in (True, "tensor", "run"):
            work.divide(
                mirror_map(work.group).dual_norms(
                    work.placed(), runs=work.group["normalize"] == "run"
                )
            )
    if shared:
        potential = mirror_map(shared[0].group)
        each = potential.dual_norms([g for work in shared for g in work.placed()], runs=False)
        norm = norms(
            [torch.stack([value.to(each[0].device, max_dtype(each)) for value in each])],
            potential.q,
        )[0]
        for work in shared:
            work.divide([norm.to(g.device) for g in work.gradients])


def mirror_map(group: dict[str, Any]) -> PowerMap:
    """The mirror map of a group."""
    return MAPS[group["potential"]](float(group["p"]))


def state_dtype(group: dict[str, Any], parameter: Tensor) -> torch.dtype:
    """The precision of the dual of a parameter, and of its steps."""
    if group["state_dtype"] is not None:
        return group["state_dtype"]
    if group["p"] == 2 and group["potential"] == "power":
        return parameter.dtype
    return parameter.dtype if parameter.dtype.itemsize >= 4 else torch.float32


def digest(weight: Tensor) -> Tensor:
    """64 bits, ``()``, that change with any bit of any entry and with its place; the same on every
    device.

    0 for a parameter that is spread over processes, or was flattened with others: no process sees
    the whole of it.
    """
    if is_sharded(weight) or any(
        getattr(weight, name, False) for name in ("_is_flat_param", "_fsdp_flattened")
    ):
        return torch.zeros((), dtype=torch.int64, device=weight.device)
    bits = weight.detach().view(_BITS[weight.dtype.itemsize]).reshape(-1)
    total = torch.ones((), dtype=torch.int64, device=weight.device)
    for start in range(0, bits.numel(), _BLOCK):
        block = bits[start : start + _BLOCK].to(torch.int64)
        places = torch.arange(start, start + block.numel(), device=block.device)
        mixed = (block ^ places.mul_(_PLACE)).mul_(_FIRST)  # never in the weights' own memory
        mixed = mixed.bitwise_xor_(mixed >> 32).mul_(_SECOND)
        total += (mixed ^ (mixed >> 29)).sum()
    return total


def written_images(
    group: dict[str, Any], potential: PowerMap, dual: Tensor, weight: Tensor, fused: bool | None
) -> list[Tensor]:
    """The weights that a step may have left beside ``dual``, in the precision of ``weight``.

    Args:
        group: the parameter group.
        potential: its mirror map.
        dual: whole, as the potential needs it.
        weight: likewise.
        fused: whether the compiled kernel wrote them; None where nobody knows, and then both ways
            count.
    """
    images = [] if fused else [potential.image(dual).to(weight.dtype)]
    if fused is None:
        possible = group["fused"] or (
            not group["foreach"] and sum(p.numel() for p in group["params"]) >= LONG
        )
        fused = (
            possible
            and group["potential"] == "power"
            and dual.dtype == weight.dtype
            and fused_obstacle(dual) is None
        )
    if fused:
        from attsvm.optim.fused import fused_image  # and with it numba

        images.append(fused_image(potential, dual))
    return images
