r"""Weights that match the inputs' covariance as the trained ones do, and their own selections.

Random, rotated and permuted singular vectors break two things at once: what the head has learned to
select, and how its singular vectors lie among the main directions of its inputs. Here the second is
kept. With :math:`v_i` the eigenvectors of the inputs' covariance in the complement of their mean
and random signs :math:`\epsilon_i=\pm1`, a reflection :math:`R` multiplies :math:`v_i` by
:math:`\epsilon_i` and leaves the mean. *apart*: :math:`RWR'` with two reflections has the singular
values of :math:`W`, and each of its singular vectors has the same energy in every :math:`v_i`.
*reflected*: :math:`RWR` keeps as well which directions of keys and queries go together: on Gaussian
inputs with this covariance around this mean nothing tells it from :math:`W`. Both are measured as
the nulls of heads-1 are, with their own selections, and scaled until they are as sure of as many
queries. The first head of each layer after all steps, nuclear norm, three draws of each.

Source: this project

Notes: The excess over these is the cosine minus their mean, that of heads-1 minus the largest of
its nulls, which is the stricter measure by about the noise of one null.
"""

from typing import Any

import numpy as np

from attsvm import max_margin
from attsvm.probe import reflection
from attsvm_papers.heads import e1_own_solutions as heads_1
from attsvm_papers.heads.decoder import OPTIMISERS
from attsvm_papers.heads.networks import attention, chosen, files, held_out_texts
from attsvm_papers.heads.own_solutions import (
    SECONDS,
    STRICT,
    Look,
    average,
    cosine,
    own_solutions,
    programme_of,
    sees,
    stable_rank,
)
from attsvm_papers.heads.reading import (
    COLOURS,
    NAMES,
    REAL,
    by_seed,
    columns,
    excess,
    known,
    seeds,
)
from attsvm_papers.kit import RULE, at_least, claim, each, grid, interval, picture, replaced

SCALES = heads_1.SCALES

MATCHED = ("apart", "reflected")
DRAWS = 3


@grid(digest=files, seed=seeds, optimiser=OPTIMISERS)
def run(optimiser, seed, text, digest, sizes, queries):
    training = chosen(text, sizes, optimiser, seed)
    look, found = Look(queries, nulls=STRICT), []
    for number, layer in enumerate(
        attention(training.model(), held_out_texts(text, training.sizes, seed))
    ):
        seen = (layer.inputs, layer.tokens)
        told = {"layer": number, "head": 0, "rank": stable_rank(layer.weights[0])}
        told |= matched(layer.weights[0], *seen, look, np.random.default_rng([seed, number]))
        (own,) = own_solutions(layer.weights, 0, *seen, ("nuc",), look, seed)
        found.append((told, own))
    return columns(found)


def matched(W, inputs, tokens, look, rng):
    """Columns of a head: cosines of every draw and its own solution, and its own average; the
    largest gap.
    """
    wanted = max(look.queries, sees(W, inputs, look, rng).count)
    found, gaps, rows = {}, [], inputs.reshape(-1, inputs.shape[-1])
    for kind in MATCHED:
        for draw in range(DRAWS):
            left = reflection(rows, rng)
            V = left @ W @ (left if kind == "reflected" else reflection(rows, rng))
            programme = programme_of(sees(V, inputs, look, rng, wanted), inputs, tokens, look)
            best = max_margin(programme, "nuc", max_seconds=SECONDS)
            found[f"{kind} {draw}"] = cosine(V, best.W)
            found[f"{kind} average {draw}"] = cosine(V, average(programme))
            gaps.append(best.gap)
    return {**found, "worst": max(gaps)}


def over(e, optimiser, kind, own="cosine"):
    """``(seeds,)``: a cosine minus the mean of a null's draws."""
    rows, means = e.where(optimiser=optimiser), " average" if own == "average" else ""
    null = np.nanmean([rows[f"{kind}{means} {draw}"] for draw in range(DRAWS)], axis=0)
    return by_seed(rows, rows[own] - null)


def drawn(kind):
    """A draw of a null, measured as if it were the head, against the others."""
    own: dict[str, Any] = {"cosine": f"{kind} 0", f"{kind} 0": lambda e: np.full(e.rows, np.nan)}
    return replaced(f"one of the {kind} draws, measured as if it were the head", **own)


WHY = "as in H1: one optimiser each, lower end of the 95% interval over seeds"


@each(
    claim(
        at_least(0.03, WHY),
        id=f"H11{letter}",
        statement=words,
        assumes=REAL,
        null=drawn(kind),
        kind=kind,
    )
    for letter, kind, words in (
        ("", "apart", "A head is nearer to its own nuclear solution than weights whose singular"
         " vectors lie as its own do among the main directions of the inputs."),
        ("a", "reflected", "And than weights that no Gaussian inputs with these moments tell from"
         " its own."),
    )
)  # fmt: skip
def lowest(e, kind):
    return np.array([interval(over(e, name, kind)).low for name in known(e, OPTIMISERS)])


@claim(
    at_least(0.5, "one optimiser each, means over layers and seeds; half would explain the most"),
    assumes=REAL,
    null=drawn("reflected"),
)
def H11b(e):
    """The match to the inputs' covariance does not explain the excess: at least half of that of
    heads-1 is left above reflected weights.
    """
    found = []
    for name in known(e, OPTIMISERS):
        rows = e.where(optimiser=name)
        found.append(over(e, name, "reflected").mean() / by_seed(rows, excess(rows)).mean())
    return np.array(found)


@picture(
    "Nulls that match the covariance",
    "Three rows of points per optimiser, one per null; a line at zero.",
    3.2,
    width=6.4,
)
def nulls(evidence, panels):
    """Nuclear cosine of head and own solution minus that of a null, mean over two heads, a point
    per seed: the strictest null of heads-1, and the means of three draws of two nulls that match
    the covariance of the inputs as the head does.
    """
    axes, names = panels[0], known(evidence, OPTIMISERS)
    for place, name in enumerate(names):
        rows, shift = evidence.where(optimiser=name), 0.14 * (place - (len(names) - 1) / 2)
        values = [by_seed(rows, excess(rows)), *(over(evidence, name, kind) for kind in MATCHED)]
        for k, points in enumerate(values):
            at, label = np.full(len(points), k + shift), NAMES[name] if k == 0 else None
            axes.plot(points, at, "o", color=COLOURS[name], ms=4.0, label=label)
    axes.axvline(0, color=RULE, linewidth=0.8, zorder=0)
    axes.set_yticks(range(3), ["strictest of heads-1", *MATCHED])
    axes.invert_yaxis()
    axes.set_xlabel("cosine minus null")
    axes.legend(frameon=False, fontsize=8.5)
