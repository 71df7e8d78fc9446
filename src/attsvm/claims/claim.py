"""A claim, what it is held against, the measured arrays it looks at, and the verdict on it."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attsvm.base.errors import InputError
from attsvm.base.extras import data_frame
from attsvm.base.presentation import html_cell
from attsvm.claims.halves import FEW, half_samples
from attsvm.claims.intervals import interval, share_interval


class StepNotRecordedError(InputError):
    """Evidence was asked for a step at which nothing was recorded."""

    def __init__(self, step: float, records: str) -> None:
        super().__init__(f"{step:g} is none of the recorded steps; see the column {records!r}")
        self.step = step


class Evidence(Mapping[str, NDArray[Any]]):
    """Named arrays of equal first length, the trials; parameters that vary are columns like any
    other.

    ``evidence["gap"]`` is a column, ``evidence.where(n=4, d=8)["gap"]`` its rows where those
    columns have those values. The names that were looked up are kept in :attr:`used`, so that a
    verdict can say what it rests on; the steps that :meth:`at` took the nearest record of in
    :attr:`replaced_steps`, None without :meth:`with_nearest_steps`.

    Args:
        columns: arrays; a scalar or an array of another length than the rest is an error.

    Raises:
        InputError: no columns, or columns of different lengths.

    Example:
        >>> from attsvm.claims import Evidence
        >>> evidence = Evidence({"d": [4, 4, 8], "gap": [0.1, 0.2, 0.05]})
        >>> evidence.where(d=4)["gap"].tolist(), evidence.rows
        ([0.1, 0.2], 3)
    """

    def __init__(
        self,
        columns: Mapping[str, ArrayLike],
        used: set[str] | None = None,
        replaced_steps: dict[float, float] | None = None,
    ) -> None:
        self._columns = {name: np.asarray(column) for name, column in columns.items()}
        lengths = {
            name: len(column) if column.ndim else None for name, column in self._columns.items()
        }
        if not lengths or None in lengths.values() or len(set(lengths.values())) > 1:
            raise InputError(
                f"evidence needs columns with one row per trial; these have lengths {lengths}"
            )
        self.used: set[str] = set() if used is None else used
        self.replaced_steps = replaced_steps

    @classmethod
    def of(cls, evidence: Evidence | Mapping[str, ArrayLike]) -> Evidence:
        """``evidence`` itself, or a mapping of arrays as evidence."""
        return evidence if isinstance(evidence, Evidence) else cls(evidence)

    @classmethod
    def concatenate(cls, evidences: Sequence[Mapping[str, ArrayLike]]) -> Evidence:
        """The rows of all parts below each other. A column that a part lacks holds NaN
        there, or nothing where it holds words.

        Raises:
            InputError: a column has rows of different shapes.
        """
        tables = [cls(evidence) for evidence in evidences]
        columns: dict[str, Any] = {}
        for name in dict.fromkeys(name for table in tables for name in table):
            shapes = {table._columns[name].shape[1:] for table in tables if name in table}
            if len(shapes) > 1:
                raise InputError(
                    f"column {name!r} has rows of shapes {sorted(shapes)}; give them different"
                    " names"
                )
            shape = shapes.pop()
            held = [table._columns[name] for table in tables if name in table]
            missing: Any = "" if held[0].dtype.kind == "U" else np.nan
            pieces = [
                table._columns[name] if name in table else np.full((table.rows, *shape), missing)
                for table in tables
            ]
            columns[name] = np.concatenate(pieces)
        return cls(columns)

    @property
    def rows(self) -> int:
        """Number of trials."""
        return len(next(iter(self._columns.values())))

    def where(self, **values: Any) -> Evidence:
        """The rows whose columns equal the given values.

        Raises:
            InputError: no row does.
        """
        keep = self._where(values)
        if not keep.any():
            raise InputError(
                f"no trial has {', '.join(f'{name}={value!r}' for name, value in values.items())}"
            )
        return self.take(keep)

    def _where(self, values: Mapping[str, Any]) -> NDArray[np.bool_]:
        keep = np.ones(self.rows, dtype=bool)
        for name, value in values.items():
            keep &= self[name] == value
        return keep

    def take(self, rows: ArrayLike) -> Evidence:
        """The rows that an index or mask array picks."""
        index = np.asarray(rows)
        columns = {name: column[index] for name, column in self._columns.items()}
        return Evidence(columns, self.used, self.replaced_steps)

    def but(self, columns: Mapping[str, ArrayLike]) -> Evidence:
        """Evidence of these trials with other columns, in place of those of the same names."""
        return Evidence({**self._columns, **columns}, replaced_steps=self.replaced_steps)

    def levels(self, name: str) -> list[Any]:
        """The distinct values of a column, sorted; rows that lack one do not count."""
        return np.unique(self[name][_has_value(self[name])]).tolist()

    def by(self, names: str) -> list[Evidence]:
        """The rows of every value of a column, in order, or of some columns, between spaces; all
        rows at once without a name. Rows that lack a value belong to none.
        """
        if not names:
            return [self]
        columns = [self[name] for name in names.split()]
        keys = np.stack([np.unique(column, return_inverse=True)[1] for column in columns], axis=1)
        complete = np.all([_has_value(column) for column in columns], axis=0)
        return [self.take((keys == key).all(axis=1)) for key in np.unique(keys[complete], axis=0)]

    def at(self, name: str, step: float, records: str = "step") -> NDArray[Any]:
        """``(rows, ...)``: a column at the record of a step; every row has the same ones.

        Raises:
            InputError: that step is no record, see :meth:`with_nearest_steps`.
        """
        steps = self[records][0]
        records_of_step = np.flatnonzero(steps == step)
        if records_of_step.size:
            return self[name][:, int(records_of_step[0])]
        if self.replaced_steps is None or np.isnan(steps).all():
            raise StepNotRecordedError(step, records)
        nearest = int(np.nanargmin(np.abs(steps - step)))
        self.replaced_steps[step] = float(steps[nearest])
        return self[name][:, nearest]

    def with_nearest_steps(self) -> Evidence:
        """This evidence, where :meth:`at` takes the nearest record of a step that was not recorded
        and notes both in :attr:`replaced_steps`: for pictures of shorter runs.

        Example:
            >>> from attsvm.claims import Evidence
            >>> evidence = Evidence({"step": [[1, 10]], "gap": [[0.5, 0.1]]}).with_nearest_steps()
            >>> evidence.at("gap", 100).tolist(), evidence.replaced_steps
            ([0.1], {100: 10.0})
        """
        return Evidence(self._columns, self.used, {})

    def end(self, name: str) -> NDArray[Any]:
        """``(rows, ...)``: a column at its last record."""
        return self[name][:, -1]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All columns as plain numbers; of a column of words the positions in :meth:`words`."""
        words = self.words()
        return {
            name: np.searchsorted(words[name], column) if name in words else column
            for name, column in self._columns.items()
        }

    def words(self) -> dict[str, list[str]]:
        """The distinct values of every column of words, sorted."""
        return {
            name: np.unique(column).tolist()
            for name, column in self._columns.items()
            if column.dtype.kind == "U"
        }

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._columns:
            raise InputError(
                f"there is no column {name!r} in the evidence; there are:"
                f" {', '.join(sorted(self._columns))}"
            )
        self.used.add(name)
        return self._columns[name]

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


