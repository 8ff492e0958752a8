"""memory:// keeps leases in this process: for tests, and for tasks and threads of one program.

`memory://` is the process's own store; each `memory://name` is another one.
"""

import threading
from collections.abc import Sequence
from itertools import count, islice, takewhile
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from dibs.clock import Clock, SystemClock
from dibs.core import ledger
from dibs.core.book import MemoryBook
from dibs.errors import NotConfigured
from dibs.model import Capabilities, Command, Finding, Inspect, Notification, Page, Reply, Status
from dibs.process import on_fork
from dibs.stores.port import AsyncConnection, BlockingConnection, Deliver, Done, GiveUp, Store

if TYPE_CHECKING:
    import asyncio

MAX_IDLE = 1024
"""Books that may lie idle before they are thrown out."""


class Shelf:
    """All books of one memory store, and the inboxes of everybody who uses it."""

    def __init__(self, clock: Clock) -> None:
        self.clock: Clock = clock
        self.inboxes: WeakValueDictionary[str, _Inbox] = WeakValueDictionary()
        self._books: dict[bytes, MemoryBook] = {}
        self._sweep_at = MAX_IDLE
        self._floor = 0
        self._open: MemoryBook | None = None
        self._lock = threading.Lock()
        on_fork(self)

    def apply(self, commands: Sequence[Command]) -> Sequence[Reply]:
        """Apply commands one after the other, then deliver the notifications that follow."""
        replies: list[Reply] = []
        pushes: list[Notification] = []
        clock = self.clock
        with self._lock:
            now, stamp = clock.now(), clock.stamp()
            batch = ledger.StepBudget() if len(commands) > 1 else None
            if self._open is not None:
                self._mend()
            for command in commands:
                book = self._open = self._books.get(command.key) or self._new_book(command.key)
                reply, sent = ledger.apply(book, command, now, stamp, batch)
                replies.append(reply)
                pushes += (
                    sent  # no `if` here: 3.13.0 would lose an interrupt at its end, and the lock
                )
            self._open = None
        if pushes:
            self._push(pushes)
        return replies

    def _mend(self) -> None:
        """Rebuild a book that a Ctrl-C left half written from its entries."""
        half_written, self._open = self._open, None
        assert half_written is not None
        half_written.rebuild()

    def _push(self, pushes: Sequence[Notification]) -> None:
        for notification in pushes:
            inbox = self.inboxes.get(notification.inbox)
            if inbox is not None:
                inbox.push(notification)

    def _new_book(self, key: bytes) -> MemoryBook:
        if len(self._books) >= self._sweep_at:
            self._sweep()
        book = self._books[key] = MemoryBook(self._floor)
        return book

    def _sweep(self) -> None:
        """Throw out idle books; tokens still rise, as new books begin above all that were thrown out."""
        for key, book in list(self._books.items()):
            if book.idle:
                self._floor = max(self._floor, book.last)
                del self._books[key]
        self._sweep_at = 2 * len(self._books) + MAX_IDLE

    def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        """Inspect the next `limit` keys that are not idle."""
        begin = prefix if cursor is None else max(prefix, cursor + b"\0")
        with self._lock:
            later = sorted([key for key in self._books if key >= begin])
            wanted = takewhile(lambda key: key.startswith(prefix), later)
            keys = list(islice((key for key in wanted if not self._books[key].idle), limit + 1))
        page = keys[:limit]
        found = self.apply([Inspect(key) for key in page])
        items = [status for status in found if isinstance(status, Status)]
        busy = [status for status in items if status.holders or status.waiters]
        return Page(busy, page[-1] if len(keys) > limit else None)

    def after_fork(self) -> None:
        """The child has a copy that nobody else sees: it begins empty, above the parent's tokens."""
        self._lock = threading.Lock()
        self._floor = max((self._floor, *(book.last for book in self._books.values())))
        self._books = {}
        self.inboxes = WeakValueDictionary()
        self._open = None


_numbers = count(1)


