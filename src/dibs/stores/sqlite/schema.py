"""The tables and their format number, the statements, and what happens to leases after a reboot.

`lease_keys` has a row for each key that is not idle, with one of its holds inside, so a lock that
nobody else wants is one row of one table. `lease_entries` has a row for each further hold, each waiter
and each tombstone. The columns of an entry are the fields of its class in `core/book.py`. A key's
`version` rises with every change of its row.
"""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from dibs.core.book import Hold, QueueEntry, Tombstone
from dibs.core.timing import COUNTED_POSITIONS, DRIFT
from dibs.errors import BackendUnavailable, Corrupt, IncompatibleVersion
from dibs.version import VERSION

type Execute = Callable[..., sqlite3.Cursor]
type Row = tuple[Any, ...]

FORMAT = 1
"""Raised when an older release could no longer keep exclusion beside a newer one. The migration must then
change the version of every key, because connections write rows they remember without looking here."""

PAGE_SIZE = 1024
"""Bytes per page. A commit writes whole pages to the log, so a small row should not carry 4 kB along."""

type Kind = type[QueueEntry | Hold | Tombstone]

KINDS: tuple[Kind, ...] = (QueueEntry, Hold, Tombstone)
"""A row's `kind` is an index into this."""

FIELDS = {kind: tuple(each.name for each in fields(kind)) for kind in KINDS}
_HOLD = ", ".join(FIELDS[Hold])
_ENTRY = ", ".join(dict.fromkeys(name for names in FIELDS.values() for name in names))

# Each entry is in one of the two indexes, so that a heartbeat of a waiter does not write both.
TABLES = (
    """CREATE TABLE lease_meta (
        one INTEGER PRIMARY KEY CHECK (one = 1), format INTEGER NOT NULL, boot TEXT NOT NULL,
        floor INTEGER NOT NULL)""",
    f"""CREATE TABLE lease_keys (
        key BLOB PRIMARY KEY, version INTEGER NOT NULL, last INTEGER NOT NULL, capacity INTEGER NOT NULL,
        arrivals INTEGER NOT NULL, used INTEGER NOT NULL, waiting INTEGER NOT NULL,
        holds INTEGER NOT NULL, tombs INTEGER NOT NULL, due REAL NOT NULL,
        doubt INTEGER NOT NULL, taken BLOB NOT NULL, {_HOLD}) WITHOUT ROWID""",
    f"""CREATE TABLE lease_entries (
        key BLOB NOT NULL, kind INTEGER NOT NULL, {_ENTRY},
        urgency INTEGER AS (-priority),
        PRIMARY KEY (key, id)) WITHOUT ROWID""",
    "CREATE INDEX lease_queue ON lease_entries (key, urgency, arrival) WHERE arrival IS NOT NULL",
    "CREATE INDEX lease_due ON lease_entries (key, kind, expires) WHERE arrival IS NULL",
)

_KEY = (
    "key, version, last, capacity, arrivals, used, waiting, holds, tombs, due, doubt, taken, "
    + _HOLD
)
READ_META = "SELECT format, boot, floor FROM lease_meta"
READ_KEY = f"SELECT {_KEY} FROM lease_keys WHERE key = ?"  # noqa: S608
READ_META_AND_KEY = f"""SELECT format, boot, floor, {_KEY}
    FROM lease_meta LEFT JOIN lease_keys ON key = ?"""  # noqa: S608
WRITE_KEY = f"REPLACE INTO lease_keys ({_KEY}) VALUES ({', '.join('?' * 30)})"  # noqa: S608
SWAP_KEY = f"""UPDATE lease_keys SET {_KEY.replace("key, ", "", 1).replace(",", " = ?,")} = ?
    WHERE key = ? AND version = ?"""  # noqa: S608
"""Writes a key's row if nobody else has written it."""

