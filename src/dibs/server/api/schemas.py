"""Parameters and answers of `/v1/locks`."""

import time
from math import ceil
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from dibs.core.names import Kind
from dibs.model import MANY, MAX_CAPACITY, Status
from dibs.server.auth.api_key import utc_time
from dibs.server.limits import MAX_ID, MAX_TEXT
from dibs.server.lock_events import EventType
from dibs.stores.http import wire
from dibs.stores.http.names import encoded
from dibs.stores.http.wire import holders_to_wire

type Text = Annotated[
    str,
    Meta(
        max_length=MAX_TEXT,
        pattern=r"^[^\x00-\x1f\x7f]*$(?!\n)",
        extra={"words": f"a text of {MAX_TEXT} letters at most, without control characters"},
    ),
]
"""Text without control characters. The lookahead rejects a final newline, which `$` would allow."""

type LeaseId = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9_-]{22,64}$(?!\n)",
        extra={"words": "22 to 64 letters, digits, - and _, drawn at random"},
    ),
]
"""128 bits or more, in URL-safe base64."""

type AnyId = Annotated[str, Meta(min_length=1, max_length=MAX_ID)]

type Names = Annotated[
    str,
    Meta(
        max_length=1024,
        description="What names begin with: base64: and the bytes; all, if it is left out",
    ),
]
"""See `reading.names_of`."""


class Strict(Struct, forbid_unknown_fields=True, frozen=True):
    """Parameters. Unknown ones are rejected."""


class Nothing(Strict, frozen=True):
    """No parameters."""


type Ttl = Annotated[
    float,
    Meta(
        description="Seconds until it ends unless it is renewed; see /v1/limits",
        extra={"words": "a number of seconds, such as 30 or 2.5"},
    ),
]

type KindOfName = Annotated[
    Kind,
    Meta(
        description="What the name belongs to, as `kind` in the answer of the acquire has it",
    ),
]


class AcquireQuery(Strict, frozen=True):
    """Parameters of an acquire."""

    ttl: Ttl = 30.0
    client_id: Annotated[
        Text, Meta(description="Owner to show to others. Default: the API key's name")
    ] = field(name="client-id", default="")
    id: (
        Annotated[
            LeaseId,
            Meta(
                description="A random id of your own. You can then repeat the request, at any server: it "
                "finds its place in the queue or its lease. Release it if you give up"
            ),
        ]
        | None
    ) = None
    wait: Annotated[
        float,
        Meta(
            ge=0,
            description="Seconds to wait in the queue. Disconnecting leaves the queue, unless you sent "
            "an `id`: that place is kept for a while",
            extra={"words": "a number of seconds, 0 or more, such as 30 or 2.5"},
        ),
    ] = 0.0
    kind: (
        Annotated[
            Kind,
            Meta(
                description="What the name belongs to: a lock, if it is left out, but with `capacity` a "
                "semaphore and with `mode` a readers-writer lock"
            ),
        ]
        | None
    ) = None
    mode: (
        Annotated[Literal["read", "write"], Meta(description="One side of a readers-writer lock")]
        | None
    ) = None
    capacity: (
        Annotated[
            int, Meta(ge=1, le=MAX_CAPACITY, description="Units of the semaphore of that name")
        ]
        | None
    ) = None
    units: Annotated[int, Meta(ge=1, le=MAX_CAPACITY, description="Units to acquire")] | None = None
    priority: Annotated[int, Meta(ge=-1_000_000, le=1_000_000, description="Higher goes first")] = 0
    note: Annotated[Text, Meta(description="A note, shown to waiters")] = ""


class NewLeaseIdBody(Strict, frozen=True):
    """A lease id for an acquire, which no log of a proxy shows."""

    id: LeaseId


class LeaseIdBody(Strict, frozen=True):
    """The id of a lease, which no log of a proxy shows."""

    id: AnyId


class RenewQuery(Strict, frozen=True):
    """The lease to renew, and for how long."""

    id: AnyId | None = None
    ttl: Ttl = 30.0
    kind: KindOfName = "lock"


class ReleaseQuery(Strict, frozen=True):
    """The lease to release; or, with `force`, the leases of others to end."""

    id: AnyId | None = None
    kind: KindOfName = "lock"
    force: Annotated[
        bool, Meta(description="End leases that are not yours: takes the scope force, and a reason")
    ] = False
    lease: (
        Annotated[
            str,
            Meta(max_length=64, description="With force: only the lease of this fingerprint"),
        ]
        | None
    ) = None
    reason: Text = ""
    now: Annotated[
        bool,
        Meta(description="Free it at once, which gives up exclusion: only fencing protects then"),
    ] = False


