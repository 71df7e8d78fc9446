"""Bags in files, one file a bag: slides of patch features, molecules of conformers, documents.

Nothing is read but headers until instances are asked for, and then only the rows that are.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attsvm.base.errors import InputError
from attsvm.base.extras import imported
from attsvm.base.files import digest, is_folder
from attsvm.base.nearest import did_you_mean
from attsvm.base.printable import Compact, name_of
from attsvm.datasets.attention_data import FloatArray
from attsvm.datasets.bags import as_bags
from attsvm.datasets.readers import class_positions, known_positions
from attsvm.datasets.source import Dataset, Encoded, Learned, View, Views
from attsvm.datasets.tables import delimiter_of, name_of_label, read_rows

BAG_SUFFIXES = (".h5", ".hdf5", ".pt", ".npy", ".npz", ".safetensors", ".zarr")


@dataclass(frozen=True, eq=False)
class BagFile:
    """The instances of one bag, in a file that is open only while rows are read.

    NumPy's functions take it as an array (``np.asarray(bag)``); a slice reads its rows alone.

    Attributes:
        path: the file.
        key: the array in it; ``None`` in files of one array.
        shape: ``(T, d)``.
        dtype: of the rows that are read: the stored one; float32 where that is bfloat16.
    """

    path: Path
    key: str | None
    shape: tuple[int, int]
    dtype: np.dtype[Any]
    _leading: bool = field(repr=False)  # stored as (1, T, d), as some extractors do

    ndim = 2

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        with _stored_array(self.path, self.key) as (array, _):
            return _as_numpy(array[0, rows] if self._leading else array[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        rows = self[:]
        return rows if dtype is None else rows.astype(dtype, copy=False)


@dataclass(frozen=True, eq=False, repr=False)
class BagFolder(Compact, Sequence[BagFile]):
    """Bags of a folder with their labels, in the order of the table of labels.

    An estimator takes it with its labels and its groups: ``WitnessSVC().fit(slides)``.

    Attributes:
        names: identifier of each bag.
        bags: the bags.
        labels: ``(n,)`` labels, whole numbers where all are; ``None`` without a table.
        groups: ``(n,)`` what must not be torn apart, a patient; ``None`` where none is named.
        coordinates: for each bag the file of its ``(T, 2)`` coordinates, or ``None``.
        without_row: names of the files that the table of labels does not name; they are no bags.
    """

    names: tuple[str, ...]
    bags: tuple[BagFile, ...]
    labels: NDArray[Any] | None
    groups: NDArray[Any] | None
    coordinates: tuple[BagFile | None, ...]
    without_row: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.bags)

    def __getitem__(self, index: Any) -> Any:
        """A bag, or for a slice or an array of positions the folder of these bags."""
        if isinstance(index, (int, np.integer)):
            return self.bags[index]
        return self.take(np.arange(len(self))[index])

    def take(self, bags: ArrayLike) -> BagFolder:
        """The bags at these positions (integers or booleans), in this order."""
        positions = np.arange(len(self))[np.asarray(bags)]
        return BagFolder(
            tuple(self.names[i] for i in positions),
            tuple(self.bags[i] for i in positions),
            None if self.labels is None else self.labels[positions],
            None if self.groups is None else self.groups[positions],
            tuple(self.coordinates[i] for i in positions),
            self.without_row,
        )

    @property
    def d(self) -> int:
        """Features of an instance."""
        return self.bags[0].shape[1]

    def coordinates_of(self, bag: int) -> FloatArray | None:
        """``(T, 2)``: where the instances of a bag lie, where its file says so."""
        coordinates = self.coordinates[bag]
        return None if coordinates is None else np.asarray(coordinates[:], dtype=np.float64)


def read_bags(
    folder: str | Path,
    labels: str | Path | None = "labels.csv",
    *,
    id: str = "slide_id",
    label: str = "label",
    group: str | None = None,
    features: str = "features",
    coords: str = "coords",
    is_labelled: bool = True,
) -> BagFolder:
    r"""The bags of a folder, one file a bag, with labels from a table.

    Files are ``.h5`` or ``.hdf5`` (as feature extractors of slides write them), ``.pt`` (a tensor,
    or a dictionary of tensors; loaded with ``weights_only``), ``.npy``, ``.npz``, ``.safetensors``
    and ``.zarr``. Rows stay on disk and keep their type.

    Args:
        folder: where the files are.
        labels: a table with a row for each bag (``.csv``, ``.jsonl``, ...), looked for in the
            folder where it is no path of its own; ``None`` takes every file of the folder, without
            labels.
        id: the column that names the file of a bag, with or without its ending.
        label: the column of labels.
        group: the column of what must not be torn apart between training and test, such as the
            patient.
        features: the ``(T, d)`` array in files of several arrays.
        coords: the ``(T, 2)`` array of coordinates, where there is one.
        is_labelled: whether every bag of the table needs a label; without, a missing one is ``""``.

    Raises:
        InputError: no such folder, table or column; bags without a file, named twice, of several
            files or of different widths; rows without a label; a file that holds no such array.
        MissingExtraError: ``.h5`` without h5py, ``.zarr`` without zarr.

    Example:
        >>> import numpy as np
        >>> from pathlib import Path
        >>> from attsvm.datasets import read_bags
        >>> for name, rows in {"a": 3, "b": 2}.items():
        ...     np.save(f"{name}.npy", np.ones((rows, 4), np.float16))
        >>> _ = Path("labels.csv").write_text("slide_id,label,case_id\na,1,p1\nb,0,p2\n")
        >>> slides = read_bags(".", group="case_id")
        >>> slides.names, slides[0].shape, slides.labels.tolist(), slides.groups.tolist()
        (('a', 'b'), (3, 4), [1, 0], ['p1', 'p2'])
    """
    folder = Path(folder)
    if not is_folder(folder):
        raise InputError(f"{folder} is no folder; give the folder with one file for each bag")
    files = _bag_files(folder)
    if labels is None:
        if not files:
            raise InputError(f"{folder} holds no {', '.join(BAG_SUFFIXES)} files; give one per bag")
        table = dict.fromkeys(sorted(files), ("", ""))
    else:
        table = _read_labels(_table_path(folder, labels), id, label, group, is_labelled)
    paths = {name: _file_of(name, files) for name in table}
    missing = [name for name, path in paths.items() if path is None]
    if missing:
        raise InputError(
            f"{folder} has no file for {_listed(missing)} of {len(table)} rows; remove the rows or"
            f" add the files ({', '.join(BAG_SUFFIXES)})"
        )
    known = set(paths.values())
    without_row = [path.name for found in files.values() for path in found if path not in known]
    bags = [_header(path, features) for path in paths.values() if path is not None]
    # one bag of each number of features, the first one of the table
    widths = {bag.shape[1]: name for bag, name in zip(reversed(bags), reversed(table), strict=True)}
    if len(widths) > 1:
        (d, name), (other_d, other) = sorted(widths.items())[:2]
        raise InputError(
            f"bags of {folder} have different numbers of features: {name} has {d}, {other} has"
            f" {other_d}; give bags of one feature extractor"
        )
    return BagFolder(
        tuple(table),
        tuple(bags),
        None if labels is None else _numbers_where_all_are([value for value, _ in table.values()]),
        None if group is None or labels is None else np.array([g for _, g in table.values()]),
        tuple(_coordinates(bag, coords) for bag in bags),
        tuple(without_row),
    )


def holds_bags(folder: Path) -> bool:
    """Whether a folder holds files of bags."""
    return is_folder(folder) and any(
        path.suffix.lower() in BAG_SUFFIXES for path in folder.iterdir()
    )


def slides(
    folder: str | Path,
    *,
    labels: str | Path | None = None,
    id: str = "slide_id",
    label: str = "label",
    group: str | None = None,
    features: str = "features",
    coords: str = "coords",
    positive: str | None = None,
    classes: Sequence[str] | None = None,
) -> Dataset:
    """The bags of a folder as a data set, for ``attsvm fit``; for the other arguments see
    :func:`read_bags`. Their rows stay on disk.

    Args:
        folder: with one file a bag.
        labels: the table of labels; ``labels.csv`` by default, none with ``classes``.
        id: its column of identifiers.
        label: its column of labels.
        group: its column of patients.
        features: array in the files.
        coords: array in the files.
        positive: the label of the positive class; by default the one that sorts last.
        classes: names of the classes of a fitted model, in its order; labels may then be missing.

    Raises:
        InputError: what :func:`read_bags` refuses, one class only, or a label that is none of
            ``classes``.
    """
    table = (None if classes is not None else "labels.csv") if labels is None else labels
    bags = read_bags(
        folder,
        table,
        id=id,
        label=label,
        group=group,
        features=features,
        coords=coords,
        is_labelled=classes is None,
    )
    values = [""] * len(bags) if bags.labels is None else [str(v) for v in bags.labels.tolist()]
    if classes is None:
        positions, class_names = class_positions(values, Path(folder), positive)
    else:
        positions, class_names = known_positions(values, Path(folder), classes), tuple(classes)

    def encode(learned: Learned) -> Encoded:
        rows = replace(as_bags(bags), labels=None)
        return Encoded(rows, Views(len(bags), view), query="constant")

    def view(i: int) -> View:
        coordinates = bags.coordinates_of(i)
        return {"kind": "slide"} | ({} if coordinates is None else {"coordinates": coordinates})

    path = Path(folder)
    name = name_of(path.resolve().name)
    files = [[bag.path.name, bag.path.stat().st_size, *bag.shape] for bag in bags.bags]
    stamps = [int(bag.path.stat().st_mtime) for bag in bags.bags]
    provenance = {
        "source": name_of(path),
        "sha256": digest(files, list(values), stamps),
        "rows": len(bags),
        "columns": [id, label, group],
        "arrays": [features, coords],
    }
    if table is not None and (between := delimiter_of(_table_path(path, table))) != ",":
        provenance["delimiter"] = between
    notes = ["A slide is a file of patches; patches are rows of features, which stay on disk."]
    if bags.without_row:
        total = len(bags) + len(bags.without_row)
        have, are = ("has", "is") if len(bags.without_row) == 1 else ("have", "are")
        notes.append(
            f"{len(bags.without_row)} of {total} files {have} no row in {name_of(Path(str(table)))}"
            f" and {are} left out: {name_of(_listed(bags.without_row))}."
        )
    return Dataset(
        name,
        f"{name}, {len(bags)} slides",
        "slide",
        positions,
        class_names,
        provenance,
        notes,
        lambda train: {},
        encode,
        positive=None if positive is None else len(class_names) - 1,
        ids=bags.names,
    )


def _table_path(folder: Path, labels: str | Path) -> Path:
    """Where the table of labels is: here, or in the folder of the bags."""
    path = Path(labels)
    return path if path.exists() or path.is_absolute() else folder / path


def _bag_files(folder: Path) -> dict[str, list[Path]]:
    """The files of bags in a folder, by name without ending."""
    files: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in BAG_SUFFIXES:
            files.setdefault(path.stem, []).append(path)
    return files


def _file_of(name: str, files: dict[str, list[Path]]) -> Path | None:
    """The file of a bag, named with or without an ending (its own, or that of the slide)."""
    for stem in (name, Path(name).stem):
        paths = files.get(stem, [])
        # a file of just this name goes before others of the same stem
        found = [path for path in paths if path.name == name] or paths
        if len(found) > 1:
            names = " and ".join(path.name for path in found[:2])
            raise InputError(f"{name} has several files, {names}; keep one of them")
        if found:
            return found[0]
    return None


def _read_labels(
    path: Path, id: str, label: str, group: str | None, is_labelled: bool
) -> dict[str, tuple[str, str]]:
    """Label and group of each bag, by its identifier; a group that is not asked for is ``""``."""
    columns = {"id": id, "label": label} | ({} if group is None else {"group": group})
    table: dict[str, tuple[str, str]] = {}
    empty, repeated = [], []
    for where, fields in read_rows(path):
        # fields may differ from row to row, as those of JSON lines do
        for role, column in columns.items():
            if column not in fields and (is_labelled or role == "id"):
                raise InputError(
                    f"{path} has no column {column} ({role}); its columns are"
                    f" {', '.join(fields) or 'none'}{did_you_mean(column, fields)}"
                )
        name, *values = (name_of_label(fields.get(column), path) for column in columns.values())
        if not (name and (all(values) or not is_labelled)):
            empty.append(where.split()[-1])  # the number of the row
        if name in table:
            repeated.append(name)
        table[name] = values[0], values[1] if group is not None else ""
    if empty:
        raise InputError(
            f"{path}: rows {_listed(empty)} lack an identifier, a label or a group; fill or remove"
            " them"
        )
    if repeated:
        raise InputError(
            f"{path} names {_listed(repeated)} more than once; keep one row for each bag"
        )
    if not table:
        raise InputError(f"{path} holds no rows; give one for each bag")
    return table


def _listed(names: Sequence[object]) -> str:
    """The first five names, and how many more there are."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(map(str, names[:5])) + more


