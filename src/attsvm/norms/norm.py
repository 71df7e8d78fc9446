r"""What a norm of weight matrices is: one object, read by optimisers and by solvers.

An optimiser asks a norm for its steepest-descent direction, a solver minimises the same norm
subject to margins, a fit asks which descent trains for it, a report what it is called. All of that
is stated by one class: a new norm is one subclass of :class:`Norm` and touches nothing else.

Everything in this room is written against the array API standard, so the same lines serve NumPy
arrays and torch tensors. Matrices live on the last two axes; any leading axes are runs, each with
its own norm.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

from attsvm.base.errors import InputError
from attsvm.norms.array_api import Array, divisor, floating, namespace
from attsvm.norms.exponents import non_negative

# what a class must define, each with the ways to do so: defaults answer for each other
_STATED = ((("prox",), ("project",)), (("dual",), ("dual_value", "subgradient")))


class Descent(NamedTuple):
    """Which descent on the attention weights converges in direction to the max-margin solution of a
    norm.

    Attributes:
        kind: normalised gradient descent on ``W``; mirror descent with the map of the norm;
            normalised gradient descent on the factors ``K`` and ``Q``; steepest descent in the
            norm.
        title: what it is called.
        move: by how much one step of steepest descent may move a logit; longer ones change the
            limit.
    """

    kind: Literal["gradient", "mirror", "factored", "steepest"]
    title: str
    move: float = 1 / 8


class MirrorMap(NamedTuple):
    r"""The gradient of :math:`\frac1p\|W\|^p`, of the entries (``power``) or of the singular values
    (``schatten``), as :class:`attsvm.optim.MirrorDescent` takes it.
    """

    potential: Literal["power", "schatten"]
    p: float


class Norm(ABC):
    r"""A norm on matrices together with its dual
    :math:`\|G\|_*=\max_{\|W\|\le 1}\langle G,W\rangle`.

    A new norm states

    * ``name``, how it is written on the command line;
    * :meth:`value` and :meth:`steepest`;
    * :meth:`prox` or :meth:`project`, one of the two;
    * :attr:`dual`, or :meth:`dual_value` and :meth:`subgradient`, which make a dual that needs no
      class of its own.

    That is enough for :func:`attsvm.max_margin`, steepest descent, ``explain`` of an estimator and
    the commands. The rest has defaults that are right for every norm, and that a class overrides
    where it knows better, such as :attr:`invariant`, which makes programmes smaller. A class whose
    ``name`` is a constant is found by :func:`parse_norm` from then on.

    ``W`` and ``G`` are ``(..., d_x, d_z)``, values are ``(...)``. Norms are compared by ``name``,
    which is canonical: two objects are equal exactly when they are the same function of a matrix,
    however they were written (``Lp(2) == Schatten(2) == Frobenius()``).

    Example:
        >>> import numpy as np
        >>> import attsvm
        >>> G = np.diag([3.0, 4.0])
        >>> for norm in (attsvm.Frobenius(), attsvm.Spectral(), attsvm.Lp(1)):
        ...     print(f"{norm.name:5} {norm.value(G):.1f} {norm.dual_value(G):.1f}")
        fro   5.0 5.0
        spec  4.0 7.0
        lp:1  7.0 4.0
    """

    spellings: ClassVar[Mapping[str, str]] = {}
    """Names on the command line, each with a line about it; ``P`` stands for a number."""

    acts_on: ClassVar[Literal["entries", "singular values", "matrix"]] = "matrix"
    """The quantity that the value is a function of: a vector may be a matrix of one column, and a
    block of it be enough, unless it is singular values or the matrix as a whole.
    """

    known: ClassVar[dict[str, type[Norm]]] = {}
    """The class behind every spelling."""

    def __init_subclass__(cls) -> None:
        for ways in _STATED:
            if not any(all(_is_defined(cls, name) for name in way) for way in ways):
                required = ", or ".join(" and ".join(way) for way in ways)
                raise TypeError(f"the norm {cls.__name__} must define {required}")
        about = (cls.__doc__ or cls.__name__).strip().partition("\n")[0]
        name = cls.__dict__.get("name")
        cls.spellings = cls.__dict__.get(
            "spellings", {name: about} if isinstance(name, str) else {}
        )
        Norm.known.update(dict.fromkeys(cls.spellings, cls))

    @classmethod
    def spelled(cls, word: str, number: float | None) -> Norm:
        """The norm that one of the spellings means, ``number`` standing for its ``P``."""
        return cls() if number is None else cls(number)  # type: ignore[call-arg]

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the norm on the command line: one name for one norm."""

    @property
    def title(self) -> str:
        """The name of the norm in a sentence."""
        return f"{self.name} norm"

    @property
    def dual(self) -> Norm:
        r"""The dual norm :math:`\|\cdot\|_*`; the dual of the dual is the norm itself."""
        return Dual(self)

    @abstractmethod
    def value(self, W: Array) -> Array:
        r""":math:`\|W\|`, over the last two axes."""

    @abstractmethod
    def steepest(self, G: Array) -> Array:
        r"""A unit-norm :math:`D` with :math:`\langle G, D\rangle = \|G\|_*`; zero where ``G`` is
        zero.

        Steepest descent moves along ``-steepest(gradient)``.
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

        Where a class states neither its proximal map nor its dual it is the nearest point of the
        ball of the radius at which what is left over has dual norm :math:`t`, found by halving.

        Args:
            W: ``(..., d_x, d_z)``.
            t: :math:`t\ge0`, one number or one per run, ``(...)``.
        """
        dual = self.dual
        if not isinstance(dual, Dual):
            return W - dual.project(W, t)
        xp, W = namespace(W), floating(W)
        t = non_negative(t, W)
        low, high = xp.zeros_like(self.value(W)), self.value(W)
        for _ in range(80):  # more halvings do not change the ends of an interval
            middle = 0.5 * (low + high)
            inside = self.dual_value(W - self.project(W, middle)) > t
            low, high = xp.where(inside, middle, low), xp.where(inside, high, middle)
        some = (self.dual_value(W) > t)[..., None, None]
        return xp.where(some, self.project(W, high), xp.zeros_like(W))

    def project(self, W: Array, radius: Any = 1.0) -> Array:
        r"""The nearest point of the ball, :math:`\arg\min_{\|V\|\le r}\|V-W\|_F`: the proximal
        point of the :math:`t` at which it has norm :math:`r`, found by halving unless a class knows
        it.

        Args:
            W: ``(..., d_x, d_z)``.
            radius: :math:`r\ge0`, one number or one per run, ``(...)``.
        """
        xp, W = namespace(W), floating(W)
        size, radius = self.value(W), non_negative(radius, W)
        low, high = xp.zeros_like(size), self.dual_value(W)
        for _ in range(80):  # as in prox
            middle = 0.5 * (low + high)
            outside = self.value(self.prox(W, middle)) > radius
            low, high = xp.where(outside, middle, low), xp.where(outside, high, middle)
        return xp.where((size > radius)[..., None, None], self.prox(W, high), W)

    def logit_reach(self, tokens: Array, queries: Array) -> float:
        r"""The largest logit :math:`x^\top Wz` of weights of norm one, that is the largest
        :math:`\|xz^\top\|_*`, or a bound of it.

        Args:
            tokens: ``(n, T, d_x)``.
            queries: ``(n, d_z)``.
        """
        return max(
            float(self.dual_value(x[:, :, None] * z).max())
            for x, z in zip(tokens, queries, strict=True)
        )

    @property
    def descent(self) -> Descent:
        """Which descent trains for this norm."""
        return Descent("steepest", f"steepest descent in the {self.title}")

    @property
    def mirror_map(self) -> MirrorMap | None:
        """The mirror map of the descent whose limit is the solution in this norm; None where there
        is none.
        """
        return None

    @property
    def strictly_convex(self) -> bool:
        """Whether the ball has no flat pieces: the least weights are then unique, and directions
        can be compared.
        """
        return False

    @property
    def tolerance(self) -> float:
        """The accuracy that a solver promises unless it is asked for another."""
        return 1e-9

    @property
    def invariant(self) -> tuple[bool, bool]:
        """Whether rotations of the rows of ``W`` leave the norm alone, that is products from the
        left, and whether products from the right do.

        The least weights then lie in the span of the token differences (left), or of the queries
        (right).
        """
        return False, False

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
        if not self.strictly_convex:
            raise InputError(
                f"the norm {self.name} is not strictly convex and measures no divergence of"
                " directions; compare margins"
            )
        xp, V, W = namespace(V, W), floating(V), floating(W)
        sizes = self.value(V), self.value(W)
        V, W = (A / divisor(size)[..., None, None] for A, size in zip((V, W), sizes, strict=True))
        divergence = self._unit_divergence(V, W)
        some = (sizes[0] > 0) & (sizes[1] > 0)
        return xp.where(some, divergence, xp.full_like(divergence, xp.nan))

    def _unit_divergence(self, V: Array, W: Array) -> Array:
        """:meth:`direction_divergence` of matrices of norm one."""
        xp = namespace(V, W)
        divergence = 1.0 - xp.sum(self.subgradient(W) * V, axis=(-2, -1))
        return xp.where(divergence > 0, divergence, xp.zeros_like(divergence))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Norm) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def _is_defined(cls: type[Norm], name: str) -> bool:
    """Whether a class has a method of its own in place of the default."""
    return getattr(cls, name) is not getattr(Norm, name)


class Dual(Norm):
    """The dual of a norm that states its dual value and its subgradient itself."""

    def __init__(self, primal: Norm) -> None:
        self.primal = primal

    @property
    def name(self) -> str:
        """``dual:NAME``."""
        return f"dual:{self.primal.name}"

    @property
    def title(self) -> str:
        """See :attr:`Norm.title`."""
        return f"dual of the {self.primal.title}"

    @property
    def dual(self) -> Norm:
        """The norm whose dual this is."""
        return self.primal

    @property
    def invariant(self) -> tuple[bool, bool]:
        """Invariance of the primal norm, which the dual shares."""
        return self.primal.invariant

    def value(self, W: Array) -> Array:
        """See :meth:`Norm.value`."""
        return self.primal.dual_value(W)

    def steepest(self, G: Array) -> Array:
        """See :meth:`Norm.steepest`."""
        return self.primal.subgradient(G)

    def project(self, W: Array, radius: Any = 1.0) -> Array:
        """``W`` less its proximal point under the norm (Moreau's decomposition)."""
        return W - self.primal.prox(W, radius)

    def __repr__(self) -> str:
        return f"{self.primal!r}.dual"
