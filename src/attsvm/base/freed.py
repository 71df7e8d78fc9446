"""Memory that was freed."""

from __future__ import annotations

import contextlib
import ctypes


def return_freed_memory() -> None:
    """Give memory that was freed back to the system.

    The allocator of glibc keeps what lies below a block in use: after an encoder has read a
    thousand texts of different lengths, hundreds of megabytes. Where the C library cannot do it,
    nothing is done.
    """
    with contextlib.suppress(OSError, TypeError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
