"""Streams that are closed from the start, and a stdout that takes nothing more."""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, TextIO, cast

import click


def fill() -> None:
    """Have /dev/null in the place of what is closed, for us and for all that we start.

    To be called before anything is opened. Else the next file that is would be one of them: a store's, or
    the first that CMD opens.
    """
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


class Unwritten(OSError):
    """stdout takes nothing more: its disk is full, say."""


class _Stdout:
    """stdout, whose errors are told from those of other files."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with _telling():
            return self._stream.write(text)

    def flush(self) -> None:
        with _telling():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _telling() -> Generator[None]:
    try:
        yield
    except BrokenPipeError:
        raise  # nobody reads on, which is no error of anybody's
    except OSError as error:
        raise Unwritten(error.errno, error.strerror) from error


@contextmanager
def watched_stdout() -> Generator[None]:
    """Raises `Unwritten` where stdout can't be written, at the end at the latest."""
    plain = sys.stdout
    sys.stdout = cast("TextIO", _Stdout(plain))
    try:
        yield
        sys.stdout.flush()
    finally:
        sys.stdout = plain


def discard_stdout() -> None:
    """Have /dev/null take what is left to be written, so that the interpreter's end does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
