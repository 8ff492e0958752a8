"""Locked tasks in a real worker of Celery's: two forked processes, a Redis between."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dibs.sync
from tests.servers.process import ServerProcess
from tests.servers.redis import RedisServer
from tests.servers.waiting import wait_until

pytestmark = [pytest.mark.once, pytest.mark.multiprocess]

ROOT = Path(__file__).resolve().parents[2]
LONG = 60.0


class Worker:
    """The tasks of `celery_tasks`, where they are run, and what they write down."""

    def __init__(self, folder: Path, tasks: Any) -> None:
        self.tasks = tasks
        self.notes = folder / "notes"
        self.client = dibs.sync.connect(f"sqlite:///{folder / 'leases.db'}")

    def lines(self, *words: object) -> list[list[str]]:
        text = self.notes.read_text() if self.notes.exists() else ""
        start = list(map(str, words))
        return [x for line in text.splitlines() if (x := line.split())[: len(start)] == start]


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    folder = tmp_path_factory.mktemp("celery")
    with pytest.MonkeyPatch.context() as patch, RedisServer(tmp_path_factory.mktemp("b")) as broker:
        patch.setenv("BROKER", broker.url)
        patch.setenv("LEASES", f"sqlite:///{folder / 'leases.db'}")
        patch.setenv("NOTES", str(folder / "notes"))
        patch.setenv("PYTHONPATH", f"{ROOT / 'src'}{os.pathsep}{ROOT}")
        command = [sys.executable, "-m", "celery", "-A", "tests.contrib.celery_tasks", "worker"]
        options = (
            "--pool prefork -c 2 --without-gossip --without-mingle --without-heartbeat -l INFO"
        )
        log = folder / "celery.log"
        process = ServerProcess([*command, *options.split()], log=log, end_signal=signal.SIGTERM)
        try:
            from tests.contrib import celery_tasks

            process.wait_until(lambda: " ready." in log.read_text(), "was ready")
            yield Worker(folder, celery_tasks)
        finally:
            process.stop()
            print(log.read_text())


def test_tasks_of_one_key_run_one_after_the_other(worker: Worker) -> None:
    tasks = [worker.tasks.sync.delay(7, 0.1) for _ in range(4)]
    other = worker.tasks.sync.delay(8, 0)
    retries = [task.get(timeout=LONG) for task in tasks]
    other.get(timeout=LONG)
    lines = worker.lines("begin", 7) + worker.lines("end", 7)
    order = [line for line in worker.lines() if line in lines]
    assert len(order) == 8
    for begin, end in zip(order[::2], order[1::2], strict=True):
        assert (begin[0], end[0], begin[2]) == ("begin", "end", end[2])
    assert retries == [0] * 4, "waiting used up no retries: the task has none"


def test_the_pause_before_another_try_follows_the_time_held(worker: Worker) -> None:
    """Half of it to all of it, and 0.5 to 1 s for a lock that was just taken."""

    def first_pause(task: Any) -> float:
        lines = wait_until(lambda: worker.lines("pause", task.id), "it is tried again")
        return float(lines[0][2])

    def held_for() -> float:
        return worker.client.status("brief").holders[0].held_for

    with worker.client.lock("brief", ttl="10m"):
        new = worker.tasks.brief.delay()
        assert 0.5 <= first_pause(new) <= 2, "a busy machine may start it late"
        wait_until(lambda: held_for() > 2.5, "time passes")
        old = worker.tasks.brief.delay()
        assert 1.25 <= first_pause(old) <= held_for()
    assert [task.get(timeout=LONG) for task in (new, old)] == ["done"] * 2


def test_a_task_that_expires_is_not_sent_again(worker: Worker) -> None:
    with worker.client.lock("sync:9"):
        task = worker.tasks.sync.apply_async((9, 0), expires=0.5)
        wait_until(lambda: task.state == "REVOKED", "it has expired")
    assert worker.lines("begin", 9) == []


def test_a_lease_is_renewed_while_the_task_runs_and_is_the_childs_own(worker: Worker) -> None:
    pid, owner = worker.tasks.outlives_its_ttl.delay().get(timeout=LONG)
    assert owner.split("/")[1] == str(pid)
    assert pid != os.getpid()


def test_on_busy(worker: Worker) -> None:
    tasks = worker.tasks
    with worker.client.lock("report"):
        assert tasks.skips.delay().get(timeout=LONG) == "skipped"
        failed = tasks.raises.delay()
        assert "held by" in str(failed.get(timeout=LONG, propagate=False))
        assert failed.state == "FAILURE"
        later = tasks.retried_by_celery.delay()
        wait_until(lambda: later.state == "RETRY", "it is tried again")
    assert later.get(timeout=LONG) == "done"
    assert tasks.skips.delay().get(timeout=LONG) == "done"


def test_a_semaphore_lets_so_many_run(worker: Worker) -> None:
    with worker.client.semaphore("pool", 2).acquire(), worker.client.semaphore("pool", 2) as last:
        waits = worker.tasks.of_two.delay()
        wait_until(lambda: waits.state == "RETRY", "both are taken")
        slot = last.slot
    assert waits.get(timeout=LONG) in (0, 1)
    assert slot == 1


def test_the_task_of_a_killed_worker_runs_again_after_its_lease(worker: Worker) -> None:
    task = worker.tasks.killed_at_first.delay()
    [[_, pid, token]] = wait_until(lambda: worker.lines("killed"), "the task runs")
    os.kill(int(pid), signal.SIGKILL)
    assert task.get(timeout=LONG) > int(token)
    assert len(worker.lines("killed")) == 2
