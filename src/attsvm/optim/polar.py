r"""The polar factor :math:`UV^\top` of :math:`G=U\Sigma V^\top`: the steepest direction of the
spectral norm, along which Muon steps.

Three ways to it, on a batch of matrices at once:

``exact``
    A singular value decomposition: all singular values are one to rounding. Those below
    :math:`\max(m,n)\,\epsilon\,\sigma_1` are rounding and give no direction, as in
    :class:`attsvm.norms.Schatten`.
``polar-express``
    ``steps`` of the best odd quintic polynomials, whatever they reach.
    :func:`landing_range` states how far from one the singular values may end.
``newton-schulz``
    ``steps`` of the fixed quintic of Muon, in bfloat16 as :class:`torch.optim.Muon` takes them, or
    in float32 where that is faster: small matrices on a CPU. It never converges to one.

Sources: Björck and Bowie 1971 (Newton-Schulz); Jordan et al., *Muon*, 2024 (the quintic); Amsel,
Persson, Musco and Gower, *The Polar Express*, 2025 (composing the best polynomials of each
interval).
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Polar = Literal["exact", "newton-schulz", "polar-express"]
Quintic = tuple[float, float, float]

MUON: Quintic = (3.4445, -4.7750, 2.0315)
"""Coefficients of Muon's quintic."""
EXPRESS: tuple[Quintic, ...] = (
    (8.470328803848073, -25.10807470666187, 18.629275599118007),
    (4.18283418329394, -3.1087011098892425, 0.5806066813500494),
    (3.961857278961598, -2.9540637463593784, 0.5629761179538966),
    (3.2865862170279527, -2.4647201345312766, 0.5073576938614541),
    (2.273749994434037, -1.6446603679080687, 0.41619092749788655),
    (1.8887161973518238, -1.2651572253385912, 0.3765189255574862),
    (1.8750008858744815, -1.250000984321828, 0.3750000984476772),
    (1.875, -1.25, 0.375),
)
"""The odd quintics :math:`ax+bx^3+cx^5` whose composition takes :math:`[10^{-3},1]` closest to one.
Each is the best of its kind on the interval where the one before it ends (*Polar Express*, theorem
3.1: greedy is optimal); the last is Taylor's, and is repeated.
"""


def polar_factor(
    G: Tensor, method: Polar = "exact", steps: int = 5, bfloat16_from: int = 1 << 20
) -> Tensor:
    r"""Return :math:`UV^\top` of every matrix, zero where ``G`` is zero, NaN where it is not
    finite. No scale overflows or underflows.

    Args:
        G: ``(..., m, n)``, real.
        method: see the module.
        steps: the number of polynomials; ``exact`` does not read it.
        bfloat16_from: multiplications in one product of all matrices, from which ``newton-schulz``
            is in bfloat16 on a CPU: below, the product costs more to set up than float32 to do
            (measured).

    Returns:
        ``(..., m, n)``, of the dtype of ``G``. For the state of every singular value see
        :func:`singular_value_range`.
    """
    if G.numel() == 0:
        return torch.zeros_like(G)
    m, n = G.shape[-2:]
    # the products of a single matrix are faster than those of a batch of one
    is_single = method != "exact" and G.numel() == m * n
    wide = G.reshape((m, n) if is_single else (-1, m, n))
    # rows at least as long as columns: gram matrices are small then
    wide = wide.mT if m > n else wide
    wide = wide if wide.dtype in (torch.float32, torch.float64) else wide.float()
    if method == "newton-schulz":
        is_small = G.device.type == "cpu" and G.numel() * min(m, n) <= bfloat16_from
        dtype = torch.float32 if is_small else torch.bfloat16
        X = _compose(_divide_by_norm(wide, dtype), (MUON,) * steps)
    elif method == "polar-express":
        X = _compose_express(_divide_by_norm(wide, wide.dtype), express_quintics(steps))
    else:
        X = _exact_polar_factor(wide)
    return (X.mT if m > n else X).to(G.dtype).reshape(G.shape)