def _numbers_where_all_are(values: list[str]) -> NDArray[Any]:
    """Labels as whole numbers where all are, else as they stand."""
    try:
        return np.array([int(value) for value in values])
    except ValueError:
        return np.array(values)


def _header(path: Path, key: str) -> BagFile:
    """The bag of a file, of which only shape and type are read."""
    with _stored_array(path, key) as (array, is_named):
        shape = tuple(int(size) for size in array.shape)
        is_leading = len(shape) == 3 and shape[0] == 1
        if len(shape) != 2 and not is_leading:
            raise InputError(
                f"{path} holds an array of shape {shape}; a bag is (instances, features)"
            )
        if 0 in shape:
            raise InputError(f"{path} holds no instances (shape {shape}); remove the bag")
        # the type that rows are read in, which is not always the stored one
        sample = _as_numpy(array[0, :1] if is_leading else array[:1])
    if sample.dtype.kind not in "fiub":
        raise InputError(f"{path} holds {sample.dtype}; features are real numbers")
    return BagFile(
        path, key if is_named else None, (shape[-2], shape[-1]), sample.dtype, is_leading
    )


def _coordinates(bag: BagFile, key: str) -> BagFile | None:
    """The array of coordinates in the file of a bag, None where it holds none.

    Raises:
        InputError: not one pair of coordinates for each instance.
    """
    if bag.key is None:
        return None
    try:
        coordinates = _header(bag.path, key)
    except InputError:
        return None
    if coordinates.shape != (bag.shape[0], 2):
        raise InputError(
            f"{bag.path} has {bag.shape[0]} instances and coordinates of shape {coordinates.shape};"
            f" {key} is ({bag.shape[0]}, 2)"
        )
    return coordinates


