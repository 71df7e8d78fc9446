"""Compiles ``src/attsvm/native`` when the package is built: a library for every processor, and on
x86-64 a second one for those with AVX2 and FMA.

``pip install`` runs it; ``python hatch_build.py [FOLDER]`` compiles after the sources have changed.
The compiler is ``$CXX``, else ``c++``, ``g++`` or ``clang++``, else the one of the package
``ziglang``, which pip then installs for the build. The core has a C interface without headers of
Python, so one wheel serves every Python 3 of a platform, and zig compiles for all platforms from
one machine: ``$ATTSVM_PLATFORM`` names one of :data:`PLATFORMS` (``make wheels``).
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
from typing import Any, NamedTuple

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # compiled in place, without the tools of a build
    BuildHookInterface = object  # type: ignore[assignment,misc]

NATIVE = Path(__file__).resolve().parent / "src" / "attsvm" / "native"
FLAGS = [
    *("-std=c++17", "-O3", "-fvisibility=hidden", "-DNDEBUG", "-Wall", "-Wextra"),
    *("-fno-strict-aliasing", "-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd"),
    *("-fno-exceptions", "-fno-rtti", "-Wno-psabi"),
]
# Products are fused into sums, but not where sums are kept in twice the digits.
CONTRACTED, EXACT = "-ffp-contract=fast", "-ffp-contract=off"
SANITIZED = ["-g", "-fsanitize=address,undefined", "-fno-omit-frame-pointer"]


class Platform(NamedTuple):
    """What libraries are compiled for.

    Attributes:
        tag: the platform in the name of the wheel.
        suffix: how the name of a shared library ends.
        x86: whether its processors are of the family that has two levels.
        zig: zig's name of it; ``None`` for this machine and its compiler.
    """

    tag: str
    suffix: str
    x86: bool
    zig: str | None = None


PLATFORMS = {
    "linux-x86_64": Platform("manylinux2014_x86_64", ".so", True, "x86_64-linux-gnu.2.17"),
    "linux-aarch64": Platform("manylinux2014_aarch64", ".so", False, "aarch64-linux-gnu.2.17"),
    "macos-x86_64": Platform("macosx_11_0_x86_64", ".dylib", True, "x86_64-macos.11.0"),
    "macos-arm64": Platform("macosx_11_0_arm64", ".dylib", False, "aarch64-macos.11.0"),
    "windows-x86_64": Platform("win_amd64", ".dll", True, "x86_64-windows-gnu"),
}


def this_platform() -> Platform:
    """The platform of this machine, or the one that ``$ATTSVM_PLATFORM`` names."""
    if name := os.environ.get("ATTSVM_PLATFORM"):
        if name not in PLATFORMS:
            raise RuntimeError(f"ATTSVM_PLATFORM is {name!r}; take one of {', '.join(PLATFORMS)}")
        return PLATFORMS[name]
    tag = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    if tag.endswith("universal2"):  # the libraries are of one architecture
        tag = tag.removesuffix("universal2") + platform.machine()
    suffix = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
    return Platform(tag, suffix, platform.machine().lower() in ("x86_64", "amd64"))


def compiler(target: Platform) -> list[str]:
    """The command of the C++ compiler."""
    zig = [sys.executable, "-m", "ziglang", "c++"]
    if target.zig is not None:
        return [*zig, "-target", target.zig]
    if command := os.environ.get("CXX"):
        return command.split()
    if sys.platform != "win32":  # MSVC has none of the vector types
        for name in ("c++", "g++", "clang++"):
            if shutil.which(name):
                return [name]
    return zig


def digest() -> str:
    """The digest of the sources and of how they are compiled, by which an older library is
    recognised.
    """
    total = hashlib.sha256()
    sources = sorted([*NATIVE.glob("*.cpp"), *NATIVE.glob("*.hpp"), *NATIVE.glob("*.h")])
    for source in (Path(__file__), *sources):
        total.update(source.name.encode())
        total.update(source.read_bytes().replace(b"\r\n", b"\n"))
    return total.hexdigest()[:16]


def levels(target: Platform) -> tuple[str, ...]:
    """The levels of processors that have a library each."""
    return ("baseline", "avx2") if target.x86 else ("baseline",)


def compile_all(
    folder: Path = NATIVE, sanitize: bool = False, target: Platform | None = None
) -> list[Path]:
    """Compile every level into ``folder``, and return the libraries.

    Raises:
        RuntimeError: the compiler is missing or refuses a source, with what it printed.
    """
    target = target or this_platform()
    call = compiler(target)
    zig = "ziglang" in call
    of_level = {"baseline": ["-mcpu=baseline"] if zig else []}
    of_level["avx2"] = [*of_level["baseline"], "-mavx2", "-mfma"]
    common = [*FLAGS, f'-DATTSVM_SOURCES="{digest()}"', *(SANITIZED if sanitize else [])]
    if target.suffix != ".dll":  # code for Windows always moves
        common.append("-fPIC")
    sources = sorted(NATIVE.glob("*.cpp"))
    with tempfile.TemporaryDirectory() as objects, ThreadPoolExecutor(os.cpu_count()) as pool:

        def compile_one(level: str, source: Path) -> str:
            path = str(Path(objects, f"{level}-{source.stem}.o"))
            contracted = EXACT if source.stem == "exact" else CONTRACTED
            run([*call, *common, contracted, *of_level[level], "-c", str(source), "-o", path])
            return path

        jobs = {
            level: [pool.submit(compile_one, level, source) for source in sources]
            for level in levels(target)
        }
        libraries = []
        for level, compiled in jobs.items():
            # nothing of the C++ library is used: linked as C, zig need not build it first
            link = ["cc" if word == "c++" else word for word in call] if zig else call
            if target.suffix == ".so" and not sanitize:  # a missing symbol is noticed here
                link = [*link, "-Wl,-z,defs"]
            if target.zig is not None:  # symbols of debuggers, five times the size
                link = [*link, "-s"]
            # with a dot in its name nobody takes it for a module
            library = Path(objects, f"attsvm.{level}{target.suffix}")
            if target.suffix == ".dylib":  # otherwise the temporary folder is its name
                link = [*link, f"-Wl,-install_name,@rpath/{library.name}"]
            run(
                [
                    *(*link, "-shared", *(SANITIZED if sanitize else [])),
                    *(job.result() for job in compiled),
                    *("-o", str(library)),
                ]
            )
            libraries.append(put(library, folder))
    return libraries


def up_to_date(target: Platform) -> list[Path]:
    """The libraries that lie beside the sources, where they are of these sources; else none."""
    if target.zig is not None:
        return []
    libraries = [NATIVE / f"attsvm.{level}{target.suffix}" for level in levels(target)]
    stamp = digest().encode()
    current = all(library.is_file() and stamp in library.read_bytes() for library in libraries)
    return libraries if current else []


def put(library: Path, folder: Path) -> Path:
    """The library in its folder, where a process that has loaded the former one keeps that."""
    target = folder / library.name
    handle, name = tempfile.mkstemp(dir=folder, suffix=library.suffix + ".new")
    os.close(handle)
    shutil.copy(library, name)
    Path(name).chmod(0o755)
    Path(name).replace(target)
    return target


def run(command: list[str]) -> None:
    """Run a compiler, and print what it said where it fails."""
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


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """What hatchling asks before it packs the files."""

    def dependencies(self) -> list[str]:
        """What the build needs beside hatchling."""
        return ["ziglang>=0.15"] if "ziglang" in compiler(this_platform()) else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and name the libraries among the files of the wheel."""
        if self.target_name != "wheel":
            return
        target = this_platform()
        if target.zig is None:
            libraries = up_to_date(target) or compile_all(target=target)
            build_data["artifacts"] += [
                f"src/attsvm/native/{library.name}" for library in libraries
            ]
        else:  # beside the sources lie the libraries of this machine
            self.folder = Path(tempfile.mkdtemp())
            for library in compile_all(self.folder, target=target):
                inside = f"attsvm/native/{library.name}"
                build_data["force_include"][str(library)] = inside
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{target.tag}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the libraries of another platform, which are packed."""
        if folder := getattr(self, "folder", None):
            shutil.rmtree(folder)


if __name__ == "__main__":
    reader = argparse.ArgumentParser(description=compile_all.__doc__)
    reader.add_argument("folder", nargs="?", type=Path, default=NATIVE)
    reader.add_argument("--sanitize", action="store_true", help="with checks of every address")
    options = reader.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for path in compile_all(options.folder, options.sanitize):
        print(path)
