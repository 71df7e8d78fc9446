r"""The label's share of attention as a likelihood: multinomial logistic regression, convex for
every embedding.

.. math:: L(W)=-\sum_n\pi_n\log\varphi_{y_n}(W)=\sum_n\pi_n\log\Big(1+\sum_{v\in X_n\setminus
    y_n}\frac{m_v}{m_{y_n}}
   e^{-(e_{y_n}-e_v)^\top We_{q_n}}\Big),

with :math:`\varphi_v` the attention mass of token :math:`v` of sentence :math:`X_n`, :math:`m_v`
its multiplicity, :math:`q_n` the last token and :math:`y_n` the label. Li et al., *Mechanics of
Next Token Prediction with Self-Attention* (2024).

Newton steps need no line search: along a step that moves the differences of a sentence's scores by
at most :math:`\rho`, second derivatives change by at most :math:`e^{\pm\rho}`, and the fraction
:math:`\log(1+\rho)/\rho` of the step never raises the objective (Sun and Tran-Dinh, *Generalized
Self-concordant Functions*, 2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from attsvm.base.printable import Compact
from attsvm.datasets.attention_data import BoolArray, FloatArray
from attsvm.theory.sentences import NextTokenData, winners


@dataclass(frozen=True)
class MinimiserOptions:
    """Numbers of :meth:`Likelihood.minimise`; steps are measured by the largest change of a score
    difference.
    """

    iterations: int = 200  # untuned; twenty suffice where no label is nearly certain
    settled: float = 1e-10  # a step after which the next one would be rounding
    # below it steps shrink quadratically, and one that does not is rounding of the gradient
    quadratic: float = 1e-5


OPTIONS = MinimiserOptions()


class Curvature(NamedTuple):
    """The loss and its derivatives at one point of each instance: value ``(...)``, gradient
    ``(..., p)`` and Hessian ``(..., p, p)``.
    """

    value: FloatArray
    gradient: FloatArray
    hessian: FloatArray


class Minimiser(NamedTuple):
    r"""Result of Newton's method, :meth:`Likelihood.minimise`.

    Attributes:
        point: ``(..., p)``.
        gradient: ``(...)``, the norm of the gradient there, ridge included.
        iterations: of the slowest instance.
        curvature: value, gradient and Hessian of the likelihood alone, there.
    """

    point: FloatArray
    gradient: FloatArray
    iterations: int
    curvature: Curvature


@dataclass(frozen=True, eq=False, repr=False)
class Likelihood(Compact):
    r"""The loss as a function of coordinates:
    :math:`f(c)=\sum_n\pi_n\log\big(1+\sum_v e^{b_{nv}-\langle a_{nv},c\rangle}\big)`.

    Leading axes are independent instances. Rows of padding have ``offset`` -inf and zero features.

    Attributes:
        features: ``(..., N, V, p)``, :math:`a_{nv}`: the coordinates of
            :math:`(e_{y_n}-e_v)e_{q_n}^\top`.
        offset: ``(..., N, V)``, :math:`b_{nv}=\log(m_v/m_{y_n})`.
        weights: ``(..., N)``, :math:`\pi_n`.

    Example:
        >>> import numpy as np
        >>> from attsvm.theory.sentences import NextTokenData
        >>> from attsvm.theory import attention_likelihood
        >>> data = NextTokenData.from_words(["a b c"], ["a"], following=range(3))
        >>> loss = attention_likelihood(data)
        >>> loss.features.shape, round(float(loss.value(np.zeros(9))), 4)  # log 3
        ((1, 3, 9), 1.0986)
    """

    features: FloatArray
    offset: FloatArray
    weights: FloatArray

    @property
    def dimension(self) -> int:
        """Number of coordinates p."""
        return int(self.features.shape[-1])

    def value(self, point: ArrayLike) -> FloatArray:
        """The loss ``(...)``, to relative accuracy where it is small."""
        return np.asarray((self.weights * self._masses(point)[1]).sum(axis=-1))

    def curvature(self, point: ArrayLike) -> Curvature:
        """The loss with both derivatives."""
        rest, losses = self._masses(point)
        weighted = self.weights[..., None] * rest
        gradient = -np.einsum("...nv,...nvp->...p", weighted, self.features)
        mean = np.einsum("...nv,...nvp->...np", rest, self.features)
        rows = np.sqrt(weighted)[..., None] * self.features
        rows = rows.reshape(*rows.shape[:-3], rows.shape[-3] * rows.shape[-2], rows.shape[-1])
        means = np.sqrt(self.weights)[..., None] * mean
        hessian = np.swapaxes(rows, -1, -2) @ rows - np.swapaxes(means, -1, -2) @ means
        return Curvature(np.asarray((self.weights * losses).sum(axis=-1)), gradient, hessian)

    def minimise(
        self,
        ridge: ArrayLike = 0.0,
        start: ArrayLike | None = None,
        options: MinimiserOptions = OPTIONS,
    ) -> Minimiser:
        r"""The minimiser of :math:`f(c)+\tfrac12\mu\|c\|^2` by Newton's method, all instances
        together.

        1. Solve :math:`(H+\mu I)\,s=-(\nabla f+\mu c)` for the step.
        2. Measure it by the largest change :math:`\rho/2` of a score difference; an instance whose
           step is below rounding, or no longer shrinks, takes it as its last.
        3. Take the fraction :math:`\log(1+\rho)/\rho` of it, which never raises the objective.

        Args:
            ridge: ``(...)``, :math:`\mu\ge0`; zero where the likelihood has a minimiser of its own.
                Coordinates without any curvature keep their start.
            start: ``(..., p)``; zeros when left out.
            options: number of steps, and when to stop.
        """
        shape = (*self.features.shape[:-3], self.dimension)
        c = (
            np.zeros(shape)
            if start is None
            else np.array(np.broadcast_to(np.asarray(start, dtype=np.float64), shape))
        )
        ridges = np.broadcast_to(np.asarray(ridge, dtype=np.float64), shape[:-1])[..., None]
        has_settled = np.zeros(shape[:-1], dtype=np.bool_)
        last = np.full(shape[:-1], np.inf)
        iteration = 0
        while True:
            curvature = self.curvature(c)
            gradient = curvature.gradient + ridges * c
            if has_settled.all() or iteration == options.iterations:
                return Minimiser(c, np.linalg.norm(gradient, axis=-1), iteration, curvature)
            # 1. Newton step
            step = -solve_scaled(curvature.hessian, ridges, gradient)
            change = np.abs(np.einsum("...nvp,...p->...nv", self.features, step)).max(
                axis=(-2, -1), initial=0.0
            )
            # 2. instances that have settled before this step do not move any more
            moving = ~has_settled
            has_settled = (
                has_settled
                | (change <= options.settled)
                | ((change <= options.quadratic) & (change > 0.5 * last))
            )
            last = change
            # 3. damped step
            rho = np.where(change > 0.0, 2.0 * change, 1e-300)
            damping = np.log1p(rho) / rho
            c = c + np.where(moving, damping, 0.0)[..., None] * step
            iteration += 1

    def _masses(self, point: ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Masses of the tokens that are not the label, to relative accuracy however small they are,
        and the loss of each sentence.
        """
        c = np.asarray(point, dtype=np.float64)
        exponents = self.offset - np.einsum("...nvp,...p->...nv", self.features, c)
        top = np.maximum(exponents.max(axis=-1, initial=0.0), 0.0)
        weights = np.exp(exponents - top[..., None])
        rest = weights.sum(axis=-1)
        label = np.exp(-top)
        losses = np.where(top == 0.0, np.log1p(rest), top + np.log(label + rest))
        return weights / (label + rest)[..., None], losses


