"""A text problem that a tiny classifier solves in seconds: is token 7 in the text? Also what a
process of its own trains and prints.

python training_problem.py FOLDER [EPOCHS]
"""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import torch

from attsvm.models import TextClassifier
from attsvm.training import Examples, TrainingPlan, train_classifier

LENGTH = 16


def examples(n=160, seed=0):
    rng = np.random.default_rng(seed)
    ids = rng.integers(2, 30, (n, LENGTH))
    mask = np.arange(LENGTH) < rng.integers(3, LENGTH + 1, n)[:, None]
    ids[:, 0] = 1
    ids[~mask] = 0
    return Examples(ids, (ids == 7).any(axis=1), mask)


def classifier(seed=0, dropout=0.1, **sizes):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return TextClassifier(
            30,
            LENGTH,
            **({"width": 16, "depth": 2, "heads": 2, "hidden": 32, "dropout": dropout} | sizes),
        )


def plan(**settings):
    return TrainingPlan(**({"lr": 3e-3, "epochs": 4, "batch": 16, "seed": 3} | settings))


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def main():
    torch.set_num_threads(1)
    folder, epochs = sys.argv[1], int(sys.argv[2])
    model = classifier(dropout=float(os.environ.get("DROPOUT", "0.1")))
    settings = json.loads(os.environ.get("SETTINGS", "{}"))
    history = train_classifier(
        model,
        examples(),
        {"test": examples(64, 1)},
        plan(epochs=epochs, **settings),
        folder=folder,
        checkpoint_seconds=0.02,
    )
    if os.environ.get("RANK", "0") == "0":
        torch.save((weights(model), history.to_json()), f"{folder}/end.pt")


if __name__ == "__main__":
    main()
