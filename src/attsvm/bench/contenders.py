"""Who takes part in the optimiser benchmark, one line each, and the parameter lists that they
step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

import attsvm.optim
from attsvm.geometry import parse_norm

Make = Callable[[list[Tensor]], Optimizer]

_LR = 1e-4

Shapes = list[tuple[int, ...]]


def transformer(width: int, layers: int, vocabulary: int) -> Shapes:
    """A decoder: embedding, then per layer two norms, fused QKV, projection and a four-fold MLP,
    with biases.
    """
    linear = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)]
    layer = [(width,)] * 4 + [shape for matrix in linear for shape in (matrix, matrix[:1])]
    return [(vocabulary, width), *(layer * layers), (width,), (width,)]


LISTS: dict[str, Callable[[], Shapes]] = {
    "1M": partial(transformer, 128, 4, 2_048),
    "10M": partial(transformer, 256, 8, 16_384),
    "100M": partial(transformer, 768, 9, 48_000),
    "1G": partial(transformer, 2_048, 18, 50_000),
    "heads": lambda: [(64, 64)] * 1024,
}
"""Lists of parameter shapes: transformers by their rough number of parameters, and many equal
matrices of the size of a head.
"""


def hidden_matrices(name: str) -> Shapes:
    """What spectral methods are meant for: the matrices without the embedding, whose rows are many
    times its columns.
    """
    return [shape for shape in LISTS[name]() if len(shape) == 2 and shape[0] <= 4 * shape[1]]


@dataclass(frozen=True)
class Contender:
    """An optimiser under a name.

    Attributes:
        make: the optimiser over a list of parameters. It may raise, when this version of the
            package lacks it.
        traffic: float32 numbers per parameter that one step has to read or write.
        state: float32 numbers per parameter that it keeps.
        reference: the contender beside which its time is given.
        matrices: it steps the hidden matrices only.
    """

    make: Make
    traffic: int
    state: int
    reference: str
    matrices: bool = False


def _torch(name: str, **options: Any) -> Make:
    return lambda parameters: getattr(torch.optim, name)(parameters, lr=_LR, **options)


def _mirror(p: float, **options: Any) -> Make:
    return lambda parameters: _ours("MirrorDescent")(parameters, lr=_LR, p=p, **options)


def _steepest(norm: str, **options: Any) -> Make:
    return lambda parameters: _ours("SteepestDescent")(
        parameters, lr=_LR, norm=parse_norm(norm), **options
    )


def _ours(name: str) -> Any:
    return getattr(attsvm.optim, name)


_FORMS: dict[str, dict[str, bool]] = {"foreach": {"foreach": True}, "fused": {"fused": True}}
_AS_MUON: dict[str, Any] = {
    "momentum": 0.95,
    "dampening": 0.95,
    "nesterov": True,
    "weight_decay": 0.1,  # the defaults of torch.optim.Muon
    "polar": "newton-schulz",
}
ADAMW = {form: f"AdamW {form}" for form in ("for-loop", "foreach", "fused")}

CONTENDERS: dict[str, Contender] = {
    # A step reads the gradient, reads and writes the weights, and reads and writes each kept
    # number; a dual iterate replaces reading W.
    ADAMW["for-loop"]: Contender(_torch("AdamW", foreach=False), 7, 2, ADAMW["for-loop"]),
    ADAMW["foreach"]: Contender(_torch("AdamW", foreach=True), 7, 2, ADAMW["foreach"]),
    ADAMW["fused"]: Contender(_torch("AdamW", fused=True), 7, 2, ADAMW["fused"]),
    "SGD foreach": Contender(_torch("SGD", foreach=True), 3, 0, ADAMW["foreach"]),
    "SGD fused": Contender(_torch("SGD", fused=True), 3, 0, ADAMW["fused"]),
    **{
        f"MirrorDescent p={p:g} {form}": Contender(
            _mirror(p, **options), 3 if p == 2 else 4, 0 if p == 2 else 1, ADAMW[form]
        )
        for form, options in _FORMS.items()
        for p in (1.1, 1.5, 1.75, 2.0, 3.0)
    },
    "MirrorDescent p=1.5 fused, no state": Contender(
        _mirror(1.5, fused=True, dual_state=False), 3, 0, ADAMW["fused"]
    ),
    "SteepestDescent fro": Contender(_steepest("fro"), 4, 0, ADAMW["foreach"]),
    "SteepestDescent linf": Contender(_steepest("linf"), 3, 0, ADAMW["foreach"]),
    "SteepestDescent l1": Contender(_steepest("l1"), 4, 0, ADAMW["foreach"]),
    "SteepestDescent lp:1.75": Contender(_steepest("lp:1.75"), 4, 0, ADAMW["foreach"]),
    "Muon": Contender(_torch("Muon"), 5, 1, "Muon", matrices=True),
    "SteepestDescent spec, as Muon": Contender(
        _steepest("spec", **_AS_MUON), 5, 1, "Muon", matrices=True
    ),
    "SteepestDescent spec, Newton-Schulz": Contender(
        _steepest("spec", polar="newton-schulz"), 3, 0, "Muon", matrices=True
    ),
    "SteepestDescent spec, exact": Contender(_steepest("spec"), 3, 0, "Muon", matrices=True),
}
"""Every contestant by name, with the one it is compared with. A new one is a new line here."""
