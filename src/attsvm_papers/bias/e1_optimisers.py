"""Which margin each of eighteen optimisers maximises.

Six sequences of eight tokens on the unit sphere in ten dimensions, a new instance per seed, with a
fixed head and the logistic loss, from random starts of norm .1. W, the factors K and Q, or W beside
a head that is trained. Of the weights at every record: the smallest margin over the norm, divided
by the largest that weights of that norm can have for the tokens that the run selects in the end
(the share), in seven norms, every largest margin certified. Optimisers with a compiled loop take
five times as many steps.

Source: this project; limits are those of normalised and steepest descent (recalled), of mirror
descent (recalled), and of Adam without its constant on homogeneous models (Gronich and Vardi, 2026,
2602.16340, its abstract)

Notes: Adam sees signs of gradients only while these change little within its memory, of 1000 steps
at β₂ = .999 and of 20 at .95; and while they are larger than its constant, 1e-8. Step sizes were
chosen on the tuning seeds.
"""

from typing import Literal, NamedTuple

import numpy as np

from attsvm.theory import BiasOptions, implicit_bias, named_optimizer
from attsvm_papers import kit

NORMS = ("fro", "linf", "spec", "nuc", "lp:1.2", "lp:1.5", "lp:3")
TITLES = ("Frobenius", "ℓ∞", "spectral", "nuclear", "ℓ1.2", "ℓ1.5", "ℓ3")
RECORDS = 19  # the last ones of a run; the first steps of a log scale coincide
SHORT = (0.9, 0.95)  # weights of the past of an Adam that forgets in twenty steps


class OptimiserSetting(NamedTuple):
    """An optimiser by its name on the command line, its step size and further arguments."""

    title: str
    name: str
    lr: float
    arguments: dict[str, object] = {}  # noqa: RUF012 - read only
    parameters: Literal["W", "KQ", "W and head"] = "W"
    compiled: bool = False


SETTINGS = {
    "gd": OptimiserSetting("gradient descent", "gd", 10.0, compiled=True),
    "ngd": OptimiserSetting("normalised gradient descent", "ngd", 0.1, compiled=True),
    "momentum": OptimiserSetting("momentum", "momentum", 10.0),
    "sign": OptimiserSetting("sign descent", "sign", 0.03),
    "muon": OptimiserSetting("Muon", "muon", 0.01),
    "lion": OptimiserSetting("Lion", "lion", 0.003),
    "adam": OptimiserSetting("Adam", "adam", 0.01),
    "adam-eps0": OptimiserSetting("Adam, ε = 0", "adam-eps0", 0.01),
    "adam-short": OptimiserSetting("Adam, β₂ = .95", "adam", 0.01, {"betas": SHORT}),
    "adam-eps0-short": OptimiserSetting(
        "Adam, ε = 0, β₂ = .95", "adam-eps0", 0.01, {"betas": SHORT}
    ),
    "adamw": OptimiserSetting("AdamW, decay .1", "adamw", 0.01, {"weight_decay": 0.1}),
    "mirror:1.2": OptimiserSetting("mirror descent, p = 1.2", "mirror:1.2", 0.1, compiled=True),
    "mirror:1.5": OptimiserSetting("mirror descent, p = 1.5", "mirror:1.5", 0.1, compiled=True),
    "mirror:3": OptimiserSetting("mirror descent, p = 3", "mirror:3", 0.5, compiled=True),
    "ngd-KQ": OptimiserSetting("normalised descent of K and Q", "ngd", 0.1, {}, "KQ", True),
    "adam-KQ": OptimiserSetting("Adam on K and Q", "adam", 0.01, {}, "KQ"),
    "ngd-head": OptimiserSetting(
        "normalised descent beside a head", "ngd", 0.1, {}, "W and head", True
    ),
    "adam-head": OptimiserSetting("Adam beside a head", "adam", 0.01, {}, "W and head"),
}


@kit.run(
    optimiser=[*SETTINGS],
    seeds=kit.seeds(100, by=50),
    quick={"seeds": 4, "steps": 4000},
)
def run(optimiser, seeds, steps=20_000):
    setting = SETTINGS[optimiser]
    _, make_optimizer = named_optimizer(setting.name, setting.lr, **setting.arguments)
    bias = implicit_bias(
        make_optimizer,
        norms=NORMS,
        steps=5 * steps if setting.compiled else steps,
        seeds=seeds,
        parameters=setting.parameters,
        options=BiasOptions(records=RECORDS + 6),
    )
    share = bias.share.swapaxes(0, 1)
    return {
        "steps": kit.same(bias.steps[-RECORDS:]),
        "share": share[:, -RECORDS:],
        "tenth": share[:, int(np.argmin(np.abs(bias.steps - 0.1 * bias.steps[-1])))],
        "null": bias.null,
        "selects": bias.selects,
        "optimal": bias.optimal,
    }


def shares_at_end(e, optimiser):
    """Shares ``(runs, norms)`` at the last record."""
    return e.where(optimiser=optimiser)["share"][:, -1]


def selecting(optimiser):
    """The run has selected, and all its programmes are solved."""
    return {"a selection": lambda e: e.where(optimiser=optimiser)["selects"]}


def random_margins(e):
    """Random margins of the same tokens"""
    share = e["share"].copy()
    share[:, -1] = e["null"]
    return e.but({"share": share})


# optimiser: (norm of its steps, least share at the quick scale's steps, another for the null)
OWN = {
    "ngd": ("fro", 0.9, "sign"),
    "sign": ("linf", 0.9, "ngd"),
    "muon": ("spec", 0.6, "ngd"),
    "mirror:1.2": ("lp:1.2", 0.95, "ngd"),
    "mirror:1.5": ("lp:1.5", 0.95, "ngd"),
    "mirror:3": ("lp:3", 0.8, "ngd"),
    "ngd-KQ": ("nuc", 0.85, "ngd"),
    "adam-eps0-short": ("linf", 0.8, "adam-eps0"),
}
RECALLED = "limits of descent in a geometry (recalled)"


