"""A solution in one sentence, made from its fields; and a Farkas certificate in the words of its
programme: which tokens, labels, classes or orders cannot be had together.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.margins import Margins
from attsvm.solvers.proofs import farkas_residual

_VERDICT_OF_KIND = {
    "selection": "no weights select",
    "set": "no weights select",
    "ratio": "no weights split attention as asked over",
    "label": "no head gives their labels to",
    "position": "no weights select",
    "class": "no output matrix predicts",
    "support": "no output matrix separates",
    "order": "no weights put",
}

# what a demand belongs to, where that is not a sequence
_OWNER_OF_KIND = {"position": "position", "class": "input", "support": "context", "order": ""}


def describe_solution(solution: Any) -> str:
    """The message of a :class:`attsvm.solvers.MarginSolution`: its status, and the numbers that it
    stands for.
    """
    message = f"{solution.status}: {_describe_status(solution)}"
    if solution.constraints is None:
        return message
    proof = "these rows prove it for all" if "infeasible" in solution.status else "proved for all"
    blocks = {None: "blocks", 1: "1 block"}.get(solution.blocks, f"{solution.blocks} blocks")
    over = f"{solution.constraints} constraints in {blocks}, {solution.passes} passes over them"
    return f"{message}; {proof} {over}"


def _describe_status(solution: Any) -> str:
    """The sentence for the status of a solution."""
    numbers = (
        f"norm {solution.norm:.6g}, gap {solution.gap:.1e}, violation {solution.violation:.1e}"
    )
    margins = solution.margins
    if solution.status == "optimal":
        if solution.norm == 0.0 and not (margins.rhs > 0.0).any():
            reason = (
                "no sequence has a rival token"
                if margins.m == 0
                else "no right-hand side is positive"
            )
            return f"{reason}, so the zero weights are the solution"
        return f"{numbers} ({_count_support(solution)} support it{_count_equalities(margins)})"
    if solution.status == "infeasible":
        return describe_conflict(margins, solution.dual)
    if solution.status == "almost infeasible":
        weights = "no weights were found" if solution.gap == 1.0 else f"the best have {numbers}"
        terms = 1.0 / max(solution.farkas_residual(), 1e-300)
        return (
            f"{describe_conflict(margins, solution.dual)}; weights that meet all margins hold terms"
            f" {terms:.0e} times as large as a margin, and {weights}"
        )
    if solution.reason is not None:
        return solution.reason
    if solution.gap == 1.0:
        return (
            "neither weights that meet every margin nor a contradiction was found (violation"
            f" {solution.violation:.1e})"
        )
    more_time = "more time or " if solution.out_of_time else ""
    return (
        f"the tolerance {solution.tol:.1e} was not reached ({numbers}); allow {more_time}a larger"
        " tol"
    )


def _count_support(solution: Any) -> str:
    """Numbers of supporting and of all constraints, in words."""
    count = solution.constraints or solution.margins.m
    return f"{len(solution.support)} of {count} constraints"


def _count_equalities(margins: Margins) -> str:
    """Number of equalities in words; empty without any."""
    count = int(margins.equalities.sum())
    return f", {count} of them equalities" if count else ""


def describe_conflict(margins: Margins, dual: FloatArray) -> str:
    """The sentence for a certificate ``dual``: what cannot be met, and the numbers of the proof."""
    rows = np.flatnonzero(dual)
    if len(rows) == 1:
        return _describe_zero_row(margins, int(rows[0]))
    demands = _describe_demands(margins, rows)
    named = demands[:3]  # more do not fit one line
    unnamed = len(demands) - len(named)
    owner = _OWNER_OF_KIND.get(margins.kind, "sequence")
    others = (
        f"those of {unnamed} more {owner}{'s' if unnamed > 1 else ''}"
        if owner
        else f"{unnamed} more"
    )
    more = f" and {others}" if unnamed > 0 else ""
    what = (
        ", ".join(named) if more or len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"
    )
    together = " together" if len(demands) > 1 else ""
    proof = (
        f"certificate over {len(rows)} constraints, residual {farkas_residual(margins, dual):.0e}"
    )
    return f"{_VERDICT_OF_KIND[margins.kind]} {what}{more}{together} ({proof})"


def _describe_demands(margins: Margins, rows: IntArray) -> list[str]:
    """One description for each demand of the rows: one per sequence, and one per row where rows are
    arcs of an order, equalities last.
    """
    if margins.kind == "order":
        equal = margins.equalities
        rows = np.concatenate([rows[~equal[rows]], rows[equal[rows]]])
        words = []
        for c, i in zip(rows.tolist(), margins.sequence[rows].tolist(), strict=True):
            relation = "above" if margins.rhs[c] > 0.0 else "not below"
            relation = "level with" if equal[c] else relation
            words.append(
                f"token {int(margins.selected[i])} {relation} token"
                f" {int(margins.token[c])}{_name_query(margins, i)}"
            )
        return list(dict.fromkeys(words))
    return [_describe_demand(margins, int(i)) for i in np.unique(margins.sequence[rows])]


def _describe_demand(margins: Margins, i: int) -> str:
    """Demand of sequence ``i`` in the words of its programme."""
    token = int(margins.selected[i])
    number = _sequence_number(margins, i)
    if margins.kind == "label":
        return f"token {token} of sequence {number}"
    if margins.kind in ("set", "ratio"):
        return f"the set with token {token} of sequence {number}"
    if margins.kind == "position" and margins.origin is not None:
        sequence, position = margins.origin[i].tolist()
        return f"token {token} for position {position} of sequence {sequence}"
    if margins.kind == "class":
        return f"class {token} for input {number}"
    if margins.kind == "support":
        return f"the support with token {token} of context {number}"
    return f"token {token} of sequence {number}"


def _sequence_number(margins: Margins, i: int) -> int:
    """The number of sequence ``i`` in the programme of the caller."""
    return i if margins.numbers is None else int(margins.numbers[i])


def _name_query(margins: Margins, i: int) -> str:
    """The query of sequence ``i``, where sequences come from a list of queries."""
    return "" if margins.origin is None else f" for query {int(margins.origin[i, 0])}"


def _describe_zero_row(margins: Margins, c: int) -> str:
    """The sentence for one row that is zero and yet asks for a margin."""
    i = int(margins.sequence[c])
    selected, rival = int(margins.selected[i]), int(margins.token[c])
    silent, number = not margins.queries[i].any(), _sequence_number(margins, i)
    if margins.kind == "label":
        return f"token {selected} of sequence {number} is zero, so no head can give it its label"
    if margins.kind == "class" and silent:
        return f"input {number} is zero, so no output matrix can predict its class {selected}"
    if margins.kind == "support" and silent:
        return f"the embedding of context {number} is zero, so its logits are all equal"
    if margins.kind == "order":
        where = _name_query(margins, i)
        if silent:
            return (
                f"{where.removeprefix(' for ') or 'the query'} is zero, so no weights can put token"
                f" {selected} above token {rival}"
            )
        return (
            f"token {selected} equals token {rival}, so no weights can put one above the"
            f" other{where}"
        )
    if margins.kind == "position" and margins.origin is not None:
        sequence, position = margins.origin[i].tolist()
        if silent:
            return (
                f"the token at position {position} of sequence {sequence} is zero, so as a query it"
                " can prefer no token"
            )
        return (
            f"token {rival} of sequence {sequence} equals the selected token {selected}, so"
            f" position {position} cannot tell them apart"
        )
    if silent:
        return (
            f"the query of sequence {number} is zero, so no weights can prefer its token {selected}"
        )
    return (
        f"token {rival} of sequence {number} equals its selected token {selected}, so no weights"
        " can tell them apart"
    )