@contextmanager
def _stored_array(path: Path, key: str | None) -> Iterator[tuple[Any, bool]]:
    """An array of a file, with ``shape`` and slices, while the file is open; and whether it is one
    of several that have names.

    Raises:
        InputError: a file that cannot be read, or holds no such array.
    """
    try:
        with _OPENERS[path.suffix.lower()](path, key) as (array, is_named):
            yield array, is_named
    except KeyError:
        raise InputError(f"{path} has no array {key!r}; name the array of features") from None
    except InputError:
        raise
    except (OSError, ValueError, RuntimeError, zipfile.BadZipFile) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{path} cannot be read ({reason:.200}); write it again") from error


@contextmanager
def _h5(path: Path, key: str | None) -> Iterator[tuple[Any, bool]]:
    h5py = imported("h5py", f"reading {path.name}", "h5py", "slides")
    with h5py.File(path, "r") as file:
        yield file[key], True


@contextmanager
def _torch(path: Path, key: str | None) -> Iterator[tuple[Any, bool]]:
    import torch

    content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    is_named = isinstance(content, dict)
    yield (content[key] if is_named else content), is_named


@contextmanager
def _npy(path: Path, key: str | None) -> Iterator[tuple[Any, bool]]:
    yield np.load(path, mmap_mode="r", allow_pickle=False), False


