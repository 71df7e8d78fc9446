"""Selections on disk, read a block of sequences at a time."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from attsvm.base.errors import InputError
from attsvm.base.files import Array, brief, is_folder, mapped_array

_SHARD = re.compile(r"(.+?)[-_.](\d+)")

Arrays = dict[str, Any]


class MappedSelections:
    r"""The margins :math:`(x_{i\alpha_i}-x_{it})^\top Wz_i\ge1` of arrays in a folder, for
    :meth:`attsvm.Margins.from_blocks`.

    The arrays are those of :meth:`attsvm.AttentionData.read`: ``X`` ``(n, T, d_x)``, and where they
    are there ``Z`` ``(n, d_z)`` (else the first visible token), ``mask`` ``(n, T)``, and
    ``selected`` ``(n,)``. An array is ``X.npy``, or shards along the sequences, ``X-0.npy``,
    ``X-1.npy`` and so on. Only a block is read at a time.

    Args:
        path: the folder.
        selected: the name of the array of selected tokens, or a function that makes them for the
            arrays of a block: ``(b,)`` positions.
        block_bytes: memory of the tokens of a block in float64, at least one sequence's; 16 MiB are
            read in hundredths of a second and leave room for their products.

    Attributes:
        count: how many blocks there are.
        n: how many sequences.
        names: of the arrays.

    Raises:
        InputError: no folder, no arrays or no ``X``, arrays of different numbers of sequences, or
            what :func:`attsvm.base.files.mapped_array` refuses.

    Example:
        >>> from pathlib import Path
        >>> import numpy as np
        >>> import attsvm
        >>> X = np.random.default_rng(0).normal(size=(50, 4, 100)).astype(np.float32)
        >>> Path("shards").mkdir()
        >>> np.save("shards/X.npy", X)
        >>> np.save("shards/selected.npy", np.zeros(50, dtype=int))
        >>> blocks = attsvm.margins.MappedSelections("shards")
        >>> blocks.count, blocks.names
        (1, ['X', 'selected'])
        >>> attsvm.max_margin_blocks(attsvm.Margins.from_blocks(blocks)).status
        'optimal'
    """

    def __init__(
        self,
        path: str | Path,
        selected: str | Callable[[Arrays], ArrayLike] = "selected",
        *,
        block_bytes: int = 1 << 24,
    ) -> None:
        self.path, self.selected = Path(path), selected
        self._shards = _find_shards(self.path)
        self.names = sorted(self._shards)
        if "X" not in self._shards:
            raise InputError(
                f"{path} has no array X (it holds {brief(', '.join(self.names)) or 'no arrays'});"
                " store tokens (sequences, tokens, features) as X"
            )
        if isinstance(selected, str) and selected not in self._shards:
            raise InputError(
                f"{path} has no array {selected} of selected tokens (it holds"
                f" {brief(', '.join(self.names))}); store one integer per sequence"
            )
        for shard in self._shards["X"]:
            if len(shard.shape) != 3:
                raise InputError(
                    f"X of {shard.path} has shape {shard.shape}; it must be (sequences, tokens,"
                    " features)"
                )
        self.n = total = _sequence_count(self._shards["X"])
        of_sequences = {"Z", "y", "mask", selected} & set(self.names)
        for name in sorted(map(str, of_sequences)):
            count = _sequence_count(self._shards[name])
            if count != total:
                raise InputError(
                    f"{path} holds {total} sequences of X and {count} of {name}; store one per"
                    " sequence"
                )
        self._ranges = _block_ranges(self._shards["X"], block_bytes)
        if not self._ranges:
            raise InputError(f"X of {path} holds no sequences; give at least one")
        self.count = len(self._ranges)

    def whole(self, name: str) -> Any:
        """A small array that does not belong to the sequences."""
        return np.concatenate([np.array(shard.read()) for shard in self._shards[name]])

    def __call__(self, k: int) -> tuple[Any, ...]:
        """Block ``k``: tokens, queries, selected tokens, and the mask where there is one."""
        first, last = self._ranges[k]
        arrays = {
            name: self._read(name, first, last)
            for name in ("X", "Z", "y", "mask", self.selected)
            if isinstance(name, str) and name in self._shards
        }
        X = arrays["X"]
        mask = arrays.get("mask")
        if mask is not None:
            mask = arrays["mask"] = mask.astype(np.bool_)
        if "Z" not in arrays:
            first_visible = (
                np.zeros(len(X), dtype=np.int64) if mask is None else np.argmax(mask, axis=1)
            )
            arrays["Z"] = X[np.arange(len(X)), first_visible]
        chosen = arrays[self.selected] if isinstance(self.selected, str) else self.selected(arrays)
        block = (X, arrays["Z"], chosen)
        return block if mask is None else (*block, mask)

    def _read(self, name: str, first: int, last: int) -> Any:
        """The rows of an array that belong to the sequences from ``first`` to before ``last``."""
        pieces, begin = [], 0
        for shard in self._shards[name]:
            end = begin + shard.shape[0]
            if first < end and begin < last:
                pieces.append(shard.read()[max(first - begin, 0) : last - begin])
            begin = end
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


class _Shard(NamedTuple):
    """An ``.npy`` file; other processes are sent its name and not its numbers."""

    path: Path
    shape: tuple[int, ...]

    def read(self) -> Array:
        """The array, mapped: only what is used is read."""
        return mapped_array(self.path)


def _find_shards(folder: Path) -> dict[str, list[_Shard]]:
    """The arrays of a folder, the shards of each in the order of their numbers."""
    if not is_folder(folder):
        raise InputError(
            f"{folder} is not a folder; save each array with numpy.save as an .npy file in one"
        )
    by_number: dict[str, dict[int, _Shard]] = {}
    for path in sorted(folder.glob("*.npy")):
        numbered = _SHARD.fullmatch(path.stem)
        name, number = (numbered[1], int(numbered[2])) if numbered else (path.stem, -1)
        shards = by_number.setdefault(name, {})
        if number in shards or (shards and -1 in (number, *shards)):
            raise InputError(
                f"{folder} holds {name} twice, in {shards[next(iter(shards))].path.name} and"
                f" {path.name}; keep one of them"
            )
        shards[number] = _Shard(path, mapped_array(path).shape)
    return {name: [shards[k] for k in sorted(shards)] for name, shards in by_number.items()}


def _sequence_count(shards: list[_Shard]) -> int:
    """The number of rows of all shards together."""
    return sum(shard.shape[0] if shard.shape else 0 for shard in shards)


def _block_ranges(shards: list[_Shard], block_bytes: int) -> list[tuple[int, int]]:
    """The first sequence of every block and the one past its last: a block lies in one shard."""
    ranges, begin = [], 0
    for shard in shards:
        n, T, d = shard.shape
        size = max(1, block_bytes // max(8 * T * d, 1))
        ranges += [(begin + k, begin + min(k + size, n)) for k in range(0, n, size)]
        begin += n
    return ranges
