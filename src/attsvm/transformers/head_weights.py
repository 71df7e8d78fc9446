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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attsvm.base.errors import InputError
from attsvm.optim.reductions import full_tensor, local_tensor, shard_of
from attsvm.optim.split import Matrix, split_params


@dataclass(frozen=True)
class HeadRows:
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

    def first_entries(self, head: int) -> list[tuple[str, int, int]]:
        """Return the parameters with rows of this head: name, first row, and the axis of rows."""
        entries = [(self.weight, self.starts[head], self.axis)]
        if self.bias is not None:
            entries.append((self.bias, self.starts[head] + self.shift, 0))
        return entries


@dataclass(frozen=True)
class HeadWeights:
    """The weights of the heads of one attention module.

    Attributes:
        queries: one start per head.
        keys: one start per key head; ``None`` where keys are no linear map of the layer's input.
        d: width of a head.
    """

    queries: HeadRows
    keys: HeadRows | None
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

    def _heads(self, model: nn.Module, rows: HeadRows) -> Tensor:
        matrix = full_tensor(model.get_parameter(rows.weight).detach()).float()
        matrix = matrix if rows.axis == 0 else matrix.mT
        return torch.stack([matrix[start : start + self.d] for start in rows.starts])


def weight_inner_products(
    queries: Tensor, keys: Tensor | None, others: Tensor, other_keys: Tensor | None
) -> Tensor:
    r"""The inner product :math:`\langle W_K^\top W_Q,V_K^\top V_Q\rangle` of each head, from
    products of the head's size; of the queries alone where there are no keys.
    """
    if keys is None or other_keys is None:
        return (queries * others).sum(dim=(1, 2))
    return ((keys @ other_keys.mT) * (queries @ others.mT)).sum(dim=(1, 2))


def find_head_weights(model: nn.Module, module: str, heads: int, d: int) -> HeadWeights | None:
    """The weights of the attention that ``module`` calls; ``None`` where they are not recognised,
    or do not have ``heads`` times ``d`` rows.

    Args:
        model: their names are those of this module.
        module: name of the module that calls attention, inside ``model``.
        heads: number of query heads.
        d: width of a head.
    """
    try:
        split_matrices = split_params(model, ("query", "key"), blocks=None).matrices
    except InputError:
        return None
    matrix_of_parameter = {matrix.parameter: matrix for matrix in split_matrices}
    path = module.split(".") if module else []
    # the module itself, then the one or two around it: some models attend inside a submodule
    for depth in range(len(path), max(len(path) - 3, -1), -1):
        prefix = ".".join([*path[:depth], ""]) if depth else ""
        matrices = [
            (name, matrix_of_parameter[parameter])
            for name, parameter in model.named_parameters(remove_duplicate=False)
            if name.startswith(prefix) and parameter in matrix_of_parameter
        ]
        # the sum of a frozen matrix and an adapter is no parameter
        if any("lora_" in name for name, _ in matrices):
            return None
        if matrices:
            return _locate_heads(dict(model.named_parameters()), matrices, heads, d)
    return None


