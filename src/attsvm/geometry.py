"""Norms of weight matrices: one object, read by optimisers and by solvers.

An optimiser asks a norm for its steepest-descent direction, a solver minimises the same norm
subject to margins.  Everything here is written against the array API standard, so the same lines
serve NumPy arrays and torch tensors.  Matrices live on the last two axes; any leading axes are runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from array_api_compat import array_namespace

from attsvm.errors import InputError

Array = Any  # numpy.ndarray or torch.Tensor: whatever array_namespace understands


class Norm(ABC):
    """A norm on matrices together with its dual.

    ``value`` and ``dual_value`` take ``(..., d_x, d_z)`` and return ``(...)``.
    """

    name: str
    """How the norm is written on the command line."""

    @abstractmethod
    def value(self, W: Array) -> Array:
        r""":math:`\|W\|`, over the last two axes."""

    @abstractmethod
    def dual_value(self, G: Array) -> Array:
        r""":math:`\|G\|_* = \max_{\|W\|\le 1}\langle G, W\rangle`, over the last two axes."""

    @abstractmethod
    def steepest(self, G: Array) -> Array:
        r"""A unit-norm :math:`D` with :math:`\langle G, D\rangle = \|G\|_*`; zero where ``G`` is zero.

        Steepest descent moves along ``-steepest(gradient)``.
        """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Norm) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Frobenius(Norm):
    r"""The Frobenius norm :math:`\|W\|_F=(\sum_{ij} W_{ij}^2)^{1/2}`, its own dual.

    Gradient descent on ``W`` converges in direction to the max-margin solution in this norm
    (Tarzanagh et al., *Transformers as Support Vector Machines*).
    Squares are taken after division by the largest entry, so no scale overflows or underflows.
    """

    name = "fro"

    def value(self, W: Array) -> Array:
        """See :meth:`Norm.value`."""
        xp = array_namespace(W)
        scale = xp.max(xp.abs(W), axis=(-2, -1))
        safe = xp.where(scale > 0, scale, xp.ones_like(scale))
        scaled = W / safe[..., None, None]
        return scale * xp.sqrt(xp.sum(scaled * scaled, axis=(-2, -1)))

    def dual_value(self, G: Array) -> Array:
        """The norm is its own dual."""
        return self.value(G)

    def steepest(self, G: Array) -> Array:
        """``G / |G|``."""
        xp = array_namespace(G)
        scale = xp.max(xp.abs(G), axis=(-2, -1))
        safe = xp.where(scale > 0, scale, xp.ones_like(scale))
        scaled = G / safe[..., None, None]
        norm = xp.sqrt(xp.sum(scaled * scaled, axis=(-2, -1)))
        return scaled / xp.where(norm > 0, norm, xp.ones_like(norm))[..., None, None]


_NORMS: dict[str, tuple[type[Norm], str]] = {
    "fro": (Frobenius, "Frobenius norm: what gradient descent on W minimises"),
}


def norm_names() -> dict[str, str]:
    """How each norm is written on the command line, with a line about it."""
    return {name: line for name, (_, line) in _NORMS.items()}


def parse_norm(text: str) -> Norm:
    """The norm that ``text`` names on the command line (``fro``).

    Raises:
        InputError: the name is unknown.
    """
    try:
        return _NORMS[text.strip().lower()][0]()
    except KeyError:
        raise InputError(f"unknown norm {text!r}; known norms: {', '.join(_NORMS)}") from None
