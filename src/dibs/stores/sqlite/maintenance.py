"""What operators and the file itself need: the list of keys, the checks of `dibs doctor`, and upkeep.

All of it blocks. `Connection.retry` is used for each step, so that other writers get their turn.

SQLite's own automatic checkpoint is not used: it would sync the disk in the middle of a commit, perhaps
on an event loop. And while several processes write without a pause it never finds the log all written
back, so the log would grow without bound. Here `maintain` writes the log back beside the writers. Only a
large log is emptied, with the writers held up for as long as that takes.
"""

import random
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from dibs.errors import DibsError
from dibs.model import Finding, Inspect, Notification, Page, Status
from dibs.stores.sqlite.connection import Connection
from dibs.stores.sqlite.errors import Busy
from dibs.stores.sqlite.file import free_space, open_to_others
from dibs.stores.sqlite.notify import available
from dibs.stores.sqlite.schema import FORMAT

type Deliver = Callable[[Sequence[Notification]], None]

# -- upkeep ---------------------------------------------------------------------------------------------

EVERY = 4096
"""Commands of one connection between two runs of `maintain`."""

LARGE_LOG = 16 << 20
"""A log of more bytes than this is emptied."""

TRIES = 100
"""Tries to empty a large log, a few milliseconds apart."""

CHUNK = 256
CHUNKS = 16
"""Keys per chunk, and chunks per run. The next run continues behind them."""

SPARED = 64
"""Fewer idle keys than this in a chunk are left alone: they are likely to be used again soon."""

AT_CLOSE = 1 / 32
"""Probability of a run when a connection that has written is closed. Programs that take one lease and
end must not leave all the work to others."""


def is_due_at_close(connection: Connection) -> bool:
    """Should a connection that is about to be closed run `maintain`?"""
    if not connection.work:
        return False
    return connection.file.log_size() > LARGE_LOG or random.random() < AT_CLOSE  # noqa: S311


def maintain(connection: Connection) -> list[Notification]:
    """Delete idle keys, and write the log back. Returns notifications for waiters.

    Errors are left for the next run: callers that need the file get them from their own commands.
    """
    connection.work = 0
    notifications: list[Notification] = []
    try:
        for keys in _keys_to_sweep(connection):
            notifications += _sweep(connection, keys)
        checkpoint(connection)
    except (DibsError, Busy):
        pass
    return notifications


def _keys_to_sweep(connection: Connection) -> Iterator[list[bytes]]:
    """Keys that are idle, or would be if time took effect on them."""
    file = connection.file
    for _ in range(CHUNKS):
        rows = connection.retry(lambda: connection.read(_KEYS_BEHIND, file.swept_to, CHUNK))
        now = file.clock.now()
        idle = [key for key, is_idle, _ in rows if is_idle]
        keys = [key for key, _, due in rows if isinstance(due, int | float) and due <= now]
        keys += idle if len(idle) >= SPARED else []
        if keys:
            yield keys
        if len(rows) < CHUNK:
            file.swept_to = b""
            return
        file.swept_to = rows[-1][0]


_KEYS_BEHIND = """SELECT key, id IS NULL AND waiting = 0 AND holds = 0 AND tombs = 0, due
    FROM lease_keys WHERE key > ? ORDER BY key LIMIT ?"""


def _sweep(connection: Connection, keys: list[bytes]) -> list[Notification]:
    """Sweep these keys. An unreadable one is left alone, and the others are swept all the same."""
    try:
        return connection.retry(lambda: connection.sweep(keys))
    except (ValueError, TypeError, sqlite3.Error):
        if len(keys) == 1:
            return []
    return [notification for key in keys for notification in _sweep(connection, [key])]


def checkpoint(connection: Connection) -> None:
    """Write the log back into the file, and empty it if it is large."""
    connection.retry(lambda: connection.read("PRAGMA wal_checkpoint(PASSIVE)"))
    for _ in range(TRIES):
        if connection.file.log_size() <= LARGE_LOG:
            return
        try:
            with connection.lock:
                connection.read("PRAGMA wal_checkpoint(TRUNCATE)")
        except Busy:
            pass
        time.sleep(0.003 * random.random())  # noqa: S311


# -- the list of keys -----------------------------------------------------------------------------------

SCAN_CHUNK = 64
"""Keys inspected in one transaction."""

_NEXT_KEYS = """SELECT key FROM lease_keys WHERE key {} ? AND key < ?
    AND (id IS NOT NULL OR waiting > 0 OR holds > 0) ORDER BY key LIMIT ?"""


def scan(
    connection: Connection, prefix: bytes, cursor: bytes | None, limit: int, deliver: Deliver
) -> Page:
    """The next keys that are held or waited for, in the order of their bytes. Raises what the port says.

    `deliver` takes notifications: a look at a key can grant it to a waiter.
    """
    items: list[Status] = []
    stem = prefix.rstrip(b"\xff")
    end = stem[:-1] + bytes([stem[-1] + 1]) if stem else b"\xff" * 2048  # longer than any key
    while True:
        start = prefix if cursor is None else max(prefix, cursor)
        statement = _NEXT_KEYS.format(">=" if cursor is None else ">")
        query = partial(connection.read, statement, start, end, min(limit - len(items), SCAN_CHUNK))
        commands = [Inspect(key) for (key,) in connection.retry(query)]
        if not commands:
            return Page(items)
        replies, notifications = connection.retry(partial(connection.apply, commands))
        if notifications:
            deliver(notifications)
        items += [r for r in replies if isinstance(r, Status) and (r.holders or r.waiters)]
        cursor = commands[-1].key
        if len(items) >= limit:
            return Page(items, cursor)


# -- checks ---------------------------------------------------------------------------------------------

LOW_DISK, FULL_DISK = 64 << 20, 1 << 20
"""Bytes of free disk space: less is worth a warning; with less, nothing can be granted or released soon."""


def examine(connection: Connection) -> list[Finding]:
    """What `dibs doctor` reports about the file."""
    file = connection.file
    [(keys,)] = connection.retry(lambda: connection.read("SELECT count(*) FROM lease_keys"))
    free = free_space(file.path)
    size = f"{free >> 10} kB" if free < FULL_DISK else f"{free >> 20} MB"
    disk = Finding("disk", "ok", f"{size} are free on the disk of {file.path}")
    if free < LOW_DISK:
        advice = "free some space: with a full disk nothing can be granted or released"
        disk = Finding("disk", "problem" if free < FULL_DISK else "warning", disk.told, advice)
    return [
        Finding("file", "ok", f"SQLite {sqlite3.sqlite_version}, format {FORMAT}, {keys} keys"),
        disk,
        Finding("log", "ok", f"the write-ahead log has {file.log_size() >> 10} kB"),
        _permissions(file.path),
        _notifications(),
    ]


def _permissions(path: str) -> Finding:
    what, _, advice = open_to_others(path).rpartition("; ")
    if advice:
        return Finding("permissions", "warning", what, advice)
    return Finding("permissions", "ok", "other users of this machine cannot use the file")


def _notifications() -> Finding:
    if available():
        return Finding("notifications", "ok", "waiters are notified by datagrams")
    return Finding(
        "notifications",
        "warning",
        "datagram sockets are not available here: waiters poll",
        "waiters are served faster outside of this sandbox or container",
    )
