r"""One training stage of attention with a linear head: its weights and their values of sequences,
the descent that belongs to a norm, and steps that survive a kill: the same bits come out, however
often they were interrupted.

The geometry in which a stage trains is chosen so that the norm is what it minimises implicitly:

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
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import softmax

from attsvm.base.errors import InputError
from attsvm.base.ranges import LONGEST_STEP
from attsvm.base.store import RunFolder
from attsvm.datasets.attention_data import AttentionData, FloatArray, IntArray
from attsvm.norms import Norm
from attsvm.norms.norm import MirrorMap

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from attsvm.attention import Attention
    from attsvm.training import Record, Trajectory

# those at which MirrorDescent does not warn that weights are extreme powers of their dual
EXPONENTS = (1.01, 10.0)
LENGTH = 16.0  # of a step, in the norm; tokens and queries have a root-mean-square norm of one
# what Q^T Q has more than K^T K at the start of factors: at K = Q = 0 nothing would move
_OFFSET = 1.0

Progress = Callable[[str, int, int], None]
"""Called with the name of the stage, the steps done and the steps in all."""


def logits(data: AttentionData, W: FloatArray) -> FloatArray:
    r"""Logits :math:`x_{it}^\top W z_i`, ``(n, T)``; ``-inf`` on masked tokens."""
    keys = data.queries @ W.T
    unmasked = np.matmul(data.tokens, keys[:, :, None])[..., 0]
    return np.where(data.mask, unmasked, -np.inf)


def argmax_tokens(data: AttentionData, W: FloatArray) -> IntArray:
    """Positions ``(n,)`` of the visible tokens with the largest logit, the first one on ties."""
    return np.argmax(logits(data, W), axis=1)


def probabilities(data: AttentionData, W: FloatArray) -> FloatArray:
    """Attention weights ``(n, T)``, the softmax of the logits; zero on masked tokens."""
    return softmax(logits(data, W), axis=1)


@dataclass(frozen=True)
class Weights:
    """A trained attention layer with its linear head:
    ``f(X, z) = head @ (X.T @ softmax(X W z)) + intercept``.

    Attributes:
        W: ``(d_x, d_z)``.
        head: ``(d_x,)``.
        intercept: of the head.
    """

    W: FloatArray
    head: FloatArray
    intercept: float

    def rescaled(self, token_scale: float, query_scale: float) -> Weights:
        """Weights with the same logits and values where tokens and queries are so many times as
        long.
        """
        return Weights(
            self.W / (token_scale * query_scale), self.head / token_scale, self.intercept
        )

    def values(self, data: AttentionData) -> FloatArray:
        """The head's values ``(n,)`` of the attention output; their signs are the predicted
        labels.
        """
        shares = probabilities(data, self.W)
        return np.sum(shares * (data.tokens @ self.head), axis=1) + self.intercept


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


@dataclass(frozen=True)
class StageOptions:
    """How the stages of a fit are recorded, kept and reported.

    Attributes:
        run_folder: keeps unfinished work; None to keep none.
        records: of each stage, log-spaced.
        checkpoint_seconds: time between two writes of unfinished work.
        progress: see :data:`Progress`.
    """

    run_folder: RunFolder | None = None
    records: int = 60
    checkpoint_seconds: float = 5.0
    progress: Progress | None = None


def run_stage(
    name: str,
    data: AttentionData,
    model: Attention,
    optimizer: Optimizer,
    steps: int,
    options: StageOptions,
    observe: Callable[[int, FloatArray, FloatArray, FloatArray], dict[str, Any]] | None = None,
    stop: Callable[[Record], bool] | None = None,
) -> Trajectory:
    """Train ``model`` with ``optimizer`` for ``steps`` steps, with records and checkpoints.

    A stage that is already done is read back, one that was interrupted goes on.
    """
    from attsvm.training import LogSpaced, TrainState, Trajectory, train  # begins with torch

    run_folder, progress = options.run_folder, options.progress
    saved, done = (None, False) if run_folder is None else run_folder.load_stage(name)
    if saved is not None and done:
        if progress is not None:
            progress(name, steps, steps)
        return Trajectory.from_arrays(saved)
    trajectory = train(
        model,
        data,
        optimizer,
        steps,
        record=LogSpaced(options.records),
        observe=observe,
        stop=stop,
        checkpoint=None
        if run_folder is None
        else lambda state: run_folder.save_stage(name, state.to_arrays(), done=False),
        checkpoint_seconds=options.checkpoint_seconds,
        resume=None if saved is None else TrainState.from_arrays(saved),
        progress=None if progress is None else lambda step, total, _: progress(name, step, total),
    )
    if run_folder is not None:
        run_folder.save_stage(name, trajectory.to_arrays(), done=True)
    return trajectory
