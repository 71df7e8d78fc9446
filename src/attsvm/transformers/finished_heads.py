"""The heads of a model that are known already, kept in the checkpoint of a run: a killed probe goes
on with those that are not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from attsvm.base.store import RunFolder
from attsvm.transformers.audit import Audit
from attsvm.transformers.capture import Recording
from attsvm.transformers.drawing import Drawing
from attsvm.transformers.head_findings import Comparison, Head, Support
from attsvm.transformers.texts import Reading


class FinishedHeads:
    """The audit of one model as far as it goes.

    Statistics of all heads are written down once, then every head that was compared with its
    solutions. Keys, queries and weights are not kept: with heads left, the model runs on the texts
    again.

    Args:
        run: in whose folder they are kept.
        model: its number in the run.

    Attributes:
        known: what is known of the heads, and how much of the texts the model has read; ``None``
            before the model has run.
    """

    def __init__(self, run: RunFolder, model: int) -> None:
        self._run, self._name = run, f"model-{model}"
        self.known: tuple[Audit, Reading] | None = None
        if (kept := self._load(self._name)) is None:
            return
        heads = [_head(row) for row in kept["heads"]]
        drawn = [Drawing(**each) for each in kept["drawings"]]
        audit = Audit(heads, Recording(words=kept["words"]), kept["threshold"], drawn)
        self.known = audit, Reading(**{**kept["reading"], "cut": dict(kept["reading"]["cut"])})
        for head in heads:
            if one := self._load(self._stage(head)):
                audit.put(_head(one[0]), [Support(**_tuples(each)) for each in one[1]])

    def begin(self, audit: Audit, reading: Reading) -> None:
        """The model has run, and these are the statistics of its heads."""
        told = {
            "heads": list(map(asdict, audit.heads)),
            "drawings": list(map(vars, audit.drawings)),
            "words": audit.recording.words,
            "threshold": audit.threshold,
            "reading": {**asdict(reading), "cut": list(reading.cut.items())},
        }
        self._save(self._name, told)

    def keep(self, head: Head, supports: Sequence[Support]) -> None:
        """A head was compared."""
        self._save(self._stage(head), [asdict(head), list(map(asdict, supports))])

    def _stage(self, head: Head) -> str:
        return f"{self._name}-layer-{head.layer}-head-{head.head}"

    def _save(self, stage: str, content: Any) -> None:
        text = json.dumps(content).encode()
        self._run.save_stage(stage, {"json": np.frombuffer(text, dtype=np.uint8)}, done=True)

    def _load(self, stage: str) -> Any:
        arrays, _ = self._run.load_stage(stage)
        return None if arrays is None else json.loads(arrays["json"].tobytes())


def _head(row: Mapping[str, Any]) -> Head:
    fits = [Comparison(**_tuples({**fit, "nulls": _tuples(fit["nulls"])})) for fit in row["fits"]]
    return Head(**{**_tuples(row), "fits": tuple(fits)})


def _tuples(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with the tuples that JSON has made lists of."""
    return {key: tuple(each) if isinstance(each, list) else each for key, each in row.items()}
