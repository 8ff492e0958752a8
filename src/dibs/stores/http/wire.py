"""What goes over HTTP between a client and the service: a batch, its answers, and pushes.

`POST /v1/batch` takes a `Batch` and answers a `BatchAnswer`, a reply for each command and in their
order; both are JSON, or MessagePack where `Content-Type` and `Accept` say `application/msgpack`. A key
is `names.encoded(b"{kind}:{name}")`; durations are seconds, as everywhere. The structs are the records
of `dibs.model` with a tag each (`translation`).

`GET /v1/stream` (server-sent events) brings a client's notifications: first an event `hello` (`Hello`),
then `notification` events (`Push`), and `recheck` where some may have been lost before. A command's
`inbox` is that of the stream's `Hello`, or empty.

All else that the service answers is in `wire_service`.
"""

from msgspec import Struct

FORMAT = 1
"""Of what is written here. A service that speaks a newer one says so in `Dibs-Format`."""

FORMAT_HEADER = "dibs-format"
SERVER_HEADER = "dibs-server"
"""Which of several servers answered: pushes come through that one only."""


class Op(Struct, tag_field="op", tag=str.lower, omit_defaults=True, frozen=True):
    """A command about one key, `base64` of `{kind}:{name}`."""

    key: str


class Acquire(Op, frozen=True):
    """See `dibs.model.Acquire`."""

    id: str
    owner: str
    ttl: float
    units: int = 1
    capacity: int = 1
    queue: bool = False
    waiter_ttl: float = 30.0
    priority: int = 0
    note: str = ""
    floor: int = 0
    lock_delay: float = 0.0
    inbox: str = ""
    trace: str = ""


class Renew(Op, frozen=True):
    """See `dibs.model.Renew`."""

    id: str
    ttl: float
    inbox: str = ""


class Release(Op, frozen=True):
    """See `dibs.model.Release`."""

    id: str
    retain: float = 0.0
    tombstone: float = 0.0


class Resize(Op, frozen=True):
    """See `dibs.model.Resize`."""

    id: str
    units: int
    seq: int


class Inspect(Op, frozen=True):
    """See `dibs.model.Inspect`."""


class Revoke(Op, frozen=True):
    """See `dibs.model.Revoke`."""

    lease: str | None
    reason: str
    now: bool = False


type Command = Acquire | Renew | Release | Resize | Inspect | Revoke


class Holder(Struct, omit_defaults=True, frozen=True):
    """See `dibs.model.Holder`."""

    lease: str
    owner: str
    token: int
    units: int
    slots: tuple[int, ...]
    held_for: float
    expires_in: float
    note: str = ""
    state: str = "held"


class Waiter(Struct, omit_defaults=True, frozen=True):
    """See `dibs.model.Waiter`."""

    lease: str
    owner: str
    units: int
    priority: int
    waited: float
    note: str = ""


class Said(Struct, tag_field="is", tag=str.lower, omit_defaults=True, frozen=True):
    """A reply."""


class Granted(Said, frozen=True):
    """See `dibs.model.Granted`."""

    token: int
    slots: tuple[int, ...]
    ttl: float


class Queued(Said, frozen=True):
    """See `dibs.model.Queued`."""

    position: int
    recheck_in: float
    now: float


class Refused(Said, frozen=True):
    """See `dibs.model.Refused`."""

    reason: str
    holders: tuple[Holder, ...] = ()
    recheck_in: float = 0.0


class Gone(Said, frozen=True):
    """See `dibs.model.Gone`."""


class Renewed(Said, frozen=True):
    """See `dibs.model.Renewed`."""

    ttl: float


class Lost(Said, frozen=True):
    """See `dibs.model.Lost`."""

    reason: str = "expired"
    detail: str = ""


class Released(Said, frozen=True):
    """See `dibs.model.Released`."""


class Unknown(Said, frozen=True):
    """See `dibs.model.Unknown`."""


class Revoked(Said, frozen=True):
    """See `dibs.model.Revoked`."""

    count: int
    ends_in: float


class Status(Said, frozen=True):
    """See `dibs.model.Status`."""

    key: str
    capacity: int
    holders: tuple[Holder, ...] = ()
    waiters: tuple[Waiter, ...] = ()
    waiting: int = 0
    last_token: int = 0
    holding: int = 0
    used: int = 0


class Failed(Said, frozen=True):
    """See `dibs.model.Failed`."""

    reason: str
    detail: str


type Reply = (
    Granted
    | Queued
    | Refused
    | Gone
    | Renewed
    | Lost
    | Released
    | Unknown
    | Revoked
    | Status
    | Failed
)


class Batch(Struct, frozen=True):
    """Commands that travel together: at most `stores.port.MAX_BATCH`."""

    commands: tuple[Command, ...]


class BatchAnswer(Struct, frozen=True):
    """A reply for each command, in their order."""

    replies: tuple[Reply, ...]


class Hello(Struct, frozen=True):
    """The first event of a stream."""

    inbox: str
    """Begins with the server's name and a dot."""
    server: str
    format: int = FORMAT
    beat: float = 15.0
    """So often something comes, if only a comment, in seconds."""


class Push(Struct, omit_defaults=True, frozen=True):
    """See `dibs.model.Notification`."""

    key: str
    lease: str
    event: str
    token: int = 0
    slots: tuple[int, ...] = ()
    granted_at: float = 0.0
    claim_timeout: float = 0.0
    detail: str = ""
    proof: str = ""
