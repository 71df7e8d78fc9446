r"""Which descent belongs to a norm: the geometry in which a stage trains, chosen so that the norm
is what it minimises implicitly.

* Frobenius: normalised gradient descent on :math:`W`.
* :math:`\ell_p` and Schatten p, 1 < p < inf: mirror descent on :math:`W` with
  :math:`\psi=\frac1p\|W\|_p^p` (of the entries, or of the singular values), every step of one
  length in the dual.
* nuclear: normalised gradient descent on the pair :math:`(K,Q)`, :math:`W=KQ^\top`.
* spectral, :math:`\ell_1, \ell_\infty`: normalised steepest descent on :math:`W`: spectral,
  coordinate and sign descent.

The first three keep the weights (their image under the mirror map, or the pair) a positive
combination of constraints, so long steps only overshoot, ever less relative to what has grown.
Steepest descent in the last three norms adds up *directions*, and its limit is the max-margin
solution only when no step moves a margin by much: its steps are shorter.

Sources: Tarzanagh et al., *Transformers as Support Vector Machines*; Julistiono, Ataee Tarzanagh
and Azizan, *Optimizing Attention with Mirror Descent*; Fan, Schmidt and Thrampoulidis, *Implicit
Bias of Spectral Descent and Muon on Multiclass Separable Data*.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from attsvm.base.errors import InputError
from attsvm.base.ranges import LONGEST_STEP
from attsvm.datasets.attention_data import AttentionData, FloatArray
from attsvm.norms import Norm
from attsvm.norms.norm import MirrorMap
from attsvm.sklearn.stage import Weights

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from attsvm.attention import Attention

# those at which MirrorDescent does not warn that weights are extreme powers of their dual
EXPONENTS = (1.01, 10.0)
LENGTH = 16.0  # of a step, in the norm; tokens and queries have a root-mean-square norm of one
# what Q^T Q has more than K^T K at the start of factors: at K = Q = 0 nothing would move
_OFFSET = 1.0


def descent_kind(norm: Norm) -> str:
    """The row of the table above.

    Raises:
        InputError: a potential whose exponent is too close to one or too large for mirror descent.
    """
    if (mirror := _mirror(norm)) and not EXPONENTS[0] <= mirror.p <= EXPONENTS[1]:
        raise InputError(
            f"fit trains for {norm.name} by mirror descent, whose weights are powers"
            f" {1 / (mirror.p - 1):.3g} of its dual; give an exponent between {EXPONENTS[0]:g} and"
            f" {EXPONENTS[1]:g}, or use max_margin, or attsvm solve, for the solution alone"
        )
    return norm.descent.kind


def step_length(norm: Norm, data: AttentionData) -> float:
    r"""The default length of a step in ``norm``: 16, and where long steps change the limit what
    moves every logit by a fraction of one.

    A step of length :math:`\eta` moves a logit by at most :math:`\eta\,\|x\,z^\top\|_*`. Too long a
    step ends farther from the best margin, too short a one takes long to get there; of those tried,
    the fractions came closest on the digits in 20 000 steps.
    """
    if descent_kind(norm) != "steepest":
        return LENGTH
    tokens = np.where(data.mask[..., None], data.tokens, 0.0)
    return norm.descent.move / norm.logit_reach(tokens, data.queries)


def selection_descent(
    norm: Norm, data: AttentionData, start: Weights, lr: float, steps: int
) -> tuple[Attention, Optimizer]:
    r"""The descent of ``norm`` on the attention weights alone, from ``start``.

    ``lr`` is a length in ``norm``, whatever the parameters: after N = ``steps`` steps the weights
    have grown to at most :math:`N\,lr`. Steps in the dual of a mirror map have the length
    :math:`(N\,lr)^{p-1}/N`, because :math:`\|\nabla\psi(W)\|_q=\|W\|^{p-1}`; steps of a pair have
    :math:`\sqrt{2\,lr/N}`, because :math:`2\|KQ^\top\|_*\le\|K\|_F^2+\|Q\|_F^2`.
    """
    from attsvm.attention import Attention  # begins with torch
    from attsvm.optim import MirrorDescent, SteepestDescent

    if descent_kind(norm) == "factored":
        factored = Attention.cross(
            data,
            start.head,
            start.intercept,
            init=_factors(start.W),
            parameterization="KQ",
            stacked=True,
        )
        return factored, SteepestDescent(factored.parameters(), lr=math.sqrt(2.0 * lr / steps))
    model = Attention.cross(data, start.head, start.intercept, init=start.W)
    if mirror := _mirror(norm):
        potential, p = mirror
        length = float((steps * lr) ** (p - 1.0) / steps)
        return model, MirrorDescent([model.W], lr=length, p=p, normalize=True, potential=potential)
    return model, SteepestDescent([model.W], lr=lr, norm=norm, normalize=True)


def check_step(norm: Norm, lr: float, steps: int) -> None:
    """Refuse a step whose length in the dual of the norm's mirror map is no ordinary number.

    Raises:
        InputError: it is below 1e-100 or above 1e100.
    """
    if mirror := _mirror(norm):
        logarithm = (mirror.p - 1.0) * math.log10(steps * lr) - math.log10(steps)
        if abs(logarithm) > math.log10(LONGEST_STEP):
            raise InputError(
                f"steps of length {lr:g} in {norm.name} are steps of about 10^{logarithm:.0f} in"
                " the dual of mirror descent, beyond the range of numbers; give a length nearer 1"
            )


def _mirror(norm: Norm) -> MirrorMap | None:
    """The map of the descent; that of the Frobenius norm is the identity and left out."""
    return norm.mirror_map if norm.descent.kind == "mirror" else None


def _factors(W: FloatArray) -> tuple[FloatArray, FloatArray]:
    r"""K and Q with :math:`KQ^\top=W` that can move whatever the rank of ``W``:
    :math:`Q=V(S+1)^{1/2}`, :math:`K=US(S+1)^{-1/2}`.
    """
    U, sizes, Vt = np.linalg.svd(W, full_matrices=False)
    root = np.sqrt(sizes + _OFFSET)
    return U * (sizes / root), Vt.T * root