@dataclass(frozen=True)
class Expectation:
    """An interval that measured values should lie in.

    Attributes:
        low: smallest value that passes, ``-inf`` for none.
        high: largest value that passes, ``inf`` for none.
        because: the reason for these bounds, one sentence.
        share: share of the values that must pass. 1 for a theorem; less where the theory speaks of
            most instances.
        strict: whether the bounds themselves do not pass.

    Example:
        >>> from attsvm.claims import Expectation
        >>> expected = Expectation(0.0, 0.1, because="six degrees", share=0.9)
        >>> expected.passes([0.05, 0.2]).tolist()
        [True, False]
    """

    low: float
    high: float
    because: str
    share: float = 1.0
    strict: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if math.isnan(self.low) or math.isnan(self.high) or self.low > self.high:
            raise InputError(f"the bounds are {self.low} and {self.high}; give low <= high")
        if not 0.0 < self.share <= 1.0:
            raise InputError(f"share is {self.share}; give a number above 0 and at most 1")
        if not self.because.strip():
            raise InputError("a threshold needs its reason; say in `because` why it is this one")

    def of(self, share: float) -> Expectation:
        """An expectation with these bounds, for another share of the values."""
        return replace(self, share=share)

    def passes(self, values: ArrayLike) -> NDArray[np.bool_]:
        """Which values lie inside; NaN never does."""
        array = np.asarray(values, dtype=np.float64)
        if self.strict:
            return (array > self.low) & (array < self.high)
        return (array >= self.low) & (array <= self.high)

    def worst(self, values: ArrayLike) -> float:
        """The value that decides: with a share below one, the last value that must pass; else the
        worst of all. A missing number, NaN, is worse than any.
        """
        array = np.asarray(values, dtype=np.float64).ravel()
        excess = np.maximum(self.low - array, array - self.high)
        order = np.argsort(excess, kind="stable")  # NaN last
        return float(array[order[min(len(array), math.ceil(self.share * len(array) - 1e-9)) - 1]])

    @property
    def threshold(self) -> Any:
        """The bound as a number, or as a pair when there are two; JSON-ready."""
        if math.isinf(self.low):
            return self.high
        return self.low if math.isinf(self.high) else [self.low, self.high]

    def __str__(self) -> str:
        at_most, at_least = ("below", "above") if self.strict else ("at most", "at least")
        if math.isinf(self.low):
            bounds = f"{at_most} {self.high:g}"
        elif math.isinf(self.high):
            bounds = f"{at_least} {self.low:g}"
        else:
            bounds = f"from {self.low:g} to {self.high:g}"
        if self.share == 1.0:
            return bounds
        return f"{bounds} in at least {100.0 * self.share:.4g} % of the instances"


