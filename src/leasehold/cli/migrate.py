"""`leasehold migrate`: bring a store's schema up to date, as a role that may."""

from typing import Any

import click

from leasehold.cli import options


@click.command()
@click.option("--dry-run", is_flag=True, help="Change nothing; say what would be done.")
@options.store
@options.as_json
def migrate(dry_run: bool, url: str | None, as_json: bool) -> int:
    """Make or update the schema that the store needs, for stores that have one (PostgreSQL).

    Leasehold does this by itself on first use wherever its role may. Exits with 0 also if there was
    nothing to do.
    """
    with options.open_client(url) as client:
        store: Any = client.hub.store
        has_schema = hasattr(store, "migrate")
        steps = store.migrate(dry_run=dry_run) if has_schema else ()
    if as_json:
        from leasehold.cli.output import emit

        names = [{"number": step.number, "name": step.name} for step in steps]
        emit({"url": store.url, "dry_run": dry_run, "migrations": names})
    elif not steps:
        print(f"{store.url} {'is up to date' if has_schema else 'needs no migrations'}")
    else:
        done = "would apply" if dry_run else "applied"
        print(*(f"{done} {step.number:04} {step.name}" for step in steps), sep="\n")
    return 0