def _locate_heads(
    parameters: Mapping[str, Tensor], matrices: list[tuple[str, Matrix]], heads: int, d: int
) -> HeadWeights | None:
    """The rows of each head in the query and key matrices of one module; ``None`` where shapes do
    not tell them.

    Args:
        parameters: all parameters of the model by name.
        matrices: name and matrix of what makes queries or keys in this module.
        heads: number of query heads.
        d: width of a head.

    1. One matrix for queries, keys and values: see :func:`_locate_in_fused_matrix`.
    2. One matrix for queries: head ``h`` has the rows from ``h d`` on.
    3. The same parameter for keys, keys from a compressed stream, or one matrix for keys.
    """
    fused = [matrix for _, matrix in matrices if {"query", "key"} <= set(matrix.roles)]
    # 1. queries, keys and values from one product
    if fused and len(matrices) == 1:
        return _locate_in_fused_matrix(parameters, fused[0], heads, d)
    # 2. the matrix of the queries, under one name or two
    query_matrices = [
        matrix
        for _, matrix in matrices
        if matrix.roles == ("query",) and matrix.parameter.shape[matrix.axis] == heads * d
    ]
    if fused or len({id(matrix) for matrix in query_matrices}) != 1:
        return None
    queries = _head_rows(parameters, query_matrices[0], range(0, heads * d, d))
    # 3. the keys
    if len(query_matrices) > 1:  # under two names: queries and keys are one parameter
        return HeadWeights(queries, queries, d)
    key_matrices = [matrix for _, matrix in matrices if matrix.roles == ("key",)]
    if len(key_matrices) != 1:  # keys that come with values, or from a compressed stream
        has_keys = any("key" in matrix.roles for _, matrix in matrices)
        return HeadWeights(queries, None, d) if has_keys else None
    matrix = key_matrices[0]
    length = matrix.parameter.shape[matrix.axis]
    if length % d or heads % (length // d):
        return None
    # torch keeps the biases of queries, keys and values in one vector, one after the other
    shift = heads * d if matrix.name.endswith("k_proj_weight") else 0
    return HeadWeights(queries, _head_rows(parameters, matrix, range(0, length, d), shift), d)


def _locate_in_fused_matrix(
    parameters: Mapping[str, Tensor], matrix: Matrix, heads: int, d: int
) -> HeadWeights | None:
    """The rows of each head in a matrix that makes queries, keys and values; ``None`` where its
    shape does not tell them.
    """
    query_length = heads * d
    if matrix.sizes is not None:
        # all queries, then all keys, then all values
        first, key_length, *_ = matrix.sizes
        if first != query_length or key_length % d:
            return None
        query_starts = list(range(0, query_length, d))
        key_starts = list(range(query_length, query_length + key_length, d))
    else:
        # group by group: the queries of its heads, its keys, its values
        # (heads + 2 groups) d rows: one key head and one value head for each group
        length = matrix.parameter.shape[matrix.axis]
        groups = (length // d - heads) // 2
        if groups < 1 or heads % groups or (heads + 2 * groups) * d != length:
            return None
        group_size = heads // groups
        stride = (group_size + 2) * d
        query_starts = [(h // group_size) * stride + (h % group_size) * d for h in range(heads)]
        key_starts = list(range(group_size * d, groups * stride, stride))
    queries = _head_rows(parameters, matrix, query_starts)
    return HeadWeights(queries, _head_rows(parameters, matrix, key_starts), d)


def _head_rows(
    parameters: Mapping[str, Tensor], matrix: Matrix, starts: Iterable[int], shift: int = 0
) -> HeadRows:
    """The rows at which heads of a matrix begin, and the bias that goes with it."""
    name = matrix.name
    bias = name[: -len("weight")] + "bias" if name.endswith("weight") else ""
    if name.endswith(("q_proj_weight", "k_proj_weight")):  # torch keeps their biases in one
        bias = name[: -len("q_proj_weight")] + "in_proj_bias"
    known_bias = bias if bias in parameters else None
    return HeadRows(name, known_bias, matrix.axis % 2, tuple(starts), shift)


def _clipped_rows(weights: HeadWeights) -> list[HeadRows]:
    """Return what takes the factor of a head: its queries, and its keys where no other head has
    them.
    """
    keys = weights.keys
    if keys is None or len(keys.starts) < len(weights.queries.starts):
        return [weights.queries]
    return [weights.queries, keys]


class LogitClip:
    """Factors of logits, gathered over heads and then applied together.

    Args:
        model: whose parameters are multiplied.

    Attributes:
        row_factors: per parameter, the product of all factors so far, one number for each row.

    A clip that is *on trial* can be taken back, bit for bit, until :meth:`forget`.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._requests: dict[str, Tensor] = {}
        self.row_factors: dict[str, Tensor] = {}
        self._before: dict[str, Tensor] = {}
        self._on_trial: set[str] = set()
        self._saved: dict[str, tuple[Tensor, Tensor]] = {}

    def check_row_factors(self, row_factors: Mapping[str, Tensor]) -> None:
        """Refuse factors that are not those of rows of parameters of this model.

        Raises:
            InputError: a name that is no parameter, or another number of rows.
        """
        parameters = dict(self._model.named_parameters())
        for name, factors in row_factors.items():
            shape = tuple(parameters[name].shape) if name in parameters else ()
            if len(factors) not in shape:
                raise InputError(
                    f"the state of the guard has {len(factors)} factors for {name}, which in this"
                    f" model {f'has shape {shape}' if shape else 'is no parameter'}; load the"
                    " state of a guard of this model"
                )

    def request(
        self, weights: HeadWeights, head: int, factor: float, on_trial: bool = False
    ) -> None:
        """Ask for ``factor`` on the logits of this head; the smallest request counts."""
        clipped = _clipped_rows(weights)
        # logits are products of queries and keys: a square root for each where both are clipped
        share = factor if len(clipped) == 1 else math.sqrt(factor)
        for rows in clipped:
            for name, start, axis in rows.first_entries(head):
                # several layers may share a parameter: the smallest factor counts, once
                if name not in self._requests:
                    length = self._model.get_parameter(name).shape[axis]
                    self._requests[name] = torch.ones(length, dtype=torch.float64)
                self._requests[name][start : start + weights.d].clamp_(max=share)
                if on_trial:
                    self._on_trial.add(name)

    def apply(self) -> None:
        """Multiply; rows of other heads keep their bits."""
        # of a sharded parameter each process multiplies its own share
        for name, factors in self._requests.items():
            weights, shares = self._on_this_process(name, factors)
            # the product of all factors shortens later steps
            earlier = self.row_factors.get(name, torch.ones_like(factors))
            if name in self._on_trial:
                self._saved[name] = weights.clone(), earlier
            weights.mul_(shares)
            self.row_factors[name] = factors * earlier
        self._requests, self._on_trial = {}, set()

    def restore(self, weights: HeadWeights, head: int) -> None:
        """Take the latest clip of this head back: its rows have the bits from before it."""
        for rows in _clipped_rows(weights):
            for name, start, _ in rows.first_entries(head):
                if name not in self._saved:
                    continue
                saved, earlier = self._saved[name]
                restored = torch.zeros_like(earlier)
                restored[start : start + weights.d] = 1.0
                values, is_restored = self._on_this_process(name, restored)
                values.copy_(torch.where(is_restored > 0, saved, values))
                self.row_factors[name] = torch.where(restored > 0, earlier, self.row_factors[name])

    def forget(self) -> None:
        """Forget the weights from before the latest clip, which stays."""
        self._saved = {}

    def before_step(self) -> None:
        """Remember the weights that have been clipped, to shorten the step that comes."""
        self._before = {
            name: self._on_this_process(name, factors)[0].clone()
            for name, factors in self.row_factors.items()
        }

    def after_step(self) -> None:
        """Shorten the step since :meth:`before_step` as the weights have been: it stays as long,
        relative to them, as it would be had they never been clipped. Other rows keep their bits.
        """
        for name, before in self._before.items():
            weights, factors = self._on_this_process(name, self.row_factors[name])
            shortened = before + factors * (weights - before)
            weights.copy_(torch.where(factors < 1, shortened, weights))
        self._before = {}

    def _on_this_process(self, name: str, factors: Tensor) -> tuple[Tensor, Tensor]:
        """This process's share of a parameter, and factors of its rows in the same shape."""
        parameter = self._model.get_parameter(name).detach()
        weights = local_tensor(parameter)
        shape = (-1, 1) if parameter.ndim > 1 and len(factors) == parameter.shape[0] else (-1,)
        values = factors.to(weights).reshape(shape).expand(parameter.shape).contiguous()
        return weights, shard_of(values, parameter)
