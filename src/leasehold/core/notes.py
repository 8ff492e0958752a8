"""What a lease's note says to people.

The service keeps more with a lease than its note, behind a separator (see `server/envelope.py`).
"""

import re
from collections.abc import Iterable
from dataclasses import replace

from leasehold.model import Holder, Status, Waiter

SEPARATOR = "\x1f"

_SEALED = re.compile(r"\x1f[0-9A-Za-z.:%]* [A-Za-z0-9_=-]*\Z")
"""An address and a sealed id; whatever else stands behind a separator is somebody's own words."""


def shown_note(note: str) -> str:
    """A note as people may see it."""
    if SEPARATOR not in note:
        return note
    found = _SEALED.search(note, note.rindex(SEPARATOR))
    return note if found is None else note[: found.start()]


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
