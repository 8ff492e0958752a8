"""Events about leases, as watchers get them, and a log of the latest. An event never contains a lease id."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import Any, Literal, NamedTuple

from dibs.model import MANY

type EventType = Literal[
    "granted", "queued", "left", "renewed", "resized", "revoked", "released", "expired", "freed"
]
"""
`left`: it waits no longer, and was granted nothing. `revoked`: its holder was asked to stop, and holds until
it does. `released`, `expired`, `freed` (revoked with `now`): it holds nothing any longer.
"""


class LockEvent(NamedTuple):
    """One event about one lease."""

    what: EventType
    key: bytes
    at: float
    """When it happened, in seconds since 1970; for an expiry, when the lease expired. The end of a hold is
    logged before the grant that follows it."""
    lease: str = ""
    """The fingerprint of the lease id."""
    owner: str = ""
    note: str = ""
    token: int = 0
    units: int = 1
    slots: tuple[int, ...] = ()
    waited: float | None = None
    """Seconds in the queue, if known."""
    held_for: float | None = None
    reason: str = ""
    found: bool = False
    """Noticed later, in the store or by a later grant; no command of this server caused it.
    Then the end of a hold is inferred: `expired` if its ttl was over by then, otherwise `released`."""
    is_own: bool = False
    """A command of this server granted or renewed the hold last."""

    @property
    def kind(self) -> str:
        """The kind of primitive: `lock`, `semaphore`, …"""
        return self.key.partition(b":")[0].decode("ascii", "replace")

    @property
    def name(self) -> bytes:
        """The name of the primitive."""
        return self.key.partition(b":")[2]


def event_json(event: LockEvent) -> dict[str, Any]:
    """Return an event as JSON values, without the durations that are not known."""
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


def read_event(values: Mapping[str, Any]) -> LockEvent:
    """Return the event that `event_json` encoded. Raises `KeyError`, `TypeError` or `ValueError`."""
    name = urlsafe_b64decode(values["name"].encode() + b"=" * (-len(values["name"]) % 4))
    return LockEvent(
        values["what"],
        b"%b:%b" % (values["kind"].encode(), name),
        float(values["at"]),
        values["lease"],
        values["owner"],
        values["note"],
        int(values["token"]),
        MANY if values["units"] is None else int(values["units"]),
        tuple(values["slots"]),
        values.get("waited"),
        values.get("held_for"),
        values["reason"],
        bool(values["found"]),
    )


LOG_SIZE = 16_384
"""Events that a log keeps."""

EVENTS_AT_ONCE = 500
"""Events that a reader takes from a log before others have their turn."""


class EventLog:
    """The latest events, numbered from 1. A reader keeps the number of the last event it read."""

    def __init__(self) -> None:
        self._events: deque[LockEvent] = deque(maxlen=LOG_SIZE)
        self.last: int = 0
        """The number of the latest event; 0 before the first."""

    def add(self, event: LockEvent) -> None:
        """Append an event; a full log drops its oldest one."""
        self.last += 1
        self._events.append(event)

    @property
    def dropped(self) -> int:
        """The number of the latest event that was dropped; 0 before that."""
        return self.last - len(self._events)

    def has_after(self, number: int) -> bool:
        """Whether all events after this number are still there."""
        return self.dropped <= number <= self.last

    def after(self, number: int, limit: int) -> list[LockEvent]:
        """Return the next events after this number, without a gap, if it `has_after` it."""
        missing = self.last - number
        begin = len(self._events) - missing
        if begin + limit < missing:  # it is nearer from the left
            return list(islice(self._events, begin, begin + limit))
        newest_first = islice(reversed(self._events), max(missing - limit, 0), missing)
        return list(newest_first)[::-1]