class _Inbox:
    """Notifications for one connection, from any thread."""

    def __init__(self) -> None:
        self.name = f"memory-{next(_numbers)}"
        self.queue: SimpleQueue[Notification | None] = SimpleQueue()

    def push(self, notification: Notification | None) -> None:
        self.queue.put(notification)

    def drain(self, first: Notification | None = None) -> list[Notification]:
        found = [] if first is None else [first]
        while True:
            try:
                notification = self.queue.get_nowait()
            except Empty:
                return found
            if notification is not None:
                found.append(notification)


class _LoopInbox(_Inbox):
    """One that an event loop empties."""

    def __init__(self, loop: "asyncio.AbstractEventLoop", deliver: Deliver) -> None:
        super().__init__()
        self._loop = loop
        self._deliver = deliver

    def push(self, notification: Notification | None) -> None:
        super().push(notification)
        try:
            self._loop.call_soon_threadsafe(self._empty)
        except RuntimeError:
            pass  # that loop is closed, and nobody waits in it any more

    def _empty(self) -> None:
        found = self.drain()
        if found:
            self._deliver(found)


class AsyncMemoryConnection:
    """See `AsyncConnection`: everything is done in place."""

    parallel = 1

    def __init__(self, shelf: Shelf) -> None:
        self.inbox: str = ""
        self._shelf = shelf
        self._box: _LoopInbox | None = None

    async def open(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        self._shelf.inboxes.pop(self.inbox, None)
        self._box, self.inbox = None, ""

    def submit(self, commands: Sequence[Command], done: Done) -> GiveUp:
        done(self._shelf.apply(commands))
        return _nothing_to_give_up

    async def subscribe(self, deliver: Deliver) -> None:
        if self._box is None:
            import asyncio

            box = self._box = _LoopInbox(asyncio.get_running_loop(), deliver)
            self.inbox = box.name
            self._shelf.inboxes[box.name] = box

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        return self._shelf.scan(prefix, cursor, limit)

    async def examine(self) -> Sequence[Finding]:
        return ()

    def after_fork(self) -> None:
        self._box, self.inbox = None, ""


def _nothing_to_give_up() -> None:
    """It is done."""


class BlockingMemoryConnection:
    """See `BlockingConnection`: everything is done in place."""

    def __init__(self, shelf: Shelf) -> None:
        self.inbox: str = ""
        self._shelf = shelf
        self._box = _Inbox()

    def open(self, timeout: float) -> None:
        """Nothing to connect to."""

    def close(self) -> None:
        self._shelf.inboxes.pop(self.inbox, None)
        self.inbox = ""

    def apply(self, commands: Sequence[Command], timeout: float) -> Sequence[Reply]:
        return self._shelf.apply(commands)

    def subscribe(self, timeout: float) -> None:
        self.inbox = self._box.name
        self._shelf.inboxes[self.inbox] = self._box

    def notifications(self, timeout: float | None) -> Sequence[Notification]:
        try:
            return self._box.drain(self._box.queue.get(timeout=timeout))
        except Empty:
            return ()

    def wake(self) -> None:
        self._box.push(None)

    def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        return self._shelf.scan(prefix, cursor, limit)

    def examine(self) -> Sequence[Finding]:
        return ()

    def after_fork(self) -> None:
        self._box, self.inbox = _Inbox(), ""


_shelves: dict[str, Shelf] = {}


class MemoryStore(Store):
    """Leases in this process's memory, shared by all clients of the same URL."""

    capabilities: Capabilities = Capabilities(scope="process")

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        scheme, slashes, name = url.partition("://")
        if scheme != "memory" or not slashes or "?" in name:
            raise NotConfigured(f"{url!r} is no URL of a memory store: memory:// or memory://name")
        self.url: str = url
        self._shelf = Shelf(clock) if clock else _shelves.setdefault(name, Shelf(SystemClock()))

    def async_connection(self) -> AsyncConnection:
        return AsyncMemoryConnection(self._shelf)

    def blocking_connection(self) -> BlockingConnection:
        return BlockingMemoryConnection(self._shelf)
