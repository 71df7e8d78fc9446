r"""Where the query and key weights of each head lie, and how a head's logits are scaled by them.

QK-clip (Kimi Team, *Kimi K2: Open Agentic Intelligence*, 2025) multiplies the logits of one head by
:math:`\gamma<1` through its weights. What is multiplied:

* heads with keys of their own: queries and keys by :math:`\sqrt\gamma` each, with their biases;
* *grouped* heads, which share keys, and *latent* heads, whose keys are made from a compressed
  stream: the head's queries by :math:`\gamma`, so that no other head changes;
* *tied* queries and keys (one parameter is both): that parameter by :math:`\sqrt\gamma`, once;
* one module that runs as *several layers* (ALBERT), or one parameter in several modules: once, by
  the smallest factor that any of them asks for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attsvm.base.errors import InputError
from attsvm.optim.reductions import full_tensor, local_tensor, shard_of
from attsvm.optim.split import Matrix, split_params


@dataclass(frozen=True)
class _Rows:
    """The rows of a parameter that make queries, or keys.

    Attributes:
        weight: name of the matrix.
        bias: name of its bias.
        axis: of the rows, 0 or 1.
        starts: per head, its first row of the matrix.
        shift: what to add for its first entry of the bias.
    """

    weight: str
    bias: str | None
    axis: int
    starts: tuple[int, ...]
    shift: int = 0


@dataclass(frozen=True)
class HeadWeights:
    """The weights of the heads of one attention module.

    Attributes:
        queries: one start per head.
        keys: one start per key head; ``None`` where keys are no linear map of the layer's input.
        d: width of a head.
    """

    queries: _Rows
    keys: _Rows | None
    d: int

    def of(self, model: nn.Module) -> tuple[Tensor, Tensor | None]:
        """Query and key weights in float32, ``(heads, d, width)`` each, copies; a collective call
        where parameters are sharded.
        """
        queries = self._heads(model, self.queries)
        if self.keys is None:
            return queries, None
        keys = self._heads(model, self.keys)
        return queries, keys.repeat_interleave(len(queries) // len(keys), dim=0)

    def _heads(self, model: nn.Module, rows: _Rows) -> Tensor:
        matrix = full_tensor(model.get_parameter(rows.weight).detach()).float()
        matrix = matrix if rows.axis == 0 else matrix.mT
        return torch.stack([matrix[start : start + self.d] for start in rows.starts])


def products(
    queries: Tensor, keys: Tensor | None, others: Tensor, other_keys: Tensor | None
) -> Tensor:
    r"""Per head :math:`\langle W_K^\top W_Q,V_K^\top V_Q\rangle`, from products of the head's
    size; of the queries alone where there are no keys.
    """
    if keys is None or other_keys is None:
        return (queries * others).sum(dim=(1, 2))
    return ((keys @ other_keys.mT) * (queries @ others.mT)).sum(dim=(1, 2))


def find(model: nn.Module, module: str, heads: int, d: int) -> HeadWeights | None:
    """The weights of the attention that ``module`` calls; ``None`` where they are not found, or do
    not have ``heads`` times ``d`` rows.

    Args:
        model: their names are those of this module.
        module: name of the module that calls attention, inside ``model``.
        heads: number of query heads.
        d: width of a head.
    """
    try:
        known = split_params(model, ("query", "key"), blocks=None).matrices
    except InputError:
        return None
    matrices = {matrix.parameter: matrix for matrix in known}
    path = module.split(".") if module else []
    for depth in range(len(path), max(len(path) - 3, -1), -1):
        prefix = ".".join([*path[:depth], ""]) if depth else ""
        here = [
            (name, matrices[parameter])
            for name, parameter in model.named_parameters(remove_duplicate=False)
            if name.startswith(prefix) and parameter in matrices
        ]
        if here:
            return _laid_out(dict(model.named_parameters()), here, heads, d)
    return None


def _laid_out(
    named: Mapping[str, Tensor], here: list[tuple[str, Matrix]], heads: int, d: int
) -> HeadWeights | None:
    asking = [each for each in here if each[1].roles == ("query",)]
    keys = [each for each in here if each[1].roles == ("key",)]
    fused = [each for each in here if {"query", "key"} <= set(each[1].roles)]
    size = heads * d
    if fused and len(here) == 1:
        matrix = fused[0][1]
        if matrix.sizes is not None:
            asked, kept, *_ = matrix.sizes
            if asked != size or kept % d:
                return None
            first, second = list(range(0, size, d)), list(range(size, size + kept, d))
        else:  # group by group: the queries of its heads, its keys, its values
            length = matrix.parameter.shape[matrix.axis]
            groups = (length // d - heads) // 2
            if groups < 1 or heads % groups or (heads + 2 * groups) * d != length:
                return None
            each = heads // groups
            stride = (each + 2) * d
            first = [(h // each) * stride + (h % each) * d for h in range(heads)]
            second = list(range(each * d, groups * stride, stride))
        both = [_rows(named, matrix, tuple(some)) for some in (first, second)]
        return HeadWeights(both[0], both[1], d)
    asking = [each for each in asking if each[1].parameter.shape[each[1].axis] == size]
    if len({id(matrix) for _, matrix in asking}) != 1 or fused:
        return None
    queries = asking[0][1]
    own = _rows(named, queries, tuple(range(0, size, d)))
    if len(asking) > 1:  # under two names: queries and keys are one parameter
        return HeadWeights(own, own, d)
    if len(keys) != 1:  # keys that come with values, or from a compressed stream
        made = any("key" in matrix.roles for _, matrix in here)
        return HeadWeights(own, None, d) if made else None
    matrix = keys[0][1]
    length = matrix.parameter.shape[matrix.axis]
    if length % d or heads % (length // d):
        return None
    shift = size if matrix.name.endswith("k_proj_weight") else 0
    return HeadWeights(own, _rows(named, matrix, tuple(range(0, length, d)), shift), d)


def _rows(
    named: Mapping[str, Tensor], matrix: Matrix, starts: tuple[int, ...], shift: int = 0
) -> _Rows:
    name = matrix.name
    bias = name[: -len("weight")] + "bias" if name.endswith("weight") else ""
    if name.endswith(("q_proj_weight", "k_proj_weight")):  # torch keeps their biases in one
        bias = name[: -len("q_proj_weight")] + "in_proj_bias"
    return _Rows(name, bias if bias in named else None, matrix.axis % 2, starts, shift)


class Clip:
    """Factors of logits, gathered over heads and then applied together.

    Args:
        model: whose parameters are multiplied.

    Attributes:
        shrunk: per parameter, the product of all factors so far, one number for each row.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._factors: dict[str, Tensor] = {}
        self.shrunk: dict[str, Tensor] = {}
        self._starts: dict[str, Tensor] = {}

    def head(self, weights: HeadWeights, head: int, factor: float) -> None:
        """Ask for ``factor`` on the logits of this head; of several askings the smallest counts."""
        keys = weights.keys
        if keys is None or len(keys.starts) < len(weights.queries.starts):
            self._ask(weights.queries, head, weights.d, factor)  # keys are not this head's alone
            return
        for rows in (weights.queries, keys):
            self._ask(rows, head, weights.d, math.sqrt(factor))

    def _ask(self, rows: _Rows, head: int, d: int, factor: float) -> None:
        for name, start in (
            (rows.weight, rows.starts[head]),
            (rows.bias, rows.starts[head] + rows.shift),
        ):
            if name is None:
                continue
            parameter = self._model.get_parameter(name)
            axis = rows.axis if parameter.ndim > 1 else 0
            if name not in self._factors:
                self._factors[name] = torch.ones(parameter.shape[axis], dtype=torch.float64)
            self._factors[name][start : start + d].clamp_(max=factor)

    def apply(self) -> None:
        """Multiply; rows of other heads keep their bits."""
        for name, factors in self._factors.items():
            mine, values = self._beside(name, factors)
            mine.mul_(values)
            self.shrunk[name] = factors * self.shrunk.get(name, 1.0)
        self._factors = {}

    def before_step(self) -> None:
        """Keep the weights that have been clipped, to shorten the step that comes."""
        self._starts = {name: self._beside(name, f)[0].clone() for name, f in self.shrunk.items()}

    def after_step(self) -> None:
        """Shorten the step since :meth:`before_step` as the weights have been: it stays as long,
        relative to them, as it would be had they never been clipped. Other rows keep their bits.
        """
        for name, start in self._starts.items():
            mine, values = self._beside(name, self.shrunk[name])
            mine.copy_(torch.where(values < 1, start + values * (mine - start), mine))
        self._starts = {}

    def _beside(self, name: str, factors: Tensor) -> tuple[Tensor, Tensor]:
        """This process's part of a parameter, and of factors of its rows in the same shape."""
        parameter = self._model.get_parameter(name).detach()
        mine = local_tensor(parameter)
        shape = (-1, 1) if parameter.ndim > 1 and len(factors) == parameter.shape[0] else (-1,)
        values = factors.to(mine).reshape(shape).expand(parameter.shape).contiguous()
        return mine, shard_of(values, parameter)
