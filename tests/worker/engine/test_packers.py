"""Threads that pack checkpoints."""

from __future__ import annotations

import threading

from aegaeon_worker.engine.packers import Packers


def test_jobs_run_one_at_a_time_on_threads_that_end() -> None:
    packers = Packers()
    running: list[str] = []
    most: list[int] = []
    done: list[str] = []

    def job(name: str) -> None:
        running.append(name)
        most.append(len(running))
        running.remove(name)
        done.append(name)

    for name in "abc":
        packers.submit(job, name)
    for thread in packers._threads:
        thread.join(timeout=10)
    assert sorted(done) == ["a", "b", "c"]
    assert max(most) == 1
    assert not [thread for thread in threading.enumerate() if thread.name == "packer"]


def test_closing_waits_for_the_job_under_way_and_drops_the_others() -> None:
    packers = Packers()
    started, go_on = threading.Event(), threading.Event()
    done: list[str] = []

    def slow() -> None:
        started.set()
        assert go_on.wait(timeout=10)
        done.append("slow")

    packers.submit(slow)
    assert started.wait(timeout=10)
    packers.submit(done.append, "dropped")
    threading.Timer(0.05, go_on.set).start()
    packers.close()
    assert done == ["slow"]
