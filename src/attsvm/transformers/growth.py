r"""Two growths of attention logits, told apart from records of one head.

With :math:`W=W_K^\top W_Q` and the largest logit :math:`S(t)` after :math:`t` steps, the *exponent*
is the slope :math:`a` of :math:`\log S` against :math:`\log t` over the latest records, so that
:math:`S\approx S(t)\,(t'/t)^a` and tau is reached after
:math:`t\,\big((\tau/S)^{1/a}-1\big)` more steps. The *turning* is the angle by which the direction
:math:`W/\|W\|_F` has moved meanwhile, summed from record to record, per e-fold of :math:`S`. A head
whose norm carries the growth turns less and less (saturation, what the theory of max-margin
directions expects); a head that is driven to ever new directions while its logits grow turns by a
radian or more (turning, and instability where it is fast). The line between them is
:attr:`GrowthOptions.settled`. The *pace* is what growth of the weights alone adds to :math:`S` in
a step, :math:`S\,d\log\|W\|_F/dt`: beyond one nat, every step rewrites the softmax of some query
instead of refining it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np


@dataclass(frozen=True)
class GrowthOptions:
    """Thresholds between growths of logits.

    Attributes:
        window: records that a slope is fitted to; untuned.
        settled: radians per e-fold of the largest logit below which a direction counts as settled:
            .25 are 10 degrees while logits double. Chosen on the runs of docs/guard.md.
        growing: exponent from which logits count as growing, 7 % for twice the steps, if it is
            also twice its standard error: late in training a few records span little of
            ``log step``, and noise has slopes. Untuned.
        low: share of tau below which a head is of no concern: at .25 two doublings are left to
            extrapolate. Untuned.
        fast: nats per step. Healthy networks without normalised queries and keys stay below one,
            whatever the size of their logits; those that break are beyond 1.5 some 90 steps
            before (docs/guard.md).
    """

    window: int = 8
    settled: float = 0.25
    growing: float = 0.1
    low: float = 0.25
    fast: float = 1.5


DEFAULT_GROWTH = GrowthOptions()

State = Literal["quiet", "saturating", "turning", "unstable", "unread"]


@dataclass(frozen=True)
class HeadMetrics:
    """Growth and state of one head at its latest record.

    Attributes:
        layer, head: numbers, in the order of the forward pass.
        name: the module.
        step: optimiser steps before the record.
        largest: the largest logit of the step, over all of its passes and processes.
        margin: mean distance between the largest and the second logit of a query, in nats.
        entropy: mean entropy of attention in nats.
        norm: Frobenius norm of the head's query weights times its key weights; NaN where they
            are not recognised.
        exponent: of growth, the slope of ``log largest`` against ``log step`` over the latest
            records; NaN before there are three after step 0.
        turned: how far the direction of the weights moved since the last record, one minus the
            cosine; NaN where the weights are not recognised.
        turning: radians that the direction moved per e-fold of ``largest`` over the latest records;
            NaN where either is not known, ``inf`` where logits do not grow.
        pace: nats per step by which growth of the norm raises ``largest``, between the last two
            records; by the exponent where the norm is not known, NaN where neither is.
        steps_to_tau: steps until ``largest`` reaches tau if it goes on like this; 0 beyond it,
            ``inf`` where it does not grow beyond its noise.
        state: ``quiet``, ``saturating`` (grows, direction settled), ``turning`` (grows while the
            direction moves, as in early training), ``unstable`` (the same, at a pace beyond
            :attr:`GrowthOptions.fast`), or ``unread`` (the weights are not recognised).
    """

    layer: int
    head: int
    name: str
    step: int
    largest: float
    margin: float
    entropy: float
    norm: float
    exponent: float
    turned: float
    turning: float
    pace: float
    steps_to_tau: float
    state: State


class LogitRecord(NamedTuple):
    """One measurement of a head; see :class:`HeadMetrics`."""

    step: int
    largest: float
    margin: float
    entropy: float
    norm: float
    turned: float


class HeadGrowth:
    """The latest records of one head.

    Args:
        name: the module of the head.
        records: earlier ones, oldest first.
        options: where the lines are drawn.
    """

    def __init__(
        self,
        name: str,
        records: Iterable[LogitRecord] = (),
        options: GrowthOptions = DEFAULT_GROWTH,
    ) -> None:
        self.name, self._options = name, options
        self.records: deque[LogitRecord] = deque(records, maxlen=options.window)

    def metrics(self, layer: int, head: int, tau: float) -> HeadMetrics:
        """Exponent, turning, pace and state from the records so far."""
        last = self.records[-1]
        exponent, error, folds = self._slope()
        grows = exponent > max(self._options.growing, 2 * error)
        # records may lack their angle: those that have one stand for all of the window
        angles = [
            math.acos(min(max(1.0 - record.turned, -1.0), 1.0))
            for record in list(self.records)[1:]
            if not math.isnan(record.turned)
        ]
        turning = math.nan
        if angles and not math.isnan(exponent):
            moved = sum(angles) / len(angles) * (len(self.records) - 1)
            turning = moved / folds if folds > 0 else math.inf
        # of growing heads, how far the direction moves decides, then how fast the norm grows
        pace = self._pace(exponent)
        state: State = "quiet"
        if math.isnan(last.norm) and math.isfinite(last.largest):
            state = "unread"
        elif grows and turning <= self._options.settled:
            state = "saturating"
        elif grows:
            state = "turning" if pace <= self._options.fast else "unstable"
        return HeadMetrics(
            layer,
            head,
            self.name,
            last.step,
            last.largest,
            last.margin,
            last.entropy,
            last.norm,
            exponent,
            last.turned,
            turning,
            pace,
            _steps_to(tau, last, exponent if grows else 0.0),
            state,
        )

    def steps_until_doubled(self, tau: float) -> float:
        """Steps until the largest logit has doubled, or has reached a quarter of tau if that comes
        later, should it grow on at its rate since the record before; 0 after the first record,
        ``inf`` where it does not grow.
        """
        if len(self.records) < 2:
            return 0.0
        before, last = self.records[-2], self.records[-1]
        # falling, or no numbers: measured as usual
        if not 0.0 < before.largest < last.largest < math.inf:
            return math.inf
        # what is far below tau may double several times before it matters
        doublings = max(math.log(2.0), math.log(self._options.low * tau / last.largest))
        return (last.step - before.step) * doublings / math.log(last.largest / before.largest)

    def _pace(self, exponent: float) -> float:
        """Nats per step that growth of the norm adds to the largest logit."""
        # the last interval alone: a pace is what the next steps will see
        before, last = self.records[max(len(self.records) - 2, 0)], self.records[-1]
        if last is before or not math.isfinite(last.largest):
            return math.nan
        if before.norm > 0.0 and last.norm > 0.0:
            return last.largest * math.log(last.norm / before.norm) / (last.step - before.step)
        return last.largest * exponent / last.step

    def _slope(self) -> tuple[float, float, float]:
        """The exponent, its standard error, and the e-folds of growth that it makes of all
        records.
        """
        # log of step 0 is none; a record of a step that was measured twice counts once
        points = {math.log(r.step): r.largest for r in self.records if r.step > 0}
        x, y = np.array(list(points)), np.array(list(points.values()))
        if len(x) < 3 or not (np.isfinite(y).all() and y.min() > 0):
            return math.nan, math.nan, math.nan
        # least squares of log S on log t
        x, y = x - x.mean(), np.log(y) - np.log(y).mean()
        slope = float(x @ y / (x @ x))
        error = math.sqrt(((y - slope * x) ** 2).sum() / (len(x) - 2) / (x @ x))
        return slope, error, slope * float(x[-1] - x[0])


def steps_to_next_measurement(heads: Iterable[HeadGrowth], tau: float, every: int) -> int:
    """Steps until heads are measured again: ``every``, or fewer, a fifth of it at the least, where
    the logits of one of them double sooner (:meth:`HeadGrowth.steps_until_doubled`).
    """
    return max(int(min(every, *(head.steps_until_doubled(tau) for head in heads))), every // 5, 1)


def _steps_to(tau: float, last: LogitRecord, exponent: float) -> float:
    """Steps until the largest logit reaches tau along its power of the step."""
    # not a number counts as beyond tau
    if not last.largest < tau:
        return 0.0
    if not (exponent > 0 and last.largest > 0):
        return math.inf
    # S (t'/t)^a = tau, solved for t' - t; the limit keeps expm1 finite
    folds = math.log(tau / last.largest) / exponent
    return last.step * math.expm1(folds) if folds < 50 else math.inf
