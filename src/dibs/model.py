"""Messages between clients and stores: commands, replies, notifications; and status for people.

All durations are in seconds. A *store time* is a reading of the store's own clock, with no meaning
elsewhere. A *stamp* is the store's wall clock in microseconds since 1970. It only seeds fencing tokens, and
ages for people.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, dataclass_transform

MANY = 1 << 20
"""Units of a readers-writer lock, the largest capacity. A writer takes all of them."""

MAX_CAPACITY = 1_000_000
"""The largest capacity of a semaphore."""

MAX_HOLDERS = 10_000
"""Leases that one key can have at a time, whatever its capacity."""

MAX_SLOTS = 1_024
"""The largest capacity whose units are numbered slots."""


@dataclass_transform(frozen_default=True)
def record[T](cls: type[T]) -> type[T]:
    """Make a dataclass for values that nobody changes: frozen for type checkers, plain at run time.

    A dataclass that is frozen at run time costs a microsecond more per object, and a whole uncontended
    acquire costs a few.
    """
    return dataclass(slots=True, eq=False, repr=False)(cls)


class Message:
    """Equality, hash and `repr` of all records.

    A dataclass would generate them for each class, which takes almost half of the time to import this module.
    """

    __slots__ = ()

    def _fields(self) -> dict[str, object]:
        names: tuple[str, ...] = self.__slots__
        return {name: getattr(self, name) for name in names}

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash(tuple(self._fields().values()))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self._fields().items())
        return f"{type(self).__name__}({shown})"


# ---- commands -------------------------------------------------------------------------------------


@record
class Acquire(Message):
    """Take `units` of `key`, renew the hold that `id` already has, or send the heartbeat of its position."""

    key: bytes
    id: str
    owner: str
    ttl: float
    units: int = 1
    capacity: int = 1
    queue: bool = False
    waiter_ttl: float = 30.0
    """Seconds after which the store drops a waiter without a heartbeat."""
    priority: int = 0
    note: str = ""
    floor: int = 0
    """Tokens up to this one are used already, elsewhere."""
    lock_delay: float = 0.0
    """Seconds for which the units stay taken if this hold expires."""
    inbox: str = ""
    """Address of notifications for this id; only the store understands it."""
    trace: str = ""
    """Trace and span of the acquire (`contrib.otel`). The span of a waiter links to those of its holders."""
    address: str = ""
    """Network address of the caller, for operators; the lock service sets it."""


@record
class Renew(Message):
    """Renew a hold, claim a grant made by notification, or send a heartbeat. Never shortens the time."""

    key: bytes
    id: str
    ttl: float
    inbox: str = ""
    """Address of notifications from now on; empty: the same as before."""


@record
class Release(Message):
    """Give up the hold or the queue position of `id`."""

    key: bytes
    id: str
    retain: float = 0.0
    """Seconds for which the units stay taken, without a holder."""
    tombstone: float = 0.0
    """Seconds for which the store remembers the id: a late copy of its Acquire gets `Gone`."""


@record
class Resize(Message):
    """Change the units of a hold. The store ignores a copy older than the newest `seq`."""

    key: bytes
    id: str
    units: int
    seq: int


@record
class Inspect(Message):
    """Ask for the holders and waiters."""

    key: bytes


@record
class Revoke(Message):
    """Refuse further renewals of one lease, by its fingerprint, or of all (None)."""

    key: bytes
    lease: str | None
    reason: str
    now: bool = False
    """Free the units at once. This gives up exclusion: only fencing protects the resource then."""


type Command = Acquire | Renew | Release | Resize | Inspect | Revoke


# ---- what people see ------------------------------------------------------------------------------


@record
class Holder(Message):
    """A hold as others can see it, without its id."""

    lease: str
    """The fingerprint of the lease id; empty for retained units."""
    owner: str
    token: int
    units: int
    slots: tuple[int, ...]
    held_for: float
    expires_in: float
    note: str = ""
    state: Literal["held", "unclaimed", "revoked", "retained"] = "held"
    address: str = ""
    trace: str = ""


@record
class Waiter(Message):
    """A queue position as others can see it, without its id."""

    lease: str
    owner: str
    units: int
    priority: int
    waited: float
    note: str = ""
    address: str = ""
    trace: str = ""


# ---- replies --------------------------------------------------------------------------------------


@record
class Granted(Message):
    """The units are granted until `ttl` seconds after the command was sent, less the margin."""

    token: int
    slots: tuple[int, ...]
    ttl: float


@record
class Queued(Message):
    """The id waits in the queue. Ask again within `recheck_in` seconds."""

    position: int
    """Number of waiters ahead, counted up to 1,000."""
    recheck_in: float
    now: float
    """The store time of this reply. `Notification.granted_at` is compared with it."""


@record
class Refused(Message):
    """Not granted now (`held`, `closed`, `queue_full`, `moving`), or never (`too_large`).

    `moving`: a lock service is moving the key's directory to another store, and grants nothing there.
    """

    reason: Literal["held", "too_large", "queue_full", "closed", "moving"]
    holders: tuple[Holder, ...] = ()
    recheck_in: float = 0.0


@record
class Gone(Message):
    """The id has ended. Nothing will be granted to it again."""


@record
class Renewed(Message):
    """The hold is renewed until `ttl` seconds after the command was sent, less the margin."""

    ttl: float


@record
class Lost(Message):
    """The id has no hold or position any more."""

    reason: Literal["expired", "revoked"] = "expired"
    detail: str = ""


@record
class Released(Message):
    """The hold or position of the id is given up."""


@record
class Unknown(Message):
    """The id had nothing."""


@record
class Revoked(Message):
    """Number of revoked holds, and the seconds within which the last of them ends."""

    count: int
    ends_in: float


@record
class Status(Message):
    """Holders and waiters of a key.

    It lists at most 100 holders, those whose leases end first, in the order of their tokens; and at most
    100 waiters, in the order of the queue.
    """

    key: bytes
    capacity: int
    holders: tuple[Holder, ...] = ()
    waiters: tuple[Waiter, ...] = ()
    waiting: int = 0
    """Number of all waiters, listed or not."""
    last_token: int = 0
    holding: int = 0
    """Number of all holders, listed or not."""
    used: int = 0
    """Units that they hold together."""
    mine: tuple[Holder, ...] = ()
    """The listed holders that are leases of the asking client, which fills this in."""

    @property
    def kind(self) -> str:
        """The kind of primitive: `lock`, `semaphore`, …"""
        return self.key.partition(b":")[0].decode("ascii", "replace")

    @property
    def name(self) -> bytes:
        """The name as bytes: any bytes can be a name."""
        return self.key.partition(b":")[2]


@record
class Failed(Message):
    """This command failed; others of its batch can have succeeded."""

    reason: Literal["invalid", "busy", "away", "corrupt", "forbidden"]
    """`busy`: an open transaction blocks the key. `away`: the server that stores the key is unavailable."""
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


# ---- hints and pages ------------------------------------------------------------------------------


type Event = Literal["granted", "head", "revoked", "refused"]
"""Content of a notification; `head`: the waiter is the first in the queue now."""


@record
class Notification(Message):
    """A hint to one client. It can be late, doubled, lost or forged, and safety never depends on it."""

    key: bytes
    lease: str
    """The fingerprint of the id, because others can read notifications."""
    inbox: str
    event: Event
    token: int = 0
    slots: tuple[int, ...] = ()
    granted_at: float = 0.0
    """Store time of the grant."""
    claim_timeout: float = 0.0
    """Seconds for which an unclaimed grant stands."""
    detail: str = ""
    proof: str = ""
    """Proof that a grant comes from the store (see `core/proof.py`)."""


@record
class Page(Message):
    """Some keys of a store, and the cursor of the next page; None after the last."""

    items: Sequence[Status]
    cursor: bytes | None = None


@record
class Finding(Message):
    """Result of one check of a store, for people."""

    about: str
    """The subject in a word: `latency`, `clock`, `persistence`, …"""
    level: Literal["ok", "note", "warning", "problem"]
    """`problem`: exclusion, order or liveness is in danger."""
    told: str
    advice: str = ""
    """Advice for operators."""
    least_ttl: float = 0.0
    """Seconds; the store refuses a shorter ttl. 0: not part of this check."""


type Promise = Literal[
    "process",
    "host",
    "cluster",
    "clock",
    "durable",
    "fenced",
    "notifies",
    "crash",
    "reboot",
    "power-loss",
]
"""A word of `require=`: something that a store can promise."""


@record
class Capabilities(Message):
    """Promises of a store.

    `survives` names the failures after which exclusion and the order of tokens still hold: `crash` (of any
    process that uses the store), `reboot` and `power-loss` (of its machine).
    """

    scope: Literal["process", "host", "cluster"]
    clock: bool = True
    durable: bool = False
    fenced: bool = True
    notifies: bool = True
    survives: frozenset[str] = frozenset()
    asked: bool = True
    """False until the store was asked, if only the store knows: until then it promises nothing."""
    circles: bool = True
    """Waiters can write records into the store, for deadlock detection."""

    def names(self) -> frozenset[str]:
        """All words for `require=` that this store promises."""
        wider = {"process": {"process"}, "host": {"process", "host"}}
        scopes = wider.get(self.scope, {"process", "host", "cluster"})
        flags = {name for name in ("clock", "durable", "fenced", "notifies") if getattr(self, name)}
        return frozenset(flags | scopes | self.survives)
