"""Checks wheels and the source archive of a folder before they are published.

``python release/check_wheels.py dist``: every platform has its wheel, each wheel holds the
libraries of its platform, in the format and for the processor that its name says, with every
function of ``attsvm.h`` and without libraries that the platform lacks; none is larger than 4 MB.
"""

from __future__ import annotations

import re
import runpy
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import lief

ROOT = Path(__file__).resolve().parents[1]
PLATFORMS = runpy.run_path(str(ROOT / "hatch_build.py"))["PLATFORMS"]
FUNCTIONS = set(
    re.findall(
        r"^PUBLIC [\w ]+?\**\s*\**(\w+)\(",
        "\n".join(path.read_text() for path in (ROOT / "src/attsvm/native").glob("*.cpp")),
        re.M,
    )
)
LARGEST = 4 << 20
SYSTEM = re.compile(
    r"^(lib(c|m|pthread|dl|rt)\.so\.\d+|ld-linux-aarch64\.so\.1|/usr/lib/libSystem\.B\.dylib|KERNEL32\.dll"
    r"|api-ms-win-crt-[\w-]+\.dll|ntdll\.dll|ucrtbase\.dll)$",
    re.I,
)
KINDS = {
    "linux-x86_64": (lief.ELF.Binary, "X86_64"),
    "linux-aarch64": (lief.ELF.Binary, "AARCH64"),
    "macos-x86_64": (lief.MachO.Binary, "X86_64"),
    "macos-arm64": (lief.MachO.Binary, "ARM64"),
    "windows-x86_64": (lief.PE.Binary, "AMD64"),
}


def faults_of_library(data: bytes, platform: str) -> list[str]:
    """What is wrong with a library of this platform."""
    kind, processor = KINDS[platform]
    binary: Any = lief.parse(list(data))
    if not isinstance(binary, kind):
        return [f"is no library of {platform}"]
    faults = []
    header = binary.header
    machine = getattr(header, "machine_type", None) or getattr(header, "machine", None)
    machine = str(machine or header.cpu_type).rpartition(".")[2]
    if machine != processor:
        faults.append(f"is for {machine}, not for {processor}")
    exported = {function.name.removeprefix("_") for function in binary.exported_functions}
    if missing := sorted(FUNCTIONS - exported):
        faults.append(f"lacks {', '.join(missing)}")
    needed = [str(getattr(library, "name", library)) for library in binary.libraries]
    foreign = [name for name in needed if not SYSTEM.match(name) and "@rpath/attsvm." not in name]
    if foreign:
        faults.append(f"needs {', '.join(foreign)}")
    return faults


def faults_of_wheel(wheel: Path, platform: str) -> list[str]:
    """What is wrong with the wheel of a platform."""
    target = PLATFORMS[platform]
    names = [f"attsvm.{level}{target.suffix}" for level in (["baseline", "avx2"][: 1 + target.x86])]
    faults = [f"{wheel.name} is larger than 4 MB"] if wheel.stat().st_size > LARGEST else []
    with zipfile.ZipFile(wheel) as archive:
        present = {Path(name).name for name in archive.namelist() if "/native/attsvm." in name}
        present -= {"attsvm.h"}
        if present != set(names):
            faults.append(f"{wheel.name} holds {sorted(present)}, not {names}")
        for name in sorted(present & set(names)):
            data = archive.read(f"attsvm/native/{name}")
            faults += [f"{name} of {wheel.name} {f}" for f in faults_of_library(data, platform)]
    return faults


def faults_of_source(archive: Path) -> list[str]:
    """What is wrong with the source archive."""
    with tarfile.open(archive) as files:
        names = [name.partition("/")[2] for name in files.getnames()]
    roots = {name.partition("/")[0] for name in names}
    wanted = {"src", "tests", "docs", "benchmarks", "hatch_build.py", "pyproject.toml", "README.md"}
    faults = [f"{archive.name} lacks {name}" for name in sorted(wanted - roots)]
    compiled = (".so", ".dylib", ".dll", ".pyc")
    faults += [f"{archive.name} holds {name}" for name in names if name.endswith(compiled)]
    return faults


def main(folder: Path) -> int:
    """The exit code: 1 where something is wrong, which is printed."""
    faults = []
    for platform, target in PLATFORMS.items():
        wheels = list(folder.glob(f"attsvm-*-py3-none-{target.tag}.whl"))
        if len(wheels) != 1:
            faults.append(f"{len(wheels)} wheels of {platform} in {folder}, not one")
        for wheel in wheels:
            faults += faults_of_wheel(wheel, platform)
    archives = list(folder.glob("attsvm-*.tar.gz"))
    faults += [] if len(archives) == 1 else [f"{len(archives)} source archives in {folder}"]
    for archive in archives:
        faults += faults_of_source(archive)
    for path in sorted(folder.iterdir()):
        print(f"{path.stat().st_size / 1e6:6.2f} MB  {path.name}")
    print("\n".join(faults) if faults else "every wheel holds what its name says")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
