r"""The polar factor :math:`UV^\top` of :math:`G=U\Sigma V^\top`: the steepest direction of the
spectral norm, along which Muon steps.

Three ways to it, on a batch of matrices at once:

``exact``
    All singular values are one to rounding. Float32 matrices of up to 128 rows or columns (on a GPU
    all) take a composition of the best odd quintic polynomials, checked by its own residual. What
    does not pass, because it is singular or close to it, and everything else on a CPU, takes a
    singular value decomposition. Singular values below :math:`\max(m,n)\,\epsilon\,\sigma_1` are
    rounding and give no direction, as in :class:`attsvm.geometry.Schatten`.
``polar-express``
    ``steps`` of the same polynomials, and nothing else: no decomposition, no look at the result.
    :func:`landing_range` states how far from one the singular values may end.
``newton-schulz``
    ``steps`` of the fixed quintic of Muon, in bfloat16 as :class:`torch.optim.Muon` takes them, or
    in float32 where that is faster: small matrices on a CPU. It never converges to one.

Sources: Björck and Bowie 1971 (Newton-Schulz); Jordan et al., *Muon*, 2024 (the quintic); Amsel,
Persson, Musco and Gower, *The Polar Express*, 2025 (composing the best polynomials of each
interval); Nakatsukasa and Freund 2016 (why such compositions lose no accuracy).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Polar = Literal["exact", "newton-schulz", "polar-express"]
Quintic = tuple[float, float, float]

MUON: Quintic = (3.4445, -4.7750, 2.0315)
# the smallest singular value, as a part of the largest, that "polar-express" is made for
LOWER = 1e-3

# singular values, as parts of the largest, that the two rounds of the exact iteration bring near
# one
_FIRST, _SECOND = 1.3e-3, 3e-5
_FIRST_STEPS = 6
_DECOMPOSE_ABOVE = 128  # rows and columns from which a CPU decomposes faster than it iterates
# multiplications in one product of a batch: below, a CPU's bfloat16 product costs more to set up
# than float32 to do
_BFLOAT16_FROM = 1 << 20
_CUBIC: Quintic = (1.5, -0.5, 0.0)
_TAYLOR: Quintic = (1.875, -1.25, 0.375)


def polar_factor(
    G: Tensor, method: Polar = "exact", steps: int = 5, capturable: bool = False
) -> Tensor:
    r""":math:`UV^\top` of every matrix, zero where ``G`` is zero, NaN where it is not finite. No
    scale overflows or underflows.

    Args:
        G: ``(..., m, n)``, real.
        method: see the module.
        steps: the number of polynomials; ``exact`` does not read it.
        capturable: the two approximations read no value on the host, not even to take a shorter
            way.

    Returns:
        ``(..., m, n)``, of the dtype of ``G``. For the state of every singular value see
        :func:`singular_value_range`.
    """
    if G.numel() == 0:
        return torch.zeros_like(G)
    m, n = G.shape[-2:]
    # the products of a single matrix are faster than those of a batch of one
    alone = method != "exact" and G.numel() == m * n
    wide = G.reshape((m, n) if alone else (-1, m, n))
    wide = wide.mT if m > n else wide
    wide = wide if wide.dtype in (torch.float32, torch.float64) else wide.float()
    if method == "newton-schulz":
        small = G.device.type == "cpu" and G.numel() * min(m, n) <= _BFLOAT16_FROM
        X = _compose(
            _unit(wide, torch.float32 if small else torch.bfloat16, capturable), (MUON,) * steps
        )
    elif method == "polar-express":
        X = _express(_unit(wide, wide.dtype, capturable), schedule(LOWER, steps))
    else:
        X = _exact(_near_one(wide))
    return (X.mT if m > n else X).to(G.dtype).reshape(G.shape)


def singular_value_range(D: Tensor) -> tuple[Tensor, Tensor]:
    """Smallest and largest singular value of every matrix: one and one for an exact polar factor of
    full rank.

    Args:
        D: ``(..., m, n)``.

    Returns:
        Two tensors ``(...)``, at least float32.
    """
    sigma = torch.linalg.svdvals(D if D.dtype in (torch.float32, torch.float64) else D.float())
    return sigma[..., -1], sigma[..., 0]


def landing_range(
    method: Literal["newton-schulz", "polar-express"], steps: int, lower: float = LOWER
) -> tuple[float, float]:
    r"""Where singular values between ``lower`` and 1 times :math:`\|G\|_F` end, rounding aside.

    Five steps from ``lower = 1e-3``: 0.47 to 1.21 for ``newton-schulz`` (0.68 to 1.14 from
    ``lower = 1e-2``), 0.89 to 1.11 for ``polar-express``, and the latter is within 1e-3 of one
    after six steps and within 1e-9 after seven. Rounding adds about 0.02 to ``newton-schulz`` where
    it is bfloat16.
    """
    x = np.geomspace(lower, 1.0, 20001)
    for a, b, c in (MUON,) * steps if method == "newton-schulz" else schedule(LOWER, steps):
        x = x * (a + x * x * (b + c * x * x))
    return float(x.min()), float(x.max())


def schedule(lower: float, steps: int) -> tuple[Quintic, ...]:
    r"""The odd quintics :math:`ax+bx^3+cx^5` whose composition takes :math:`[\text{lower},1]`
    closest to one.

    Each is the best of its kind on the interval where the one before it ends (*Polar Express*,
    theorem 3.1: greedy is optimal).
    """
    return _greedy(lower, steps)


# what torch.compiler.assume_constant_result does, which imports the compiler: a second
schedule._dynamo_marked_constant = True  # type: ignore[attr-defined]


@lru_cache(maxsize=64)
def _greedy(lower: float, steps: int) -> tuple[Quintic, ...]:
    low, high = lower, 1.0
    found = []
    for _ in range(steps):
        quintic, error = _best_quintic(low, high)
        low, high = 1.0 - error, 1.0 + error
        found.append(quintic)
    return tuple(found)


def _best_quintic(low: float, high: float) -> tuple[Quintic, float]:
    """Remez' exchange for the odd quintic nearest to one on ``[low, high]``, and its largest
    error.
    """
    # the four points of the exchange are one to rounding; the limit is Taylor's
    if low > 0.999 * high:
        middle = 2.0 / (low + high)
        a, b, c = _TAYLOR
        return (a * middle, b * middle**3, c * middle**5), 2.5 * ((high - low) / (high + low)) ** 3
    inner, outer = (3 * low + high) / 4, (low + 3 * high) / 4
    a = b = c = error = 0.0
    for _ in range(100):
        points = np.array([low, inner, outer, high])
        system = np.stack([points, points**3, points**5, np.array([1.0, -1.0, 1.0, -1.0])], axis=1)
        previous = error
        a, b, c, error = (float(number) for number in np.linalg.solve(system, np.ones(4)))
        root = (9 * b * b - 20 * a * c) ** 0.5
        inner, outer = ((-3 * b - root) / (10 * c)) ** 0.5, ((-3 * b + root) / (10 * c)) ** 0.5
        if abs(error - previous) <= 1e-14:
            break
    return (a, b, c), error


def _near_one(X: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """``X`` times a power of two per matrix, so that squares neither overflow nor underflow and no
    bit changes; then ``dtype``.
    """
    largest = torch.maximum(X.amax(dim=(-2, -1), keepdim=True), -X.amin(dim=(-2, -1), keepdim=True))
    exponent = torch.frexp(largest).exponent.clamp(
        min=2 - round(-math.log2(torch.finfo(X.dtype).tiny))
    )
    scaled = X * torch.ldexp(torch.ones_like(largest), -exponent)
    # a product that casts on the way takes ten times as long on the CPU
    return scaled if dtype is None else scaled.to(dtype)


def _unit(X: Tensor, dtype: torch.dtype, capturable: bool) -> Tensor:
    """``X / ||X||_F`` per matrix in ``dtype``; zero stays zero. Squares of any size are safe once
    brought near one, at many small steps.
    """
    if X.device.type == "cpu" and not capturable and not torch.compiler.is_compiling():
        cast = X.to(dtype)
        norm = torch.linalg.vector_norm(
            cast, dim=None if X.ndim == 2 else (-2, -1), keepdim=X.ndim != 2
        )
        if squares_are_safe(norm):
            return cast.div_(norm) if cast is not X else cast.div(norm)
    near = _near_one(X, dtype)
    norm = torch.linalg.vector_norm(near, dim=(-2, -1), keepdim=True)
    return near.div_(norm.clamp(min=torch.finfo(dtype).tiny))


def squares_are_safe(norm: Tensor) -> bool:
    """Whether sums of squares of these norms kept all their digits: none overflowed, and what
    underflowed does not count.
    """
    if norm.numel() == 0:
        return False
    info = torch.finfo(norm.dtype)
    if norm.numel() == 1:
        smallest = largest = norm.item()
    else:
        smallest, largest = (bound.item() for bound in torch.aminmax(norm))
    return bool(smallest > info.tiny**0.5 / info.eps and largest < info.max**0.5)


def _express(X: Tensor, quintics: tuple[Quintic, ...]) -> Tensor:
    """:func:`_compose`; where rows are three times as long as there are rows, by products of small
    squares instead (*Polar Express*, algorithm 4).

    The polynomials after the first act on the gram matrix, and their product on ``X`` once. A gram
    matrix knows squares of singular values: those from 1e-3 on, which the first polynomial lifts to
    8e-3, end within 1e-3 of where they should in single precision. More than five polynomials
    promise more than that, and are applied one by one.
    """
    first, *rest = quintics
    if X.shape[-1] < 3 * X.shape[-2] or not 2 <= len(rest) <= 4:
        return _compose(X, quintics)
    X = _compose(X, (first,))
    gram = X @ X.mT
    inner = product = _inner(gram, rest[0])
    for quintic in rest[1:]:
        gram = inner @ gram @ inner
        inner = _inner(gram, quintic)
        product = inner @ product
    return product @ X


def _inner(gram: Tensor, quintic: Quintic) -> Tensor:
    """What a quintic multiplies ``X`` with."""
    a, b, c = quintic
    inner = (gram @ gram).mul_(c).add_(gram, alpha=b)
    inner.diagonal(dim1=-2, dim2=-1).add_(a)
    return inner


def _compose(X: Tensor, quintics: tuple[Quintic, ...], gram: Tensor | None = None) -> Tensor:
    """Apply odd polynomials to the singular values of ``X``, ``([k,] m, n)`` with ``m <= n``;
    ``gram`` is ``X X^T`` where it is known.
    """
    if gram is None and (X.ndim == 2 or len(X) == 1):
        return _compose_one(X, quintics) if X.ndim == 2 else _compose_one(X[0], quintics)[None]
    for a, b, c in quintics:
        gram = torch.bmm(X, X.mT) if gram is None else gram
        inner = torch.baddbmm(gram, gram, gram, beta=b, alpha=c) if c else b * gram
        X = torch.baddbmm(X, inner, X, beta=a)
        gram = None
    return X


def _compose_one(X: Tensor, quintics: tuple[Quintic, ...]) -> Tensor:
    for a, b, c in quintics:
        gram = X @ X.mT
        X = torch.addmm(X, torch.addmm(gram, gram, gram, beta=b, alpha=c), X, beta=a)
    return X


def _exact(X: Tensor) -> Tensor:
    on_cpu = X.device.type == "cpu"
    if torch.compiler.is_compiling() or (
        on_cpu and (X.dtype == torch.float64 or X.shape[-2] > _DECOMPOSE_ABOVE)
    ):
        return _decomposed(X)
    return _iterated(X)


def _iterated(X: Tensor) -> Tensor:
    gram = torch.bmm(X, X.mT)
    square = torch.bmm(gram, gram)
    # |(X X^T)^2|_F^(1/4) = (sum sigma^8)^(1/8) is much closer to the largest singular value than
    # |X|_F, and costs nothing
    bound = torch.linalg.vector_norm(square, dim=(-2, -1), keepdim=True).sqrt()
    bound = torch.where(bound > 0, bound, torch.ones_like(bound))
    (a, b, c), *rest = _greedy(_FIRST, _FIRST_STEPS)
    inner = (b / bound) * gram + (c / bound.square()) * square
    scaled = X * bound.rsqrt()
    Y, left = _settled(_compose(torch.baddbmm(scaled, inner, scaled, beta=a), tuple(rest)))
    if left is None:
        return Y
    # one small singular value is a matter of more steps; several are a singular matrix
    missing = X.shape[-2] - torch.linalg.vector_norm(Y[left], dim=(-2, -1)).square()
    few = missing < 1.5
    more = left[few]
    if len(more):
        Y[more], stuck = _settled(_compose(Y[more], _second_round()))
        more = more[:0] if stuck is None else more[stuck]
    singular = torch.cat([left[~few], more])
    if len(singular):
        Y[singular] = _decomposed(X[singular])
    return Y


@lru_cache(maxsize=1)
def _second_round() -> tuple[Quintic, ...]:
    """What follows the first round for singular values from ``_SECOND`` on: the best from where the
    first round leaves them.
    """
    x = _SECOND
    for a, b, c in _greedy(_FIRST, _FIRST_STEPS):
        x = x * (a + x * x * (b + c * x * x))
    return _greedy(x, 4)


def _settled(X: Tensor) -> tuple[Tensor, Tensor | None]:
    """``X`` polished to rounding, and the indices of the matrices that were too far from a polar
    factor for that, or None.
    """
    gram = torch.bmm(X, X.mT)
    eye = torch.eye(X.shape[-2], dtype=X.dtype, device=X.device)
    # from here the last step squares the distance to one, and the last two take it to the sixth
    # power
    near = torch.linalg.vector_norm(gram - eye, dim=(-2, -1)) <= 3e-4 * X.shape[-2] ** 0.5
    finish = (_TAYLOR, _CUBIC) if X.dtype == torch.float64 else (_CUBIC,)
    polished = _compose(X, finish, gram)
    if bool(near.all()):
        return polished, None
    return torch.where(near[:, None, None], polished, X), (~near).nonzero()[:, 0]


def _decomposed(X: Tensor) -> Tensor:
    U, sigma, Vh, finite = decomposed(X)
    factor = (U * (sigma > 0)[..., None, :].to(X.dtype)) @ Vh
    return torch.where(finite, factor, torch.full_like(X, float("nan")))


def decomposed(G: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""Singular value decomposition up to a factor per matrix, rounding set to zero: ``U``,
    ``sigma``, ``Vh`` and what was finite.

    Args:
        G: ``(k, m, n)``; a matrix that is not finite counts as zero.

    Returns:
        ``U (k, m, r)``, ``sigma (k, r)`` with zeros below :math:`\max(m,n)\,\epsilon\,\sigma_1`,
        ``Vh (k, r, n)``, ``finite (k, 1, 1)``.
    """
    finite = torch.isfinite(G).all(dim=-1, keepdim=True).all(dim=-2, keepdim=True)
    U, sigma, Vh = torch.linalg.svd(
        _near_one(torch.where(finite, G, torch.zeros_like(G))), full_matrices=False
    )
    noise = max(G.shape[-2:]) * torch.finfo(G.dtype).eps * sigma[..., :1]
    return U, torch.where(sigma > noise, sigma, torch.zeros_like(sigma)), Vh, finite
