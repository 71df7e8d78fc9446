"""Which experiments there are, without importing them."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

from attsvm.errors import InputError
from attsvm.experiments.experiment import Experiment

PAPERS = {
    "mmts": "Max-Margin Token Selection in Attention Mechanism",
    "tfsvm": "Transformers as Support Vector Machines",
    "md": "Optimizing Attention with Mirror Descent",
    "ntp": "Non-asymptotic Convergence of Training Transformers for Next-token Prediction",
    "graph": "Mechanics of Next Token Prediction with Self-Attention",
    "rates": "Implicit Bias and Fast Convergence Rates for Self-attention",
    "factored": "Implicit Regularization of Gradient Flow on One-Layer Softmax Attention",
    "spectral": "Implicit Bias of Spectral Descent and Muon",
}
"""Key of each paper on the command line, and its title."""

_MODULE = re.compile(rf"({'|'.join(PAPERS)})_(\d+)([a-z]?)")


def identifiers(paper: str | None = None) -> list[str]:
    """Names of all experiments, or of one paper's, in the papers' order: a module ``tfsvm_3`` is
    the experiment ``tfsvm-3``.

    Raises:
        InputError: there is no such paper.
    """
    if paper is not None and paper not in PAPERS:
        raise InputError(f"there is no paper {paper!r}; choose from: {', '.join(PAPERS)}")
    found = []
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        match = _MODULE.fullmatch(module.name)
        if match and paper in (None, match[1]):
            found.append(
                (
                    list(PAPERS).index(match[1]),
                    int(match[2]),
                    match[3],
                    module.name.replace("_", "-"),
                )
            )
    return [name for *_, name in sorted(found)]


def experiment(identifier: str) -> Experiment:
    """The experiment of that name.

    Raises:
        InputError: there is none.
    """
    if identifier not in identifiers():
        raise InputError(f"there is no experiment {identifier!r}; `attsvm list` names them all")
    module = importlib.import_module(f"attsvm.experiments.{identifier.replace('-', '_')}")
    found: Experiment = module.EXPERIMENT
    return found
