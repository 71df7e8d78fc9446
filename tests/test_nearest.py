"""Misspelt names of columns, files, folders, data sets and norms meet the one that is near."""

import json

import pytest

from attsvm.datasets import load
from attsvm.errors import InputError
from attsvm.nearest import did_you_mean
from attsvm.report import write


@pytest.fixture
def reviews(tmp_path):
    path = tmp_path / "reviews.csv"
    path.write_text("Sentnce,stars\na good film,1\na bad film,0\n")
    return path


@pytest.mark.parametrize(
    ("name", "near"),
    [("sentence", "Sentence"), ("stars", ""), ("sentance", "Sentence"), ("REVIEW", "review")],
)
def test_the_nearest_name_is_told_in_any_case(name, near):
    told = did_you_mean(name, ["Sentence", "review", "id"])
    assert told == (f"; did you mean {near}?" if near else "")


def test_columns(reviews):
    with pytest.raises(InputError, match=r"has no column star; .*; did you mean stars\?$"):
        load(reviews, text="Sentnce", label="star")
    with pytest.raises(InputError, match=r"has no column called text; .*did you mean Sentnce\?$"):
        load(reviews, label="stars")


def test_files_and_folders(reviews, tmp_path):
    with pytest.raises(InputError, match=r"rewievs\.csv does not exist; .*mean reviews\.csv\?$"):
        load(tmp_path / "rewievs.csv")
    with pytest.raises(InputError, match=r"names are .*; did you mean reviews\.csv\?$"):
        load(tmp_path / "reviews.cvs")
    (tmp_path / "sst2").mkdir()
    (tmp_path / "sst2" / "run.json").write_text(json.dumps({}))
    with pytest.raises(InputError, match=r"is not a folder; .*; did you mean sst2\?$"):
        write(tmp_path / "stt2")
