"""Learning rates of decoders whose attention is pruned.

One training of a third of the steps per rate with tuning seed 0 and without weight decay: the rate
with the least held-out loss is used in pruning-1. What the optimiser is not named for is trained by
AdamW with a rate of .001, other matrices of the blocks with AdamW's own.

Source: this project
"""

from dataclasses import asdict

import numpy as np

from attsvm_papers.heads.decoder import MADE, Sizes, held_out_loss, windows
from attsvm_papers.kit import claim, grid, logarithmic, picture, scales, shuffled, true
from attsvm_papers.pruning.decoders import OPTIMISERS, RATES, letters, letters_digest, training
from attsvm_papers.pruning.e1_survival import COLOURS, JUDGED, NAMES, TINY

TRIED = {
    "adamw": (1e-3, 3e-3, 1e-2),
    "muon": (1e-2, 3e-2, 1e-1),
    "spectral": (1e-2, 3e-2, 1e-1),
    "l1.1": (0.01, 0.03, 0.1),
    "l1.5": (0.03, 0.1, 0.3),
    "l3": (0.01, 0.03, 0.1),
}
SCALES = scales(
    text="tinyshakespeare",
    sizes=asdict(Sizes(steps=300)),
    names=("adamw", "muon"),
    quick={"text": MADE, "sizes": asdict(TINY), "names": OPTIMISERS},
    medium={"names": OPTIMISERS},
)


def files(parameters):
    return [letters_digest(parameters.text)]


def tried(parameters):
    return [f"{name} {rate}" for name in parameters.names for rate in TRIED[name]]


@grid(setting=tried, digest=files)
def run(setting, text, digest, sizes):
    name, rate = setting.split()
    ids, held, vocabulary = letters(text)
    judged = windows(held, JUDGED, sizes["context"] + 1, 1)
    *_, (_, model) = training(ids, vocabulary, Sizes(**sizes), name, float(rate), 0.0, 0)
    loss = held_out_loss(model, judged)
    return {
        "optimiser": np.array([OPTIMISERS.index(name)]),
        "rate": np.array([float(rate)]),
        "loss": np.array([np.nan_to_num(loss, nan=np.inf)]),
    }


def known(e):
    return [OPTIMISERS[int(each)] for each in e.levels("optimiser")]


@claim(
    true("a best rate at the end of its grid would ask for another rate"),
    assumes={"a text that somebody wrote": lambda e: bool(np.all(e["digest"] != ""))},
    null=shuffled("loss", within="optimiser", words="the loss of the next rate"),
)
def S0(e):
    """The rate in use has the least loss, and rates on both sides of it were tried."""
    found = []
    for name in known(e):
        at = e.where(optimiser=OPTIMISERS.index(name))
        best = at["rate"][np.argmin(at["loss"])]
        found.append(best == RATES[name] and min(TRIED[name]) < best < max(TRIED[name]))
    return np.array(found)


@picture("Held-out loss by learning rate", "Curves with a minimum inside.", 2.8, width=5.4)
def rates(evidence, axes):
    """Held-out loss by the learning rate; a ring around the one in use."""
    ax = axes[0]
    for name in known(evidence):
        at = evidence.where(optimiser=OPTIMISERS.index(name))
        ax.plot(at["rate"], at["loss"], "o-", color=COLOURS[name], ms=3.5, label=NAMES[name])
        used = at["rate"] == RATES[name]
        ax.plot(
            at["rate"][used], at["loss"][used], "o", ms=9, color=COLOURS[name], fillstyle="none"
        )
    logarithmic(ax.xaxis, evidence["rate"])
    ax.set(xlabel="learning rate", ylabel="nats per character")
    ax.legend(frameon=False, fontsize=8)
