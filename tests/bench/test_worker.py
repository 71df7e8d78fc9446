"""Whatever a job does, the call comes back, says what happened, and the next job is served."""

import time

from attsvm.bench.worker import FAILED, OVER, Worker, cpu_limit


def test_it_survives_jobs_that_spin_sleep_raise_and_die(strange, capfd):
    began = time.perf_counter()
    with Worker(strange.work, threads=1, grace=0.5) as worker:
        assert worker("fine", 0.3) == {"outcome": "finished", "what": "fine", "threads": "1"}
        assert worker("spin", 0.3)["outcome"] == OVER
        assert worker("fine", 0.3)["what"] == "fine"
        assert worker("raise", 0.3) == {"outcome": FAILED, "reason": "ArithmeticError: no pivot"}
        assert worker("die", 0.3) == {
            "outcome": FAILED,
            "reason": "the process ended with signal 11",
        }
        assert worker("sleep", 0.1) == {
            "outcome": OVER,
            "reason": "ended after 0.8 s of wall clock",
        }
        process = worker._process
    assert process is None
    # the limits are 0.3 s; the rest is starting five processes on a busy machine
    assert time.perf_counter() - began < 60
    assert "noise" not in capfd.readouterr().out


def test_a_process_that_died_between_jobs_is_a_failure_and_then_replaced(strange):
    with Worker(strange.work) as worker:
        worker("fine", 1.0)
        worker._process.kill()
        worker._process.join()
        assert worker("fine", 1.0) == {
            "outcome": FAILED,
            "reason": "the process ended with signal 9",
        }
        assert worker("fine", 1.0)["what"] == "fine"


def test_a_process_that_never_answers_is_over_the_limit(strange):
    with Worker(strange.work, startup=0.0) as worker:
        assert worker("fine", 1.0) == {"outcome": OVER, "reason": "not ready after 0 s"}


def test_the_limit_counts_cpu_time_and_not_waiting():
    with cpu_limit(0.05):
        time.sleep(0.2)  # would have ended this process if it counted


def test_cpu_time_is_fine_again_after_a_limit():
    with cpu_limit(10.0):
        pass
    # the kernel notices at one of its next ticks, late on a busy machine
    fine, ends = 0, time.perf_counter() + 5.0
    while fine < 5 and time.perf_counter() < ends:
        start = time.process_time()
        sum(range(10_000))
        step = time.process_time() - start
        # in ticks of 4 ms a step is nothing or a whole tick
        fine = fine + 1 if 0.0 < step < 0.003 else 0
    assert fine == 5
