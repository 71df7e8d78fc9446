"""Packages that only some installations have: imported where they are needed."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attsvm.errors import InputError, MissingExtraError
from attsvm.files import brief


def imported(module: str, purpose: str, package: str, extra: str) -> Any:
    """A module of an optional package.

    Raises:
        MissingExtraError: it is not installed; says for what ``purpose`` which ``extra`` is needed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(purpose, package, extra) from error


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
