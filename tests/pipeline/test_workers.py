"""Workers: the same processes for every batch, errors where they belong, one job in this
process.
"""

import os

import pytest

from attsvm.pipeline.workers import Workers

TELL = (
    "import os, pathlib, time; time.sleep(0.05); pathlib.Path({!r}).write_text(f'{{os.getpid()}}"
    ' {{os.environ["OMP_NUM_THREADS"]}}\')'
)


def test_the_same_processes_work_for_all_batches(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    paths = [tmp_path / str(index) for index in range(12)]
    with Workers(exec, 2) as workers:
        batches = workers.start(
            [[(TELL.format(str(path)),) for path in part] for part in (paths[:1], paths[1:8])]
        )
        assert [len(list(batch)) for batch in batches] == [1, 7]
        (late,) = workers.start([[(TELL.format(str(path)),) for path in paths[8:]]])
        assert len(list(late)) == 4
    told = [path.read_text().split() for path in paths]
    processes = {process for process, _ in told}
    assert 1 <= len(processes) <= 2
    assert str(os.getpid()) not in processes
    assert {threads for _, threads in told} == {"1"}
    assert os.environ["OMP_NUM_THREADS"] == "7"


def test_an_error_is_raised_to_whoever_asks_for_its_batch(tmp_path):
    path = tmp_path / "done"
    with Workers(exec, 2) as workers:
        good, bad = workers.start([[(TELL.format(str(path)),)], [("1 / 0",)]])
        assert list(good) == [None]
        assert path.exists()
        with pytest.raises(ZeroDivisionError):
            list(bad)


@pytest.mark.parametrize(("jobs", "count"), [(1, 3), (2, 1)])
def test_a_single_process_is_this_one_and_works_when_asked(jobs, count):
    done: list[int] = []
    with Workers(done.append, jobs) as workers:
        (batch,) = workers.start([[(index,) for index in range(count)]])
        assert done == []
        assert next(batch) is None
        assert done == [0]
        assert len(list(batch)) == count - 1
    assert done == list(range(count))
