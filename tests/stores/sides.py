"""Cases that are written once, over connections of asyncio and of threads."""

import asyncio
import functools
import os
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Literal

import pytest

import dibs
import dibs.sync
from dibs.errors import BackendUnavailable
from dibs.model import Acquire, Command, Finding, Granted, Notification, Release, Released, Reply
from dibs.stores.port import Store
from dibs.stores.registry import store_for
from dibs.testing.conformance.users import now
from dibs.testing.conformance.world import step
from dibs.testing.connections import TestedConnection as Connection
from tests.connections import connection_to
from tests.servers.waiting import wait_until

type Mode = Literal["async", "blocking"]

KEY = b"lock:key"


class Side:
    """Connections and clients of asyncio or of a thread, closed when the case ends."""

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self._open: list[Any] = []

    def run(self, case: Coroutine[Any, Any, None]) -> None:
        """Run a case to its end."""
        if self.mode == "async":
            asyncio.run(self._closing(case))
        else:
            step(self._closing(case))

    async def _closing(self, case: Coroutine[Any, Any, None]) -> None:
        try:
            await case
        finally:
            await self.close()

    async def close(self) -> None:
        while self._open:
            await now(self._open.pop().close())

    async def open(self, where: str | Store, *, listen: bool = True) -> Any:
        """A connection that is open."""
        store = store_for(where) if isinstance(where, str) else where
        backend = connection_to(store, self.mode)
        self._open.append(backend)
        await backend.open(listen=listen)
        return backend

    def connect(self, client: Any) -> Any:
        """A client, by a URL or made already, that is closed with the case."""
        if isinstance(client, str):
            client = (dibs if self.mode == "async" else dibs.sync).connect(client)
        self._open.append(client)
        return client

    async def get(self, value: Any) -> Any:
        """What a method of the public API returns."""
        return await value if self.mode == "async" else value

    def start(self, call: Callable[[], Any]) -> Any:
        """Have a call wait in a task or thread of its own; `end` gives its result."""
        if self.mode == "async":
            return asyncio.ensure_future(call())
        future: Future[Any] = Future()

        def work() -> None:
            try:
                future.set_result(call())
            except BaseException as error:  # raised by `end`
                future.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        return future

    async def end(self, started: Any, within: float = 20.0) -> Any:
        """The result of a call that was started."""
        if self.mode == "async":
            return await asyncio.wait_for(started, within)
        return started.result(within)

    async def until(self, condition: Callable[[], Any], within: float = 20.0) -> None:
        """Wait for what no event tells of."""
        end = time.monotonic() + within
        while not await now(condition()):
            assert time.monotonic() < end, "it never came about"
            await self.pause(0.01)

    async def pause(self, seconds: float) -> None:
        """Let that much time pass."""
        if self.mode == "async":
            await asyncio.sleep(seconds)
        else:
            time.sleep(seconds)

    async def within(self, seconds: float, backend: Any, *commands: Command) -> Any:
        """The replies, if they come in time, as the batcher and callers in threads limit it."""
        if self.mode == "async":
            async with asyncio.timeout(seconds):
                return await backend.apply(commands)
        return backend.connection.apply(commands, seconds)

    async def again(
        self, backend: Connection, *commands: Command, within: float = 10.0
    ) -> list[Reply]:
        """The replies, as soon as the store is there."""
        end = time.monotonic() + within
        while True:
            try:
                return list(await backend.apply(commands))
            except BackendUnavailable:
                if time.monotonic() > end:
                    raise
                await self.pause(0.02)

    async def pushed(self, backend: Connection, event: str, within: float = 10.0) -> Notification:
        """The first push of that kind; a subscription that broke is made again on the way."""
        end = time.monotonic() + within
        while time.monotonic() < end:
            try:
                found = await backend.notifications(0.2)
            except BackendUnavailable:
                await self.pause(0.02)
                continue
            for notification in found:
                if notification.event == event:
                    return notification
        raise AssertionError(f"no {event!r} was pushed")

    async def hand_over(self, waiter: Any, other: Any, key: bytes = KEY) -> None:
        """A grant, a queue, a notification."""
        first, second = "a" * 22, "b" * 22
        await other.apply([acquire(first, key)])
        await waiter.apply([acquire(second, key, queue=True, inbox=waiter.inbox)])
        assert await other.apply([release(first, key)]) == [Released()]
        assert (await self.pushed(waiter, "granted")).key == key
        await waiter.apply([release(second, key)])

    async def resumed(self, backend: Connection, within: float = 10.0) -> None:
        """Wait until notifications come again, after they broke."""

        async def listens() -> bool:
            try:
                await backend.notifications(0.2)
            except BackendUnavailable:
                return False
            return True

        await self.until(listens, within)

    async def broken(self, backend: Connection, within: float = 10.0) -> BackendUnavailable:
        """What `notifications` raises when the subscription breaks."""
        end = time.monotonic() + within
        while time.monotonic() < end:
            try:
                await backend.notifications(0.2)
            except BackendUnavailable as error:
                return error
        raise AssertionError("the subscription did not break")


