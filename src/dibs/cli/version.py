"""`dibs version`."""

import click

from dibs.cli import options


@click.command(epilog=options.examples("dibs version --json"))
@options.as_json
def version(as_json: bool) -> int:
    """Print the version."""
    if as_json:
        from dibs.cli.output import emit

        emit({"version": _release()})
    else:
        print(line())
    return 0


def line() -> str:
    """What `dibs --version` prints."""
    return f"dibs {_release()}"


def _release() -> str:
    from importlib.metadata import version as version_of

    return version_of("dibs")
