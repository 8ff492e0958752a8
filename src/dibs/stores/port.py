"""What the rest of Dibs needs of a store.

A `Store` says where leases are kept, and makes connections: an `AsyncConnection` for one event loop, a
`BlockingConnection` for one thread at a time. Both apply batches of commands, each in one round trip, atomic
per key and in order for each key, with one reply for each command.

A failure of a whole batch is one of these errors:

- `BackendUnavailable`: it may or may not have been applied; the same commands can be sent again.
- `Forbidden`, `IncompatibleVersion`, `Corrupt`: nothing was applied.

A failure of one command is that command's reply, `Failed`.
"""

from collections.abc import Callable, Coroutine, Sequence
from math import inf
from typing import Any, Literal, Protocol

from dibs.clock import Clock
from dibs.errors import (
    BackendUnavailable,
    Corrupt,
    DibsError,
    Forbidden,
    IncompatibleVersion,
    InvalidRequest,
    NotConfigured,
)
from dibs.model import Capabilities, Command, Failed, Finding, Notification, Page, Reply

MAX_BATCH = 512
"""Commands in one batch, at most."""

type Done = Callable[[Sequence[Reply] | DibsError], None]
"""Takes the result of a batch: its replies, or the error it failed with."""

type GiveUp = Callable[[], object]
"""Gives a batch up, as at a time-out."""

type Deliver = Callable[[Sequence[Notification] | DibsError], None]
"""Takes notifications as they arrive; or an error: some may have been missed."""


SHORTEST = 0.1
"""Seconds that every call has, however short its ttl is and however little time its caller has left."""


def time_limit(command: Command, call_timeout: float, wait: float | None = None) -> float:
    """Return how many seconds one round trip may take for a command.

    The least of `call_timeout`, `wait` (the time that the caller has left) and a sixth of the ttl, so that a
    renewal leaves time for another; never less than `SHORTEST`.
    """
    limit = call_timeout if wait is None or wait > call_timeout else wait
    ttl: float = getattr(command, "ttl", inf)
    if 0 < ttl < 6 * limit:
        limit = ttl / 6
    return max(SHORTEST, limit)


class AsyncConnection(Protocol):
    """One event loop's way to a store. Everything is called in that loop."""

    parallel: int
    """Batches that may be under way at a time."""

    @property
    def inbox(self) -> str:
        """Where the store sends this connection's notifications; empty until it is subscribed."""

    async def open(self) -> None:
        """Connect, unless that is done. Can be called again after `close`."""

    async def close(self) -> None:
        """Disconnect and end the subscription. Leases stay as they are."""

    def submit(self, commands: Sequence[Command], done: Done) -> GiveUp:
        """Send a batch now, and call `done` once, in the loop, with its result.

        A store that answers in place calls `done` before `submit` returns. One that is not connected
        connects first, in a task of its own. The function that is returned gives the batch up, as at a
        time-out: what is on its way goes on, and no later answer is taken for that of another batch.
        `done` may then be called with an error, which the caller ignores. Never raises.
        """

    async def subscribe(self, deliver: Deliver) -> None:
        """Hand notifications to `deliver`, in the loop, from now on; sets `inbox`.

        Does nothing while the subscription stands. When it breaks, `deliver` is called with the error,
        and whoever wants notifications calls this again. Raises like `open`.
        """

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        """Return the next keys that begin with `prefix` and are not idle, in byte order, after `cursor`."""

    async def examine(self) -> Sequence[Finding]:
        """Return what `dibs doctor` reports about the store."""

    def after_fork(self) -> None:
        """In the child: drop inherited sockets and files without a word to the other side."""