def _sides[**P](
    *modes: Mode,
) -> Callable[[Callable[P, Coroutine[Any, Any, None]]], Callable[P, None]]:
    mark = pytest.mark.parametrize("side", [*map(Side, modes)], ids=modes)
    return lambda case: mark(stepped(case))


both_sides, in_threads, in_tasks = _sides("async", "blocking"), _sides("blocking"), _sides("async")
"""Run a case with a `side` for asyncio and one for threads, or with one of them only.

In threads its coroutine never suspends: the connections of `side` block.
"""


def on[**P](*stores: str) -> Callable[[Callable[P, Coroutine[Any, Any, None]]], Callable[P, None]]:
    """Run a case of the fixture `place` and a `side` on each of these stores, for asyncio and threads."""
    pairs = [
        pytest.param(store, Side(mode), id=f"{store}-{mode}")
        for store in stores
        for mode in MODES.get(store, ("async", "blocking"))
    ]
    mark = pytest.mark.parametrize(("place", "side"), pairs, indirect=["place"])
    return lambda case: mark(stepped(case))


MODES: dict[str, tuple[Mode, ...]] = dict.fromkeys(
    ("etcd", "kubernetes", "nats", "s3", "temporal"), ("blocking",)
)
"""Threads use these stores through a connection of asyncio, so that their side tries both."""


def stepped[**P](case: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a case by its `side`."""

    @functools.wraps(case)
    def run(*args: P.args, **fixtures: P.kwargs) -> None:
        side: Any = fixtures["side"]
        side.run(case(*args, **fixtures))

    return run


def acquire(name: str = "a", key: bytes = KEY, ttl: float = 30.0, **more: Any) -> Acquire:
    """An Acquire by the id `name`."""
    return Acquire(key, name, f"owner-{name}", ttl, **more)


def release(name: str = "a", key: bytes = KEY) -> Release:
    """A Release by the id `name`."""
    return Release(key, name)


def granted(reply: Reply) -> Granted:
    """A reply that must be a grant."""
    assert isinstance(reply, Granted), reply
    return reply


def use(url: str, wait: float = 0.0) -> None:
    """A cycle of a new client."""
    with dibs.sync.connect(url) as client:
        client.lock("a").acquire(wait=wait).release()


def findings(url: str) -> dict[str, Finding]:
    """What `dibs doctor` reports, by its subjects."""
    with dibs.sync.connect(url) as client:
        return {each.about: each for each in client.examine()}


@contextmanager
def waiting(holder_url: str, waiter_url: str = "") -> Iterator[dibs.sync.Lease]:
    """A lease of the lock `a`. Another client waits for it, and gets it at the end of the block."""
    with (
        dibs.sync.connect(holder_url) as holder,
        dibs.sync.connect(waiter_url or holder_url) as waiter,
        ThreadPoolExecutor(1) as thread,
    ):
        held = holder.lock("a", ttl=60).acquire()
        turn = thread.submit(lambda: waiter.lock("a", ttl=60, wait=60).acquire().release())
        wait_until(lambda: holder.status("a").waiting, "it waits")
        yield held
        assert not turn.done()
        assert held.release()
        turn.result(60)


def forked(action: Callable[[], object]) -> int:
    """Do something in a forked child; return its process id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the test runner has threads
        pid = os.fork()
    if not pid:
        code = 1
        try:
            action()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def in_child(action: Callable[[], object], ends: int = 0) -> None:
    """Do something in a forked child, and see how that ends."""
    assert os.waitstatus_to_exitcode(os.waitpid(forked(action), 0)[1]) == ends
