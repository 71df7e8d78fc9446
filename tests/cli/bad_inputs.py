"""A generator of bad inputs: every reader, every command, every option, in many ways."""

from __future__ import annotations

import argparse
import gzip
import io
import json
import lzma
import os
import socket
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.cli import arguments
from attsvm.cli import parser as whole_parser

Random = np.random.Generator
Make = Callable[[Random, Path], list[str]]
MAKERS: list[Make] = []

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]


@dataclass(frozen=True)
class Case:
    """One bad input: how to make it in a folder, which gives the words of the command."""

    name: str
    number: int
    make: Make

    def command(self, folder: Path) -> list[str]:
        return self.make(np.random.default_rng(self.number), folder)


def cases(seed: int, count: int) -> Iterator[Case]:
    """``count`` cases, every kind equally often; the same seed gives the same cases."""
    numbers = np.random.default_rng(seed).integers(0, 2**32, size=count)
    for k, number in enumerate(numbers.tolist()):
        make = MAKERS[k % len(MAKERS)]
        yield Case(make.__name__, number, make)


def maker(make: Make) -> Make:
    MAKERS.append(make)
    return make


def pick(random: Random, *options: Any) -> Any:
    return options[int(random.integers(len(options)))]


# --- files of arrays


def good(random: Random, **changes: Any) -> dict[str, Any]:
    """Arrays of a file that could be solved and fitted, with changes; None drops an array."""
    X = random.normal(size=(12, 3, 4))
    content = {"X": X, "y": np.where(np.arange(12) % 2 == 0, 1.0, -1.0), "v": np.ones(4), **changes}
    return {name: value for name, value in content.items() if value is not None}


def on_arrays(random: Random, path: str | Path) -> list[str]:
    return pick(random, ["fit", str(path), "--quiet"], ["solve", str(path)], ["solve", str(path)])


def saved(random: Random, folder: Path, content: dict[str, Any]) -> list[str]:
    np.savez(folder / "data.npz", **content)
    return on_arrays(random, "data.npz")


@maker
def wrong_type_of_tokens(random: Random, folder: Path) -> list[str]:
    X = random.normal(size=(12, 3, 4))
    changed = pick(
        random,
        X + 1j,
        X.astype("S8"),
        X.astype("U8"),
        np.zeros(X.shape, "M8[s]"),
        np.zeros(X.shape, "m8[s]"),
        X.astype(object),
        np.zeros(X.shape, [("a", "f8")]),
        np.zeros(X.shape, "V3"),
    )
    return saved(random, folder, good(random, X=changed))


@maker
def wrong_shape(random: Random, folder: Path) -> list[str]:
    name = pick(random, "X", "y", "Z", "mask")
    sides = [int(k) for k in random.integers(0, 5, size=int(random.integers(0, 5)))]
    fits = {"X": 3, "y": 1, "Z": 2, "mask": 2}
    if len(sides) == fits[name]:
        sides.append(0)
    if name == "X" and len(sides) == 4:
        sides = sides[:2]
    return saved(random, folder, good(random, **{name: np.ones(sides)}))


@maker
def not_finite(random: Random, folder: Path) -> list[str]:
    array = random.normal(size=(12, 3, 4))
    name = pick(random, "X", "Z", "y")
    shape = {"X": (12, 3, 4), "Z": (12, 2), "y": (12,)}[name]
    array = np.ones(shape)
    array.flat[random.integers(array.size)] = pick(random, np.nan, np.inf, -np.inf)
    return saved(random, folder, good(random, **{name: array}))


@maker
def wrong_labels(random: Random, folder: Path) -> list[str]:
    y = pick(
        random,
        np.full(12, 2.0),
        np.ones(12) * 1j,
        np.array(["a"] * 12),
        np.ones((12, 1)),
        np.ones(11),
        np.array("1"),
        None,
    )
    return saved(random, folder, good(random, y=y))


@maker
def wrong_mask(random: Random, folder: Path) -> list[str]:
    mask = np.ones((12, 3))
    row = random.integers(12)
    mask[row] = pick(random, 0, 2, np.nan, -1)
    return saved(random, folder, good(random, mask=mask))


