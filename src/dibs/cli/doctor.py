"""`dibs doctor` and `dibs migrate`: check a store, and create or update its schema."""

from collections.abc import Sequence
from typing import Any

import click

from dibs.cli import options
from dibs.cli.exits import FORBIDDEN
from dibs.cli.output import Messages, emit, fields_of
from dibs.model import Finding

TROUBLE = 1
"""Exit code for a problem that can cost exclusion, order or liveness."""

_MARKS = {"ok": "ok", "note": "note", "warning": "WARNING", "problem": "PROBLEM"}


@click.command(epilog=options.examples("dibs doctor redis://cache", "dibs doctor --json"))
@options.url_argument
@options.store
@options.as_json
def doctor(as_json: bool) -> int:
    """Check a store's configuration and report problems.

    Exit codes: 0 no problem (there may be warnings), 1 a problem that can cost exclusion, order or
    liveness, 69 store unreachable, 77 access denied.
    """
    with options.open_client() as client:
        path = options.missing_file(client)
        absent = Finding("file", "note", f"{path} does not exist; it is created at first use")
        findings = [absent] if path else client.examine()
    if as_json:
        for finding in findings:
            emit(fields_of(finding, "about level told advice"))
    else:
        print(
            "\n".join([client.url, *(line for each in findings for line in _finding_lines(each))])
        )
    return TROUBLE if any(finding.level == "problem" for finding in findings) else 0


def _finding_lines(finding: Finding) -> list[str]:
    lines = [f"  {_MARKS[finding.level]:<8} {finding.about}: {finding.told}"]
    return [*lines, f"           → {finding.advice}"] if finding.advice else lines


@click.command(
    epilog=options.examples(
        "dibs migrate --url postgresql://app@db/app --dry-run", "dibs migrate --store reports"
    )
)
@click.option("--dry-run", is_flag=True, help="Only print what would be done.")
@options.store
@options.as_json
def migrate(dry_run: bool, as_json: bool) -> int:
    """Create or update the schema of a PostgreSQL store.

    Dibs does this on first use if its role has the rights. The command also prints the grants that
    another role needs. Exits with 77 if this role may not change the schema.
    """
    with options.open_client() as client:
        store: Any = client.session.store
        has_schema = hasattr(store, "migrate")
        steps = store.migrate(dry_run=dry_run) if has_schema else ()
        may = not (dry_run and steps) or store.may_migrate()
    grants = store.grants("ROLE") if has_schema else []
    if as_json:
        names = [{"number": step.number, "name": step.name} for step in steps]
        emit({"url": store.url, "dry_run": dry_run, "migrations": names, "grants": grants})
    else:
        print(*_migration_lines(store.url, steps, grants, dry_run=dry_run), sep="\n")
    if not may:
        Messages(as_json).show("error", "this role may not change the schema", exit_code=FORBIDDEN)
    return 0 if may else FORBIDDEN


def _migration_lines(
    url: str, steps: Sequence[Any], grants: Sequence[str], *, dry_run: bool
) -> list[str]:
    done = "would apply" if dry_run else "applied"
    lines = [f"{done} {step.number:04} {step.name}" for step in steps]
    if not lines:
        lines = [f"{url} {'is up to date' if grants else 'needs no migrations'}"]
    if grants and not dry_run:
        lines += ["Grants for another role:", *(f"  {grant};" for grant in grants)]
    return lines
