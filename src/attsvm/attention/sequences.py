"""Data as a model reads it: keys, values, queries and targets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from attsvm import native
from attsvm.base.errors import InputError
from attsvm.base.printable import kind
from attsvm.datasets.attention_data import (
    AttentionData,
    FloatArray,
    centred_tokens,
    floats,
    real_array,
)

Features = ArrayLike | Callable[[AttentionData], ArrayLike] | nn.Module
"""Keys or values: a matrix that maps tokens to them, the array of all, a function of the data that
gives it, or a module that maps tokens to them and is trained.
"""


@dataclass(frozen=True)
class Sequences:
    """An :class:`~attsvm.AttentionData` as a model reads it, in torch tensors.

    Logits matter only up to a constant per sequence, so they are computed from keys less their
    mean: a large common part then costs no digits.

    Attributes:
        values: ``(..., n, T, d_v)``, what attention averages; the tokens where a module makes
            values of them.
        keys: ``(..., n, T, d_k)``, less the mean of their sequence; as they are for a model with a
            ``similarity`` of its own; the tokens where a module makes keys of them.
        queries: ``(..., n, d_z)``.
        labels: ``(..., n)``.
        mask: ``(..., n, T)``, which tokens a query sees.
        targets: ``(..., n)`` or ``(..., n, C)``, what the values of a sequence are compared with;
            None where that is its label.
        compiled_passes: compiled passes over these sequences, by their form; filled when a loss
            is first computed (:mod:`attsvm.attention.compiled_pass`).

    >>> from attsvm.datasets import unit_sphere
    >>> from attsvm.attention import Attention
    >>> data, head = unit_sphere(n=6, T=8, d=10, seed=0)
    >>> sequences = Attention.cross(data, head).sequences(data)
    >>> tuple(sequences.keys.shape), bool(sequences.keys.mean(dim=1).abs().max() < 1e-12)
    ((6, 8, 10), True)
    """

    values: Tensor
    keys: Tensor
    queries: Tensor
    labels: Tensor
    mask: Tensor
    targets: Tensor | None = None
    compiled_passes: dict[tuple[int, bool, bool, bool], Any] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )


@dataclass(frozen=True, eq=False)
class Inputs:
    """How a model reads data.

    Attributes:
        keys: a matrix ``(d_k, d_x)`` that maps tokens to keys, an array ``(..., n, T, d_k)``, a
            function of the data that gives such an array, or a module that maps tokens to keys;
            the tokens themselves when left out.
        values: the same, with ``d_v`` features.
        prompt: whether one prompt takes the place of the queries, which then are ones.
        targets: ``(..., n)`` or ``(..., n, C)``; None where labels play that part.

    >>> import numpy as np
    >>> from attsvm.datasets import unit_sphere
    >>> from attsvm.attention import Inputs
    >>> data, _ = unit_sphere(n=6, T=8, d=10, seed=0)
    >>> Inputs(keys=np.ones((3, 10))).dimensions(data)
    (3, 10)
    """

    keys: Features | None = None
    values: Features | None = None
    prompt: bool = False
    targets: NDArray[Any] | None = None

    def keyed(self, data: AttentionData) -> tuple[AttentionData, FloatArray | None]:
        """Data whose tokens are the keys, or whose tokens the matrix beside it maps to them.

        Raises:
            InputError: keys of another shape, not finite, or that ask for gradients.
        """
        return _featured_data("keys", self.keys, data)

    @property
    def modules(self) -> dict[str, nn.Module]:
        """The modules among keys and values, by these names."""
        features = {"keys": self.keys, "values": self.values}
        return {name: value for name, value in features.items() if isinstance(value, nn.Module)}

    def valued(self, data: AttentionData) -> AttentionData:
        """Data whose tokens are the values.

        Raises:
            InputError: as in :meth:`keyed`.
        """
        valued, matrix = _featured_data("values", self.values, data)
        return valued if matrix is None else with_tokens(valued, mapped(valued.tokens, matrix))

    def dimensions(self, data: AttentionData) -> tuple[int, int]:
        """``(d_k, d_z)``: the shape of the combined weights."""
        keyed, matrix = self.keyed(_first_token(data) if "keys" in self.modules else data)
        return keyed.d_x if matrix is None else len(matrix), 1 if self.prompt else data.d_z

    def value_width(self, data: AttentionData) -> int:
        """``d_v``: features of a value."""
        return self.valued(_first_token(data) if "values" in self.modules else data).d_x

    def arrays(self, data: AttentionData) -> list[NDArray[Any]]:
        """Keys, values and targets that the data are read with beside themselves."""
        keyed, matrix = self.keyed(data)
        arrays: list[NDArray[Any]] = []
        if self.keys is not None:
            arrays.append(keyed.tokens if matrix is None else matrix)
        if self.values is not None:
            arrays.append(self.valued(data).tokens)
        if self.targets is not None:
            arrays.append(self.targets)
        return arrays

    def read(self, data: AttentionData, like: Tensor, centred: bool = True) -> Sequences:
        """The data with the dtype and on the device of ``like``.

        Args:
            data: what to read.
            like: a parameter of the model.
            centred: whether keys are measured from the mean of their sequence.
        """

        def tensor(array: NDArray[Any]) -> Tensor:
            kind = like.dtype if array.dtype.kind == "f" else None
            return torch.tensor(array, dtype=kind, device=like.device)

        # a module makes features of the tokens themselves, anew whenever they are needed
        modules = self.modules
        raw = replace(
            self,
            keys=None if "keys" in modules else self.keys,
            values=None if "values" in modules else self.values,
        )
        keyed, matrix = raw.keyed(data)
        keys = centred_tokens(keyed) if centred and "keys" not in modules else keyed.tokens
        fits = self.targets is not None and _target_axes(self.targets, data) is not None
        return Sequences(
            tensor(raw.valued(data).tokens),
            tensor(keys if matrix is None else mapped(keys, matrix)),
            tensor(np.ones((*data.labels.shape, 1)) if self.prompt else data.queries),
            tensor(data.labels),
            tensor(data.mask),
            tensor(self.targets) if fits and self.targets is not None else None,
        )


def mapped(tokens: FloatArray, matrix: FloatArray) -> FloatArray:
    """``(..., d)``: tokens ``(..., d_x)`` under a matrix ``(d, d_x)``; equal tokens have equal
    bits.
    """
    rows = native.products_by_row(tokens.reshape(-1, tokens.shape[-1]), matrix)
    return rows.reshape(*tokens.shape[:-1], len(matrix))


def with_tokens(data: AttentionData, tokens: FloatArray) -> AttentionData:
    """Data with the labels, queries and mask of ``data`` and these tokens."""
    return AttentionData(tokens, data.labels, data.queries, data.mask)


def module_features(name: str, module: nn.Module | None, tokens: Tensor) -> Tensor:
    """Keys or values ``(..., n, T, d)`` that a module makes of tokens ``(..., n, T, d_x)``; the
    tokens themselves without one.

    Raises:
        InputError: a module that fails, or features of another shape or precision.
    """
    if module is None:
        return tokens
    try:
        features: Any = module(tokens)
    except RuntimeError as error:
        raise InputError(
            f"the module of {name} fails on tokens of {tokens.dtype} and shape"
            f" {tuple(tokens.shape)}: {error}; the layer works in float64"
        ) from error
    shape = tuple(tokens.shape[:-1])
    if (
        not isinstance(features, Tensor)
        or features.dtype != tokens.dtype
        or features.shape[-1 - len(shape) : -1] != shape
    ):
        described = (
            f"{features.dtype} of shape {tuple(features.shape)}"
            if isinstance(features, Tensor)
            else kind(features)
        )
        raise InputError(
            f"the module of {name} gives {described} for tokens of {tokens.dtype} and shape"
            f" {tuple(tokens.shape)}; give features ({', '.join(map(str, shape))}, d) of that"
            " precision"
        )
    return features


def _first_token(data: AttentionData) -> AttentionData:
    """The first sequence of the data with its first token alone."""
    first = data.instance(0) if data.batch_shape else data
    return AttentionData(first.tokens[:1, :1], first.labels[:1], first.queries[:1])


def with_unit_queries(data: AttentionData) -> AttentionData:
    """Data with the sequences of ``data``, each queried by the number 1."""
    return AttentionData(data.tokens, data.labels, np.ones((*data.labels.shape, 1)), data.mask)


def as_targets(targets: ArrayLike, data: AttentionData, classes: bool) -> NDArray[Any]:
    """Targets as numbers, or as numbers of classes.

    Raises:
        InputError: another shape, a value that is not finite, classes that are no whole numbers.
    """
    array = real_array("targets", targets)
    numbers = np.array(array, dtype=np.int64 if array.dtype.kind in "iu" else np.float64)
    axes = _target_axes(numbers, data)
    if axes is None:
        raise InputError(
            f"targets has shape {numbers.shape} for labels {data.labels.shape}; give one number, or"
            " one row of numbers, per sequence"
        )
    if not np.isfinite(numbers).all():
        raise InputError("targets holds a value that is not finite; every value must be finite")
    numbers = np.broadcast_to(numbers, (*data.labels.shape, *numbers.shape[len(axes) :]))
    if not classes:
        return numbers
    is_class = (numbers == np.rint(numbers)) & (numbers >= 0)
    if not is_class.all() or numbers.ndim > data.labels.ndim:
        raise InputError(
            "loss='cross_entropy' compares with numbers of classes; give targets 0, 1, 2, ..., one"
            " per sequence"
        )
    return numbers.astype(np.int64)


def _target_axes(targets: NDArray[Any], data: AttentionData) -> tuple[int, ...] | None:
    """The axes of targets that count runs and sequences; None where they are of other data."""
    for axes in (data.labels.shape, (data.n,)):
        if targets.ndim - len(axes) in (0, 1) and targets.shape[: len(axes)] == axes:
            return axes
    return None


def _featured_data(
    name: str, features: Features | None, data: AttentionData
) -> tuple[AttentionData, FloatArray | None]:
    """Data with these features as tokens, or with a matrix that maps its tokens to them."""
    if features is None:
        return data, None
    values: Any
    if isinstance(features, nn.Module):
        with torch.no_grad():
            values = module_features(name, features, torch.tensor(data.tokens))
    else:
        values = features(data) if callable(features) else features
    if getattr(values, "requires_grad", False):
        raise InputError(
            f"{name} asks for gradients, which are read once and not trained; detach it, or give a"
            " module that makes them of tokens"
        )
    array = floats(name, values)
    shape = data.mask.shape
    if array.ndim == 2 and array.shape[1] == data.d_x and len(array):
        return data, array
    if array.ndim < 3 or array.shape[:-1] not in (shape, shape[-2:]) or not array.shape[-1]:
        raise InputError(
            f"{name} has shape {array.shape} and the data tokens of shape {data.tokens.shape}; give"
            f" a matrix (d, {data.d_x}), or an array ({', '.join(map(str, shape))}, d)"
        )
    tokens = np.where(data.mask[..., None], array, 0.0)
    if not np.isfinite(tokens).all():
        raise InputError(f"{name} holds a value that is not finite; every value must be finite")
    return with_tokens(data, tokens), None
