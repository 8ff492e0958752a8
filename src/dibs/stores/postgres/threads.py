"""Threads' way to the database: everything is done in the caller's own thread."""

import time
from collections.abc import Coroutine, Sequence
from math import inf
from typing import Any

from dibs.errors import BackendUnavailable
from dibs.model import Command, Finding, Page, Reply, Wakeup
from dibs.stores.bell import Bell
from dibs.stores.port import step
from dibs.stores.postgres import applying, examining, ledger, upkeep
from dibs.stores.postgres.connecting import connect_thread, new_inbox
from dibs.stores.postgres.connecting import listen as hear
from dibs.stores.postgres.session import PATIENCE, Session
from dibs.stores.postgres.site import Site
from dibs.stores.postgres.thread_wire import ThreadWire


class BlockingPostgresConnection:
    """See `BlockingConnection`. Notifications come in over the same connection."""

    def __init__(self, site: Site) -> None:
        self.inbox = ""
        self._site = site
        self._until = inf
        """When the call that is under way has to end, connecting included."""
        self._session = Session(site, self._connect, applying.PREPARED, self._connected)
        self._bell: Bell | None = None
        self._arrived: list[Wakeup] = []
        self._may_have_missed = False

    def open(self, timeout: float) -> None:
        self._within(timeout, self._session.connected())
        self._may_have_missed = False

    def _within[T](self, timeout: float, work: Coroutine[Any, Any, T]) -> T:
        """Do it in so many seconds."""
        self._until = time.monotonic() + timeout
        if self._session.wire is not None:
            self._session.wire.until = self._until
        return step(work)

    async def _connect(self, site: Site) -> ThreadWire:
        wire = await connect_thread(site, self._until - time.monotonic())
        wire.until = self._until
        return wire

    async def _connected(self, wire: ThreadWire) -> None:
        """A new connection hears nothing of what was pushed before."""
        self._may_have_missed = True
        if self.inbox and not await hear(wire, self.inbox, self._site, connect_thread):
            self.inbox = ""
            self._site.found_deaf()

    def close(self) -> None:
        self._session.cut()
        self._hang_up()

    def _hang_up(self) -> None:
        bell, self._bell = self._bell, None
        if bell is not None:
            bell.close()
        self.inbox = ""

    # -- commands -----------------------------------------------------------------------------------

    def apply(self, commands: Sequence[Command], timeout: float) -> Sequence[Reply]:
        work = applying.apply(self._session, commands, self.inbox, timeout)
        replies, wakeups = self._within(timeout, work)
        if self._bell is not None:
            self._arrived += wakeups
        upkeep.note(self._site, len(commands), self._session.wire)
        return replies

    def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        return self._within(PATIENCE, applying.scan(self._session, prefix, cursor, limit))

    def examine(self) -> Sequence[Finding]:
        return self._within(PATIENCE, examining.examine(self._session))

    # -- notifications ------------------------------------------------------------------------------

    def subscribe(self, timeout: float) -> None:
        if self._bell is not None:
            return
        if self._site.pushes:
            self.inbox = new_inbox()
            self._session.cut()  # the next one listens
        self._within(timeout, self._session.connected())
        self._may_have_missed = False
        self._bell = Bell()

    def notifications(self, timeout: float | None) -> Sequence[Wakeup]:
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

    def wake(self) -> None:
        bell = self._bell
        if bell is not None:
            bell.ring()

    def after_fork(self) -> None:
        self._session.after_fork()
        self._hang_up()
        self._arrived = []
