"""The fingerprint of an experiment's code sees whatever runs while a cell is computed."""

import inspect
import sys
import threading
from pathlib import Path

import pytest

import attsvm
from attsvm.store.code import closure, code_fingerprint
from attsvm_papers.kit import experiment, identifiers

ROOT = Path(attsvm.__file__).parents[1]
QUICK = ("tfsvm-4", "graph-6", "ntp-2", "rates-4")
FUNCTION = inspect.CO_OPTIMIZED  # not the body of a class or module, which importing runs


def called(run, cell, folder):
    """The functions of this package that one cell calls: module and outermost name."""
    found = set()

    def look(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(ROOT)) and code.co_flags & FUNCTION:
            found.add((code.co_filename, code.co_qualname.partition(".")[0]))

    own = {"folder": folder} if "folder" in inspect.signature(run).parameters else {}
    threading.setprofile(look)
    sys.setprofile(look)
    try:
        run(**cell, **own)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    for file, name in found:
        parts = Path(file).relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), name


@pytest.mark.parametrize(
    "name",
    [
        *QUICK,
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in identifiers()
            if each not in QUICK
        ),
    ],
)
def test_every_function_that_a_cell_calls_counts(name, tmp_path):
    chosen = experiment(name)
    cell = chosen.work(chosen.at(scale="smoke"))[0]
    found = closure(chosen.run)
    missing = set()
    for module, function in called(chosen.run, cell, tmp_path / "checkpoints"):
        if function in ("__getattr__", "<lambda>"):
            continue
        ours = module.rpartition(".")[0] == chosen.run.__module__.rpartition(".")[0]
        if module not in found or (ours and f"name='{function}'" not in found[module]):
            missing.add((module, function))
    assert not missing


def test_what_draws_and_what_claims_do_not_count():
    for name in QUICK:
        found = closure(experiment(name).run)
        assert not any(module.startswith("attsvm.report") for module in found)
        laboratory = [text for module, text in found.items() if "papers" in module]
        assert "name='plot'" not in "".join(laboratory)


def test_experiments_have_fingerprints_of_their_own():
    assert len({code_fingerprint(experiment(name).run) for name in QUICK}) == len(QUICK)
