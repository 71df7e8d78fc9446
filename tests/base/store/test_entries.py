"""Entries: served for what decides them and nothing else; only what killed processes left is
removed.
"""

import numpy as np
import pytest
from filelock import Timeout

from attsvm.base.files import atomic_write
from attsvm.base.store import entry_path, environment, load_entry, save_entry
from attsvm.base.store.entries import alone, tidy


def test_an_entry_comes_back_with_what_is_said_about_it(tmp_path):
    path = entry_path(tmp_path, {"lr": 0.1}, "code")
    save_entry(path, {"W": np.arange(6.0).reshape(2, 3)}, seconds=1.5)
    arrays, about = load_entry(path)
    np.testing.assert_array_equal(arrays.pop("W"), [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])
    assert arrays == {}
    assert about == {"seconds": 1.5, "environment": environment()}


def test_parameters_code_and_versions_decide_where_an_entry_lies(tmp_path, monkeypatch):
    path = entry_path(tmp_path, {"lr": 0.1, "p": 3}, "code")
    assert path.parent == tmp_path
    assert entry_path(tmp_path, {"p": 3, "lr": 0.1}, "code") == path
    others = [
        entry_path(tmp_path, {"lr": 0.1, "p": 2}, "code"),
        entry_path(tmp_path, {"lr": 0.1, "p": 3}, "edited"),
    ]
    monkeypatch.setattr("attsvm.base.store.entries.versions", lambda: {"numpy": "99"})
    others.append(entry_path(tmp_path, {"lr": 0.1, "p": 3}, "code"))
    assert len({path, *others}) == 4


def test_one_at_a_time_and_no_lock_stays(tmp_path):
    path = entry_path(tmp_path, {}, "code")
    with alone(path), pytest.raises(Timeout), alone(path, wait=False):
        pass
    with alone(path, wait=False):
        pass
    assert list(tmp_path.iterdir()) == []


def test_only_what_killed_processes_left_is_tidied_away(tmp_path):
    folder, home = tmp_path / "kept", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    first, second = (entry_path(folder, {"seed": seed}, "code") for seed in (0, 1))
    for path in (first, second):
        save_entry(path, {"W": np.ones(2)})
        with atomic_write(path) as partial:
            partial.write_bytes(b"whole")
        partial.write_bytes(b"half of")  # as a kill leaves it
        path.with_name(f".{path.name}.lock").touch()
    entries = {path: path.read_bytes() for path in (first, second)}
    (home / "thesis").write_text("years of work")
    (folder / "notes.txt").write_text("years of work")
    link = folder / f".{first.stem}.0123abcd.partial.safetensors"
    link.symlink_to(home / "thesis")
    with alone(second):  # at work: what it has begun stays
        tidy(folder)
        left = {path.name for path in folder.iterdir()} - {link.name, "notes.txt"}
        assert {name for name in left if first.stem in name} == {first.name}
        assert len({name for name in left if second.stem in name}) == 3
    tidy(folder)
    assert {path.name for path in folder.iterdir()} == {
        *(first.name, second.name, link.name, "notes.txt")
    }
    assert {path: path.read_bytes() for path in entries} == entries
    assert (home / "thesis").read_text() == "years of work"


def test_a_folder_that_is_a_link_or_none_is_left_alone(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    leftover = home / f".{0:032x}.0123abcd.partial.safetensors"
    leftover.write_text("half of")
    (tmp_path / "link").symlink_to(home)
    tidy(tmp_path / "link")
    tidy(tmp_path / "nowhere")
    tidy(leftover)
    assert leftover.exists()
