"""The runtime port: all that primitives know of tasks, threads and the way to a store.

Primitives are `async def` over this port. The asyncio side awaits them. The blocking side steps the same
coroutine once, over a runtime that blocks instead of suspending.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol

from dibs.errors import DibsError
from dibs.model import Capabilities, Command, Finding, Message, Reply, record
from dibs.runtime.holding import HeldByOwner
from dibs.stores.port import TransactionConnection as TransactionConnection
from dibs.stores.port import step as step


@record
class TimedReply(Message):
    """A reply, and the time on this machine's clock when its command was first sent."""

    reply: Reply
    sent: float
    resent: bool = False
    """Another copy of the command may still be under way."""


type CallResult = TimedReply | DibsError
"""Result of one command in `call_all`: its reply, or its error."""


class Signal(Protocol):
    """Set at most once, from any thread; awaited by one."""

    value: Any

    def set(self, value: object = None) -> None: ...

    async def wait(self, timeout: float | None) -> bool:
        """Wait until it is set; return whether it is."""


class Guard(Protocol):
    """Brings the loss of a lease to the body that relies on it."""

    def enter(self) -> None:
        """The caller's task or thread begins the body."""

    def fire(self) -> None:
        """Interrupt the body. Any thread; only the first call counts."""

    def leave(self, exc: BaseException | None) -> bool:
        """The body has ended with `exc`. Return False if an error other than our interruption ended it."""

    @property
    def is_orphaned(self) -> bool:
        """The thread that entered the body is dead, or its task failed: nobody may be left to leave it."""


EARLY = 1 / 16
"""Fraction of the time until a check by which the keeper can check early, to group checks."""


class Care(NamedTuple):
    """The work that a lease needs at this moment."""

    renew: bool
    """Ask the store for more time."""
    again_at: float | None
    """When to look again; None if never."""


NO_CARE = Care(renew=False, again_at=None)


class Watched(Protocol):
    """A lease, as far as the keeper knows it: what is not for its holder. The keeper's threads call these."""

    key: bytes
    _id: str
    _deadline: float
    _bucket: Any
    """Where the keeper's timetable has it."""

    @property
    def ttl(self) -> float:
        """Seconds for which the store keeps it without a renewal."""

    @property
    def _renew_by(self) -> float:
        """When a renewal comes too late; infinite if no other is wanted before its end."""

    def _check(self, now: float) -> Care:
        """Lose it if its time is over, else tell what it needs."""

    def _renewal(self) -> Command:
        """The command that asks the store for more time."""

    def _renewed(self, answer: TimedReply) -> None:
        """Go by the store's answer to a renewal."""

    def _not_renewed(self, error: Exception) -> None:
        """The outcome of a renewal is unknown: it will be tried again until the deadline."""

    def _suspect_revocation(self) -> bool:
        """A notification says that it was revoked: return whether to renew it now, to go by the answer."""

    def _lose(self, reason: str, detail: str = "") -> None:
        """End it before its holder has given it up."""


class Keeper(Protocol):
    """Renews, abandons and listens in the background."""

    def prepare(self) -> None:
        """Start the threads that leases need. Raises `DibsError` if the process starts no more threads."""

    def watch(self, lease: Watched, when: float, lead: float) -> None:
        """Look at a lease at `when`, or a little (of `lead`) earlier. It is held weakly."""

    def unwatch(self, lease: Watched) -> None:
        """The lease has ended."""

    def held(self, key: bytes) -> frozenset[str]:
        """The fingerprints of this client's leases on a key."""

    def abandon(
        self, key: bytes, lease_id: str, tombstone: float, retain_until: float | None = None
    ) -> None:
        """Give up whatever that id has, in the background; never blocks.

        The store remembers the id for `tombstone` seconds. Its units stay taken until `retain_until`.
        """


class Notifications(Protocol):
    """Notifications for the ids that wait."""

    def expect(self, key: bytes, lease: str, signal: Signal) -> None:
        """Set `signal` to the next notification for that key and fingerprint, also if it is here already."""

    def pause(self, key: bytes, lease: str) -> bool:
        """Keep what comes, until it is expected again. False if a notification has come just now."""

    def forget(self, key: bytes, lease: str) -> None:
        """Drop what comes: nobody waits for it any more."""


class Job(Protocol):
    """A coroutine that runs in the background."""

    async def join(self, timeout: float | None) -> bool:
        """Wait until it has ended; return whether it has."""

    def cancel(self) -> None:
        """Interrupt it, where that can be done: in a loop."""


class Runtime(Protocol):
    """The connections of an event loop, or of all threads, to a store."""

    connect_timeout: float
    call_timeout: float
    holding: HeldByOwner
    """Exclusive leases, by the task or thread that holds them. Waiting for its own would never end."""

    @property
    def capabilities(self) -> Capabilities:
        """The store's promises, as far as it has been asked."""

    @property
    def keeper(self) -> Keeper:
        """The keeper of the store's leases."""

    @property
    def notifications(self) -> Notifications:
        """The notifications that have arrived."""

    @property
    def inbox(self) -> str:
        """The address for notifications; empty while nobody listens."""

    async def listen(self) -> None:
        """Start to receive notifications; sets `inbox`."""

    @property
    def is_ready(self) -> bool:
        """There is nothing to be done before the first call."""

    @property
    def is_over(self) -> bool:
        """The event loop is closed, so nobody who held a lease here can go on."""

    def now(self) -> float:
        """This machine's clock, by which deadlines are kept."""

    async def ready(self, timeout: float | None = None) -> None:
        """Connect, if that hasn't been done; raise `BackendUnavailable` after `timeout` seconds."""

    async def call(self, command: Command, wait: float | None = None) -> TimedReply:
        """Send a command and wait for its answer. Raises `BackendUnavailable` if its outcome is unknown.

        Waits for `wait` seconds at most, or less: see `time_limit` in `stores/port.py`.
        """

    async def call_all(
        self, commands: Sequence[Command], wait: float | None = None
    ) -> Sequence[CallResult]:
        """Send several commands together; return for each what `call` would return or raise."""

    async def examine(self) -> Sequence[Finding]:
        """Ask the store for the findings of `dibs doctor`."""

    def signal(self) -> Signal: ...

    def guard(self) -> Guard: ...

    def spawn(self, body: Coroutine[Any, Any, None], name: str) -> Job:
        """Run a coroutine in the background: in a task, or in a thread."""

    def me(self) -> object:
        """The running task or thread itself, not its recyclable number."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run a user's callback where it belongs: in the loop, or where we are in threads."""
