"""An event loop's way to the database: one connection that asks, and one that listens."""

import asyncio
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import psycopg
from psycopg.pq.abc import PGconn

from dibs.errors import BackendUnavailable
from dibs.model import Command, Finding, Page, Reply
from dibs.stores.aio import resolve, submit_in_task
from dibs.stores.port import Deliver, Done, GiveUp
from dibs.stores.postgres import health, ledger
from dibs.stores.postgres.connection import (
    Answer,
    Send,
    Session,
    Site,
    Wire,
    listen,
    new_inbox,
    rows_of,
)
from dibs.stores.postgres.errors import (
    SqlError,
    cut_off,
    explain,
    is_of_unknown_outcome,
    missed,
    refused,
)

type Answered = Callable[[Answer | Exception], None]
"""Is called once, in the loop."""


class LoopWire(Wire):
    """Its socket is watched for as long as it is open, so that a call costs the loop one turn.

    Calls wait in line here: the next leaves as soon as the last one's answer is read, before anybody
    looks at that, so that the server works while we do.
    """

    def __init__(self, pgconn: PGconn, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(pgconn)
        self._loop = loop
        self._line: deque[tuple[Send, Answered]] = deque()
        """The first is under way."""
        self._is_full = False
        self._trouble: Exception | None = None
        self.on_notifications: Callable[[list[str]], None] | None = None
        """Takes the payloads of notifications that arrive here."""
        self.on_break: Callable[[], None] | None = None
        """Called when the server has closed it."""
        loop.add_reader(self.fd, _weakly(self._read))

    async def exchange(self, send: Send, timeout: float | None) -> Answer:
        answer: asyncio.Future[Answer] = self._loop.create_future()
        self.start(send, partial(resolve, answer))
        if timeout is None:
            return await answer
        async with asyncio.timeout(timeout):
            return await answer

    def start(self, send: Send, done: Answered) -> None:
        """Send it when its turn comes, and have `done` called with what came of it."""
        self._line.append((send, done))
        if len(self._line) == 1:
            self._send_first()

    def withdraw(self, done: Answered) -> bool:
        """Take a call that has not left out of the line. False if it is under way."""
        for number, (_, waiting) in enumerate(self._line):
            if number and waiting == done:
                del self._line[number]
                return True
        return False

    def _send_first(self) -> None:
        try:
            self._line[0][0]()
            self._flush()
        except Exception as error:  # noqa: BLE001  # the callers get it
            self._broke(error)

    async def next_notifications(self, timeout: float) -> list[str]:
        if found := self.payloads():
            return found
        come: asyncio.Future[list[str]] = self._loop.create_future()
        self.on_notifications = lambda payloads: None if come.done() else come.set_result(payloads)
        try:
            async with asyncio.timeout(timeout):
                return await come
        except TimeoutError:
            return []
        finally:
            self.on_notifications = None

    def cut(self) -> None:
        if self.is_cut:
            return
        if not self._loop.is_closed():
            self._loop.remove_reader(self.fd)
            self._loop.remove_writer(self.fd)
        line, self._line = self._line, deque()
        super().cut()
        for _, done in line:  # now they can be asked again, over another connection
            done(self._trouble or ConnectionError("it was closed"))

    def __del__(self) -> None:
        """If it was dropped without `cut`, it goes as soon as the loop watches it no more. In any thread."""
        if not self.is_cut:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(_unwatch, self._loop, self.pgconn)

    def _flush(self) -> None:
        done = self.flush()
        if not done and not self._is_full:
            self._loop.add_writer(self.fd, self._write)
        elif done and self._is_full:
            self._loop.remove_writer(self.fd)
        self._is_full = not done

    def _write(self) -> None:
        try:
            self._flush()
        except Exception as error:  # noqa: BLE001  # the callers get it
            self._broke(error)

    def _read(self) -> None:
        try:
            answer = self.receive()
        except Exception as error:  # noqa: BLE001
            self._broke(error)
            return
        if answer and self._line:
            _, done = self._line.popleft()
            if self._line:
                self._send_first()
            done(answer)
        if self.on_notifications is not None and (payloads := self.payloads()):
            self.on_notifications(payloads)

    def _broke(self, error: Exception) -> None:
        self._trouble = error
        self.cut()
        if self.on_break is not None:
            self.on_break()


def _weakly(method: Callable[[], None]) -> Callable[[], None]:
    """The loop must not keep alive what nobody else does."""
    reference = weakref.WeakMethod(method)

    def call() -> None:
        found = reference()
        if found is not None:
            found()

    return call


def _unwatch(loop: asyncio.AbstractEventLoop, pgconn: PGconn) -> None:
    loop.remove_reader(pgconn.socket)
    loop.remove_writer(pgconn.socket)
    pgconn.finish()


class _LoopConnection(psycopg.AsyncConnection[Any]):
    """Only opens: from then on its `pgconn` is ours."""

    def __del__(self, _warn: Any = None) -> None:
        """Says nothing of having been left open."""


async def connect_loop(site: Site) -> LoopWire:
    """A connection for the running loop."""
    try:
        opened = await _LoopConnection.connect(site.address.conninfo, autocommit=True)
    except (psycopg.Error, OSError) as error:
        raise refused(error, site.place) from error
    return LoopWire(opened.pgconn, asyncio.get_running_loop())


class AsyncPostgresConnection:
    """See `AsyncConnection`. A batch that is given up half-way costs the connection.

    Whatever else was under way there has to be asked again then.
    """

    parallel = 2

    def __init__(self, site: Site) -> None:
        self.inbox: str = ""
        self._site = site
        self._session = Session(site, connect_loop, keeps=(ledger.APPLY,))
        self._turn = asyncio.Lock()
        self._listening: Session[LoopWire] | None = None
        self._channel = ""
        """Where the listening connection listens."""
        self._deliver: Deliver = _to_nobody

    async def open(self) -> None:
        async with self._turn:
            await self._session.connected()

    async def close(self) -> None:
        self._session.cut()
        if self._listening is not None:
            self._listening.cut()
        self._listening = None
        self._deliver = _to_nobody
        self.inbox = ""

    # -- commands -----------------------------------------------------------------------------------

    def submit(self, commands: Sequence[Command], done: Done) -> GiveUp:
        wire = self._session.wire
        if wire is None or wire.is_cut or not commands:
            return submit_in_task(self._apply(commands), done)
        inbox, site = self.inbox, self._site
        values = ledger.parameters(commands, inbox, *site.time())
        task: GiveUp | None = None

        def try_again() -> None:
            """Nothing was done: a task knows what that error means, and tries again if that may help."""
            nonlocal task
            task = submit_in_task(self._apply(commands), done)

        def answered(found: Answer | Exception) -> None:
            if isinstance(found, Exception):
                return done(cut_off(found, site.place))
            try:
                applied = ledger.read_answer(rows_of(found), commands, inbox)
            except SqlError as error:
                if not is_of_unknown_outcome(error):
                    return try_again()
                wire.cut()
                return done(explain(error, site.place))
            except Exception as error:  # noqa: BLE001  # else the callers would wait for their time-out
                return done(
                    BackendUnavailable(f"{site.place} answered what can't be read: {error!r}")
                )
            self._note(applied)
            return done(applied[0])

        def give_up() -> None:
            """If the batch is under way, that ends the connection."""
            if task is not None:
                task()
            elif not wire.withdraw(answered):
                wire.cut()

        wire.start(lambda: wire.send(ledger.APPLY, values), answered)
        return give_up

    async def _apply(self, commands: Sequence[Command]) -> Sequence[Reply]:
        async with self._turn:
            applied = await ledger.apply(self._session, commands, self.inbox, None)
        self._note(applied)
        return applied[0]

    def _note(self, applied: ledger.Applied) -> None:
        """Deliver the notifications of a batch, and sweep if it is time."""
        replies, notifications = applied
        if notifications:
            self._deliver(notifications)
        wire = self._session.wire if self._listening is None else self._listening.wire
        if ledger.is_sweep_due(self._site, len(replies)) and wire is not None and not wire.is_cut:
            wire.start(lambda: wire.send(ledger.SWEEP, ()), _to_nobody)

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        async with self._turn:
            return await ledger.scan(self._session, prefix, cursor, limit)

    async def examine(self) -> Sequence[Finding]:
        async with self._turn:
            return await health.examine(self._session)

    # -- notifications ------------------------------------------------------------------------------

    async def subscribe(self, deliver: Deliver) -> None:
        self._deliver = deliver
        if self._listening is None and self._site.notifies:
            self._channel = new_inbox()
            self._listening = Session(self._site, connect_loop, after=self._listen)
        if self._listening is not None:
            await self._listening.connected()
            if not self.inbox:
                self._listening.cut()
                self._listening = None

    async def _listen(self, wire: LoopWire) -> None:
        """A new connection is for notifications."""
        if await listen(wire, self._channel, self._site, connect_loop):
            self.inbox = self._channel
            wire.on_notifications = self._arrived
            wire.on_break = self._broken
        else:
            self.inbox = ""

    def _arrived(self, payloads: list[str]) -> None:
        if found := ledger.notifications_in(payloads, self._channel):
            self._deliver(found)

    def _broken(self) -> None:
        self._deliver(missed(self._site.place))

    def after_fork(self) -> None:
        self._session.after_fork()
        if self._listening is not None:
            self._listening.after_fork()
        self._listening = None
        self.inbox = ""
        self._turn = asyncio.Lock()


def _to_nobody(_: object) -> None:
    """Nobody wants to know."""
