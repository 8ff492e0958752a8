"""What every place asks of what it is to keep; and what it says of what it can't read."""

import re
from collections.abc import Sequence
from typing import Any

from dibs.errors import Corrupt, IncompatibleVersion
from dibs.server.records.port import Entry, Record

FORMAT = 1
"""Of what lies there. Raised when an older release could no longer read it."""

MAX_NAME = 2048
MAX_VALUE = 1 << 20
"""Bytes of a document, or of a line of the log."""

MAX_PAGE = 1000
"""Lines of the log that are read at a time."""

_KIND = re.compile(r"[a-z][a-z-]{0,63}", re.ASCII)


def check_address(kind: str, name: str) -> None:
    """Raises `ValueError` for what no document can be called."""
    check_kind(kind)
    if not 1 <= len(name) <= MAX_NAME or "\0" in name or not _is_unicode(name):
        raise ValueError(f"a record's name is 1 to {MAX_NAME} characters of Unicode, without NUL")


def check_kind(kind: str) -> None:
    """Raises `ValueError` for what is no kind."""
    if _KIND.fullmatch(kind) is None:
        raise ValueError(f"{kind!r} is no kind of record")


def check_value(value: bytes) -> None:
    """Raises `ValueError` for what is too large."""
    if len(value) > MAX_VALUE:
        raise ValueError(f"a record is {MAX_VALUE} bytes at most, and this one is {len(value)}")


def check_page(before: int | None, limit: int) -> None:
    """Raises `ValueError` for what is no page of the log."""
    if not 1 <= limit <= MAX_PAGE or (before is not None and not 0 <= before < 1 << 53):
        raise ValueError(f"a page of the log is 1 to {MAX_PAGE} lines before a number")


def check_format(found: object, place: str) -> None:
    """Raises `Corrupt` or `IncompatibleVersion` unless it is the format that this release reads."""
    if type(found) is not int:
        raise unreadable(place, "no format number")
    if found != FORMAT:
        raise IncompatibleVersion(
            f"the service's records in {place} have format {found}, and this release reads format "
            f"{FORMAT}: run the same release on all servers"
        )


def unreadable(place: str, what: str) -> Corrupt:
    """Something lies there that we never wrote."""
    return Corrupt(
        f"the service's records in {place} can't be read ({what}): nobody is let in by them; "
        "see what wrote there, and restore a backup"
    )


def record_of(row: Sequence[Any], place: str) -> Record:
    """A document, read from a row of a database. Raises `Corrupt` for what is none."""
    kind, name, value, version = row
    if type(kind) is str and type(name) is str and type(value) is bytes and type(version) is int:
        return Record(kind, name, value, version)
    raise unreadable(place, "a document of other types")


def entry_of(row: Sequence[Any], place: str) -> Entry:
    """A line of the log, likewise."""
    number, value = row
    if type(number) is int and type(value) is bytes:
        return Entry(number, value)
    raise unreadable(place, "a line of other types")


def revision_of(row: Sequence[Any] | None, place: str) -> int:
    """The revision, of a row with the format before it. Raises `Corrupt` or `IncompatibleVersion`."""
    check_format(row[0] if row else None, place)
    if not row or type(row[1]) is not int:
        raise unreadable(place, "no revision")
    return row[1]


def _is_unicode(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