class LookQuery(Strict, frozen=True):
    """The kind of primitive."""

    kind: KindOfName = "lock"


class ListQuery(Strict, frozen=True):
    """The first name of a page, and its length."""

    from_: (
        Annotated[str, Meta(description="The first name of the page: `next` of the one before")]
        | None
    ) = field(name="from", default=None)
    limit: Annotated[int, Meta(ge=1, description="Locks on a page at most")] | None = None
    kind: Kind | Literal["all"] = "lock"


class HeldAnswer(Struct, frozen=True):
    """A lease that was acquired."""

    id: str
    kind: str
    """The kind of primitive. Later requests need it as `kind=`, unless it is `lock`."""
    sequencer: int
    """The fencing token: it rises with every grant of a name."""
    ttl: float
    """Seconds for which the store keeps it without a renewal."""
    remaining: float
    """Seconds from now until it ends, unless it is renewed."""
    expires_at: str
    units: int
    slots: tuple[int, ...]
    """Numbers of the units, if they are numbered."""


class Done(Struct, frozen=True):
    """Success."""

    status: int = 200
    title: str = "Ok"


class Extended(Done, frozen=True):
    """A lease that was renewed: it ends after `remaining` seconds unless it is renewed again."""

    ttl: float = 0.0
    remaining: float = 0.0
    expires_at: str = ""


class Forced(Struct, frozen=True):
    """Result of a force release."""

    status: int
    title: str
    count: int
    """Holders whose leases were revoked."""
    ends_in: float
    """Seconds until the last of them has ended. Until then its units stay taken."""
    warning: str


class Info(Struct, frozen=True):
    """The first holder. `ttl` are the seconds that are left, rounded up."""

    ttl: int
    client_id: str = field(name="client-id")
    ip: str


class LockShown(Struct, frozen=True):
    """A lock that is held, and by whom."""

    name: str
    """Its bytes in URL-safe base64."""
    id: str
    """Fingerprint of the lease, by which `force=true&lease=` ends it. Its id is a secret of its holder."""
    info: Info
    sequencer: int
    remaining: float
    expires_at: str
    kind: str
    capacity: int | None
    """None: unlimited."""
    waiting: int
    holding: int
    """How many hold it; `holders` lists at most 100 of them."""
    holders: tuple[wire.Holder, ...]


class LockPage(Struct, frozen=True):
    """Some locks, and where to go on: null after the last."""

    locks: tuple[LockShown, ...]
    next: str | None


class EventShown(Struct, omit_defaults=True, frozen=True):
    """An event of a lease."""

    at: Annotated[float, Meta(description="When it happened, in seconds since 1970")]
    what: EventType
    kind: Kind
    name: Annotated[str, Meta(description="The name's bytes in URL-safe base64 without padding")]
    lease: Annotated[str, Meta(description="The fingerprint of the lease id")]
    owner: str
    note: str
    token: Annotated[int, Meta(description="The fencing token")]
    units: Annotated[int | None, Meta(description="null: all units, of a writer")]
    slots: Annotated[tuple[int, ...], Meta(description="Numbers of the units")]
    reason: str
    found: Annotated[
        bool, Meta(description="The server noticed it later: it was no request to this server")
    ]
    waited: Annotated[float | None, Meta(description="Seconds in the queue")] = None
    held_for: Annotated[float | None, Meta(description="Seconds since the grant")] = None


class EventsHello(Struct, frozen=True):
    """The first event of a stream of events."""

    server: str
    beat: Annotated[float, Meta(description="Seconds between two events or comments, at most")]
    now: Annotated[float, Meta(description="The server's time, in seconds since 1970")]


class NoData(Struct, frozen=True):
    """An object without fields."""


def lock_shown(status: Status) -> LockShown:
    """Return a held lock: its first holder, then all."""
    first = status.holders[0]
    left = max(first.expires_in, 0.0)
    return LockShown(
        encoded(status.name),
        first.lease,
        Info(ceil(left), first.owner, first.address),
        first.token,
        round(left, 3),
        moment(left),
        status.kind,
        None if status.capacity >= MANY else status.capacity,
        status.waiting,
        status.holding,
        holders_to_wire(status.holders),
    )


def moment(seconds: float) -> str:
    """The time in some seconds, as RFC 3339."""
    return utc_time(time.time() + seconds, "milliseconds")
