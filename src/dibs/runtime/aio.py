"""The asyncio side: tasks wait in futures, and a loss reaches a body as a cancellation."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakMethod

from dibs.clock import Clock, alarms_of
from dibs.errors import BackendUnavailable, DibsError
from dibs.model import Capabilities, Command, Finding, Inspect, Notification, Page, Status
from dibs.process import on_fork
from dibs.runtime.batcher import Batcher, Call
from dibs.runtime.holding import HeldByOwner
from dibs.runtime.keeper import StoreKeeper
from dibs.runtime.notifications import NotificationRouter, Receiver
from dibs.runtime.port import CallResult, TimedReply
from dibs.stores.port import AsyncConnection, Store


class TaskJob:
    """A task that is held for as long as its job is."""

    __slots__ = ("_task",)

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    async def join(self, timeout: float | None) -> bool:
        """Wait until it has ended; return whether it has. To be cancelled meanwhile leaves it alone."""
        done, _ = await asyncio.wait((self._task,), timeout=timeout)
        return bool(done)

    def cancel(self) -> None:
        self._task.cancel()


log: logging.Logger = logging.getLogger("dibs")

SCANNED = 100
"""Keys in one page of a scan."""

READS = 32
"""Reads in a batch, at most: a renewal of the same connection waits for one such batch at most."""


class AsyncSignal:
    """A future that any thread may set, with a timeout on the clock in use."""

    __slots__ = ("_clock", "_future", "_loop", "value")

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._future: asyncio.Future[None] = loop.create_future()
        self.value: Any = None

    def set(self, value: object = None) -> None:
        if asyncio._get_running_loop() is self._loop:
            self._resolve(value)
        else:
            with suppress(RuntimeError):  # the loop is closed, and nobody waits in it any more
                self._loop.call_soon_threadsafe(self._resolve, value)

    async def wait(self, timeout: float | None) -> bool:
        cancel = None if timeout is None else self._call_later(timeout)
        try:
            await self._future
        finally:
            if cancel is not None:
                cancel()
        return self.value is not _TIMEOUT

    def _resolve(self, value: object) -> None:
        if not self._future.done():
            self.value = value
            self._future.set_result(None)

    def _call_later(self, timeout: float) -> Callable[[], None]:
        at = alarms_of(self._clock)
        if at is None:
            return self._loop.call_later(timeout, self._resolve, _TIMEOUT).cancel
        cancel: Callable[[], None] = at(self._clock.now() + timeout, lambda: self.set(_TIMEOUT))
        return cancel


_TIMEOUT = object()


class TaskGuard:
    """Cancels the task that entered, by the rules of `asyncio.timeout`.

    A cancellation of ours is taken back on leaving. The caller raises `LeaseLost` only if nobody else
    has cancelled the task meanwhile, and never replaces the body's own exception.
    """

    __slots__ = ("_at_entry", "_cancelled", "_loop", "_task")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._task: asyncio.Task[Any] | None = None
        self._at_entry = 0
        self._cancelled = False

    def enter(self) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._at_entry = task.cancelling()
        self._task = task

    def fire(self) -> None:
        if self._task is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None and not self._cancelled:
            self._cancelled = True
            self._task.cancel("the lease was lost")

    def leave(self, exc: BaseException | None) -> bool:
        task, self._task = self._task, None
        if not self._cancelled or task is None:
            return exc is None
        alone = task.uncancel() <= self._at_entry
        return exc is None or (alone and isinstance(exc, asyncio.CancelledError))

    @property
    def is_orphaned(self) -> bool:
        """See `runtime.port.Guard`. A task that returned has left its block to another, as fixtures do."""
        task = self._task
        if task is None or not task.done():
            return False
        # `exception()` would keep the loop from logging an exception that nobody retrieves
        return task.cancelled() or task._exception is not None


class AsyncRuntime:
    """The runtime of an event loop: its connection to a store."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        keeper: StoreKeeper,
        loop: asyncio.AbstractEventLoop,
        *,
        connect_timeout: float,
        call_timeout: float,
    ) -> None:
        self.keeper = keeper
        keeper.client_closed = False
        self.connect_timeout: float = connect_timeout
        self.call_timeout: float = call_timeout
        self.holding: HeldByOwner = HeldByOwner()
        self.notifications: NotificationRouter = keeper.new_router()
        self.receiver: Receiver = self.notifications
        """Takes the store's notifications: `notifications`, unless somebody stands in between."""
        self.now: Callable[[], float] = clock.now
        self.stamp: Callable[[], int] = clock.stamp
        self.me: Callable[[], asyncio.Task[Any] | None] = asyncio.current_task
        self.connection: AsyncConnection = store.async_connection()
        self._clock = clock
        self._loop = loop
        self._batcher = Batcher(self.connection, loop, clock, call_timeout)
        self._reads = Batcher(
            *(self.connection, loop, clock, call_timeout),
            most=READS,
            parallel=1,
            beside=self._batcher,
        )
        self._scanning = asyncio.Lock()
        self._pages: set[asyncio.Task[Page]] = set()
        self._opening: asyncio.Task[None] | None = None
        self._subscribing: asyncio.Task[None] | None = None
        self._closed = False
        self._is_deaf = False
        """Notifications may not come."""
        # a store's own threads must not keep alive what a closed loop has left
        self._deliver_weakly = _while_it_lives(WeakMethod(self._deliver))
        self.is_ready: bool = False
        on_fork(self)

    @property
    def capabilities(self) -> Capabilities:
        return self.keeper.store.capabilities

    @property
    def inbox(self) -> str:
        return self.connection.inbox

    @property
    def is_over(self) -> bool:
        return self._loop.is_closed()

    async def listen(self) -> None:
        """The loop has listened from the start."""

    async def ready(self, timeout: float | None = None) -> None:
        """Connect once, however many tasks come first; after `timeout` seconds it goes on without them."""
        if self.is_ready:
            return
        if not self._closed and (self._opening is None or self._opening.done()):
            self._opening = self._loop.create_task(self._open())
            self._opening._log_destroy_pending = False  # type: ignore[attr-defined]
            # whoever waits for it may have left before it fails, and the loop need not log that
            self._opening.add_done_callback(lambda task: task.cancelled() or task.exception())
        opening = self._opening
        if opening is not None:
            await asyncio.wait((opening,), timeout=timeout)
        if opening is None or opening.cancelled() or self._closed:
            raise DibsError("the client was closed while it was asked for something")
        if not opening.done():
            raise BackendUnavailable(
                f"{self.keeper.store.url} can't be reached: it did not answer in time; check that the server "
                "runs, and the host, port and firewall"
            )
        opening.result()

    async def _open(self) -> None:
        await self.connection.open()
        await self.connection.subscribe(self._deliver_weakly)
        self.is_ready = True

    def _deliver(self, news: Sequence[Notification] | DibsError) -> None:
        """Take notifications. When some may have been missed, all waiters ask again."""
        if isinstance(news, DibsError):
            self._is_deaf = True
            self.receiver.recheck()
            if not self._closed and (self._subscribing is None or self._subscribing.done()):
                self._subscribing = self._loop.create_task(self._subscribe_again())
                self._subscribing._log_destroy_pending = False  # type: ignore[attr-defined]
            return
        for notification in news:
            self.receiver.deliver(notification)

    async def _subscribe_again(self) -> None:
        """Try until notifications come again, and have all waiters ask meanwhile."""
        pause = 0.05
        while self._is_deaf and not self._closed:
            await self.signal().wait(pause)
            pause = min(2 * pause, 1.0)
            self._is_deaf = False
            try:
                await self.connection.subscribe(self._deliver_weakly)
            except Exception as error:  # whatever it was, notifications are wanted again
                self._is_deaf = True
                if not isinstance(error, DibsError):
                    log.exception("subscribing to notifications failed")
            self.receiver.recheck()

    def _batcher_for(self, command: Command) -> Batcher:
        """Reads travel apart from what leases depend on."""
        return self._reads if type(command) is Inspect else self._batcher

    def call(self, command: Command, wait: float | None = None) -> Coroutine[Any, Any, TimedReply]:
        """See `runtime.port.Runtime`."""
        return self._batcher_for(command).call(command, wait)

    async def call_all(
        self, commands: Sequence[Command], wait: float | None = None
    ) -> Sequence[CallResult]:
        """See `runtime.port.Runtime`. Reads and changes of one key keep their order."""
        results: list[CallResult] = []
        calls: list[Call] = []
        batchers: dict[bytes, Batcher] = {}
        for command in commands:
            batcher = self._batcher_for(command)
            if batchers.setdefault(command.key, batcher) is not batcher:
                results += await results_of(calls)
                calls, batchers = [], {command.key: batcher}
            calls.append(batcher.gather(command, wait))
        return [*results, *await results_of(calls)] if calls else results

    async def page(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        """The next keys in use that begin with `prefix`: one such page is read at a time.

        A caller that is cancelled leaves. The page is read to its end: a store may have to close the
        connection to give it up, and others' commands are on their way there.
        """
        if self._closed:
            raise DibsError("the client was closed while it was asked for something")
        reading = self._loop.create_task(self._page(prefix, cursor, limit))
        self._pages.add(reading)
        reading.add_done_callback(self._page_ended)
        return await asyncio.shield(reading)

    def _page_ended(self, reading: asyncio.Task[Page]) -> None:
        self._pages.discard(reading)
        if not reading.cancelled():
            reading.exception()  # its caller may have left, and the loop need not log it

    async def _page(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        async with self._scanning:
            return await self.connection.scan(prefix, cursor, limit)

    async def scan(self, prefix: bytes) -> AsyncIterator[Status]:
        """Every key in use that begins with `prefix`."""
        cursor: bytes | None = None
        while True:
            page = await self.page(prefix, cursor, SCANNED)
            for status in page.items:
                yield status
            cursor = page.cursor
            if cursor is None:
                return

    async def examine(self) -> Sequence[Finding]:
        """Ask the store for the findings of `dibs doctor`."""
        await self.ready()
        return await self.connection.examine()

    def signal(self) -> AsyncSignal:
        return AsyncSignal(self._loop, self._clock)

    def guard(self) -> TaskGuard:
        return TaskGuard(self._loop)

    def spawn(self, body: Coroutine[Any, Any, None], name: str) -> TaskJob:
        return TaskJob(self._loop.create_task(body, name=name))

    def call_soon(self, callback: Callable[[], None]) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)

    async def close(self) -> None:
        """Give up connecting, let what is on its way land, and disconnect for good."""
        self._closed, self.is_ready = True, False
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait((self._opening,))
            self.is_ready = False
        self.receiver.recheck()
        for reading in self._pages:
            reading.cancel()
        if self._pages:
            await asyncio.wait(self._pages)
        await self._batcher.close()
        await self._reads.close()
        if self._subscribing is not None:
            self._subscribing.cancel()
            await asyncio.wait((self._subscribing,))
        await self.connection.close()

    def after_fork(self) -> None:
        self.connection.after_fork()
        self.is_ready = False


def _while_it_lives(method: WeakMethod[Callable[[Any], None]]) -> Callable[[Any], None]:
    def call(news: Any) -> None:
        found = method()
        if found is not None:
            found(news)

    return call


async def results_of(calls: Sequence[Call]) -> Sequence[CallResult]:
    """The outcome of each, when all have one. A cancelled caller leaves; what has left goes on."""
    try:
        await asyncio.wait([call.future for call in calls])
        return [_result_of(call) for call in calls]
    finally:
        for call in calls:
            if not (call.future.cancel() or call.future.cancelled()):
                call.future.exception()  # has been seen, or is of no interest any more


def _result_of(call: Call) -> CallResult:
    error = call.future.exception()
    if error is None:
        return call.future.result()
    if isinstance(error, DibsError):
        return error
    raise error
