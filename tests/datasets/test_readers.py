"""Labelled texts out of every kind of file, and a sentence for every kind of trouble."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import sys
import tracemalloc

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from attsvm.datasets.readers import read_texts
from attsvm.errors import InputError, MissingExtraError


def table(rows, delimiter, header=("text", "label")):
    out = io.StringIO()
    if delimiter == ",":
        csv.writer(out).writerows([header, *rows])
    else:
        out.write("".join("\t".join(map(str, row)) + "\n" for row in [header, *rows]))
    return out.getvalue()


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def contents(kind, texts):
    rows = list(zip(*texts, strict=True))
    if kind == "jsonl":
        return lines(*({"text": text, "label": label} for text, label in rows))
    return table(rows, "," if kind == "csv" else "\t")


@pytest.mark.parametrize("compression", ["", ".gz", ".xz"])
@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl"])
def test_every_kind_of_text_file(write, texts, kind, compression):
    path = write(f"a.{kind}{compression}", contents(kind, texts))
    found = read_texts(path)
    assert found.texts == texts[0]
    assert found.labels.tolist() == [2.0 * label - 1.0 for label in texts[1]]
    assert found.class_names == ("0", "1")
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_parquet(tmp_path, texts):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(
        pyarrow.table({"text": texts[0], "label": texts[1]}), tmp_path / "a.parquet"
    )
    found = read_texts(tmp_path / "a.parquet")
    assert found.texts == texts[0]
    assert (found.labels > 0).tolist() == [label == 1 for label in texts[1]]
    whole = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"cut\.parquet is truncated or corrupt"):
        read_texts(tmp_path / "cut.parquet")
    with pytest.raises(InputError, match=r"a\.parquet holds more than 100 bytes"):
        read_texts(tmp_path / "a.parquet", byte_limit=100)
    parquet.write_table(
        pyarrow.table({"text": ["a", None], "label": [0, 1]}), tmp_path / "null.parquet"
    )
    with pytest.raises(InputError, match=r"null\.parquet, row 2 has no text"):
        read_texts(tmp_path / "null.parquet")


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(
        MissingExtraError,
        match=r"reading \.parquet files needs the package pyarrow; .*attsvm\[parquet\]",
    ):
        read_texts(tmp_path / "a.parquet")


@pytest.mark.parametrize("nested", [False, True])
def test_a_folder_in_imdb_layout(tmp_path, nested):
    root = tmp_path / "train" if nested else tmp_path
    for name, number in (("pos", "10_8"), ("pos", "2_9"), ("neg", "0_1"), ("neg", "11_2")):
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / f"{number}.txt").write_text(f"{name} {number}", encoding="utf-8")
    found = read_texts(tmp_path)
    assert found.texts == ["neg 0_1", "neg 11_2", "pos 2_9", "pos 10_8"]
    assert found.labels.tolist() == [-1.0, -1.0, 1.0, 1.0]
    assert found.class_names == ("neg", "pos")
    (root / "pos" / "2_9.txt").write_text(" \n")
    with pytest.raises(InputError, match=r"2_9\.txt is empty; remove the file"):
        read_texts(tmp_path)
    (root / "pos" / "2_9.txt").write_bytes(b"caf\xe9")
    with pytest.raises(InputError, match=r"2_9\.txt is not UTF-8 at byte 3"):
        read_texts(tmp_path)
    with pytest.raises(InputError, match="holds more than 8 bytes of text"):
        read_texts(tmp_path, byte_limit=8)


def test_a_folder_without_texts(tmp_path):
    with pytest.raises(
        InputError,
        match=r"neg holds no \.txt files; a folder of texts needs them in .*neg and .*pos",
    ):
        read_texts(tmp_path)


def test_columns_are_chosen_by_name_or_by_custom(write):
    path = write(
        "a.csv",
        table(
            [("x", "good day", 1, "no"), ("y", "bad day", 0, "yes")],
            ",",
            ("id", "Review", "stars", "flag"),
        ),
    )
    assert read_texts(path, label="flag").class_names == ("no", "yes")
    assert read_texts(path, label="stars").texts == ["good day", "bad day"]
    assert read_texts(path, text="id", label="stars").texts == ["x", "y"]
    path_of_both = write(
        "b.csv", table([("x", 3, 1), ("y", 4, 0)], ",", ("content", "sentiment", "label"))
    )
    assert read_texts(path_of_both).class_names == ("0", "1")  # label goes before sentiment
    with pytest.raises(
        InputError,
        match=(
            "has no column called label; say which one holds it with label=, its columns are id,"
            " Review, stars, flag"
        ),
    ):
        read_texts(path)
    with pytest.raises(
        InputError, match="has no column sentence; its columns are id, Review, stars, flag"
    ):
        read_texts(path, text="sentence", label="flag")


@pytest.mark.parametrize(
    ("values", "class_names"),
    [
        (["pos", "neg"], ("neg", "pos")),
        ([1, -1], ("-1", "1")),
        ([10, 9], ("9", "10")),
        ([True, False], ("False", "True")),
        (["nan", "1"], ("1", "nan")),
        ([0.0, 1.0], ("0.0", "1.0")),
    ],
)
def test_the_class_that_sorts_first_is_negative(write, values, class_names):
    path = write("a.jsonl", lines(*({"text": "x", "label": value} for value in values)))
    found = read_texts(path)
    assert found.class_names == class_names
    assert found.labels.tolist() == [
        1.0 if str(value) == class_names[1] else -1.0 for value in values
    ]


OK = {"text": "a", "label": 1}
TROUBLE = {
    "one-class": ("a.jsonl", lines(OK, OK), "has only the label 1; two classes are needed"),
    "three-classes": (
        "a.jsonl",
        lines(*({"text": "a", "label": k} for k in "abc")),
        r"has 3 different labels \(a, b, c\); keep the rows of two",
    ),
    "many-classes": (
        "a.jsonl",
        lines(*({"text": "a", "label": k} for k in "abcdefg")),
        r"has 7 different labels \(a, b, c, d, e, \.\.\.\)",
    ),
    "empty-text": (
        "a.jsonl",
        lines(OK, {"text": " ", "label": 0}),
        "line 2: text is empty; remove the row",
    ),
    "empty-text-csv": ("a.csv", table([("a", 1), ("", 0)], ","), "row 2: text is empty"),
    "no-label": ("a.jsonl", lines(OK, {"text": "b"}), "line 2 has no label"),
    "null-text": ("a.jsonl", lines(OK, {"text": None, "label": 0}), "line 2 has no text"),
    "empty-label": (
        "a.csv",
        table([("a", 1), ("b", "")], ","),
        "row 2: label is ''; every row needs one of two labels",
    ),
    "number-text": (
        "a.jsonl",
        lines({"text": 5, "label": 0}),
        "line 1: text is 5; choose the column of the texts with text=",
    ),
    "list-label": ("a.jsonl", lines({"text": "a", "label": [1]}), r"line 1: label is \[1\]"),
    "not-utf8": (
        "a.jsonl",
        lines(OK).encode() + b'{"text": "caf\xe9"}\n',
        r"line 2 is not UTF-8 at byte 39 of the text",
    ),
    "not-utf8-gz": ("a.csv.gz", b"text,label\nok,1\n\xff,0\n", r"line 3 is not UTF-8 at byte 16"),
    "bad-json": (
        "a.jsonl",
        lines(OK) + '{"text": \n',
        r"line 2 is not JSON \(Expecting value.*\); write one object per line",
    ),
    "deep-json": ("a.jsonl", "[" * 100000 + "\n", "line 1 is not JSON"),
    "json-list": ("a.jsonl", "[1]\n", "line 1 is a list; write one object"),
    "empty-jsonl": ("a.jsonl", "", "holds no rows"),
    "empty-csv": ("a.csv", "", "holds no rows"),
    "header-only": ("a.csv", "text,label\n", "holds no rows"),
    "empty-xz": ("a.jsonl.xz", "", "holds no rows"),
    "ragged-csv": (
        "a.csv",
        "text,label\na,1\nb, c,0\n",
        "row 2 has 3 fields, the header has 2; quote texts",
    ),
    "twin-columns": (
        "a.csv",
        "text,label,text\na,1,b\n",
        r"names a column twice \(text, label, text\)",
    ),
    "open-quote": ("a.csv", 'text,label\n"a,1\n', "is not well-formed .*; check its quotes"),
    "unknown": (
        "a.doc",
        "x",
        r"a\.doc is of no known kind; texts come from \.csv, \.tsv, \.jsonl, \.parquet",
    ),
    "no-suffix": ("a", "x", "a is of no known kind"),
}


@pytest.mark.parametrize("case", TROUBLE)
def test_trouble_is_one_sentence_with_a_place(write, case):
    name, content, sentence = TROUBLE[case]
    path = write(name, content)
    with pytest.raises(InputError, match=sentence) as caught:
        read_texts(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400 + len(str(path))


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.jsonl.xz", "a.csv.gz"])
@hypothesis.given(draw=st.data())
@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
def test_changed_bytes_never_crash(draw, write, texts, name):
    content = bytearray(write(name, contents(name.split(".")[1], texts)).read_bytes())
    for _ in range(draw.draw(st.integers(1, 4))):
        content[draw.draw(st.integers(0, len(content) - 1))] = draw.draw(st.integers(0, 255))
    path = write("b", b"").with_name(f"b{name[1:]}")
    path.write_bytes(content)
    try:
        read_texts(path)
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017


@pytest.mark.parametrize("compression", ["gz", "xz"])
def test_a_truncated_or_wrong_compression(write, texts, compression):
    path = write(f"a.jsonl.{compression}", contents("jsonl", texts))
    whole = path.read_bytes()
    for damaged in (
        whole[: len(whole) // 2],
        whole[:-3],
        b"plain text\n" * 9,
        whole[:40] + bytes(20) + whole[60:],
    ):
        path.write_bytes(damaged)
        with pytest.raises(
            InputError,
            match=r"cannot be decompressed .*; copy or download it again|not JSON|not UTF-8",
        ):
            read_texts(path)


def test_no_such_file(tmp_path):
    with pytest.raises(InputError, match="does not exist; check the spelling"):
        read_texts(tmp_path / "a.csv")


def test_a_decompression_bomb_is_refused_before_it_unfolds(write):
    path = write("a.jsonl.xz", bytes(64 << 20))
    tracemalloc.start()
    with pytest.raises(InputError, match="holds more than 1000000 bytes of text; raise byte_limit"):
        read_texts(path, byte_limit=1_000_000)
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


def test_quoted_fields_may_hold_separators_quotes_and_lines(write):
    rows = [('one, "two"\nthree', 0), ("four\r\nfive", 1)]
    assert read_texts(write("a.csv", table(rows, ","))).texts == [row[0] for row in rows]


def test_quotes_are_ordinary_in_tsv(write):
    assert read_texts(write("a.tsv", 'text\tlabel\n"open\t0\nshut"\t1\n')).texts == [
        '"open',
        'shut"',
    ]


def test_a_byte_order_mark_and_blank_lines_are_skipped(write):
    assert read_texts(write("a.csv", "\ufefftext,label\na,0\n\nb,1\n")).texts == ["a", "b"]
    assert read_texts(
        write("a.jsonl", "\ufeff" + lines(OK) + "\n" + lines({"text": "b", "label": 0}))
    ).texts == ["a", "b"]


def test_the_field_limit_of_the_csv_module_is_put_back(write):
    before = csv.field_size_limit()
    long = "word " * 40_000
    assert read_texts(write("a.csv", table([(long, 0), ("b", 1)], ","))).texts[0] == long
    assert csv.field_size_limit() == before


def test_labels_are_an_array_of_signs(write, texts):
    labels = read_texts(write("a.jsonl", contents("jsonl", texts))).labels
    assert labels.dtype == np.float64
    assert set(labels.tolist()) == {-1.0, 1.0}
