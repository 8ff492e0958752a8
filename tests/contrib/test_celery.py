"""Locked tasks of Celery's: called directly, and in a real worker of two processes with a Redis between."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery  # type: ignore[import-untyped]

import dibs.sync
from dibs import AcquireTimeout
from dibs.contrib.celery import locked
from dibs.sync import current_lease
from tests.locks.worlds import World
from tests.servers.process import ServerProcess
from tests.servers.redis import RedisServer
from tests.servers.waiting import wait_until

app = Celery("tasks", broker="memory://", backend="cache+memory://")
client = dibs.sync.connect(f"memory://{uuid4()}")


@app.task(bind=True)
@locked("sync:{user_id}", client=client)
def sync(self: Any, user_id: int, *, full: bool = False) -> tuple[str, int]:
    return current_lease().key.decode(), self.request.retries


@app.task
@locked("outer", client=client, on_busy="skip", default="skipped")
def outer() -> None:
    client.lock("inner").acquire(wait=0)


def test_a_task_called_directly_and_eagerly() -> None:
    assert sync(7) == ("lock:sync:7", 0)
    assert sync.apply(args=(7,), kwargs={"full": True}).get() == ("lock:sync:7", 0)
    assert not client.lock("sync:7").locked()
    with pytest.raises(TypeError, match="user_id"):
        sync.delay()  # Celery still checks the arguments


def test_without_a_worker_a_busy_task_fails() -> None:
    locks = [client.lock(name) for name in ("sync:7", "inner", "outer")]
    with ThreadPoolExecutor(1) as elsewhere:
        busy, inner, outermost = (elsewhere.submit(lock.acquire).result() for lock in locks)
        with pytest.raises(AcquireTimeout) as error:
            sync(7)
        assert [holder.owner for holder in error.value.holders] == [busy.owner]
        assert isinstance(sync.apply(args=(7,)).result, AcquireTimeout)
        assert outer() == "skipped"
        elsewhere.submit(outermost.release).result()
        with pytest.raises(AcquireTimeout, match="inner is held"):
            outer()  # a contention within the body is the body's own
        for lease in (busy, inner):
            elsewhere.submit(lease.release).result()


def test_a_capacity_lets_several_run() -> None:
    @locked("pool", capacity=2, client=client)
    def slot() -> int:
        return current_lease().slot

    pool = client.semaphore("pool", 2)
    with pool:
        assert slot() == 1
        with pool, pytest.raises(AcquireTimeout):
            slot()


def test_mistakes_are_errors_at_decoration() -> None:
    def function(user_id: int) -> None: ...

    async def coroutine() -> None: ...

    wrong: list[tuple[dict[str, Any], Any, type[Exception], str]] = [
        ({"on_busy": "wait"}, function, ValueError, "'retry', 'skip' or 'raise'"),
        ({"countdown": "soon"}, function, ValueError, "countdown is 'soon'"),
        ({"template": "a:{user}"}, function, ValueError, "names 'user'"),
        ({}, coroutine, TypeError, "no plain function"),
        ({}, sync, TypeError, r"below @app\.task"),
    ]
    for options, decorated, error, message in wrong:
        with pytest.raises(error, match=message):
            locked(**{"template": "a", **options})(decorated)


@pytest.mark.parametrize(("held_for", "pause"), [(0, 1), (20, 20), (3600, 60)])
def test_the_pause_before_another_try_follows_the_time_held(
    monkeypatch: pytest.MonkeyPatch, held_for: float, pause: float
) -> None:
    """Half of it to all of it, with bounds."""
    world, pauses = World("sync"), list[float]()

    def retry(*, exc: Exception, countdown: float) -> None:
        pauses.append(countdown)

    request = SimpleNamespace(called_directly=False, is_eager=False, retries=0)
    current = SimpleNamespace(request=request, retry=retry)
    monkeypatch.setattr("dibs.contrib.celery.current_task", current)
    task: Callable[[], None] = locked("a", client=world.another())(lambda: None)
    with world.client.lock("a"):
        world.clock.advance(held_for)
        for _ in range(10):
            with pytest.raises(AcquireTimeout):
                task()
    assert pause / 2 <= min(pauses) < max(pauses) <= pause


ROOT = Path(__file__).resolve().parents[2]
LONG = 60.0


class Worker:
    """The tasks of `celery_tasks`, where they are run, and what they write down."""

    def __init__(self, folder: Path, tasks: Any) -> None:
        self.tasks = tasks
        self.folder = folder

    @property
    def log(self) -> str:
        return (self.folder / "celery.log").read_text()

    def lines(self, *words: object) -> list[list[str]]:
        """Those that begin with these words."""
        lines = [line.split() for line in (self.folder / "notes").read_text().splitlines()]
        return [line for line in lines if line[: len(words)] == list(map(str, words))]


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    folder = tmp_path_factory.mktemp("celery")
    (folder / "notes").touch()
    with pytest.MonkeyPatch.context() as patch, RedisServer(tmp_path_factory.mktemp("b")) as broker:
        patch.setenv("BROKER", broker.url)
        patch.setenv("LEASES", f"sqlite:///{folder / 'leases.db'}")
        patch.setenv("NOTES", str(folder / "notes"))
        patch.setenv("PYTHONPATH", f"{ROOT / 'src'}{os.pathsep}{ROOT}")
        options = (
            "--without-gossip --without-mingle --without-heartbeat --pool prefork -c 2 -l INFO"
        )
        command = ["-m", "celery", "-A", "tests.contrib.celery_tasks", "worker", *options.split()]
        log = folder / "celery.log"
        process = ServerProcess([sys.executable, *command], log=log, end_signal=signal.SIGTERM)
        try:
            from tests.contrib import celery_tasks

            process.wait_until(lambda: " ready." in log.read_text(), "was ready")
            yield Worker(folder, celery_tasks)
        finally:
            process.stop()
            print(log.read_text())


@pytest.mark.once
@pytest.mark.multiprocess
def test_tasks_of_one_key_run_one_after_the_other(worker: Worker) -> None:
    tasks = [worker.tasks.sync.delay(7, 0.1) for _ in range(4)]
    assert [task.get(timeout=LONG) for task in tasks] == [0] * 4, "waiting uses up no retries"
    lines = [line for line in worker.lines() if line[1] == "7"]
    assert len(lines) == 8
    for begin, end in zip(lines[::2], lines[1::2], strict=True):
        assert (begin[0], end[0], begin[2]) == ("begin", "end", end[2])
    leases = dibs.sync.connect(f"sqlite:///{worker.folder}/leases.db")
    with leases, leases.lock("sync:9"):
        late = worker.tasks.sync.apply_async((9, 0), expires=1.5)  # seconds
        # not `late.state`: the try before it can write its own state after that
        gone = f"Discarding revoked task: tests.contrib.celery_tasks.sync[{late.id}]"
        wait_until(lambda: gone in worker.log, "it has expired, and is not sent again")
    assert worker.lines("begin", 9) == []


@pytest.mark.once
@pytest.mark.multiprocess
def test_the_task_of_a_killed_worker_runs_again_after_its_lease(worker: Worker) -> None:
    task = worker.tasks.killed_at_first.delay()
    wait_until(lambda: worker.lines("is", "held", "still"), "the task runs")
    [[_, pid, token]] = worker.lines("killed")
    os.kill(int(pid), signal.SIGKILL)
    assert task.get(timeout=LONG) > int(token)
    assert len(worker.lines("killed")) == 2
