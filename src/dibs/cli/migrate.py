"""`dibs migrate`: bring a store's schema up to date, as a role that may."""

from collections.abc import Sequence
from typing import Any

import click

from dibs.cli import options
from dibs.cli.exits import FORBIDDEN
from dibs.cli.voice import Voice


@click.command()
@click.option("--dry-run", is_flag=True, help="Change nothing; say what would be done.")
@options.store
@options.as_json
def migrate(dry_run: bool, url: str | None, as_json: bool) -> int:
    """Make or update the schema that the store needs, for stores that have one (PostgreSQL).

    Dibs does this by itself on first use wherever its role may. Exits with 0 also if there was
    nothing to do, and with 77 if this role may not do it. At the end it says what to grant to
    another role that is to use the leases.
    """
    with options.open_client(url) as client:
        store: Any = client.hub.store
        has_schema = hasattr(store, "migrate")
        steps = store.migrate(dry_run=dry_run) if has_schema else ()
        may = not (dry_run and steps) or store.may_migrate()
    grants = store.grants("ROLE") if has_schema else []
    if as_json:
        from dibs.cli.output import emit

        names = [{"number": step.number, "name": step.name} for step in steps]
        emit({"url": store.url, "dry_run": dry_run, "migrations": names, "grants": grants})
    else:
        print(*_lines(store.url, steps, grants, dry_run=dry_run), sep="\n")
    if not may:
        Voice(as_json).say("error", "this role may not do that", exit_code=FORBIDDEN)
    return 0 if may else FORBIDDEN


def _lines(url: str, steps: Sequence[Any], grants: Sequence[str], *, dry_run: bool) -> list[str]:
    done = "would apply" if dry_run else "applied"
    told = [f"{done} {step.number:04} {step.name}" for step in steps]
    if not told:
        told = [f"{url} {'is up to date' if grants else 'needs no migrations'}"]
    if grants and not dry_run:
        told += ["To let another role use the leases:", *(f"  {grant};" for grant in grants)]
    return told
