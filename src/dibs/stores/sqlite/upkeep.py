"""What a file needs now and then, off everybody's path: the log written back, idle keys thrown out.

SQLite's own automatic checkpoint isn't used: it would sync the disk in the middle of a commit, perhaps
on an event loop; and while several processes write without a pause it never finds the log
all written back, so the log would grow without bound. Here it is written back every so many commands
beside the writers, and once it is large, with the writers held up for as long as it takes to empty it.
"""

import sqlite3
import time
from collections.abc import Iterator

from dibs.errors import DibsError
from dibs.model import Wakeup
from dibs.stores.sqlite.connection import Connection
from dibs.stores.sqlite.patience import always, chance, persist
from dibs.stores.sqlite.trouble import Busy

EVERY = 4096
"""Commands of one connection between two upkeeps."""

LARGE = 16 << 20
"""A log of more bytes than this is emptied."""

TRIES = 100
"""So often a large log is tried to be emptied, a few milliseconds apart."""

CHUNK = 256
CHUNKS = 16
"""An upkeep looks at this many chunks of keys at most, and the next one goes on behind them."""

SPARED = 64
"""Fewer idle keys than this in a chunk are left alone: they are likely to be used again soon."""

PARTING = 1 / 32
"""The chance of an upkeep when a connection that has written is closed: programs that take one
lease and end must not leave all the work to others."""


def is_due(connection: Connection) -> bool:
    """Has this connection done enough since the last time?"""
    return connection.work >= EVERY


def is_due_at_parting(connection: Connection) -> bool:
    """Should a connection that is about to be closed see to the file?"""
    if not connection.work:
        return False
    return connection.site.log_size() > LARGE or chance() < PARTING


def run(connection: Connection) -> list[Wakeup]:
    """Do what is needed; what goes wrong here is left for the next time."""
    connection.work = 0
    pushes: list[Wakeup] = []
    try:
        for keys in _candidates(connection):
            pushes += _sweep(connection, keys)
        checkpoint(connection)
    except (DibsError, Busy):
        pass  # whoever needs the file is told by its own command
    return pushes


def _sweep(connection: Connection, keys: list[bytes]) -> list[Wakeup]:
    """Sweep these; one that can't be read is left alone, and costs the others nothing."""
    try:
        return persist(connection, lambda: connection.sweep(keys), always)
    except (ValueError, TypeError, sqlite3.Error):
        if len(keys) == 1:
            return []
    return [wakeup for key in keys for wakeup in _sweep(connection, [key])]


def _candidates(connection: Connection) -> Iterator[list[bytes]]:
    """Keys that are idle, or would be if somebody looked."""
    site = connection.site
    for _ in range(CHUNKS):
        rows = persist(connection, lambda: connection.read(_KEYS, site.swept, CHUNK), always)
        now = site.clock.now()
        idle = [key for key, is_idle, _ in rows if is_idle]
        keys = [key for key, _, due in rows if due <= now] + (idle if len(idle) >= SPARED else [])
        if keys:
            yield keys
        if len(rows) < CHUNK:
            site.swept = b""
            return
        site.swept = rows[-1][0]


_KEYS = """SELECT key, id IS NULL AND waiting = 0 AND holds = 0 AND tombs = 0, due
    FROM lease_keys WHERE key > ? ORDER BY key LIMIT ?"""


def checkpoint(connection: Connection) -> None:
    """Write the log back into the file, and empty it if it is large."""
    persist(connection, lambda: connection.read("PRAGMA wal_checkpoint(PASSIVE)"), always)
    for _ in range(TRIES):
        if connection.site.log_size() <= LARGE:
            return
        try:
            with connection.lock:
                connection.read("PRAGMA wal_checkpoint(TRUNCATE)")
        except Busy:
            pass
        time.sleep(0.003 * chance())
