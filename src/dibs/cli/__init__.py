"""The command line: one file per verb, each imported when its verb is used."""

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; `docs/cli.md` says what each code means."""
    try:
        import click as click
        import rich as rich
    except ModuleNotFoundError:
        import sys

        print(
            'dibs: the command line needs an extra: pip install "dibs[cli]"',
            file=sys.stderr,
        )
        return 64
    except KeyboardInterrupt:
        return 130
    from dibs.cli.app import serve

    code = serve(arguments)
    if arguments is not None:
        return code
    from dibs.cli.leaving import leave

    return leave(code)
