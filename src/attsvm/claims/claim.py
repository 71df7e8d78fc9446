"""A claim, and the verdict on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attsvm.claims.evidence import Evidence
from attsvm.claims.expectation import Expectation
from attsvm.errors import InputError
from attsvm.presentation import cell

Source = Literal["seen", "recalled", "ours"]
Outcome = Literal["holds", "fails", "not applicable"]

Measure = Callable[[Evidence], ArrayLike]


@dataclass(frozen=True)
class Verdict:
    """What became of a claim.

    Attributes:
        claim: the claim.
        verdict: ``holds``, ``fails`` or ``not applicable``.
        measured: the value that decides (the worst one, or with a share below one the last that
            must pass); NaN when not applicable.
        passed: number of values that pass.
        counted: number of values that were looked at.
        unmet: the assumptions that no instance meets.
        columns: the columns of the evidence that were read.
        interval: for claims that ask for it, the 95 % confidence interval (Student's t) of the mean
            of the values that were looked at.
    """

    claim: Claim
    verdict: Outcome
    measured: float
    passed: int
    counted: int
    unmet: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    interval: tuple[float, float] | None = None

    def to_json(self) -> dict[str, Any]:
        """The entry of ``run.json``."""
        claim, expect = self.claim, self.claim.expect
        return {
            "id": claim.id,
            "statement": claim.statement,
            "source": claim.source,
            "reference": claim.reference,
            "measured": self.measured if math.isfinite(self.measured) else None,
            "threshold": expect.threshold,
            "expectation": str(expect),
            "reason": expect.because,
            "verdict": self.verdict,
            "passed": self.passed,
            "counted": self.counted,
            "interval": None if self.interval is None else list(self.interval),
            "unmet": list(self.unmet),
            "explanation": claim.explanation if self.verdict == "fails" else "",
            "evidence": list(self.columns),
        }

    def _repr_html_(self) -> str:
        return cell(self)

    def __str__(self) -> str:
        if self.verdict == "not applicable":
            return (
                f"{self.claim.id} is not applicable: no instance has {' and '.join(self.unmet)}."
                f" {self.claim.statement}"
            )
        counts = "" if self.counted == 1 else f", {self.passed} of {self.counted} instances pass"
        return (
            f"{self.claim.id} {self.verdict}: measured {self.measured:.4g}, expected"
            f" {self.claim.expect}{counts}. {self.claim.statement}"
        )


@dataclass(frozen=True)
class Claim:
    """A statement that evidence can contradict.

    Attributes:
        id: short name, such as ``T12``.
        statement: what is claimed, one sentence.
        source: ``seen`` (read in the paper or its code), ``recalled`` (known from the paper,
            wording unverified) or ``ours``.
        measure: from the evidence to a number, or to one number per instance.
        expect: the interval that the numbers should lie in, with its reason.
        assumes: named conditions, each from the evidence to a boolean, or to one per instance.
            Instances that miss one are not counted; when none is left the claim is not applicable.
        reference: where the statement stands, such as ``P2, Theorem 2``.
        explanation: why it fails, where it is known to; shown beside a failing verdict.
        interval: whether the verdict gives the confidence interval of the mean over instances: for
            fitted rates.
    """

    id: str
    statement: str
    source: Source
    measure: Measure
    expect: Expectation
    assumes: Mapping[str, Measure] = field(default_factory=dict)
    reference: str = ""
    explanation: str = ""
    interval: bool = False

    def _repr_html_(self) -> str:
        return cell(self)

    def check(self, evidence: Evidence | Mapping[str, ArrayLike]) -> Verdict:
        """The verdict on this evidence.

        Raises:
            InputError: a column is missing, or an assumption speaks of another number of instances
                than the measurement.
        """
        table = Evidence.of(evidence)
        table.used.clear()
        conditions = {
            name: np.asarray(condition(table), dtype=bool)
            for name, condition in self.assumes.items()
        }
        nowhere = tuple(name for name, met in conditions.items() if not met.any())
        if nowhere:  # nothing to measure, and perhaps nothing that could be
            return Verdict(
                self, "not applicable", math.nan, 0, 0, nowhere, tuple(sorted(table.used))
            )
        values = np.atleast_1d(np.asarray(self.measure(table), dtype=np.float64))
        applies = np.ones(values.shape, dtype=bool)
        for name, met in conditions.items():
            if met.ndim and met.shape != values.shape:
                raise InputError(
                    f"claim {self.id}: the assumption {name!r} speaks of {met.shape} instances, the"
                    f" measurement of {values.shape}"
                )
            applies &= met
        columns = tuple(sorted(table.used))
        if not applies.any():
            return Verdict(self, "not applicable", math.nan, 0, 0, tuple(self.assumes), columns)
        counted = values[applies]
        passed = int(np.sum(self.expect.passes(counted)))
        # A share of n instances is a whole number of them, rounded up.
        holds = passed >= math.ceil(self.expect.share * counted.size - 1e-9)
        interval = _interval(counted) if self.interval else None
        return Verdict(
            self,
            "holds" if holds else "fails",
            self.expect.worst(counted),
            passed,
            counted.size,
            (),
            columns,
            interval,
        )


def _interval(values: NDArray[np.float64]) -> tuple[float, float] | None:
    if values.size < 2 or not np.isfinite(values).all():
        return None
    from scipy.special import stdtrit

    half = float(stdtrit(values.size - 1, 0.975) * values.std(ddof=1) / math.sqrt(values.size))
    return float(values.mean()) - half, float(values.mean()) + half
