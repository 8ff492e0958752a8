"""Schema `dibs` in the database: is it there, in a format that we read, and up to date?"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from dibs.errors import Forbidden, IncompatibleVersion
from dibs.stores.postgres import migrations
from dibs.stores.postgres.migrations import FORMAT, Migration
from dibs.stores.postgres.site import Site
from dibs.stores.postgres.statements import Rows
from dibs.stores.postgres.trouble import SqlError
from dibs.stores.postgres.wire import Wire

type Run = Callable[[str], Coroutine[Any, Any, Rows]]
"""Executes statements, and gives the rows of the last of them."""


async def ensure(wire: Wire, site: Site, patience: float) -> None:
    """Bring the schema up to date, if it isn't and we may.

    Raises `IncompatibleVersion` for a newer format, `Forbidden` where a person has to do it.
    """

    async def run(script: str) -> Rows:
        return await wire.run(script, patience)

    lacks = await missing(run, site)
    if not lacks:
        return
    absent = len(lacks) == len(migrations.migrations())
    if not site.address.may_migrate:
        raise _somebody_else(site, "the URL says migrate=no", absent)
    try:
        await upgrade(run)
    except SqlError as error:
        if error.state != "42501":
            raise
        raise _somebody_else(site, str(error), absent) from None


async def missing(run: Run, site: Site) -> Sequence[Migration]:
    """What the schema lacks. Raises `IncompatibleVersion` if it is of another format."""
    found = migrations.version_of(await run(migrations.VERSION_QUERY))
    if found is not None and found.format > FORMAT:
        raise IncompatibleVersion(
            f"schema dibs of {site.place} has format {found.format}, and this release reads "
            f"format {FORMAT}: nothing is granted; update dibs here"
        )
    if found is not None and found.format < FORMAT:
        raise IncompatibleVersion(
            f"schema dibs of {site.place} has format {found.format}, of an earlier release, and this "
            f"one reads format {FORMAT}: nothing is granted; when nobody uses its leases any more, "
            "execute DROP SCHEMA dibs CASCADE there, then dibs migrate"
        )
    return migrations.pending(found.number if found else None)


async def upgrade(run: Run) -> Sequence[Migration]:
    """Apply what the schema lacks, in one transaction; of processes that start at once, one does it."""
    steps = migrations.upgrade()
    rows: Rows | None = None
    try:
        while True:
            rows = await run(steps.send(rows))
    except StopIteration as done:
        applied: Sequence[Migration] = done.value
        return applied
    except SqlError:
        await run("ROLLBACK")
        raise


def _somebody_else(site: Site, why: str, absent: bool) -> Forbidden:
    lack = "does not exist, and this role may not make it"
    if not absent:
        lack = "is not up to date, and this role may not change it"
    return Forbidden(
        f"schema dibs of {site.place} {lack} "
        f"({why}): have somebody who may run `dibs migrate --url postgresql://OWNER@{site.place}`"
    )
