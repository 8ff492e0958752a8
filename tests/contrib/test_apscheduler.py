"""APScheduler in several places: one of them runs the job."""

import queue
import runpy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from apscheduler.events import EVENT_JOB_EXECUTED  # type: ignore[import-untyped]
from apscheduler.schedulers.background import BackgroundScheduler  # type: ignore[import-untyped]

from dibs.sync import connect
from tests.pages import write_files


def test_one_scheduler_runs_the_job_of_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_files("integrations/apscheduler.md", tmp_path)
    (job,) = runpy.run_path(str(tmp_path / "jobs.py"))["scheduler"].get_jobs()
    done: queue.SimpleQueue[object] = queue.SimpleQueue()
    with connect(f"sqlite:///{tmp_path}/leases.db", default=True), running(3) as schedulers:
        for scheduler in schedulers:
            scheduler.add_listener(done.put, EVENT_JOB_EXECUTED)
            scheduler.add_job(job.func, misfire_grace_time=None)  # now
        for _ in schedulers:
            done.get(timeout=30)
    assert capsys.readouterr().out.count("report, with token") == 1


@contextmanager
def running(number: int) -> Iterator[list[BackgroundScheduler]]:
    schedulers = [BackgroundScheduler(timezone="UTC") for _ in range(number)]
    for scheduler in schedulers:
        scheduler.start()
    try:
        yield schedulers
    finally:
        for scheduler in schedulers:
            scheduler.shutdown()
