"""The command line: a file for each verb or family of verbs, imported when one of them is used."""

import signal
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; `docs/cli.md` says what each code means."""
    if arguments is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the verb is imported: no traceback
    try:
        import click as click
        import rich as rich
    except ModuleNotFoundError:
        print(
            'dibs: the command line needs an extra: pip install "dibs[cli]"',
            file=sys.stderr,
        )
        return 64
    from dibs.cli.app import serve
    from dibs.cli.exits import leave

    interrupt = None
    try:
        code = serve(arguments)
    except KeyboardInterrupt as error:
        code, interrupt = 128 + signal.SIGINT, error
    return code if arguments is not None else leave(code, interrupt)
