"""`dibs doctor`: is this store fit to keep leases in, and if not, what is to be done?"""

import click

from dibs.cli import options
from dibs.model import Finding

TROUBLE = 1
"""The exit code where something is wrong that costs exclusion, order or liveness."""

_MARKS = {"ok": "ok", "note": "note", "warning": "WARNING", "problem": "PROBLEM"}


@click.command()
@click.argument("given", metavar="[URL]", required=False)
@options.store
@options.as_json
def doctor(given: str | None, url: str | None, as_json: bool) -> int:
    """Look at the store URL (else as for other verbs) and say in plain words what is wrong with it.

    Exits with 0 if nothing is, 1 if something costs exclusion, order or liveness, 69 if the store
    can't be reached, 77 if it lets nobody in with this password.
    """
    if given and url:
        raise click.UsageError("the URL is given twice, as an argument and as --url")
    with options.open_client(given or url) as client:
        findings = client.examine()
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
