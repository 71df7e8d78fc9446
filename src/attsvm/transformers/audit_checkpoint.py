"""The audit of a model as far as it goes, saved in the checkpoint of a run: a killed probe goes on
with the heads that are left.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from attsvm.base.store import RunFolder
from attsvm.transformers.audit import Audit
from attsvm.transformers.drawing import Drawing
from attsvm.transformers.head_findings import Comparison, Head, Support
from attsvm.transformers.recording import Recording
from attsvm.transformers.texts import TextCoverage


class AuditCheckpoint:
    """The audit of one model as far as it goes.

    Statistics of all heads are written down once, then every head that was compared with its
    solutions. Keys, queries and weights are not kept: with heads left, the model runs on the texts
    again.

    Args:
        run_folder: of the run.
        model: its number in the run.

    Attributes:
        saved: the audit as far as it goes, and how much of the texts the model has read; ``None``
            before the model has run.
    """

    def __init__(self, run_folder: RunFolder, model: int) -> None:
        self._run_folder, self._name = run_folder, f"model-{model}"
        self.saved: tuple[Audit, TextCoverage] | None = None
        # no statistics yet: the model has to run
        if (content := self._load(self._name)) is None:
            return
        heads = [_read_head(row) for row in content["heads"]]
        drawings = [Drawing(**row) for row in content["drawings"]]
        recording = Recording(words=content["words"], differences=content["differences"])
        audit = Audit(heads, recording, content["threshold"], drawings)
        coverage = {**content["coverage"], "cut": dict(content["coverage"]["cut"])}
        self.saved = audit, TextCoverage(**coverage)
        # heads that were compared take the place of the pending ones
        for head in heads:
            if compared := self._load(self._stage(head)):
                audit.replace_head(_read_head(compared))

    def save_statistics(self, audit: Audit, coverage: TextCoverage) -> None:
        """Save the statistics of all heads, once the model has run."""
        content = {
            "heads": audit.heads,
            "drawings": audit.drawings,
            "words": audit.recording.words,
            "differences": audit.recording.differences,
            "threshold": audit.threshold,
            "coverage": {**vars(coverage), "cut": list(coverage.cut.items())},
        }
        self._save(self._name, content)

    def save_comparison(self, head: Head) -> None:
        """Save a head that was compared."""
        self._save(self._stage(head), head)

    def _stage(self, head: Head) -> str:
        return f"{self._name}-layer-{head.layer}-head-{head.head}"

    def _save(self, stage: str, content: Any) -> None:
        # stages hold arrays: the JSON is one of bytes
        # records are written as their attributes, without copies of their thousands of rows
        text = json.dumps(content, default=vars).encode()
        self._run_folder.save_stage(stage, {"json": np.frombuffer(text, dtype=np.uint8)}, done=True)

    def _load(self, stage: str) -> Any:
        arrays, _ = self._run_folder.load_stage(stage)
        return None if arrays is None else json.loads(arrays["json"].tobytes())


def _read_head(row: Mapping[str, Any]) -> Head:
    fits = [
        Comparison(**_with_tuples({**fit, "nulls": _with_tuples(fit["nulls"])}))
        for fit in row["fits"]
    ]
    support = tuple(Support(**_with_tuples(pair)) for pair in row["support"])
    return Head(**{**_with_tuples(row), "fits": tuple(fits), "support": support})


def _with_tuples(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with the tuples that JSON has made lists of."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