def at_most(bound: float, because: str, share: float = 1.0) -> Expectation:
    """Values up to ``bound``.

    Example:
        >>> from attsvm.claims import at_most
        >>> at_most(0.1, "six degrees").passes([0.05, 0.2]).tolist()
        [True, False]
    """
    return Expectation(-math.inf, bound, because, share)


def at_least(bound: float, because: str, share: float = 1.0) -> Expectation:
    """Values from ``bound`` on.

    Example:
        >>> from attsvm.claims import at_least
        >>> at_least(0.9, "nine in ten").passes([0.85, 0.95]).tolist()
        [False, True]
    """
    return Expectation(bound, math.inf, because, share)


def below(bound: float, because: str, share: float = 1.0) -> Expectation:
    """Values smaller than ``bound``.

    Example:
        >>> from attsvm.claims import below
        >>> below(0.1, "six degrees").passes([0.05, 0.1]).tolist()
        [True, False]
    """
    return Expectation(-math.inf, bound, because, share, strict=True)


def above(bound: float, because: str, share: float = 1.0) -> Expectation:
    """Values larger than ``bound``.

    Example:
        >>> from attsvm.claims import above
        >>> above(0.0, "better than chance").passes([0.0, 0.2]).tolist()
        [False, True]
    """
    return Expectation(bound, math.inf, because, share, strict=True)


def between(low: float, high: float, because: str, share: float = 1.0) -> Expectation:
    """Values from ``low`` to ``high``.

    Example:
        >>> from attsvm.claims import between
        >>> between(-1.1, -0.9, "falls like 1/t").passes([-1.0, -0.5]).tolist()
        [True, False]
    """
    return Expectation(low, high, because, share)


def close_to(value: float, tolerance: float, because: str, share: float = 1.0) -> Expectation:
    """Values within ``tolerance`` of ``value``.

    Example:
        >>> from attsvm.claims import close_to
        >>> close_to(2.0, 0.1, "printed by the notebook").passes([2.05, 2.2]).tolist()
        [True, False]
    """
    return Expectation(value - tolerance, value + tolerance, because, share)


