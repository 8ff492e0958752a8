"""A detached lease as a text, to be handed to another process. It is as secret as the lease's id."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from json import dumps, loads
from typing import NamedTuple

from dibs.config import optional_seconds, safe_ttl
from dibs.locks.requests import Terms

FORMAT = "lease1"


class Handle(NamedTuple):
    """What goes along."""

    key: bytes
    id: str
    token: int
    slots: tuple[int, ...]
    terms: Terms
    doubtful: bool
    seq: int = 0
    """Of the newest change of its units."""


def pack(handle: Handle) -> str:
    """Make a text of it."""
    terms = handle.terms
    fields = {
        "key": urlsafe_b64encode(handle.key).decode(),
        "id": handle.id,
        "token": handle.token,
        "slots": handle.slots,
        "doubtful": handle.doubtful,
        "ttl": terms.ttl,
        "owner": terms.owner,
        "units": terms.units,
        "exclusive": terms.exclusive,
        "auto_renew": terms.auto_renew,
        "max_hold": terms.max_hold,
        "seq": handle.seq,
    }
    return f"{FORMAT}.{urlsafe_b64encode(dumps(fields).encode()).decode()}"


def unpack(text: str) -> Handle:
    """The other way round. Raises `ValueError` for what is no handle."""
    try:
        version, _, packed = text.partition(".")
        if version != FORMAT:
            raise ValueError(f"its format is {version!r}, and this release reads {FORMAT!r}")
        fields = loads(urlsafe_b64decode(packed))
        terms = Terms(
            ttl=safe_ttl(fields["ttl"]),
            owner=str(fields["owner"]),
            units=int(fields["units"]),
            exclusive=bool(fields["exclusive"]),
            auto_renew=bool(fields["auto_renew"]),
            max_hold=optional_seconds(fields["max_hold"], "max_hold"),
        )
        key, slots = urlsafe_b64decode(fields["key"]), tuple(map(int, fields["slots"]))
        doubtful, seq = bool(fields["doubtful"]), int(fields.get("seq", 0))
        return Handle(key, str(fields["id"]), int(fields["token"]), slots, terms, doubtful, seq)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"this is no handle of a detached lease: {error}") from error
