"""Labelled texts out of every kind of file, and a sentence for every kind of trouble."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import sys
import tracemalloc

import hypothesis
import pytest
from hypothesis import strategies as st

import attsvm
from attsvm.base.errors import InputError, MissingExtraError
from attsvm.datasets.readers import read_texts
from attsvm.datasets.tables import ReadLimits


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
    assert found.labels.tolist() == texts[1]
    assert found.class_names == ("0", "1")
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_parquet(tmp_path, texts, monkeypatch):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path, cut, null = (tmp_path / f"{name}.parquet" for name in ("a", "cut", "null"))
    parquet.write_table(pyarrow.table({"text": texts[0], "label": texts[1]}), path)
    found = read_texts(path)
    assert found.texts == texts[0]
    assert (found.labels > 0).tolist() == [label == 1 for label in texts[1]]
    cut.write_bytes(path.read_bytes()[:900])
    with pytest.raises(InputError, match=r"cut\.parquet is truncated or corrupt"):
        read_texts(cut)
    parquet.write_table(pyarrow.table({"text": ["a", None], "label": [0, 1]}), null)
    with pytest.raises(InputError, match=r"null\.parquet: row 2 has no text"):
        read_texts(null)
    with pytest.raises(InputError, match=r"a\.parquet holds more than 100 bytes"):
        read_texts(path, limits=ReadLimits(bytes=100))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtraError, match=r"reading \.parquet files .*attsvm\[parquet\]"):
        read_texts(path)


@pytest.mark.parametrize("nested", [False, True])
def test_a_folder_in_imdb_layout(tmp_path, nested):
    root = tmp_path / "train" if nested else tmp_path
    with pytest.raises(InputError, match=r"holds no folders of \.txt files, .*neg and .*pos; put"):
        read_texts(tmp_path)
    for name, number in (("pos", "10_8"), ("pos", "2_9"), ("neg", "0_1"), ("neg", "11_2")):
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / f"{number}.txt").write_text(f"{name} {number}", encoding="utf-8")
    found = read_texts(tmp_path)
    assert found.texts == ["neg 0_1", "neg 11_2", "pos 2_9", "pos 10_8"]
    assert found.labels.tolist() == [0, 0, 1, 1]
    assert found.class_names == ("neg", "pos")
    for content, sentence in (
        (b" \n", r"file pos/2_9\.txt has no text; fill it in, or leave this file out"),
        (b"caf\xe9", r"2_9\.txt is not UTF-8 at byte 3"),
    ):
        (root / "pos" / "2_9.txt").write_bytes(content)
        with pytest.raises(InputError, match=sentence):
            read_texts(tmp_path)
    assert read_texts(tmp_path, encoding="cp1252").texts[2] == "café"
    (root / "pos" / "2_9.txt").write_bytes(b"")
    found = read_texts(tmp_path, skip_empty=True)
    assert (found.ids[-1], found.skipped) == ("pos/10_8.txt", 1)
    with pytest.raises(InputError, match="holds more than 8 bytes of text"):
        read_texts(tmp_path, limits=ReadLimits(bytes=8))


def test_a_folder_of_any_classes_and_of_new_texts(tmp_path):
    for k, name in enumerate(["pos", "neg", "unsup", "so so"] * 2):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / f"{k}.txt").write_text(f"{name} {k}", encoding="utf-8")
    assert read_texts(tmp_path).class_names == ("neg", "pos")  # as IMDb has it
    (tmp_path / "neg").rename(tmp_path / "bad")
    found = read_texts(tmp_path)
    assert found.class_names == ("bad", "pos", "so so", "unsup")
    assert found.texts[:3] == ["neg 1", "neg 5", "pos 0"]
    new = read_texts(tmp_path / "pos", classes=found.class_names)
    assert (new.labels.tolist(), new.ids) == ([-1, -1], ["0.txt", "4.txt"])
    with pytest.raises(InputError, match="one for each class"):
        read_texts(tmp_path / "pos")


def test_columns_are_chosen_by_name_or_by_custom(write):
    rows = [("x", "good day", 1, "no"), ("y", "bad day", 0, "yes")]
    path = write("a.csv", table(rows, ",", ("id", "Review", "stars", "flag")))
    assert read_texts(path, label="flag").class_names == ("no", "yes")
    assert read_texts(path, label="stars").texts == ["good day", "bad day"]
    assert read_texts(path, text="id", label="stars").texts == ["x", "y"]
    both = table([("x", 3, 1), ("y", 4, 0)], ",", ("content", "sentiment", "label"))
    assert read_texts(write("b.csv", both)).class_names == ("0", "1")  # label before sentiment
    twice = table([("x", "u", 1), ("y", "v", 0)], ",", ("text", "Text", "label"))
    assert read_texts(write("c.csv", twice)).texts == ["x", "y"]  # the first of equal names
    held = "its columns are id, Review, stars, flag"
    with pytest.raises(
        InputError, match=f"no column called label; {held}; name the one .* option label"
    ):
        read_texts(path)
    with pytest.raises(InputError, match=f"has no column sentence; {held}"):
        read_texts(path, text="sentence", label="flag")


@pytest.mark.parametrize(
    ("values", "class_names"),
    [
        (["pos", "neg"], ("neg", "pos")),
        ([1, -1], ("-1", "1")),
        ([10, 9], ("9", "10")),
        ([True, False], ("False", "True")),
        (["+nan", "1"], ("1", "+nan")),
        ([0.0, 1.0], ("0.0", "1.0")),
    ],
)
def test_the_class_that_sorts_first_is_negative(write, values, class_names):
    path = write("a.jsonl", lines(*({"text": "x", "label": value} for value in values)))
    found = read_texts(path)
    assert found.class_names == class_names
    assert found.labels.tolist() == [int(str(value) == class_names[1]) for value in values]


def test_classes_are_as_many_as_labels_and_a_second_file_may_lack_some(write):
    path = write("a.csv", "text,label\n" + "".join(f"{k},{k % 4}\n" for k in range(12)))
    found = read_texts(path, positive="1")
    assert found.class_names == ("0", "2", "3", "1")
    assert found.labels.tolist() == [0, 3, 1, 2] * 3
    assert found.positive == 3
    second = write("b.csv", "text,label\nx,3\ny,0\nz,3\n")
    both = read_texts(path, test=second)
    assert both.labels[both.held].tolist() == [3, 0, 3]
    assert both.positive is None
    only = write("c.csv", "text,label\nx,3.0\ny,3\n")  # one class, and a number spelled otherwise
    assert read_texts(path, test=only).labels[-2:].tolist() == [3, 3]
    more = write("d.csv", "text,label\nx,3\ny,7\nz,5\n")
    with pytest.raises(
        InputError, match=r"d\.csv has the labels 5 and 7; .*a\.csv has 0, 1, 2 and"
    ):
        read_texts(path, test=more)


OK = {"text": "a", "label": 1}


def classes(names):
    return lines(*({"text": "a", "label": name} for name in names))


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.jsonl", lines(OK, OK), "has only the label 1; two classes are needed"),
        (
            "a.jsonl",
            classes("abc"),
            r"3 different labels \(a, b and c\) in 3 rows; name the",
        ),
        ("a.jsonl", classes("abcdefg"), r"has 7 different labels \(a, b, c, d, e, \.\.\.\)"),
        (
            "a.jsonl",
            lines(OK, {"text": " ", "label": 0}),
            "line 2 has no text; fill it in, or leave this line out",
        ),
        ("a.csv", table([("a", 1), ("", 0)], ","), "row 2 has no text"),
        ("a.jsonl", lines(OK, {"text": "b"}), "line 2 has no label"),
        ("a.jsonl", lines(OK, {"text": None, "label": 0}), "line 2 has no text"),
        ("a.csv", table([("a", 1), ("b", "")], ","), "row 2 has no label"),
        ("a.jsonl", lines({"text": 5, "label": 0}), "line 1: text is 5; choose the column"),
        ("a.jsonl", lines({"text": "a", "label": [1]}), r"line 1: label is \[1\]"),
        ("a.jsonl", '{"text": "\\ud800", "label": 1}\n', "line 1 holds half of a surrogate pair"),
        (
            "a.jsonl",
            lines(OK).encode() + b'{"text": "caf\xe9"}\n',
            "line 2 is not UTF-8 at byte 39",
        ),
        ("a.csv.gz", b"text,label\nok,1\n\xff,0\n", r"line 3 is not UTF-8 at byte 16"),
        ("a.jsonl", lines(OK) + '{"text": \n', r"line 2 is not JSON \(Expecting value.*\); write"),
        ("a.jsonl", "[" * 100000 + "\n", "line 1 is not JSON"),
        ("a.jsonl", "[1]\n", "line 1 is a list; write one object"),
        ("a.jsonl", "", "holds no rows"),
        ("a.csv", "", "holds no rows"),
        ("a.csv", "text,label\n", "holds no rows"),
        ("a.jsonl.xz", "", "holds no rows"),
        (
            "a.csv",
            "text,label\na,1\nb, c,0\n",
            r"row 2 has 3 fields, the header \(text, label\) h",
        ),
        (
            "a.csv",
            "text,label\na,1\nb\n",
            r"row 2 has 1 field, the header \(text, label\) h",
        ),
        (
            "a.csv",
            "text,label,text\na,1,b\n",
            r"its columns are text \(column 1\), label, text",
        ),
        ("a.csv", 'text,label\n"a,1\n', "line 2 is not well-formed .*; check the quotes"),
        ("a.csv", 'sep=,\n\ntext,label\na,1\n"b,0\nc,1\n', "lines 5 to 6 are not well-formed"),
        ("a.csv", b"PK\x03\x04\x14\x00", "is a ZIP archive or an Excel workbook; save the table"),
        ("a.csv", gzip.compress(b"text,label\n"), r"compressed by gzip; let its name end in \.gz"),
        ("a.csv", b"PAR1\x15\x04", r"is a Parquet file; let its name end in \.parquet"),
        ("a.jsonl", json.dumps([OK]), "begins as one JSON array; write one object per line"),
        ("a.jsonl", json.dumps([OK], indent=1), "begins as one JSON array; write one object"),
        (
            "a.doc",
            "x",
            r"a\.doc is not a format that attsvm reads; texts come in \.csv, \.tsv, \.jsonl",
        ),
        ("a", "x", "a is not a format that attsvm reads"),
        ("a.jsonl", lines({"text": "a" * 300, "label": 1}), "line 1 is longer than 200 bytes"),
    ],
)
def test_trouble_is_one_sentence_with_a_place(write, name, content, sentence):
    limits = ReadLimits(line=200) if "longer" in sentence else ReadLimits()
    path = write(name, content)
    with pytest.raises(InputError, match=sentence) as caught:
        read_texts(path, limits=limits)
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
        with pytest.raises(InputError, match=r"cannot be decompressed .*; copy or|not JSON|UTF-8"):
            read_texts(path)


def test_a_decompression_bomb_is_refused_before_it_unfolds(write):
    limits = ReadLimits(bytes=200_000)
    paths = write("a.jsonl.xz", bytes(24 << 20)), write("b.jsonl", lines(OK) * 50_000)
    tracemalloc.start()
    for large in paths:
        with pytest.raises(InputError, match="holds more than 200000 bytes of text; give fewer"):
            read_texts(large, limits=limits)
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


LONG = "word " * 40_000  # beyond the limit of the csv module, which is put back


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        (
            "a.csv",
            table([('one, "two"\nthree', 0), ("four\r\nfive", 1)], ","),
            ['one, "two"\nthree', "four\r\nfive"],
        ),
        ("a.tsv", 'text\tlabel\n"open\t0\nshut"\t1\n', ['"open', 'shut"']),
        ("a.csv", "\ufefftext,label\na,0\n\nb,1\n", ["a", "b"]),
        ("a.jsonl", "\ufeff" + lines(OK) + "\n" + lines({"text": "b", "label": 0}), ["a", "b"]),
        ("a.csv", table([(LONG, 0), ("b", 1)], ","), [LONG, "b"]),
    ],
    ids=["quotes and lines", "quotes in tsv", "byte order mark", "blank lines", "long"],
)
def test_what_a_file_may_hold(write, name, content, texts):
    csv.field_size_limit(131_072)
    assert read_texts(write(name, content)).texts == texts
    assert csv.field_size_limit() == 131_072


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("a.csv", "text;label\na, b;0\nc;1\n", {}),
        ("a.csv", "text\tlabel\na, b\t0\nc\t1\n", {}),
        ("a.csv", "sep=;\ntext;label\na, b;0\nc;1\n", {}),
        ("a.csv", 'text,label\r"a, b",0\rc,1\r', {}),
        ("a.csv", 'text,label,,\n"a, b",0,,\nc,1,,\n,,,\n', {}),
        ("a.csv", "\ufefftext;label\na, b;0\nc;1\n".encode("utf-16-le"), {}),
        ("a.csv.gz", 'text,label\n"a, b",0\nc,1\n'.encode("utf-16"), {}),
        ("a.csv", 'text,label\n"a, b",0\nc,1\n'.encode("utf-16-be"), {}),
        ("a.csv", 'text,label\n"a, b",0\nc,1\n'.encode("utf-32"), {}),
        ("a.csv", "text:label\na, b:0\nc:1\n", {"delimiter": ":"}),
        ("a.csv", "text\tlabel\na, b\t0\nc\t1\n", {"delimiter": r"\t"}),
        ("a.csv", '\n,,\n text , label \n"a, b",0\nc,1\n , \n', {"text": "text", "label": "label"}),
        ("a.csv", ',text,,label,,n,n\n0,"a, b",,0,,7,8\n1,c,,1\n', {}),
        ("a.csv", '"text", "label"\n"a, b", "0"\n"c", "1"\n', {}),
        ("a.csv", 'text,label\n"a, b",False\nc,TRUE\nd,true\ne,false\n', {}),
        ("a.jsonl", '{"text": "a, b", "label": false}\n{"text": "c", "label": 1}\n', {}),
        ("a.jsonl", '{"text": "a, b", "label": 0},\n{"text": "c", "label": 1}\n', {}),
        ("a.jsonl", '{"text": "a, b", "label": 0}\n{"text": "c", "label": 1.0}\n', {}),
        ("a.csv", 'text,label\n"a, b",0.0\nc,1\nc,1.0\nc,1\n', {"skip_empty": True}),
    ],
    ids=[
        *("semicolons", "tabs", "declared", "CR", "empty columns", "UTF-16", "compressed UTF-16"),
        *("UTF-16 without its mark", "UTF-32", "named delimiter", "tab of a shell"),
        *("empty rows around", "empty and repeated columns, short rows", "spaces before quotes"),
        *("capitals of truth values", "truth values and numbers"),
        *("trailing comma", "1.0", "1 and 1.0"),
    ],
)
def test_what_spreadsheets_and_programs_write(write, name, content, options):
    found = read_texts(write(name, content), **options)
    assert found.texts[:2] == ["a, b", "c"]
    assert found.labels.tolist()[:2] == [0, 1]
    assert set(found.labels) == {0, 1}


def test_an_encoding_is_named(write):
    path = write("a.csv", "text,label\ncafé,0\nthé,1\n".encode("cp1252"))
    assert read_texts(path, encoding="cp1252").texts == ["café", "thé"]
    with pytest.raises(InputError, match=r"not UTF-8 at byte 14 .* or name its encoding"):
        read_texts(path)
    with pytest.raises(InputError, match="is not ascii"):
        read_texts(path, encoding="ascii")
    with pytest.raises(InputError, match="encoding is 'klingon', which is none that Python knows"):
        read_texts(path, encoding="klingon")
    marked = write("b.csv", "\ufefftext,label\ncafé,0\nthé,1\n")
    assert read_texts(marked, encoding="cp1252").texts == ["café", "thé"]
    with pytest.raises(InputError, match=r"columns are text,label \(one; if .* option delimiter\)"):
        read_texts(marked, delimiter=";")
    with pytest.raises(InputError, match="encoding is 'rot13', which is none that Python knows"):
        read_texts(path, encoding="rot13")
    with pytest.raises(InputError, match="delimiter is ';;'; give one character"):
        read_texts(path, delimiter=";;")


def test_numbers_among_texts_are_texts_and_bytes_are_characters(write, tmp_path):
    path = write("a.jsonl", lines({"text": 2024, "label": 0}, {"text": "a", "label": 1}))
    assert read_texts(path).texts == ["2024", "a"]
    path = write("b.jsonl", lines({"text": True, "label": 0}, {"text": "a", "label": 1}))
    with pytest.raises(InputError, match="line 1: text is True; choose the column of the texts"):
        read_texts(path)
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"text": [b"a", "é".encode()], "label": [b"x", b"y"]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "c.parquet")
    found = read_texts(tmp_path / "c.parquet")
    assert (found.texts, found.class_names) == (["a", "é"], ("x", "y"))
    parquet.write_table(pyarrow.table(columns | {"text": [b"a", b"\xe9"]}), tmp_path / "c.parquet")
    with pytest.raises(InputError, match="row 2 holds bytes that are not UTF-8"):
        read_texts(tmp_path / "c.parquet")


def test_texts_and_labels_that_are_nearly_the_same_are_told(write):
    rows = [("a", "yes"), ("b", "Yes "), ("a", "no"), ("c", "YES"), ("d", "maybe"), ("e", "may be")]
    others = [(f"{k}", "no") for k in range(7)]
    path = write("a.csv", table([*rows, *others], ","))
    found = read_texts(path)
    assert found.repeated == 1
    assert found.alike == [["YES", "Yes", "yes"], ["may be", "maybe"]]
    notes = " ".join(attsvm.datasets.load(path).notes)
    assert "1 of 13 texts repeat others, and may be held out" in notes
    assert "The labels YES and Yes and yes differ in capitals or spaces alone; they are 3" in notes
    assert read_texts(path, classes=found.class_names).alike == []


@pytest.mark.parametrize("word", ["", "NA", "NaN", "NULL", "None", "null", "#N/A"])
def test_a_missing_label_is_no_class(write, word):
    path = write("a.csv", f"text,label\na,x\nb,{word}\nc,y\n")
    with pytest.raises(InputError, match="row 2 has no label"):
        read_texts(path)
    assert read_texts(path, skip_empty=True).class_names == ("x", "y")


def test_numbers_that_are_none_are_no_labels_and_words_of_json_are(write, tmp_path):
    path = write("a.jsonl", '{"text": "a", "label": NaN}\n{"text": "b", "label": 1}\n')
    with pytest.raises(InputError, match="line 1 has no label"):
        read_texts(path)
    words = write("b.jsonl", lines({"text": "a", "label": "NA"}, {"text": "b", "label": "EU"}))
    assert read_texts(words).class_names == ("EU", "NA")
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"text": ["a", "b", "c"], "label": [0.0, float("nan"), 1.0]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "c.parquet")
    with pytest.raises(InputError, match="row 2 has no label"):
        read_texts(tmp_path / "c.parquet")


def test_all_rows_that_lack_something_are_told_at_once(write):
    rows = [("", k % 2) for k in range(38)] + [("text", "") for _ in range(11)]
    path = write("a.csv", table([*rows, ("a", 0), ("b", 1), ("", "")], ","))
    places = (
        r"38 rows \(1, 2, 3, 4, 5, \.\.\.\) have no text and 11 rows \(39, 40, .*\) have no label"
    )
    with pytest.raises(InputError, match=places):
        read_texts(path)
    found = read_texts(path, skip_empty=True)
    assert (found.texts, found.skipped) == (["a", "b"], 49)


def test_the_positive_class_is_named(write, tmp_path):
    path = write("a.csv", "text,label\na,healthy\nb,cancer\n")
    assert read_texts(path).class_names == ("cancer", "healthy")
    found = read_texts(path, positive="cancer")
    assert (found.class_names, found.labels.tolist()) == (("healthy", "cancer"), [0, 1])
    with pytest.raises(InputError, match=r"positive is canser, .*; did you mean cancer"):
        read_texts(path, positive="canser")
    numbers = write("b.csv", "text,label\na,0.0\nb,1.0\n")
    assert read_texts(numbers, positive="0").class_names == ("1.0", "0.0")
    for name in ("pos", "neg"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.txt").write_text(name, encoding="utf-8")
    folder = read_texts(tmp_path, positive="neg")
    assert (folder.class_names, folder.labels.tolist()) == (("pos", "neg"), [1, 0])
