"""Migrating on request, for the person who may."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from dibs.backends.postgres import schema
from dibs.backends.postgres.connecting import connect_thread
from dibs.backends.postgres.migrations import Migration
from dibs.backends.postgres.schema import Run
from dibs.backends.postgres.session import PATIENCE, telling
from dibs.backends.postgres.site import Site
from dibs.backends.postgres.statements import Rows


def migrate(site: Site, *, dry_run: bool = False) -> Sequence[Migration]:
    """Bring the schema up to date, and tell what was applied; or, as a dry run, what would be. Blocks."""

    async def bring(run: Run) -> Sequence[Migration]:
        missing = await schema.missing(run, site)
        return missing if dry_run or not missing else await schema.upgrade(run)

    return _done(_connected(site, bring))


def may_migrate(site: Site) -> bool:
    """Whether this role could: it has the schema, or may make it. Blocks."""

    async def ask(run: Run) -> bool:
        [[answer]] = await run(_MAY)
        return bool(int(answer))

    return _done(_connected(site, ask))


_MAY = """
    SELECT coalesce(
        (SELECT pg_catalog.pg_has_role(nspowner, 'USAGE') FROM pg_catalog.pg_namespace
            WHERE nspname = 'dibs'),
        pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE'))::integer"""


async def _connected[T](site: Site, task: Callable[[Run], Coroutine[Any, Any, T]]) -> T:
    """Do it on a connection of its own."""
    wire = await connect_thread(site)

    async def run(script: str) -> Rows:
        return await wire.run(script, PATIENCE)

    try:
        with telling(site, PATIENCE):
            return await task(run)
    finally:
        wire.cut()


def _done[T](coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    raise AssertionError("it suspended")