def singular_value_range(D: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest singular value of every matrix: one and one for an exact
    polar factor of full rank.

    Args:
        D: ``(..., m, n)``.

    Returns:
        Two tensors ``(...)``, at least float32.
    """
    sigma = torch.linalg.svdvals(D if D.dtype in (torch.float32, torch.float64) else D.float())
    return sigma[..., -1], sigma[..., 0]


def landing_range(
    method: Literal["newton-schulz", "polar-express"], steps: int, lower: float = 1e-3
) -> tuple[float, float]:
    r"""Return the smallest and the largest value that singular values between ``lower`` and 1 times
    :math:`\|G\|_F` reach, rounding aside. ``polar-express`` is made for ``lower = 1e-3``.

    Five steps from ``lower = 1e-3``: 0.47 to 1.21 for ``newton-schulz`` (0.68 to 1.14 from
    ``lower = 1e-2``), 0.89 to 1.11 for ``polar-express``, and the latter is within 1e-3 of one
    after six steps and within 1e-9 after seven. Rounding adds about 0.02 to ``newton-schulz`` where
    it is bfloat16.
    """
    x = np.geomspace(lower, 1.0, 20001)
    for a, b, c in (MUON,) * steps if method == "newton-schulz" else express_quintics(steps):
        x = x * (a + x * x * (b + c * x * x))
    return float(x.min()), float(x.max())


def express_quintics(steps: int) -> tuple[Quintic, ...]:
    """Return the first so many polynomials of :data:`EXPRESS`."""
    return EXPRESS[:steps] + EXPRESS[-1:] * (steps - len(EXPRESS))


def _scale_near_one(X: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return ``X`` times a power of two per matrix, so that squares neither overflow nor underflow
    and no bit changes; in ``dtype`` if not None.
    """
    largest = torch.maximum(X.amax(dim=(-2, -1), keepdim=True), -X.amin(dim=(-2, -1), keepdim=True))
    # the inverse of the least power is still finite
    exponent = torch.frexp(largest).exponent.clamp(
        min=2 - round(-math.log2(torch.finfo(X.dtype).tiny))
    )
    scaled = X * torch.ldexp(torch.ones_like(largest), -exponent)
    # a product that casts on the way takes ten times as long on the CPU
    return scaled if dtype is None else scaled.to(dtype)


def _divide_by_norm(X: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``X / ||X||_F`` per matrix in ``dtype``; zero stays zero."""
    if X.device.type == "cpu" and not torch.compiler.is_compiling():
        cast = X.to(dtype)
        norm = torch.linalg.vector_norm(
            cast, dim=None if X.ndim == 2 else (-2, -1), keepdim=X.ndim != 2
        )
        if squares_are_safe(norm):
            return cast.div_(norm) if cast is not X else cast.div(norm)
    # squares of any size are safe once brought near one, which takes several passes
    near = _scale_near_one(X, dtype)
    norm = torch.linalg.vector_norm(near, dim=(-2, -1), keepdim=True)
    return near.div_(norm.clamp(min=torch.finfo(dtype).tiny))


def squares_are_safe(norm: Tensor) -> bool:
    """Return whether the sums of squares of these norms have all their digits: none overflowed, and
    what underflowed does not count.
    """
    if norm.numel() == 0:
        return False
    info = torch.finfo(norm.dtype)
    if norm.numel() == 1:
        smallest = largest = norm.item()
    else:
        smallest, largest = (bound.item() for bound in torch.aminmax(norm))
    return bool(smallest > info.tiny**0.5 / info.eps and largest < info.max**0.5)


def _compose_express(X: Tensor, quintics: tuple[Quintic, ...]) -> Tensor:
    """Return :func:`_compose`; where rows are three times as long as there are rows, by products of
    small squares instead (*Polar Express*, algorithm 4).

    1. The first polynomial on ``X``.
    2. The others on the gram matrix of the result, and the product of their inner factors.
    3. That product on the result, once.

    The polynomials after the first act on the gram matrix, and their product on ``X`` once. A gram
    matrix knows squares of singular values: those from 1e-3 on, which the first polynomial lifts to
    8e-3, end within 1e-3 of where they should in single precision. More than five polynomials
    promise more than that, and are applied one by one.
    """
    first, *rest = quintics
    if X.shape[-1] < 3 * X.shape[-2] or not 2 <= len(rest) <= 4:
        return _compose(X, quintics)
    # 1. the first polynomial
    X = _compose(X, (first,))
    # 2. the others, on squares as small as there are rows
    gram = X @ X.mT
    inner = product = _inner_factor(gram, rest[0])
    for quintic in rest[1:]:
        gram = inner @ gram @ inner
        inner = _inner_factor(gram, quintic)
        product = inner @ product
    # 3. all of them on X
    return product @ X


def _inner_factor(gram: Tensor, quintic: Quintic) -> Tensor:
    r"""Return :math:`aI+bXX^\top+c(XX^\top)^2`, which takes ``X`` to its quintic."""
    a, b, c = quintic
    inner = (gram @ gram).mul_(c).add_(gram, alpha=b)
    inner.diagonal(dim1=-2, dim2=-1).add_(a)
    return inner


def _compose(X: Tensor, quintics: tuple[Quintic, ...]) -> Tensor:
    """Return ``X``, ``([k,] m, n)`` with ``m <= n``, with odd polynomials applied to its singular
    values.
    """
    if X.ndim == 3 and len(X) == 1:
        return _compose(X[0], quintics)[None]
    add = torch.addmm if X.ndim == 2 else torch.baddbmm
    for a, b, c in quintics:
        # X <- a X + (b A + c A^2) X with A = X X'
        gram = X @ X.mT
        X = add(X, add(gram, gram, gram, beta=b, alpha=c), X, beta=a)
    return X


def _exact_polar_factor(X: Tensor) -> Tensor:
    U, sigma, Vh, finite = scaled_svd(X)
    # singular values that are rounding give no direction
    factor = (U * (sigma > 0)[..., None, :].to(X.dtype)) @ Vh
    return torch.where(finite, factor, torch.full_like(X, float("nan")))


def scaled_svd(G: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""Return the singular value decomposition up to a factor per matrix, rounding set to zero:
    ``U``, ``sigma``, ``Vh`` and which matrices are finite.

    Args:
        G: ``(k, m, n)``; a matrix that is not finite counts as zero.

    Returns:
        ``U (k, m, r)``, ``sigma (k, r)`` with zeros below :math:`\max(m,n)\,\epsilon\,\sigma_1`,
        ``Vh (k, r, n)``, ``finite (k, 1, 1)``.
    """
    finite = torch.isfinite(G).all(dim=-1, keepdim=True).all(dim=-2, keepdim=True)
    U, sigma, Vh = torch.linalg.svd(
        _scale_near_one(torch.where(finite, G, torch.zeros_like(G))), full_matrices=False
    )
    noise = max(G.shape[-2:]) * torch.finfo(G.dtype).eps * sigma[..., :1]
    return U, torch.where(sigma > noise, sigma, torch.zeros_like(sigma)), Vh, finite