@maker
def missing_array(random: Random, folder: Path) -> list[str]:
    return saved(random, folder, good(random, **{pick(random, "X", "y"): None}))


@maker
def unusable_for_a_fit(random: Random, folder: Path) -> list[str]:
    X = random.normal(size=(12, 3, 4))
    changes = pick(
        random,
        {"X": X[:, :1]},
        {"y": np.ones(12)},
        {"X": X * 1e200},
        {"X": X * 1e-200},
        {"X": X[None], "y": np.ones((1, 12))},
    )
    np.savez(folder / "data.npz", **good(random, **changes))
    return ["fit", "data.npz", "--quiet"]


@maker
def wrong_head(random: Random, folder: Path) -> list[str]:
    v = pick(
        random,
        np.ones(4) * 1j,
        np.array(["1", "2", "3", "4"]),
        np.array([b"1"] * 4),
        np.zeros(4, "M8[s]"),
        np.array("x"),
        np.ones(3),
        np.ones((4, 4)),
        np.array([1, np.nan, 1, 1]),
        np.zeros(4),
        None,
    )
    np.savez(folder / "data.npz", **good(random, v=v))
    return ["solve", "data.npz"]


@maker
def wrong_tokens(random: Random, folder: Path) -> list[str]:
    np.savez(
        folder / "data.npz",
        **good(random),
        floats=np.zeros(12),
        words=np.array(["0"] * 12),
        short=np.zeros(3, int),
        far=np.full(12, 3),
    )
    word = pick(
        random,
        *("floats", "words", "short", "far", "nothing", "", ",", "0,", "0,1", "-1", "0x0"),
        ",".join(["9"] * 12),
        ",".join(["-1"] * 12),
        ",".join([str(2**70)] * 12),
        "\u0660\u0661",
        "\x1b[31m",
    )
    return ["solve", "data.npz", f"--tokens={word}"]


def npy(
    shape: str, dtype: str = "<f8", body: bytes = b"", magic: bytes = b"\x93NUMPY\x01\x00"
) -> bytes:
    header = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}}}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return magic + struct.pack("<H", len(header)) + header + body


@maker
def lying_npz(random: Random, folder: Path) -> list[str]:
    X = pick(
        random,
        npy("(10000000, 16, 8)", body=bytes(64)),
        npy("(-1, 3, 4)", body=bytes(96)),
        npy("(1, 1, 99999999999999999999)", body=bytes(8)),
        npy("(1, 1, 2)", body=bytes(8)),
        npy("(1, 1, 1)", body=bytes(16)),
        npy("(1.0, 1, 1)", body=bytes(8)),
        npy("__import__('os')", body=bytes(8)),
        npy("(" * 3000, body=bytes(8)),
        npy("(1, 1, 1)", "|O", bytes(8)),
        npy("(1, 1, 1)", "<f99", bytes(8)),
        npy("(1, 1, 1)", "x" * 100, bytes(8)),
        npy("(1, 1, 1)", body=bytes(8), magic=b"\x93NUMPX\x01\x00"),
        npy("(1, 1, 1)", body=bytes(8), magic=b"\x93NUMPY\x09\x00"),
        b"",
        b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 31),
        b"cos\nsystem\n(S'touch hacked'\ntR.",
    )
    compression = pick(
        random, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2
    )
    with zipfile.ZipFile(folder / "data.npz", "w", compression) as archive:
        archive.writestr("X.npy", X)
        archive.writestr("y.npy", npy("(1,)", body=struct.pack("<d", 1.0)))
    return on_arrays(random, "data.npz")


