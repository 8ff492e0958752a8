"""The backend of an event loop."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from dibs.errors import BackendUnavailable, DibsError, Forbidden
from dibs.model import Command, Finding, Page, Reply, Wakeup
from dibs.process import on_fork
from dibs.stores.http import examining
from dibs.stores.http.following import Following, Spread
from dibs.stores.http.loop_link import LoopLink, LoopStream, dial
from dibs.stores.http.reading import Answer
from dibs.stores.http.settings import LARGEST, Promises, Settings
from dibs.stores.http.stream import MISSED_SOME, nowhere
from dibs.stores.http.trouble import broken
from dibs.stores.http.wire_service import About
from dibs.stores.port import Land

log = logging.getLogger("dibs")

MAX_ARRIVED = 10_000
"""Wakeups that nobody fetches are dropped, the oldest first."""


class LoopBackend:
    """Connections of one event loop: one for each request under way, and one on which pushes arrive."""

    in_context = True
    """A request tells whose trace it belongs to."""

    def __init__(self, settings: Settings, promises: Promises) -> None:
        self.inbox = ""
        self._settings = settings
        self._promises = promises
        self._deliver_to: Callable[[Sequence[Wakeup]], None] | None = None
        self._reset()
        on_fork(self)

    def _reset(self) -> None:
        self.inbox = ""
        self._links = LoopLinks(self._settings)
        self._stream: LoopStream | None = None
        self._spread = Spread()
        self._following = Following()
        self._arrived: deque[Wakeup] = deque(maxlen=MAX_ARRIVED)
        self._bell = LoopBell()

    async def open(self, *, listen: bool = True) -> None:
        self._bell.begin()
        self._links.part(parting=False)
        await self._about()
        if listen and not self.inbox:
            await self._listen()

    async def close(self) -> None:
        self.inbox = ""
        self._part()
        self._bell.ring()

    # -- requests -----------------------------------------------------------------------------------

    def apply_now(self, commands: Sequence[Command]) -> Sequence[Reply] | None:
        return None

    async def apply(self, commands: Sequence[Command]) -> Sequence[Reply]:
        if not commands:
            return ()
        link = await self._links.take()
        request = link.dialogue.batch(commands)
        if len(request) > LARGEST and len(commands) > 1:
            middle = len(commands) // 2
            return [*await self.apply(commands[:middle]), *await self.apply(commands[middle:])]
        return self._replies(link, await self._links.ask(link, request), commands)

    def launch(self, commands: Sequence[Command], land: Land) -> Callable[[], None] | None:
        """Send a batch at once, and have `land` called in the loop: with its replies, or an error.

        What it returns gives the batch up, as at a time-out. None: it must go by `apply`.
        """
        link = self._links.idle()
        if link is None:
            return None
        request = link.dialogue.batch(commands)
        if len(request) > LARGEST and len(commands) > 1:
            return None
        link.launch(request, partial(self._landed, link, commands, land))
        return link.close

    def _landed(
        self, link: LoopLink, commands: Sequence[Command], land: Land, found: Answer | Exception
    ) -> None:
        try:
            if isinstance(found, Exception):
                raise broken(found, self._settings)
            replies = self._replies(link, found, commands)
        except DibsError as error:
            land(error)
        except Exception as error:  # noqa: BLE001  # else the callers would wait for their time-out
            land(BackendUnavailable(f"{self._settings.shown}: what came can't be read: {error!r}"))
        else:
            land(replies)

    def _replies(
        self, link: LoopLink, answer: Answer, commands: Sequence[Command]
    ) -> Sequence[Reply]:
        if self._following.astray(commands, answer):
            link.close()
        try:
            return link.dialogue.replies(answer, len(commands))
        except Forbidden:
            link.close()  # the next one looks for the key again
            raise

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        link = await self._links.take()
        request = link.dialogue.scan(prefix, cursor, limit)
        return link.dialogue.page(await self._links.ask(link, request, self._settings.timeout))

    async def examine(self) -> Sequence[Finding]:
        """Who the service is, what this key may do there, and for how long."""
        about = await self._about()
        link = await self._links.take()
        answer = await self._links.ask(link, link.dialogue.limits(), self._settings.timeout)
        return examining.findings(about, link.dialogue.ttls(answer), self._settings)

    async def _about(self) -> About:
        """Ask who is there, which also shows whether the key is good."""
        link = await self._links.take()
        answer = await self._links.ask(link, link.dialogue.about(), self._settings.timeout)
        try:
            about = link.dialogue.who(answer)
        except BaseException:
            link.close()
            raise
        self._promises.learn(about)
        return about

    # -- wakeups ------------------------------------------------------------------------------------

    def deliver_to(self, take: Callable[[Sequence[Wakeup]], None]) -> None:
        """Hand pushes to `take`, in the loop, as soon as they are read; `wakeups` gives none then."""
        self._deliver_to = take

    async def wakeups(self, timeout: float | None) -> Sequence[Wakeup]:
        """What was pushed. Raises whenever pushes may have been missed, also once they come again."""
        if not self.inbox:
            return ()
        try:
            if self._stream is None:
                return await self._try_again(timeout)
            if not (self._bell.rung or self._arrived or self._troubled()):
                await self._bell.wait(timeout)
        except asyncio.CancelledError:
            self._part()  # as by a loop that ends: leave no socket open behind it
            raise
        self._bell.rung = False
        self._raise_trouble()
        found = list(self._arrived)
        self._arrived.clear()
        return found

    def _troubled(self) -> bool:
        stream = self._stream
        return stream is not None and (stream.error is not None or stream.ear.missed)

    def _raise_trouble(self) -> None:
        """Raises why there are no pushes any more, or that some were missed on their way to the service."""
        stream = self._stream
        if stream is not None and stream.error is not None:
            self._end_stream()
            self._spread.put_off()
            raise stream.error
        if stream is not None and stream.ear.missed:
            stream.ear.missed = False
            raise BackendUnavailable(MISSED_SOME)

    async def _try_again(self, timeout: float | None) -> Sequence[Wakeup]:
        """Wait until it is time to try for a stream once more, and do."""
        self._links.part(parting=False)
        left = self._spread.left
        if left and not self._bell.rung:
            await self._bell.wait(left if timeout is None else min(left, timeout))
        if self._bell.rung:
            self._bell.rung = False
        elif not self._spread.left:
            await self._listen()
            if self._stream is not None:
                raise BackendUnavailable(MISSED_SOME)
        return ()

    async def _listen(self) -> None:
        """Let there be a stream, and with it an inbox; without, nothing is pushed, and all else goes on."""
        stream = LoopStream(self._settings, self._hear)
        try:
            await stream.begin()
        except BackendUnavailable as error:
            log.debug("no stream of %s: %s", self._settings.shown, error)
            self._spread.put_off()
            self.inbox = self.inbox or nowhere()
        else:
            self._spread.succeed()
            self._stream = stream
            self.inbox = stream.ear.inbox

    def _hear(self, wakeups: list[Wakeup]) -> None:
        """Pushes; or none, when there will be no more."""
        if self._deliver_to is None:
            self._arrived.extend(wakeups)
        elif wakeups:
            self._deliver_to(wakeups)
        if self._arrived or self._troubled():
            self._bell.wake()

    def _part(self) -> None:
        self._end_stream()
        self._links.part()

    def _end_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.end()

    def nudge(self) -> None:
        self._bell.ring_from_anywhere()

    def after_fork(self) -> None:
        """In the child: nothing of the parent's is of use here."""
        self._links.close_in_child()
        if self._stream is not None:
            self._stream.link.close_in_child()
        self._reset()


