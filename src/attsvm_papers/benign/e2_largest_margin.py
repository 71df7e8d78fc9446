"""The largest margin learns the signal from an SNR of the order of 1 over the root of n on.

The largest margin of a head v and a prompt p of unlimited length is that of the selection of tokens
whose label margins have the shortest solution v, one over its length; p is the solution of that
selection. Eight sequences in d = 1600 dimensions, one label wrong: all 256 selections
are solved. Forty sequences: the four selections in which a class uses its signals or only its
noise, and descent on p and v from zero, each normalised, 400 steps of 0.02.

Source: Benign Overfitting in Single-Head Attention (Magen et al., 2024), read in its abstract and
in public reviews; sizes, closed forms and constants are this
project's

Notes: A class with m right labels pays 1/ρ² for its signal in the square of the norm of v, or about
1/d for the noise of each, so it uses the signal where m·SNR² > 1: both classes do where SNR >
√(2/((1 − η)n)), η the share of wrong labels. Errors are probabilities on fresh sequences with right
labels, computed and not sampled.
"""

import itertools

import numpy as np

from attsvm import decoder_margins, max_margin_batch, prompt_margins
from attsvm.training import direction_gap
from attsvm_papers import kit
from attsvm_papers.benign.signal_and_noise import (
    NOISE,
    SIGNAL,
    clean_error,
    draw_noisy,
    label_margins,
    signal_length,
    train_prompt_and_head,
)

RATIOS = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0)
ETAS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4)
CLASSES = tuple(itertools.product((False, True), repeat=2))
"""Whether the first and the second class use only their noise."""


def solve_selections(data, tokens, margins):
    """The solutions of one selection of every instance."""
    return max_margin_batch(
        [margins(data.instance(k), selection) for k, selection in enumerate(tokens)]
    )


@kit.run(
    snr=(1.0, 1.5, 1.8, 3.0), seeds=kit.seeds(40, by=20), quick={"few": 6, "seeds": 5}, name="every"
)
def solve_all_selections(snr, seeds, few=8, d=1600):
    instances = draw_noisy(few, d, 1 / few, signal_length(snr, few, d), seeds)
    selections = np.array(list(itertools.product((SIGNAL, NOISE), repeat=few)))
    right, wrong = instances.counts()
    rule = instances.tokens(right * snr**2 <= few)
    selected = np.empty_like(rule)
    for k in range(len(seeds)):
        norms = max_margin_batch(
            [decoder_margins(instances.data.instance(k), s) for s in selections]
        ).norm
        selected[k] = selections[norms.argmin()]
    return {
        "most_right": (right > wrong).all(axis=1),
        "as_rule": (selected == rule).all(axis=1),
        "as_other": (np.roll(selected, 1, axis=0) == rule).all(axis=1),
    }


@kit.run(
    snr=RATIOS,
    eta=ETAS,
    seeds=kit.seeds(40, by=20),
    quick={"snr": (1.0, 2.5, 3.0), "eta": (0.1, 0.3), "seeds": 5},
    name="sizes",
)
def solve_and_train(snr, eta, seeds, n=40, d=1600, steps=400):
    rho = signal_length(snr, n, d)
    instances = draw_noisy(n, d, eta, rho, seeds)
    data, (right, wrong) = instances.data, instances.counts()
    norms = np.stack(
        [solve_selections(data, instances.tokens(c), decoder_margins).norm for c in CLASSES], axis=1
    )
    noise = np.array(CLASSES)[norms.argmin(axis=1)]
    best = instances.tokens(noise)
    v, p = (
        solve_selections(data, best, decoder_margins),
        solve_selections(data, best, prompt_margins),
    )
    head, prompt = v.W[..., 0], p.W[..., 0]
    trajectory = train_prompt_and_head(data, 0.02, steps, ())
    selected, trained_head, trained_prompt = (
        trajectory.selected[-1],
        trajectory.head[-1],
        trajectory.W[-1, :, :, 0],
    )
    of_class = instances.classes[..., None] == np.arange(2)
    at_signal = ((selected == SIGNAL) & ~instances.flipped)[..., None] & of_class
    gain = snr**2 * (right - wrong) / n  # of signal over noise after the head's first step
    turn = snr**2 / n * (right * (gain - 1) - wrong * (gain + 1)) + gain - 1
    return {
        "most_right": (right > wrong).all(axis=1),
        "certified": v.optimal & p.optimal,
        "planted": ~noise.any(axis=1),
        "uses": ~noise,
        "rule": right * snr**2 > n,
        "fitted": (label_margins(data, FAR * prompt, head) > 0).all(axis=1),
        "error": clean_error(FAR * prompt, head, rho),
        "lead": rho * prompt[:, :2] / np.linalg.norm(prompt[:, 2:], axis=1)[:, None],
        "lead_closed": closed_lead(right, wrong, d - 2 - n, rho),
        "lead_right": closed_lead(right + wrong, 0 * wrong, d - 2 - n, rho),
        "descent_uses": 2 * at_signal.sum(axis=1) > right,
        "turn": turn > 0,
        "descent_error": clean_error(trained_prompt, trained_head, rho),
        **gaps_to_solutions(data, selected, trained_head, trained_prompt),
    }


