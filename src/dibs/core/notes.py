"""What a lease's note says to people, and what lies behind that.

The service keeps more with a lease than its note, behind a separator (see `server/envelope.py`); and whoever
is traced leaves a mark there.
"""

import re
from collections.abc import Iterable
from dataclasses import replace

from dibs.core.marks import LENGTH
from dibs.model import Holder, Status, Waiter

SEPARATOR = "\x1f"

MAX_ADDRESS = 64
"""Letters of the address of a caller, with its zone."""

ADDRESS = rf"[0-9A-Za-z.:%]{{0,{MAX_ADDRESS}}}"
"""What it is made of, as a pattern."""

_SEALED = re.compile(rf"\x1f{ADDRESS} [A-Za-z0-9_=-]*(?: (?P<mark>[A-Za-z0-9_-]{{{LENGTH}}}))?\Z")
"""An address, a sealed id, a mark; whatever else stands behind a separator is somebody's own words."""


_MARKED = re.compile(rf"\x1f  (?P<mark>[A-Za-z0-9_-]{{{LENGTH}}})\Z")


def shown_note(note: str) -> str:
    """A note as people may see it."""
    if SEPARATOR not in note:
        return note
    found = _SEALED.search(note, note.rindex(SEPARATOR))
    return note if found is None else note[: found.start()]


def marked(note: str, mark: str) -> str:
    """A note with a mark, and nothing else that is hidden."""
    return f"{note}{SEPARATOR}  {mark}"


def unmarked(note: str) -> tuple[str, str]:
    """A note as somebody wrote it, and the mark that `marked` has put behind it; empty for none."""
    found = _MARKED.search(note) if SEPARATOR in note else None
    return (note, "") if found is None else (note[: found.start()], found["mark"])


def mark_in(note: str) -> str:
    """The mark in a note; empty where there is none."""
    if SEPARATOR not in note:
        return ""
    found = _SEALED.search(note, note.rindex(SEPARATOR))
    return "" if found is None else found["mark"] or ""


def plain_holders(holders: Iterable[Holder]) -> tuple[Holder, ...]:
    """Holders, with their notes as people may see them."""
    return tuple([_plain(each) for each in holders])


def plain_status(status: Status) -> Status:
    """A status, with its notes as people may see them."""
    if not (any(map(_is_sealed, status.holders)) or any(map(_is_sealed, status.waiters))):
        return status
    return replace(
        status,
        holders=plain_holders(status.holders),
        waiters=tuple([_plain(each) for each in status.waiters]),
    )


def _is_sealed(one: Holder | Waiter) -> bool:
    return SEPARATOR in one.note


def _plain[T: (Holder, Waiter)](one: T) -> T:
    return replace(one, note=shown_note(one.note)) if SEPARATOR in one.note else one
