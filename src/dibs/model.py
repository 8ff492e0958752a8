"""What is said between a client and a store: commands, replies, notifications.

Every duration is in seconds. A *store time* is a reading of the store's own clock and means nothing
elsewhere; a *stamp* is the store's wall clock in microseconds since 1970 and only seeds fencing tokens
and ages that people read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, dataclass_transform

MANY = 1 << 20
"""The largest capacity: that of a reader/writer lock, whose writer takes all of it."""

MAX_CAPACITY = 1_000_000
"""The largest capacity of a semaphore."""

MAX_HOLDERS = 10_000
"""How many leases one key may have at a time, whatever its capacity."""

MAX_SLOTS = 1_024
"""The largest capacity whose units are numbered slots."""


@dataclass_transform(frozen_default=True)
def record[T](cls: type[T]) -> type[T]:
    """A value that nobody changes: frozen to the type checkers, plain at run time.

    A dataclass that freezes at run time costs a microsecond more for each one made, and the whole
    of an uncontended acquire costs a few.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)


# ---- commands -------------------------------------------------------------------------------------


@record
class Acquire:
    """Take `units` of `key`, or renew what `id` already has, or keep its place in the queue alive."""

    key: bytes
    id: str
    owner: str
    ttl: float
    units: int = 1
    capacity: int = 1
    queue: bool = False
    waiter_ttl: float = 30.0
    """A place not heard of for this long is dropped."""
    priority: int = 0
    note: str = ""
    floor: int = 0
    """Tokens up to this one are spent already (elsewhere)."""
    lock_delay: float = 0.0
    """How long the units stay closed should this hold end by expiry."""
    inbox: str = ""
    """Where pushes for this id go; means something to the backend only."""
    trace: str = ""
    """Trace and span of the acquire (`contrib.otel`), so that a waiter's span can link to its holder's."""
    address: str = ""
    """Network address of the caller, set by a lock service; shown to operators."""


@record
class Renew:
    """Keep a hold, claim a pushed grant, or give a place's sign of life. Never shortens."""

    key: bytes
    id: str
    ttl: float
    inbox: str = ""
    """Where pushes go from now on; empty for where they went before."""


@record
class Release:
    """Give up whatever `id` has, a hold or a place."""

    key: bytes
    id: str
    retain: float = 0.0
    """The units stay taken this long, by nobody."""
    tombstone: float = 0.0
    """The id is remembered this long, so that a late copy of its Acquire answers `Gone`."""


@record
class Resize:
    """Change how many units a hold has; a copy older than the newest `seq` is ignored."""

    key: bytes
    id: str
    units: int
    seq: int


@record
class Inspect:
    """Tell who holds and who waits."""

    key: bytes


@record
class Revoke:
    """Refuse further renewals to one lease (by its fingerprint) or to every holder (None)."""

    key: bytes
    lease: str | None
    reason: str
    now: bool = False
    """Free the units at once. This gives up exclusion: from here on only fencing protects."""


type Command = Acquire | Renew | Release | Resize | Inspect | Revoke


# ---- what people see ------------------------------------------------------------------------------


@record
class Holder:
    """One hold, as others may see it: never with its id."""

    lease: str
    """The fingerprint of the lease's id; empty for units that are kept by nobody."""
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
class Waiter:
    """One place in the queue, as others may see it."""

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
class Granted:
    """The units are yours until `ttl` seconds after the command was sent, less the margin."""

    token: int
    slots: tuple[int, ...]
    ttl: float


@record
class Queued:
    """You have a place; ask again after `recheck_in` at the latest."""

    position: int
    """How many wait ahead, counted up to 1,000."""
    recheck_in: float
    now: float
    """The store time of this answer, against which a push tells when it granted."""


@record
class Refused:
    """Not now (`held`, `closed`, `queue_full`) or not ever (`too_large`)."""

    reason: Literal["held", "too_large", "queue_full", "closed"]
    holders: tuple[Holder, ...] = ()
    recheck_in: float = 0.0


@record
class Gone:
    """The id has ended: nothing will be granted to it again."""


@record
class Renewed:
    """The hold stands for `ttl` seconds after the command was sent, less the margin."""

    ttl: float


@record
class Lost:
    """There is no such hold or place any more."""

    reason: Literal["expired", "revoked"] = "expired"
    detail: str = ""


@record
class Released:
    """What the id had is given up."""


@record
class Unknown:
    """The id had nothing."""


@record
class Revoked:
    """How many holds were told to end, and the seconds until the last of them ends at the latest."""

    count: int
    ends_in: float


@record
class Status:
    """Who holds and waits for a key.

    At most 100 holders are listed, those whose leases end first, in the order of their tokens; and at
    most 100 waiters, in the order in which they come next.
    """

    key: bytes
    capacity: int
    holders: tuple[Holder, ...] = ()
    waiters: tuple[Waiter, ...] = ()
    waiting: int = 0
    """How many wait, listed or not."""
    last_token: int = 0
    holding: int = 0
    """How many hold, listed or not."""
    used: int = 0
    """How many units they hold together."""
    mine: tuple[Holder, ...] = ()
    """Those of the listed holders that are leases of the client that asked; filled in by the client."""

    @property
    def kind(self) -> str:
        """What kind of primitive it belongs to: `lock`, `semaphore`, …"""
        return self.key.partition(b":")[0].decode("ascii", "replace")

    @property
    def name(self) -> bytes:
        """Its name, as bytes, since any bytes make one."""
        return self.key.partition(b":")[2]


@record
class Failed:
    """This command failed, whatever the rest of its batch did."""

    reason: Literal["invalid", "busy", "away", "corrupt", "forbidden"]
    """`busy`: a transaction that has not ended keeps the key; `away`: the server that has it is."""
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
"""What a push tells its waiter or holder; `head`: it is the first in the queue now."""


@record
class Notification:
    """A hint to one client: may be late, doubled, lost or forged, and is never needed for safety."""

    key: bytes
    lease: str
    """The fingerprint of the id it is for: pushes may be read by others."""
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
    """Of a grant: that the store has sent it (see `core/proof.py`)."""


@record
class Page:
    """Some of a store's keys, and where to go on: None after the last."""

    items: Sequence[Status]
    cursor: bytes | None = None


@record
class Finding:
    """One thing that a look at a store has told, for people."""

    about: str
    """What was looked at, in a word: `latency`, `clock`, `persistence`, …"""
    level: Literal["ok", "note", "warning", "problem"]
    """`problem`: exclusion, order or liveness is not what it should be."""
    told: str
    advice: str = ""
    """What to do about it."""
    least_ttl: float = 0.0
    """A shorter one is refused, in seconds; 0: this says nothing of it."""


@record
class Capabilities:
    """What a store promises.

    `survives` names the failures across which exclusion and the order of tokens hold: `crash` (of any
    process that uses it), `reboot` and `power-loss` (of the machine it is on).
    """

    scope: Literal["process", "host", "cluster"]
    clock: bool = True
    durable: bool = False
    fenced: bool = True
    notifies: bool = True
    survives: frozenset[str] = frozenset()
    asked: bool = True
    """False until the store itself has been asked, where only that knows: then nothing is promised yet."""
    circles: bool = True
    """Waiters can write in it what they wait for, so that those in a circle find each other."""

    def names(self) -> frozenset[str]:
        """Every word that `require=` may name and that this store can promise."""
        wider = {"process": {"process"}, "host": {"process", "host"}}
        scopes = wider.get(self.scope, {"process", "host", "cluster"})
        flags = {name for name in ("clock", "durable", "fenced", "notifies") if getattr(self, name)}
        return frozenset(flags | scopes | self.survives)