_OF_KIND = {
    kind: f"FROM lease_entries WHERE key = ? AND kind = {code}"
    f" AND arrival IS {'NOT NULL' if kind is QueueEntry else 'NULL'}"
    for code, kind in enumerate(KINDS)
}
_READ = {kind: f"SELECT {', '.join(FIELDS[kind])} {which}" for kind, which in _OF_KIND.items()}
READ_ENTRY = {kind: f"{read} AND id = ?" for kind, read in _READ.items()}
EXPIRED = {
    kind: f"{read} AND expires <= ? ORDER BY expires, id LIMIT ?" for kind, read in _READ.items()
}
NEXT_EXPIRY = {
    kind: f"SELECT min(expires) {which} AND expires > ?" for kind, which in _OF_KIND.items()
}
WRITE_ENTRY = {
    kind: f"REPLACE INTO lease_entries (key, kind, {', '.join(names)})"  # noqa: S608
    f" VALUES (?, {code}, {', '.join('?' * len(names))})"
    for code, (kind, names) in enumerate(FIELDS.items())
}
DELETE_ENTRY = "DELETE FROM lease_entries WHERE key = ? AND id = ?"

ALL_HOLDS = _READ[Hold]
FIRST_HOLDS = f"{ALL_HOLDS} ORDER BY expires, id LIMIT ?"

_BEHIND = "AND (urgency, arrival) > (?, ?)"
_IN_ORDER = "ORDER BY urgency, arrival LIMIT"
FIRST_WAITERS = f"{_READ[QueueEntry]} {_IN_ORDER} ?"
NEXT_WAITERS = f"{_READ[QueueEntry]} {_BEHIND} {_IN_ORDER} ?"
ANY_BEHIND = f"SELECT 1 {_OF_KIND[QueueEntry]} {_BEHIND} LIMIT 1"
FIRST_RANKS = f"SELECT urgency, arrival {_OF_KIND[QueueEntry]} {_IN_ORDER} {COUNTED_POSITIONS}"


def create(execute: Execute, boot: str) -> None:
    """Make the tables if they are missing. Must be called in a transaction."""
    found = execute("SELECT 1 FROM sqlite_master WHERE name = 'lease_meta'").fetchone()
    if found is None:
        for table in TABLES:
            execute(table)
        execute("INSERT INTO lease_meta VALUES (1, ?, ?, 0)", (FORMAT, boot))


def check_meta(row: Sequence[Any] | None, path: str) -> tuple[str, int]:
    """The boot that the times belong to, and the highest token of all deleted keys.

    `row` begins with the columns of `READ_META`. Raises `IncompatibleVersion` or `Corrupt`.
    """
    if row is None or type(row[0]) is not int or type(row[2]) is not int:
        raise Corrupt(f"{path} has no readable format number: nothing is granted from it")
    if row[0] != FORMAT:
        raise IncompatibleVersion(
            f"{path} has format {row[0]}, and this release (dibs {VERSION}) reads format "
            f"{FORMAT}: nothing is granted; run the same release everywhere on this file"
        )
    return row[1], row[2]


def adopt(execute: Execute, boot: str, now: float) -> None:
    """Take over entries of another boot: each one counts as alive for its whole ttl from now on.

    Their times belong to a clock that nobody can read any more. Most holders died with that boot, but
    the file may also have been moved here from a machine that still runs.
    """
    for table in ("lease_keys", "lease_entries"):
        execute(f"UPDATE {table} SET expires = ? + ? * ttl", (now, 1 + DRIFT))  # noqa: S608
    # `due` is a lower bound; the new version invalidates rows that connections remember
    execute("UPDATE lease_keys SET due = ?, version = version + 1", (now,))
    execute("UPDATE lease_meta SET boot = ?", (boot,))


def two_boots(path: str) -> BackendUnavailable:
    """Two machines with different clocks write into one file."""
    return BackendUnavailable(
        f"two living boots are on {path}: another machine, or a container with a kernel of its own, "
        "uses it at the same time, so exclusion can't be kept. Give each machine its own file or use "
        "a server, then restart"
    )
