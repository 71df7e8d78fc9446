"""Pretrained models of transformers: what is refused of them, in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attsvm.errors import InputError
from attsvm.files import brief
from attsvm.nearest import file_meant


@contextmanager
def told_of_model(name: str) -> Iterator[None]:
    """What goes wrong while a pretrained model is loaded, in a sentence.

    Raises:
        InputError: anything went wrong: transformers, the hub client and the network raise without
            a common family.
    """
    try:
        yield
    except Exception as error:
        why = brief(str(error).strip() or type(error).__name__)
        online = "" if Path(name).is_dir() else ", or a hub name while online"
        raise InputError(
            f"the model {name} cannot be loaded ({why}); give a folder with config.json, weights"
            f" and tokenizer{online}"
        ) from error


def check_tokeniser(tokenizer: Any, model: str) -> None:
    """Refuse a tokeniser whose sub-words have no places.

    Raises:
        InputError: it is not a fast one.
    """
    if not tokenizer.is_fast:
        raise InputError(
            f"the tokeniser of {model} does not tell where its sub-words stand; choose a model with"
            " a fast tokeniser"
        )


def check_folder(model: str) -> None:
    """Refuse a name that can only be a folder's, where there is none.

    Raises:
        InputError: it begins like a path, or has more parts than a name of the hub.
    """
    path = Path(model)
    if (model.startswith((".", "/", "~")) or model.count("/") > 1) and not path.is_dir():
        raise InputError(
            f"there is no folder {model}; give a folder with a saved model, or a hub name while"
            f" online{file_meant(path)}"
        )
