"""`dibs doctor`: check whether a store is fit to keep leases in."""

import click

from dibs.cli import options
from dibs.model import Finding

TROUBLE = 1
"""Exit code for a problem that can cost exclusion, order or liveness."""

_MARKS = {"ok": "ok", "note": "note", "warning": "WARNING", "problem": "PROBLEM"}


@click.command(epilog=options.examples("dibs doctor redis://cache", "dibs doctor --json"))
@click.argument("given", metavar="[URL]", required=False)
@options.store
@options.as_json
def doctor(given: str | None, url: str | None, as_json: bool) -> int:
    """Check a store's configuration and report problems.

    Exit codes: 0 no problem (there may be warnings), 1 a problem that can cost exclusion, order or
    liveness, 69 store unreachable, 77 access denied.
    """
    if given and url:
        raise click.UsageError("the URL is given twice, as an argument and with --url")
    with options.open_client(given or url) as client:
        path = options.missing_file(client)
        absent = Finding("file", "note", f"{path} does not exist; it is created at first use")
        findings = [absent] if path else client.examine()
    if as_json:
        from dibs.cli.output import emit, finding_shape

        for finding in findings:
            emit(finding_shape(finding))
    else:
        print("\n".join([client.url, *(line for each in findings for line in _lines(each))]))
    return TROUBLE if any(finding.level == "problem" for finding in findings) else 0


def _lines(finding: Finding) -> list[str]:
    lines = [f"  {_MARKS[finding.level]:<8} {finding.about}: {finding.told}"]
    return [*lines, f"           → {finding.advice}"] if finding.advice else lines
