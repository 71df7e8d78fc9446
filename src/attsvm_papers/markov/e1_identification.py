r"""Attention samples from a Markov chain that the prompt weighs, and which prompts identify it.

Six tokens, prompts of eight, 40 for each last token; rows of the chain with uniform logits in ±1.
Prompts have any tokens, or those of one half that belongs to the last token, or those of either of
two halves where the last token only asks. The likelihood of 4 000 next tokens and of infinitely
many is maximised by Newton's method from two random starts.

Source: From Self-Attention to Markov Models (Ildiz, Huang, Li, Rawat and Oymak, 2024), read in its
abstract; convexity and tied weights in a summary of it; the graph of prompts is recalled

Notes: Sizes are this project's. The last token is in its own prompt, so that the graph of a last
token is connected where every token is in some prompt with it.
"""

import numpy as np

from attsvm import AttentionData
from attsvm.models import Attention
from attsvm_papers import kit
from attsvm_papers.markov.chain import (
    APART,
    COVERED,
    HALF,
    generators,
    maximise_likelihood,
    next_token_probabilities,
    risk,
    same_component,
    sample_prompts,
)

ABSTRACT, SUMMARY = "abstract", "read in a summary"
DESIGNS = [COVERED, HALF, APART]


def probabilities_of_attention(m, w, rng):
    """Attention's next-token probabilities of the prompts ``m (K, D, K)`` by rows ``w (K, K)``,
    with random embeddings and output weights that are tied to them.
    """
    K, D = m.shape[:2]
    E = rng.normal(size=(K, K + 2))
    tied = np.linalg.pinv(E)  # E C^T = I
    tokens = np.stack([np.repeat(np.arange(K), row) for row in m.reshape(-1, K)])
    queries = np.repeat(np.arange(K), D)
    data = AttentionData(E[tokens], np.ones(K * D), E[queries])
    W = tied @ w.T @ tied.T
    model = Attention.cross(data, np.zeros(K + 2), init=W)
    return (model.outputs(data).detach().numpy() @ tied).reshape(K, D, K)


