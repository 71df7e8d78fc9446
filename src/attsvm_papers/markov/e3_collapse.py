r"""One trajectory collapses to few tokens, by a power of its length.

Every next token is written to the prompt. Two tokens with random chains, 50 trajectories of each
from a prompt with either token once: only the first token prefers to follow itself, both do, or
none does. And ten tokens with random chains of normal logits, one trajectory each.

Source: From Self-Attention to Markov Models (Ildiz, Huang, Li, Rawat and Oymak, 2024), winners in
its abstract; powers are derived here

Notes: Where a token has the small share x and the other is last, it comes with probability rx,
r = P₁₂/P₁₁, so that dx/d log t = (r-1)x. It follows itself with a probability of order x each time
it comes, at rate t^(2r-2): finitely often where r is below one half, and its row is then not
learned from one trajectory, however long.
"""

import numpy as np
from numpy.typing import NDArray

from attsvm_papers import kit
from attsvm_papers.markov.chain import generators, growth_rates, write_trajectories

ONE, BOTH, NONE = "one", "both", "none"
KINDS = [ONE, BOTH, NONE]
ABSTRACT = "abstract"
SLOW = (
    "where P₂₁/P₂₂ is little above one, trajectories in which the weak token was ahead at first"
    " leave it slowly"
)


def recorded_lengths(steps: int) -> NDArray[np.int64]:
    """Lengths of the trajectories at the records, four for each decade."""
    count = round(4 * np.log10(steps / 10)) + 1
    return np.rint(np.geomspace(10, steps, count)).astype(np.int64)


@kit.run(
    kind=KINDS,
    seeds=kit.seeds(40, by=20),
    quick={"steps": 10_000, "seeds": 20, "trials": 20},
    name="pair",
)
def trajectories_of_pair(kind, seeds, steps=100_000, trials=50):
    weak = np.stack([rng.uniform(0.2, 0.8, 2) for rng in generators(seeds)])
    first = 1 / weak[:, 0] if kind == NONE else weak[:, 0]
    second = weak[:, 1] if kind == BOTH else 1 / weak[:, 1]
    P = np.stack([np.ones_like(first), first, second, np.ones_like(first)], axis=1)
    P = np.repeat(P.reshape(-1, 2, 2), trials, axis=0)
    last = np.tile(np.arange(trials) % 2, len(seeds))
    marks = recorded_lengths(steps)
    rng = np.random.default_rng([74, *seeds])
    counts, repeats = (
        counted.reshape(len(seeds), trials, -1, 2)
        for counted in write_trajectories(P, last, marks, rng)
    )
    share = counts / marks[:, None]
    return {
        "step": kit.same(marks),
        "r": weak[:, 0],
        "r_other": weak[:, 1],
        "weak": counts[..., 1].mean(axis=1),
        "again": repeats[..., 1].mean(axis=1),
        "winner": share.max(axis=-1).mean(axis=1),
        "first": (share[..., -1, 0] > 0.5).mean(axis=1),
    }


@kit.run(
    seeds=kit.seeds(100, by=50, name="chains"),
    quick={"steps_many": 3000, "chains": 50},
    name="many",
)
def trajectories_of_many(seeds, steps_many=30_000, K=10):
    rngs = generators(seeds)
    P = np.stack([np.exp(rng.normal(size=(K, K))) for rng in rngs])
    P /= P.sum(axis=-1, keepdims=True)
    rng = np.random.default_rng([75, *seeds])
    marks = recorded_lengths(steps_many)
    counts = write_trajectories(P, np.zeros(len(seeds), dtype=np.int64), marks, rng).counts
    half = np.searchsorted(marks, steps_many / 3.2)
    late_shares = (counts[:, -1] - counts[:, half]) / (marks[-1] - marks[half])
    stationary = np.linalg.solve(
        np.swapaxes(np.eye(K) - P, -1, -2) + 1.0, np.ones((len(seeds), K, 1))
    )[..., 0]

    def largest_losing_rate(shares):
        """The largest rate of a token that does not win."""
        wins = shares >= 0.02
        winning_shares = np.where(wins, shares, 0.0)
        winning_shares /= winning_shares.sum(axis=-1, keepdims=True)
        return np.max(growth_rates(P, winning_shares), axis=-1, where=~wins, initial=0.0)

    return {
        "step_many": kit.same(marks),
        "share": np.sort(counts / marks[:, None], axis=-1)[..., ::-1],
        "tokens": effective_tokens(late_shares),
        "tokens_chain": effective_tokens(stationary),
        "invader": largest_losing_rate(late_shares),
        "invader_other": largest_losing_rate(np.roll(late_shares, 1, axis=-1)),
    }


def effective_tokens(shares):
    """Number of tokens, the exponential of the entropy of their shares."""
    logs = np.log(np.maximum(shares, 1e-300))
    return np.exp(-(shares * logs).sum(axis=-1))


@kit.claim(
    kit.at_most(5.0, "half of them", share=0.8),
    "paper",
    ABSTRACT,
    where={"part": "many"},
    failure="scale",
    null=kit.replaced("the chain without counts", tokens="tokens_chain"),
)
def MK10(e):
    """In four of five trajectories a small set of tokens wins: effective number of tokens in the
    last part, of ten.
    """
    return e["tokens"]


