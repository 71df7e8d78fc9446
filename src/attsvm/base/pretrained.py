"""Pretrained models of transformers, by the folder or hub name that a user gives: what is refused
of them, in sentences.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from attsvm.base.errors import InputError
from attsvm.base.nearest import did_you_mean, file_meant
from attsvm.base.printable import escaped, name_of

DTYPES = ("float32", "bfloat16", "float16")
"""Floating-point types in which a pretrained model may run."""

_GIVE = "give a folder with a saved model (config.json, weights, tokenizer)"


def check_folder(model: str) -> None:
    """Refuse what can be no model without asking the hub.

    Raises:
        InputError: a file; or where there is no folder, a name that begins like a path, has more
            parts than a name of the hub, or is nearly that of a saved model in this folder.
    """
    path = Path(model)
    if path.is_file():
        raise InputError(f"{escaped(model)} is a file; {_GIVE}, or a hub name while online")
    if (model.startswith((".", "/", "~")) or model.count("/") > 1) and not path.is_dir():
        raise InputError(
            f"there is no folder {escaped(model)}; {_GIVE}, or a hub name while online"
            f"{file_meant(path)}"
        )
    # one that is nearly the name of a saved model here is no reason to wait for the hub
    saved = (name_of(config.parent.name) for config in Path().glob("*/config.json"))
    if "/" not in model and not path.is_dir() and (meant := did_you_mean(model, saved, 0.8)):
        raise InputError(
            f"there is no folder {escaped(model)}; a model of the hub with a name so near is given"
            f" as OWNER/NAME{meant}"
        )


@contextmanager
def told_of_model(model: str, others: Iterable[str] = ()) -> Iterator[None]:
    """A block that loads a pretrained model: its errors become one sentence, in which ``others``
    are names that may be meant.

    Raises:
        InputError: anything went wrong: transformers, the hub client and the network raise without
            a common family.
    """
    try:
        _ask_hub(model)
        yield
    except Exception as error:
        raise InputError(_why(model, error, others)) from error


def _ask_hub(model: str) -> None:
    """One request for a model that is neither here nor in the cache: where nothing answers, loaders
    repeat theirs for half a minute.
    """
    from huggingface_hub import (
        constants,
        get_hf_file_metadata,
        hf_hub_url,
        try_to_load_from_cache,
    )
    from huggingface_hub.errors import EntryNotFoundError

    if Path(model).is_dir() or constants.HF_HUB_OFFLINE:
        return
    if not isinstance(try_to_load_from_cache(model, "config.json"), str):
        with suppress(EntryNotFoundError):  # as of adapters, which loaders know
            get_hf_file_metadata(hf_hub_url(model, "config.json"))


def _why(model: str, error: Exception, others: Iterable[str]) -> str:
    path = Path(model)
    message = str(error).strip() or type(error).__name__
    reason = escaped(message.splitlines()[0])[:160].rstrip(" :.")
    if not path.is_dir():
        return (
            f"there is no folder {escaped(model)}, and no model of this name came from the hub"
            f" ({reason}); {_GIVE}, or a hub name while online"
            f"{file_meant(path) or did_you_mean(model, others)}"
        )
    if not (path / "config.json").is_file():
        return f"{escaped(model)} holds no config.json; {_GIVE}"
    return (
        f"the model in {escaped(model)} cannot be loaded ({reason}); save model and tokenizer"
        " again, with save_pretrained into one folder"
    )


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
