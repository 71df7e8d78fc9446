r"""Training one attention layer on next tokens: many data sets at once, compiled, with gradients
that no saturation rounds away.

The contract, in short:

* Data are :class:`~attsvm.theory.sentences.NextTokenData`, one per run; all runs share K and d,
  sentences may differ in number. Results always have a runs axis behind the records:
  ``trajectory.W`` is ``(R, runs, d, d)``.
* A :class:`Problem` is sentences, a value table and a loss (``cross_entropy``, ``squared``,
  ``squared_softmax``, ``log_mass``). ``Problem.of(data, "log_mass")`` is the log loss of priority
  graphs; ``values=output_values(W_ov, E)`` the transformer's; no values mean the identity, the
  attention mass per token. ``problem.gradient(W)`` is ``(G, log_scale)`` anywhere,
  ``problem.log_gap(W)`` the logarithm of the loss over its floor, ``problem.log_missing(W)`` that
  of the attention off the winners, ``problem.scores(W)[run, q, v]``.
* :func:`attention_stage` trains W under a :class:`StepRule`: normalised (constant or decaying
  steps), plain, Polyak. :func:`output_stage` trains the output matrix, :func:`two_stage` is
  Algorithm 1, :func:`joint_stage` trains both.
* :func:`steepest_stage` takes steps in any norm, with or without momentum; :func:`factored_stage`
  trains :math:`W=KQ^\top`, and :func:`factored_output_stage` :math:`W_{ov}=W_oW_v^\top`.
* A :class:`WeightTrajectory` has ``steps``, ``W``, ``norm``, ``direction_error(solutions)``,
  ``cosine(solutions)``, ``stopped_at``, and of attention ``log_gap``, ``loss``, ``log_missing``
  (worst sentence), ``alignment(solutions)``.

All in float64; the state is K x K per run, so this is for the vocabularies of theory, not of
language models.
"""

from __future__ import annotations

from attsvm.theory.next_token.algorithm_one import (
    JointTrajectories,
    StepRule,
    TwoStages,
    attention_stage,
    factored_output_stage,
    factored_stage,
    joint_stage,
    output_stage,
    steepest_stage,
    two_stage,
)
from attsvm.theory.next_token.compiled_runs import SentenceLoss
from attsvm.theory.next_token.problem import (
    NoAttentionSignalError,
    Problem,
    output_values,
)
from attsvm.theory.next_token.trajectories import (
    AttentionTrajectory,
    OutputTrajectory,
    WeightTrajectory,
)

__all__ = [
    "AttentionTrajectory",
    "JointTrajectories",
    "NoAttentionSignalError",
    "OutputTrajectory",
    "Problem",
    "SentenceLoss",
    "StepRule",
    "TwoStages",
    "WeightTrajectory",
    "attention_stage",
    "factored_output_stage",
    "factored_stage",
    "joint_stage",
    "output_stage",
    "output_values",
    "steepest_stage",
    "two_stage",
]


def __dir__() -> list[str]:
    return __all__
