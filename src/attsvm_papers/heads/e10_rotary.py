r"""Heads with rotary positions, by relative offset.

Rotary positions turn pair :math:`j` of a head's features by :math:`\omega_j` per position, so the
logit of a query :math:`z` and a key :math:`x` that is :math:`\delta` tokens back is
:math:`x^\top W_\delta z` with another matrix for every offset,

.. math:: W_\delta=\sum_j\cos(\omega_j\delta)\,C_j+\sin(\omega_j\delta)\,S_j .

That is one matrix :math:`W=(C_j, S_j)_j` on keys that are told how far back they are,
:math:`x\otimes(\cos\omega_j\delta,\sin\omega_j\delta)_j`, and its max-margin programme is like that
of any other head. All 40 heads of the tiny Llama that comes with the package are measured: 5 layers
of 8 heads that share 4 sets of keys, width 64, heads of 8, so keys of 512 numbers. Inputs are 16
stories of 64 tokens that it writes itself, each token drawn from its softmax; a programme has 80
queries of which the head is sure. Solutions are those of the Frobenius norm, and for the first head
of each layer also of the nuclear norm. Nulls are rotary heads as well: the head's two subspaces
with rotated features, features paired with those of another frequency (permuted), random subspaces,
and inputs reflected as in heads-4. Beside them stand the layer's other heads on this head's
programme.

Source: this project

Notes: One model is one trial. A head that is sure of fewer than ten queries is scaled until it is
sure of ten.
"""

import numpy as np
import torch

from attsvm import max_margin, pair_margins
from attsvm.geometry import parse_norm
from attsvm.probe import reflection, story
from attsvm_papers import kit
from attsvm_papers.heads.own_solutions import FEWEST, SECONDS, THRESHOLD, cosine
from attsvm_papers.heads.reading import MIRRORED, NORMS, ROTATED

NULLS = ("heads", "random", "rotated", "permuted", "reflected")
CHOICES = (NULLS[:-1], NULLS[-1:])
"""The nulls of heads-1, and the one that matches the covariance of the inputs."""
SURE = 10


@kit.run(layer=(0, 1, 2, 3, 4), quick={"layer": (1,), "texts": 2, "tokens": 32, "queries": 12})
def run(layer, texts=16, tokens=64, queries=80):
    model = story(1)[0]
    inputs = model.seen(stories(model, texts, tokens), layer).double().numpy()
    factors = weights(model, layer)
    asked, found = queries_of(inputs, len(factors[0][0])), []
    W = [lifted(*pair) for pair in factors]
    for head, (K, Q) in enumerate(factors):
        rng = np.random.default_rng([layer, head])
        own, count = programme(W[head], asked, queries, rng)
        nulls = {kind: lifted(*variant(K, Q, kind, inputs, rng)) for kind in NULLS[1:]}
        theirs = {kind: programme(V, asked, queries, rng, count)[0] for kind, V in nulls.items()}
        for norm in ("fro", "nuc") if head == 0 else ("fro",):
            solved = {
                kind: max_margin(each, parse_norm(norm), max_seconds=SECONDS)
                for kind, each in {"cosine": own, **theirs}.items()
            }
            best, others = solved["cosine"].W, np.delete(W, head, axis=0)
            found.append(
                {
                    "head": head,
                    "norm": NORMS.index(norm),
                    **{k: cosine({"cosine": W[head], **nulls}[k], v.W) for k, v in solved.items()},
                    "heads": np.mean([cosine(V, best) for V in others]),
                    "sure": count,
                    "rows": own.m,
                    "gap": max(each.gap for each in solved.values()),
                }
            )
    return kit.stacked(found)


def stories(model, texts, tokens):
    """``(texts, tokens)`` that the model writes, drawn from its softmax."""
    draw = torch.Generator().manual_seed(0)
    ids = model.generate(1).expand(texts, 1)
    with torch.no_grad():
        while ids.shape[1] < tokens:
            shares = model(ids)[:, -1].softmax(dim=-1)
            ids = torch.cat([ids, torch.multinomial(shares, 1, generator=draw)], dim=1)
    return ids


def weights(model, layer):
    """Per head the maps to keys and to queries, ``(8, 64)`` each; queries carry the scale."""
    K, Q = (model.weights[name][layer].double().numpy() for name in ("wk", "wq"))
    d, shared = model.width // model.heads, model.heads // model.groups
    K = np.repeat(K.reshape(model.groups, d, -1), shared, axis=0)
    return list(zip(K, Q.reshape(model.heads, d, -1) / np.sqrt(d), strict=True))


def turns(d, offsets):
    """``(..., d)``: cosines of the angles of all pairs of features, then sines."""
    speed = 10000.0 ** (-np.arange(0, d, 2) / d)
    angle = np.asarray(offsets)[..., None] * speed
    return np.concatenate([np.cos(angle), np.sin(angle)], axis=-1)


def lifted(K, Q):
    """``(d * width, width)``: the matrices of cosines, then those of sines, below each other."""
    even, odd = slice(None, None, 2), slice(1, None, 2)
    C = np.einsum("jk,jq->jkq", K[even], Q[even]) + np.einsum("jk,jq->jkq", K[odd], Q[odd])
    S = np.einsum("jk,jq->jkq", K[odd], Q[even]) - np.einsum("jk,jq->jkq", K[even], Q[odd])
    return np.concatenate([C, S]).reshape(-1, Q.shape[1])


