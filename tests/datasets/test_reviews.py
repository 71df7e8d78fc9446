"""Movie reviews in every layout give the same texts; pictures of the hub are read from its
tables.
"""

import io
import json
import lzma

import numpy as np
import pytest

from attsvm.datasets import hub, image_set, imdb
from attsvm.datasets.image_sets import VARIABLE
from attsvm.errors import InputError

TRAIN = [("so dull", 0), ("a waste", 0), ("warm and funny", 1)]
TEST = [("I left", 0), ("again, please", 1)]


def unpacked(folder):
    for part, rows in (("train", TRAIN), ("test", TEST)):
        for k, (text, label) in enumerate(rows):
            home = folder / part / ("pos" if label else "neg")
            home.mkdir(parents=True, exist_ok=True)
            (home / f"{k}_7.txt").write_text(text, encoding="utf-8")
    return folder


def lines(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for part, rows in (("train", TRAIN), ("test", TEST)):
        with lzma.open(folder / f"{part}.jsonl.xz", "wt", encoding="utf-8") as file:
            file.writelines(
                json.dumps({"text": text, "label": label}) + "\n" for text, label in rows
            )
    return folder


def tables(folder):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for part, rows in (("train", TRAIN), ("test", TEST)):
        table = pyarrow.table(
            {"text": [text for text, _ in rows], "label": [label for _, label in rows]}
        )
        parquet.write_table(table, folder / f"{part}-00000-of-00001.parquet")
    return folder


def check(found):
    assert (found.train, found.test) == ([text for text, _ in TRAIN], [text for text, _ in TEST])
    assert found.train_labels.tolist() == [0, 0, 1]
    assert found.test_labels.tolist() == [0, 1]
    assert not found.complete
    assert len(set(found.sha256)) == 2


@pytest.mark.parametrize("write", [unpacked, lines])
def test_folders(tmp_path, monkeypatch, write):
    check(imdb(write(tmp_path / "imdb")))
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    check(imdb())


def test_the_authors_folder_is_found_by_its_name(tmp_path, monkeypatch):
    unpacked(tmp_path / "aclImdb")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    check(imdb())


def test_the_hub(tmp_path, monkeypatch):
    tables(tmp_path)
    asked = []
    monkeypatch.setattr(
        "attsvm.datasets.reviews.hub_file",
        lambda *told: asked.append(told) or tmp_path / told[1].split("/")[1],
    )
    check(imdb("hub"))
    assert asked[0] == ("stanfordnlp/imdb", "plain_text/train-00000-of-00001.parquet")


def test_a_hub_that_does_not_answer(monkeypatch):
    library = pytest.importorskip("huggingface_hub")

    def offline(*_, **__):
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(library, "hf_hub_download", offline)
    with pytest.raises(
        InputError, match=r"cannot be had from the hub \(no route to host\); go online"
    ):
        imdb("hub")


def test_pictures_of_the_hub(tmp_path, monkeypatch):
    pyarrow, parquet, image = (
        pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet", "PIL.Image")
    )
    pixels, labels = (
        np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8),
        [3, 0, 9, 1],
    )

    def encoded(array):
        stream = io.BytesIO()
        image.fromarray(array).save(stream, "PNG")
        return {"bytes": stream.getvalue(), "path": None}

    for part in ("train", "test"):
        table = pyarrow.table({"img": [encoded(array) for array in pixels], "label": labels})
        parquet.write_table(table, tmp_path / f"{part}-00000-of-00001.parquet")
    monkeypatch.setattr(hub, "hub_file", lambda _, name: tmp_path / name.split("/")[1])
    found = image_set("cifar10", "hub")
    assert np.array_equal(found.train, pixels)
    assert np.array_equal(found.test_labels, labels)
    (tmp_path / "test-00000-of-00001.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match="is not the hub's table of pictures"):
        image_set("cifar10", "hub")


def test_nothing_there(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="holds no reviews; a folder needs train and test"):
        imdb(tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(InputError, match="ATTSVM_DATA is not set"):
        imdb()


def test_damage_is_one_sentence(tmp_path):
    lines(tmp_path)
    (tmp_path / "test.jsonl.xz").write_bytes((tmp_path / "test.jsonl.xz").read_bytes()[:40])
    with pytest.raises(InputError, match="cannot be decompressed"):
        imdb(tmp_path)
