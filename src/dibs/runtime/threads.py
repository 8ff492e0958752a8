"""The blocking driver: threads wait in locks, and learn of loss by asking."""

import atexit
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from dibs.clock import Clock
from dibs.errors import BackendUnavailable, DibsError
from dibs.model import Capabilities, Command, Finding, Reply, Status
from dibs.process import Gate, on_fork
from dibs.runtime.holdings import Holdings
from dibs.runtime.keeper import StoreKeeper
from dibs.runtime.notifications import Mailroom
from dibs.runtime.port import Answer, Told, step
from dibs.stores.port import MAX_BATCH, Backend, Store


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
        """Wait until it has ended; tell whether it has."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """A thread can't be interrupted: it ends as soon as the store has answered."""


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
        keeper.is_closed = False
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

    async def ready(self, timeout: float | None = None) -> None:
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


MAX_IDLE = 16
"""So many connections are kept for the next thread that calls."""

LONGEST = 1.0
"""Nobody stands in line longer, in seconds: a connection may hang, or was lost with its thread."""


class _Ticket:
    __slots__ = ("backend", "gate")

    def __init__(self) -> None:
        self.gate = Gate()
        self.backend: Backend | None = None


class Pool:
    """Connections for threads: each call takes one, and gives it to the next thread in the queue.

    More threads than `most` wait here, first come first served, and not inside the store, where each try of
    theirs hinders the others. Each step is one operation on a deque: threads and interrupts may come between
    any two.
    """

    def __init__(self, make: Callable[[], Backend], most: int | None) -> None:
        self._make = make
        self._most = most
        self._made = 0
        self._idle: deque[Backend] = deque()
        self._line: deque[_Ticket] = deque()

    def take(self, patience: float | None = None) -> Backend:
        """A connection for this thread alone, within `patience` seconds where the store can do that."""
        try:
            return self._idle.pop()
        except IndexError:
            pass  # and of no interest to who can't connect
        if self._most is not None and self._made >= self._most:
            return self._stand_in_line(patience)
        return self._new(patience)

    def give(self, backend: Backend) -> None:
        """It is free for the next thread."""
        if self._next_in_line(backend):
            return
        if len(self._idle) < (self._most or MAX_IDLE):
            self._idle.append(backend)
            if self._line:  # somebody came between the two
                self._hurry()
        else:
            self.discard(backend)

    def discard(self, backend: Backend) -> None:
        """Nobody should use it any more; who is next makes another."""
        self._made = max(self._made - 1, 0)
        self._next_in_line(None)
        step(backend.close())

    def close(self) -> None:
        """Disconnect what is idle."""
        while self._idle:
            self.discard(self._idle.pop())

    def after_fork(self) -> None:
        """Nothing of the parent's is of use, and none of its threads is here."""
        for backend in self._idle:
            backend.after_fork()
        self._idle = deque()
        self._line = deque()
        self._made = 0

    def _new(self, patience: float | None) -> Backend:
        self._made += 1
        try:
            backend = self._make()
            within = None if patience is None else getattr(backend, "open_within", None)
            # the keeper listens for all threads
            step(backend.open(listen=False) if within is None else within(patience))
        except BaseException:
            self._made = max(self._made - 1, 0)
            self._next_in_line(None)
            raise
        return backend

    # -- the line -----------------------------------------------------------------------------------

    def _stand_in_line(self, patience: float | None) -> Backend:
        ticket = _Ticket()
        try:
            self._line.append(ticket)
            if self._idle:  # given back before anybody could see us
                self._hurry()
            if not ticket.gate.wait(LONGEST):
                self._step_out(ticket)
                self._made = 0  # so that a lost one costs this once
            return ticket.backend or self._new(patience)
        except BaseException:
            self._step_out(ticket)
            if ticket.backend is not None:
                self.give(ticket.backend)
            raise

    def _step_out(self, ticket: _Ticket) -> None:
        try:
            self._line.remove(ticket)
        except ValueError:
            ticket.gate.wait(LONGEST)  # it was served, and whoever serves it is about to say so

    def _hurry(self) -> None:
        """Serve the line from what lies idle."""
        try:
            backend = self._idle.pop()
        except IndexError:
            return
        if not self._next_in_line(backend):
            self._idle.append(backend)

    def _next_in_line(self, backend: Backend | None) -> bool:
        try:
            ticket = self._line.popleft()
        except IndexError:
            return False
        ticket.backend = backend
        ticket.gate.open()
        return True
