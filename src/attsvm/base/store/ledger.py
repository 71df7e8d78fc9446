"""What a computation keeps in a folder, written down before it is written there: nothing else in
that folder is ever replaced or deleted.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from attsvm.base.errors import InputError
from attsvm.base.store.json_files import write_json

_PARTIAL = re.compile(r"\.(?P<stem>.+)\.[0-9a-f]{8}\.partial(?P<suffix>\.\w+)?")
"""Names of files that :func:`attsvm.base.files.atomic_write` has not finished."""


@dataclass(frozen=True)
class Ledger:
    """One computation's files in a folder.

    Attributes:
        path: the JSON file that holds this.
        format: names the kind of folder; a file without it is not a ledger.
        key: fingerprint of the computation.
        request: what the key is of.
        files: names of all files that were written or will be, relative to the folder, with ``/``.
        clearing: files of another computation that are about to be deleted.
    """

    path: Path
    format: str
    key: str
    request: Any
    files: frozenset[str] = frozenset()
    clearing: frozenset[str] = frozenset()

    @classmethod
    def read(cls, path: Path, kind: str) -> Ledger | None:
        """What is written in ``path``; None where that is not a ledger of this format."""
        content = json_object(path)
        if content is None or content.get("format") != kind:
            return None
        try:
            return cls(
                path,
                kind,
                str(content.get("key", "")),
                content.get("request"),
                _names(content.get("files", ())),
                _names(content.get("clearing", ())),
            )
        except (ValueError, TypeError):
            return None

    @property
    def folder(self) -> Path:
        """Where the files lie."""
        return self.path.parent

    def write(self) -> Ledger:
        """Put it on the disk."""
        told = {"format": self.format, "key": self.key, "request": self.request}
        lists = {"files": sorted(self.files), "clearing": sorted(self.clearing)}
        write_json(self.path, told | {name: each for name, each in lists.items() if each})
        return self

    def adding(self, names: Iterable[str]) -> Ledger:
        """With files that are going to be written, on the disk already.

        Raises:
            InputError: a file of this name is there and is not this computation's.
        """
        new = frozenset(names) - self.files
        self.check_free(new)
        return replace(self, files=self.files | new).write() if new else self

    def clear(self) -> Ledger:
        """Delete the files that were taken over and forget them."""
        self.remove(self.clearing)
        return replace(self, clearing=frozenset()).write()

    def check_free(self, names: Iterable[str]) -> None:
        """Refuse names under which something lies that is not this computation's.

        Raises:
            InputError: it names what is in the way.
        """
        for name in sorted(set(names) - self.files - self.clearing):
            if found := _obstacle(self.folder, name):
                raise in_the_way(found)

    def remove(self, names: Iterable[str]) -> None:
        """Delete those of the names that are files of this ledger, and the folders they leave
        empty. What somebody has put in their place, a link or a folder, stays.
        """
        known = self.files | self.clearing
        for name in sorted(set(names) & known):
            path = self.folder / name
            if _misplaced(self.folder, PurePosixPath(name).parent):
                continue
            if path.is_file() and not path.is_symlink():
                path.unlink(missing_ok=True)
            for parent in list(path.relative_to(self.folder).parents)[:-1]:
                with contextlib.suppress(OSError):  # something else is in it
                    (self.folder / parent).rmdir()

    def remove_unfinished(self) -> None:
        """Delete what a killed process had begun to write under one of the names."""
        names = self.files | self.clearing | {self.path.name}
        for inner in {PurePosixPath(name).parent for name in names}:
            if not _misplaced(self.folder, inner):
                remove_partials(self.folder / inner, {PurePosixPath(name).name for name in names})


def json_object(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None where there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def is_partial(name: str, of: Iterable[str]) -> bool:
    """Whether a file of this name is an unfinished write of one of these."""
    match = _PARTIAL.fullmatch(name)
    return match is not None and any(
        match["stem"] == PurePosixPath(each).stem[:100]
        and (match["suffix"] or "") == PurePosixPath(each).suffix
        for each in of
    )


def remove_partials(folder: Path, names: set[str]) -> None:
    """Delete unfinished writes of these files in this folder."""
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        if is_partial(path.name, names) and path.is_file() and not path.is_symlink():
            path.unlink(missing_ok=True)


def in_the_way(path: Path) -> InputError:
    """The refusal to write over ``path``."""
    return InputError(
        f"{path} is in the way: it would be written over and is not of this run; move it, or choose"
        " another folder"
    )


def _obstacle(folder: Path, name: str) -> Path | None:
    """What lies under this name, or where a folder on the way to it should be."""
    path = folder / name
    return _misplaced(folder, PurePosixPath(name).parent) or (
        path if path.is_symlink() or path.exists() else None
    )


def _misplaced(folder: Path, inner: PurePosixPath) -> Path | None:
    """The first of these folders that is something else: a link or a file."""
    for part in inner.parts:
        folder = folder / part
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            return folder
    return None


def _names(found: Any) -> frozenset[str]:
    """Names as a ledger lists them; refuses those that lead out of the folder."""
    for name in found:
        parts = PurePosixPath(name).parts
        if not parts or ".." in parts or parts[0] == "/" or "\\" in name or ":" in parts[0]:
            raise ValueError(name)
    return frozenset(found)
