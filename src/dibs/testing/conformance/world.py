"""The world of a conformance case: a store, on one of both sides, and its time."""

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

from dibs.core.names import fingerprint
from dibs.core.timing import DRIFT
from dibs.model import (
    Acquire,
    Command,
    Granted,
    Inspect,
    Notification,
    Queued,
    Refused,
    Release,
    Renew,
    Reply,
    Status,
)
from dibs.stores.port import Store
from dibs.stores.port import step as step
from dibs.testing.clock import ManualClock
from dibs.testing.conformance.observer import ROUNDING
from dibs.testing.connections import Mode, TestedConnection, connection_of

PATIENCE = 5.0
"""Real seconds within which what must happen happens; nothing waits so long when all is well."""


class Harness(Protocol):
    """The part of a suite that makes the store and lets time pass."""

    second: float
    manual: bool

    def make_store(self, clock: ManualClock, tmp_path: Path) -> Store: ...

    def pass_time(self, clock: ManualClock, seconds: float) -> None: ...


class World:
    """A store under test, new names in it, and connections that close with the case."""

    def __init__(self, harness: Harness, mode: Mode, tmp_path: Path) -> None:
        self.mode: Mode = mode
        self.clock: ManualClock = ManualClock()
        self.second: float = harness.second
        self.manual: bool = harness.manual
        self._harness = harness
        self._tmp_path = tmp_path
        self._open: list[TestedConnection] = []
        self._unique = secrets.token_hex(6)
        self.kind: bytes = b"semaphore"
        """Of the keys of this case."""
        self.store: Store = harness.make_store(self.clock, tmp_path)

    # -- names, times

    @property
    def prefix(self) -> bytes:
        """Prefix of all keys of this case."""
        return self.kind + b":" + self._unique.encode() + b"/"

    def key(self, name: bytes = b"a") -> bytes:
        """A key that no other case uses."""
        return self.prefix + name

    def another(self, folder: str) -> "World":
        """A world whose time begins anew, with a store that lies in a folder of its own."""
        path = self._tmp_path / folder
        path.mkdir()
        return World(self._harness, self.mode, path)

    def at_most(self, seconds: float) -> float:
        """The longest that a period of so many seconds lasts in this store, if one process observes it.

        A store without a clock prolongs it, since the clocks of two observers may run apart.
        """
        if self.store.capabilities.clock:
            return seconds
        return seconds * (1 + DRIFT) + ROUNDING

    async def outlast(self, seconds: float, *keys: bytes, by: TestedConnection) -> None:
        """Let more than `seconds` pass, in the eyes of `by`.

        A store without a clock counts from the moment that an observer first sees an entry, so `by`
        looks at the keys before.
        """
        for key in keys or (self.key(),):
            await self.say(by, Inspect(key))
        self.pass_time(seconds * 1.02 + 0.05 * self.second)

    def pass_time(self, seconds: float) -> None:
        """Let the store's time pass."""
        self._harness.pass_time(self.clock, seconds)

    # -- connections

    async def connect(self) -> TestedConnection:
        """Another connection, open until the case ends."""
        connection = connection_of(self.store, self.mode)
        await connection.open()
        self._open.append(connection)
        return connection

    async def reopen(self) -> TestedConnection:
        """Close everything, make the store anew, as a new process would, and connect to it."""
        await self.close()
        self.store = self._harness.make_store(self.clock, self._tmp_path)
        return await self.connect()

    async def close(self) -> None:
        """Close all connections."""
        while self._open:
            await self._open.pop().close()

    def run(self, case: Coroutine[Any, Any, None]) -> None:
        """Run a case to its end, and close its connections in any case."""
        if self.mode == "async":
            asyncio.run(self._closing(case))
        else:
            step(self._closing(case))

    async def _closing(self, case: Coroutine[Any, Any, None]) -> None:
        try:
            await case
        finally:
            await self.close()

    # -- commands

    async def say(self, connection: TestedConnection, command: Command) -> Reply:
        """Send one command and return its reply."""
        (reply,) = await connection.apply([command])
        return reply

    def acquire(self, name: str, *, ttl: float = 30, **more: Any) -> Acquire:
        """An Acquire of the case's key by the id `name`; times in the suite's seconds."""
        more.setdefault("key", self.key())
        for field in ("waiter_ttl", "lock_delay"):
            if field in more:
                more[field] *= self.second
        more.setdefault("waiter_ttl", 30 * self.second)
        return Acquire(id=name, owner=f"owner-{name}", ttl=ttl * self.second, **more)

    async def take(self, connection: TestedConnection, name: str, **more: Any) -> Granted:
        """Acquire, and be granted."""
        reply = await self.say(connection, self.acquire(name, **more))
        assert isinstance(reply, Granted), reply
        return reply

    async def queue(self, connection: TestedConnection, name: str, **more: Any) -> Queued:
        """Acquire, and be queued. Notifications go to `connection`."""
        more.setdefault("inbox", connection.inbox)
        reply = await self.say(connection, self.acquire(name, queue=True, **more))
        assert isinstance(reply, Queued), reply
        return reply

    async def refused(self, connection: TestedConnection, name: str, **more: Any) -> Refused:
        """Acquire, and be refused."""
        reply = await self.say(connection, self.acquire(name, **more))
        assert isinstance(reply, Refused), reply
        return reply

    async def renew(self, connection: TestedConnection, name: str, *, ttl: float = 30) -> Reply:
        """Renew what the id `name` has of the case's key."""
        return await self.say(connection, Renew(self.key(), name, ttl * self.second))

    async def release(
        self, connection: TestedConnection, name: str, *, retain: float = 0, tombstone: float = 0
    ) -> Reply:
        """Release what the id `name` has of the case's key."""
        release = Release(self.key(), name, retain * self.second, tombstone * self.second)
        return await self.say(connection, release)

    def release_elsewhere(self, name: str) -> None:
        """Release from another thread, over a connection of its own."""

        async def release() -> None:
            connection = connection_of(self.store, self.mode)
            await connection.open()
            await self.release(connection, name)
            await connection.close()

        asyncio.run(release()) if self.mode == "async" else step(release())

    async def status(self, connection: TestedConnection, key: bytes | None = None) -> Status:
        """Inspect the case's key."""
        reply = await self.say(connection, Inspect(key or self.key()))
        assert isinstance(reply, Status), reply
        return reply

    async def waiters(self, connection: TestedConnection, names: str) -> list[str]:
        """Which of these ids wait, first come first."""
        known = {fingerprint(name): name for name in names.split()}
        return [known[waiter.lease] for waiter in (await self.status(connection)).waiters]

    async def holders(self, connection: TestedConnection, names: str) -> list[str]:
        """Which of these ids hold, in the order of their tokens."""
        known = {fingerprint(name): name for name in names.split()}
        return [
            known.get(holder.lease, "nobody") for holder in (await self.status(connection)).holders
        ]

    async def notified(
        self,
        connection: TestedConnection,
        wanted: Callable[[Notification], bool],
        timeout: float = PATIENCE,
    ) -> Notification | None:
        """Return the first notification to `connection` that is wanted; None if none comes in time."""
        end = time.monotonic() + timeout
        while (left := end - time.monotonic()) > 0:
            found = [each for each in await connection.notifications(left) if wanted(each)]
            if found:
                return found[0]
        return None
