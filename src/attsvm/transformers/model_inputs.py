"""Runs a Hugging Face model on texts or pictures, whatever kind of model it is."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attsvm.base.errors import InputError, UnavailableError
from attsvm.base.pretrained import told_of_model
from attsvm.base.printable import escaped
from attsvm.datasets.devices import refused_without_room

_TOKENIZER_FILES = ("tokenizer*", "vocab*", "*.model", "merges.txt", "spiece*", "bpe.codes")

_SMALLER = "option device_map auto, or fewer tokens of a text by option tokens"

OTHER_NAMES = ("demo",)
"""Names that are no models of transformers, and may be meant."""


def import_transformers() -> Any:
    """The package, silent."""
    try:
        import transformers
    except ImportError:
        raise InputError(
            "probing a Hugging Face model needs transformers: pip install 'attsvm[hub]'; or probe"
            " the model that comes with attsvm: attsvm probe demo"
        ) from None
    quiet: Any = transformers.utils.logging
    quiet.set_verbosity_error()
    quiet.disable_progress_bar()
    return transformers


def load_or_refuse(load: Callable[[str], Any], name: str) -> Any:
    """The result of a loader of transformers; all that it raises in one sentence."""
    with told_of_model(name, OTHER_NAMES):
        return load(name)


def load_model(
    name: str, device: str = "cpu", dtype: str | None = None, device_map: str | None = None
) -> nn.Module:
    """The model of a folder or hub name, in evaluation mode.

    Args:
        name: folder or hub name.
        device: where it runs.
        dtype: in which type; that of the saved weights when left out.
        device_map: how accelerate spreads it over devices, instead of ``device``.

    Raises:
        InputError: a model that cannot be loaded, or whose weights are not finite.
        UnavailableError: a device map without accelerate.
    """
    transformers = import_transformers()
    # the name of the option before transformers 4.56
    version = tuple(int(number) for number in transformers.__version__.split(".")[:2])
    key = "dtype" if version >= (4, 56) else "torch_dtype"
    options: dict[str, Any] = {key: "auto" if dtype is None else getattr(torch, dtype)}
    if device_map is not None:
        check_accelerate()
        options["device_map"] = device_map
    load = transformers.AutoModel.from_pretrained
    model: nn.Module = load_or_refuse(lambda model: load(model, **options), name).eval()
    if device_map is None:
        with refused_without_room(name, device, _SMALLER):
            model.to(device)
    # one weight that is not finite makes every logit behind it so; what a device map leaves on the
    # disk is checked by its keys and queries
    for key, value in model.named_parameters():
        if not value.is_meta and not torch.isfinite(value).all():
            raise InputError(f"the weights {key} of {name} hold NaN or infinity; save them again")
    return model


def check_accelerate() -> None:
    """Refuse a device map where nothing can follow it.

    Raises:
        UnavailableError: accelerate is not installed.
    """
    if importlib.util.find_spec("accelerate") is None:
        raise UnavailableError(
            "option device_map needs the package accelerate; install it with: pip install"
            " accelerate, or give option device"
        )


def input_device(model: nn.Module) -> torch.device:
    """The device on which a model takes its input: that of its first weights."""
    devices = (parameter.device for parameter in model.parameters() if not parameter.is_meta)
    return next(devices, torch.device("cpu"))


def load_tokenizer(name: str) -> Any:
    """The tokenizer of the folder, or of the one around a checkpoint, which often has none.

    Raises:
        InputError: there is none, or it cannot be loaded.
    """
    folder = Path(name)
    # without these files transformers makes an empty tokenizer, to which every text is unknown
    if folder.is_dir() and (folder / "config.json").is_file() and not _has_tokenizer(folder):
        if not (folder.name.startswith("checkpoint-") and _has_tokenizer(folder.parent)):
            raise InputError(
                f"{escaped(name)} holds no tokenizer; save it into the same folder, with"
                " tokenizer.save_pretrained"
            )
        folder = folder.parent
    loader = import_transformers().AutoTokenizer.from_pretrained
    return load_or_refuse(lambda model: loader(str(folder) if folder.is_dir() else model), name)


def load_image_processor(name: str) -> Any:
    """The processor that turns pictures into the pixels of this model.

    Raises:
        InputError: there is none, or it cannot be loaded.
    """
    folder = Path(name)
    if folder.is_dir() and not any(folder.glob("*processor_config.json")):
        raise InputError(
            f"{escaped(name)} holds no preprocessor_config.json, which says how pictures become"
            " pixels; save it with processor.save_pretrained"
        )
    return load_or_refuse(import_transformers().AutoImageProcessor.from_pretrained, name)


def _has_tokenizer(folder: Path) -> bool:
    return any(any(folder.glob(pattern)) for pattern in _TOKENIZER_FILES)


def part_for(model: nn.Module, name: str, input_name: str) -> nn.Module:
    """The part of a model that reads ``input_ids`` or ``pixel_values`` alone: the model itself, or
    one of the two towers of a model such as CLIP.

    Raises:
        InputError: a model that reads something else.
    """
    tower = {"input_ids": "text_model", "pixel_values": "vision_model"}[input_name]
    inputs = inspect.signature(model.forward).parameters
    # of two towers, each reads one of the two inputs
    if {"input_ids", "pixel_values"} <= set(inputs) and hasattr(model, tower):
        reader: nn.Module = getattr(model, tower)
        return reader
    if input_name in inputs:
        return model
    main_input = str(getattr(model, "main_input_name", "something else"))
    if main_input == "pixel_values":
        raise InputError(f"{escaped(name)} is a model of images; give them with option images")
    if main_input == "input_ids":
        raise InputError(f"{escaped(name)} is a model of texts; give them with option text")
    raise InputError(
        f"{escaped(name)} ({type(model).__name__}) reads {main_input}, and a probe gives texts or"
        " images"
    )


def run_model(model: nn.Module, name: str, batch: dict[str, Any]) -> None:
    """Run a model on a batch; an encoder with a decoder gets the same text for its decoder, after
    the token that begins one.

    Raises:
        InputError: the model cannot be run on this alone.
    """
    parameters = inspect.signature(model.forward).parameters
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    # a tokenizer may make more than the model takes, such as the type of each token
    device, dtype = input_device(model), getattr(model, "dtype", torch.float32)
    # numbers of tokens stay integers; pixels have the type of the weights
    arguments = {
        key: value.to(device, dtype) if value.is_floating_point() else value.to(device)
        for key, value in batch.items()
        if takes_all or key in parameters
    }
    config = getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in parameters:
        ids = arguments["input_ids"]
        start = ids.new_full((len(ids), 1), _decoder_start(config))
        arguments["decoder_input_ids"] = torch.cat([start, ids], dim=1)
    # a sentence for whatever goes wrong inside a model that is not ours
    try:
        with refused_without_room(name, device, _SMALLER):
            model(**arguments)
    except InputError:
        raise
    except Exception as error:  # a model may raise anything
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(
            f"{escaped(name)} ({type(model).__name__}) cannot be run on"
            f" {' and '.join(arguments)} alone ({escaped(lines[0])[:160].rstrip(' :.')});"
            " check that the folder holds its own tokenizer or processor"
        ) from error


def _decoder_start(config: Any) -> int:
    """The number of the token that begins a decoder's text."""
    for key in ("decoder_start_token_id", "bos_token_id", "pad_token_id", "eos_token_id"):
        value = getattr(config, key, None)
        if isinstance(value, int):
            return value
    return 0


def load_config(name: str) -> Any:
    """The configuration of a model; refused in one sentence where there is none."""
    return load_or_refuse(import_transformers().AutoConfig.from_pretrained, name)
