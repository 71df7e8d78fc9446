"""Audits of one model at several steps of its training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attsvm.base.errors import InputError
from attsvm.base.extras import data_frame
from attsvm.transformers.audit import Audit
from attsvm.transformers.audit_folder import save_audit
from attsvm.transformers.head_findings import Head


@dataclass(eq=False)
class Checkpoints:
    """Every figure of an audit over the steps of a training.

    Attributes:
        audits: by step, ascending.

    Raises:
        InputError: no audits, or audits of models with different heads.
    """

    audits: Mapping[int, Audit]

    def __post_init__(self) -> None:
        if not self.audits:
            raise InputError("there are no checkpoints; give a dictionary of audits by step")
        self.audits = dict(sorted(self.audits.items()))
        # curves join heads by layer and number
        first, *others = self.audits
        for step in others:
            if _head_keys(self.audits[step]) != _head_keys(self.audits[first]):
                raise InputError(
                    f"the audits of steps {first} and {step} have different heads; checkpoints must"
                    " be of one model"
                )

    def head(self, layer: int, head: int) -> dict[int, Head]:
        """One head by step.

        Raises:
            InputError: a head that is not there.
        """
        return {step: audit.head(layer, head) for step, audit in self.audits.items()}

    def table(self) -> list[dict[str, Any]]:
        """One flat row per step and head, for a data frame or a file."""
        return [
            {"step": step, **row} for step, audit in self.audits.items() for row in audit.table()
        ]

    def to_pandas(self) -> Any:
        """:meth:`table` as a data frame.

        Raises:
            UnavailableError: pandas is not installed.
        """
        return data_frame(self.table(), "table()")

    def save(self, folder: str | Path, title: str = "", *, overwrite: bool = False) -> Path:
        """Write ``run.json`` and ``report.html``, see :meth:`~attsvm.transformers.Audit.save`; the
        page shows the last checkpoint, and curves over steps for every head.
        """
        return save_audit(self.audits, self.table(), Path(folder), title, overwrite)


def _head_keys(audit: Audit) -> list[tuple[int, int]]:
    """Layer and number of every head."""
    return [(head.layer, head.head) for head in audit.heads]