FAR = 1e4  # lengths of the prompt's solution: attention is all or nothing


def gaps_to_solutions(data, tokens, head, prompt):
    """Gaps of a trained pair to the solutions of its selection, and to those of the nearest other
    selection: the first sequence at its other token.
    """
    nearest = tokens.copy()
    nearest[:, 0] = NOISE - nearest[:, 0]
    measures = {}
    for name, selection in (("", tokens), ("_nearest", nearest)):
        for variable, weights, margins in (
            ("head", head, decoder_margins),
            ("prompt", prompt, prompt_margins),
        ):
            best = solve_selections(data, selection, margins)
            measures[f"gap_{variable}{name}"] = direction_gap(weights[..., None], best.W)
            measures[f"certified_{variable}{name}"] = best.optimal
    return measures


def closed_lead(right, wrong, space, rho):
    r"""The lead ``(seeds, 2)`` of the signal of a class over a fresh noise, in standard deviations
    of
    :math:`p^\top\xi`, :math:`a_c/s` with :math:`p^\top\mu_c=a_c`, where noise vectors are
    orthogonal and of length :math:`\sqrt{\mathrm{space}}`.

    The shortest p with :math:`p^\top\xi_i=a_c-1` where labels are right and :math:`a_c+1` where
    they are wrong has :math:`a_c=(n_c-m_c)/(n_c+m_c+\mathrm{space}/\rho^2)`.
    """
    lead = (right - wrong) / (right + wrong + space / rho**2)
    squares = right * (1 - lead) ** 2 + wrong * (1 + lead) ** 2
    return lead / np.sqrt(squares.sum(axis=1, keepdims=True) / space)


def rows_of_sizes(evidence, **values):
    return evidence.where(part="sizes", **values)


def mostly_right(table):
    return {
        "more right labels than wrong ones in both classes": lambda e: e.where(part=table)[
            "most_right"
        ].astype(bool)
    }


BENIGN, HARMFUL = {"snr": 3.0, "eta": 0.1}, {"snr": 1.0, "eta": 0.1}
NEAR, HARM = 0.01, 1 / 16
TIMES = kit.exchanged("a third of the signal", "snr", 3.0, 1.0)
CERTIFIED = {"certified": lambda e: rows_of_sizes(e, **BENIGN)["certified"].astype(bool)}


@kit.claim(
    kit.true("closed form for noise that is orthogonal; lengths vary", share=kit.MOST),
    assumes=mostly_right("every"),
    null=kit.replaced("the best selection of another trial", as_rule="as_other"),
)
def BO7(e):
    """Of all 256 selections of eight sequences the best uses, where labels are right, the signals
    of exactly the classes in which their number times the square of the SNR is above one, and noise
    everywhere else.
    """
    return e.where(part="every")["as_rule"]


@kit.claim(
    kit.at_most(NEAR, "near-optimal: a hundredth beside the share of wrong labels", share=kit.MOST),
    "paper",
    "abstract: a maximum-margin interpolator exhibits benign overfitting; the SNR is this"
    " project's",
    assumes=CERTIFIED,
    null=TIMES,
)
def BO8(e):
    """At an SNR of 3 over the root of n, one label in ten wrong, the largest margin fits every
    label and classifies fresh sequences well: share of errors.
    """
    rows = rows_of_sizes(e, **BENIGN)
    return np.where(rows["fitted"], rows["error"], 1.0)


@kit.claim(
    kit.at_least(HARM, f"{HARM:g} is the bound recalled of the paper's theorem", share=kit.MOST),
    "paper",
    "abstract: a sufficiently large SNR is necessary; the SNR is this project's",
    null=TIMES,
)
def BO9(e):
    """At an SNR of 1 over the root of n, one label in ten wrong, the largest margin fits every
    label and classifies fresh sequences badly: share of errors.
    """
    rows = rows_of_sizes(e, **HARMFUL)
    return np.where(rows["fitted"], rows["error"], 0.0)


@kit.claim(
    kit.true("closed form for noise that is orthogonal; lengths vary", share=kit.MOST),
    assumes=mostly_right("sizes"),
    null=kit.replaced("where the first step of the prompt turns, in its place", rule="turn"),
)
def BO10(e):
    """Of forty sequences, at every SNR and share of wrong labels, a class uses its signal where its
    right labels times the square of the SNR are above one.
    """
    rows = rows_of_sizes(e)
    return (rows["uses"] == rows["rule"]).all(axis=1)


def as_if_right(e):
    """The closed form for labels that are all right."""
    return e.but({"lead_closed": e["lead_right"]})


