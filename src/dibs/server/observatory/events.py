"""What happens to leases, as it is told to those who watch: never with a lease's id."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dibs.model import MANY

type What = Literal[
    "granted", "queued", "left", "renewed", "resized", "revoked", "released", "expired", "freed"
]
"""
`left`: it waits no more, and got nothing. `revoked`: it was told to end, and holds until it does. `released`,
`expired`, `freed` (by force, at once): it holds nothing any more.
"""


@dataclass(slots=True)
class Event:
    """Something that has happened."""

    what: What
    key: bytes
    at: float
    """When it happened, in seconds since 1970: an expiry, at the time of expiry. The end of a hold is
    published before the grant that follows it."""
    lease: str = ""
    """The fingerprint of the lease's id."""
    owner: str = ""
    note: str = ""
    token: int = 0
    units: int = 1
    slots: tuple[int, ...] = ()
    waited: float | None = None
    """How long it had been in line, if that is known."""
    held_for: float | None = None
    reason: str = ""
    found: bool = False
    """No command of this server told it: it follows from a look at the store or from a later grant."""
    json: bytes = field(default=b"", init=False, compare=False, repr=False)
    """Its `shape`, encoded, once somebody was told of it; see `sse_of`."""

    @property
    def kind(self) -> str:
        """What kind of primitive it is about."""
        return self.key.partition(b":")[0].decode("ascii", "replace")

    @property
    def name(self) -> bytes:
        """What it is about."""
        return self.key.partition(b":")[2]


def shape(event: Event) -> dict[str, Any]:
    """An event as JSON; what it does not say is left out."""
    found: dict[str, Any] = {
        "at": round(event.at, 3),
        "what": event.what,
        "kind": event.kind,
        "name": urlsafe_b64encode(event.name).rstrip(b"=").decode(),
        "lease": event.lease,
        "owner": event.owner,
        "note": event.note,
        "token": event.token,
        "units": None if event.units >= MANY else event.units,
        "slots": list(event.slots),
        "reason": event.reason,
        "found": event.found,
    }
    for name in ("waited", "held_for"):
        seconds = getattr(event, name)
        if seconds is not None:
            found[name] = round(seconds, 3)
    return found


def read(told: Mapping[str, Any]) -> Event:
    """What `shape` made. Raises `KeyError`, `TypeError` or `ValueError` for anything else."""
    name = urlsafe_b64decode(told["name"].encode() + b"=" * (-len(told["name"]) % 4))
    return Event(
        told["what"],
        b"%b:%b" % (told["kind"].encode(), name),
        float(told["at"]),
        told["lease"],
        told["owner"],
        told["note"],
        int(told["token"]),
        MANY if told["units"] is None else int(told["units"]),
        tuple(told["slots"]),
        told.get("waited"),
        told.get("held_for"),
        told["reason"],
        bool(told["found"]),
    )
