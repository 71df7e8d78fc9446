import numpy as np
import pytest

from attsvm.base.errors import InputError
from attsvm.base.store import Stages, environment, remove_stages
from attsvm.base.store.stages import stage_environments


def test_a_stage_goes_from_absent_to_partial_to_done_bit_for_bit(tmp_path):
    stages, array = Stages(tmp_path, "key"), np.random.default_rng(0).normal(size=(3, 4)) * 1e-300
    assert stages.load("joint") == (None, False)
    for step, done in ((3, False), (9, True)):
        stages.save("joint", {"step": np.array(step), "W": array}, done=done)
        arrays, ended = Stages(tmp_path, "key").load("joint")
        assert (int(arrays["step"]), ended) == (step, done)
        assert arrays["W"].tobytes() == array.tobytes()
    assert not list(tmp_path.glob("*partial*"))


def test_the_checkpoint_of_another_computation_is_refused(tmp_path):
    Stages(tmp_path, "key")
    with pytest.raises(InputError, match="holds the checkpoint of another computation"):
        Stages(tmp_path, "other")


def test_stages_tell_in_which_environments_they_were_computed(tmp_path, monkeypatch):
    assert stage_environments(tmp_path) == []
    here = environment()
    Stages(tmp_path, "key")
    Stages(tmp_path, "key")
    assert stage_environments(tmp_path) == [here]
    moon = {**here, "platform": "moon"}
    monkeypatch.setattr("attsvm.base.store.stages.environment", lambda: moon)
    Stages(tmp_path, "key").save("s", {"W": np.ones(2)}, done=False)
    assert stage_environments(tmp_path) == [here, moon]


def test_files_of_others_in_the_folder_stay(tmp_path):
    for name in ("notes.txt", ".s.mine.partial.safetensors"):
        (tmp_path / name).write_text("years of work")
    stages = Stages(tmp_path, "key")
    stages.save("s", {"W": np.ones(2)}, done=False)
    stages.save("s", {"W": np.ones(2)}, done=True)
    (tmp_path / "t.done.safetensors").write_text("years of work")
    with pytest.raises(InputError, match="is in the way"):
        stages.save("t", {"W": np.ones(2)}, done=True)
    remove_stages(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *(".s.mine.partial.safetensors", "notes.txt", "t.done.safetensors")
    ]


def test_without_a_folder_nothing_is_kept(tmp_path):
    stages = Stages(None, "key")
    stages.save("s", {"W": np.zeros(2)}, done=True)
    assert stages.load("s") == (None, False)
    assert list(tmp_path.iterdir()) == []
