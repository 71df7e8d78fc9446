"""Which experiments there are, without importing them."""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import replace
from pathlib import Path

from attsvm import InputError
from attsvm.base.nearest import did_you_mean
from attsvm_papers.kit.captions import text_of_file
from attsvm_papers.kit.experiment import Experiment, read_experiment

PAPERS = {
    "mmts": "Max-Margin Token Selection in Attention Mechanism",
    "tfsvm": "Transformers as Support Vector Machines",
    "md": "Optimizing Attention with Mirror Descent",
    "ntp": "Non-asymptotic Convergence of Training Transformers for Next-token Prediction",
    "graph": "Mechanics of Next Token Prediction with Self-Attention",
    "rates": "Implicit Bias and Fast Convergence Rates for Self-attention",
    "factored": "Implicit Regularization of Gradient Flow on One-Layer Softmax Attention",
    "spectral": "Implicit Bias of Spectral Descent and Muon",
    "benign": "Benign Overfitting in Single-Head Attention",
    "association": "One-Layer Transformers are Provably Optimal for In-context Reasoning",
    "regular": "How Transformers Learn Regular Language Recognition",
    "markov": "From Self-Attention to Markov Models",
    "context": "Generalization or Hallucination? Out-of-Context Reasoning in Transformers",
    "embeddings": "Attention with Trained Embeddings Provably Selects Important Tokens",
    "selective": "Selective Attention",
    "topics": "Dynamics of Spontaneous Topic Changes",
    "heads": "The support vector machine inside trained heads (a study of this project)",
    "multihead": "Several heads and layers, starts and noise (a study of this project)",
    "pruning": "Attention that survives pruning (a study of this project)",
    "bias": "Which margin an optimiser maximises (a study of this project)",
}
"""Key of each paper on the command line, and its title."""

_FIGURE = re.compile(r"e(\d+)([a-z]?)_\w+")
_ROOT = Path(__file__).parents[1]


def identifiers(paper: str | None = None) -> list[str]:
    """Names of all experiments, or of one paper's, in the papers' order.

    Raises:
        InputError: there is no such paper.
    """
    if paper is not None and paper not in PAPERS:
        suggestion = did_you_mean(paper, PAPERS)
        raise InputError(
            f"there is no paper {paper!r}; choose from: {', '.join(PAPERS)}{suggestion}"
        )
    return [name for name in _files() if paper in (None, name.partition("-")[0])]


def experiment(identifier: str) -> Experiment:
    """The experiment of that name, or the one that a ``.py`` file of the reader's describes.

    Raises:
        InputError: there is none.
    """
    if identifier.endswith(".py"):
        return _of_file(Path(identifier))
    path = _files().get(identifier)
    if path is None:
        if identifier in PAPERS:
            raise InputError(
                f"{identifier} is a paper, not an experiment; ask for it with option paper, or for"
                f" one such as {identifiers(identifier)[0]}"
            )
        suggestion = did_you_mean(identifier, _files())
        raise InputError(
            f"there is no experiment {identifier!r}; `attsvm list` names them all{suggestion}"
        )
    return read_experiment(
        identifier, importlib.import_module(f"attsvm_papers.{path.parent.name}.{path.stem}")
    )


def _of_file(path: Path) -> Experiment:
    path = path.resolve()
    if not path.is_file():
        raise InputError(f"there is no file {path}; give the path of a figure's module")
    name = f"attsvm_own_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    return replace(read_experiment(path.stem.replace("_", "-"), module), file=str(path))


def titles() -> dict[str, str]:
    """Titles of all experiments by their names; no figure is imported for it."""
    return {name: text_of_file(path).title for name, path in _files().items()}


def _files() -> dict[str, Path]:
    """Files of the experiments by their names: ``tfsvm/e3_local_convergence.py`` is ``tfsvm-3``."""
    figures = []
    for order, paper in enumerate(PAPERS):
        for path in (_ROOT / paper).glob("e*.py"):
            if match := _FIGURE.fullmatch(path.stem):
                name = f"{paper}-{match[1]}{match[2]}"
                figures.append((order, int(match[1]), match[2], name, path))
    return {name: path for *_, name, path in sorted(figures)}
