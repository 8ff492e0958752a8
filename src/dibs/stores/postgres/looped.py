"""The backend of an event loop: one connection that asks, and one that listens."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from dibs.errors import BackendUnavailable
from dibs.model import Command, Finding, Page, Reply, Wakeup
from dibs.stores.port import Land
from dibs.stores.postgres import applying, examining, ledger, upkeep
from dibs.stores.postgres.connecting import connect_loop, listen, new_inbox
from dibs.stores.postgres.loop_wire import LoopWire
from dibs.stores.postgres.session import Session
from dibs.stores.postgres.site import Site
from dibs.stores.postgres.trouble import SqlError, Unfit, cut_off, explain, is_of_unknown_outcome
from dibs.stores.postgres.wire import Answer, rows_of

MAX_ARRIVED = 10_000
"""Wakeups that nobody fetches are dropped, the oldest first."""


class Mailbox:
    """Wakeups for one event loop, and a bell that any thread may ring."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.deliver_to: Callable[[Sequence[Wakeup]], None] | None = None
        """Whoever takes wakeups in as they arrive, instead of waiting for them."""
        self._loop = loop
        self._arrived: deque[Wakeup] = deque(maxlen=MAX_ARRIVED)
        self._rung = False
        self._reader: asyncio.Future[None] | None = None

    def add(self, wakeups: Sequence[Wakeup]) -> None:
        """Take in what has come. In the loop's own thread."""
        if not wakeups:
            return
        if self.deliver_to is not None:
            self.deliver_to(wakeups)
            return
        self._arrived.extend(wakeups)
        self._wake()

    def ring(self) -> None:
        """Let whoever waits go. In the loop's own thread."""
        self._rung = True
        self._wake()

    def nudge(self) -> None:
        """Let whoever waits go. Any thread."""
        try:
            self._loop.call_soon_threadsafe(self.ring)
        except RuntimeError:
            pass  # that loop is closed, and whoever waited in it has gone

    async def wait(self, timeout: float | None) -> Sequence[Wakeup]:
        """What has arrived; nothing after a ring and at the timeout."""
        if not self._arrived and not self._rung:
            await self._until_woken(timeout)
        self._rung = False
        found = list(self._arrived)
        self._arrived.clear()
        return found

    async def _until_woken(self, timeout: float | None) -> None:
        reader = self._reader = self._loop.create_future()
        alarm = None if timeout is None else self._loop.call_later(timeout, self._wake)
        try:
            await reader
        finally:
            if alarm is not None:
                alarm.cancel()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class LoopBackend:
    """For one event loop. A call that is cancelled half-way costs the connection.

    Whatever else was under way there has to be asked again then.
    """

    def __init__(self, site: Site) -> None:
        self.inbox = ""
        self._site = site
        self._session = Session(site, connect_loop, keeps=applying.PREPARED)
        self._turn = asyncio.Lock()
        self._ears: Ears | None = None
        self._mailbox: Mailbox | None = None
        self._deliver_to: Callable[[Sequence[Wakeup]], None] | None = None

    async def open(self, *, listen: bool = True) -> None:
        async with self._turn:
            await self._session.connected()
        if listen and self._mailbox is None:
            mailbox = Mailbox(asyncio.get_running_loop())
            mailbox.deliver_to = self._deliver_to
            if self._site.pushes:
                await self._listen(mailbox)
            self._mailbox = mailbox

    async def _listen(self, mailbox: Mailbox) -> None:
        ears = Ears(self._site, new_inbox(), mailbox.add, mailbox.ring)
        await ears.open()
        if ears.can_hear:
            self._ears, self.inbox = ears, ears.inbox
        else:
            ears.close()
            self._site.found_deaf()

    async def close(self) -> None:
        self._session.cut()
        if self._ears is not None:
            self._ears.close()
        if self._mailbox is not None:
            self._mailbox.ring()
        self._ears = self._mailbox = None
        self.inbox = ""

    # -- commands -----------------------------------------------------------------------------------

    def apply_now(self, commands: Sequence[Command]) -> Sequence[Reply] | None:
        return None

    async def apply(self, commands: Sequence[Command]) -> Sequence[Reply]:
        async with self._turn:
            told = await applying.apply(self._session, commands, self.inbox, None)
        self._note(told)
        return told[0]

    def launch(self, commands: Sequence[Command], land: Land) -> Callable[[], None] | None:
        """Send a batch at once, and have `land` called in the loop: with its replies, or an error.

        What it returns gives the batch up, as at a time-out. None: it must go by `apply`.
        """
        wire = self._session.wire
        if wire is None or wire.is_cut or not commands:
            return None
        return launch(self._site, wire, commands, self.inbox, land, self._note)

    def _note(self, told: applying.Told) -> None:
        """What a batch brought besides its replies, and that it was work."""
        replies, wakeups = told
        if wakeups and self._mailbox is not None:
            self._mailbox.add(wakeups)
        wire = self._session.wire if self._ears is None else self._ears.wire
        upkeep.note(self._site, len(replies), wire)

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        async with self._turn:
            return await applying.scan(self._session, prefix, cursor, limit)

    async def examine(self) -> Sequence[Finding]:
        """What to know about the database."""
        async with self._turn:
            return await examining.examine(self._session)

    # -- wakeups ------------------------------------------------------------------------------------

    def deliver_to(self, take: Callable[[Sequence[Wakeup]], None]) -> None:
        """Hand pushes to `take`, in the loop, as soon as they are read; `wakeups` gives none then."""
        self._deliver_to = take
        if self._mailbox is not None:
            self._mailbox.deliver_to = take

    async def wakeups(self, timeout: float | None) -> Sequence[Wakeup]:
        ears = self._ears
        if ears is not None and ears.are_deaf:
            await ears.open()
            raise BackendUnavailable(
                f"the connection that listens to {self._site.place} broke and was made anew: "
                "pushes may have been missed"
            )
        return () if self._mailbox is None else await self._mailbox.wait(timeout)

    def nudge(self) -> None:
        mailbox = self._mailbox
        if mailbox is not None:
            mailbox.nudge()

    def after_fork(self) -> None:
        self._session.after_fork()
        if self._ears is not None:
            self._ears.after_fork()
        self._ears = self._mailbox = None
        self.inbox = ""
        self._turn = asyncio.Lock()


