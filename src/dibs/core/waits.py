"""What somebody waits for, and how an advert's note tells it (see `primitives/deadlock.py`)."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple


class Wait(NamedTuple):
    """What somebody waits for."""

    key: bytes
    units: int
    place: str
    """The fingerprint of the place in the queue."""


def written(wait: Wait, began: int) -> str:
    """A wait as an advert's note. `began` may be told by how long ago that was, in µs, as a negative."""
    key = urlsafe_b64encode(wait.key).decode()
    return f"{wait.place} {wait.units} {began} {key}"


def read(note: str) -> tuple[Wait, int]:
    """What `written` has written. Raises `ValueError` for anything else, as of another release than this."""
    place, units, began, key = note.split(" ")
    return Wait(urlsafe_b64decode(key), int(units), place), int(began)
