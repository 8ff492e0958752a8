"""The decorator for Celery's tasks, without a worker."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery  # type: ignore[import-untyped]

import dibs.sync
from dibs import AcquireTimeout, LeaseLost
from dibs.contrib.celery import locked
from dibs.sync import Lease, current_lease

app = Celery("tasks", broker="memory://", backend="cache+memory://")
client = dibs.sync.connect(f"memory://{uuid4()}")


@contextmanager
def held_elsewhere(name: str) -> Iterator[Lease]:
    with ThreadPoolExecutor(1) as thread:
        lease = thread.submit(client.lock(name).acquire).result()
        yield lease
        lease.release()


@app.task(bind=True)
@locked("sync:{user_id}", client=client)
def sync(self: Any, user_id: int, *, full: bool = False) -> tuple[str, int]:
    """Docs."""
    lease = current_lease()
    return lease.key.decode(), self.request.retries


def test_a_task_called_directly_and_eagerly() -> None:
    assert sync(7) == ("lock:sync:7", 0)
    assert sync.apply(args=(7,), kwargs={"full": True}).get() == ("lock:sync:7", 0)
    assert sync.__doc__ == "Docs."
    assert not client.lock("sync:7").locked()


def test_without_a_worker_a_busy_task_fails() -> None:
    with held_elsewhere("sync:7") as lease:
        with pytest.raises(AcquireTimeout) as busy:
            sync(7)
        eager = sync.apply(args=(7,))
        assert eager.state == "FAILURE"
        assert isinstance(eager.result, AcquireTimeout)
    assert [holder.owner for holder in busy.value.holders] == [lease.owner]


def test_celery_still_checks_the_arguments() -> None:
    with pytest.raises(TypeError, match="user_id"):
        sync.delay()
    with pytest.raises(TypeError, match="ful"):
        sync.delay(7, ful=True)


def test_a_contention_within_the_body_is_the_bodys_own() -> None:
    @app.task
    @locked("outer", client=client, on_busy="skip", default="skipped")
    def outer() -> None:
        client.lock("inner").acquire(wait=0)

    with held_elsewhere("inner"), pytest.raises(AcquireTimeout, match="inner is held"):
        outer()
    with held_elsewhere("outer"):
        assert outer() == "skipped"


def test_a_lost_lease_fails_the_task() -> None:
    @app.task
    @locked("lost", client=client)
    def lost() -> str:
        client.lock("lost").revoke(reason="a test", now=True)
        assert current_lease().wait_lost(20)
        return "done"

    result = lost.apply()
    assert result.state == "FAILURE"
    assert isinstance(result.result, LeaseLost)


def test_mistakes_are_errors_at_decoration() -> None:
    def function(user_id: int) -> None: ...

    async def coroutine() -> None: ...

    wrong: list[tuple[dict[str, Any], Any, type[Exception], str]] = [
        ({"on_busy": "wait"}, function, ValueError, "'retry', 'skip' or 'raise'"),
        ({"timeout": 3}, function, TypeError, "did you mean wait="),
        ({"countdown": "soon"}, function, ValueError, "countdown is 'soon'"),
        ({"template": "a:{user}"}, function, ValueError, "names 'user'"),
        ({}, coroutine, TypeError, "no plain function"),
        ({}, sync, TypeError, r"below @app\.task"),
    ]
    for options, decorated, error, message in wrong:
        with pytest.raises(error, match=message):
            locked(**{"template": "a", **options})(decorated)
