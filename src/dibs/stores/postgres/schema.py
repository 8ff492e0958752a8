"""Schema `dibs` in the database: its numbered migrations, and how a database is brought up to date."""

import re
from collections.abc import Callable, Coroutine, Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from dibs.errors import Forbidden, IncompatibleVersion
from dibs.stores.postgres.errors import SqlError

FORMAT = 3
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

type Rows = list[tuple[Any, ...]]

type Run = Callable[[str], Coroutine[Any, Any, Rows]]
"""Executes statements without parameters; the rows of the last of them."""


def version_of(rows: Rows) -> Version | None:
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


# ---- bringing a database up to date ---------------------------------------------------------------


async def ensure(run: Run, place: str, *, may_migrate: bool) -> None:
    """Bring the schema up to date, if it is not and we may.

    Raises `IncompatibleVersion` for another format, `Forbidden` if a person has to do it.
    """
    lacks = await missing(run, place)
    if not lacks:
        return
    absent = len(lacks) == len(migrations())
    if not may_migrate:
        raise _somebody_else(place, "the URL says migrate=no", absent)
    try:
        await upgrade(run)
    except SqlError as error:
        if error.state != "42501":
            raise
        raise _somebody_else(place, str(error), absent) from None


async def missing(run: Run, place: str) -> Sequence[Migration]:
    """The migrations that the schema lacks. Raises `IncompatibleVersion` if it has another format."""
    found = version_of(await run(VERSION_QUERY))
    if found is not None and found.format > FORMAT:
        raise IncompatibleVersion(
            f"schema dibs of {place} has format {found.format}, and this release reads "
            f"format {FORMAT}: nothing is granted; update dibs here"
        )
    if found is not None and found.format < FORMAT:
        raise IncompatibleVersion(
            f"schema dibs of {place} has format {found.format}, of an earlier release, and this "
            f"one reads format {FORMAT}: nothing is granted; when nobody uses its leases any more, "
            "execute DROP SCHEMA dibs CASCADE there, then dibs migrate"
        )
    return pending(found.number if found else None)


async def upgrade(run: Run) -> Sequence[Migration]:
    """Apply what the schema lacks, in one transaction; returns what was applied.

    `run` is of a connection in autocommit mode. After an error nothing is half done. Of processes that
    start at once one does it, and the others find it done. A database of another format is left as it is.
    """
    try:
        await run("BEGIN")
        await run(LOCK)
        current = version_of(await run(VERSION_QUERY))
        new = pending(current.number if current else None)
        if current is not None and current.format != FORMAT:
            new = []
        for migration in new:
            await run(migration.sql)
        if new:
            await run(stamp(NEWEST))
        await run("COMMIT")
    except SqlError:
        await run("ROLLBACK")
        raise
    return new


async def may_migrate(run: Run) -> bool:
    """Whether this role could: it has the schema, or may make it."""
    [[answer]] = await run(
        """
        SELECT coalesce(
            (SELECT pg_catalog.pg_has_role(nspowner, 'USAGE') FROM pg_catalog.pg_namespace
                WHERE nspname = 'dibs'),
            pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE'))::integer"""
    )
    return bool(int(answer))


def _somebody_else(place: str, why: str, absent: bool) -> Forbidden:
    lack = "does not exist, and this role may not make it"
    if not absent:
        lack = "is not up to date, and this role may not change it"
    return Forbidden(
        f"schema dibs of {place} {lack} "
        f"({why}): have somebody who may run `dibs migrate --url postgresql://OWNER@{place}`"
    )
