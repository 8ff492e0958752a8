"""The backend of an event loop: one connection that asks, and one that listens."""

import asyncio
from collections.abc import Callable, Sequence

from dibs.backends.port import Land
from dibs.backends.postgres import applying, examining, upkeep
from dibs.backends.postgres.connecting import connect_loop
from dibs.backends.postgres.ears import Ears
from dibs.backends.postgres.hearing import new_inbox
from dibs.backends.postgres.launching import launch
from dibs.backends.postgres.mailbox import Mailbox
from dibs.backends.postgres.session import Session
from dibs.backends.postgres.site import Site
from dibs.errors import BackendUnavailable
from dibs.model import Command, Finding, Page, Reply, Wakeup


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