def queries_of(inputs, d):
    """Of every query with rivals enough: its input, the tokens that it sees, told how far back they
    are, ``(place + 1, d * width)``, and its place.
    """
    found = []
    for text in inputs:
        for place in range(FEWEST, len(text)):
            told = turns(d, place - np.arange(place + 1))
            keys = np.einsum("tj,tk->tjk", told, text[: place + 1]).reshape(place + 1, -1)
            found.append((text[place], keys, place))
    return found


def programme(W, asked, queries, rng, wanted=None):
    """The margins that some sure queries ask for, and of how many the weights are sure: as they
    are, or scaled until they are sure of ``wanted``; of ``SURE`` at least.
    """
    logits = [keys @ (W @ z) for z, keys, _ in asked]
    gaps = [each.max() - each for each in logits]

    def sure(scale):
        top = np.array([1.0 / np.exp(-scale * gap).sum() for gap in gaps])
        return np.flatnonzero(top > THRESHOLD)

    members = sure(1.0)
    if wanted is not None or len(members) < SURE:
        low, high = 1e-6, 1e9
        for _ in range(50):
            middle = float(np.sqrt(low * high))
            enough = len(sure(middle)) >= (wanted or SURE)
            low, high = (low, middle) if enough else (middle, high)
        members = sure(high)
    drawn = np.sort(rng.permutation(members)[:queries])
    margins = pair_margins(
        [asked[i][1] for i in drawn],
        [asked[i][0][None] for i in drawn],
        [logits[i].argmax()[None] for i in drawn],
        positions=[np.array([asked[i][2]]) for i in drawn],
    )
    return margins, len(members)


def variant(K, Q, kind, inputs, rng):
    """Another rotary head of the same size."""
    d, width = K.shape
    if kind == "random":
        A, B = (orthogonal(width, rng) for _ in range(2))
        return K @ A, Q @ B
    if kind == "rotated":
        A, B = (orthogonal(d, rng) for _ in range(2))
        return A @ K, B @ Q
    if kind == "permuted":
        order, planes = rng.permutation(d // 2), K.reshape(d // 2, 2, width)
        found = np.empty_like(planes)
        found[order] = planes[np.roll(order, 1)]
        return found.reshape(d, width), Q
    R = reflection(inputs.reshape(-1, width), rng)
    return K @ R, Q @ R


def orthogonal(n, rng):
    """A random orthogonal matrix."""
    Q, R = np.linalg.qr(rng.normal(size=(n, n)))
    return Q * np.sign(np.diag(R))


def excesses(e, nulls=NULLS, norm="fro"):
    """Of every head in a norm."""
    rows = e.where(norm=NORMS.index(norm))
    return rows["cosine"] - np.nanmax([rows[null] for null in nulls], axis=0)


def away(e):
    """What is seen instead of what is claimed."""
    gaps = {null: np.median(excesses(e, (null,))) for null in NULLS}
    return (
        "This model shows nothing of it. In the median over heads the cosine exceeds that of heads"
        f" with other features per frequency by {gaps['permuted']:.3f}, of rotated heads by"
        f" {gaps['rotated']:.3f}, and of reflected ones, for which inputs have the same covariance,"
        f" by {gaps['reflected']:.3f}."
    )


WHOLE = {"all forty heads": lambda e: len(e.where(norm=NORMS.index("fro"))["head"]) == 40}


@kit.each(
    kit.claim(
        kit.at_least(0.02, "median over heads, as in H10"),
        id=f"H13{letter}",
        statement=words,
        assumes=WHOLE,
        explanation=away,
        null=null,
        nulls=nulls,
    )
    for letter, nulls, null, words in (
        ("", CHOICES[0], ROTATED,
         "Rotary heads are nearer to their own Frobenius solutions than the strictest null."),
        ("b", CHOICES[1], MIRRORED,
         "They are nearer than rotary heads that no Gaussian inputs with these moments tell from"
         " them."),
    )
)  # fmt: skip
def median(e, nulls):
    return np.median(excesses(e, nulls))


@kit.picture("Rotary heads", "A scatter of heads about the diagonal.", 3.3, width=4.2)
def heads(evidence, panels):
    """A point per head, Frobenius norm: cosine of its weights and its own solution against the
    strictest null, and against reflected weights. On the line a head is no nearer than untrained
    weights.
    """
    ax, rows = panels[0], evidence.where(norm=NORMS.index("fro"))
    looks = zip(CHOICES, (kit.ATTENTION, kit.TRAINED), ("strictest", "reflected"), strict=True)
    for nulls, colour, label in looks:
        strictest = np.nanmax([rows[null] for null in nulls], axis=0)
        ax.plot(strictest, rows["cosine"], "o", ms=3.5, color=colour, alpha=0.7, label=label)
    limit = float(ax.get_ylim()[1])
    ax.plot([0, limit], [0, limit], color=kit.RULE, linewidth=0.9, zorder=0)
    ax.set(xlabel="null", ylabel="head")
    ax.legend(frameon=False, fontsize=8.5, loc="lower right")
