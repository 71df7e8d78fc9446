"""Margins of an attention head as confidence, where the truth is known: atoms of reactions.

    python benchmarks/probe_reactions.py REACTIONS MODEL --json reactions.json

One head of the language model rxnmapper (layer 10, head 5; Schwaller et al., Science Advances 2021)
attends from each atom of a product to its atom among the reactants. Which atom that is, is curated
(Lin et al., *Atom-to-atom mapping: a benchmarking study*, 2020), and atoms that are equivalent by
symmetry are given as classes. The head is right at an atom when it selects one of the right class,
and at a reaction when it is right at all its atoms.

A confidence is judged by the AUROC of right against wrong: 0.5 says nothing, 1 tells all apart.
For a reaction it is the smallest margin or class probability of its atoms, the product of raw
probabilities. Beside them stands rxnmapper's own algorithm on top of the same head: attention both
ways is added, atoms of other elements are left out, rows are normalised, the surest pair is
accepted, its row and column are cleared, attention between the neighbours of the two is multiplied
by a factor (30 as published), and so on; its confidence is the product of the accepted
probabilities. Intervals are 95 %, over reactions drawn with replacement; the null is the AUROC of
the margins after they were shuffled among reactions.

REACTIONS is a file of JSON lines, as text or under xz, with ``tokens``, ``reactant_positions``,
``reactant_map``, ``reactant_class`` and the same of products; MODEL a folder with ``config.json``,
``model.safetensors`` and ``vocab.txt``.
"""

from __future__ import annotations

import argparse
import json
import lzma
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata

from attsvm.transformers import capture
from attsvm.transformers.logit_statistics import logit_statistics

LAYER, HEAD = 10, 5
ASKED = {"reactions": 0.83, "atoms": 0.87}
Array = NDArray[np.float64]


def neighbours(tokens: list[str], positions: list[int]) -> NDArray[np.bool_]:
    """Which of the atoms at these places of a SMILES are bonded."""
    number = {place: i for i, place in enumerate(positions)}
    bonded = np.zeros((len(positions),) * 2, dtype=np.bool_)
    last: int | None = None
    branches: list[int | None] = []
    rings: dict[str, int] = {}
    for place in range(min(positions), max(positions) + 3):
        token = tokens[place] if place < len(tokens) else "."
        if place in number:
            if last is not None:
                bonded[last, number[place]] = bonded[number[place], last] = True
            last = number[place]
        elif token == "(":
            branches.append(last)
        elif token == ")":
            last = branches.pop() if branches else None
        elif token in (".", ">>", "[SEP]"):
            last = None
        elif re.fullmatch(r"%?\d+", token) and last is not None:
            other = rings.pop(token, None)
            if other is None:
                rings[token] = last
            else:
                bonded[last, other] = bonded[other, last] = True
    return bonded


def element(token: str) -> str:
    """The element of an atom: aromatic ones are written in small letters."""
    found = re.match(r"\[?\d*([A-Z][a-z]?|[a-z]{1,2})", token)
    assert found is not None, token
    inside = found[1] if token.startswith("[") or token in ("Cl", "Br") else found[1][0]
    return inside.capitalize()


def published(
    both: Array, same: NDArray[np.bool_], bonds: tuple[Any, Any], factor: float
) -> tuple[NDArray[np.int64], Array]:
    """rxnmapper's algorithm: the reactant atom of each product atom, -1 for none, and how sure.

    Args:
        both: ``(products, reactants)``, attention there and back.
        same: of the same element.
        bonds: of products and of reactants.
        factor: for neighbours of atoms that were accepted.
    """
    weights = np.where(same, both, 0.0)
    chosen = np.full(len(both), -1)
    sure = np.ones(len(both))
    for _ in range(len(both)):
        totals = weights.sum(axis=1, keepdims=True)
        shares = np.divide(weights, totals, out=np.zeros_like(weights), where=totals > 0)
        product, reactant = np.unravel_index(shares.argmax(), shares.shape)
        if np.isclose(shares[product, reactant], 0.0):
            break
        chosen[product], sure[product] = reactant, shares[product, reactant]
        weights[np.ix_(bonds[0][product], bonds[1][reactant])] *= factor
        weights[product] = 0.0
        weights[:, reactant] = 0.0
    return chosen, sure