def true(because: str, share: float = 1.0) -> Expectation:
    """Booleans that should be true.

    Example:
        >>> from attsvm.claims import true
        >>> true("stated for every start").passes([True, False]).tolist()
        [True, False]
    """
    return Expectation(1.0, math.inf, because, share)


Source = Literal["paper", "authors' code", "recalled", "ours"]
Outcome = Literal["holds", "fails", "undecided", "not shown", "not applicable"]
Failure = Literal["", "ours is stronger", "scale", "refuted", "not reproduced"]
"""What a failing verdict says of the statement: it asks for more than the theorem beside it; it
lacks steps, sizes or trials; it is a hypothesis of this project that the evidence refutes; or none
of these, so that it is not reproduced.
"""

Measure = Callable[[Evidence], ArrayLike | Mapping[str, ArrayLike]]


@dataclass(frozen=True)
class Null:
    """A broken variant of what was measured, on which a claim must fail if it says anything.

    Attributes:
        words: what is broken, in plain words, such as ``a random direction``.
        of: from the evidence to that of the broken variant.

    Example:
        >>> from attsvm.claims import Evidence, Null
        >>> null = Null("another trial's solution", lambda e: Evidence({"gap": e["other"]}))
        >>> null.of(Evidence({"gap": [0.1], "other": [0.7]}))["gap"].tolist()
        [0.7]
    """

    words: str
    of: Callable[[Evidence], Evidence]

    def __post_init__(self) -> None:
        if not self.words.strip():
            raise InputError("a null needs words; say what is broken in it")


