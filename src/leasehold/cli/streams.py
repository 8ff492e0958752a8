"""Streams that whoever started us has closed: /dev/null takes their place.

Else the next file that is opened would be one of them: a store's, or the first that CMD opens.
"""

import os
import sys

import click


def fill() -> None:
    """Open what is closed, for us and for all that we start. To be called before anything is opened."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest that is free: this one
            os.set_inheritable(opened, True)  # noqa: FBT003
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)


def needs_stdout(otherwise: str) -> None:
    """Raises `UsageError` where stdout was closed, for what must not be done then."""
    if sys.__stdout__ is None:
        raise click.UsageError(f"stdout is closed: {otherwise}")
