"""An event loop's way to the database: one connection that asks, and one that listens."""

import asyncio
import os
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg.pq.abc import PGconn

from dibs.errors import BackendUnavailable
from dibs.model import Command, Finding, Page, Reply
from dibs.stores.aio import submit_in_task
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
    Unfit,
    cut_off,
    explain,
    is_of_unknown_outcome,
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
        self.on_pushes: Callable[[list[str]], None] | None = None
        """Takes what is pushed to this connection."""
        self.on_break: Callable[[], None] | None = None
        """Is told that the server has closed it."""
        loop.add_reader(self.fd, _weakly(self._read))
        self._last_rites = weakref.finalize(self, _let_go, pgconn, loop, self.fd, os.getpid())
        self._last_rites.atexit = False

    async def exchange(self, send: Send, timeout: float | None) -> Answer:
        answer: asyncio.Future[Answer] = self._loop.create_future()

        def done(found: Answer | Exception) -> None:
            if answer.done():
                return
            if isinstance(found, Exception):
                answer.set_exception(found)
                answer.exception()  # it is no news where nobody waits any more
            else:
                answer.set_result(found)

        self.start(send, done)
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

    def begin(self, send: Send) -> None:
        if not self.is_cut:
            self.start(send, lambda _: None)

    def _send_first(self) -> None:
        try:
            self._line[0][0]()
            self._flush()
        except Exception as error:  # noqa: BLE001  # whoever waits for the answer is told
            self._broke(error)

    async def next_pushes(self, timeout: float) -> list[str]:
        if found := self.pushes():
            return found
        come: asyncio.Future[list[str]] = self._loop.create_future()
        self.on_pushes = lambda pushes: None if come.done() else come.set_result(pushes)
        try:
            async with asyncio.timeout(timeout):
                return await come
        except TimeoutError:
            return []
        finally:
            self.on_pushes = None

    def cut(self) -> None:
        if self.is_cut:
            return
        self._last_rites.detach()
        if not self._loop.is_closed():
            self._loop.remove_reader(self.fd)
            self._loop.remove_writer(self.fd)
        line, self._line = self._line, deque()
        super().cut()
        for _, done in line:  # now they can be asked again, over another connection
            done(self._trouble or ConnectionError("it was closed"))

    def cut_in_child(self) -> None:
        self._last_rites.detach()  # the loop's own files belong to the parent
        super().cut_in_child()

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
        except Exception as error:  # noqa: BLE001  # whoever waits for the answer is told
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
        if self.on_pushes is not None and (pushes := self.pushes()):
            self.on_pushes(pushes)

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


def _let_go(pgconn: PGconn, loop: asyncio.AbstractEventLoop, fd: int, pid: int) -> None:
    """A connection was dropped without `cut`, in whatever thread collects garbage."""
    if pid != os.getpid():
        return  # it is the parent's

    def end() -> None:
        loop.remove_reader(fd)
        loop.remove_writer(fd)
        pgconn.finish()

    try:
        loop.call_soon_threadsafe(end)
    except RuntimeError:
        pgconn.finish()  # the loop is closed


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
        self.inbox = ""
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
        try:
            now, stamp = self._site.time()
            values = ledger.parameters(commands, inbox=self.inbox, now=now, stamp=stamp)
        except (Unfit, UnicodeError):  # the other way knows which of them can't be said
            return submit_in_task(self._apply(commands), done)
        request = _Request(self, wire, commands, done)
        wire.start(lambda: wire.send(ledger.APPLY, values), request.landed)
        return request.give_up

    async def _apply(self, commands: Sequence[Command]) -> Sequence[Reply]:
        async with self._turn:
            told = await ledger.apply(self._session, commands, self.inbox, None)
        self._note(told)
        return told[0]

    def _note(self, told: ledger.Told) -> None:
        """What a batch brought besides its replies, and that it was work."""
        replies, notifications = told
        if notifications:
            self._deliver(notifications)
        wire = self._session.wire if self._listening is None else self._listening.wire
        ledger.note_work(self._site, len(replies), wire)

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        async with self._turn:
            return await ledger.scan(self._session, prefix, cursor, limit)

    async def examine(self) -> Sequence[Finding]:
        async with self._turn:
            return await health.examine(self._session)

    # -- notifications ------------------------------------------------------------------------------

    async def subscribe(self, deliver: Deliver) -> None:
        self._deliver = deliver
        if self._listening is None and self._site.pushes:
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
            wire.on_pushes = self._arrived
            wire.on_break = self._broken
        else:
            self.inbox = ""
            self._site.found_deaf()

    def _arrived(self, payloads: list[str]) -> None:
        pushes = (ledger.read_push(payload, self._channel) for payload in payloads)
        found = [push for push in pushes if push is not None]
        if found:
            self._deliver(found)

    def _broken(self) -> None:
        self._deliver(
            BackendUnavailable(
                f"the connection that listens to {self._site.place} broke: "
                "pushes may have been missed"
            )
        )

    def after_fork(self) -> None:
        self._session.after_fork()
        if self._listening is not None:
            self._listening.after_fork()
        self._listening = None
        self.inbox = ""
        self._turn = asyncio.Lock()


def _to_nobody(_: object) -> None:
    """Nobody has subscribed."""


class _Request:
    """A batch on a connection that stands: it needs no task, and lands as soon as its answer is read."""

    __slots__ = ("_commands", "_connection", "_done", "_inbox", "_task", "_wire")

    def __init__(
        self,
        connection: AsyncPostgresConnection,
        wire: LoopWire,
        commands: Sequence[Command],
        done: Done,
    ) -> None:
        self._connection = connection
        self._wire = wire
        self._commands = commands
        self._inbox = connection.inbox
        self._done = done
        self._task: Callable[[], object] | None = None

    def give_up(self) -> None:
        """The answer has not come in time. If the batch is under way, that ends the connection."""
        if self._task is not None:
            self._task()
        elif not self._wire.withdraw(self.landed):
            self._wire.cut()

    def landed(self, found: Answer | Exception) -> None:
        site, done = self._connection._site, self._done
        if isinstance(found, (SqlError, UnicodeError)):
            return self._go_the_other_way()
        if isinstance(found, Exception):
            return done(cut_off(found, site.place))
        try:
            told = ledger.read_answer(rows_of(found), self._commands, self._inbox)
        except SqlError as error:
            if is_of_unknown_outcome(error):
                self._wire.cut()
                return done(explain(error, site.place))
            return self._go_the_other_way()
        except Exception as error:  # noqa: BLE001  # else the callers would wait for their time-out
            return done(BackendUnavailable(f"{site.place} answered what can't be read: {error!r}"))
        self._connection._note(told)
        return done(told[0])

    def _go_the_other_way(self) -> None:
        """Nothing was done: a task knows what that error means, and tries again where that may help."""
        self._task = submit_in_task(self._connection._apply(self._commands), self._done)
