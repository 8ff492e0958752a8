"""Faults on the way to a store: lost, late and doubled messages, outages, unreliable pushes.

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
from typing import Any, Protocol

import dibs
from dibs.clock import Clock
from dibs.errors import BackendUnavailable
from dibs.model import (
    MANY,
    Acquire,
    Capabilities,
    Command,
    Granted,
    Page,
    Release,
    Reply,
    Revoke,
    Status,
    Wakeup,
)
from dibs.runtime.port import step
from dibs.stores.port import Backend, Store


@dataclass
class Faults:
    """How often what goes wrong; probabilities of 0 to 1, drawn per call from `seed`.

    May be changed at any time, also while calls are under way; `hits` counts what really happened,
    so that a test can show its faults bit.
    """

    seed: int = 0
    lose_request: float = 0.0
    """The store never hears of it; the caller gets `BackendUnavailable`."""
    lose_reply: float = 0.0
    """The store has applied it; the caller gets `BackendUnavailable` all the same."""
    late_request: float = 0.0
    """The caller gets `BackendUnavailable`, and the store hears of it before some later call."""
    double: float = 0.0
    """The store applies it twice at once."""
    echo: float = 0.0
    """The store applies it, and a copy again before some later call."""
    delay: float = 0.0
    """The reply takes up to `longest_delay` seconds of real time."""
    longest_delay: float = 0.05
    drop_wakeup: float = 0.0
    double_wakeup: float = 0.0
    late_wakeup: float = 0.0
    """It comes together with those of a later call."""
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


class FaultyStore:
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
        self.url = store.url
        self.capabilities: Capabilities = store.capabilities
        self.faults = faults
        self._store = store

    def backend(self, *, blocking: bool) -> Backend:
        return FaultyBackend(self._store.backend(blocking=blocking), self.faults, blocking=blocking)


class FaultyBackend:
    """One unreliable connection."""

    def __init__(self, backend: Backend, faults: Faults, *, blocking: bool) -> None:
        self._backend = backend
        self._faults = faults
        self._blocking = blocking
        self._under_way: list[Sequence[Command]] = []
        self._late_wakeups: list[Wakeup] = []

    @property
    def inbox(self) -> str:
        return self._backend.inbox

    async def open(self, *, listen: bool = True) -> None:
        if self._faults.strikes("down"):
            raise BackendUnavailable("the store is down (injected)")
        await self._backend.open(listen=listen)

    async def close(self) -> None:
        await self._backend.close()

    def apply_now(self, commands: Sequence[Command]) -> Sequence[Reply] | None:
        """What may be delayed, or has late messages before it, can't be done at once."""
        if self._faults.delay or self._under_way:
            return None
        self._on_the_way_there(commands)
        replies = self._backend.apply_now(commands)
        if replies is None:
            return None
        if self._faults.strikes("double"):
            self._backend.apply_now(commands)
        return self._on_the_way_back(commands, replies)

    async def apply(self, commands: Sequence[Command]) -> Sequence[Reply]:
        self._on_the_way_there(commands)
        await self.deliver_late()
        replies = await self._backend.apply(commands)
        if self._faults.strikes("double"):
            await self._backend.apply(commands)
        if self._faults.strikes("delay"):
            await self._sleep(self._faults.seconds())
        return self._on_the_way_back(commands, replies)

    async def deliver_late(self) -> None:
        """Let the store hear of everything that is late."""
        late, self._under_way = self._under_way, []
        for batch in late:
            await self._backend.apply(batch)

    def _on_the_way_there(self, commands: Sequence[Command]) -> None:
        faults = self._faults
        if faults.strikes("down"):
            raise BackendUnavailable("the store is down (injected)")
        if faults.strikes("lose_request"):
            raise BackendUnavailable("the request was lost (injected)")
        if faults.strikes("late_request"):
            self._under_way.append(tuple(commands))
            raise BackendUnavailable("the request is late (injected)")

    def _on_the_way_back(
        self, commands: Sequence[Command], replies: Sequence[Reply]
    ) -> Sequence[Reply]:
        if self._faults.strikes("echo"):
            self._under_way.append(tuple(commands))
        if self._faults.strikes("lose_reply"):
            raise BackendUnavailable("the reply was lost (injected)")
        return replies

    async def _sleep(self, seconds: float) -> None:
        if self._blocking:
            time.sleep(seconds)  # noqa: ASYNC251 -- coroutines of the blocking kind block
        else:
            await asyncio.sleep(seconds)

    async def wakeups(self, timeout: float | None) -> Sequence[Wakeup]:
        arrived = await self._backend.wakeups(timeout)
        late, self._late_wakeups = self._late_wakeups, []
        for wakeup in arrived:
            if self._faults.strikes("drop_wakeup"):
                continue
            copies = 2 if self._faults.strikes("double_wakeup") else 1
            slow = self._faults.strikes("late_wakeup")
            (self._late_wakeups if slow else late).extend([wakeup] * copies)
        return late

    def nudge(self) -> None:
        self._backend.nudge()

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        self._on_the_way_there(())
        return await self._backend.scan(prefix, cursor, limit)

    def after_fork(self) -> None:
        self._under_way.clear()
        self._backend.after_fork()


THIEF = "thief"
"""Who holds what was stolen."""

THEFT = 3600.0
"""Seconds for which a thief holds what it took."""


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
    """Expire it likewise, and let somebody else hold it for an hour; return the thief's fencing token.

    As after a pause that was longer than the ttl. Whatever other processes hold is revoked at once.
    Waiters stay in the queue behind the thief.
    """
    client = _client_of(lock)
    _expire(client, lock.key)
    units = MANY if lock.key.startswith(b"rwlock:") else 1  # or others could read beside it
    thief = f"thief-{secrets.token_hex(9)}"
    take = Acquire(lock.key, thief, THIEF, THEFT, units, units, priority=1 << 30)
    replies = _say(client, Revoke(lock.key, None, "stolen by a test", now=True), take)
    if not isinstance(replies[-1], Granted):
        raise AssertionError(f"others came before the thief: {replies[-1]}")
    return replies[-1].token


def held(client: Any) -> list[Status]:
    """What is held in a client's store at this moment, kept units aside."""
    backend: Backend = client.session.store.backend(blocking=True)
    step(backend.open())
    try:
        found: list[Status] = []
        cursor: bytes | None = None
        while True:
            page = step(backend.scan(b"", cursor, 100))
            found += [each for each in page.items if any(h.state != "kept" for h in each.holders)]
            cursor = page.cursor
            if cursor is None:
                return found
    finally:
        step(backend.close())


def _expire(client: Any, key: bytes) -> list[Any]:
    leases = [lease for lease in client.session.keeper.leases() if lease.key == key]
    _say(client, *(Release(key, lease._id) for lease in leases))
    for lease in leases:
        lease._lose("expired", "let expire by a test")
    return leases


def _say(client: Any, *commands: Command) -> list[Reply]:
    """Over a connection of its own."""
    backend: Backend = client.session.store.backend(blocking=True)
    step(backend.open())
    try:
        return list(step(backend.apply(commands))) if commands else []
    finally:
        step(backend.close())


def _client_of(lock: Any) -> Any:
    """A primitive knows its client; otherwise it is the default one."""
    client = getattr(lock, "_client", None)
    return dibs.connect() if client is None else client