class Ears:
    """One inbox, listened to again after every break."""

    def __init__(
        self,
        site: Site,
        inbox: str,
        take: Callable[[Sequence[Wakeup]], None],
        broken: Callable[[], None],
    ) -> None:
        self.inbox = inbox
        self.can_hear = True
        """Nothing in between keeps pushes from us."""
        self._take = take
        self._broken = broken
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
        self._take([push for push in pushes if push is not None])


def launch(
    site: Site,
    wire: LoopWire,
    commands: Sequence[Command],
    inbox: str,
    land: Land,
    note: Callable[[applying.Told], None],
) -> Callable[[], None] | None:
    """Send a batch now, or when its turn comes; what gives it up. None: it must go by `apply`.

    `note` is told what the batch brought.
    """
    try:
        call = applying.call_for(site, commands, inbox)
    except (Unfit, UnicodeError):
        return None

    def landed(found: Answer | Exception) -> None:
        if isinstance(found, (SqlError, UnicodeError)):
            return land(None)
        if isinstance(found, Exception):
            return land(cut_off(found, site.place))
        try:
            told = call.read(rows_of(found))
        except SqlError as error:
            if is_of_unknown_outcome(error):
                wire.cut()
                return land(explain(error, site.place))
            return land(None)  # nothing was done, and the ordinary way knows what that error means
        except Exception as error:  # noqa: BLE001  # else the callers would wait for their time-out
            return land(BackendUnavailable(f"{site.place} answered what can't be read: {error!r}"))
        note(told)
        land(told[0])

    wire.start(lambda: wire.send(call.statement, call.values), landed)
    return wire.cut
