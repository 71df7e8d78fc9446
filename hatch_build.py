"""Compiles ``src/attsvm/native`` when the package is built: a library for every processor, and on
x86-64 a second one for those with AVX2 and FMA.

``pip install`` runs it; ``python hatch_build.py [FOLDER]`` compiles after the sources have changed.
The compiler is ``$CXX``, else ``c++``, ``g++`` or ``clang++``, else the one of the package
``ziglang``, which pip then installs for the build.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # compiled in place, without the tools of a build
    BuildHookInterface = object  # type: ignore[assignment,misc]

HERE = Path(__file__).resolve().parent / "src" / "attsvm" / "native"
FLAGS = [
    *("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-DNDEBUG", "-Wall", "-Wextra"),
    *("-fno-strict-aliasing", "-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd"),
    *("-fno-exceptions", "-fno-rtti", "-Wno-psabi"),
]
# Products are fused into sums, but not where sums are kept in twice the digits.
CONTRACTED, EXACT = "-ffp-contract=fast", "-ffp-contract=off"
SANITIZED = ["-g", "-fsanitize=address,undefined", "-fno-omit-frame-pointer"]


def x86() -> bool:
    """Whether this machine's processor is of the family that has two levels."""
    return platform.machine().lower() in ("x86_64", "amd64")


def suffix() -> str:
    """How the name of a shared library ends here."""
    return {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")


def compiler() -> list[str]:
    """The command of the C++ compiler."""
    if given := os.environ.get("CXX"):
        return given.split()
    if sys.platform != "win32":  # MSVC has none of the vector types
        for name in ("c++", "g++", "clang++"):
            if shutil.which(name):
                return [name]
    return [sys.executable, "-m", "ziglang", "c++"]


def digest() -> str:
    """Of the sources and of how they are compiled, by which an older library is found out."""
    found = hashlib.sha256()
    sources = sorted([*HERE.glob("*.cpp"), *HERE.glob("*.hpp"), *HERE.glob("*.h")])
    for source in (Path(__file__), *sources):
        found.update(source.name.encode())
        found.update(source.read_bytes().replace(b"\r\n", b"\n"))
    return found.hexdigest()[:16]


def compile_all(folder: Path = HERE, sanitize: bool = False) -> list[Path]:
    """Compile every level into ``folder``; the libraries.

    Raises:
        RuntimeError: the compiler is missing or refuses a source, with what it printed.
    """
    call = compiler()
    zig = "ziglang" in call
    levels = {"baseline": ["-mcpu=baseline"] if zig else []}
    if x86():
        levels["avx2"] = [*levels["baseline"], "-mavx2", "-mfma"]
    extra = SANITIZED if sanitize else []
    sources = sorted(HERE.glob("*.cpp"))
    stamp = f'-DATTSVM_SOURCES="{digest()}"'
    with tempfile.TemporaryDirectory() as made, ThreadPoolExecutor(os.cpu_count()) as pool:

        def compile_one(level: str, source: Path) -> str:
            target = str(Path(made, f"{level}-{source.stem}.o"))
            contracted = EXACT if source.stem == "exact" else CONTRACTED
            flags = [*FLAGS, contracted, stamp, *levels[level], *extra]
            run([*call, *flags, "-c", str(source), "-o", target])
            return target

        jobs = {
            level: [pool.submit(compile_one, level, source) for source in sources]
            for level in levels
        }
        libraries = []
        for level, parts in jobs.items():
            # nothing of the C++ library is used: linked as C, zig need not build it first
            link = [*call[:-1], "cc"] if zig else call
            if sys.platform == "linux" and not sanitize:  # a missing symbol is found here
                link = [*link, "-Wl,-z,defs"]
            # with a dot in its name nobody takes it for a module
            library = Path(made, f"attsvm.{level}{suffix()}")
            run([*link, "-shared", *extra, *(part.result() for part in parts), "-o", str(library)])
            libraries.append(placed(library, folder))
    return libraries


def standing() -> list[Path]:
    """The libraries that lie beside the sources, where they are of these sources."""
    levels = ("baseline", "avx2") if x86() else ("baseline",)
    found = [HERE / f"attsvm.{level}{suffix()}" for level in levels]
    stamp = digest().encode()
    whole = all(each.is_file() and stamp in each.read_bytes() for each in found)
    return found if whole else []


def placed(library: Path, folder: Path) -> Path:
    """The library in its folder, where a process that has loaded the former one keeps that."""
    target = folder / library.name
    handle, name = tempfile.mkstemp(dir=folder, suffix=suffix() + ".new")
    os.close(handle)
    shutil.copy(library, name)
    Path(name).chmod(0o755)
    Path(name).replace(target)
    return target


def run(command: list[str]) -> None:
    """Run a compiler, and say what it said where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise RuntimeError(
            f"cannot start the C++ compiler {command[0]!r} ({error}); set CXX to one, or install"
            " the package ziglang"
        ) from error
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    if done.stderr.strip():
        print(done.stderr, file=sys.stderr)


def tag() -> str:
    """Of the wheel: any Python 3, this platform."""
    name = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    if name.endswith("universal2"):  # the libraries are of one architecture
        name = name.removesuffix("universal2") + platform.machine()
    return f"py3-none-{name}"


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """What hatchling asks before it packs the files."""

    def dependencies(self) -> list[str]:
        """What the build needs beside hatchling."""
        return ["ziglang>=0.15"] if "ziglang" in compiler() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and name the libraries among the files of the wheel."""
        if self.target_name != "wheel":
            return
        for library in standing() or compile_all():
            build_data["artifacts"].append(f"src/attsvm/native/{library.name}")
        build_data["pure_python"] = False
        build_data["tag"] = tag()


if __name__ == "__main__":
    reader = argparse.ArgumentParser(description=compile_all.__doc__)
    reader.add_argument("folder", nargs="?", type=Path, default=HERE)
    reader.add_argument("--sanitize", action="store_true", help="with checks of every address")
    asked = reader.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    for each in compile_all(asked.folder, asked.sanitize):
        print(each)
