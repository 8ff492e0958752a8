"""Answers of server-sent events, until the caller, its key, session or token, or the server ends."""

import asyncio
from contextlib import AbstractContextManager, suppress
from typing import Any, Protocol

from msgspec.json import encode
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dibs.errors import DibsError
from dibs.server.api.problems import ApiProblem
from dibs.server.api.routing import Caller
from dibs.server.limits import Limits
from dibs.server.quotas import Quotas
from dibs.server.shutdown import End, Endings

HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]

ALIVE = b": still here\n\n"

_BYE: dict[End, bytes] = {
    "draining": b"draining",
    "key": b"key ended",
    "session": b"session ended",
    "token": b"token expired",
    "gone": b"",
}
"""The data of the last event; empty for none."""


class Feed(Protocol):
    """The events of one answer."""

    news: asyncio.Event
    """Set when there may be something to send."""

    @property
    def behind(self) -> bool:
        """Whether the caller reads more slowly than events come, so that its answer must end."""

    async def begin(self) -> bytes:
        """Return the first events."""

    async def take(self) -> bytes:
        """Return all new events, which can be none."""

    def alive(self) -> bytes:
        """Return a comment for a time without events."""


def sse(event: str, data: Any, number: str = "") -> bytes:
    """Encode an event; without a name it is a plain message."""
    head = f"id: {number}\n" if number else ""
    head += f"event: {event}\n" if event else ""
    return b"%bdata: %b\n\n" % (head.encode(), data if type(data) is bytes else encode(data))


class EventStreams:
    """Makes answers of feeds."""

    def __init__(self, endings: Endings, quotas: Quotas, limits: Limits) -> None:
        self._endings = endings
        self._quotas = quotas
        self._stall_time = limits.stall_time
        self._beat = limits.stream_beat

    def answer(
        self, caller: Caller, feed: AbstractContextManager[Feed], counted_as: str = "streams"
    ) -> ASGIApp:
        """An answer with the events of a feed, which is closed with it. Raises `ApiProblem`: 429, 503.

        A caller who takes nothing for `stall_time` is disconnected.
        """
        self._endings.shutdown.check()
        counted = self._quotas.one_more(caller.principal.key_id, counted_as)

        async def run(scope: Scope, receive: Receive, send: Send) -> None:
            async def send_in_time(message: Message) -> None:
                async with asyncio.timeout(self._stall_time):
                    await send(message)

            with counted, feed as opened, suppress(TimeoutError):
                await self._run(caller, opened, send_in_time)

        return run

    async def _run(self, caller: Caller, feed: Feed, send: Send) -> None:
        reasons: list[bytes] = []
        """Why it ends; the first one is sent."""

        def end(why: End) -> None:
            reasons.append(_BYE[why])
            feed.news.set()

        with self._endings.watching(caller, end), self._endings.watching_token(caller, end):
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            try:
                await self._send_all(feed, send, reasons)
            except (DibsError, ApiProblem):  # the status is sent already
                reasons.append(b"unavailable")
            reason = b"behind" if feed.behind else reasons[0]
            if reason:
                await _send(send, sse("bye", reason))
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_all(self, feed: Feed, send: Send, reasons: list[bytes]) -> None:
        """Send events until there is a reason to end, or the caller is behind."""
        loop = asyncio.get_running_loop()
        alive_at = loop.time() + self._beat
        events = await feed.begin()
        while not reasons and not feed.behind:  # checked right before each is sent
            if events:
                await _send(send, events)
                alive_at = loop.time() + self._beat
            await asyncio.sleep(0)  # other requests run in between, however much there is to send
            events = await _next(feed, alive_at)


async def _next(feed: Feed, alive_at: float) -> bytes:
    """Wait for news, or until a sign of life is due."""
    try:
        async with asyncio.timeout_at(alive_at):
            await feed.news.wait()
    except TimeoutError:
        return feed.alive()
    feed.news.clear()
    return await feed.take()


async def _send(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})
