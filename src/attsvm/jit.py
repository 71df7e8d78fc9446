"""Compiled kernels: numba with the options of the house, typed for mypy. Machine code is kept on
disk, see :mod:`attsvm.kernel_cache`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from llvmlite.binding import Linkage
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.dispatcher import Dispatcher

from attsvm.kernel_cache import keep

Function = TypeVar("Function", bound=Callable[..., Any])

_COPIES = (Linkage.linkonce_odr, Linkage.weak_odr)  # called functions; bodies of parallel loops


def compiled(function: Function, **options: Any) -> Function:
    """Compile a loop with these options of numba, without the GIL, and keep its machine code."""
    found = numba.njit(nogil=True, pipeline_class=_Compiler, **options)(function)
    if isinstance(found, Dispatcher):  # not with NUMBA_DISABLE_JIT
        keep(found)
        _same_for_constants(found)
    return cast("Function", found)


def kernel(function: Function) -> Function:
    """Compile a loop whose operations round in the order they are written."""
    return compiled(function)


def summing_kernel(function: Function) -> Function:
    """Compile a loop whose sums may be split over vector lanes and whose products may be fused into
    them.

    Other roundings than left to right, but the same in every call on one machine. Nothing else is
    relaxed.
    """
    return compiled(function, fastmath={"reassoc", "contract", "nsz"})


def fusing_kernel(function: Function) -> Function:
    """Like :func:`kernel`, but a product and a sum may round once instead of twice; division by
    zero gives what IEEE says.
    """
    return compiled(function, fastmath={"contract"}, error_model="numpy")


def _same_for_constants(found: Any) -> None:
    """Let kernels that call this one with a constant use the machine code for numbers of its type.

    Numba compiles a function again for each constant that it is called with, and for each that a
    variable of the caller begins with, used or not: up to a quarter of all compilation.
    """
    template, plain = found.get_call_template, cast("Any", numba.types.unliteral)

    def plain_template(arguments: Any, keywords: Any) -> Any:
        return template(
            tuple(plain(each) for each in arguments),
            {name: plain(each) for name, each in keywords.items()},
        )

    found.get_call_template = plain_template


class _Library(JITCodeLibrary):
    """The machine code of a kernel, which calls its own copies of the functions that it uses, and
    which nothing else can call.

    Numba marks copies as replaceable by what has the same name and was loaded first in this
    process. That may be the function itself or the copy of another kernel: the one rounds sums and
    products differently, the other may lack a result or an argument that its own kernel never
    looks at. So copies have no names (private and not internal, because the loader of machine code
    knows internal ones by their names, too).
    """

    def _optimize_final_module(self) -> None:
        for function in self._final_module.functions:
            # numba's pass over reference counts knows its functions by their names
            if function.linkage in _COPIES and not function.name.startswith("NRT_"):
                function.linkage = Linkage.private
        super()._optimize_final_module()  # type: ignore[no-untyped-call]


class _Compiler(Compiler):
    def compile_extra(self, func: Any) -> Any:
        if self.state.library is None:
            library: Any = _Library
            self.state.library = library(self.state.targetctx.codegen(), func.__qualname__)
            self.state.library.enable_object_caching()
        return super().compile_extra(func)  # type: ignore[no-untyped-call]
