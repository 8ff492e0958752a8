"""One server's observatory: the picture, its latest events, and those who watch them."""

import asyncio
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING

from dibs.model import Command, Reply, Status, Wakeup
from dibs.runtime.mail import Letterbox, PassingMail
from dibs.server.observatory.events import Event
from dibs.server.observatory.picture import Picture
from dibs.server.observatory.ring import Ring
from dibs.server.observatory.scanner import Scanner
from dibs.server.observatory.survey import Survey

if TYPE_CHECKING:
    from dibs.server.placing.runtime import PlacedRuntime
    from dibs.server.principal import Principal
    from dibs.server.serve import Server

GATHERED = 0.02
"""So long news gather before those who watch are told, in seconds."""


class Observatory:
    """See the module. Its own work is to be begun by `at_work`; until then it sees only what passes:
    `saw` tells it of commands, and `OverheardMail` of pushes.
    """

    def __init__(self, runtime: "PlacedRuntime") -> None:
        self.ring = Ring()
        self.picture = Picture(self._tell, runtime.now, time.time)
        self.survey = Survey(self.picture, runtime.now)
        self.scanner = Scanner(runtime, self.picture)
        self._renewals = 0
        self._bells: set[asyncio.Event] = set()
        self._ringing = False

    def saw(self, _: "Principal", command: Command, reply: Reply) -> None:
        """A command was applied for somebody."""
        self.picture.saw(command, reply)

    def looked(self, status: Status, asked: float) -> None:
        """Somebody has looked at a key, having asked at that time."""
        self.picture.looked(status, asked)

    def _tell(self, event: Event) -> None:
        """Renewals are so many that they are told only where somebody wants them."""
        if event.what == "renewed" and not (self._renewals or self.scanner.is_close(event.key)):
            return
        self.ring.add(event)
        if self._bells and not self._ringing:
            self._ringing = True
            asyncio.get_running_loop().call_later(GATHERED, self._ring_bells)

    def _ring_bells(self) -> None:
        self._ringing = False
        for bell in self._bells:
            bell.set()

    @contextmanager
    def watched(
        self, bell: asyncio.Event, key: bytes | None = None, *, renewals: bool = False
    ) -> Generator[None]:
        """Somebody watches one key, or all that there is, and is to be told by this bell."""
        self._bells.add(bell)
        self._renewals += renewals
        self.scanner.watch(key)
        try:
            yield
        finally:
            self.scanner.unwatch(key)
            self._renewals -= renewals
            self._bells.discard(bell)

    @asynccontextmanager
    async def at_work(self) -> AsyncGenerator[None]:
        """Look at the store meanwhile."""
        loop = asyncio.get_running_loop()
        tasks = [
            loop.create_task(self.scanner.walk_on(), name="dibs observatory"),
            loop.create_task(self.scanner.look_closely(), name="dibs observatory, closely"),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


class OverheardMail(PassingMail):
    """A runtime's mail, of which a picture hears too. Takes the place of its letterbox."""

    def __init__(self, letterbox: Letterbox, picture: Picture) -> None:
        super().__init__(letterbox)
        self._picture = picture

    def deliver(self, wakeup: Wakeup) -> None:
        self._picture.heard(wakeup)
        super().deliver(wakeup)


@asynccontextmanager
async def observing(server: "Server") -> AsyncGenerator[None]:
    """The observatory's own work, as a part of a server."""
    async with server.service.observatory.at_work():
        yield
