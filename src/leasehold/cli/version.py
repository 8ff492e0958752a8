"""`leasehold version`."""

import click

from leasehold.cli import options


@click.command()
@options.as_json
def version(as_json: bool) -> int:
    """Say which release this is."""
    from importlib.metadata import version as version_of

    release = version_of("leasehold")
    if as_json:
        from leasehold.cli.output import emit

        emit({"version": release})
    else:
        print(f"leasehold {release}")
    return 0
