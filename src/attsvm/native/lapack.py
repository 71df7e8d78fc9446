"""SciPy's BLAS and LAPACK without the rest of ``scipy.linalg``, whose import takes longer than most
programmes take to be solved.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import sys
import threading
from ctypes import c_char_p, c_void_p
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any


@functools.cache
def lapack_routine(name: str) -> Any:
    """SciPy's function for a routine of BLAS or LAPACK, ``dpotrf`` for instance; the arguments are
    those of :mod:`scipy.linalg.blas` and :mod:`scipy.linalg.lapack`.
    """
    table = _extension("_flapack")
    return getattr(table if hasattr(table, name) else _extension("_fblas"), name)


@functools.cache
def lapack_address(name: str) -> int:
    """The address of a routine of SciPy's BLAS or LAPACK, ``dgemm`` for instance."""
    blas, lapack = (_extension(f"cython_{library}").__pyx_capi__ for library in ("blas", "lapack"))
    # SciPy publishes its routines as capsules: a pointer beside the text of its C type
    python = ctypes.pythonapi
    name_of = ctypes.PYFUNCTYPE(c_char_p, ctypes.py_object)(("PyCapsule_GetName", python))
    pointer_of = ctypes.PYFUNCTYPE(c_void_p, ctypes.py_object, c_char_p)(
        ("PyCapsule_GetPointer", python)
    )
    capsule = blas[name] if name in blas else lapack[name]
    pointer: int = pointer_of(capsule, name_of(capsule))
    return pointer


_LOADING = threading.RLock()
"""Held while a module is loaded: two threads must not execute it side by side."""


def _extension(name: str) -> Any:
    """:func:`_load_extension`, by one thread at a time."""
    with _LOADING:
        return _load_extension(name)


@functools.cache
def _load_extension(name: str) -> Any:
    """The compiled module ``scipy.linalg.NAME``; read from SciPy's folder where the package
    ``scipy.linalg`` is not imported yet, and imported with it where it is not found there.
    """
    import scipy

    path = f"scipy.linalg.{name}"
    if "scipy.linalg" not in sys.modules:
        spec = PathFinder.find_spec(path, [str(Path(scipy.__file__).parent / "linalg")])
        if spec is not None and spec.loader is not None:
            module = module_from_spec(spec)
            spec.loader.exec_module(module)
            # an import of the package later registers the module itself
            sys.modules.pop(path, None)
            return module
    return importlib.import_module(path)
