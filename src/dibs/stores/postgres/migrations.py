"""The schema's numbered migrations, and the steps that bring a database up to date.

Nothing here talks to a database: `upgrade` yields what is to be executed and is sent the rows that came
of it, so that the event loop's connection and the blocking one follow the same steps.
"""

import re
from collections.abc import Generator, Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

FORMAT = 2
"""Raised when an older release could no longer keep exclusion beside a newer one."""

VERSION_QUERY = r"""
    SELECT coalesce((found.parts)[1]::integer, 0), coalesce((found.parts)[2]::integer, 0)
    FROM pg_catalog.pg_namespace AS schema, LATERAL (SELECT pg_catalog.regexp_match(
        pg_catalog.obj_description(schema.oid, 'pg_namespace'),
        '^Dibs: migration ([0-9]+), format ([0-9]+)$')) AS found (parts)
    WHERE schema.nspname = 'dibs'"""
"""One row: the number of the newest migration and the format; none, or zeros, where nothing was done.

Both stand in the schema's comment: so the question can be asked where nothing is, and of a role that
may do nothing.
"""

LOCK = "SELECT pg_catalog.pg_advisory_xact_lock(5497853149203)"
"""Whoever migrates waits here for whoever does it already; the end of the transaction unlocks it."""


class Migration(NamedTuple):
    """One step of the schema's history."""

    number: int
    name: str
    sql: str
    """Several statements, without parameters: to be sent as one simple query."""


class Version(NamedTuple):
    """What a database has."""

    number: int
    format: int


@cache
def migrations() -> tuple[Migration, ...]:
    """All that this release knows, oldest first."""
    folder = resources.files(__package__) / "sql"
    found = []
    for file in folder.iterdir():
        match = re.fullmatch(r"(\d{4})_(\w+)\.sql", file.name)
        if match:
            found.append(Migration(int(match[1]), match[2], file.read_text(encoding="utf-8")))
    return tuple(sorted(found))


NEWEST: int = max(migration.number for migration in migrations())
"""The number of the newest migration."""


def version_of(rows: Sequence[Sequence[Any]]) -> Version | None:
    """What `VERSION_QUERY` answered; None where no migration was ever applied."""
    if not rows or not rows[0][0]:
        return None
    return Version(int(rows[0][0]), int(rows[0][1]))


def pending(current: int | None) -> list[Migration]:
    """What a database lacks whose newest migration is `current`."""
    return [migration for migration in migrations() if migration.number > (current or 0)]


def stamp(number: int) -> str:
    """The statement that records how far a database has come."""
    return f"COMMENT ON SCHEMA dibs IS 'Dibs: migration {number}, format {FORMAT}'"


def upgrade() -> Generator[str, Sequence[Sequence[Any]] | None, list[Migration]]:
    """The statements that bring a database up to date, all in one transaction; returns what was new.

    Execute each on a connection in autocommit mode, as a simple query, and send the rows of it (None
    where it had none). After an error, roll back: nothing is half done. Of processes that start at
    once, one does it, and the others find it done.

    A database of another format is left as it is: look at its version first.
    """
    yield "BEGIN"
    yield LOCK
    current = version_of((yield VERSION_QUERY) or ())
    new = pending(current.number if current else None)
    if current is not None and current.format != FORMAT:
        new = []
    for migration in new:
        yield migration.sql
    if new:
        yield stamp(NEWEST)
    yield "COMMIT"
    return new
