"""Generated bad inputs: one sentence, exit code 2, nothing written, nothing deleted, no wait."""

import contextlib
import gzip
import io
import json
import lzma
import os
import re
import signal
import stat
import sys
from pathlib import Path

import numpy as np
import pytest
from bad_inputs import MAKERS, cases, good, special, text_rows

from attsvm.base.errors import InputError, MissingExtraError
from attsvm.base.files import load_arrays, read_json
from attsvm.cli import main
from attsvm.datasets.attention_data import AttentionData
from attsvm.datasets.readers import read_texts

SECONDS = 30
SEED = int(os.environ.get("ATTSVM_SEED", "0"))


def state(folder):
    """Everything in a folder: kind, mode, content, where links lead."""
    found = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        content = None
        if stat.S_ISLNK(mode):
            content = str(path.readlink())
        elif stat.S_ISREG(mode):
            content = path.read_bytes()
        found[str(path)] = (mode, content)
    return found


@contextlib.contextmanager
def at_most(seconds):
    def late(*_):
        raise TimeoutError(f"no answer after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def complaint(case, folder):
    """What is wrong with the answer to a bad input; None when nothing is."""
    command = case.command(folder)
    before, out, err = state(folder), io.StringIO(), io.StringIO()
    try:
        with at_most(SECONDS), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(command)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"{command!r:.300}: {type(error).__name__}: {str(error)[:300]}"
    said = err.getvalue()
    problems = {
        f"exit code {code}": code != 2,
        f"standard output {out.getvalue()[:200]!r}": out.getvalue(),
        f"standard error {said[:500]!r}": not re.fullmatch(r"attsvm: [^\n]+\n", said),
        "an escape on standard error": re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", said),
        "files changed": state(folder) != before,
    }
    found = "; ".join(problem for problem, there in problems.items() if there)
    return f"{command!r:.300}: {found}" if found else None


def check(count, tmp_path, monkeypatch):
    wrong = []
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # of a reader's own experiment
    for k, case in enumerate(cases(SEED, count)):
        folder = tmp_path / str(k)
        folder.mkdir()
        monkeypatch.chdir(folder)
        if (found := complaint(case, folder)) is not None:
            wrong.append(f"{case.name} {case.number}: {found}")
    assert not wrong, f"{len(wrong)} of {count}\n" + "\n".join(wrong[:40])


def test_bad_inputs_are_one_sentence(tmp_path, monkeypatch):
    check(4 * len(MAKERS), tmp_path, monkeypatch)


@pytest.mark.slow
def test_many_bad_inputs_are_one_sentence(tmp_path, monkeypatch):
    """Another seed: ``ATTSVM_SEED=7 pytest -m slow tests/cli/test_bad_inputs.py``."""
    check(2000, tmp_path, monkeypatch)


READERS = {
    "arrays": (".npz", load_arrays),
    "tensors": (".safetensors", load_arrays),
    "data": (".npz", AttentionData.load),
    "a table": (".csv", read_texts),
    "packed lines": (".jsonl.gz", read_texts),
    "rows": (".parquet", read_texts),
    "a file of a run": (".json", read_json),
}
CONTENTS = {
    "nothing": b"",
    "zeros": bytes(100),
    "noise": np.random.default_rng(0).bytes(1000),
    "pickle": b"cos\nsystem\n(S'touch hacked'\ntR.",
    "depth": b"[" * 100_000,
    "gzip": gzip.compress(b"\xff" * 100),
    "cut gzip": gzip.compress(b"text,label\na,1\n" * 100)[:-9],
    "xz": lzma.compress(b"\xff" * 100),
    "cut xz": lzma.compress(b"text,label\na,1\n" * 100)[:-9],
    "zip": b"PK\x03\x04" + bytes(50),
    "half": b'{"text": "\\ud800", "label": 1}',  # which any file of a run may hold
}


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_refuses_what_is_not_its_file(reader, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    suffix, read = READERS[reader]
    for kind in (*CONTENTS, "folder", "pipe", "socket", "dangling", "loop"):
        path = tmp_path / f"{kind}{suffix}"
        if kind in CONTENTS:
            path.write_bytes(CONTENTS[kind])
        else:
            special(kind, path)
        if (reader, kind) != ("a file of a run", "half"):
            with at_most(SECONDS), pytest.raises((InputError, MissingExtraError)) as caught:
                read(path)
            assert "\n" not in str(caught.value), kind
    assert not (tmp_path / "hacked").exists()


def test_what_the_bad_inputs_are_made_of_is_good(tmp_path, monkeypatch, capsys):
    """Else every one of them would be refused for the same reason."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    np.savez("data.npz", **good(random))
    rows = "\n".join(json.dumps(row) for row in text_rows(random))
    Path("data.jsonl").write_text(rows, encoding="utf-8")
    short = ["--steps", "20"]
    assert main(["solve", "data.npz"]) == 0
    assert main(["fit", "data.npz", "--quiet", *short]) in (0, 3)
    assert main(["solve", "data.jsonl", "--dimension", "4", "--tokens", "first"]) == 0
    words = ["fit", "data.jsonl", "--dimension", "4", "--quiet", "--out", "of-texts"]
    assert main([*words, *short]) in (0, 3)
    assert capsys.readouterr().err == ""
