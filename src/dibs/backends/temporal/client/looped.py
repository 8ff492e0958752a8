"""The backend of an event loop."""

import asyncio
from collections import deque
from collections.abc import Callable, MutableMapping, Sequence

from dibs.backends.temporal.client import examining
from dibs.backends.temporal.client.calling import Caller
from dibs.backends.temporal.client.connecting import Connection, prepare
from dibs.backends.temporal.client.listening import Ear, asked_to_hear, inbox_of, waits_in_vain
from dibs.backends.temporal.client.scanning import Listings
from dibs.backends.temporal.client.threads import keep_for_ever
from dibs.backends.temporal.unheeded import unheeded
from dibs.errors import DibsError
from dibs.fork import on_fork
from dibs.model import Command, Finding, Page, Reply, Wakeup

MAX_ARRIVED = 10_000
"""Wakeups that nobody fetches are dropped, the oldest first."""


class LoopBackend:
    """Calls brokers, and has a mailbox once somebody waits. All its tasks are of one event loop."""

    def __init__(
        self,
        connection: Connection,
        listings: Listings,
        ears: MutableMapping[str, Ear],
        new_caller: Callable[[], Caller],
    ) -> None:
        self.inbox = ""
        self._connection = connection
        self._listings = listings
        self._ears = ears
        self._new_caller = new_caller
        self._reset()
        on_fork(self)

    def _reset(self) -> None:
        self.inbox = ""
        self._caller: Caller | None = None
        self._ear: Ear | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._bell = asyncio.Event()
        self._arrived: deque[Wakeup] = deque(maxlen=MAX_ARRIVED)
        self._error: DibsError | None = None
        self._deliver_to: Callable[[Sequence[Wakeup]], None] | None = None

    async def open(self, *, listen: bool = True) -> None:
        self._loop = asyncio.get_running_loop()
        self._caller = self._new_caller()
        prepare()
        if not listen:
            return  # who connects first is told if that fails, and has a limit for it
        await self._connection.client()
        if self._ear is None:
            ear = self._ear = Ear(self._connection, self._hear)
            self.inbox = ear.inbox
            self._ears[ear.inbox] = ear

    async def close(self) -> None:
        self._caller = None  # what is on its way goes on
        ear, self._ear = self._ear, None
        self._ears.pop(self.inbox, None)
        self.inbox = ""
        self._bell.set()
        if ear is not None:
            await ear.close()

    # -- commands -----------------------------------------------------------------------------------

    def apply_now(self, commands: Sequence[Command]) -> Sequence[Reply] | None:
        return None

    async def apply(self, commands: Sequence[Command]) -> Sequence[Reply]:
        if not commands:
            return ()
        if self._caller is None:
            await self.open(listen=False)
        assert self._caller is not None
        self._listings.note(commands)
        early = asked_to_hear(self._ears, commands)
        standing = unheeded(asyncio.gather(*(ear.stand() for ear in early)))
        try:
            replies: Sequence[Reply] = await self._caller.apply(commands)
            await standing
        finally:
            standing.cancel()
        waiting = waits_in_vain(self._ears, commands, replies)
        if waiting:
            replies = await self._again(commands, replies, waiting)
        return replies

    async def apply_within(self, commands: Sequence[Command], seconds: float) -> Sequence[Reply]:
        """Likewise, or raise `BackendUnavailable` after so long."""
        try:
            async with asyncio.timeout(seconds):
                return await self.apply(commands)
        except TimeoutError:
            assert self._caller is not None
            raise await self._caller.attendance.silence(commands[0].key, seconds) from None

    async def _again(
        self, commands: Sequence[Command], replies: Sequence[Reply], waiting: Sequence[int]
    ) -> Sequence[Reply]:
        """These wait: let there be a mailbox, and ask again, as a push may have come before it."""
        assert self._caller is not None
        for inbox in {inbox_of(commands[number]) for number in waiting}:
            await self._ears[inbox].stand()
        found = list(replies)
        again = await self._caller.apply([commands[number] for number in waiting])
        for number, reply in zip(waiting, again, strict=True):
            found[number] = reply
        return found

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        if self._caller is None:
            await self.open(listen=False)
        assert self._caller is not None
        return await self._listings.scan(
            self._connection, self._caller.apply, prefix, cursor, limit
        )

    async def examine(self) -> Sequence[Finding]:
        """What to know about the server, and whether the queue is served."""
        return await examining.examine(self._connection)

    # -- wakeups ------------------------------------------------------------------------------------

    def deliver_to(self, take: Callable[[Sequence[Wakeup]], None]) -> None:
        """Hand pushes to `take`, in the loop, as soon as they are here; `wakeups` gives none then."""
        self._deliver_to = take

    def _hear(self, heard: Sequence[Wakeup] | DibsError) -> None:
        """Pushes; or that some may have been missed."""
        if isinstance(heard, DibsError):
            self._error = heard
        elif self._deliver_to is not None:
            return self._deliver_to(heard)
        else:
            self._arrived.extend(heard)
        if heard:
            self._bell.set()

    async def wakeups(self, timeout: float | None) -> Sequence[Wakeup]:
        """What was pushed. Raises whenever pushes may have been missed."""
        if not self.inbox:
            return ()
        try:
            async with asyncio.timeout(timeout):
                await self._bell.wait()
        except TimeoutError:
            pass
        self._bell.clear()
        error, self._error = self._error, None
        if error is not None:
            raise error
        found = list(self._arrived)
        self._arrived.clear()
        return found

    def nudge(self) -> None:
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._bell.set)
            except RuntimeError:
                pass  # that loop is closed, and whoever waited in it has gone

    def after_fork(self) -> None:
        """In the child: nothing of the parent's is of use here, nor can it be thrown away."""
        keep_for_ever(self._caller, self._ear, self._loop, self._bell)
        deliver_to = self._deliver_to
        self._reset()
        self._deliver_to = deliver_to