@contextmanager
def _npz(path: Path, key: str | None) -> Iterator[tuple[Any, bool]]:
    with np.load(path, allow_pickle=False) as content:
        yield content[key], True


@contextmanager
def _safetensors(path: Path, key: str | None) -> Iterator[tuple[Any, bool]]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as content:
        if key not in content.keys():  # noqa: SIM118 - it is no mapping
            raise KeyError(key)
        yield _SafeSlice(content.get_slice(key)), True


class _SafeSlice:
    """A tensor of a safetensors file, with ``shape`` and slices as arrays have them."""

    def __init__(self, tensors: Any) -> None:
        self.shape = tuple(tensors.get_shape())
        self._tensors = tensors

    def __getitem__(self, rows: Any) -> Any:
        return self._tensors[rows]


@contextmanager
def _zarr(path: Path, key: str | None) -> Iterator[tuple[Any, bool]]:
    zarr = imported("zarr", f"reading {path.name}", "zarr", "slides")
    content = zarr.open(str(path), mode="r")
    is_named = not hasattr(content, "shape")
    yield (content[key] if is_named else content), is_named


_OPENERS = {
    ".h5": _h5,
    ".hdf5": _h5,
    ".pt": _torch,
    ".npy": _npy,
    ".npz": _npz,
    ".safetensors": _safetensors,
    ".zarr": _zarr,
}


def _as_numpy(rows: Any) -> NDArray[Any]:
    """Rows as an array that no longer needs its file; bfloat16, which NumPy lacks, as float32."""
    if hasattr(rows, "detach"):
        rows = rows.detach().float() if str(rows.dtype) == "torch.bfloat16" else rows.detach()
        return np.array(rows.numpy())
    return np.array(rows)
