"""Work that is shared out among threads of our own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Part = TypeVar("Part")
Result = TypeVar("Result")


def threads() -> int:
    """How many threads work is shared out among."""
    import numba  # where it is needed: whoever imports the solvers need not wait for it

    return int(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]


def shared_out(
    work: Callable[[Part], Result], parts: Sequence[Part], most: int | None = None
) -> list[Result]:
    """``work`` on every part, on all cores or on as many as ``most``.

    Threads of our own over kernels without the GIL: numba's would compile them twice and set
    OpenMP's defaults for torch.
    """
    count = threads() if most is None else most
    if count == 1 or len(parts) < 2:
        return [work(part) for part in parts]
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, parts))
