"""`dibs migrate`: create or update a store's schema."""

from collections.abc import Sequence
from typing import Any

import click

from dibs.cli import options
from dibs.cli.exits import FORBIDDEN
from dibs.cli.voice import Voice


@click.command(
    epilog=options.examples(
        "dibs migrate --url postgresql://app@db/app --dry-run", "dibs migrate --store reports"
    )
)
@click.option("--dry-run", is_flag=True, help="Only print what would be done.")
@options.store
@options.as_json
def migrate(dry_run: bool, url: str | None, as_json: bool) -> int:
    """Create or update the schema of a PostgreSQL store.

    Dibs does this on first use if its role has the rights. The command also prints the grants that
    another role needs. Exits with 77 if this role may not change the schema.
    """
    with options.open_client(url) as client:
        store: Any = client.session.store
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
        Voice(as_json).say("error", "this role may not change the schema", exit_code=FORBIDDEN)
    return 0 if may else FORBIDDEN


def _lines(url: str, steps: Sequence[Any], grants: Sequence[str], *, dry_run: bool) -> list[str]:
    done = "would apply" if dry_run else "applied"
    told = [f"{done} {step.number:04} {step.name}" for step in steps]
    if not told:
        told = [f"{url} {'is up to date' if grants else 'needs no migrations'}"]
    if grants and not dry_run:
        told += ["Grants for another role:", *(f"  {grant};" for grant in grants)]
    return told
