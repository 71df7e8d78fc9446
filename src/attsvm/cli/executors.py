"""``--executor``: who computes the cells of a sweep."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from attsvm.errors import InputError, UnavailableError
from attsvm.extras import imported

_ANSWER = "20s"  # how long a scheduler is waited for
_DAY = 24 * 60  # minutes


@contextlib.contextmanager
def executor(text: str | None, folder: Path) -> Iterator[tuple[Any, int | None]]:
    """The executor that a user names, and how many calls it takes at a time where that is said.

    Args:
        text: ``local:8``, ``dask://HOST:PORT``, ``submitit:PARTITION`` or ``submitit:local``, with
            further options of ``submitit.AutoExecutor.update_parameters`` as in
            ``submitit:gpu?timeout_min=600&mem_gb=8``.
        folder: of the run; submitit keeps its scripts and logs beside it, in the folder of this
            name that ends in ``-submitit``.

    Raises:
        InputError: none of these.
        MissingExtraError: the package is not installed.
        UnavailableError: no scheduler answers there.
    """
    kind, _, place = (text or "local:").partition(":")
    if kind == "dask" and place.startswith("//"):
        with _client(f"tcp:{place}") as client:
            yield client.get_executor(pure=False), None
    elif kind == "submitit" and place:
        yield _submitit(place, folder.with_name(f"{folder.name}-submitit")), None
    elif kind == "local" and ((place.isdecimal() and int(place)) or text is None):
        yield None, int(place) if place else None
    else:
        raise InputError(
            f"--executor is {text!r}; give local:J with J processes, dask://HOST:PORT or"
            " submitit:PARTITION"
        )


@contextlib.contextmanager
def _client(address: str) -> Iterator[Any]:
    distributed = imported("distributed", "--executor dask://", "distributed", "dask")
    try:
        client = distributed.Client(address, timeout=_ANSWER, set_as_default=False)
    except (OSError, ValueError) as error:
        raise UnavailableError(
            f"no Dask scheduler answers at {address} ({error}); start one with dask scheduler, and"
            " give the address that it prints"
        ) from None
    with client:
        yield client


def _submitit(place: str, folder: Path) -> Any:
    submitit = imported("submitit", "--executor submitit:", "submitit", "submitit")
    partition, _, query = place.partition("?")
    options: dict[str, Any] = {
        name: int(value) if value.isdecimal() else value for name, value in parse_qsl(query)
    }
    if partition == "local":
        found = submitit.AutoExecutor(folder, cluster="local")
        options = {"timeout_min": _DAY, **options}
    else:
        try:
            found = submitit.AutoExecutor(folder, cluster="slurm")
        except RuntimeError as error:
            raise UnavailableError(
                f"SLURM is not here ({error}); call this on a machine that has sbatch, or give"
                " submitit:local"
            ) from None
        options = {"slurm_partition": partition, **options}
    try:
        found.update_parameters(**options)
    except (NameError, TypeError, ValueError) as error:
        raise InputError(
            f"--executor submitit:{place} has an option that submitit does not take ({error}); see"
            " submitit.AutoExecutor.update_parameters"
        ) from None
    return found
