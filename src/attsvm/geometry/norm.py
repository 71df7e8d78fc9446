"""What a norm of weight matrices is: one object, read by optimisers and by solvers.

An optimiser asks a norm for its steepest-descent direction, a solver minimises the same norm
subject to margins.  Everything in this room is written against the array API standard, so the same
lines serve NumPy arrays and torch tensors.  Matrices live on the last two axes; any leading axes
are runs, each with its own norm.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from array_api_compat import array_namespace, device

from attsvm.errors import InputError

Array = Any  # numpy.ndarray or torch.Tensor: whatever array_namespace understands


class Norm(ABC):
    r"""A norm on matrices together with its dual
    :math:`\|G\|_*=\max_{\|W\|\le 1}\langle G,W\rangle`.

    A new norm states its value, its steepest direction, the projection onto its ball and its dual;
    the rest follows.  ``W`` and ``G`` are ``(..., d_x, d_z)``, values are ``(...)``.

    Norms are compared by ``name``, which is canonical: two objects are equal exactly when they are
    the same function of a matrix, however they were written
    (``Lp(2) == Schatten(2) == Frobenius()``).
    """

    p: float
    """The exponent."""

    @property
    @abstractmethod
    def name(self) -> str:
        """How the norm is written on the command line: one name for one norm."""

    @property
    @abstractmethod
    def dual(self) -> Norm:
        r"""The dual norm :math:`\|\cdot\|_*`; the dual of the dual is the norm itself."""

    @abstractmethod
    def value(self, W: Array) -> Array:
        r""":math:`\|W\|`, over the last two axes."""

    @abstractmethod
    def steepest(self, G: Array) -> Array:
        r"""A unit-norm :math:`D` with :math:`\langle G, D\rangle = \|G\|_*`; zero where ``G`` is
        zero.

        Steepest descent moves along ``-steepest(gradient)``.
        """

    @abstractmethod
    def project(self, W: Array, radius: Any = 1.0) -> Array:
        r"""The nearest point of the ball, :math:`\arg\min_{\|V\|\le r}\|V-W\|_F`.

        Args:
            W: ``(..., d_x, d_z)``.
            radius: :math:`r\ge0`, one number or one per run, ``(...)``.
        """

    def dual_value(self, G: Array) -> Array:
        r""":math:`\|G\|_*`, over the last two axes."""
        return self.dual.value(G)

    def subgradient(self, W: Array) -> Array:
        r"""An element of :math:`\partial\|W\|`: :math:`\|g\|_*\le1` and
        :math:`\langle g,W\rangle=\|W\|`.

        It is the steepest direction of the dual norm, and zero where ``W`` is zero.
        """
        return self.dual.steepest(W)

    def prox(self, W: Array, t: Any) -> Array:
        r""":math:`\arg\min_V t\|V\|+\frac12\|V-W\|_F^2=W-P_{\|\cdot\|_*\le t}(W)` (Moreau).

        Args:
            W: ``(..., d_x, d_z)``.
            t: :math:`t\ge0`, one number or one per run, ``(...)``.
        """
        return W - self.dual.project(W, t)

    def direction_divergence(self, V: Array, W: Array) -> Array:
        r"""The directional Bregman divergence of :math:`\psi=\frac1p\|W\|^p`, :math:`1<p<\infty`,
        over the last two axes, in [0, 2].

        .. math:: D_\psi\Big(\frac V{\|V\|},\frac W{\|W\|}\Big)=1-\Big\langle\partial\|W\|,\frac
            V{\|V\|}\Big\rangle

        Not symmetric: the solution comes first, the iterate second. At p = 2 it is one minus the
        cosine. About 1 for unrelated directions, NaN where a matrix is zero and has none. Rounding
        adds some 1e-16 in the Schatten norms, and nothing in the others.

        Raises:
            InputError: the norm is not strictly convex (p is 1 or infinite), and unit matrices
                apart can have divergence 0.
        """
        if not 1.0 < self.p < float("inf"):
            raise InputError(
                f"the norm {self.name} is not strictly convex and measures no divergence of"
                " directions; compare margins"
            )
        xp = array_namespace(V, W)
        size = self.value(V)
        unit = V / xp.where(size > 0, size, xp.ones_like(size))[..., None, None]
        divergence = 1.0 - xp.sum(self.subgradient(W) * unit, axis=(-2, -1))
        divergence = xp.where(divergence > 0, divergence, xp.zeros_like(divergence))
        return xp.where(
            (size > 0) & xp.any(W != 0, axis=(-2, -1)), divergence, xp.full_like(divergence, xp.nan)
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Norm) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def conjugate_exponent(p: float) -> float:
    r""":math:`q` with :math:`1/p+1/q=1`."""
    if p == 1.0:
        return float("inf")
    return 1.0 if p == float("inf") else 1.0 + 1.0 / (p - 1.0)


def per_run(number: Any, W: Array) -> Array:
    """One number, or one per run, as an array that broadcasts against the vectors ``(..., k)`` of
    the runs.

    Raises:
        InputError: a number is negative or not a number.
    """
    array = non_negative(number, W)
    return array[..., None] if array.ndim else array


def non_negative(number: Any, W: Array) -> Array:
    """The radius of a ball, or the weight of a proximal map, as an array of the kind of ``W``.

    Raises:
        InputError: a number is negative or not a number.
    """
    xp = array_namespace(W)
    array = xp.asarray(number, dtype=W.dtype, device=device(W))
    if not bool(xp.all(array >= 0)):
        raise InputError(
            "the radius of a ball and the weight of a proximal map must be numbers >= 0, and one"
            " is not"
        )
    return array


def floating(W: Array) -> Array:
    """``W``, with integers and booleans as float64."""
    xp = array_namespace(W)
    return xp.astype(W, xp.float64) if xp.isdtype(W.dtype, ("bool", "integral")) else W


def exponent_text(p: float) -> str:
    """The shortest text that reads back as ``p``."""
    return str(int(p)) if p.is_integer() else repr(p)
