"""An event loop's way to the database: one connection that asks, and one that listens."""

import asyncio
from collections.abc import Callable, Sequence

from dibs.errors import BackendUnavailable
from dibs.model import Command, Finding, Page, Reply
from dibs.stores.aio import submit_in_task
from dibs.stores.port import Deliver, Done, GiveUp
from dibs.stores.postgres import applying, examining, ledger, upkeep
from dibs.stores.postgres.connecting import connect_loop, listen, new_inbox
from dibs.stores.postgres.loop_wire import LoopWire
from dibs.stores.postgres.session import Session
from dibs.stores.postgres.site import Site
from dibs.stores.postgres.trouble import SqlError, Unfit, cut_off, explain, is_of_unknown_outcome
from dibs.stores.postgres.wire import Answer, rows_of


class AsyncPostgresConnection:
    """See `AsyncConnection`. A batch that is given up half-way costs the connection.

    Whatever else was under way there has to be asked again then.
    """

    parallel = 2

    def __init__(self, site: Site) -> None:
        self.inbox = ""
        self._site = site
        self._session = Session(site, connect_loop, keeps=applying.PREPARED)
        self._turn = asyncio.Lock()
        self._ears: Ears | None = None
        self._deliver: Deliver = _to_nobody

    async def open(self) -> None:
        async with self._turn:
            await self._session.connected()

    async def close(self) -> None:
        self._session.cut()
        if self._ears is not None:
            self._ears.close()
        self._ears = None
        self._deliver = _to_nobody
        self.inbox = ""

    # -- commands -----------------------------------------------------------------------------------

    def submit(self, commands: Sequence[Command], done: Done) -> GiveUp:
        wire = self._session.wire
        if wire is None or wire.is_cut or not commands:
            return submit_in_task(self._apply(commands), done)
        try:
            call = applying.call_for(self._site, commands, self.inbox)
        except (Unfit, UnicodeError):  # the other way knows which of them can't be said
            return submit_in_task(self._apply(commands), done)
        request = _Request(self, wire, commands, call, done)
        wire.start(lambda: wire.send(call.statement, call.values), request.landed)
        return request.give_up

    async def _apply(self, commands: Sequence[Command]) -> Sequence[Reply]:
        async with self._turn:
            told = await applying.apply(self._session, commands, self.inbox, None)
        self._note(told)
        return told[0]

    def _note(self, told: ledger.Told) -> None:
        """What a batch brought besides its replies, and that it was work."""
        replies, wakeups = told
        if wakeups:
            self._deliver(wakeups)
        wire = self._session.wire if self._ears is None else self._ears.wire
        upkeep.note(self._site, len(replies), wire)

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        async with self._turn:
            return await applying.scan(self._session, prefix, cursor, limit)

    async def examine(self) -> Sequence[Finding]:
        async with self._turn:
            return await examining.examine(self._session)

    # -- notifications ------------------------------------------------------------------------------

    async def subscribe(self, deliver: Deliver) -> None:
        self._deliver = deliver
        ears = self._ears
        if ears is not None:
            if ears.are_deaf:
                await ears.open()
        elif self._site.pushes:
            ears = Ears(self._site, new_inbox(), deliver)
            await ears.open()
            if ears.can_hear:
                self._ears, self.inbox = ears, ears.inbox
            else:
                ears.close()
                self._site.found_deaf()

    def after_fork(self) -> None:
        self._session.after_fork()
        if self._ears is not None:
            self._ears.after_fork()
        self._ears = None
        self.inbox = ""
        self._turn = asyncio.Lock()


def _to_nobody(_: object) -> None:
    """Nobody has subscribed."""


class _Request:
    """A batch on a connection that stands: it needs no task, and lands as soon as its answer is read."""

    __slots__ = ("_call", "_commands", "_connection", "_done", "_task", "_wire")

    def __init__(
        self,
        connection: AsyncPostgresConnection,
        wire: LoopWire,
        commands: Sequence[Command],
        call: applying.Call,
        done: Done,
    ) -> None:
        self._connection = connection
        self._wire = wire
        self._commands = commands
        self._call = call
        self._done = done
        self._task: Callable[[], object] | None = None

    def give_up(self) -> None:
        """The answer has not come in time, so the connection is of no use any more."""
        if self._task is None:
            self._wire.cut()
        else:
            self._task()

    def landed(self, found: Answer | Exception) -> None:
        site, done = self._connection._site, self._done
        if isinstance(found, (SqlError, UnicodeError)):
            return self._go_the_other_way()
        if isinstance(found, Exception):
            return done(cut_off(found, site.place))
        try:
            told = self._call.read(rows_of(found))
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


class Ears:
    """One inbox, listened to again after every break."""

    def __init__(
        self,
        site: Site,
        inbox: str,
        deliver: Deliver,
    ) -> None:
        self.inbox = inbox
        self.can_hear = True
        """Nothing in between keeps pushes from us."""
        self._deliver = deliver
        self._session = Session(site, connect_loop, after=self._listen)

    @property
    def are_deaf(self) -> bool:
        """The connection broke, and nobody has made another."""
        wire = self._session.wire
        return wire is None or wire.is_cut

    @property
    def wire(self) -> LoopWire | None:
        """The connection, for what may be done on it besides."""
        return self._session.wire

    async def open(self) -> None:
        """Listen. Raises what the session raises."""
        await self._session.connected()

    def close(self) -> None:
        """Listen no more."""
        wire = self._session.wire
        if wire is not None:
            wire.on_break = wire.on_pushes = None
        self._session.cut()

    def after_fork(self) -> None:
        """In the child: the parent listens."""
        self._session.after_fork()

    async def _listen(self, wire: LoopWire) -> None:
        self.can_hear = await listen(wire, self.inbox, self._session.site, connect_loop)
        wire.on_pushes = self._hear
        wire.on_break = self._broken

    def _hear(self, payloads: list[str]) -> None:
        pushes = (ledger.read_push(payload, self.inbox) for payload in payloads)
        found = [push for push in pushes if push is not None]
        if found:
            self._deliver(found)

    def _broken(self) -> None:
        self._deliver(
            BackendUnavailable(
                f"the connection that listens to {self._session.site.place} broke: "
                "pushes may have been missed"
            )
        )
