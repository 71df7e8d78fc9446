"""Times of the max-margin programmes of a model's own heads, norm by norm:

    python benchmarks/solve_heads.py MODEL TEXT --norms spec nuc

MODEL is a folder that transformers reads, TEXT a file of sentences (``.xz`` too), of which the
first 24 of 80 to 140 characters are taken. Of every layer some heads: 80 queries whose top
probability is above one half, or as many as there are, against all their tokens.
"""

from __future__ import annotations

import argparse
import lzma
import re
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from attsvm import max_margin
from attsvm.margins import PairMargins
from attsvm.transformers import capture
from attsvm.transformers.head_inputs import HeadInputs
from attsvm.transformers.selections import compute_selections


def sentences(path: Path, count: int = 24) -> list[str]:
    """The first sentences of middling length."""
    with lzma.open(path, "rt") if path.suffix == ".xz" else path.open() as file:
        text = file.read().replace("\n", " ")
    parts = (part.strip() for part in re.split(r"(?<=[.]) ", text))
    return [part for part in parts if 80 < len(part) < 140][:count]


def programmes(model: str, texts: list[str], heads: list[int]) -> Iterator[tuple[str, PairMargins]]:
    """Name and programme of these heads of every layer."""
    import torch

    from transformers import AutoModel, AutoTokenizer

    network, tokens = AutoModel.from_pretrained(model).eval(), AutoTokenizer.from_pretrained(model)
    with capture(network) as recording, torch.no_grad():
        for text in texts:
            network(**tokens(text, return_tensors="pt"))
    for layer in recording.layers.values():
        seen = compute_selections(recording, layer, None)
        for h in heads:
            sure = np.flatnonzero((seen.top[h] > 0.5) & (seen.rival[h] >= 0))
            if len(sure) < 20:
                continue
            rng = np.random.default_rng([0, layer.number, h])
            members = np.sort(rng.permutation(sure)[:80])
            yield f"{layer.number}.{h}", HeadInputs(layer, h).programme(members, seen.selected[h])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    parser.add_argument("--norms", nargs="+", default=["spec"])
    parser.add_argument("--heads", nargs="+", type=int, default=[1, 4, 7, 10])
    parser.add_argument("--seconds", type=float, default=60.0, help="limit of one programme")
    chosen = parser.parse_args()
    print("| head | rows | norm | CPU s | wall s | status | gap | multipliers |")
    print("|---|---|---|---|---|---|---|---|")
    warm = set[str]()
    for name, margins in programmes(chosen.model, sentences(chosen.text), chosen.heads):
        for norm in chosen.norms:
            if norm not in warm:  # compiles what is compiled
                max_margin(margins.restricted(np.arange(600)), norm, max_seconds=chosen.seconds)
                warm.add(norm)
            wall, cpu = time.perf_counter(), time.process_time()
            found = max_margin(margins, norm, max_seconds=chosen.seconds)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            print(
                f"| {name} | {margins.m} | {norm} | {cpu:.2f} | {wall:.2f} | {found.status} |"
                f" {found.gap:.0e} | {len(found.support)} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
