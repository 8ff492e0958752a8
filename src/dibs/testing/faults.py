"""Faults on the way to a store: lost, late and doubled messages, outages, unreliable notifications.

A `FaultyStore` wraps any store and makes the connections of its clients unreliable. What it does, a
network does too, so whatever holds over it holds in production.
"""

import asyncio
import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import dibs
from dibs.clock import Clock
from dibs.errors import BackendUnavailable, DibsError
from dibs.model import (
    MANY,
    Acquire,
    Capabilities,
    Command,
    Granted,
    Notification,
    Page,
    Release,
    Reply,
    Revoke,
    Status,
)
from dibs.runtime.batcher import apply_over
from dibs.stores.aio import submit_in_task
from dibs.stores.port import (
    AsyncConnection,
    BlockingConnection,
    Deliver,
    Done,
    GiveUp,
    Store,
)


@dataclass
class Faults:
    """Probability of each fault, 0 to 1. `seed` decides which calls they hit.

    You can change it at any time, also while calls are under way. `hits` counts the faults that struck.
    """

    seed: int = 0
    lose_request: float = 0.0
    """Not delivered to the store. The caller gets `BackendUnavailable`."""
    lose_reply: float = 0.0
    """Applied by the store, but the caller gets `BackendUnavailable`."""
    late_request: float = 0.0
    """The caller gets `BackendUnavailable`, and the store gets it before a later call."""
    double: float = 0.0
    """Applied twice at once."""
    echo: float = 0.0
    """Applied, and a copy applied before a later call."""
    delay: float = 0.0
    """The reply takes up to `longest_delay` seconds of real time."""
    longest_delay: float = 0.05
    drop_notification: float = 0.0
    double_notification: float = 0.0
    late_notification: float = 0.0
    """It arrives together with those of a later call."""
    down: bool = False
    """No call gets through, until this is False again."""
    hits: Counter[str] = field(default_factory=Counter[str])

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)  # noqa: S311 -- to be repeated, not to be secret
        self._lock = threading.Lock()

    def strikes(self, name: str) -> bool:
        """Draw whether the fault of that name happens now, and count it if it does."""
        chance = getattr(self, name)
        if chance is True or (chance and self._random.random() < chance):
            with self._lock:
                self.hits[name] += 1
            return True
        return False

    def seconds(self) -> float:
        """How long a delayed reply takes."""
        return self._random.uniform(0, self.longest_delay)


class FaultyStore(Store):
    """A store whose connections suffer `faults`; everything else is the wrapped store's."""

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        from dibs.stores.registry import store_for

        self._wrap(store_for(url, clock=clock), Faults())

    @classmethod
    def around(cls, store: Store, faults: Faults) -> "FaultyStore":
        """Make a store's connections suffer `faults`."""
        faulty = cls.__new__(cls)
        faulty._wrap(store, faults)
        return faulty

    def _wrap(self, store: Store, faults: Faults) -> None:
        self.url: str = store.url
        self.faults = faults
        self.connections: int | None = store.connections
        self._store = store

    @property
    def capabilities(self) -> Capabilities:
        return self._store.capabilities

    def async_connection(self) -> AsyncConnection:
        return FaultyAsyncConnection(self._store.async_connection(), self.faults)

    def blocking_connection(self) -> BlockingConnection:
        return FaultyBlockingConnection(self._store.blocking_connection(), self.faults)


