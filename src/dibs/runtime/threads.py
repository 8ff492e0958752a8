"""The blocking driver: threads wait in locks, and learn of loss by asking."""

import atexit
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any
from weakref import WeakSet

from dibs.backends.port import MAX_BATCH, Store
from dibs.clock import Clock
from dibs.errors import BackendUnavailable, DibsError
from dibs.fork import on_fork
from dibs.gate import Gate
from dibs.model import Capabilities, Command, Finding, Reply, Status
from dibs.runtime.holdings import Holdings
from dibs.runtime.keeper import StoreKeeper
from dibs.runtime.mail import Mailroom
from dibs.runtime.pool import Pool
from dibs.runtime.port import Answer, Told
from dibs.runtime.step import step
from dibs.runtime.thread_job import ThreadJob

SCANNED = 100
"""So many keys are read at a time."""


class ThreadSignal:
    """A lock that any thread may open, with a timeout on the clock in use."""

    __slots__ = ("_at", "_clock", "_gate", "value")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at = getattr(clock, "at", None)
        self._gate = Gate()
        self.value: Any = None

    def set(self, value: object = None) -> None:
        if self.value is None:
            self.value = value
        self._gate.open()

    async def wait(self, timeout: float | None) -> bool:
        if timeout is None or self._at is None:
            return self._gate.wait(timeout)
        cancel = self._at(self._clock.now() + timeout, self._gate.open)
        try:
            self._gate.wait(None)
        finally:
            cancel()
        return self.value is not None


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
        self.connect_timeout = connect_timeout
        self.call_timeout = call_timeout
        self.holding = Holdings()
        self.now = clock.now
        self.me = threading.current_thread
        self._clock = clock
        self._closed = False
        most = getattr(store, "connections", None)
        self._pool = Pool(lambda: store.backend(blocking=True), most)
        on_fork(self)
        _runtimes.add(self)

    @property
    def capabilities(self) -> Capabilities:
        return self.keeper.store.capabilities

    @property
    def mail(self) -> Mailroom:
        return self.keeper.mail

    @property
    def inbox(self) -> str:
        return self.keeper.inbox

    async def listen(self) -> None:
        self.keeper.listen(self.connect_timeout)

    @property
    def is_ready(self) -> bool:
        return not self._closed

    is_over = False

    async def ready(self) -> None:
        """Connections are made when they are needed. Raises `DibsError` once it is closed."""
        if self._closed:
            raise DibsError("the client was closed while it was asked for something")

    async def call(self, command: Command, patience: float | None = None) -> Answer:
        sent = self._clock.now()
        return Answer(self._applied((command,), patience)[0], sent)

    async def call_all(
        self, commands: Sequence[Command], patience: float | None = None
    ) -> Sequence[Told]:
        """What came of each of these: a round trip for as many as may travel together."""
        told: list[Told] = []
        for start in range(0, len(commands), MAX_BATCH):
            told += self._call_batch(commands[start : start + MAX_BATCH])
        return told

    def _call_batch(self, batch: Sequence[Command]) -> Sequence[Told]:
        sent = self._clock.now()
        try:
            return [Answer(reply, sent) for reply in self._applied(batch)]
        except DibsError as error:
            return [error] * len(batch)

    def _applied(self, batch: Sequence[Command], patience: float | None = None) -> Sequence[Reply]:
        """Within `patience` seconds where the store has a way for that; else a call has its own limit."""
        self._refuse_if_closed()
        backend = self._pool.take(patience)
        within = None if patience is None else getattr(backend, "apply_within", None)
        try:
            applying = backend.apply(batch) if within is None else within(batch, patience)
            replies: Sequence[Reply] = step(applying)
        except DibsError:
            self._pool.give(backend)
            raise
        except BaseException:
            self._pool.discard(backend)  # interrupted: nobody knows in what state
            raise
        if self._closed:
            self._pool.discard(backend)
        else:
            self._pool.give(backend)
        self._refuse_if_closed()
        return replies

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise BackendUnavailable("the client is closed")

    async def examine(self) -> Sequence[Finding]:
        """What the store has to say about itself."""
        backend = self._pool.take()
        look = getattr(backend, "examine", None)
        try:
            found: Sequence[Finding] = () if look is None else step(look())
        except BaseException:
            self._pool.discard(backend)
            raise
        self._pool.give(backend)
        return found

    def scan(self, prefix: bytes) -> Iterator[Status]:
        """Every key in use that begins with `prefix`."""
        cursor: bytes | None = None
        while True:
            backend = self._pool.take()
            try:
                page = step(backend.scan(prefix, cursor, SCANNED))
            except BaseException:
                self._pool.discard(backend)
                raise
            self._pool.give(backend)
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
        self.mail.recheck()

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
