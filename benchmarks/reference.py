"""What a commit computes, kept in a folder, and what another one computes beside it: trained
weights, optimiser checkpoints, verdicts.

    git worktree add ../former 625026c
    PYTHONPATH=../former/src python benchmarks/reference.py runs/reference
    python benchmarks/reference.py runs/reference --against

The first command writes the folder with the sources of the other checkout, the second computes the
same with these and prints how far apart they are: weights of 30 instances in five forms of training
after 100 and 20 000 steps (``--long``: and after a million), as one minus the cosine and as the
largest relative difference; twenty optimisers, each loaded from the kept checkpoint in the middle
and trained to the end; verdicts of ``attsvm reproduce --all --quick`` (``--verdicts``, minutes).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from torch import nn

import attsvm
from attsvm.attention import Attention
from attsvm.optim import MirrorDescent, SteepestDescent
from attsvm.training import AtSteps

MARKS, LONG = (100, 20_000), 1_000_000
SIZES = ((6, 8, 10), (4, 6, 16), (10, 20, 20))
FORMS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "W": (SteepestDescent, {}),
    "factors": (SteepestDescent, {"parameterization": "KQ", "init": ("uniform", 0)}),
    "trained head": (SteepestDescent, {"train_head": True}),
    "mirror, p = 1.75": (
        lambda parameters, lr: MirrorDescent(parameters, lr=lr, p=1.75, normalize=True),
        {},
    ),
    "plain": (
        lambda parameters, lr: SteepestDescent(parameters, lr=lr, normalize=False),
        {},
    ),
}
OPTIMISERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    **{
        f"mirror p={p} {normalize} momentum={momentum}": (
            lambda parameters, p=p, normalize=normalize, momentum=momentum: MirrorDescent(
                parameters, lr=0.01, p=p, normalize=normalize, momentum=momentum
            )
        )
        for p, normalize, momentum in itertools.product(
            (1.1, 1.75, 3.0), (None, "tensor"), (0, 0.9)
        )
    },
    **{
        f"steepest {norm} momentum={momentum}": (
            lambda parameters, norm=norm, momentum=momentum: SteepestDescent(
                parameters, lr=0.01, norm=norm, momentum=momentum
            )
        )
        for norm, momentum in itertools.product(("fro", "linf", "lp:3", "spec"), (0.0, 0.9))
    },
}


def weights(marks: tuple[int, ...]) -> Iterator[tuple[str, np.ndarray]]:
    """Ten instances of each size in every form: ``(marks, 10, d, d_z)``."""
    for (n, T, d), (form, (make, options)) in itertools.product(SIZES, FORMS.items()):
        data, v = attsvm.datasets.unit_sphere(n, T, d, seed=list(range(10)))
        model = Attention.cross(data, v, **options)
        course = attsvm.train(
            model, data, make(model.parameters(), lr=0.1), marks[-1], AtSteps(marks)
        )
        yield f"{form}, n={n} T={T} d={d}", np.asarray(course.W)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8, bias=False), nn.Tanh(), nn.Linear(8, 4, bias=False))


def go(net: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        inputs = torch.randn(16, 6, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        net(inputs).square().mean().backward()
        optimizer.step()


def ends(folder: Path, write: bool) -> Iterator[tuple[str, np.ndarray]]:
    """Where each optimiser is after 40 steps, the last 20 of them from its checkpoint."""
    for number, (name, make) in enumerate(OPTIMISERS.items()):
        path, net = folder / f"checkpoint-{number}.pt", network()
        optimizer = make(net.parameters())
        if write:
            go(net, optimizer, range(20))
            torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, path)
        else:
            kept = torch.load(path, weights_only=True)
            net.load_state_dict(kept["net"])
            optimizer.load_state_dict(kept["optimizer"])
        go(net, optimizer, range(20, 40))
        yield name, nn.utils.parameters_to_vector(net.parameters()).detach().numpy()


def verdicts() -> dict[str, str]:
    """Of every claim at the quick scale."""
    from attsvm.cli import main

    out = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(out):
        main(["reproduce", "--all", "--quick", "--json", "--out", folder])
    return {
        f"{run['id']} {claim['id']}": claim["verdict"]
        for run in json.loads(out.getvalue())["experiments"]
        for claim in run["claims"]
    }


def compared(kind: str, kept: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> None:
    print(f"\n| {kind} | 1 - cosine | largest difference |\n|---|---|---|")
    for name, there in kept.items():
        one, other = (each.astype(np.float64) for each in (found[name], there))
        one, other = (each.reshape(math.prod(each.shape[:-2]) or 1, -1) for each in (one, other))
        one, other = (
            each / np.maximum(np.linalg.norm(each, axis=1, keepdims=True), 1e-300)
            for each in (one, other)
        )
        # of unit vectors, half the squared distance is one minus the cosine, without cancellation
        apart = 0.5 * ((one - other) ** 2).sum(axis=1).max()
        print(f"| {name} | {apart:.1e} | {np.abs(one - other).max():.1e} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--against", action="store_true", help="compare with what is kept there")
    parser.add_argument("--long", action="store_true", help=f"weights after {LONG} steps, too")
    parser.add_argument("--verdicts", action="store_true", help="verdicts at the quick scale, too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder, write = options.folder, not options.against
    folder.mkdir(parents=True, exist_ok=True)
    marks = (*MARKS, LONG) if options.long else MARKS
    found = {"weights": dict(weights(marks)), "optimisers": dict(ends(folder, write))}
    for kind, arrays in found.items():
        path = folder / f"{kind}.safetensors"
        if write:
            save_file({name: np.ascontiguousarray(each) for name, each in arrays.items()}, path)
        else:
            compared(kind, load_file(path), arrays)
    if options.verdicts:
        path, now = folder / "verdicts.json", verdicts()
        if write:
            path.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
        else:
            kept = json.loads(path.read_text(encoding="utf-8"))
            print("\n| claim | there | here |\n|---|---|---|")
            for name in sorted(kept | now):
                if kept.get(name) != now.get(name):
                    print(f"| {name} | {kept.get(name, '')} | {now.get(name, '')} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
