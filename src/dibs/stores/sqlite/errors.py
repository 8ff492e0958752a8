"""What SQLite's errors mean to callers: what happened, to which file, and what to do."""

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from dibs.errors import BackendUnavailable, Corrupt, DibsError, Forbidden, NotConfigured
from dibs.stores.sqlite.file import free_space

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
_OF_ONE_COMMAND = {
    None,  # raised by the driver itself: a value that it can't bind, a text that is no UTF-8
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_TOOBIG,
    sqlite3.SQLITE_RANGE,
}


NEARLY_FULL = 1 << 20
"""Bytes of free disk space: with less, an error is probably due to that."""


class Busy(Exception):
    """Another connection is writing. Nothing was done, and a retry soon will help."""


def code_of(error: sqlite3.Error) -> int | None:
    """The primary result code, if SQLite itself raised the error."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def is_busy(error: sqlite3.Error) -> bool:
    """Is the file only locked by another connection?"""
    return code_of(error) in _BUSY


def is_of_one_command(error: Exception) -> bool:
    """Can the other commands of the batch still succeed?"""
    if isinstance(error, sqlite3.Error):
        return code_of(error) in _OF_ONE_COMMAND
    return not isinstance(error, DibsError | OSError | MemoryError)


def is_of_the_caller(error: Exception) -> bool:
    """Did the command contain what no row can hold, such as an integer beyond 64 bits?"""
    if isinstance(error, sqlite3.Error):
        return isinstance(
            error, sqlite3.InterfaceError | sqlite3.ProgrammingError | sqlite3.DataError
        )
    return isinstance(error, OverflowError | UnicodeEncodeError)


def locked_out(path: str, seconds: float) -> BackendUnavailable:
    """The file was busy for as long as a call may take."""
    return BackendUnavailable(
        f"another process kept {path} locked for {seconds:g} s: find it with `fuser {path}`; "
        "a backup tool or a debugger that stopped in a transaction will do this"
    )


def explain(error: sqlite3.Error, path: str) -> DibsError:
    """The error that callers see instead of SQLite's own."""
    said = str(error)
    match code_of(error):
        case sqlite3.SQLITE_NOTADB:
            return Corrupt(
                f"{path} is not a SQLite database ({said}): nothing is granted from it; check the path"
            )
        case sqlite3.SQLITE_CORRUPT:
            return Corrupt(
                f"{path} is damaged ({said}): nothing is granted from it. If it is a Dibs store, move it "
                "away once no holder is alive, and a new one will be made"
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return _forbidden(path, said)
        case sqlite3.SQLITE_CANTOPEN:
            return _cannot_open(path, said)
        case sqlite3.SQLITE_FULL:
            return BackendUnavailable(
                f"the disk under {path} is full ({said}): nothing was written; free some space there"
            )
        case _:
            return BackendUnavailable(f"SQLite could not use {path}: {said}{_disk_hint(path)}")


def _disk_hint(path: str) -> str:
    """How much of the disk is free, if that is little: SQLite calls some full disks an I/O error."""
    with suppress(OSError):
        free = free_space(Path(path).parent)
        if free < NEARLY_FULL:
            return f"; the disk has {free >> 10} kB free: free some space there"
    return ""


def _forbidden(path: str, said: str) -> Forbidden:
    return Forbidden(
        f"{path} can't be written ({said}): taking a lease writes to the file and beside it, "
        f"so give this user write access to {path} and to {Path(path).parent}"
    )


def _cannot_open(path: str, said: str) -> DibsError:
    if Path(path).is_dir():
        return NotConfigured(f"{path} is a directory; the URL must name a file in it")
    folder = Path(path).parent
    beside = os.access(folder, os.R_OK | os.W_OK | os.X_OK, effective_ids=True)
    file = not Path(path).exists() or os.access(path, os.R_OK | os.W_OK, effective_ids=True)
    if not (beside and file):
        return _forbidden(path, said)
    return BackendUnavailable(f"SQLite could not open {path}: {said}")
