"""The decorator for Celery's tasks, without a worker."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery  # type: ignore[import-untyped]

import dibs.sync
from dibs import AcquireTimeout, LeaseLost, current_lease
from dibs.contrib.celery import locked
from dibs.sync import Lease

app = Celery("tasks", broker="memory://", backend="cache+memory://")
client = dibs.sync.connect(f"memory://{uuid4()}")


@contextmanager
def held_elsewhere(name: str) -> Iterator[Lease]:
    """By another thread, as no thread waits for itself."""
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


def test_nobody_sends_it_again_there_so_it_fails() -> None:
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


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"on_busy": "wait"}, ValueError, "'retry', 'skip' or 'raise'"),
        ({"timeout": 3}, TypeError, "did you mean wait="),
        ({"ttl": 0}, ValueError, "ttl is 0"),
        ({"capacity": 0}, ValueError, "capacity is 0"),
        ({"countdown": "soon"}, ValueError, "countdown is 'soon'"),
        ({"template": "a:{user}"}, ValueError, "names 'user'"),
    ],
)
def test_wrong_options_are_told_at_decoration(
    options: dict[str, Any], error: type[Exception], told: str
) -> None:
    def function(user_id: int) -> None: ...

    with pytest.raises(error, match=told):
        locked(**{"template": "a", **options})(function)


def test_what_is_no_function_of_a_task_is_refused() -> None:
    async def coroutine() -> None: ...

    with pytest.raises(TypeError, match="no plain function"):
        locked("a")(coroutine)
    with pytest.raises(TypeError, match=r"below @app\.task"):
        locked("a")(sync)
