"""Learning rates of queries and keys.

One training of 300 steps per rate with tuning seed 0: the rate with the least held-out loss is used
in heads-1 to heads-5. Everything else is trained by AdamW with a rate of .001.

Source: this project
"""

from dataclasses import asdict

import numpy as np

from attsvm_papers.heads.decoder import MADE, Sizes
from attsvm_papers.heads.networks import RATES, files, trained
from attsvm_papers.heads.reading import COLOURS, NAMES
from attsvm_papers.kit import claim, grid, logarithmic, picture, rows, scales, shuffled, true

TRIED = {
    "adamw": (1e-3, 3e-3, 1e-2),
    "sgd": (0.1, 0.3, 1.0, 3.0),
    "muon": (3e-3, 1e-2, 3e-2),
    "signum": (3e-4, 1e-3, 3e-3),
    "mirror": (0.1, 0.3, 1.0, 3.0),
}
SCALES = scales(
    text="tinyshakespeare",
    sizes=asdict(Sizes(steps=300)),
    quick={
        "text": MADE,
        "sizes": asdict(Sizes(context=12, width=12, depth=1, heads=2, steps=5)),
    },
)


@grid(rows("optimiser rate", [(n, r) for n, each in TRIED.items() for r in each]), digest=files)
def run(optimiser, rate, text, digest, sizes):
    loss = trained(text, Sizes(**sizes), optimiser, rate, 0).losses[-1]
    return {"loss": np.array([np.nan_to_num(loss, nan=np.inf)])}


@claim(
    true("a best rate at the end of its grid would ask for another rate"),
    assumes={"a text that somebody wrote": lambda e: bool(np.all(e["digest"] != ""))},
    null=shuffled("loss", within="optimiser", words="the loss of another rate"),
)
def H0(e):
    """The rate in use has the least loss, and rates on both sides of it were tried."""
    found = []
    for name, tried in TRIED.items():
        at = e.where(optimiser=name)
        best = at["rate"][np.argmin(at["loss"])]
        found.append(best == RATES[name] and min(tried) < best < max(tried))
    return np.array(found)


@picture("Held-out loss by learning rate", "Five curves with a minimum inside.", 2.8, width=5.4)
def rates(evidence, axes):
    """Held-out loss after 300 steps by the learning rate of queries and keys; a ring around the one
    in use.
    """
    ax = axes[0]
    for name, tried in TRIED.items():
        losses = [float(evidence.where(optimiser=name, rate=rate)["loss"][0]) for rate in tried]
        ax.plot(tried, losses, "o-", color=COLOURS[name], ms=3.5, label=NAMES[name])
        used = losses[tried.index(RATES[name])]
        ax.plot(RATES[name], used, "o", ms=9, color=COLOURS[name], fillstyle="none")
    logarithmic(ax.xaxis, evidence["rate"])
    ax.set(xlabel="learning rate", ylabel="nats per character")
    ax.legend(frameon=False, fontsize=8)
