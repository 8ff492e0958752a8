"""Threads' way to the database: everything is done in the caller's own thread."""

import select
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from math import ceil, inf
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq.abc import PGconn

from dibs.errors import DibsError
from dibs.model import Command, Finding, Notification, Page, Reply
from dibs.stores.port import step
from dibs.stores.postgres import health, ledger
from dibs.stores.postgres.connection import (
    TIMEOUT,
    Answer,
    Send,
    Session,
    Site,
    Wire,
    listen,
    new_inbox,
)
from dibs.stores.postgres.errors import missed, refused
from dibs.stores.waker import Incoming


class ThreadWire(Wire):
    """Waits on the socket, for as long as it may and not a moment longer."""

    def __init__(self, pgconn: PGconn) -> None:
        super().__init__(pgconn)
        self._readable = select.poll()
        self._readable.register(self.fd, select.POLLIN)
        self.until = inf
        """When its caller's time is over: no call takes longer."""

    async def exchange(self, send: Send, timeout: float | None) -> Answer:
        end = min(inf if timeout is None else time.monotonic() + timeout, self.until)
        send()
        self._send_all(end)
        return self._answer(end)

    async def next_notifications(self, timeout: float) -> list[str]:
        end = time.monotonic() + timeout
        while not (found := self.payloads()):
            try:
                _wait(self._readable, end)
            except TimeoutError:
                return []
            self.pgconn.consume_input()
        return found

    @property
    def is_sound(self) -> bool:
        """The server has not closed it either, so that a call needn't find out."""
        try:
            while not self.is_cut and self._readable.poll(0):
                self.pgconn.consume_input()
        except Exception:  # noqa: BLE001  # whatever it was, another is made
            self.cut()
        return not self.is_cut

    def _send_all(self, end: float) -> None:
        """A large batch doesn't fit into the socket at once, and the server may answer meanwhile."""
        if self.flush():
            return
        both = select.poll()
        both.register(self.fd, select.POLLIN | select.POLLOUT)
        while not self.flush():
            for _, events in _wait(both, end):
                if events & select.POLLIN:
                    self.pgconn.consume_input()

    def _answer(self, end: float) -> Answer:
        answer = self.received()
        while not answer:
            _wait(self._readable, end)
            answer = self.receive()
        return answer


def _wait(poll: select.poll, end: float) -> list[tuple[int, int]]:
    left = (end - time.monotonic()) * 1000
    events = poll.poll(None if left == inf else max(left, 0.0))
    if not events:
        raise TimeoutError
    return events


class _ThreadConnection(psycopg.Connection[Any]):
    """Only opens: from then on its `pgconn` is ours."""

    def __del__(self, _warn: Any = None) -> None:
        """Says nothing of having been left open."""


async def connect_thread(site: Site, within: float = inf) -> ThreadWire:
    """A connection for one thread at a time, made within so many seconds; never suspends."""
    conninfo = site.address.conninfo
    if within < int(conninfo_to_dict(conninfo).get("connect_timeout") or 0):
        conninfo = make_conninfo(conninfo, connect_timeout=max(ceil(within), 1))
    try:
        opened = _ThreadConnection.connect(conninfo, autocommit=True)
    except (psycopg.Error, OSError) as error:
        raise refused(error, site.place) from error
    return ThreadWire(opened.pgconn)


class BlockingPostgresConnection:
    """See `BlockingConnection`. Notifications come in over the same connection."""

    def __init__(self, site: Site) -> None:
        self.inbox: str = ""
        self._site = site
        self._until = inf
        """When the call that is under way has to end, connecting included."""
        self._session = Session(site, self._connect, (ledger.APPLY,), self._connected)
        self._incoming = Incoming(self._receive, self._sockets)
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
        """What was sent before a connection was made never arrives."""
        self._may_have_missed = True
        if self.inbox and not await listen(wire, self.inbox, self._site, connect_thread):
            self.inbox = ""

    def close(self) -> None:
        self._session.cut()
        self._incoming.close()
        self.inbox = ""

    # -- commands -----------------------------------------------------------------------------------

    def apply(self, commands: Sequence[Command], timeout: float) -> Sequence[Reply]:
        work = ledger.apply(self._session, commands, self.inbox, timeout)
        replies, notifications = self._within(timeout, work)
        self._incoming.add(notifications)
        if ledger.is_sweep_due(self._site, len(commands)):
            with suppress(DibsError):
                self._within(TIMEOUT, self._session.ask(ledger.SWEEP, ()))
        return replies

    def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        return self._within(TIMEOUT, ledger.scan(self._session, prefix, cursor, limit))

    def examine(self) -> Sequence[Finding]:
        return self._within(TIMEOUT, health.examine(self._session))

    # -- notifications ------------------------------------------------------------------------------

    def subscribe(self, timeout: float) -> None:
        if self._incoming.is_open:
            return
        if self._site.notifies:
            self.inbox = new_inbox()
            self._session.cut()  # the next one listens
        self.open(timeout)
        self._incoming.open()

    def notifications(self, timeout: float | None) -> Sequence[Notification]:
        return self._incoming.wait(timeout)

    def wake(self) -> None:
        self._incoming.wake()

    def _receive(self) -> Sequence[Notification]:
        """What has arrived. Raises `BackendUnavailable` if some may have been missed."""
        if not self.inbox:
            return ()
        wire = self._session.wire
        if wire is None or not wire.is_sound or self._may_have_missed:
            self._may_have_missed = False
            raise missed(self._site.place)
        return ledger.notifications_in(wire.payloads(), self.inbox)

    def _sockets(self) -> Sequence[int]:
        wire = self._session.wire
        return [wire.fd] if self.inbox and wire is not None else []

    def after_fork(self) -> None:
        self._session.after_fork()
        self._incoming.close()
        self.inbox = ""
