"""Machine code on disk: an edit is seen by every caller, processes share it, and none is needed."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import attsvm
from attsvm import kernel_cache

CALLEE = """
from attsvm.jit import kernel

@kernel
def part(x):
    return x + {number}
"""
CALLER = """
from attsvm.jit import kernel
from attsvm.callee import part

@kernel
def whole(x):
    return 2.0 * part(x)
"""
PROGRAMME = """
from attsvm import kernel_cache
from attsvm.caller import whole
print(whole(1.0), sum(whole._cache_hits.values()))
"""


@pytest.fixture
def package(tmp_path):
    """A copy of the package with two kernels in two modules, one of which calls the other."""
    copy = tmp_path / "site" / "attsvm"
    shutil.copytree(
        Path(attsvm.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__")
    )
    (copy / "callee.py").write_text(CALLEE.format(number=1.0), encoding="utf-8")
    (copy / "caller.py").write_text(CALLER, encoding="utf-8")
    return copy


def run(package, **environment):
    of_caller = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAMME],
        env={
            **of_caller,
            "PYTHONPATH": str(package.parent),
            "PYTHONDONTWRITEBYTECODE": "1",  # Python itself would not see an edit of equal size
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    value, hits = done.stdout.split()
    return float(value), int(hits), done.stderr


@pytest.mark.slow
def test_an_edit_of_a_kernel_is_seen_by_its_callers_in_other_modules(package, tmp_path):
    cache = {"ATTSVM_CACHE": str(tmp_path / "cache")}
    assert run(package, **cache) == (4.0, 0, "")
    assert run(package, **cache) == (4.0, 1, "")
    times = (package / "callee.py").stat()
    (package / "callee.py").write_text(CALLEE.format(number=2.0), encoding="utf-8")
    os.utime(package / "callee.py", ns=(times.st_atime_ns, times.st_mtime_ns))  # and equal size
    assert run(package, **cache) == (6.0, 0, "")
    assert run(package, **cache) == (6.0, 1, "")
    assert not list(package.rglob("*.nb[ic]"))  # nothing lies beside the sources
    (package / "callee.py").write_text(CALLEE.format(number=1.0), encoding="utf-8")
    assert run(package, **cache) == (4.0, 1, "")  # the earlier state was kept


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["ATTSVM_CACHE", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR"])
def test_the_folder_is_where_the_user_says(package, tmp_path, variable):
    bare = dict.fromkeys(("ATTSVM_CACHE", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR"), "")
    assert run(package, **bare, HOME=str(tmp_path)) == (4.0, 0, "")
    assert list((tmp_path / ".cache" / "attsvm").glob("kernels-*/*.kernel"))
    run(package, **{**bare, variable: str(tmp_path / "here")})
    found = {path.parents[1] for path in (tmp_path / "here").rglob("*.kernel")}
    root = tmp_path / "here"
    assert found == {root if variable == "ATTSVM_CACHE" else root / "attsvm"}


@pytest.mark.slow
def test_without_a_folder_kernels_are_compiled_and_one_sentence_says_so(package, tmp_path):
    (tmp_path / "file").touch()
    value, hits, told = run(package, ATTSVM_CACHE=str(tmp_path / "file" / "cache"))
    assert (value, hits) == (4.0, 0)
    assert told.count("\n") == 1
    assert "compiled kernels cannot be kept" in told
    assert "set ATTSVM_CACHE" in told


@pytest.mark.slow
def test_a_damaged_file_is_not_run(package, tmp_path):
    cache = {"ATTSVM_CACHE": str(tmp_path / "cache")}
    run(package, **cache)
    for path in (tmp_path / "cache").rglob("*.kernel"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    assert run(package, **cache) == (4.0, 0, "")
    assert run(package, **cache) == (4.0, 1, "")


@pytest.mark.slow
def test_processes_at_once_share_the_folder(package, tmp_path):
    environment = {
        **os.environ,
        "PYTHONPATH": str(package.parent),
        "ATTSVM_CACHE": str(tmp_path / "cache"),
    }
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAMME],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for process in started:
        out, err = process.communicate(timeout=120)
        assert (out.split()[0], err) == ("4.0", "")
    assert not list((tmp_path / "cache").rglob("*.partial"))


def test_only_the_folders_used_last_are_kept(tmp_path):
    mine = tmp_path / f"kernels-{'0' * 32}"
    for k in range(12):
        old = tmp_path / f"kernels-{k + 1:032x}"
        old.mkdir()
        (old / "a.kernel").touch()
        os.utime(old, (1000 + k, 1000 + k))
    (tmp_path / "kernels-of-somebody-else").mkdir()
    mine.mkdir()
    os.utime(mine, (1, 1))
    kernel_cache._clear(tmp_path, mine)
    kept = {f"kernels-{k + 1:032x}" for k in range(12 - kernel_cache.KEPT, 12)}
    assert {path.name for path in tmp_path.iterdir()} == {
        mine.name,
        "kernels-of-somebody-else",
        *kept,
    }


def test_what_kernels_use_lies_in_modules_that_the_digest_covers():
    """A constant from elsewhere would be frozen into machine code whose folder does not change."""
    covered = {Path(path) for path in kernel_cache._AT_START}
    root = Path(attsvm.__file__).parent
    assert root / "optim" / "power_kernels.py" in covered
    for path in covered:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imported = {
            alias.asname or alias.name: node.module
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("attsvm.")
            for alias in node.names
        }
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef) and any(
                "kernel" in ast.unparse(each) or "parallel" in ast.unparse(each)
                for each in function.decorator_list
            ):
                body = ast.Module(function.body, [])
                for name in {n.id for n in ast.walk(body) if isinstance(n, ast.Name)}:
                    if name in imported:
                        home = root.joinpath(*imported[name].split(".")[1:])
                        files = {home.with_suffix(".py"), home / "__init__.py", home / f"{name}.py"}
                        assert files & covered, f"{path}: {function.name} uses {name}"