def judged(reaction: dict[str, Any], logits: torch.Tensor, factor: float) -> dict[str, Array]:
    """Per atom of the products whose truth is known: right or wrong, and every confidence.

    Args:
        reaction: a line of the file.
        logits: ``(T, T)`` of the head.
        factor: of the published algorithm.
    """
    products, reactants = reaction["product_positions"], reaction["reactant_positions"]
    classes = np.array(reaction["reactant_class"])
    place = {number: i for i, number in enumerate(reaction["reactant_map"]) if number}
    truth = np.array([place.get(number, -1) for number in reaction["product_map"]])
    known = truth >= 0
    raw = torch.softmax(logits, dim=-1).double()
    head = logit_statistics(logits[products][:, reactants][None], torch.from_numpy(classes))
    selected = head.selected[0].numpy()
    there = raw[products][:, reactants].numpy()
    kinds = [[element(reaction["tokens"][i]) for i in own] for own in (products, reactants)]
    same = np.array(kinds[0])[:, None] == np.array(kinds[1])
    bonds = (neighbours(reaction["tokens"], products), neighbours(reaction["tokens"], reactants))
    back = raw[reactants][:, products].numpy().T
    mapped, sure = published(there + back, same, bonds, factor)
    found = {
        "right": classes[selected] == classes[truth],
        "margin": head.margin[0].double().numpy(),
        "class probability": head.top[0].double().numpy(),
        "raw probability": there[np.arange(len(truth)), selected],
        "rxnmapper right": (mapped >= 0) & (classes[mapped] == classes[truth]),
        "rxnmapper": sure,
    }
    return {key: np.asarray(each, dtype=np.float64)[known] for key, each in found.items()}


def auroc(confidence: Array, right: Array) -> float:
    """Chance that one that is right has more confidence than one that is wrong."""
    good = int(right.sum())
    ranks = float(rankdata(confidence)[right > 0].sum())
    return (ranks - good * (good + 1) / 2) / (good * (len(right) - good))


FOLD: dict[str, Callable[[Array], float]] = {
    "margin": lambda each: float(each.min()),
    "class probability": lambda each: float(each.min()),
    "raw probability": lambda each: float(np.log(each).sum()),
    "rxnmapper": lambda each: float(np.log(each).sum()),
}
"""From the confidences of its atoms to that of a reaction."""


def table(found: list[dict[str, Array]], draws: int) -> list[dict[str, Any]]:
    """AUROC of every confidence for reactions and atoms, with intervals, and a null."""
    rng = np.random.default_rng(0)
    samples = [rng.integers(len(found), size=len(found)) for _ in range(draws)]
    rows = []
    for target, wanted in (("right", "the head's selection"), ("rxnmapper right", "rxnmapper")):
        for name, fold in FOLD.items():
            for unit in ("reactions", "atoms"):
                if unit == "reactions":
                    values = [np.array([fold(each[name])]) for each in found]
                    truth = [np.array([each[target].min()]) for each in found]
                else:
                    values = [each[name] for each in found]
                    truth = [each[target] for each in found]

                def over(
                    own: Any, values: list[Array] = values, truth: list[Array] = truth
                ) -> float:
                    return auroc(
                        np.concatenate([values[i] for i in own]),
                        np.concatenate([truth[i] for i in own]),
                    )

                spread = np.quantile([over(own) for own in samples], (0.025, 0.975))
                row = {
                    "errors of": wanted,
                    "confidence": name,
                    "unit": unit,
                    "auroc": over(range(len(found))),
                    "low": float(spread[0]),
                    "high": float(spread[1]),
                    "share right": float(np.concatenate(truth).mean()),
                    "units": len(np.concatenate(truth)),
                }
                if name == "margin":
                    shuffled = rng.permutation(np.concatenate(values))
                    row["null"] = auroc(shuffled, np.concatenate(truth))
                    if target == "right":
                        row["asked"] = ASKED[unit]
                rows.append(row)
    return rows


def reactions(path: Path) -> list[dict[str, Any]]:
    """The lines of the file."""
    with (lzma.open if path.suffix == ".xz" else open)(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def main() -> None:
    """Run the model on every reaction, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("reactions", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--factor", type=float, default=30.0)
    parser.add_argument("--most", type=int, help="only the first reactions")
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    model = transformers.AlbertModel.from_pretrained(options.model, add_pooling_layer=False).eval()
    words = (options.model / "vocab.txt").read_text("utf-8").splitlines()
    number = {word: i for i, word in enumerate(words)}
    unknown = number["[UNK]"]
    found, started = [], time.process_time()
    for reaction in reactions(options.reactions)[: options.most]:
        ids = torch.tensor([[number.get(token, unknown) for token in reaction["tokens"]]])
        with torch.no_grad(), capture(model, [LAYER], [HEAD], projections=False) as recording:
            model(ids)
        logits = next(iter(recording.layers.values())).texts[0].logits()[0]
        one = judged(reaction, logits, options.factor)
        if len(one["right"]):
            found.append(one)
    rows = table(found, options.draws)
    for row in rows:
        asked = f"  asked {row['asked']:.2f}" if "asked" in row else ""
        null = f"  null {row['null']:.3f}" if "null" in row else ""
        print(
            f"{row['errors of']:<22}{row['confidence']:<19}{row['unit']:<11}"
            f"{row['auroc']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
            f"  right {100 * row['share right']:.1f} % of {row['units']}{null}{asked}"
        )
    print(f"{len(found)} reactions, {time.process_time() - started:.0f} CPU seconds")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1), "utf-8")


if __name__ == "__main__":
    main()