@dataclass(frozen=True)
class Verdict:
    """The result of checking a claim.

    Attributes:
        claim: the claim.
        verdict: ``holds``, ``fails``, ``not applicable``; ``undecided`` where more than a tenth of
            the random halves of the trials have the other outcome, or one trial stands for a share;
            or ``not shown`` where the claim holds and its null does as well, so that the
            measurement says nothing for it.
        measured: the value that decides (the worst one, or with a share below one the last that
            must pass); NaN when not applicable.
        passed: number of values that pass.
        counted: number of values that were looked at.
        unmet: the assumptions that no instance meets, or a step that the claim looks at and that
            was not recorded.
        worst_values: of a claim about several parts the value that decides each, by its name.
        columns: the columns of the evidence that were read.
        interval: for claims that ask for it, the 95 % confidence interval (Student's t) of the mean
            of the values that were looked at.
        trials: number of independent trials behind the values; None where the evidence has no
            column that says which trial a row is of.
        share: where there are trials, and a value for each at least, the 95 % confidence interval
            (Clopper, Pearson) of the share that passes.
        null: the verdict on the claim's null, ``holds`` or ``fails``; None without one.
        explanation: why it fails, where that is known; empty for the others.
        halves: how many of the random halves of the trials hold, and how many could be judged;
            None where there are no trials.

    Example:
        >>> from attsvm.claims import Claim, at_most
        >>> small = at_most(0.1, "six degrees")
        >>> claim = Claim("A1", "Gaps are small.", "ours", lambda e: e["gap"], small)
        >>> verdict = claim.check({"gap": [0.05, 0.02]})
        >>> verdict.verdict, verdict.measured, verdict.passed, verdict.counted
        ('holds', 0.05, 2, 2)
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
    worst_values: Mapping[str, float] = field(default_factory=dict)
    halves: tuple[int, int] | None = None

    @property
    def failing(self) -> tuple[str, ...]:
        """The parts that fail; empty for a claim that is measured as a whole, or does not fail."""
        if self.verdict != "fails":
            return ()
        return tuple(
            k for k, worst in self.worst_values.items() if not self.claim.expect.passes(worst)
        )

    @property
    def short(self) -> str:
        """The verdict, and the parts that fail: ``fails; reviews; images``."""
        return "; ".join((self.verdict, *self.failing))

    @property
    def failure(self) -> Failure:
        """The meaning of a failing verdict for the statement; empty for the others."""
        return self.claim.failure if self.verdict == "fails" else ""

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
            "parts": {name: _finite(worst) for name, worst in self.worst_values.items()},
            "failing": list(self.failing),
            "interval": None if self.interval is None else list(self.interval),
            "trials": self.trials,
            "share": None if self.share is None else list(self.share),
            "halves": None if self.halves is None else list(self.halves),
            "null": None if self.null is None else self.null._as_null(),
            "unmet": list(self.unmet),
            "failure": self.failure,
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
        return html_cell(self)

    def __str__(self) -> str:
        if self.verdict == "not applicable":
            return (
                f"{self.claim.id} is not applicable: no instance has {' and '.join(self.unmet)}."
                f" {self.claim.statement}"
            )
        counts = "" if self.counted == 1 else f", {self.passed} of {self.counted} instances pass"
        if self.verdict == "undecided" and self.halves is not None:
            counts += ", {} of {} halves of the trials hold".format(*self.halves)
        null = "" if self.null is None else f"; null: {self.null.measured:.4g}"
        kind = f" ({self.failure})" if self.failure else ""
        where = "".join(f"; {name}: {self.worst_values[name]:.4g}" for name in self.failing)
        return (
            f"{self.claim.id} {self.verdict}{kind}{where}: measured {self.measured:.4g}, expected"
            f" {self.claim.expect}{counts}{self._interval_in_words()}{null}. {self.claim.statement}"
        )

    def _interval_in_words(self) -> str:
        """The confidence interval of the mean or of the share that passes, or why there is none."""
        if self.interval is not None:
            return ", 95 % interval of the mean {:.4g} to {:.4g}".format(*self.interval)
        if self.share is not None:
            return ", 95 % interval of the share {:.2f} to {:.2f}".format(*self.share)
        if self.counted > 1 and self.trials is None:
            return f" (no interval: no column {self.claim.trials!r} tells independent trials apart)"
        return ""

    def to_frame(self) -> Any:
        """A data frame of one row, with the columns of :meth:`to_json`; ``pandas.concat`` joins
        those of several claims.

        Raises:
            UnavailableError: pandas is not installed.
        """
        return data_frame([self.to_json()], "to_json()")

    def to_latex(self) -> str:
        r"""A row of a LaTeX table: identifier, statement, measured, expected, how many of how many
        pass, verdict.

        Example:
            >>> from attsvm.claims import Claim, at_most
            >>> claim = Claim("A1", "Small gaps.", "ours", lambda e: e["gap"], at_most(0.1, "."))
            >>> print(claim.check({"gap": [0.05, 0.02]}).to_latex())
            A1 & Small gaps. & 0.05 & at most 0.1 & 2 of 2 & holds \\
        """
        columns = (
            self.claim.id,
            self.claim.statement,
            f"{self.measured:.4g}",
            str(self.claim.expect),
            f"{self.passed} of {self.counted}",
            self.verdict,
        )
        return " & ".join(_LATEX.sub(r"\\\g<0>", column) for column in columns) + r" \\"


_LATEX = re.compile(r"[&%$#_{}]")
"""Characters that LaTeX takes for commands."""


class _Counted(NamedTuple):
    """What a claim measures on some rows.

    Attributes:
        table: the rows that it speaks of.
        values: numbers ``(instances,)``.
        names: of each the name of its part, empty where there are none.
        applies: ``(instances,)``, whether it counts.
        unmet: the assumptions that no instance meets; nothing was measured where there is one.
    """

    table: Evidence
    values: NDArray[np.float64]
    names: NDArray[np.str_]
    applies: NDArray[np.bool_]
    unmet: tuple[str, ...]

    @classmethod
    def nothing(cls, table: Evidence, *unmet: str) -> _Counted:
        return cls(table, np.empty(0), np.empty(0, str), np.empty(0, bool), unmet)


@dataclass(frozen=True)
class Claim:
    """A statement that evidence can contradict.

    Attributes:
        id: short name, such as ``T12``.
        statement: what is claimed, one sentence.
        source: who says it: ``paper`` (a sentence of the paper or of its abstract), ``authors'
            code`` (printed or drawn by it), ``recalled`` (known from the paper, wording unverified)
            or ``ours``.
        measure: from the evidence to a number, or to one number per instance; or to these by name,
            where the claim is made of several parts. Each part must hold by itself, must fail on
            the null by itself, and an empty one is not counted.
        expect: the interval that the numbers should lie in, with its reason.
        assumes: named conditions, each from the evidence to a boolean, or to one per instance.
            Instances that miss one are not counted; when none is left the claim is not applicable.
            Of a claim made of parts they speak of all instances.
        reference: where the statement stands, such as ``Theorem 2``.
        explanation: why it fails, where it is known to, or a function from the evidence to that;
            shown beside a failing verdict.
        failure: in a word or two what it says where it fails, see :data:`Failure`.
        interval: whether the verdict gives the confidence interval of the mean over instances: for
            fitted rates.
        null: the broken variant on which the claim must fail. The same instances are counted.
        trials: the columns, between spaces, whose distinct values are the independent trials. None
            for what is no sample, or judges an interval already: it is never undecided.
        where: values of columns, as ``{"d": 4}``: measure and assumptions get these rows alone, of
            the evidence and of the null's, and trials are counted among them.

    Example:
        >>> from attsvm.claims import Claim, Evidence, Null, at_most
        >>> claim = Claim(
        ...     id="A1",
        ...     statement="Training meets its own solution.",
        ...     source="ours",
        ...     measure=lambda e: e["gap"],
        ...     expect=at_most(0.1, "six degrees"),
        ...     null=Null("another trial's solution", lambda e: Evidence({"gap": e["other"]})),
        ... )
        >>> print(claim.check({"gap": [0.05, 0.02], "other": [0.7, 0.9]}))
        A1 holds: measured 0.05, expected at most 0.1, 2 of 2 instances pass (no interval: no column
        'seed' tells independent trials apart); null: 0.9. Training meets its own solution.
    """

    id: str
    statement: str
    source: Source
    measure: Measure
    expect: Expectation
    assumes: Mapping[str, Measure] = field(default_factory=dict)
    reference: str = ""
    explanation: str | Callable[[Evidence], str] = ""
    failure: Failure = field(default="", kw_only=True)
    interval: bool = False
    null: Null | None = None
    trials: str = "seed"
    where: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        if self.source not in get_args(Source):
            raise InputError(
                f"claim {self.id}: source is {self.source!r}; use one of"
                f" {', '.join(map(repr, get_args(Source)))}"
            )
        if not callable(self.measure):
            raise InputError(
                f"claim {self.id}: measure is {self.measure!r}; give a function from the evidence"
                ' to numbers, such as lambda e: e["gap"]'
            )

    def _repr_html_(self) -> str:
        return html_cell(self)

    def check(self, evidence: Evidence | Mapping[str, ArrayLike]) -> Verdict:
        """The verdict on this evidence; ``not applicable`` where the claim looks at a step that was
        not recorded.

        Raises:
            InputError: a column is missing, or an assumption or the null speaks of another number
                of instances than the measurement.
        """
        every_row = Evidence.of(evidence)
        every_row.used.clear()
        try:
            return self._check(every_row)
        except StepNotRecordedError as error:
            columns = tuple(sorted(every_row.used))
            unmet = (f"a record of step {error.step:g}",)
            return Verdict(self, "not applicable", math.nan, 0, 0, unmet, columns)

    def _check(self, every_row: Evidence) -> Verdict:
        """The verdict; the error of a step that was not recorded is passed on."""
        counted = self._count(every_row)
        columns = tuple(sorted(counted.table.used))
        if counted.unmet:
            return Verdict(self, "not applicable", math.nan, 0, 0, counted.unmet, columns)
        values, applies = counted.values[counted.applies], counted.applies
        passes = self.expect.passes(values)
        values_by_name = _values_by_name(values, counted.names[applies])
        decisive = {
            name: self.expect.worst(named_values) for name, named_values in values_by_name.items()
        }
        outcome: Outcome = "holds" if all(map(self._holds, values_by_name.values())) else "fails"
        trials, why = self._trials(counted.table, applies), self.explanation
        is_shares = trials is not None and passes.size >= trials
        halves = self._halves(every_row, counted.table)
        if self._is_undecided(outcome, halves, trials, is_shares):
            outcome = "undecided"
        verdict = Verdict(
            self,
            outcome,
            self.expect.of(1.0).worst([*decisive.values()]),
            int(passes.sum()),
            values.size,
            (),
            columns,
            _interval(values) if self.interval else None,
            trials,
            _share_interval(passes, trials),
            explanation=""
            if outcome != "fails"
            else why
            if isinstance(why, str)
            else why(counted.table),
            worst_values=decisive if (counted.names != "").any() else {},
            halves=halves,
        )
        return verdict if self.null is None else self._beside_its_null(verdict, every_row, applies)

    def _count(self, every_row: Evidence) -> _Counted:
        """The measured numbers, and which of them count.

        Raises:
            InputError: an assumption speaks of another number of instances than the measurement.
        """
        if not every_row._where(self.where).any():
            where = ", ".join(f"{name} = {value}" for name, value in self.where.items())
            return _Counted.nothing(every_row, where)
        table = self._rows(every_row)
        conditions = {
            name: np.asarray(condition(table), dtype=bool)
            for name, condition in self.assumes.items()
        }
        nowhere = [name for name, met in conditions.items() if not met.any()]
        if nowhere:  # nothing to measure, and perhaps nothing that could be
            return _Counted.nothing(table, *nowhere)
        values, names = self._values(table)
        applies = np.ones(values.shape, dtype=bool)
        for name, met in conditions.items():
            if met.ndim and (met.shape != values.shape or (names != "").any()):
                raise InputError(
                    f"claim {self.id}: the assumption {name!r} speaks of {met.shape} instances, the"
                    f" measurement of {values.shape}"
                )
            applies &= met
        if not applies.any():
            return _Counted.nothing(table, *(self.assumes or ("any part",)))
        return _Counted(table, values, names, applies, ())

    def _halves(self, every_row: Evidence, table: Evidence) -> tuple[int, int] | None:
        """How many random halves of the trials hold, and how many could be judged."""
        trial = self._trial_numbers(every_row)
        if trial is None or trial.max(initial=-1) < 1:
            return None
        holding = judged = 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those of all trials were shown
            for mask in half_samples(trial):
                try:
                    counted = self._count(every_row.take(mask))
                except Exception:  # with fewer trials there may be nothing to measure
                    continue
                if not counted.unmet:
                    values = _values_by_name(
                        counted.values[counted.applies], counted.names[counted.applies]
                    )
                    holding += all(map(self._holds, values.values()))
                    judged += 1
        return holding, judged

    def _is_undecided(
        self,
        outcome: Outcome,
        halves: tuple[int, int] | None,
        trials: int | None,
        is_shares: bool,
    ) -> bool:
        """Whether the trials are too few for the outcome, or too divided."""
        if self.expect.share == 1.0 and is_shares and outcome == "fails":
            return False  # one counterexample is enough
        if self.expect.share < 1.0 and trials == 1:
            return True
        holding, judged = halves or (0, 0)
        other = judged - holding if outcome == "holds" else holding
        return other > FEW * judged

    def _trial_numbers(self, every_row: Evidence) -> NDArray[np.int64] | None:
        """The number of the trial of every row, -1 for rows that the claim does not speak of; None
        without the columns that tell trials apart.
        """
        names = self.trials.split()
        if not names or not all(name in every_row for name in names):
            return None
        keys = np.stack([every_row._columns[name].astype(str) for name in names], axis=1)
        in_table = every_row._where(self.where) & ~np.isin(keys, ("nan", "")).any(axis=1)
        distinct, number = np.unique(keys, axis=0, return_inverse=True)
        is_trial = np.zeros(len(distinct), dtype=bool)
        is_trial[number.ravel()[in_table]] = True
        numbers: NDArray[np.int64] = np.where(is_trial, np.cumsum(is_trial) - 1, -1)[number.ravel()]
        return numbers

    def _rows(self, evidence: Evidence) -> Evidence:
        """The rows that the claim speaks of."""
        return evidence.where(**self.where) if self.where else evidence

    def _beside_its_null(
        self, verdict: Verdict, evidence: Evidence, applies: NDArray[np.bool_]
    ) -> Verdict:
        assert self.null is not None
        values, names = self._values(self._rows(self.null.of(evidence)))
        if values.shape != applies.shape:
            raise InputError(
                f"claim {self.id}: its null ({self.null.words}) speaks of {values.shape} instances,"
                f" the measurement of {applies.shape}"
            )
        counted = values[applies]
        missing = np.isnan(counted)  # what is missing breaks nothing
        values_by_name = _values_by_name(counted, names[applies]).values()
        outcome: Outcome = (
            "holds"
            if any(self._holds(named_values, missing=True) for named_values in values_by_name)
            else "fails"
        )
        null = Verdict(
            self,
            outcome,
            self.expect.worst(counted),
            int((self.expect.passes(counted) | missing).sum()),
            counted.size,
        )
        empty = verdict.verdict == null.verdict == "holds"
        return replace(verdict, verdict="not shown" if empty else verdict.verdict, null=null)

    def _values(self, table: Evidence) -> tuple[NDArray[np.float64], NDArray[np.str_]]:
        """The numbers, and of each the name of its part, empty where there are none."""
        measured = self.measure(table)
        if not isinstance(measured, Mapping):
            array = np.atleast_1d(np.asarray(measured, dtype=np.float64))
            return array, np.full(array.shape, "")
        arrays = {
            name: np.ravel(np.asarray(column, dtype=np.float64))
            for name, column in measured.items()
        }
        lengths = [column.size for column in arrays.values()]
        return np.concatenate([[], *arrays.values()]), np.repeat(np.array([*arrays], str), lengths)

    def _holds(self, values: NDArray[np.float64], missing: bool = False) -> bool:
        """Whether as many values pass as must: a share of n is a whole number, rounded up."""
        passes = self.expect.passes(values) | (missing & np.isnan(values))
        return bool(passes.sum() >= math.ceil(self.expect.share * passes.size - 1e-9))

    def _trials(self, table: Evidence, applies: NDArray[np.bool_]) -> int | None:
        """The number of distinct trials, among the counted instances where there is one per row."""
        names = self.trials.split()
        if not names or not all(name in table for name in names):
            return None
        which = np.stack([table[name].astype(str) for name in names], axis=1)
        if len(which) == len(applies) and applies.ndim == 1:
            which = which[applies]
        complete = which[(which != "nan").all(axis=1)]
        return len(np.unique(complete, axis=0)) or None


def _values_by_name(
    values: NDArray[np.float64], names: NDArray[np.str_]
) -> dict[str, NDArray[np.float64]]:
    """The values of every part, in their order."""
    return {name: values[names == name] for name in dict.fromkeys(names.tolist())}


def _has_value(column: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each row of a column has a value."""
    missing = column == "" if column.dtype.kind == "U" else column != column
    return np.asarray(~missing, dtype=np.bool_)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _share_interval(passes: NDArray[np.bool_], trials: int | None) -> tuple[float, float] | None:
    """The interval of the share that passes, as if it were of independent trials alone; None where
    values are not of single trials.
    """
    if trials is None or not 1 < trials <= passes.size:
        return None
    return share_interval(float(passes.mean()) * trials, trials)


def _interval(values: NDArray[np.float64]) -> tuple[float, float] | None:
    if values.size < 2 or not np.isfinite(values).all():
        return None
    _, low, high = interval(values.ravel())
    return low, high
