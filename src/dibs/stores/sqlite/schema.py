"""The tables, their format number, and what a reboot does to what lies in them.

`lease_keys` has a row for each key that is not idle, with one of its holds inside: so a lock that
nobody else wants is one row of one table. Further holds, places and tombs are rows of their own.
"""

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from dibs.core.timing import DRIFT
from dibs.errors import BackendUnavailable, Corrupt, IncompatibleVersion

type Execute = Callable[..., sqlite3.Cursor]

FORMAT = 1
"""Raised when an older release could no longer keep exclusion beside a newer one; then every key's row
gets another version, as connections write rows that they remember without looking here."""

PAGE_SIZE = 1024
"""A commit writes whole pages to the log: a small row should not carry four kilobytes along."""

_HOLD = """
    id {null}, owner TEXT, token INTEGER, units INTEGER, slots TEXT, ttl REAL, expires REAL,
    beat INTEGER, state TEXT, seq INTEGER, lock_delay REAL, bury REAL, since INTEGER, note TEXT,
    detail TEXT, inbox TEXT, address TEXT, trace TEXT
"""

TABLES = (
    """CREATE TABLE lease_meta (
        one INTEGER PRIMARY KEY CHECK (one = 1), format INTEGER NOT NULL, boot TEXT NOT NULL,
        floor INTEGER NOT NULL)""",
    f"""CREATE TABLE lease_keys (
        key BLOB PRIMARY KEY, version INTEGER NOT NULL, last INTEGER NOT NULL, capacity INTEGER NOT NULL,
        arrivals INTEGER NOT NULL, used INTEGER NOT NULL, waiting INTEGER NOT NULL,
        holds INTEGER NOT NULL, tombs INTEGER NOT NULL, due REAL NOT NULL,
        doubt INTEGER NOT NULL, taken BLOB NOT NULL,
        {_HOLD.format(null="TEXT")}) WITHOUT ROWID""",
    f"""CREATE TABLE lease_holds (
        key BLOB NOT NULL, {_HOLD.format(null="TEXT NOT NULL")}, PRIMARY KEY (key, id)) WITHOUT ROWID""",
    """CREATE TABLE lease_places (
        key BLOB NOT NULL, id TEXT NOT NULL, owner TEXT, units INTEGER, urgency INTEGER,
        arrival INTEGER, grant_ttl REAL, ttl REAL, expires REAL, beat INTEGER, silence REAL,
        seen INTEGER, floor INTEGER, lock_delay REAL, since INTEGER, note TEXT,
        inbox TEXT, address TEXT, trace TEXT, PRIMARY KEY (key, urgency, arrival)) WITHOUT ROWID""",
    """CREATE TABLE lease_tombs (
        key BLOB NOT NULL, id TEXT NOT NULL, ttl REAL, expires REAL, beat INTEGER, reason TEXT,
        detail TEXT, PRIMARY KEY (key, id)) WITHOUT ROWID""",
    "CREATE UNIQUE INDEX lease_places_id ON lease_places (key, id)",
    "CREATE INDEX lease_holds_due ON lease_holds (key, expires)",
    "CREATE INDEX lease_tombs_due ON lease_tombs (key, expires)",
)

_META = "SELECT format, boot, floor FROM lease_meta"


def create(execute: Execute, boot: str) -> None:
    """Make what is missing; to be called in a transaction."""
    found = execute("SELECT 1 FROM sqlite_master WHERE name = 'lease_meta'").fetchone()
    if found is None:
        for table in TABLES:
            execute(table)
        execute("INSERT INTO lease_meta VALUES (1, ?, ?, 0)", (FORMAT, boot))


def read_meta(execute: Execute, path: str) -> tuple[str, int]:
    """The boot that the times are of, and the highest token of the keys that were thrown out.

    Raises `IncompatibleVersion` before anything else of another format is looked at.
    """
    return check_meta(execute(_META).fetchone(), path)


def check_meta(row: Sequence[Any] | None, path: str) -> tuple[str, int]:
    """The same, from a row that begins with the format, the boot, and that token."""
    if row is None or type(row[0]) is not int or type(row[2]) is not int:
        raise Corrupt(f"{path} has no readable format number: nothing is granted from it")
    if row[0] != FORMAT:
        raise IncompatibleVersion(
            f"{path} has format {row[0]}, and this release (dibs {_release()}) reads format "
            f"{FORMAT}: nothing is granted; run the same release everywhere on this file"
        )
    return row[1], row[2]


def adopt(execute: Execute, boot: str, now: float) -> None:
    """Take over what another boot left: it is not dead, but observed for its ttl from now on.

    Its times are of a clock that nobody can read any more. Most holders died with that boot, but a
    file can also have been moved from a machine that still runs, so each entry gets its whole ttl.
    """
    for table in ("keys", "holds", "places", "tombs"):
        execute(f"UPDATE lease_{table} SET expires = ? + ? * ttl", (now, 1 + DRIFT))  # noqa: S608
    # a lower bound, to be found anew; and whoever remembers a row must not take it for the same
    execute("UPDATE lease_keys SET due = ?, version = version + 1", (now,))
    execute("UPDATE lease_meta SET boot = ?", (boot,))


def two_boots(path: str) -> BackendUnavailable:
    """Somebody else's clock writes into the file that ours writes into."""
    return BackendUnavailable(
        f"two living boots are on {path}: another machine, or a container with a kernel of its own, "
        "uses it at the same time, so exclusion can't be kept. Give each machine its own file or use "
        "a server, then restart"
    )


def _release() -> str:
    from importlib import metadata

    try:
        return metadata.version("dibs")
    except metadata.PackageNotFoundError:
        return "unknown"
