"""The blocking side: threads wait in locks, and learn of a loss by asking."""

import atexit
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Any
from weakref import WeakSet

from dibs.clock import Clock, alarms_of
from dibs.errors import BackendUnavailable, DibsError
from dibs.model import Capabilities, Command, Finding, Reply, Status
from dibs.process import Gate, on_fork
from dibs.runtime.holding import HeldByOwner
from dibs.runtime.keeper import StoreKeeper
from dibs.runtime.notifications import NotificationRouter
from dibs.runtime.pool import Pool
from dibs.runtime.port import CallResult, TimedReply, step
from dibs.stores.port import MAX_BATCH, SHORTEST, BlockingConnection, Store, time_limit


class ThreadJob:
    """A daemon thread: a process that ends doesn't wait for it."""

    __slots__ = ("_thread",)

    def __init__(self, body: Coroutine[Any, Any, None], name: str) -> None:
        self._thread = threading.Thread(target=step, args=(body,), name=name, daemon=True)
        try:
            self._thread.start()
        except BaseException:
            with suppress(ValueError):  # an interrupt may come when the thread has begun already
                body.close()
            raise

    async def join(self, timeout: float | None) -> bool:
        """Wait until it has ended; return whether it has."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """A thread can't be interrupted: it ends as soon as the store has answered."""


SCANNED = 100
"""Keys in one page of a scan."""


class ThreadSignal:
    """A lock that any thread may open, with a timeout on the clock in use."""

    __slots__ = ("_at", "_clock", "_gate", "_is_set", "value")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at = alarms_of(clock)
        self._gate = Gate()
        self._is_set = False
        self.value: Any = None

    def set(self, value: object = None) -> None:
        if self.value is None:
            self.value = value
        self._is_set = True
        self._gate.open()

    async def wait(self, timeout: float | None) -> bool:
        if timeout is None or self._at is None:
            return self._gate.wait(timeout)
        cancel = self._at(self._clock.now() + timeout, self._gate.open)
        try:
            self._gate.wait(None)
        finally:
            cancel()
        return self._is_set


class ThreadGuard:
    """A body in a thread can't be interrupted: it learns of loss by asking, and on leaving."""

    __slots__ = ("_thread",)

    def __init__(self) -> None:
        self._thread = threading.current_thread()

    def enter(self) -> None:
        """Nothing more to remember."""

    def fire(self) -> None:
        """Nothing to interrupt."""

    def leave(self, exc: BaseException | None) -> bool:
        return exc is None

    @property
    def is_orphaned(self) -> bool:
        return not self._thread.is_alive()


class ThreadRuntime:
    """All threads' way to a store: each takes a connection from a pool for each call."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        keeper: StoreKeeper,
        *,
        connect_timeout: float,
        call_timeout: float,
    ) -> None:
        self.keeper = keeper
        keeper.client_closed = False
        self.connect_timeout: float = connect_timeout
        self.call_timeout: float = call_timeout
        self.holding: HeldByOwner = HeldByOwner()
        self.now: Callable[[], float] = clock.now
        self.me: Callable[[], threading.Thread] = threading.current_thread
        self._clock = clock
        self._closed = False
        self._pool = Pool(store.connections)
        self._new_connection = store.blocking_connection
        on_fork(self)
        _runtimes.add(self)

    @property
    def capabilities(self) -> Capabilities:
        return self.keeper.store.capabilities

    @property
    def notifications(self) -> NotificationRouter:
        return self.keeper.notifications

    @property
    def inbox(self) -> str:
        return self.keeper.inbox

    async def listen(self) -> None:
        self.keeper.listen(self.connect_timeout)

    @property
    def is_ready(self) -> bool:
        return not self._closed

    is_over = False

    async def ready(self, timeout: float | None = None) -> None:
        """Connections are made when they are needed. Raises `DibsError` once it is closed."""
        if self._closed:
            raise DibsError("the client was closed while it was asked for something")

    async def call(self, command: Command, wait: float | None = None) -> TimedReply:
        sent = self._clock.now()
        return TimedReply(self._applied((command,), wait)[0], sent)

    async def call_all(
        self, commands: Sequence[Command], wait: float | None = None
    ) -> Sequence[CallResult]:
        """See `runtime.port.Runtime`: a round trip for as many as may travel together."""
        results: list[CallResult] = []
        for start in range(0, len(commands), MAX_BATCH):
            results += self._call_batch(commands[start : start + MAX_BATCH], wait)
        return results

    def _call_batch(self, batch: Sequence[Command], wait: float | None) -> Sequence[CallResult]:
        sent = self._clock.now()
        try:
            return [TimedReply(reply, sent) for reply in self._applied(batch, wait)]
        except DibsError as error:
            return [error] * len(batch)

    def _applied(self, batch: Sequence[Command], wait: float | None) -> Sequence[Reply]:
        """Within `wait` seconds in all, and each attempt within the limit of its commands."""
        self._refuse_if_closed()
        limit = min([time_limit(command, self.call_timeout, wait) for command in batch])
        replies = self._using(
            lambda connection, left: connection.apply(batch, min(limit, left)), wait
        )
        self._refuse_if_closed()
        return replies

    def _using[T](
        self, use: Callable[[BlockingConnection, float], T], wait: float | None = None
    ) -> T:
        """Do something over a connection of the pool, in the seconds that are left."""
        until = inf if wait is None else monotonic() + wait

        def left() -> float:
            return max(until - monotonic(), SHORTEST)

        slot = self._pool.take(min(left(), self.call_timeout))
        try:
            if slot.connection is None:
                slot.connection = self._new_connection()
                slot.connection.open(min(left(), self.connect_timeout))
            found = use(slot.connection, left())
        except DibsError:
            self._pool.give(slot)  # it connects anew by itself
            raise
        except BaseException:
            self._pool.discard(slot)  # interrupted: nobody knows in what state
            raise
        if self._closed:
            self._pool.discard(slot)
        else:
            self._pool.give(slot)
        return found

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise BackendUnavailable("the client is closed")

    async def examine(self) -> Sequence[Finding]:
        """Ask the store for the findings of `dibs doctor`."""
        return self._using(lambda connection, _: connection.examine())

    def scan(self, prefix: bytes) -> Iterator[Status]:
        """Every key in use that begins with `prefix`."""
        cursor: bytes | None = None
        while True:
            page = self._using(lambda connection, _: connection.scan(prefix, cursor, SCANNED))  # noqa: B023
            yield from page.items
            cursor = page.cursor
            if cursor is None:
                return

    def signal(self) -> ThreadSignal:
        return ThreadSignal(self._clock)

    def guard(self) -> ThreadGuard:
        return ThreadGuard()

    def spawn(self, body: Coroutine[Any, Any, None], name: str) -> ThreadJob:
        return ThreadJob(body, name)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """In a thread of its own: we may be where all leases are looked after."""
        try:
            threading.Thread(target=callback, name="dibs-on-lost", daemon=True).start()
        except RuntimeError:
            callback()  # the interpreter is about to end, and starts no threads any more

    def refuse(self) -> None:
        """Grant nothing from now on, and have waiters learn of it."""
        self._closed = True
        self.notifications.recheck()

    def close(self) -> None:
        """Disconnect what is idle."""
        self._pool.close()

    def after_fork(self) -> None:
        self._pool.after_fork()


_runtimes: WeakSet[ThreadRuntime] = WeakSet()


@atexit.register
def _at_exit() -> None:
    """Leave no connection for the interpreter to complain about."""
    for runtime in list(_runtimes):
        runtime.close()
