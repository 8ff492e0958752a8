"""An event loop's way to the service."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from dibs.errors import BackendUnavailable, DibsError, Forbidden
from dibs.model import Command, Finding, Notification, Page, Reply
from dibs.process import on_fork
from dibs.stores.aio import LoopEnd, submit_in_task
from dibs.stores.http.errors import broken
from dibs.stores.http.loop_link import LoopLink, LoopStream, dial
from dibs.stores.http.reading import Answer
from dibs.stores.http.requests import findings
from dibs.stores.http.stream import MISSED_SOME, ReconnectDelay, ServerAffinity, nowhere
from dibs.stores.http.url import LARGEST, Settings
from dibs.stores.http.wire import About
from dibs.stores.port import Deliver, Done, GiveUp

log = logging.getLogger("dibs")


class AsyncHttpConnection:
    """See `AsyncConnection`: one connection for each request under way, and one for notifications."""

    parallel = 2

    def __init__(self, settings: Settings, learn: Callable[[About], None]) -> None:
        self._settings = settings
        self._learn = learn
        self._reset()
        on_fork(self)

    def _reset(self) -> None:
        self.inbox = ""
        self._links = LoopLinks(self._settings)
        self._stream: LoopStream | None = None
        self._loop_end: LoopEnd | None = None
        self._deliver: Deliver = _to_nobody
        self._reconnect = ReconnectDelay()
        self._affinity = ServerAffinity()

    async def open(self) -> None:
        self._links.part(parting=False)
        if self._loop_end is None:
            self._loop_end = LoopEnd(self._part)
        await self._about()

    async def close(self) -> None:
        if self._loop_end is not None:
            self._loop_end.forget()
            self._loop_end = None
        self.inbox = ""
        self._part()

    # -- requests -----------------------------------------------------------------------------------

    def submit(self, commands: Sequence[Command], done: Done) -> GiveUp:
        link = self._links.idle()
        if link is None:
            return submit_in_task(self._apply(commands), done)
        request = link.requests.batch(commands)
        if len(request) > LARGEST and len(commands) > 1:
            return submit_in_task(self._apply(commands), done)
        link.launch(request, partial(self._landed, link, commands, done))
        return link.close

    async def _apply(self, commands: Sequence[Command]) -> Sequence[Reply]:
        """Apply a batch over a new connection, or in parts that are not too large."""
        if not commands:
            return ()
        link = await self._links.take()
        request = link.requests.batch(commands)
        if len(request) > LARGEST and len(commands) > 1:
            middle = len(commands) // 2
            return [*await self._apply(commands[:middle]), *await self._apply(commands[middle:])]
        return self._replies(link, await self._links.ask(link, request), commands)

    def _landed(
        self, link: LoopLink, commands: Sequence[Command], done: Done, found: Answer | Exception
    ) -> None:
        try:
            if isinstance(found, Exception):
                raise broken(found, self._settings)
            replies = self._replies(link, found, commands)
        except DibsError as error:
            done(error)
        except Exception as error:  # noqa: BLE001  # else the callers would wait for their time-out
            done(BackendUnavailable(f"{self._settings.shown}: what came can't be read: {error!r}"))
        else:
            done(replies)

    def _replies(
        self, link: LoopLink, answer: Answer, commands: Sequence[Command]
    ) -> Sequence[Reply]:
        if self._affinity.is_elsewhere(commands, answer):
            link.close()
        try:
            return link.requests.replies(answer, len(commands))
        except Forbidden:
            link.close()  # the next one looks for the key again
            raise

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        link = await self._links.take()
        request = link.requests.scan(prefix, cursor, limit)
        return link.requests.page(await self._links.ask(link, request, self._settings.timeout))

    async def examine(self) -> Sequence[Finding]:
        """Who the service is, what this key may do there, and for how long."""
        about = await self._about()
        link = await self._links.take()
        answer = await self._links.ask(link, link.requests.limits(), self._settings.timeout)
        return findings(about, link.requests.ttls(answer), self._settings)

    async def _about(self) -> About:
        """Ask who is there, which also shows whether the key is good."""
        link = await self._links.take()
        answer = await self._links.ask(link, link.requests.about(), self._settings.timeout)
        try:
            about = link.requests.who(answer)
        except BaseException:
            link.close()
            raise
        self._learn(about)
        return about

    # -- notifications ------------------------------------------------------------------------------

    async def subscribe(self, deliver: Deliver) -> None:
        """See `AsyncConnection`. Without a stream nothing is pushed, and all else goes on."""
        self._deliver = deliver
        if self._stream is not None and self._stream.error is None:
            return
        if self._stream is not None:
            self._end_stream()
            self._reconnect.failed()
        self._links.part(parting=False)
        await asyncio.sleep(self._reconnect.left)
        stream = LoopStream(self._settings, self._hear)
        try:
            await stream.begin()
        except BackendUnavailable as error:
            log.debug("no stream of %s: %s", self._settings.shown, error)
            self._reconnect.failed()
            self.inbox = self.inbox or nowhere()
            deliver(error)
        else:
            self._reconnect.succeeded()
            self._stream = stream
            self.inbox = stream.reader.inbox

    def _hear(self, notifications: list[Notification]) -> None:
        """Notifications; or none, when there will be no more or some were missed."""
        if notifications:
            self._deliver(notifications)
        stream = self._stream
        if stream is not None and stream.error is not None:
            self._deliver(stream.error)
        elif stream is not None and stream.reader.missed:
            stream.reader.missed = False
            self._deliver(BackendUnavailable(MISSED_SOME))

    def _part(self) -> None:
        """The loop ends, or we do: leave no socket open behind it."""
        self._end_stream()
        self._links.part()

    def _end_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.end()

    def after_fork(self) -> None:
        """In the child: nothing of the parent's is of use here."""
        self._links.close_in_child()
        if self._stream is not None:
            self._stream.link.close_in_child()
        self._reset()


def _to_nobody(_: object) -> None:
    """Nobody has subscribed."""


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

    async def ask(self, link: LoopLink, request: bytes, timeout: float | None = None) -> Answer:
        """The answer to a request. Raises what went wrong, in our own words."""
        try:
            async with asyncio.timeout(timeout):
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
