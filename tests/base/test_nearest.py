"""Misspelt names meet the one that is near."""

import pytest

from attsvm.base.errors import InputError
from attsvm.base.nearest import did_you_mean, file_meant
from attsvm.datasets import load


@pytest.mark.parametrize(
    ("name", "near"),
    [("sentence", "Sentence"), ("stars", ""), ("sentance", "Sentence"), ("REVIEW", "review")],
)
def test_the_nearest_name_is_told_in_any_case(name, near):
    told = did_you_mean(name, ["Sentence", "review", "id"])
    assert told == (f"; did you mean {near}?" if near else "")


def test_files_and_folders(tmp_path):
    (tmp_path / "reviews.csv").touch()
    (tmp_path / "sst2").mkdir()
    assert file_meant(tmp_path / "rewievs.csv") == "; did you mean reviews.csv?"
    assert file_meant(tmp_path / "stt2") == "; did you mean sst2?"
    assert file_meant(tmp_path / "missing" / "stt2") == ""


@pytest.mark.parametrize(
    ("file", "columns", "near"),
    [
        ("reviews.csv", {"text": "Sentnce", "label": "star"}, r"no column star; .*mean stars"),
        ("reviews.csv", {"label": "stars"}, r"no column called text; .*mean Sentnce"),
        ("rewievs.csv", {}, r"rewievs\.csv does not exist; .*mean reviews\.csv"),
        ("reviews.cvs", {}, r"names are .*; did you mean reviews\.csv"),
    ],
)
def test_data_sets_tell_it(tmp_path, file, columns, near):
    (tmp_path / "reviews.csv").write_text("Sentnce,stars\na good film,1\na bad film,0\n")
    with pytest.raises(InputError, match=rf"{near}\?$"):
        load(tmp_path / file, **columns)
