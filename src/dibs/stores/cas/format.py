"""The book of one key as the text that lies in a store."""

import json

import msgspec

from dibs.errors import Corrupt, IncompatibleVersion
from dibs.stores.snapshot import State

FORMAT = 1
"""Number of this format. A newer one is not read, and nothing is granted."""

_encode = msgspec.json.Encoder().encode
_encode_any = json.JSONEncoder(separators=(",", ":")).encode


def write_state(state: State) -> bytes:
    """The text of a book."""
    said = {"format": FORMAT, **state}
    try:
        return _encode(said)
    except UnicodeEncodeError:  # a lone surrogate of a text becomes an escape of JSON
        return _encode_any(said).encode()


def read_state(text: bytes | str, where: str) -> State:
    """The book in a text. Raises `IncompatibleVersion` or `Corrupt`, which name `where` it lies."""
    try:
        state = json.loads(text)
        found = state.pop("format")
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise unreadable(where, error) from error
    if found != FORMAT:
        raise IncompatibleVersion(
            f"what lies {where} has format {found}, and this release of dibs reads {FORMAT}: "
            "install the release that wrote it, or a newer one"
        )
    return dict(state)


def unreadable(where: str, error: Exception) -> Corrupt:
    """The error for something that was written by hand, or is damaged."""
    return Corrupt(
        f"what lies {where} is no book of Dibs, so nobody is granted this lock: make sure that nobody holds "
        f"it any more, then delete it from the store ({error!r})"
    )
