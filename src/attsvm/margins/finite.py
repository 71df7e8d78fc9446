r"""The finite component of a solution with equalities, and how it combines with the diverging one.

Where several tokens share the attention, trained weights behave like :math:`W^{fin} + C\,W^{mm}`:
the finite part sets the ratios inside the selected sets, and the multiple :math:`C` of the
max-margin part grows without bound. Tarzanagh et al., *Transformers as Support Vector Machines*
(2023); Li et al., *Mechanics of Next Token Prediction with Self-Attention* (2024).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from attsvm.base.errors import InputError
from attsvm.base.printable import Compact
from attsvm.datasets.attention_data import AttentionData, FloatArray
from attsvm.margins.checks import reals
from attsvm.margins.operator import Margins
from attsvm.margins.sets import ratio_margins


@dataclass(frozen=True, eq=False, repr=False)
class LeastNorm(Compact):
    r"""The weights of least Frobenius norm with :math:`\langle A_c, W\rangle=b_c`, with what proves
    it.

    :math:`W=\sum_c\mu_cA_c` is orthogonal to every change that keeps the equalities, so a small
    ``residual`` and a small ``distance`` together prove that no solution is shorter.

    Attributes:
        margins: the equalities.
        W: ``(d_x, d_z)``; the least-squares weights when no weights meet all equalities.
        dual: ``(m,)``, :math:`\mu`; when there are no such weights instead :math:`y` with
            :math:`\sum_c y_cA_c=0` and :math:`b^\top y>0`.
        consistent: whether the equalities can be met together.
        residual: largest :math:`|\langle A_c, W\rangle-b_c|`.
        distance: :math:`\|W-\sum_c\mu_cA_c\|/\|W\|`, or for a contradiction
            :math:`\|\sum_c y_cA_c\|\,\|b\|/(b^\top y\max_c\|A_c\|)`.

    Example:
        >>> import attsvm
        >>> data = attsvm.AttentionData([[[2, 0], [0, 2], [0, 0]]], [1], queries=[[1]])
        >>> least = attsvm.finite_component(data, [[True, True, False]], [[0.8, 0.2, 0.0]])
        >>> least.consistent, round(least.norm, 3), least.residual < 1e-12
        (True, 0.49, True)
    """

    margins: Margins
    W: FloatArray
    dual: FloatArray
    consistent: bool
    residual: float
    distance: float

    @property
    def norm(self) -> float:
        r""":math:`\|W\|_F`."""
        return float(np.linalg.norm(self.W))


class Recombination(NamedTuple):
    r"""``W`` :math:`=W^{fin}+C\,W^{mm}`, the multiple ``scale`` :math:`C`, and the cosine between
    ``W`` and the trained weights.

    Example:
        >>> import attsvm
        >>> trained = attsvm.recombine(W=[[1, 5]], finite=[[1, 0]], direction=[[0, 2]])
        >>> trained.scale, trained.W.tolist(), round(trained.cosine, 6)
        (2.5, [[1.0, 5.0]], 1.0)
    """

    W: FloatArray
    scale: float
    cosine: float


def least_norm(margins: Margins, tol: float = 1e-9) -> LeastNorm:
    """The weights of least Frobenius norm that meet the equalities among ``margins``; the
    inequalities are ignored.

    Args:
        margins: rows, of which those marked in :attr:`Margins.equality` count.
        tol: largest residual, relative to the largest right-hand side, at which the equalities
            count as consistent.

    Raises:
        InputError: a value that is not finite, or more equalities than can be written out.

    Example:
        >>> import attsvm
        >>> data = attsvm.AttentionData([[[2, 0], [0, 2], [1, 1]]], [1], queries=[[1]])
        >>> sets = [[True, True, True]]
        >>> attsvm.least_norm(attsvm.ratio_margins(data, sets, [[4, 1, 2]])).W.round(3).tolist()
        [[0.347], [-0.347]]
        >>> attsvm.least_norm(attsvm.ratio_margins(data, sets, [[4, 1, 1]])).consistent
        False
    """
    rows = _equalities(margins)
    for name in ("differences", "queries", "rhs"):
        if not np.isfinite(getattr(rows, name)).all():
            raise InputError(
                f"margins.{name} holds a value that is not finite; clean the data first"
            )
    top = float(np.abs(rows.rhs).max(initial=0.0))
    if top == 0.0:
        return LeastNorm(rows, np.zeros(rows.shape), np.zeros(rows.m), True, 0.0, 0.0)
    # the pseudo-inverse of the normalised rows, and two rounds of iterative refinement
    U, sigma, V, size = _singular_factors(rows)
    b = rows.rhs / size
    reach = np.zeros(len(sigma))
    for _ in range(3):  # the later rounds take back what rounding left
        W = (V.T @ reach).reshape(rows.shape)
        reach = reach + (U.T @ (b - rows(W) / size)) / sigma
    W = (V.T @ reach).reshape(rows.shape)
    missed = rows.rhs - rows(W)
    residual = float(np.abs(missed).max())
    if residual <= tol * top:
        dual = (U @ (reach / sigma)) / size
        return LeastNorm(
            rows,
            W,
            dual,
            True,
            residual,
            float(np.linalg.norm(W - rows.adjoint(dual)) / np.linalg.norm(W)),
        )
    # y orthogonal to all rows with b y > 0 proves that no weights meet them; projected twice
    y = b - U @ (U.T @ b)
    y = (y - U @ (U.T @ y)) / size
    gain = float(rows.rhs @ y) * float(rows.lengths.max())
    left = float(np.linalg.norm(rows.adjoint(y)) * np.linalg.norm(rows.rhs))
    return LeastNorm(rows, W, y, False, residual, left / gain if gain > 0 else float("inf"))


def finite_component(
    data: AttentionData, sets: ArrayLike, probabilities: ArrayLike, tol: float = 1e-9
) -> LeastNorm:
    r"""The finite component :math:`W^{fin}`: the least weights whose attention splits every
    selected set as prescribed.

    .. math:: \min\|W\|_F \ \text{ s.t. }\ (x_{it}-x_{i\tau})^\top W z_i=\log(s_{it}/s_{i\tau})
        \quad (t,\tau\in\mathcal O_i).

    Tarzanagh et al., *Transformers as Support Vector Machines* (2023). Zero when every set holds
    one token.

    Args:
        data: one instance (no leading axes).
        sets: see :func:`~attsvm.margins.ratio_margins`.
        probabilities: see :func:`~attsvm.margins.ratio_margins`.
        tol: see :func:`least_norm`.

    Raises:
        InputError: what :func:`~attsvm.margins.ratio_margins` and :func:`least_norm` refuse.

    Example:
        >>> import numpy as np
        >>> import attsvm
        >>> data = attsvm.AttentionData([[[2, 0], [0, 2], [0, 0]]], [1], queries=[[1]])
        >>> W = attsvm.finite_component(data, [[True, True, False]], [[0.8, 0.2, 0.0]]).W
        >>> scores = np.exp(data.tokens[0, :2] @ W[:, 0])
        >>> (scores / scores.sum()).round(3).tolist()
        [0.8, 0.2]
    """
    return least_norm(ratio_margins(data, sets, probabilities), tol)


def recombine(W: ArrayLike, finite: ArrayLike, direction: ArrayLike) -> Recombination:
    r"""The prediction :math:`W^{fin}+C\,W^{mm}` that is closest to trained weights.

    :math:`C=\langle W-W^{fin},W^{mm}\rangle/\|W^{mm}\|_F^2`, which is
    :math:`\langle W,W^{mm}\rangle/\|W^{mm}\|_F^2` when the two components are orthogonal, as the
    Frobenius ones are. Without a direction (all zeros) C is 0. Tarzanagh et al., *Transformers as
    Support Vector Machines* (2023).

    Args:
        W: ``(d_x, d_z)``, trained weights.
        finite: ``(d_x, d_z)``, :math:`W^{fin}`.
        direction: ``(d_x, d_z)``, :math:`W^{mm}`.

    Raises:
        InputError: matrices of different shapes or with values that are not finite.

    Example:
        >>> import attsvm
        >>> attsvm.recombine(W=[[1, 5]], finite=[[1, 0]], direction=[[0, 2]]).scale  # (5 - 0) / 2
        2.5
    """
    trained = reals("W", W, (None, None), "a matrix of weights")
    fin = reals("finite", finite, trained.shape, f"{trained.shape}, the shape of W")
    mm = reals("direction", direction, trained.shape, f"{trained.shape}, the shape of W")
    length = float(np.linalg.norm(mm))
    unit = mm / length if length > 0 else mm
    scale = float(np.sum((trained - fin) * unit)) / length if length > 0 else 0.0
    predicted = fin + scale * mm
    sizes = float(np.linalg.norm(predicted) * np.linalg.norm(trained))
    return Recombination(
        predicted, scale, float(np.sum(predicted * trained)) / sizes if sizes > 0 else float("nan")
    )


def split(W: ArrayLike, margins: Margins) -> tuple[FloatArray, FloatArray]:
    r"""``W`` as its part in :math:`\operatorname{span}\{A_c: c \text{ an equality}\}` plus the part
    orthogonal to it.

    The first part converges to the finite component of trained weights, the second diverges along
    the max-margin direction.

    Raises:
        InputError: weights of another shape or that are not finite, or more equalities than can be
            written out.

    Example:
        >>> import attsvm
        >>> from attsvm.margins import split
        >>> data = attsvm.AttentionData([[[2, 0], [0, 2], [0, 0]]], [1], queries=[[1]])
        >>> margins = attsvm.multi_token_margins(data, sets=[[True, True, False]])
        >>> finite, rest = split([[3.0], [1.0]], margins)
        >>> finite.round(6).tolist(), rest.round(6).tolist()
        ([[1.0], [-1.0]], [[2.0], [2.0]])
    """
    trained = reals("W", W, margins.shape, f"{margins.shape}, the weights of the margins")
    V = equality_basis(margins).reshape(-1, trained.size)
    inside: FloatArray = (V.T @ (V @ trained.reshape(-1))).reshape(margins.shape)
    return inside, trained - inside


def equality_basis(margins: Margins) -> FloatArray:
    r"""An orthonormal basis ``(r, d_x, d_z)`` of
    :math:`\operatorname{span}\{A_c: c \text{ an equality}\}`.

    For priority graphs, the cyclic subspace of Li et al. (2024). By singular values, so equalities
    may depend on each other.

    Raises:
        InputError: more equalities than can be written out.

    Example:
        >>> import attsvm
        >>> from attsvm.margins import equality_basis
        >>> data = attsvm.AttentionData([[[2, 0], [0, 2], [0, 0]]], [1], queries=[[1]])
        >>> margins = attsvm.multi_token_margins(data, sets=[[True, True, False]])
        >>> abs(equality_basis(margins)).round(3).tolist()
        [[[0.707], [0.707]]]
    """
    rows = _equalities(margins)
    if rows.m == 0:
        return np.zeros((0, *margins.shape))
    return _singular_factors(rows)[2].reshape(-1, *margins.shape)


def _equalities(margins: Margins, most_entries: int = 1 << 22) -> Margins:
    """The equalities of a programme, refused if they have more entries written out than 32 MB
    hold.
    """
    rows = margins.restricted(margins.equalities)
    if rows.m * rows.shape[0] * rows.shape[1] > most_entries:
        raise InputError(
            f"{rows.m} equalities of weights {rows.shape} are too many to write out; solve them"
            " with max_margin"
        )
    return rows


def _singular_factors(
    rows: Margins, cutoff: float = 1e-12
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Singular vectors and values of the written-out rows, each divided by its norm, up to the
    numerical rank, and the norms.

    Args:
        rows: of the programme.
        cutoff: singular values below this share of the largest are rounding: some thousand units
            in the last place.
    """
    size = np.where(rows.lengths > 0, rows.lengths, 1.0)
    written = (
        (rows.differences / size[:, None])[:, :, None] * rows.queries[rows.sequence][:, None, :]
    ).reshape(rows.m, rows.shape[0] * rows.shape[1])
    U, sigma, V = np.linalg.svd(written, full_matrices=False)
    rank = int((sigma > cutoff * sigma.max(initial=0.0)).sum())
    return U[:, :rank], sigma[:rank], V[:rank], size
