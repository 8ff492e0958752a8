"""A client that is closed during its first connect, at every await of it: nothing hangs, nothing is left."""

import asyncio
import gc
import os
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import dibs
import dibs.sync
from dibs import Client, DibsError
from tests.runtime.conftest import SHARED, url_of
from tests.server.world import World
from tests.servers.waiting import wait_until

STORES = (*SHARED, "https", "temporal")


class Paused:
    """An awaitable that tells when it has been suspended `at` times; what it waits for goes on."""

    def __init__(self, inner: Callable[[], Any], at: int) -> None:
        self._inner = inner
        self._at = at
        self.reached = asyncio.Event()
        self.over = False

    def __await__(self) -> Generator[Any, Any, None]:
        steps = self._inner().__await__()
        send: Callable[..., Any] = steps.send
        value: Any = None
        try:
            while True:
                waits_for = send(value)
                self._at -= 1
                if self._at == 0:
                    self.reached.set()
                try:
                    send, value = steps.send, (yield waits_for)
                except BaseException as error:  # a cancellation is passed on
                    send, value = steps.throw, error
        except StopIteration:
            pass
        finally:
            self.over = True
            self.reached.set()


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "https":
        world = World.over(tmp_path)
        yield world.url.replace("://", f"://{world.admin_key}@")
        world.close()
    elif request.param == "temporal":
        server = request.getfixturevalue("temporal_server")
        yield server.url
    else:
        yield url_of(request.param, request, tmp_path)


def open_files(url: str) -> int:
    """But for those of Temporal's SDK, which are its own affair."""
    return 0 if url.startswith("temporal") else len(os.listdir("/proc/self/fd"))


async def close_at(url: str, step: int, *, cancelled: bool) -> bool:
    """Close a client at that await of its first connect; tell whether there was one."""
    client = dibs.connect(url)
    runtime = client.session.loop_runtime()
    backend: Any = runtime.connection
    opening = Paused(backend.open, step)
    backend.open = lambda: opening
    trying = asyncio.create_task(_try(client))
    await opening.reached.wait()
    was_within = not opening.over
    if cancelled:
        trying.cancel()
        await asyncio.wait((trying,))
    await client.close()
    await asyncio.wait((trying,))
    assert trying.cancelled() or isinstance(trying.exception(), (DibsError, type(None)))
    return was_within


async def _try(client: Client) -> None:
    lease = await client.lock("x").try_acquire()
    if lease is not None:
        await lease.release()


@pytest.mark.once
@pytest.mark.parametrize(
    ("url", "cancelled"),
    [(store, False) for store in STORES] + [("redis", True), ("https", True)],
    indirect=["url"],
)
async def test_a_client_may_be_closed_at_every_await_of_its_first_connect(
    url: str, cancelled: bool
) -> None:
    async with asyncio.timeout(120):
        await close_at(url, 10_000, cancelled=cancelled)  # what is loaded once is there
        before, tasks = open_files(url), asyncio.all_tasks()
        step = 1
        while await close_at(url, step, cancelled=cancelled):
            step += 1
        async with asyncio.timeout(30):
            while asyncio.all_tasks() != tasks or open_files(url) > before:
                gc.collect()  # libpq hangs up with the last reference
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("url", ["sqlite", "redis", "https"], indirect=True)
async def test_what_gathers_in_the_turn_of_a_close_is_not_held_after_it(url: str) -> None:
    client, other = dibs.connect(url), dibs.connect(url)
    held = await other.lock("a").acquire()
    waiting = asyncio.create_task(client.lock("a").acquire())
    while not (await other.status("a")).waiters:
        await asyncio.sleep(0.001)
    locks = [client.lock(f"a-{n}") for n in range(5)]
    gathered = [asyncio.create_task(lock.acquire()) for lock in locks]
    await asyncio.sleep(0)
    await client.close()
    async with asyncio.timeout(20):
        await asyncio.wait((*gathered, waiting))
    assert isinstance(waiting.exception(), DibsError)
    for task, lock in zip(gathered, locks, strict=True):
        assert isinstance(task.exception(), DibsError) or task.result().reason == "closed"
        assert not await other.lock(lock.name).locked()
    await held.release()
    await other.close()


@pytest.mark.parametrize("url", ["sqlite", "redis"], indirect=True)
def test_a_thread_that_waits_when_its_client_is_closed_gets_no_lease(url: str) -> None:
    with dibs.sync.connect(url) as other, other.lock("x").acquire():
        client = dibs.sync.connect(url)
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(client.lock("x", wait=20).acquire)
            wait_until(lambda: other.status("x").waiters, "it waits")
            client.close()
            assert isinstance(waiting.exception(15), DibsError)
            assert not isinstance(waiting.exception(), dibs.AcquireTimeout)
