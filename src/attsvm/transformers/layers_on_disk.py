"""Layers of a recording in a temporary file, one of them in memory at a time."""

from __future__ import annotations

import io
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from attsvm.base.errors import InputError
from attsvm.transformers.recording import Layer, Projection

_Block = tuple[int, int]
"""Offset and number of bytes of what was written at once."""


class LayersOnDisk(Mapping[int, Layer]):
    """Layers by their number, whose keys, queries, inputs and weights lie in a temporary file.

    The layer that was read last stays in memory. The file is gone with this object; where the
    system allows it, it has no name.

    Args:
        folder: of the file; the system's for temporary files when left out.
        block_size: bytes of texts that are gathered before they are written.
    """

    def __init__(self, folder: str | Path | None = None, block_size: int = 1 << 25) -> None:
        try:
            self._file = tempfile.TemporaryFile(prefix=".attsvm-", dir=folder)  # noqa: SIM115
        except OSError as error:
            raise InputError(
                f"{folder} takes no temporary file ({error.strerror}); give a folder that is there"
                " and can be written to"
            ) from None
        weakref.finalize(self, self._file.close)
        self._block_size = block_size
        self._without_texts: dict[int, Layer] = {}
        self._texts: dict[int, list[_Block]] = {}
        self._weights: dict[int, _Block] = {}
        self._latest: Layer | None = None

    def move(self, layers: Mapping[int, Layer], at_once: bool = False) -> None:
        """Move the texts of layers into the file, which leaves the layers without; as long as they
        are few, only if ``at_once``.
        """
        if not at_once and sum(map(_size_of_texts, layers.values())) < self._block_size:
            return
        self._latest = None
        for number, layer in layers.items():
            maps, inputs = layer.projection, None
            if maps is None:
                self._weights.pop(number, None)
            else:
                inputs = maps.key_inputs, maps.query_inputs
                weights = maps.W_K, maps.W_Q, maps.b_Q
                if number not in self._weights:
                    # clones: of a view the whole storage would be written
                    self._weights[number] = self._write([matrix.clone() for matrix in weights])
                empty = maps.W_K.new_empty(0)
                layer.projection = Projection(empty, empty, empty, [], [])
            self._texts.setdefault(number, []).append(self._write((layer.texts, inputs)))
            layer.texts.clear()
            self._without_texts[number] = replace(layer, texts=[], projection=None)

    def _write(self, content: Any) -> _Block:
        buffer = io.BytesIO()
        torch.save(content, buffer)
        return self._file.seek(0, io.SEEK_END), self._file.write(buffer.getbuffer())

    def _read(self, block: _Block) -> Any:
        offset, size = block
        self._file.seek(offset)
        # the file has no other writer, so nothing in it is a stranger's code
        return torch.load(io.BytesIO(self._file.read(size)), weights_only=False)

    def __getitem__(self, number: int) -> Layer:
        if self._latest is not None and self._latest.number == number:
            return self._latest
        layer = replace(self._without_texts[number], texts=[])
        self._latest = None  # before another one takes memory
        if number in self._weights:
            W_K, W_Q, b_Q = self._read(self._weights[number])
            layer.projection = Projection(W_K, W_Q, b_Q, [], [])
        for block in self._texts[number]:
            texts, inputs = self._read(block)
            layer.texts.extend(texts)
            if layer.projection is not None:
                layer.projection.key_inputs.extend(inputs[0])
                layer.projection.query_inputs.extend(inputs[1])
        self._latest = layer
        return layer

    def __iter__(self) -> Iterator[int]:
        return iter(self._without_texts)

    def __len__(self) -> int:
        return len(self._without_texts)


def _size_of_texts(layer: Layer) -> int:
    """Bytes of keys, queries and their inputs."""
    arrays = [array for text in layer.texts for array in (text.queries, text.keys)]
    if layer.projection is not None:
        arrays += [*layer.projection.key_inputs, *layer.projection.query_inputs]
    return sum(array.nbytes for array in arrays)