@kit.claim(
    kit.at_most(1.0, "a rate above one would gain share", share=kit.MOST),
    "ours",
    "derived",
    where={"part": "many"},
    null=kit.replaced("shares of other tokens", invader="invader_other"),
)
def MK11(e):
    """No other token would gain on the winners: largest rate of a token with less than 2 % of the
    last part.
    """
    return e["invader"]


def exponent_of_weak(e):
    is_late = e["step"] >= e["step"][0, -1] / 100
    return kit.slopes(np.log(e["step"]), np.log(e["weak"]), is_late)


@kit.claim(
    kit.close_to(0.0, 0.1, "set on tuning seeds; zero is derived", share=kit.MOST),
    "ours",
    "derived; that there is a power is recalled",
    assumes={"100 000 steps": lambda e: e["step"][0, -1] >= 100_000},
    where={"kind": ONE},
    failure="scale",
    explanation=SLOW,
    null=kit.replaced("the row of the other token", r="r_other"),
)
def MK12(e):
    """The weak of two tokens comes t^r times in t, r = P₁₂/P₁₁: difference of the slope of its mean
    over two decades to r.
    """
    return exponent_of_weak(e) - e["r"]


@kit.claim(
    kit.at_least(0.9, "set on tuning seeds; one is the limit", share=kit.MOST),
    "paper",
    ABSTRACT,
    where={"kind": BOTH},
    null=kit.exchanged("no token prefers to follow itself", "kind", BOTH, NONE),
)
def MK13(e):
    """Where both tokens prefer to follow themselves every trajectory has a winner: its mean
    share.
    """
    return e.end("winner")


@kit.claim(
    kit.between(0.02, 0.98, "either token, once in fifty", share=kit.MOST),
    "ours",
    "derived",
    where={"kind": BOTH},
    null=kit.exchanged("one token prefers to follow itself", "kind", BOTH, ONE),
)
def MK14(e):
    """Which one it is is chance: share of the trajectories of one chain that the first token
    wins.
    """
    return e["first"]


def last_part(e):
    """The share of the last decade in all times that the weak token follows itself."""
    before = e["again"][:, e["step"][0] <= e["step"][0, -1] / 10][:, -1]
    return 1 - before / np.maximum(e.end("again"), 1e-300)


@kit.claim(
    kit.true("derived, away from one half", share=kit.MOST),
    "ours",
    "derived; that one trajectory may not do is recalled",
    assumes={"r is .1 from one half": lambda e: np.abs(e["r"] - 0.5) >= 0.1},
    where={"kind": ONE},
    failure="scale",
    explanation=SLOW,
    null=kit.replaced("the row of the other token", r="r_other"),
)
def MK15(e):
    """The weak token follows itself finitely often where r is below one half, so that its row is
    not learned from one trajectory: less than .15 of these times are in the last decade there, and
    more above.
    """
    return (last_part(e) > 0.15) == (e["r"] > 0.5)


@kit.picture(
    "One trajectory collapses",
    "Shares of the weak token fall along straight lines on logarithmic axes; exponents lie near the"
    " diagonal of r; of ten tokens the first one takes more and more of the trajectory.",
    3.0,
    1,
    3,
    width=8.8,
)
def collapse(e, axes):
    """Left: mean share of the weak of two tokens by length, for three chains; dashed the power
    r-1 through its last record. Middle: exponent of its number over two decades, a dot for each
    chain, against r; dashed the derived one. Right: shares of the most frequent of ten tokens, mean
    over chains.
    """
    pairs, ten = e.where(kind=ONE), e.where(part="many")
    step = pairs["step"][0]
    for colour, r in zip(kit.COLOURS, (0.3, 0.5, 0.7), strict=False):
        chain = int(np.abs(pairs["r"] - r).argmin())
        share = pairs["weak"][chain] / step
        axes[0].plot(step, share, color=colour, label=f"r = {pairs['r'][chain]:.2f}")
        line = share[-1] * (step / step[-1]) ** (pairs["r"][chain] - 1)
        axes[0].plot(step, line, "--", color=colour, linewidth=0.8)
    axes[1].plot(pairs["r"], exponent_of_weak(pairs), "o", color=kit.BEST, markersize=3)
    axes[1].plot([0.2, 0.8], [0.2, 0.8], "--", color=kit.FAINT, linewidth=0.9)
    length = ten["step_many"][0]
    for colour, rank in zip(kit.COLOURS, range(4), strict=True):
        mean = ten["share"][..., rank].mean(axis=0)
        axes[2].plot(length, mean, color=colour, label=("first", "second", "third", "fourth")[rank])
    axes[0].set(xscale="log", yscale="log", title="share of the weak token", xlabel="length")
    axes[1].set(title="its exponent", xlabel="r")
    axes[2].set(xscale="log", ylim=(0, 1), title="of ten tokens", xlabel="length")
    kit.legend(axes[0], loc="lower left")
    kit.legend(axes[2], loc="upper left")