class _Trip:
    """Draws what happens to the messages of one connection on their way."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self.under_way: list[Sequence[Command]] = []
        """Late copies, which the store gets before a later call."""
        self._late_notifications: list[Notification] = []

    def there(self, commands: Sequence[Command]) -> None:
        """Raises `BackendUnavailable` if they don't arrive now."""
        faults = self._faults
        if faults.strikes("down"):
            raise BackendUnavailable("the store is down (injected)")
        if faults.strikes("lose_request"):
            raise BackendUnavailable("the request was lost (injected)")
        if faults.strikes("late_request"):
            self.under_way.append(tuple(commands))
            raise BackendUnavailable("the request is late (injected)")

    def back(self, commands: Sequence[Command], replies: Sequence[Reply]) -> Sequence[Reply]:
        """The replies. Raises `BackendUnavailable` if they are lost."""
        if self._faults.strikes("echo"):
            self.under_way.append(tuple(commands))
        if self._faults.strikes("lose_reply"):
            raise BackendUnavailable("the reply was lost (injected)")
        return replies

    def late(self) -> Sequence[Sequence[Command]]:
        """Everything that is late, which arrives now."""
        late, self.under_way = self.under_way, []
        return late

    def notifications(self, arrived: Sequence[Notification]) -> Sequence[Notification]:
        """Return the notifications that arrive, with those that were late."""
        late, self._late_notifications = self._late_notifications, []
        for notification in arrived:
            if self._faults.strikes("drop_notification"):
                continue
            copies = 2 if self._faults.strikes("double_notification") else 1
            slow = self._faults.strikes("late_notification")
            (self._late_notifications if slow else late).extend([notification] * copies)
        return late

    def connect(self) -> None:
        """Raises `BackendUnavailable` while the store is down."""
        if self._faults.strikes("down"):
            raise BackendUnavailable("the store is down (injected)")


class _FaultyConnection[C: AsyncConnection | BlockingConnection]:
    """Common part of the unreliable connections of both sides."""

    def __init__(self, connection: C, faults: Faults) -> None:
        self._connection = connection
        self._faults = faults
        self._trip = _Trip(faults)

    @property
    def inbox(self) -> str:
        return self._connection.inbox

    def after_fork(self) -> None:
        self._trip = _Trip(self._faults)
        self._connection.after_fork()


class FaultyAsyncConnection(_FaultyConnection[AsyncConnection]):
    """An unreliable connection of an event loop."""

    def __init__(self, connection: AsyncConnection, faults: Faults) -> None:
        super().__init__(connection, faults)
        self.parallel: int = connection.parallel
        self.close, self.examine = connection.close, connection.examine

    async def open(self) -> None:
        self._trip.connect()
        await self._connection.open()

    def submit(self, commands: Sequence[Command], done: Done) -> GiveUp:
        """Send at once; in a task if it may be delayed, or if late messages come before it."""
        if self._faults.delay or self._trip.under_way:
            return submit_in_task(self._apply(commands), done)
        try:
            self._trip.there(commands)
        except BackendUnavailable as error:
            done(error)
            return _nothing
        return self._connection.submit(commands, partial(self._back, commands, done))

    def _back(
        self, commands: Sequence[Command], done: Done, result: Sequence[Reply] | DibsError
    ) -> None:
        if isinstance(result, DibsError):
            return done(result)
        if self._faults.strikes("double"):
            self._connection.submit(commands, _ignore)
        try:
            replies = self._trip.back(commands, result)
        except BackendUnavailable as error:
            return done(error)
        return done(replies)

    async def _apply(self, commands: Sequence[Command]) -> Sequence[Reply]:
        self._trip.there(commands)
        await self.deliver_late()
        replies = await apply_over(self._connection, commands)
        if self._faults.strikes("double"):
            await apply_over(self._connection, commands)
        if self._faults.strikes("delay"):
            await asyncio.sleep(self._faults.seconds())
        return self._trip.back(commands, replies)

    async def deliver_late(self) -> None:
        """Deliver all late messages to the store."""
        for batch in self._trip.late():
            await apply_over(self._connection, batch)

    async def subscribe(self, deliver: Deliver) -> None:
        def take(news: Sequence[Notification] | DibsError) -> None:
            if isinstance(news, DibsError):
                deliver(news)
            elif arrived := self._trip.notifications(news):
                deliver(arrived)

        await self._connection.subscribe(take)

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        self._trip.there(())
        return await self._connection.scan(prefix, cursor, limit)


def _ignore(_: object) -> None:
    """Nobody waits for this copy."""


def _nothing() -> None:
    """Give up a request that never left."""


