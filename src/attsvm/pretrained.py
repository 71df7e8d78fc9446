"""Pretrained models by the folder or hub name that a user gives: what is said where none is."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from attsvm.errors import InputError
from attsvm.nearest import did_you_mean, file_meant
from attsvm.printable import escaped

_GIVE = "give a folder with a saved model (config.json, weights, tokenizer)"


def check_folder(model: str) -> None:
    """Refuse what can be no model without asking the hub.

    Raises:
        InputError: a file; or where there is no folder, a name that begins like a path or has more
            parts than a name of the hub.
    """
    path = Path(model)
    if path.is_file():
        raise InputError(f"{escaped(model)} is a file; {_GIVE}, or a hub name while online")
    if (model.startswith((".", "/", "~")) or model.count("/") > 1) and not path.is_dir():
        raise InputError(
            f"there is no folder {escaped(model)}; {_GIVE}, or a hub name while online"
            f"{file_meant(path)}"
        )


def not_loaded(model: str, error: Exception, others: Iterable[str] = ()) -> InputError:
    """The sentence for what a loader raised, in which ``others`` are names that may be meant."""
    path = Path(model)
    told = str(error).strip() or type(error).__name__
    reason = escaped(told.splitlines()[0])[:160].rstrip(" :.")
    if not path.is_dir():
        return InputError(
            f"there is no folder {escaped(model)}, and no model of this name came from the hub"
            f" ({reason}); {_GIVE}, or a hub name while online"
            f"{file_meant(path) or did_you_mean(model, others)}"
        )
    if not (path / "config.json").is_file():
        return InputError(f"{escaped(model)} holds no config.json; {_GIVE}")
    return InputError(
        f"the model in {escaped(model)} cannot be loaded ({reason}); save model and tokenizer"
        " again, with save_pretrained into one folder"
    )
