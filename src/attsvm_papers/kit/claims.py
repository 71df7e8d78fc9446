"""Claims as functions: the docstring is the statement, the name is the claim's, the decorator says
what the measured numbers are held against.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import numpy as np

from attsvm.claims import Claim, Evidence, Expectation, Failure, Null, Source
from attsvm_papers.kit.captions import one_line
from attsvm_papers.kit.nulls import Breaks, null_of

Measure = Callable[..., Any]

MOST = 0.9
"""The share of its instances that a statement about finite runs of a sample asks for, wherever its
words name no other. Statements that are exact, or certified, ask for all of them.
"""


class Claims:
    """The claims that rest on one measurement; calling it measures.

    Attributes:
        function: from evidence (and the fields of a claim) to the measured numbers.
        claims: in the order of their decorators.
    """

    def __init__(self, function: Measure, claims: tuple[Claim, ...] = ()) -> None:
        self.function, self.claims = function, claims
        self.__doc__, self.__module__ = function.__doc__, function.__module__

    def __call__(self, *arguments: Any, **fields: Any) -> Any:
        return self.function(*arguments, **fields)


def claim(
    expect: Expectation,
    source: str = "ours",
    reference: str = "",
    *,
    id: str | None = None,
    statement: str | None = None,
    assumes: Mapping[str, Measure] | str | None = None,
    explanation: str | Callable[[Evidence], str] = "",
    failure: str = "",
    interval: bool = False,
    null: Null | Breaks | None = None,
    trials: str = "seed",
    where: Mapping[str, Any] | None = None,
    by: str = "",
    least: int = 0,
    **fields: Any,
) -> Callable[[Measure | Claims], Claims]:
    """A decorator that makes a function of the evidence a :class:`~attsvm.claims.Claim`.

    Args:
        expect: what the numbers are held against, with its reason.
        source: ``paper``, ``authors' code``, ``recalled`` or ``ours``, see
            :class:`~attsvm.claims.Claim`.
        reference: where the statement stands.
        id: name of the claim; the function's, a dot for every underscore, when left out.
        statement: what is claimed; the function's docstring when left out. ``{field}`` in it stands
            for the value of a field.
        assumes: conditions, or a column of booleans; instances that miss one are not counted.
        explanation: why it fails, where it is known to, or a function from the evidence to that:
            numbers in it are those of the run.
        failure: what a failing verdict says of the statement: ``ours is stronger``, ``scale``,
            ``refuted`` or ``not reproduced``. The pages print it beside the verdict.
        interval: whether the verdict gives the confidence interval of the mean.
        null: the broken variant on which the claim must fail: one of :mod:`attsvm_papers.kit.nulls`
            or a function from the evidence to that of the variant, whose docstring says what is
            broken.
        trials: the columns, between spaces, whose distinct values are the independent trials; none
            for what judges an interval over them already.
        where: values of columns, as ``{"part": "descent"}``: the function and the assumptions get
            these rows alone.
        by: columns, between spaces: the numbers are measured among the rows of each value. Of a
            claim that expects several numbers the function itself returns them by their names.
        least: rows of each of them; with fewer the claim is not applicable.
        **fields: further arguments of the function, and words of the statement. Several claims on
            one measurement are several decorators, first to last from above, or
            :func:`several_claims`.
    """

    def decorate(measured: Measure | Claims) -> Claims:
        claims = measured if isinstance(measured, Claims) else Claims(measured)
        function = claims.function
        words = one_line(statement or inspect.getdoc(function) or "")
        taken = {
            name: fields[name] for name in inspect.signature(function).parameters if name in fields
        }

        def measure(e: Evidence) -> Any:
            values = [function(group, **taken) for group in e.by(by)]
            return np.concatenate([np.atleast_1d(value) for value in values]) if by else values[0]

        assumed = {assumes: lambda e: e[assumes]} if isinstance(assumes, str) else assumes or {}
        conditions: dict[str, Measure] = dict(assumed)
        if least:
            conditions[f"{least} runs"] = lambda e: min(x.rows for x in e.by(by)) >= least
        claim = Claim(
            id or function.__name__.replace("_", "."),
            words.format(**fields) if fields else words,
            cast(Source, source),
            measure,
            expect,
            conditions,
            reference,
            explanation,
            interval,
            null_of(null),
            trials,
            failure=cast(Failure, failure),
            where=where or {},
        )
        return Claims(function, (claim, *claims.claims))

    return decorate


def several_claims(
    claims: Iterable[Callable[[Measure | Claims], Claims]],
) -> Callable[[Measure | Claims], Claims]:
    """A decorator that makes a function the measurement of several claims, such as
    ``claim(...) for ... in ...``.
    """

    def decorate(measured: Measure | Claims) -> Claims:
        for add_claim in reversed(list(claims)):
            measured = add_claim(measured)
        return measured if isinstance(measured, Claims) else Claims(measured)

    return decorate