class FaultyBlockingConnection(_FaultyConnection[BlockingConnection]):
    """An unreliable connection of a thread."""

    def __init__(self, connection: BlockingConnection, faults: Faults) -> None:
        super().__init__(connection, faults)
        self.close, self.wake = connection.close, connection.wake
        self.examine = connection.examine

    def open(self, timeout: float) -> None:
        self._trip.connect()
        self._connection.open(timeout)

    def apply(self, commands: Sequence[Command], timeout: float) -> Sequence[Reply]:
        self._trip.there(commands)
        self.deliver_late()
        replies = self._connection.apply(commands, timeout)
        if self._faults.strikes("double"):
            self._connection.apply(commands, timeout)
        if self._faults.strikes("delay"):
            time.sleep(self._faults.seconds())
        return self._trip.back(commands, replies)

    def deliver_late(self) -> None:
        """Deliver all late messages to the store."""
        for batch in self._trip.late():
            self._connection.apply(batch, TIMEOUT)

    def subscribe(self, timeout: float) -> None:
        self._trip.connect()
        self._connection.subscribe(timeout)

    def notifications(self, timeout: float | None) -> Sequence[Notification]:
        return self._trip.notifications(self._connection.notifications(timeout))

    def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        self._trip.there(())
        return self._connection.scan(prefix, cursor, limit)


TIMEOUT = 10.0
"""Seconds in which the store has to answer commands of `expire` and `steal`."""

THIEF = "thief"
"""Owner of a stolen lease."""

THEFT = 3600.0
"""Ttl of a stolen lease, in seconds."""


class Keyed(Protocol):
    """A primitive or a lease."""

    @property
    def key(self) -> bytes: ...


def expire(lock: Keyed) -> int:
    """Let every lease of this process on `lock` expire; return how many there were.

    The store is free of them, and their holders learn of it as always: `lost` is true, `ensure()`
    raises, `on_lost` is called, a body inside `async with` is cancelled. `lock` is a primitive or a
    lease. Nothing is waited for.
    """
    return len(_expire(_client_of(lock), lock.key))


def steal(lock: Keyed) -> int:
    """Expire all leases, and let another owner hold the key for an hour; return its fencing token.

    It simulates a pause longer than the ttl. Leases of other processes are revoked at once. Waiters stay
    in the queue behind the thief.
    """
    client = _client_of(lock)
    _expire(client, lock.key)
    units = MANY if lock.key.startswith(b"rwlock:") else 1  # or others could read beside it
    thief = f"thief-{secrets.token_hex(9)}"
    take = Acquire(lock.key, thief, THIEF, THEFT, units, units, priority=1 << 30)
    replies = _send(client, Revoke(lock.key, None, "stolen by a test", now=True), take)
    if not isinstance(replies[-1], Granted):
        raise AssertionError(f"others came before the thief: {replies[-1]}")
    return replies[-1].token


def held(client: Any) -> list[Status]:
    """List the keys of a client's store that are held, without retained units."""
    connection = client.session.store.blocking_connection()
    connection.open(TIMEOUT)
    try:
        found: list[Status] = []
        cursor: bytes | None = None
        while True:
            page = connection.scan(b"", cursor, 100)
            found += [
                each for each in page.items if any(h.state != "retained" for h in each.holders)
            ]
            cursor = page.cursor
            if cursor is None:
                return found
    finally:
        connection.close()


def _expire(client: Any, key: bytes) -> list[Any]:
    leases = [lease for lease in client.session.keeper.leases() if lease.key == key]
    _send(client, *(Release(key, lease._id) for lease in leases))
    for lease in leases:
        lease._lose("expired", "let expire by a test")
    return leases


def _send(client: Any, *commands: Command) -> list[Reply]:
    """Over a connection of its own."""
    connection = client.session.store.blocking_connection()
    connection.open(TIMEOUT)
    try:
        return list(connection.apply(commands, TIMEOUT)) if commands else []
    finally:
        connection.close()


def _client_of(lock: Any) -> Any:
    """A primitive knows its client; otherwise it is the default one."""
    client = getattr(lock, "_client", None)
    return dibs.connect() if client is None else client
