"""Adam, Muon and both side by side on a homogeneous network: each in the norm of its steps.

Twenty Gaussian inputs in five dimensions, labelled by a small random network of the same kind; ten
hidden units (⟨wⱼ, x⟩ + bⱼ)² with fixed signs, weights θ = [W b]. Steps of η/√(t + 1) with momentum
0.9: signs (Signum, η = 0.01), gradients (NMD, 0.1), polar factors of the whole matrix (Muon, 0.03),
polar factors of W beside signs of b (Muon-Signum, 0.03) or Adam on b (Muon-Adam, 0.03), and Adam
(0.9 and 0.95) on all (0.02). Programmes are linear around the last weights, certified.

Source: this project; Gronich and Vardi (2026) prove it for smooth homogeneous networks

Notes: What is measured is how nearly the weights solve the programme that is linear around
themselves (Karush, Kuhn, Tucker): their smallest linearised margin over the best that weights of
their norm can have; one where they solve it. It says nothing about other minima of the network.
"""

import numpy as np

from attsvm import Frobenius, Lp, Spectral, max_margin
from attsvm.theory.scale_free_descent import Adam, Steepest, descend_scale_free
from attsvm_papers import kit
from attsvm_papers.spectral.homogeneous import SquaredUnits
from attsvm_papers.spectral.hybrid import Hybrid, MatrixAndVector

NORMS = (Lp(np.inf), Frobenius(), Spectral(), Hybrid())
NAMES = ("max", "Frobenius", "spectral", "hybrid")
OPTIMISERS = ("Signum", "NMD", "Muon", "Muon-Signum", "Adam", "Muon-Adam")
RATES = (0.01, 0.1, 0.03, 0.03, 0.02, 0.03)
OWN = (0, 1, 2, 3, 0, 3)
"""The norm whose programme each optimiser should solve, a position in ``NORMS``."""


def direction_of(optimiser):
    """A new direction of this optimiser."""
    if OPTIMISERS[optimiser] == "Muon-Adam":
        return MatrixAndVector(Steepest(Spectral(), 0.9), Adam((0.9, 0.95)))
    if OPTIMISERS[optimiser] == "Adam":
        return Adam((0.9, 0.95))
    return Steepest(NORMS[OWN[optimiser]], 0.9)


def labelled_networks(n, d, hidden, seeds):
    """Networks with their data, and starts."""
    inputs, labels, starts = [], [], []
    signs = np.where(np.arange(hidden) % 2, -1.0, 1.0)
    for seed in seeds:
        rng = np.random.default_rng([73, seed])
        x = np.concatenate([rng.standard_normal((n, d)), np.ones((n, 1))], axis=1)
        values = (x @ rng.standard_normal((4, d + 1)).T) ** 2 @ signs[:4]
        inputs.append(x)
        labels.append(np.where(values > np.median(values), 1.0, -1.0))
        starts.append(0.3 * rng.standard_normal((hidden, d + 1)))
    return SquaredUnits(np.stack(inputs), np.stack(labels), signs), np.stack(starts)


@kit.run(
    seeds=kit.seeds(20, by=20), optimiser=range(len(OPTIMISERS)), quick={"seeds": 3, "steps": 6000}
)
def run(optimiser, seeds, n=20, d=5, hidden=10, steps=40_000):
    network, start = labelled_networks(n, d, hidden, seeds)
    rate = RATES[optimiser]
    due = np.array([0, steps // 10, steps])
    recorded, _ = descend_scale_free(
        network.gradient, start, direction_of(optimiser), lambda t: rate / np.sqrt(t + 1.0), due
    )
    columns = {}
    for k, norm in enumerate(NORMS):
        nearness_of_runs = np.array(
            [
                [nearness(network, theta[run], run, norm) for theta in recorded[1:]]
                for run in range(len(start))
            ]
        )
        columns[f"share{k}"], columns[f"gap{k}"] = (
            nearness_of_runs[..., 0],
            nearness_of_runs[:, -1, 1],
        )
    return columns


def nearness(network, theta, run, norm):
    """The smallest linearised margin of one run over the best that weights of its norm can have,
    and the gap of that; nan where an input is on the wrong side.
    """
    programme = network.programme(theta, run)
    least = float(programme(theta).min())
    if least <= 0.0:
        return np.nan, np.nan
    best = max_margin(programme, norm, tol=1e-5)
    return least * best.norm / float(norm.value(theta)), best.gap


def last_shares(e, optimiser, norm):
    """The share of each network at the last weights in one of the norms."""
    return e.where(optimiser=optimiser)[f"share{norm}"][:, -1]


def certified_under(optimiser):
    """The programmes of its own norm were solved."""
    return {"certified": lambda e: e.where(optimiser=optimiser)[f"gap{OWN[optimiser]}"] <= 1e-4}


NEAREST = {
    "Signum": "NMD",
    "NMD": "Muon",
    "Muon": "NMD",
    "Muon-Signum": "Muon",
    "Adam": "NMD",
    "Muon-Adam": "Muon",
}
LEAST = (0.65, 0.95, 0.86, 0.86, 0.75, 0.86)
"""Of the share, in this number of steps."""


@kit.several_claims(
    kit.claim(
        kit.at_least(
            LEAST[k],
            "1 in the limit",
            share=kit.MOST,
        ),
        reference="Gronich and Vardi, 2026, prove the limit",
        id=f"HN{k + 1}",
        statement=(
            f"{name}: the last weights nearly solve the programme that is linear around them in the"
            f" {NAMES[OWN[k]]} norm: share of the best margin."
        ),
        assumes=certified_under(k),
        null=kit.exchanged(
            f"{NEAREST[name]} in its place", "optimiser", k, OPTIMISERS.index(NEAREST[name])
        ),
        optimiser=k,
    )
    for k, name in enumerate(OPTIMISERS)
)
def near(e, optimiser):
    return last_shares(e, optimiser, OWN[optimiser])


@kit.picture(
    "Each optimiser in the norm of its steps",
    "In every panel the optimisers of that norm have the largest shares.",
    2.9,
    1,
    4,
    width=9.6,
)
def nearest(evidence, axes):
    """How nearly the last weights solve the programme that is linear around them, in four norms: a
    point per network, and the median.
    """
    for norm, ax in enumerate(axes):
        for k in range(len(OPTIMISERS)):
            shares = last_shares(evidence, k, norm)
            colour = kit.TRAINED if OWN[k] == norm else kit.FAINT
            ax.plot(shares, np.full(len(shares), float(k)), "o", ms=2.5, color=colour, alpha=0.6)
            ax.plot([np.nanmedian(shares)] * 2, [k - 0.3, k + 0.3], color=colour)
        ax.set(xlim=(0.0, 1.03), ylim=(len(OPTIMISERS) - 0.4, -0.6), title=f"{NAMES[norm]} norm")
        ax.set_xlabel("share of the best margin")
        ax.set_yticks(range(len(OPTIMISERS)), OPTIMISERS if norm == 0 else [])
