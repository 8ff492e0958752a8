"""Listing what a file holds, a page at a time, in the order of the keys' bytes."""

from collections.abc import Callable, Sequence

from dibs.model import Inspect, Page, Status, Wakeup
from dibs.stores.sqlite.connection import Connection
from dibs.stores.sqlite.patience import always, persist

CHUNK = 64
"""So many keys are inspected in one transaction, that others may have their turn."""

_KEYS = "SELECT key FROM lease_keys WHERE key {} ? AND key < ? AND {} ORDER BY key LIMIT ?"
_BUSY = "(id IS NOT NULL OR waiting > 0 OR holds > 0)"

type Deliver = Callable[[Sequence[Wakeup]], None]


def scan(
    connection: Connection, prefix: bytes, cursor: bytes | None, limit: int, deliver: Deliver
) -> Page:
    """The next keys that are held or waited for. Blocks; raises what the port says.

    `deliver` takes what is to be pushed: a look at a key may grant it to whoever waits.
    """
    items: list[Status] = []
    while True:
        keys = _next_keys(connection, prefix, cursor, min(limit - len(items), CHUNK))
        if not keys:
            return Page(items)
        cursor = keys[-1]
        items += _inspect(connection, keys, deliver)
        if len(items) >= limit:
            return Page(items, cursor)


def _next_keys(
    connection: Connection, prefix: bytes, cursor: bytes | None, count: int
) -> list[bytes]:
    statement = _KEYS.format(">=" if cursor is None else ">", _BUSY)
    start = prefix if cursor is None else max(prefix, cursor)
    end = _after_all(prefix)
    rows = persist(connection, lambda: connection.read(statement, start, end, count), always)
    return [key for (key,) in rows]


def _after_all(prefix: bytes) -> bytes:
    """What sorts behind all keys that begin so."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else b"\xff" * 2048  # longer than any key


def _inspect(connection: Connection, keys: list[bytes], deliver: Deliver) -> list[Status]:
    commands = [Inspect(key) for key in keys]
    replies, wakeups = persist(connection, lambda: connection.apply(commands), always)
    if wakeups:
        deliver(wakeups)
    return [r for r in replies if isinstance(r, Status) and (r.holders or r.waiters)]
