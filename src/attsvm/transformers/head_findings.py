"""The findings of an audit on one head: statistics, comparison and support."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm.base.errors import InputError
from attsvm.norms import Norm, as_norm
from attsvm.transformers.token_names import strip_marks

PENDING = "their programmes are not solved yet"
"""The reason why a head has no comparison while an audit is under way."""


@dataclass(frozen=True)
class Comparison:
    """A head's weights beside the max-margin solution of their own selections, in one norm.

    Attributes:
        norm: its name.
        status: of the solution, see :class:`~attsvm.solvers.MarginSolution`; ``soft`` when the hard
            programme is infeasible and the soft one was solved.
        constraints: number of rows.
        cosine: of the head's weights and the solution.
        share: the head's smallest margin over the best one, both at norm one.
        nulls: per null the cosines of its draws.
        resampled: the cosine again with texts drawn with replacement (queries, where there is one
            text only), a draw each.
        agreement: at sure queries of texts that a draw left out, the share of them at which its
            solution selects what the head does; over all draws. NaN where there are none.
        baseline: the same for always the relative position that is most frequent among those that
            the draw took in.
        gap: certified relative duality gap of the solution.
        missing: nulls that were asked for and that this head does not have.
    """

    norm: str
    status: str
    constraints: int
    cosine: float
    share: float
    nulls: dict[str, tuple[float, ...]]
    resampled: tuple[float, ...]
    agreement: float
    baseline: float
    gap: float
    missing: tuple[str, ...] = ()

    @property
    def strictest(self) -> str | None:
        """The null with the largest mean; ``None`` without nulls."""
        # a null without draws is no null of this head
        means = {name: np.mean(draws) for name, draws in self.nulls.items() if draws}
        return max(means, key=lambda name: means[name], default=None)

    def null(self) -> float:
        """The mean of the strictest null; NaN without nulls."""
        return float("nan") if self.strictest is None else float(np.mean(self._strict))

    @property
    def excess(self) -> float:
        """:attr:`cosine` minus :meth:`null`: what is left for the theory."""
        return self.cosine - self.null()

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        r"""Around :attr:`excess`, for other texts and another draw of the null:

        .. math:: \pm\,t\,\sqrt{s_x^2+s_0^2\,(1+1/n)}

        with the variance :math:`s_x^2` of :attr:`resampled`, that of the ``n`` draws of the
        strictest null :math:`s_0^2`, and the quantile of Student's t with Welch and Satterthwaite's
        degrees of freedom. A head that is itself a draw of the null has zero inside about this
        often or oftener; NaN with fewer than two draws of either. Few draws make it wide.

        Args:
            level: between 0 and 1.

        Raises:
            InputError: another level.
        """
        if not 0 < level < 1:
            raise InputError(f"level is {level}; it must lie between 0 and 1")
        n, texts = len(self._strict), len(self.resampled)
        if min(n, texts) < 2:
            return float("nan"), float("nan")
        from scipy.special import stdtrit

        of_texts = float(np.var(self.resampled, ddof=1))
        of_null = float(np.var(self._strict, ddof=1)) * (1 + 1 / n)
        variance = of_texts + of_null
        # degrees of freedom of Welch and Satterthwaite
        freedom = variance**2 / max(of_texts**2 / (texts - 1) + of_null**2 / (n - 1), 1e-300)
        half = float(stdtrit(max(freedom, 1.0), 0.5 + level / 2)) * variance**0.5
        return self.excess - half, self.excess + half

    @property
    def _strict(self) -> tuple[float, ...]:
        return () if self.strictest is None else self.nulls[self.strictest]


@dataclass(frozen=True)
class Support:
    """One row that holds the margin up: a query, what it selects, and the rival that is nearest.

    Attributes:
        text: number of the text.
        query, selected, rival: positions of the tokens.
        multiplier: of the constraint, positive.
        words: the three tokens by name; ``None`` where they have none.
    """

    text: int
    query: int
    selected: int
    rival: int
    multiplier: float
    words: tuple[str, str, str] | None

    def __str__(self) -> str:
        positions = (self.query, self.selected, self.rival)
        names = [f"{position}" for position in positions]
        if self.words is not None:
            words = map(strip_marks, self.words)
            names = [f"{word} ({p})" for word, p in zip(words, positions, strict=True)]
        return f"{names[0]} selects {names[1]} over {names[2]}, multiplier {self.multiplier:.3g}"


@dataclass(frozen=True)
class Head:
    """One head of one layer.

    Attributes:
        layer, head: numbers.
        name: the module.
        queries: number that the statistics are over.
        queries_of_texts: number that the texts have; more than ``queries`` where some were not
            recorded.
        sure_queries: number of ``queries`` with top mass above the threshold, and a rival.
        programme_queries: number of ``sure_queries`` that make the programme.
        sure: share of queries with top mass above .5, .9 and .99.
        top: mean top mass.
        entropy: mean, in nats; ``effective`` is its exponential, a number of tokens.
        margin: .1, .5 and .9 quantiles in nats.
        scale_free: the same in units of the head's typical logit.
        sure_scale_free: median over queries with top mass above .8; NaN without any.
        peak: the largest logit.
        selects: share of queries per kind of selected token, see
            :data:`~attsvm.transformers.selections.KINDS`.
        chance: the same for keys drawn at random from those that a query sees.
        favourite: the word that is selected most often, its share of the queries, and the same for
            keys drawn at random; ``None`` where tokens have no names.
        rank: stable rank of the weights; NaN where keys and queries are the inputs.
        nuclear_ratio: nuclear over Frobenius norm of the weights; NaN likewise.
        fits: one comparison per norm.
        uncompared: reason why there is no comparison though a norm was asked for; else empty.
            :data:`PENDING` where its programmes are still to be solved.
        support: the rows that hold up the margin, by falling multiplier: those of the solution in
            the first norm.
    """

    layer: int
    head: int
    name: str
    queries: int
    queries_of_texts: int
    sure_queries: int
    programme_queries: int
    sure: tuple[float, float, float]
    top: float
    entropy: float
    effective: float
    margin: tuple[float, float, float]
    scale_free: tuple[float, float, float]
    sure_scale_free: float
    peak: float
    selects: dict[str, float]
    chance: dict[str, float]
    favourite: tuple[str, float, float] | None
    rank: float
    nuclear_ratio: float
    fits: tuple[Comparison, ...] = ()
    uncompared: str = ""
    support: tuple[Support, ...] = ()

    def __str__(self) -> str:
        """The head in a line, and the rows that hold up its margin."""
        kind = max(self.selects, key=lambda kind: self.selects[kind])
        first = (
            f"layer {self.layer}, head {self.head}: selects {kind} at"
            f" {100 * self.selects[kind]:.0f} % of {self.queries:,} queries, median margin"
            f" {self.margin[1]:.2f} nats"
        )
        return "\n".join([first, *(f"  {pair}" for pair in self.support)])

    def fit(self, norm: str | Norm) -> Comparison:
        """The comparison in this norm.

        Raises:
            InputError: a norm in which the head was not compared.
        """
        name = as_norm(norm).name
        for fit in self.fits:
            if fit.norm == name:
                return fit
        have = ", ".join(fit.norm for fit in self.fits) or "none"
        raise InputError(
            f"head {self.head} of layer {self.layer} was not compared in the norm {name}; it was"
            f" in: {have}"
        )

    def row(self) -> dict[str, Any]:
        """Every number in one flat row, for a data frame or a file."""
        row: dict[str, Any] = {
            "layer": self.layer,
            "head": self.head,
            "name": self.name,
            "queries": self.queries,
            "queries_of_texts": self.queries_of_texts,
            "sure_queries": self.sure_queries,
            "programme_queries": self.programme_queries,
            "top": self.top,
            "sure_50": self.sure[0],
            "sure_90": self.sure[1],
            "sure_99": self.sure[2],
            "entropy": self.entropy,
            "effective_tokens": self.effective,
            "margin": self.margin[1],
            "margin_scale_free": self.scale_free[1],
            "margin_scale_free_sure": self.sure_scale_free,
            "largest_logit": self.peak,
            "stable_rank": self.rank,
            "nuclear_over_frobenius": self.nuclear_ratio,
            **{f"selects_{kind.replace(' ', '_')}": v for kind, v in self.selects.items()},
            **{f"chance_{kind.replace(' ', '_')}": v for kind, v in self.chance.items()},
        }
        for fit in self.fits:
            low, high = fit.interval()
            row |= {
                f"{fit.norm}_cosine": fit.cosine,
                f"{fit.norm}_null": fit.null(),
                f"{fit.norm}_excess": fit.excess,
                f"{fit.norm}_excess_low": low,
                f"{fit.norm}_excess_high": high,
                f"{fit.norm}_margin_share": fit.share,
                f"{fit.norm}_agreement": fit.agreement,
                f"{fit.norm}_most_frequent_offset": fit.baseline,
                f"{fit.norm}_status": fit.status,
            }
        return row
