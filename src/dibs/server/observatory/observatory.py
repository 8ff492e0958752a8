"""One server's observatory: the picture, its latest events, and those who watch them."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING

from dibs.model import Command, Notification, Reply, Status
from dibs.runtime.notifications import ForwardingReceiver, Receiver
from dibs.server.observatory.events import Event
from dibs.server.observatory.picture import Picture
from dibs.server.observatory.scanner import Scanner

if TYPE_CHECKING:
    from dibs.server.auth.policy import Principal
    from dibs.server.placing.runtime import PlacedRuntime
    from dibs.server.serve import Server

GATHERED = 0.02
"""So long news gather before those who watch are told, in seconds."""

MOST = 16_384
"""So many events are remembered."""

AT_ONCE = 500
"""So many are looked through at a time, for one who follows them."""


class Ring:
    """The latest events. A reader keeps the number of the last event that it has read, and goes on there."""

    def __init__(self, most: int = MOST) -> None:
        self._events: deque[Event] = deque(maxlen=most)
        self.last = 0
        """The number of the latest event; 0 before the first."""

    def add(self, event: Event) -> None:
        """One more; the oldest is forgotten."""
        self.last += 1
        self._events.append(event)

    @property
    def forgotten(self) -> int:
        """The number of the latest event that is forgotten; 0 before that."""
        return self.last - len(self._events)

    def has_after(self, number: int) -> bool:
        """Whether nothing that came after that one is forgotten."""
        return self.forgotten <= number <= self.last

    def after(self, number: int, most: int) -> list[Event]:
        """The next ones after that number, without a gap, if `has_after` it."""
        missing = self.last - number
        begin = len(self._events) - missing
        if begin + most < missing:  # it is nearer from the left
            return list(islice(self._events, begin, begin + most))
        newest_first = islice(reversed(self._events), max(missing - most, 0), missing)
        return list(newest_first)[::-1]


STEP = 2_000
"""So many are looked at in a row: a millisecond or two."""

SHARE = 20
"""What has taken a while is good for so many times that, so it takes little of the time, however many ask."""

type Lines = Sequence[tuple[int, bytes]]


class Survey:
    """What is known of all keys at once. Where they are many it may be some seconds old."""

    def __init__(self, picture: Picture, now: Callable[[], float]) -> None:
        self._picture = picture
        self._now = now
        self._walk: asyncio.Task[Lines] | None = None
        self._good_until = 0.0

    async def lines(self) -> Lines:
        """Where somebody waits, the longest line first: how many, as a negative, and the key."""
        walk, is_quick = self._walk, len(self._picture) <= STEP
        if walk is None or (walk.done() and (is_quick or self._now() >= self._good_until)):
            walk = self._walk = asyncio.get_running_loop().create_task(self._measured())
        return await asyncio.shield(walk)  # others want it too, whoever goes

    async def _measured(self) -> Lines:
        began = self._now()
        found: list[tuple[int, bytes]] = []
        async for some in in_steps(self._picture.all()):
            found += [(-len(each.places), each.key) for each in some if each.places]
        found.sort()
        self._good_until = self._now() + SHARE * (self._now() - began)
        return found


async def in_steps[T](items: Sequence[T]) -> AsyncIterator[Sequence[T]]:
    """The parts of a long list, between which others go on."""
    for at in range(0, len(items), STEP):
        yield items[at : at + STEP]
        await asyncio.sleep(0)


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


class OverheardMail(ForwardingReceiver):
    """A runtime's mail, of which a picture hears too. Takes the place of its receiver."""

    def __init__(self, receiver: Receiver, picture: Picture) -> None:
        super().__init__(receiver)
        self._picture = picture

    def deliver(self, notification: Notification) -> None:
        self._picture.heard(notification)
        super().deliver(notification)


@asynccontextmanager
async def observing(server: "Server") -> AsyncGenerator[None]:
    """The observatory's own work, as a part of a server."""
    async with server.service.observatory.at_work():
        yield
