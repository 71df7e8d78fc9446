"""The heads of a model that are known already, kept in the checkpoint of a run: a killed probe goes
on with those that are not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from attsvm.probe.audit import Found
from attsvm.probe.capture import Recording
from attsvm.probe.head_findings import Comparison, Head, Support
from attsvm.probe.texts import Reading
from attsvm.store import Stages


class FinishedHeads:
    """Heads of one model.

    A head that was compared with its solutions is written down at once, one of statistics alone
    with the last of its layer. Keys, queries and weights are not kept: with heads left, the model
    runs on the texts again.

    Args:
        stages: of the run.
        model: its number in the run.

    Attributes:
        found: what is known, by numbers of layer and head.
        layers: the numbers of the heads of each layer; empty before the model has run.
        words: per text its tokens as strings.
        reading: how much of the texts the model has read; ``None`` before it has run.
    """

    def __init__(self, stages: Stages, model: int) -> None:
        self._stages, self._name = stages, f"model-{model}"
        self.found: dict[tuple[int, int], Found] = {}
        self.layers: dict[int, list[int]] = {}
        self.words: list[list[str]] = []
        self.reading: Reading | None = None
        if (kept := self._load(self._name)) is None:
            return
        self.layers = dict(kept["layers"])
        self.words = kept["words"]
        self.reading = Reading(**{**kept["reading"], "cut": dict(kept["reading"]["cut"])})
        for layer in self.layers:
            for head, supports in self._load(self._stage(layer)) or ():
                one = _head(head), [_support(each) for each in supports]
                self.found[one[0].layer, one[0].head] = one

    @property
    def total(self) -> int:
        """How many heads the model has; 0 before it has run."""
        return sum(map(len, self.layers.values()))

    @property
    def left(self) -> list[int]:
        """Numbers of the layers of which a head is not known."""
        return [
            layer
            for layer, heads in self.layers.items()
            if any((layer, head) not in self.found for head in heads)
        ]

    def begin(self, recording: Recording, reading: Reading) -> None:
        """The model has run: these are its heads."""
        self.layers = {layer.number: layer.numbers for layer in recording.layers}
        self.words, self.reading = recording.words, reading
        told = {
            "layers": list(self.layers.items()),
            "words": self.words,
            "reading": {**asdict(reading), "cut": list(reading.cut.items())},
        }
        self._save(self._name, told, done=True)

    def keep(self, one: Found) -> None:
        """A head is known."""
        head, _ = one
        self.found[head.layer, head.head] = one
        own = [
            self.found[head.layer, number]
            for number in self.layers[head.layer]
            if (head.layer, number) in self.found
        ]
        done = len(own) == len(self.layers[head.layer])
        if done or head.fits:
            rows = [(asdict(each), list(map(asdict, supports))) for each, supports in own]
            self._save(self._stage(head.layer), rows, done=done)

    def _stage(self, layer: int) -> str:
        return f"{self._name}-layer-{layer}"

    def _save(self, stage: str, content: Any, *, done: bool) -> None:
        text = json.dumps(content).encode()
        self._stages.save(stage, {"json": np.frombuffer(text, dtype=np.uint8)}, done=done)

    def _load(self, stage: str) -> Any:
        arrays, _ = self._stages.load(stage)
        return None if arrays is None else json.loads(arrays["json"].tobytes())


def _head(row: Mapping[str, Any]) -> Head:
    fits = [Comparison(**_tuples({**fit, "nulls": _tuples(fit["nulls"])})) for fit in row["fits"]]
    return Head(**{**_tuples(row), "fits": tuple(fits)})


def _support(row: Mapping[str, Any]) -> Support:
    return Support(**_tuples(row))


def _tuples(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with the tuples that JSON has made lists of."""
    return {key: tuple(each) if isinstance(each, list) else each for key, each in row.items()}
