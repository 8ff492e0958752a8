"""The backend of a thread: everything is done in the caller's own thread, and nothing suspends."""

import time
from collections.abc import Sequence

from dibs.errors import BackendUnavailable
from dibs.model import Command, Finding, Page, Reply, Wakeup
from dibs.stores.bell import Bell
from dibs.stores.postgres import applying, examining, ledger, upkeep
from dibs.stores.postgres.connecting import connect_thread, new_inbox
from dibs.stores.postgres.connecting import listen as hear
from dibs.stores.postgres.session import PATIENCE, Session
from dibs.stores.postgres.site import Site
from dibs.stores.postgres.thread_wire import ThreadWire

BRIEFEST = 0.2
"""The server has this long for an answer in any case, in seconds."""


class BlockingBackend:
    """For one thread at a time. What is pushed comes in over the same connection."""

    def __init__(self, site: Site) -> None:
        self.inbox = ""
        self._site = site
        self._session = Session(site, connect_thread, applying.PREPARED, self._connected)
        self._bell: Bell | None = None
        self._arrived: list[Wakeup] = []
        self._may_have_missed = False

    async def open(self, *, listen: bool = True) -> None:
        begins = listen and self._bell is None
        if begins and self._site.pushes:
            self.inbox = new_inbox()
            self._session.cut()
        await self._session.connected()
        self._may_have_missed = False
        if begins:
            self._bell = Bell()

    async def _connected(self, wire: ThreadWire) -> None:
        """A new connection hears nothing of what was pushed before."""
        self._may_have_missed = True
        if self.inbox and not await hear(wire, self.inbox, self._site, connect_thread):
            self.inbox = ""
            self._site.found_deaf()

    async def close(self) -> None:
        self._session.cut()
        self._hang_up()

    def _hang_up(self) -> None:
        bell, self._bell = self._bell, None
        if bell is not None:
            bell.close()
        self.inbox = ""

    # -- commands -----------------------------------------------------------------------------------

    def apply_now(self, commands: Sequence[Command]) -> Sequence[Reply] | None:
        return None

    async def apply(self, commands: Sequence[Command]) -> Sequence[Reply]:
        return await self.apply_within(commands, PATIENCE)

    async def apply_within(self, commands: Sequence[Command], seconds: float) -> Sequence[Reply]:
        """Apply a batch within so many seconds, but never less than `BRIEFEST`."""
        patience = max(min(_patience(commands), seconds), BRIEFEST)
        replies, wakeups = await applying.apply(self._session, commands, self.inbox, patience)
        if self._bell is not None:
            self._arrived += wakeups
        upkeep.note(self._site, len(commands), self._session.wire)
        return replies

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        return await applying.scan(self._session, prefix, cursor, limit)

    async def examine(self) -> Sequence[Finding]:
        """What to know about the database."""
        return await examining.examine(self._session)

    # -- wakeups ------------------------------------------------------------------------------------

    async def wakeups(self, timeout: float | None) -> Sequence[Wakeup]:
        end = None if timeout is None else time.monotonic() + timeout
        while self._bell is not None:
            arrived, self._arrived = self._arrived + self._heard(), []
            left = None if end is None else end - time.monotonic()
            if arrived or (left is not None and left <= 0):
                return arrived
            if self._rest(self._bell, left):
                break
        return ()

    def _heard(self) -> list[Wakeup]:
        """What has been pushed. Raises `BackendUnavailable` where something may have been missed."""
        if not self.inbox:
            return []
        wire = self._session.wire
        if wire is None or not wire.is_sound or self._may_have_missed:
            self._may_have_missed = False
            raise BackendUnavailable(
                f"the connection that listens to {self._site.place} broke: "
                "pushes may have been missed"
            )
        pushes = (ledger.read_push(payload, self.inbox) for payload in wire.pushes())
        return [push for push in pushes if push is not None]

    def _rest(self, bell: Bell, left: float | None) -> bool:
        """Wait for a push or for the bell; tell whether the bell has rung."""
        wire = self._session.wire
        return bell.wait(left, *([wire.fd] if self.inbox and wire is not None else []))

    def nudge(self) -> None:
        bell = self._bell
        if bell is not None:
            bell.ring()

    def after_fork(self) -> None:
        self._session.after_fork()
        self._hang_up()
        self._arrived = []


def _patience(commands: Sequence[Command]) -> float:
    """How long one attempt may take: a renewal must leave time for another."""
    ttls = [getattr(command, "ttl", 6 * PATIENCE) for command in commands]
    shortest = min((ttl for ttl in ttls if ttl > 0), default=6 * PATIENCE)
    return min(max(shortest / 6, BRIEFEST), PATIENCE)
