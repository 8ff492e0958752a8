"""Migrating on request, for the person who may."""

from collections.abc import Coroutine, Sequence
from typing import Any

from leasehold.backends.postgres import schema
from leasehold.backends.postgres.connecting import connect_thread
from leasehold.backends.postgres.migrations import Migration
from leasehold.backends.postgres.session import PATIENCE, telling
from leasehold.backends.postgres.site import Site
from leasehold.backends.postgres.statements import Rows


def migrate(site: Site, *, dry_run: bool = False) -> Sequence[Migration]:
    """Bring the schema up to date, and tell what was applied; or, as a dry run, what would be. Blocks."""
    return _done(_migrate(site, dry_run))


async def _migrate(site: Site, dry_run: bool) -> Sequence[Migration]:
    wire = await connect_thread(site)

    async def run(script: str) -> Rows:
        return await wire.run(script, PATIENCE)

    try:
        with telling(site, PATIENCE):
            missing = await schema.missing(run, site)
            return missing if dry_run or not missing else await schema.upgrade(run)
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