def attention_likelihood(
    data: NextTokenData, basis: ArrayLike | None = None, keep: BoolArray | None = None
) -> Likelihood:
    r"""The log loss :math:`-\sum_n\pi_n\log\varphi_{y_n}(W)` of attention mass on the winner of
    every sentence, as a function of coordinates of W; sentences without a winner count 0.

    Args:
        data: the sentences.
        basis: ``(p, d, d)``, what the coordinates multiply; all entries of W, row by row, when left
            out.
        keep: ``(N, J)``, the distinct tokens that count; all when left out.

    Source: Li et al., *Mechanics of Next Token Prediction with Self-Attention* (2024).

    Example:
        >>> import numpy as np
        >>> from attsvm.theory.sentences import NextTokenData
        >>> from attsvm.theory import attention_likelihood
        >>> data = NextTokenData.from_words(["a b c"], ["a"], following=range(3))
        >>> loss = attention_likelihood(data)
        >>> W = 5.0 * np.outer([1, 0, 0], [0, 0, 1])  # prefers a before c
        >>> round(float(loss.value(W.ravel())), 4)  # log(1 + 2 exp(-5))
        0.0134
    """
    tokens, count = data.distinct()
    wins = tokens == winners(data)[:, None]
    label_count = np.sum(np.where(wins, count, 0), axis=1)
    rivals = (count > 0) & ~wins & (label_count > 0)[:, None]
    if keep is not None:
        rivals &= keep
    offset = np.where(
        rivals, np.log(np.maximum(count, 1)) - np.log(np.maximum(label_count, 1))[:, None], -np.inf
    )
    features = score_features(data).reshape(*tokens.shape, data.d**2)
    if basis is not None:
        features = features @ np.asarray(basis, dtype=np.float64).reshape(-1, data.d**2).T
    return Likelihood(
        np.where(rivals[..., None], features, 0.0),
        offset,
        np.where(label_count > 0, data.weights, 0.0),
    )