@kit.run(design=DESIGNS, seeds=kit.seeds(100, by=50), quick={"seeds": 20})
def run(design, seeds, K=6, T=8, D=40, n=4000):
    rngs = generators(seeds)
    m = sample_prompts(design, K, T, D, rngs)
    w = np.stack([rng.uniform(-1, 1, (K, K)) for rng in rngs])
    starts = np.stack([rng.normal(0, 5, (2, K, K)) for rng in rngs], axis=1)
    truth = next_token_probabilities(w, m)
    base = np.exp(w) / np.exp(w).sum(axis=-1, keepdims=True)
    model = np.stack(
        [probabilities_of_attention(*instance) for instance in zip(m, w, rngs, strict=True)]
    )
    next_tokens = np.stack(
        [rng.multinomial(n // (K * D), p) for rng, p in zip(rngs, truth, strict=True)]
    )
    counts = next_tokens.astype(float)
    solution = maximise_likelihood(m, counts, starts)
    exact_solution = maximise_likelihood(m, truth, starts[0])
    eigenvalues = np.linalg.eigvalsh(exact_solution.hessian)
    rank = (eigenvalues > 1e-9 * eigenvalues[..., -1:]).sum(axis=-1)
    is_same, pooled = same_component(m), same_component(m.reshape(len(m), 1, -1, K))
    error = exact_solution.w - w
    wrong = np.abs(error[..., :, None] - error[..., None, :])
    middle, (first_start, second_start) = starts.mean(axis=0), starts

    def number_of_components(joined):
        return (1 / joined.sum(axis=-1)).sum(axis=-1)

    def sag(loss):
        """The depth of the middle below the chord, of the height of the chord's ends; the worst."""
        ends = (loss(first_start) + loss(second_start)) / 2
        return ((ends - loss(middle)) / np.abs(ends)).min(axis=-1)

    def linear(rows):
        return -(counts * next_token_probabilities(rows, m)).sum(axis=(-2, -1))

    return {
        "equal": np.abs(model - truth).max(axis=(1, 2, 3)),
        "uncounted": np.abs(base[:, :, None] - truth).max(axis=(1, 2, 3)),
        "gap": (solution.gap.max(axis=(1, 3)) / n).T,
        "sag": sag(lambda rows: risk(rows, m, counts)),
        "sag_linear": sag(linear),
        "unexplained": np.abs(rank - (K - number_of_components(is_same))).max(axis=-1),
        "unexplained_pooled": np.abs(rank - (K - number_of_components(pooled))).max(axis=-1),
        "within": np.max(wrong, axis=(1, 2, 3), where=is_same, initial=0.0),
        "anywhere": wrong.max(axis=(1, 2, 3)),
    }


@kit.claim(
    kit.at_most(1e-10, "rounding"),
    "paper",
    ABSTRACT,
    null=kit.replaced("the row of the chain, without counts", equal="uncounted"),
)
def MK1(e):
    """Attention samples the next token from the row of the last one, weighed by the counts of the
    prompt: largest difference of a probability.
    """
    return e["equal"]


@kit.claim(
    kit.at_least(-1e-12, "rounding"),
    "recalled",
    SUMMARY,
    null=kit.replaced("minus the mean probability in place of its logarithm", sag="sag_linear"),
)
def MK2(e):
    """With tied weights the likelihood is convex: between two random points it is below the
    chord.
    """
    return e["sag"]


@kit.claim(
    kit.at_most(1e-10, "rounding of a loss of order one"),
    "ours",
    "certificate",
    null=kit.at_start("gap"),
)
def MK3(e):
    """The likelihood has a largest value that is reached from any start: duality gap for each
    next token.
    """
    return e["gap"][:, -1]


@kit.claim(
    kit.at_most(1e-6, "what a gap of rounding leaves"),
    "paper",
    f"{ABSTRACT}; the graph is recalled",
    where={"design": COVERED},
    null=kit.exchanged("half of the tokens", "design", COVERED, HALF),
)
def MK4(e):
    """Where the graph of every last token is connected, infinitely many next tokens identify the
    chain: largest error of a difference of logits.
    """
    return e["anywhere"]


@kit.claim(
    kit.at_most(1e-6, "as for connected graphs"),
    "ours",
    "derived",
    null=kit.replaced("pairs of any tokens", within="anywhere"),
)
def MK5(e):
    """In a graph with several components differences of logits are identified inside of them."""
    return e["within"]


@kit.claim(
    kit.at_most(0.5, "numbers of directions are whole"),
    "ours",
    "derived",
    null=kit.replaced("one graph of all prompts", unexplained="unexplained_pooled"),
)
def MK6(e):
    """Each row has as many identified directions as tokens less components: largest difference to
    the rank of the likelihood's Hessian.
    """
    return e["unexplained"]


@kit.picture(
    "What prompts identify",
    "With all tokens every error is next to rounding; with half of the tokens or two halves apart"
    " errors inside components are next to rounding and errors between any tokens of order ten.",
    2.8,
    name="identified",
)
def draw_identification_errors(e, axes):
    """Largest error of a difference of two logits of a row, a dot per seed: inside the components
    of the graph of its last token, and between any tokens.
    """
    ax = axes[0]
    for column, colour, shift, label in (
        ("within", kit.BEST, -0.22, "inside components"),
        ("anywhere", kit.ATTENTION, 0.22, "any tokens"),
    ):
        values = [np.maximum(e.where(design=name)[column], 1e-16) for name in DESIGNS]
        positions = np.arange(3) + shift
        kit.dots(ax, positions, values, label=label, color=colour, markersize=2.5, alpha=0.6)
    ax.set(xticks=range(3), xticklabels=DESIGNS)
    ax.set(yscale="log", ylabel="error of log P", ylim=(3e-17, 300))
    kit.legend(ax, loc="center left")
