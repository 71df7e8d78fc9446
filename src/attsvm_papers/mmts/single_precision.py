"""What single precision does to normalised runs: the kink in the norm of the published plot of
three sequences (mmts-3), and a local limit that is lost (mmts-2).
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from attsvm.datasets import Toy
from attsvm_papers.kit import (
    ATTENTION,
    FAINT,
    INK,
    TRAINED,
    Claim,
    Evidence,
    Null,
    between,
    close_to,
    picture,
)
from attsvm_papers.mmts.prompts import SHOWN, of

PUBLISHED_KINK, PUBLISHED_END = 145, 19.45  # of the norm in the stored plot
ORIGIN = 2  # the start at zero


def published_prompts(
    problem: Toy, starts: ArrayLike, steps: int, lr: float
) -> NDArray[np.float64]:
    """Prompts ``(runs, steps, 2)`` under normalised descent as published: float32, softmax and its
    gradient as they are written.
    """
    assert problem.lifted is not None
    tokens = torch.tensor(problem.lifted.tokens, dtype=torch.float32)
    keys = torch.tensor(problem.keys, dtype=torch.float32)
    head = torch.tensor(problem.value_head, dtype=torch.float32)
    runs = []
    for start in np.asarray(starts):
        p = torch.tensor(start, dtype=torch.float32, requires_grad=True)
        prompts = []
        for _ in range(steps):
            prompts.append(p.detach().numpy().copy())
            s = torch.softmax(tokens @ keys.T @ p, dim=-1)
            loss = torch.log1p(torch.exp(-((tokens.mT @ s[..., None])[..., 0] @ head))).mean()
            (gradient,) = torch.autograd.grad(loss, p)
            with torch.no_grad():
                p -= lr * gradient / gradient.norm()
        runs.append(prompts)
    return np.array(runs, dtype=np.float64)


def kink(norms: NDArray[Any]) -> tuple[int, float]:
    """The first step whose length differs from that of the steps before by more than a part in
    twenty, after step 50; and the last norm.
    """
    growth = np.diff(norms)
    usual = np.median(growth[50:120])
    late = np.flatnonzero(np.abs(growth[50:] / usual - 1.0) > 0.05)
    return (int(late[0]) + 50 if len(late) else 0), float(norms[-1])


def without_it(e: Evidence) -> Evidence:
    """The run in log space as that in single precision, and the reverse."""
    single, norms = e["published_norm"].copy(), e["norm"].copy()
    (place,), (run, *_) = (np.flatnonzero(e["part"] == part) for part in ("published", "descent"))
    exact = norms[run + ORIGIN, :SHOWN].copy()
    norms[run + ORIGIN, :SHOWN], single[place] = single[place], exact
    return e.but({"published_norm": single, "norm": norms})


NULL = Null("the run in log space and that in single precision exchanged", without_it)

CLAIMS = (
    Claim(
        "E1.3j",
        "In single precision the norm has the kink of the published plot, near step 145.",
        "authors' code",
        lambda e: kink(of(e, "published")["published_norm"][0])[0],
        close_to(PUBLISHED_KINK, 10, "steps; where the margin passes 24 bits, read off a plot"),
        reference="P1, stored plot",
        null=NULL,
    ),
    Claim(
        "E1.3k",
        "There it ends at 19.45.",
        "authors' code",
        lambda e: kink(of(e, "published")["published_norm"][0])[1],
        close_to(
            PUBLISHED_END,
            0.1,
            "beyond the kink the run normalises rounding errors, which depend on the machine's"
            " sums",
        ),
        reference="P1, stored plot",
        null=NULL,
    ),
    Claim(
        "E1.3l",
        "In log space there is no kink: from step 50 on the norm grows by nearly the step length in"
        " every step.",
        "ours",
        lambda e: np.diff(of(e, "descent")["norm"][ORIGIN, 50 : SHOWN + 1]) / 0.1,
        between(
            0.97,
            1.0 + 1e-9,
            "the norm cannot grow faster than the step, and the direction has settled",
        ),
        null=NULL,
    ),
)


@picture(
    "The published kink is rounding",
    "Two norms grow linearly until step 145, where the single-precision one bends down;"
    " plain descent grows logarithmically.",
    2.7,
    1,
    3,
    width=9.6,
    name="without-kink",
)
def without_kink(evidence, axes):
    """Runs from zero. Dotted: the same run in single precision, as published. Once the margin
    passes 24 bits, near step 145, it is rounding errors of the softmax that are normalised, and
    steps no longer go outwards. In log space the norm grows by the step length for ever.
    """
    log, gd = (of(evidence, kind).take([ORIGIN]) for kind in ("descent", "plain"))
    published = of(evidence, "published")["published_norm"][0]
    shown = np.arange(SHOWN)
    for rows, colour in ((log, TRAINED), (gd, ATTENTION)):
        axes[0].plot(shown, rows["probability"][0, :SHOWN].mean(axis=1), color=colour)
        axes[1].plot(shown, rows["norm"][0, :SHOWN], color=colour)
    axes[1].plot(shown, published, color=INK, linestyle=":", linewidth=2.0)
    axes[2].plot(shown, np.diff(log["norm"][0, : SHOWN + 1]) / 0.1, color=TRAINED)
    axes[2].plot(shown[1:], np.diff(published) / 0.1, color=INK, linestyle=":", linewidth=2.0)
    axes[0].set(ylim=(0, 1.15), title="mean probability of optimal tokens")
    axes[0].text(50, 1.04, "normalised", color=TRAINED, fontsize=8.5)
    axes[0].text(75, 0.8, "plain", color=ATTENTION, fontsize=8.5)
    axes[1].set_title("norm of the prompt")
    axes[1].text(130, 4.5, "plain", color=ATTENTION, fontsize=8.5)
    axes[1].text(85, 11.5, "normalised", color=TRAINED, fontsize=8.5, ha="right")
    axes[1].annotate(
        "kink",
        (PUBLISHED_KINK, published[PUBLISHED_KINK]),
        (PUBLISHED_KINK + 8, 9.5),
        color=INK,
        fontsize=8.5,
        arrowprops={"arrowstyle": "-", "color": FAINT, "linewidth": 0.7},
    )
    axes[2].set(ylim=(0.78, 1.04), title="growth of the norm per step / 0.1")
    axes[2].text(198, 1.015, "log space", color=TRAINED, fontsize=8.5, ha="right")
    axes[2].text(128, 0.86, "float32,\nas published", color=INK, fontsize=8.5, ha="right")
    for ax in axes:
        ax.set(xlabel="step", xlim=(0, SHOWN))
