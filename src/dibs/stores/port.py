"""What the rest of Dibs needs of a store.

A `Store` says where leases are kept. A `Backend` is one connection to it, either for one event loop or
for blocking callers. Both kinds have the same methods: the blocking kind's coroutines never suspend, so
that one text of the primitives drives either (see `runtime.threads`).
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from dibs.clock import Clock
from dibs.errors import DibsError
from dibs.model import Capabilities, Command, Page, Reply, Wakeup

MAX_BATCH = 512
"""No more commands than this travel together."""

type Land = Callable[[Sequence[Reply] | DibsError | None], None]
"""Takes what came of a batch; None: nothing was done, and it has to go by `apply`, which knows what to do."""

type Launch = Callable[[Sequence[Command], Land], Callable[[], None] | None]


class Backend(Protocol):
    """One connection to a store; used by one event loop or by one thread at a time.

    A failure of the whole call raises `BackendUnavailable` (it may or may not have been applied; the
    same commands may be sent again), `Forbidden`, `IncompatibleVersion` or `Corrupt` (nothing was
    applied). A failure of one command is that command's reply, `Failed`.

    A backend of an event loop may also have `deliver_to(take: Callable[[Sequence[Wakeup]], None])`:
    called before `open`, it has pushes handed to `take` in the loop as they arrive, which spares the
    way through `wakeups`; that then waits for nudges and raises what goes wrong. It may have
    `launch(commands, land)` (see `Launch`): sends a batch at once if it is connected, has `land` called
    once, in the loop, and returns what gives the batch up (None: it has to go by `apply`); two batches may
    be under way so. With `in_context = True` a batch is applied in the context of the first who has a command
    in it. And one that can say what to know about its store has `async def
    examine() -> Sequence[Finding]`.
    """

    @property
    def inbox(self) -> str:
        """Where pushes to this connection are sent; to be put into each Acquire that may wait."""

    async def open(self, *, listen: bool = True) -> None:
        """Connect. May be called again after `close`. Unless it is to `listen`, it has no inbox."""

    async def close(self) -> None:
        """Disconnect; leases stay as they are."""

    def apply_now(self, commands: Sequence[Command]) -> Sequence[Reply] | None:
        """Apply a batch in place, if that can be done at once without waiting for anybody; else None."""

    async def apply(self, commands: Sequence[Command]) -> Sequence[Reply]:
        """Apply a batch in one round trip: atomic per key, in order for each key; a reply for each."""

    async def wakeups(self, timeout: float | None) -> Sequence[Wakeup]:
        """Wait for hints that were pushed to this inbox; empty at the timeout or after a nudge."""

    def nudge(self) -> None:
        """Let a `wakeups` that waits return at once. Any thread may call it, also a signal handler."""

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        """The next keys (in byte order, after `cursor`) that begin with `prefix` and are not idle."""

    def after_fork(self) -> None:
        """In the child: drop inherited sockets and files without a word to the other side."""


class Store(Protocol):
    """Where leases are kept, by URL. Making one connects to nothing and reads nothing.

    A store may also have `connections`: so many at a time are best for the threads of one process; and
    `within(connection)`: a backend that applies as part of the user's own transaction on that connection,
    with `blocking: bool` for the world that the connection is of.
    """

    url: str
    """As it may be shown: without a password."""

    @property
    def capabilities(self) -> Capabilities:
        """What it promises. With `asked=False` until a connection has been open, if only the store knows."""

    def __init__(self, url: str, *, clock: Clock | None = None) -> None: ...

    def backend(self, *, blocking: bool) -> Backend:
        """A connection, not yet open."""