def stack_likelihoods(likelihoods: Sequence[Likelihood]) -> Likelihood:
    """Likelihoods of different sizes as one with a leading axis; sentences and coordinates of
    padding change nothing.

    Example:
        >>> from attsvm.theory.sentences import NextTokenData
        >>> from attsvm.theory import attention_likelihood, stack_likelihoods
        >>> pair = NextTokenData.from_words(["a b"], ["a"], following=range(2))
        >>> triple = NextTokenData.from_words(["a b c"], ["a"], following=range(3))
        >>> both = stack_likelihoods([attention_likelihood(pair), attention_likelihood(triple)])
        >>> both.value([[0.0] * 9] * 2).round(4).tolist()  # log 2, log 3
        [0.6931, 1.0986]
    """
    N, V, p = (
        max(likelihood.features.shape[axis] for likelihood in likelihoods) for axis in range(3)
    )
    features = np.zeros((len(likelihoods), N, V, p))
    offset = np.full((len(likelihoods), N, V), -np.inf)
    weights = np.zeros((len(likelihoods), N))
    for k, likelihood in enumerate(likelihoods):
        n, v, q = likelihood.features.shape
        features[k, :n, :v, :q] = likelihood.features
        offset[k, :n, :v] = likelihood.offset
        weights[k, :n] = likelihood.weights
    return Likelihood(features, offset, weights)


def inside_subspaces(
    likelihoods: Sequence[Likelihood],
    subspaces: Sequence[FloatArray],
    starts: FloatArray | None = None,
) -> list[tuple[FloatArray, float, float]]:
    """The minimiser of each likelihood, whose coordinates are those of its subspace
    ``(r, rows, d)``, as weights; the norm of the gradient there, and the value.
    """
    best = stack_likelihoods(likelihoods).minimise(start=starts)
    pairs = zip(best.point, subspaces, strict=True)
    weights = [np.tensordot(point[: len(basis)], basis, axes=1) for point, basis in pairs]
    values = best.curvature.value.tolist()
    return list(zip(weights, best.gradient.tolist(), values, strict=True))


def score_features(data: NextTokenData) -> FloatArray:
    r""":math:`(e_{y_n}-e_v)e_{q_n}^\top` for the winner :math:`y_n` and the distinct tokens of
    every sentence ``(N, J, d, d)``.
    """
    E = data.embeddings
    tokens, _ = data.distinct()
    return np.einsum("nvd,ne->nvde", E[winners(data)][:, None] - E[tokens], E[data.queries])


def solve_scaled(hessian: FloatArray, ridge: FloatArray, right: FloatArray) -> FloatArray:
    r""":math:`(H+\mu I)^{-1}r` where some directions are flatter than others by many orders of
    magnitude ``(..., p)``.

    Rows and columns are divided by the roots of the diagonal first. Coordinates without curvature
    get 0.

    Args:
        hessian: ``(..., p, p)``, positive semidefinite.
        ridge: ``(..., 1)``, :math:`\mu`.
        right: ``(..., p)``.
    """
    diagonal = np.einsum("...pp->...p", hessian) + ridge
    flat = diagonal <= 0.0
    size = np.sqrt(np.where(flat, 1.0, diagonal))
    matrix = hessian / size[..., :, None] / size[..., None, :]
    index = np.arange(matrix.shape[-1])
    matrix[..., index, index] = 1.0
    return np.linalg.solve(matrix, np.where(flat, 0.0, right / size)[..., None])[..., 0] / size
