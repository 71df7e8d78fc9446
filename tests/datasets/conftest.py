"""A small corpus of the tests' own, in every kind of file."""

from __future__ import annotations

import gzip
import json
import lzma

import numpy as np
import pytest

GOOD = ["bright", "clever", "funny", "lovely", "moving", "tender", "vivid", "warm"]
BAD = ["clumsy", "dull", "empty", "lazy", "noisy", "stale", "tired", "weak"]
PLAIN = ["actor", "camera", "city", "ending", "film", "music", "plot", "scene", "story", "train"]


def corpus(n=120, seed=0):
    """Sentences whose class shows in a few words; as many of either class."""
    rng = np.random.default_rng(seed)
    texts, labels = [], []
    for i in range(n):
        label = i % 2
        chosen = [*rng.choice(PLAIN, 6), *rng.choice(GOOD if label else BAD, 2)]
        texts.append("The " + " ".join(rng.permutation(chosen)) + " .")
        labels.append(label)
    return texts, labels


@pytest.fixture
def texts():
    return corpus()


@pytest.fixture
def write(tmp_path):
    """``write(name, content)`` puts text or bytes into a file, compressed as the name says."""

    def put(name, content):
        path = tmp_path / name
        raw = content.encode() if isinstance(content, str) else content
        packers = {".gz": lambda content: gzip.compress(content, mtime=0), ".xz": lzma.compress}
        path.write_bytes(packers.get(path.suffix, bytes)(raw))
        return path

    return put


@pytest.fixture
def jsonl(write, texts):
    rows = (json.dumps({"text": text, "label": label}) for text, label in zip(*texts, strict=True))
    return write("corpus.jsonl", "\n".join(rows) + "\n")