@kit.claim(
    kit.between(0.85, 1.15, "the closed form takes all noise as equally long", share=kit.MOST),
    # The noise of a trial is that of all its cells: one of five trials is more than one in ten.
    assumes={"ten trials": lambda e: len(rows_of_sizes(e).levels("seed")) >= 10},
    null=as_if_right,
)
def BO11(e):
    """Where both classes use their signals, fresh signals lead over noise by as many standard
    deviations as the closed form says: ratio, at an SNR of 3 over the root of n and above, where
    they lead by two and more.
    """
    rows = rows_of_sizes(e)
    is_far = (rows["planted"] == 1) & (rows["snr"] >= 3.0)
    has_lead = is_far[:, None] & (rows["lead"] >= 2.0)
    return rows["lead"][has_lead] / rows["lead_closed"][has_lead]


NEAREST = kit.replaced(
    "the solutions with one sequence at its other token",
    **{
        name: f"{name}_nearest"
        for name in ("gap_head", "gap_prompt", "certified_head", "certified_prompt")
    },
)


@kit.claim(
    kit.at_most(0.01, "zero in the limit", share=kit.MOST),
    assumes={
        "certified": lambda e: (
            rows_of_sizes(e)["certified_head"] * rows_of_sizes(e)["certified_prompt"]
        ).astype(bool)
    },
    null=NEAREST,
)
def BO12(e):
    """Descent on head and prompt ends in the max-margin directions of its own selection, certified:
    the larger gap of the two.
    """
    rows = rows_of_sizes(e)
    return np.maximum(rows["gap_head"], rows["gap_prompt"])


@kit.claim(
    kit.true("a coin has half", share=0.7),
    # Seven of ten is said of the classes of the whole grid, most of which no quick cell has.
    assumes={
        "every SNR and share of wrong labels": lambda e: (
            (len(rows_of_sizes(e).levels("snr")), len(rows_of_sizes(e).levels("eta")))
            == (len(RATIOS), len(ETAS))
        )
    },
    null=kit.replaced("the selection of the largest margin", descent_uses="uses"),
)
def BO14(e):
    """In classes for which the signal has the larger margin, but for which the first step of the
    prompt goes to the noise, descent ends at the noise, in seven of ten.
    """
    rows = rows_of_sizes(e)
    return rows["descent_uses"][(rows["rule"] == 1) & (rows["turn"] == 0)] == 0


@kit.picture(
    "Where overfitting is benign",
    "Squares fade towards the right in both panels; on the left this begins at the line, on the"
    " right it begins further right, the more so the more labels are wrong.",
    3.4,
    1,
    2,
    width=8.2,
    sharey=True,
    name="benign",
)
def draw_errors(evidence, axes):
    """Median probability that a fresh sequence with its right label is misclassified, by SNR and by
    the share of wrong labels, which are all fitted: white is zero, full colour one half. Lines:
    where a class of mean size turns to its signal, for the largest margin and for the first step of
    the prompt.
    """
    rows = rows_of_sizes(evidence)
    ratios, etas = rows.levels("snr"), rows.levels("eta")
    wrong = np.linspace(min(etas) - 0.02, max(etas) + 0.02, 100)
    right_less_wrong = 1 - 2 * wrong
    margin = np.sqrt(2 / (1 - wrong))
    first = np.sqrt(
        (1 - right_less_wrong + np.sqrt((1 - right_less_wrong) ** 2 + 4 * right_less_wrong**2))
        / right_less_wrong**2
    )
    panels = (
        ("error", "largest margin"),
        ("descent_error", "descent on head and prompt, 400 steps"),
    )
    for axis, (column, title) in zip(axes, panels, strict=True):
        for x, snr in enumerate(ratios):
            for eta in etas:
                error = float(np.median(rows.where(snr=snr, eta=eta)[column]))
                axis.plot(
                    x, eta, "s", ms=17, color=kit.ATTENTION, alpha=min(1.0, 1.6 * error), mew=0
                )
                if error > 0.005:
                    label = f"{error:.2f}".removeprefix("0")
                    axis.text(x, eta, label, ha="center", va="center", fontsize=7, color=kit.INK)
        for line, style, curve in ((margin, "-", "largest margin"), (first, "--", "first step")):
            is_inside = line <= ratios[-1]
            positions = np.interp(np.log(line[is_inside]), np.log(ratios), np.arange(len(ratios)))
            axis.plot(
                positions, wrong[is_inside], style, color=kit.BEST, linewidth=1.3, label=curve
            )
        axis.set(title=title, xlabel="SNR times the root of n", ylim=(0.01, 0.44))
        axis.set_xticks(range(len(ratios)), [f"{snr:g}" for snr in ratios])
    axes[0].set(ylabel="share of wrong labels")
    axes[0].legend(frameon=False, fontsize=8.5, loc="lower right")
