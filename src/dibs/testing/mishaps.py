"""What happens to leases in real life, made to happen in a test."""

import secrets
from typing import Any, Protocol

import dibs
from dibs.backends.port import Backend
from dibs.model import MANY, Acquire, Command, Granted, Release, Reply, Revoke, Status
from dibs.runtime.step import step

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
    backend: Backend = client.hub.store.backend(blocking=True)
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
    leases = [lease for lease in client.hub.keeper.leases() if lease.key == key]
    _say(client, *(Release(key, lease._id) for lease in leases))
    for lease in leases:
        lease._lose("expired", "let expire by a test")
    return leases


def _say(client: Any, *commands: Command) -> list[Reply]:
    """Over a connection of its own."""
    backend: Backend = client.hub.store.backend(blocking=True)
    step(backend.open())
    try:
        return list(step(backend.apply(commands))) if commands else []
    finally:
        step(backend.close())


def _client_of(lock: Any) -> Any:
    """A primitive knows its client; otherwise it is the default one."""
    client = getattr(lock, "_client", None)
    return dibs.connect() if client is None else client