@maker
def twice_in_npz(random: Random, folder: Path) -> list[str]:
    import warnings

    with zipfile.ZipFile(folder / "data.npz", "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, value in [*good(random).items(), *good(random).items()]:
            stream = io.BytesIO()
            np.save(stream, value)
            archive.writestr(f"{name}.npy", stream.getvalue())
    return on_arrays(random, "data.npz")


@maker
def lying_zip(random: Random, folder: Path) -> list[str]:
    stream = io.BytesIO()
    np.savez(stream, **good(random))
    content = bytearray(stream.getvalue())
    at = content.index(b"PK\x01\x02")
    offset = pick(random, 16, 20, 24, 42)  # checksum, packed and unpacked size, place
    content[at + offset : at + offset + 4] = struct.pack("<I", int(random.integers(2**31, 2**32)))
    (folder / "data.npz").write_bytes(content)
    return on_arrays(random, "data.npz")


@maker
def lying_safetensors(random: Random, folder: Path) -> list[str]:
    tensor = {"dtype": "F64", "shape": [1, 2, 2], "data_offsets": [0, 32]}
    y = {"dtype": "F64", "shape": [1], "data_offsets": [32, 40]}
    header: Any = pick(
        random,
        {"X": {**tensor, "shape": [1, 2, 10**12]}, "y": y},
        {"X": {**tensor, "shape": [1, 2, -2]}, "y": y},
        {"X": {**tensor, "data_offsets": [0, 10**15]}, "y": y},
        {"X": {**tensor, "data_offsets": [32, 0]}, "y": y},
        {"X": {**tensor, "dtype": "F8_E5M2"}, "y": y},
        {"X": {**tensor, "dtype": 7}, "y": y},
        {"X": tensor},
        {"X": tensor, "y": {**y, "data_offsets": [16, 24]}},
        {"X": tensor, "y": y, "\ud800": {**y, "data_offsets": [40, 48]}},
        [],
        7,
        None,
        {"X": None, "y": y},
    )
    text = json.dumps(header).encode()
    text = pick(random, text, text, text, text[:-1], b"[" * 50_000, b'{"X":1,"X":2}')
    length = pick(random, len(text), len(text), len(text), 2**63, 2**64 - 1, 10**9)
    (folder / "data.safetensors").write_bytes(struct.pack("<Q", length) + text + bytes(48))
    return on_arrays(random, "data.safetensors")


@maker
def cut_or_foreign(random: Random, folder: Path) -> list[str]:
    """Any kind of file, cut short or with content of another kind."""
    stream = io.BytesIO()
    np.savez(stream, **good(random))
    whole = stream.getvalue()
    content = pick(
        random,
        b"",
        b"\0",
        b"PK",
        b"text,label\n",
        whole[: int(random.integers(len(whole) - 30))],
        random.bytes(int(random.integers(1, 2000))),
        b"\x1f\x8b\x08\0" + random.bytes(20),
        b"\xfd7zXZ\0" + random.bytes(20),
        b"PAR1" + random.bytes(50) + b"PAR1",
        b"\xff\xfe" + "text,label\na,1\n".encode("utf-16-le"),
        b"\x93NUMPY\x01\x00",
        b"{" * 1000,
    )
    name = pick(
        random,
        *("data.npz", "DATA.NPZ", "data.safetensors", "data.csv", "data.tsv", "data.jsonl"),
        *("data.parquet", "data.csv.gz", "data.jsonl.xz", "data.txt", "data", "data.npz.gz"),
    )
    (folder / name).write_bytes(content)
    return on_arrays(random, name)


@maker
def not_a_file(random: Random, folder: Path) -> list[str]:
    """A folder, a pipe, a socket, a dangling link, a loop, nothing, where a file is due."""
    suffix = pick(random, ".npz", ".safetensors", ".csv", ".jsonl", ".parquet", ".csv.gz", ".txt")
    path = folder / f"data{suffix}"
    kind = pick(random, "folder", "pipe", "socket", "dangling", "loop", "nothing", "link to pipe")
    special(kind, path)
    return on_arrays(random, path.name)


def special(kind: str, path: Path) -> None:
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            here = Path.cwd()
            os.chdir(path.parent)  # the name of a socket is short
            made.bind(path.name)
            os.chdir(here)
    elif kind == "dangling":
        path.symlink_to("nowhere")
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "link to pipe":
        os.mkfifo(path.with_name("pipe"))
        path.symlink_to("pipe")


@maker
def wrong_shards(random: Random, folder: Path) -> list[str]:
    """A folder of arrays, each in a file or in several."""
    (folder / "data").mkdir()
    arrays = {name: array for name, array in good(random).items() if name != "y"}
    arrays |= {"selected": np.zeros(12, int), "y": np.ones(12)}
    kind = pick(
        random, "none", "flat", "short", "empty", "twice", "cut", "noise", "objects", "head", "far"
    )
    changes = {
        "none": {"X": None},
        "flat": {"X": np.ones((12, 3))},
        "short": {"selected": np.zeros(11, int)},
        "empty": {name: array[:0] for name, array in arrays.items()},
        "objects": {"X": np.array([{}] * 12)},
        "head": {"v": np.array([np.nan] * 4)},
        "far": {"selected": np.full(12, 3)},
    }
    for name, array in (arrays | changes.get(kind, {})).items():
        if array is not None:
            np.save(folder / "data" / f"{name}.npy", array, allow_pickle=True)
    X = folder / "data" / "X.npy"
    if kind == "twice":
        np.save(X.with_name("X-0.npy"), np.ones((12, 3, 4)))
    elif kind == "cut":
        X.write_bytes(X.read_bytes()[: int(random.integers(1200))])
    elif kind == "noise":
        X.write_bytes(pick(random, b"", b"noise", npy("(10000000, 16, 8)", body=bytes(64))))
    return ["solve", "data", "--tokens", "optimal" if kind == "head" else "selected"]


@maker
def options_of_data_in_parts(random: Random, folder: Path) -> list[str]:
    np.savez(folder / "data.npz", **good(random))
    (folder / "data").mkdir()
    for name, array in {**good(random), "selected": np.zeros(12, int)}.items():
        np.save(folder / "data" / f"{name}.npy", array)
    solve = ["solve", "data", "--tokens", "selected"]
    return pick(
        random,
        ["solve", "data.npz", "--memory", "100MB"],
        ["solve", "tfsvm-1", "--memory", "100MB"],
        [*solve, f"--memory={pick(random, '', '0', '-1', 'x', '1kB', 'nan', '1e9', '5 XB')}"],
        [*solve, "--slack", "1"],
        [*solve, "--programme", pick(random, "prompt", "decoder", "sequence", "causal")],
        ["solve", "data", "--tokens", pick(random, "0,1", "nothing", "", "\x1b[31m")],
        ["fit", "data", "--quiet"],
    )


# --- texts


def text_rows(random: Random, count: int = 24) -> list[dict[str, Any]]:
    return [{"text": " ".join(random.choice(WORDS, 7)), "label": k % 2} for k in range(count)]


def on_texts(random: Random, name: str) -> list[str]:
    """A command that a good file of this name would pass."""
    words = [name, "--dimension", "4"]
    return pick(random, ["fit", *words, "--quiet"], ["solve", *words, "--tokens", "first"])


@maker
def wrong_lines(random: Random, folder: Path) -> list[str]:
    lines = [json.dumps(row) for row in text_rows(random)]
    lines[int(random.integers(12))] = pick(
        random,
        "[1, 2]",
        "7",
        "null",
        '"text"',
        "{",
        "{}",
        '{"text": "a"}',
        '{"label": 1}',
        '{"text": null, "label": 1}',
        '{"text": 5, "label": 1}',
        '{"text": ["a"], "label": 1}',
        '{"text": "", "label": 1}',
        '{"text": " \\n\\t ", "label": 1}',
        '{"text": "a", "label": ""}',
        '{"text": "a", "label": [1]}',
        '{"text": "a", "label": {"b": 1}}',
        '{"text": "half \\ud800", "label": 1}',
        '{"text": "half \\udfff end", "label": 0}',
        '{"text": "a", "label": "\\ud83d"}',
        '{"text": "a", "label": 2}',
        '{"text": "a", "text": "b", "label": 1}',
        "[" * 100_000,
        '{"text": "\x1b]0;title\x07\u202e", "label": 7}',
        "NaN",
        '{"text": "a" "label": 1}',
        "{'text': 'a', 'label': 1}",
        "9" * 5000,
    )
    name = pick(random, "data.jsonl", "data.jsonl.gz", "data.jsonl.xz")
    pack = {".gz": gzip.compress, ".xz": lzma.compress}.get(Path(name).suffix, bytes)
    (folder / name).write_bytes(pack("\n".join(lines).encode("utf-8")))
    return on_texts(random, name)


@maker
def wrong_table(random: Random, folder: Path) -> list[str]:
    name, comma = pick(random, ("data.csv", ","), ("data.tsv", "\t"))
    rows = [f"{row['text']}{comma}{row['label']}" for row in text_rows(random)]
    header = f"text{comma}label"
    content = pick(
        random,
        "",
        "\n\n",
        header,
        "\n".join([f"text{comma}text", *rows]),
        "\n".join([f"a{comma}b", *rows]),
        "\n".join([header, *rows, "one field"]),
        "\n".join([header, *rows, f"a{comma}b{comma}c"]),
        "\n".join([header, *rows, f"{comma}1"]),
        "\n".join([header, *rows, f"a{comma}"]),
        "\n".join([header, *rows[::2]]),
        "\n".join([header, *rows]) + "\ncaf\udce9" + f"{comma}1",
        "\n".join(rows),
    )
    if comma == ",":
        content = pick(random, content, header + '\n"open,1\n', header + '\n"a"b,1\n')
    (folder / name).write_bytes(content.encode("utf-8", "surrogateescape"))
    return on_texts(random, name)


@maker
def packed_badly(random: Random, folder: Path) -> list[str]:
    suffix, pack = pick(random, (".gz", gzip.compress), (".xz", lzma.compress))
    content = pack("\n".join(json.dumps(row) for row in text_rows(random)).encode())
    cut = int(random.integers(1, len(content) - 12))
    broken = pick(random, content[:cut], content[:20] + bytes(len(content) - 20), b"no" + content)
    (folder / f"data.jsonl{suffix}").write_bytes(broken)
    return on_texts(random, f"data.jsonl{suffix}")


@maker
def wrong_parquet(random: Random, folder: Path) -> list[str]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        return ["fit", "data.parquet"]  # there is no such file either
    table = pyarrow.table(
        pick(
            random,
            {"text": ["a", None], "label": [0, 1]},
            {"text": [1, 2], "label": [0, 1]},
            {"text": ["a", "b"], "label": [None, 1]},
            {"text": ["a", "b"], "label": [0, 0]},
            {"text": ["a", "b"]},
            {"a": ["x"], "b": [1]},
            {
                "text": pyarrow.array([], pyarrow.string()),
                "label": pyarrow.array([], pyarrow.int8()),
            },
            {"text": [b"\xff", b"a"], "label": [0, 1]},
        )
    )
    pyarrow.parquet.write_table(table, folder / "data.parquet")
    content = (folder / "data.parquet").read_bytes()
    if random.integers(3) == 0:
        content = pick(random, content[: len(content) // 2], content[:-4] + b"PARX")
    if random.integers(3) == 0:
        middle = len(content) // 2
        content = content[:middle] + bytes(20) + content[middle + 20 :]
    (folder / "data.parquet").write_bytes(content)
    return on_texts(random, "data.parquet")


@maker
def wrong_folder_of_texts(random: Random, folder: Path) -> list[str]:
    for name in ("pos", "neg"):
        (folder / "data" / name).mkdir(parents=True)
        for k in range(4):
            (folder / "data" / name / f"{k}_1.txt").write_text(" ".join(random.choice(WORDS, 6)))
    bad = folder / "data" / pick(random, "pos", "neg") / pick(random, "5.txt", "x.txt", "0_0.txt")
    kind = pick(
        random, "folder", "pipe", "socket", "dangling", "loop", "content", "without", "name"
    )
    if kind == "content":
        bad.write_bytes(pick(random, b"", b" \n", b"caf\xe9", b"\xff\xfea\0"))
    elif kind == "without":
        for path in bad.parent.iterdir():
            path.unlink()
    elif kind == "name":
        bad.with_name(os.fsdecode(b"\xff\xfe.txt")).write_bytes(b"")
    else:
        special(kind, bad)
    return on_texts(random, "data")


@maker
def too_few_words(random: Random, folder: Path) -> list[str]:
    (folder / "data.jsonl").write_text("\n".join(json.dumps(row) for row in text_rows(random)))
    return ["fit", "data.jsonl", *pick(random, ["--dimension", "500"], ["--dimension", "11"])]


@maker
def wrong_columns(random: Random, folder: Path) -> list[str]:
    (folder / "data.jsonl").write_text("\n".join(json.dumps(row) for row in text_rows(random)))
    wrong = pick(random, "body", "", "TEXT ", "\x1b[2J", "text\nlabel", "\udcff")
    option = pick(random, "--text", "--label")
    return [*on_texts(random, "data.jsonl"), f"{option}={wrong}"]


@maker
def reading_options_of_another_kind(random: Random, folder: Path) -> list[str]:
    np.savez(folder / "data.npz", **good(random))
    data = pick(random, "data.npz", "digits", "unit_sphere", "tfsvm-1")
    options = ["--text=a", "--label=b", "--dimension=3", "--max-tokens=3", "--vectors=m"]
    option = pick(random, *options, "--test=c", "--encoder=m", "--layer=1")
    return ["fit", data, option]


# --- names


@maker
def names_of_data(random: Random, folder: Path) -> list[str]:
    huge = pick(random, "1" * 30, "9" * 5000)
    name = pick(
        random,
        *(
            "nothing",
            "",
            ".",
            "..",
            "/",
            "~",
            "digits:3",
            "digits:3-3",
            "digits:3-12",
            "digits:a-b",
        ),
        *("digits:-1-3", "digits:", "unit_sphere:", "unit_sphere:1", "unit_sphere:0,1,1,1"),
        *("unit_sphere:1,1,1,-1", "unit_sphere:1,1,1,x", "unit_sphere:1000000,1000000,1000,0"),
        *("unit_sphere:99999999,999999,1,0", "tfsvm-1:3", "mmts-1:", "unit_sphere:6,8,10,"),
        f"unit_sphere:6,8,10,{huge}",
        f"digits:{huge}-3",
        "x" * 300 + ".npz",
        "x" * 300,
        "y/" * 2000 + "a.csv",
        "a\x1b[31m.npz",
        "a\nb.csv",
        "\u202etxt.exe",
        "\udcff\udcfe.npz",
        "\udcff.jsonl",
    )
    if name in ("digits:", "unit_sphere:", "mmts-1:"):  # an empty list of arguments is none
        name += "x"
    return [pick(random, "fit", "solve"), name]


@maker
def names_of_everything_else(random: Random, folder: Path) -> list[str]:
    np.savez(folder / "data.npz", **good(random))
    (folder / "a.txt").write_text("the cat and the dog and the cat")
    strange = pick(
        random,
        "",
        "x",
        "l7",
        "lp:",
        "lp:0",
        "lp:nan",
        "lp:-1",
        "schatten:0.5",
        "lp:one",
        "fro ",
        "\x1b[1m",
    )
    strange = strange if strange != "fro " else "frobenius?"
    return pick(
        random,
        ["solve", "data.npz", "--norm", strange],
        ["fit", "data.npz", "--norm", strange],
        ["fit", "data.npz", "--norm", pick(random, "lp:1.001", "lp:50", "schatten:1.0001")],
        ["solve", "data.npz", "--programme", strange],
        ["solve", "data.npz", "--programme", pick(random, "sequence", "causal"), "--tokens", "0,1"],
        ["reproduce", strange or "x"],
        ["reproduce"],
        ["reproduce", "--paper", strange],
        ["reproduce", "tfsvm-3", "--scale", strange],
        ["reproduce", "tfsvm-3", "--quick", "--scale", "small"],
        ["report"],
        ["report", strange or "x"],
        ["list", "more"],
        ["frobnicate"],
    )


# --- numbers: every option of every command


BAD = {
    arguments.positive_int: ("0", "-1", "1.5", "x", "", "nan", "1e3", "9" * 5000, "0x10", "\u00b2"),
    arguments.positive_float: ("0", "-1", "nan", "inf", "-inf", "x", "", "1e400", "1,5", "0x1p3"),
    arguments.share: ("0", "1", "-0.5", "1.5", "nan", "inf", "x", ""),
    arguments.seed: ("-1", "4294967296", "1.5", "x", "", "9" * 5000, "nan"),
    arguments.step_length: ("0", "-1", "nan", "inf", "x", "", "1e308", "1e101"),
    arguments.penalty: ("0", "-1", "nan", "inf", "x", "", "1e308", "1e-200"),
}


def options_of(parser: argparse.ArgumentParser, words: tuple[str, ...] = ()) -> Iterator[Any]:
    """``(words of the command, action)`` for every option of every command."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from options_of(inner, (*words, name))
        elif action.option_strings:
            yield words, action


OPTIONS = list(options_of(whole_parser()))
VALID = {
    ("fit",): ["digits"],
    ("solve",): ["tfsvm-1"],
    ("report",): ["a"],
    ("reproduce",): ["tfsvm-3"],
    ("probe",): ["demo"],
}


@maker
def number_out_of_range(random: Random, folder: Path) -> list[str]:
    typed = [(words, action) for words, action in OPTIONS if action.type in BAD]
    words, action = pick(random, *typed)
    value = pick(random, *BAD[action.type])
    if action.nargs == "+":
        return [*words, *VALID.get(words, []), action.option_strings[-1], value or "x"]
    return [*words, *VALID.get(words, []), f"{action.option_strings[-1]}={value}"]


@maker
def unknown_or_unfinished_option(random: Random, folder: Path) -> list[str]:
    words, action = pick(random, *[(w, a) for w, a in OPTIONS if w and a.dest != "help"])
    given = [*words, *VALID.get(words, [])]
    return pick(
        random,
        [*given, "--no-such-option"],
        [*given, "--no-such-option=\x1b[31m"],
        [*given, "-z"],
        [*given, "more", "\u202e"] if words not in (("reproduce",),) else [*given, "-z"],
        [*given, action.option_strings[-1] + "=x"]
        if action.nargs == 0
        else [*given, action.option_strings[-1]],
        [*given, action.option_strings[-1], "--json"] if action.nargs != 0 else [*given, "--z"],
    )


@maker
def choice_that_there_is_not(random: Random, folder: Path) -> list[str]:
    words, action = pick(random, *[(w, a) for w, a in OPTIONS if a.choices])
    return [
        *words,
        *VALID.get(words, []),
        f"{action.option_strings[-1]}={pick(random, '', 'x', '0')}",
    ]


@maker
def number_that_data_cannot_take(random: Random, folder: Path) -> list[str]:
    np.savez(folder / "data.npz", **good(random))
    return [
        "fit",
        "data.npz",
        "--quiet",
        *pick(
            random,
            ["--norm", "lp:10", "--lr", "1e-90"],
            ["--norm", "lp:10", "--lr", "1e90"],
            ["--norm", "schatten:8", "--lr", "1e80", "--steps", "7"],
        ),
    ]


# --- places to write to


@maker
def wrong_place_for_a_solution(random: Random, folder: Path) -> list[str]:
    np.savez(folder / "data.npz", **good(random))
    (folder / "file").write_text("mine")
    (folder / "folder.npz").mkdir()
    out = pick(
        random,
        *("a.txt", "a", "", ".", "nowhere/a.npz", "file/a.npz", "folder.npz", "a.npz.gz", "/"),
        "x" * 300 + ".npz",
        "/proc/a.npz",
    )
    return ["solve", "data.npz", "--tokens", "first", f"--out={out}"]


@maker
def wrong_place_for_a_run(random: Random, folder: Path) -> list[str]:
    np.savez(folder / "data.npz", **good(random))
    (folder / "a.txt").write_text("the cat and the dog and the cat sat")
    (folder / "file").write_text("mine")
    (folder / "mine").mkdir()
    (folder / "mine" / "thesis.txt").write_text("mine")
    (folder / "loop").symlink_to("loop")
    out = pick(random, "file", "file/x", "file/x/y", "x" * 300, "/proc/a", "loop", "loop/x", "\x00")
    out = out if out != "\x00" else "file/\x1b[1m"
    command = pick(
        random,
        ["fit", "data.npz", "--quiet"],
        ["fit", "data.npz", "--quiet"],
        ["reproduce", "tfsvm-3", "--quick", "--jobs", "1"],
    )
    if command[0] == "fit":
        out = pick(random, out, "mine")
    return [*command, f"--out={out}"]


# --- experiments and models


@maker
def wrong_figure(random: Random, folder: Path) -> list[str]:
    """A reader's own experiment that is none."""
    text = pick(
        random,
        "",
        "def run(:",
        "1 / 0",
        "import no_such_module",
        "raise ValueError('\x1b[31m')",
        "def run(first): return {}",
        "\x00",
        "caf\xe9",
    )
    (folder / "figure.py").write_bytes(text.encode("latin-1"))
    (folder / "folder.py").mkdir()
    name = pick(random, "figure.py", "figure.py", "figure.py", "folder.py", "nothing.py")
    return ["reproduce", name, "--quick", "--jobs", "1"]


@maker
def wrong_ways_to_reproduce(random: Random, folder: Path) -> list[str]:
    more = pick(
        random,
        ["--dask="],
        ["--dask", " "],
        ["--dask", "nowhere://"],
        ["--paper", "x"],
        ["--sizes", "3"],
        ["--scale", "paper"],
        ["no-such-1"],
        ["\x1b[31m"],
    )
    return ["reproduce", "tfsvm-3", "--quick", *more]


@maker
def wrong_probe(random: Random, folder: Path) -> list[str]:
    (folder / "words.txt").write_text("the cat and the dog\n")
    (folder / "model").mkdir()
    config = pick(random, "", "{", "{}", "[]", '{"model_type": 7}', '{"model_type": "bert"}')
    (folder / "model" / "config.json").write_text(config)
    text = folder / "text.txt"
    kind = pick(random, "none", "pipe", "folder", "loop", "empty", "bytes")
    if kind in ("empty", "bytes"):
        text.write_bytes(b"" if kind == "empty" else b"caf\xe9\n")
    elif kind != "none":
        special(kind, text)
    return pick(
        random,
        ["probe"],
        ["probe", "model"],
        ["probe", "./model", "--text", "words.txt", "--quiet"],
        ["probe", "./nothing/there", "--text", "words.txt", "--quiet"],
        ["probe", "words.txt", "--text", "words.txt", "--quiet"],
        ["probe", "demo", "--text", text.name, "--quiet"],
        ["probe", "./model", "--text", text.name, "--quiet"],
        ["probe", "demo", "--norm", pick(random, "", "x", "lp:0"), "--quiet"],
        ["probe", "demo", "--null", "x"],
    )


# --- runs


@maker
def damaged_run(random: Random, folder: Path) -> list[str]:
    run = folder / "run"
    run.mkdir()
    good_run = {"format": "attsvm-run/1", "results": {}, "dataset": {}, "claims": []}
    content: Any = pick(
        random,
        "",
        "{",
        "[]",
        "null",
        "7",
        "[" * 100_000,
        "{}",
        '{"format": 7}',
        '{"format": "attsvm-run/9"}',
        json.dumps(good_run),
        json.dumps({**good_run, "claims": 7, "results": {"margin": [1]}}),
        "\x1b[2J",
    )
    kind = pick(
        random, "file", "file", "file", "none", "folder", "pipe", "loop", "dangling", "bytes"
    )
    if kind == "file":
        (run / "run.json").write_text(content)
    elif kind == "bytes":
        (run / "run.json").write_bytes(b"\xff\xfe{}")
    elif kind != "none":
        special(kind, run / "run.json")
    if random.integers(2):
        (run / "arrays.safetensors").write_bytes(random.bytes(30))
    if random.integers(2):
        (run / "examples.json").write_text(pick(random, "", "{}", "[1]", "[[", "\x1b", '"a"'))
    return ["report", pick(random, "run", "run/", "run/run.json", "run/..", "./run")]
