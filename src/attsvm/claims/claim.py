"""A claim, and the verdict on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attsvm.claims.evidence import Evidence
from attsvm.claims.expectation import Expectation
from attsvm.errors import InputError
from attsvm.presentation import cell

Source = Literal["paper", "authors' code", "recalled", "ours"]
Outcome = Literal["holds", "fails", "not shown", "not applicable"]

Measure = Callable[[Evidence], ArrayLike]


@dataclass(frozen=True)
class Null:
    """A broken variant of what was measured, on which a claim must fail if it says anything.

    Attributes:
        words: what is broken, in plain words, such as ``a random direction``.
        of: from the evidence to that of the broken variant.
    """

    words: str
    of: Callable[[Evidence], Evidence]

    def __post_init__(self) -> None:
        if not self.words.strip():
            raise InputError("a null needs words; say what is broken in it")


@dataclass(frozen=True)
class Verdict:
    """What became of a claim.

    Attributes:
        claim: the claim.
        verdict: ``holds``, ``fails``, ``not applicable``, or ``not shown`` where the claim holds
            and its null does as well, so that the measurement says nothing for it.
        measured: the value that decides (the worst one, or with a share below one the last that
            must pass); NaN when not applicable.
        passed: number of values that pass.
        counted: number of values that were looked at.
        unmet: the assumptions that no instance meets.
        columns: the columns of the evidence that were read.
        interval: for claims that ask for it, the 95 % confidence interval (Student's t) of the mean
            of the values that were looked at.
        trials: number of independent trials behind the values; None where the evidence has no
            column that says which trial a row is of.
        share: where there are trials, and a value for each at least, the 95 % confidence interval
            (Clopper, Pearson) of the share that passes.
        null: the verdict on the claim's null, ``holds`` or ``fails``; None without one.
        explanation: why it fails, where that is known; empty for the others.
    """

    claim: Claim
    verdict: Outcome
    measured: float
    passed: int
    counted: int
    unmet: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    interval: tuple[float, float] | None = None
    trials: int | None = None
    share: tuple[float, float] | None = None
    null: Verdict | None = None
    explanation: str = ""

    def to_json(self) -> dict[str, Any]:
        """The entry of ``run.json``."""
        claim, expect = self.claim, self.claim.expect
        return {
            "id": claim.id,
            "statement": claim.statement,
            "source": claim.source,
            "reference": claim.reference,
            "measured": _finite(self.measured),
            "threshold": expect.threshold,
            "expectation": str(expect),
            "reason": expect.because,
            "verdict": self.verdict,
            "passed": self.passed,
            "counted": self.counted,
            "interval": None if self.interval is None else list(self.interval),
            "trials": self.trials,
            "share": None if self.share is None else list(self.share),
            "null": None if self.null is None else self.null._as_null(),
            "unmet": list(self.unmet),
            "explanation": self.explanation,
            "evidence": list(self.columns),
        }

    def _as_null(self) -> dict[str, Any]:
        assert self.claim.null is not None
        return {
            "words": self.claim.null.words,
            "measured": _finite(self.measured),
            "verdict": self.verdict,
            "passed": self.passed,
            "counted": self.counted,
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
        null = "" if self.null is None else f"; null: {self.null.measured:.4g}"
        return (
            f"{self.claim.id} {self.verdict}: measured {self.measured:.4g}, expected"
            f" {self.claim.expect}{counts}{null}. {self.claim.statement}"
        )


@dataclass(frozen=True)
class Claim:
    """A statement that evidence can contradict.

    Attributes:
        id: short name, such as ``T12``.
        statement: what is claimed, one sentence.
        source: who says it: ``paper`` (a sentence of the paper or of its abstract), ``authors'
            code`` (printed or drawn by it), ``recalled`` (known from the paper, wording unverified)
            or ``ours``.
        measure: from the evidence to a number, or to one number per instance.
        expect: the interval that the numbers should lie in, with its reason.
        assumes: named conditions, each from the evidence to a boolean, or to one per instance.
            Instances that miss one are not counted; when none is left the claim is not applicable.
        reference: where the statement stands, such as ``P2, Theorem 2``.
        explanation: why it fails, where it is known to, or a function from the evidence to that;
            shown beside a failing verdict.
        interval: whether the verdict gives the confidence interval of the mean over instances: for
            fitted rates.
        null: the broken variant on which the claim must fail. The same instances are counted.
        trials: the columns, between spaces, whose distinct values are the independent trials.
    """

    id: str
    statement: str
    source: Source
    measure: Measure
    expect: Expectation
    assumes: Mapping[str, Measure] = field(default_factory=dict)
    reference: str = ""
    explanation: str | Callable[[Evidence], str] = ""
    interval: bool = False
    null: Null | None = None
    trials: str = "seed"

    def _repr_html_(self) -> str:
        return cell(self)

    def check(self, evidence: Evidence | Mapping[str, ArrayLike]) -> Verdict:
        """The verdict on this evidence.

        Raises:
            InputError: a column is missing, or an assumption or the null speaks of another number
                of instances than the measurement.
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
        values = self._values(table)
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
        passes = self.expect.passes(counted)
        trials, outcome, why = self._trials(table, applies), self._outcome(passes), self.explanation
        verdict = Verdict(
            self,
            outcome,
            self.expect.worst(counted),
            int(passes.sum()),
            counted.size,
            (),
            columns,
            _interval(counted) if self.interval else None,
            trials,
            _share_interval(passes, trials),
            explanation="" if outcome != "fails" else why if isinstance(why, str) else why(table),
        )
        return verdict if self.null is None else self._beside_its_null(verdict, table, applies)

    def _beside_its_null(
        self, verdict: Verdict, table: Evidence, applies: NDArray[np.bool_]
    ) -> Verdict:
        assert self.null is not None
        values = self._values(self.null.of(table))
        if values.shape != applies.shape:
            raise InputError(
                f"claim {self.id}: its null ({self.null.words}) speaks of {values.shape} instances,"
                f" the measurement of {applies.shape}"
            )
        counted = values[applies]
        passes = self.expect.passes(counted) | np.isnan(counted)  # what is missing breaks nothing
        null = Verdict(
            self, self._outcome(passes), self.expect.worst(counted), int(passes.sum()), counted.size
        )
        empty = verdict.verdict == null.verdict == "holds"
        return replace(verdict, verdict="not shown" if empty else verdict.verdict, null=null)

    def _values(self, table: Evidence) -> NDArray[np.float64]:
        return np.atleast_1d(np.asarray(self.measure(table), dtype=np.float64))

    def _outcome(self, passes: NDArray[np.bool_]) -> Outcome:
        # A share of n instances is a whole number of them, rounded up.
        needed = math.ceil(self.expect.share * passes.size - 1e-9)
        return "holds" if passes.sum() >= needed else "fails"

    def _trials(self, table: Evidence, applies: NDArray[np.bool_]) -> int | None:
        """The number of distinct trials, among the counted instances where there is one per row."""
        names = self.trials.split()
        if not names or not all(name in table for name in names):
            return None
        which = np.stack([table[name].astype(str) for name in names], axis=1)
        if len(which) == len(applies) and applies.ndim == 1:
            which = which[applies]
        told = which[(which != "nan").all(axis=1)]
        return len(np.unique(told, axis=0)) or None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _share_interval(passes: NDArray[np.bool_], trials: int | None) -> tuple[float, float] | None:
    """The interval of the share that passes, as if it were of independent trials alone; None where
    values are not of single trials.
    """
    if trials is None or not 1 < trials <= passes.size:
        return None
    from scipy.special import betaincinv

    good = float(passes.mean()) * trials
    low = betaincinv(good, trials - good + 1, 0.025) if good > 0 else 0.0
    high = betaincinv(good + 1, trials - good, 0.975) if good < trials else 1.0
    return float(low), float(high)


def _interval(values: NDArray[np.float64]) -> tuple[float, float] | None:
    if values.size < 2 or not np.isfinite(values).all():
        return None
    from scipy.special import stdtrit

    half = float(stdtrit(values.size - 1, 0.975) * values.std(ddof=1) / math.sqrt(values.size))
    return float(values.mean()) - half, float(values.mean()) + half
