"""A second device on a machine that has none: its tensors hold their numbers on the processor, say
that they are elsewhere, and meet no others, as on a GPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map


class _Backend(backend_registration._DummyBackendModule):
    """What torch asks of a kind of device."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


NAME = "elsewhere:0"
"""What torch calls it, once this module is imported: for the rest of its process."""
backend_registration._setup_privateuseone_for_python_backend("elsewhere", _Backend())

_MEET_OTHERS = {"aten::copy_", "aten::_to_copy"}
_INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
"""Their indices may lie on the processor, as those of a GPU may."""


class ElsewhereTensor(Tensor):
    """A tensor of the second device; ``here`` has its numbers."""

    here: Tensor

    @staticmethod
    def __new__(cls, here: Tensor) -> ElsewhereTensor:
        elsewhere: Any = Tensor._make_wrapper_subclass(
            cls,
            here.shape,
            strides=here.stride(),
            storage_offset=here.storage_offset(),
            dtype=here.dtype,
            layout=here.layout,
            device=NAME,
        )
        elsewhere.here = here
        return elsewhere

    def tolist(self) -> Any:
        """As that of any device; torch refuses it to tensors of a class of their own."""
        return self.here.tolist()

    def data_ptr(self) -> int:
        """Where the numbers are: one storage, one place."""
        return self.here.data_ptr()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


class _SecondDevice(TorchDispatchMode):
    """Makes tensors that are asked for on the second device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


def _computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The result of an operation, on the device of its tensors or the one that it names.

    Raises:
        RuntimeError: its tensors are on both devices.
    """
    tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
    elsewhere = [isinstance(tensor, ElsewhereTensor) for tensor in tensors]
    name = func._schema.name
    # whether one tensor can take the other's numbers: never those of another device
    if name == "aten::_has_compatible_shallow_copy_type":
        return len(set(elsewhere)) == 1
    if name in _INDEXING:
        # what is indexed and what is put into it
        meeting = [isinstance(args[k], ElsewhereTensor) for k in (0, 2) if k < len(args)]
    else:
        # numbers without axes meet every tensor
        meeting = [e for tensor, e in zip(tensors, elsewhere, strict=True) if tensor.dim() or e]
    if name not in _MEET_OTHERS and len(set(meeting)) > 1:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but {name} found {NAME} and cpu"
        )
    target = kwargs.get("device")
    is_elsewhere = any(elsewhere) if target is None else torch.device(target).type == "elsewhere"
    if target is not None and is_elsewhere:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    # of the fused attentions none is for this device
    if name == "aten::_fused_sdp_choice":
        return 0
    result = func(*tree_map(_unwrapped, args), **tree_map(_unwrapped, kwargs))
    if not func._schema.returns:
        return None
    if func._schema.is_mutable and name.endswith("_"):
        return args[0]
    return tree_map(_wrapped, result) if is_elsewhere else result


def _unwrapped(value: Any) -> Any:
    return value.here if isinstance(value, ElsewhereTensor) else value


def _wrapped(value: Any) -> Any:
    return ElsewhereTensor(value) if isinstance(value, Tensor) else value


class _CopiesOfData(TorchFunctionMode):
    """Numbers of Python come to the second device by the processor: torch copies them unseen."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func not in (torch.tensor, torch.as_tensor, torch.asarray):
            return func(*args, **kwargs)
        device = kwargs.pop("device", None)
        made = func(*args, **kwargs)
        return made if device is None else made.to(device)


@contextlib.contextmanager
def second_device() -> Iterator[str]:
    """A block with a second device, and its name."""
    with _SecondDevice(), _CopiesOfData():
        yield NAME