def title_of(norm):
    return TITLES[NORMS.index(norm)]


@kit.several_claims(
    kit.claim(
        kit.at_least(least, "1 in the limit; set on the tuning seeds", share=kit.MOST),
        "recalled",
        RECALLED,
        id=f"IB{k + 1}",
        statement=f"{SETTINGS[name].title}: share of the largest {title_of(norm)} margin.",
        assumes=selecting(name),
        null=random_margins,
        failure="scale",
        optimiser=name,
        norm=norm,
    )
    for k, (name, (norm, least, _)) in enumerate(OWN.items())
)
def reached(e, optimiser, norm):
    return shares_at_end(e, optimiser)[:, NORMS.index(norm)]


LEADS = {name: (norm, other) for name, (norm, _, other) in OWN.items()} | {
    "gd": ("fro", "sign"),
    "momentum": ("fro", "sign"),
    "lion": ("linf", "ngd"),
    "ngd-head": ("fro", "sign"),
    "adam-KQ": ("nuc", "ngd"),
}


@kit.several_claims(
    kit.claim(
        kit.at_least(0.0, "the largest of seven shares", share=kit.MOST),
        "recalled" if name in OWN or name in ("gd", "momentum") else "ours",
        RECALLED if name in OWN or name in ("gd", "momentum") else "",
        id=f"IB{k + 21}",
        statement=(
            f"{SETTINGS[name].title}: the share is largest in the {title_of(norm)} norm; how far it"
            " is ahead of the next."
        ),
        assumes=selecting(name),
        null=kit.exchanged(f"{SETTINGS[other].title} in its place", "optimiser", name, other),
        failure="scale",
        optimiser=name,
        norm=norm,
    )
    for k, (name, (norm, other)) in enumerate(LEADS.items())
)
def leads(e, optimiser, norm):
    shares, position = shares_at_end(e, optimiser), NORMS.index(norm)
    return shares[:, position] - np.delete(shares, position, axis=1).max(axis=1)


@kit.claim(
    kit.at_least(0.0, "the largest of seven shares", share=kit.MOST),
    id="IB41",
    assumes=selecting("adam-eps0"),
    null=kit.exchanged("a memory of twenty steps", "optimiser", "adam-eps0", "adam-eps0-short"),
)
def long_memory(e):
    """Adam without its constant, with a memory of a thousand steps: at these steps the share in ℓ3
    is larger than that in ℓ∞; by how much.
    """
    shares = shares_at_end(e, "adam-eps0")
    return shares[:, NORMS.index("lp:3")] - shares[:, NORMS.index("linf")]


@kit.claim(
    kit.at_most(0.7, "no sign-like step; .99 is reached without the constant", share=kit.MOST),
    id="IB42",
    assumes=selecting("adam"),
    null=kit.exchanged("sign descent in its place", "optimiser", "adam", "sign"),
)
def as_it_is_used(e):
    """Adam as torch has it: share of the largest ℓ∞ margin."""
    return shares_at_end(e, "adam")[:, NORMS.index("linf")]


@kit.picture(
    "Share of the largest margin by optimiser and norm",
    "Each row an optimiser, each column a norm; mean over the runs that select, darker where it is"
    " nearer to 1.",
    5.2,
    1,
    1,
    width=6.4,
)
def shares(evidence, axes):
    """A table of shares: descent in a geometry is dark in the column of its norm, Adam in none."""
    (ax,) = axes
    table = np.array(
        [
            np.nanmean(shares_at_end(evidence, name)[evidence.where(optimiser=name)["selects"]], 0)
            for name in SETTINGS
        ]
    )
    ax.imshow(np.clip(table, 0.3, 1.0), cmap="Greens", vmin=0.3, vmax=1.15, aspect="auto")
    for row, values in enumerate(table):
        for column, value in enumerate(values):
            ax.text(
                column,
                row,
                f"{value:.3f}" if value >= 0.995 else f"{value:.2f}",
                ha="center",
                va="center",
                fontweight="bold" if value == values.max() else "normal",
                color=kit.INK,
            )
    ax.set_xticks(range(len(NORMS)), TITLES)
    ax.set_yticks(range(len(SETTINGS)), [setting.title for setting in SETTINGS.values()])
    ax.tick_params(length=0)


CURVES = {"ngd": "fro", "sign": "linf", "adam-eps0-short": "linf", "adam-eps0": "linf"}


@kit.picture(
    "Shares by step",
    "Share of the largest margin in the norm that theory names, mean over runs; all curves but that"
    " of Adam with a memory of a thousand steps come close to one.",
    3.6,
)
def curves(evidence, axes):
    """Normalised descent in Frobenius, signs and Adam in ℓ∞: with a memory of twenty steps Adam
    follows the signs, with one of a thousand it does not.
    """
    (ax,) = axes
    for colour, (name, norm) in zip(kit.COLOURS, CURVES.items(), strict=False):
        runs = evidence.where(optimiser=name)
        mean = np.nanmean(runs["share"][..., NORMS.index(norm)][runs["selects"]], axis=0)
        label = f"{SETTINGS[name].title}, {title_of(norm)}"
        ax.plot(runs["steps"][0], mean, color=colour, label=label)
    kit.logarithmic(ax.xaxis, evidence.where(optimiser="ngd")["steps"][0])
    ax.set(ylim=(0.0, 1.05), xlabel="step", ylabel="share of the largest margin")
    kit.legend_below(ax, 1)