class BlockingConnection(Protocol):
    """A way to a store for one thread at a time. `wake` may be called by any thread.

    It connects by itself where that is needed. A call without an answer within its `timeout`, in seconds,
    raises `BackendUnavailable`.
    """

    @property
    def inbox(self) -> str:
        """Where the store sends this connection's notifications; empty until it is subscribed."""

    def open(self, timeout: float) -> None:
        """Connect, unless that is done. Can be called again after `close`."""

    def close(self) -> None:
        """Disconnect and end the subscription. Leases stay as they are."""

    def apply(self, commands: Sequence[Command], timeout: float) -> Sequence[Reply]:
        """Apply a batch, and return its replies."""

    def subscribe(self, timeout: float) -> None:
        """Have notifications sent here, unless that is done; sets `inbox`."""

    def notifications(self, timeout: float | None) -> Sequence[Notification]:
        """Wait for notifications; none at the timeout and after a `wake`.

        Raises `BackendUnavailable` whenever some may have been missed, also once they come again.
        """

    def wake(self) -> None:
        """Let a `notifications` that waits, or the next one, return at once. For signal handlers, too."""

    def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        """Return the next keys that begin with `prefix` and are not idle, in byte order, after `cursor`."""

    def examine(self) -> Sequence[Finding]:
        """Return what `dibs doctor` reports about the store."""

    def after_fork(self) -> None:
        """In the child: drop inherited sockets and files without a word to the other side."""


class TransactionConnection(Protocol):
    """Applies commands as part of a transaction that the user has begun on a connection of their own.

    Its coroutines never suspend if `blocking`.
    """

    blocking: bool
    """The user's connection blocks."""

    async def open(self) -> None:
        """Raise `NotConfigured` if the user's connection leads to another database."""

    async def apply(self, commands: Sequence[Command]) -> Sequence[Reply]:
        """Return a reply for each command; all of them are part of the transaction from now on."""


class Store(Protocol):
    """Where leases are kept, by URL. Making one connects to nothing and reads nothing."""

    url: str
    """As it may be shown: without a password."""

    connections: int | None = None
    """Connections that all threads of a process together may have, besides the keeper's; None: any number."""

    @property
    def capabilities(self) -> Capabilities:
        """What it promises. With `asked=False` until a connection was open, if only the store knows."""

    def __init__(self, url: str, *, clock: Clock | None = None) -> None: ...

    def async_connection(self) -> AsyncConnection:
        """Make a connection for the running event loop; it is not open yet."""

    def blocking_connection(self) -> BlockingConnection:
        """Make a connection for one thread at a time; it is not open yet."""

    def within(self, connection: Any) -> TransactionConnection:
        """Join the transaction on a user's connection. Raises `NotConfigured` if the store has none."""
        raise NotConfigured(
            f"{self.url} can't be part of a transaction: within= is for leases in the database that "
            "the transaction is in, and of the stores here postgresql:// can do that"
        )


def as_dibs(error: Exception) -> DibsError:
    """What callers are told of an error in a store."""
    if isinstance(error, DibsError):
        return error
    failure = BackendUnavailable(f"the store failed: {error!r}")
    failure.__cause__ = error
    return failure


def error_of_batch(errors: Sequence[DibsError]) -> DibsError | None:
    """The error of a whole batch whose keys all failed, with these; None if each command gets a reply.

    A passing error can be raised for all, as all are sent again. Others only if all keys have the same.
    """
    passing = all(isinstance(each, BackendUnavailable) for each in errors)
    return errors[0] if passing or len(set(map(repr, errors))) == 1 else None


def failed_reply(error: DibsError) -> Failed:
    """The reply to a command whose key has an error of its own."""
    for kind, reason in _REASONS:
        if isinstance(error, kind):
            return Failed(reason, str(error))
    return Failed("away", str(error))


_REASONS: tuple[tuple[type[DibsError], Literal["forbidden", "invalid", "corrupt"]], ...] = (
    (Forbidden, "forbidden"),
    (InvalidRequest, "invalid"),
    (Corrupt, "corrupt"),
    (IncompatibleVersion, "corrupt"),
    (NotConfigured, "corrupt"),
)


def step[T](coroutine: Coroutine[Any, Any, T]) -> T:
    """Return what the coroutine returns. One that suspends is closed, and `RuntimeError` raised.

    Text that both sides share is written as coroutines. Over blocking ports there is nothing to suspend
    for, so the coroutine's first step is its last.
    """
    try:
        coroutine.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    coroutine.close()
    raise RuntimeError("a coroutine suspended in a blocking call: it was given an asyncio port")