class LoopBell:
    """Used in one event loop; any thread may ring it."""

    def __init__(self) -> None:
        self.rung = False
        """Somebody rang since this was last set back."""
        self._waiter: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self) -> None:
        """The running loop is the one."""
        self._loop = asyncio.get_running_loop()

    async def wait(self, timeout: float | None) -> None:
        """Until it wakes us, or the time is over."""
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        alarm = None if timeout is None else loop.call_later(timeout, self.wake)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if alarm is not None:
                alarm.cancel()

    def wake(self) -> None:
        """There is something to see."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def ring(self) -> None:
        """Wake whoever waits, now or next."""
        self.rung = True
        self.wake()

    def ring_from_anywhere(self) -> None:
        """The same, from any thread or signal handler."""
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self.ring)
            except RuntimeError:
                pass  # that loop is closed, and whoever waited in it has gone


MAX_IDLE = 4
"""So many are kept for the next request."""


class LoopLinks:
    """Made when they are needed."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._links: list[LoopLink] = []
        self._parting = False

    def idle(self) -> LoopLink | None:
        """One that can be used at once."""
        for link in self._links:
            if link.idle:
                return link
        return None

    async def take(self) -> LoopLink:
        """One that can be used, until the caller awaits something else. Raises what is in the way."""
        link = self.idle()
        if link is None:
            link = await dial(self._settings)
            self._links = [each for each in self._links if each.usable]
            self._links.append(link)
            link.parting = self._parting or len(self._links) > MAX_IDLE
        return link

    async def ask(self, link: LoopLink, request: bytes, patience: float | None = None) -> Answer:
        """The answer to a request. Raises what went wrong, in our own words."""
        try:
            async with asyncio.timeout(patience):
                return await link.ask(request)
        except Exception as error:
            link.close()
            raise broken(error, self._settings, silent=link.silent) from error
        except BaseException:
            link.close()  # whoever asked has left, and the answer is nobody's
            raise

    def part(self, *, parting: bool = True) -> None:
        """From now on hang up wherever nobody waits for an answer; or not any more.

        A loop that ends leaves no time for more, and a socket left open in it would be complained of.
        """
        self._parting = parting
        for link in self._links:
            link.parting = parting
            if parting:
                link.close_if_idle()

    def close_in_child(self) -> None:
        """Let go of what a fork has copied, without a word to the service."""
        links, self._links = self._links, []
        for link in links:
            link.close_in_child()
