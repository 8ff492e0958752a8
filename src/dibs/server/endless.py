"""Answers without an end: server-sent events.

They go on until the caller goes, its key or session ends, or the server stops.
"""

import asyncio
from contextlib import AbstractContextManager, suppress
from typing import Any, Protocol

from msgspec.json import encode
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dibs.errors import DibsError
from dibs.server.api.problems import ApiProblem
from dibs.server.call import Call
from dibs.server.drain import End, draining, ends_of
from dibs.server.lock_events import LockEvent, event_json

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
    "gone": b"",
}
"""What is said last; nothing to whom has hung up."""


class Feed(Protocol):
    """Where the events of one answer come from."""

    news: asyncio.Event
    """There is something to be sent."""

    @property
    def behind(self) -> bool:
        """More has happened than the caller reads; it is to be cut off."""

    async def begin(self) -> bytes:
        """What is sent first."""

    async def take(self) -> bytes:
        """All that is new, which may be nothing."""

    def alive(self) -> bytes:
        """What is sent where nothing was new for a while."""


def sse(event: str, data: Any, number: str = "") -> bytes:
    """An event; without a name it is a plain message."""
    head = f"id: {number}\n" if number else ""
    head += f"event: {event}\n" if event else ""
    return b"%bdata: %b\n\n" % (head.encode(), data if type(data) is bytes else encode(data))


def sse_of(event: LockEvent, number: str = "") -> bytes:
    """Something that has happened; it is encoded once for all who are told of it."""
    if not event.json:
        event.json = encode(event_json(event))
    return sse("", event.json, number)


async def endless(
    call: Call, feed: AbstractContextManager[Feed], counted_as: str = "streams"
) -> ASGIApp:
    """An answer of what a feed gives, which is left with the answer. Raises `ApiProblem`: 429, 503."""
    if call.service.drain.begun:
        raise draining()
    counted = call.service.quotas.one_more(call.principal.key_id, counted_as)

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(call.service.limits.stall_time):
                await send(message)

        with counted, feed as own, suppress(TimeoutError):
            await _run(call, own, send_in_time)

    return run


async def _run(call: Call, own: Feed, send: Send) -> None:
    words: list[bytes] = []  # why it is over: the first is told

    def end(why: End) -> None:
        words.append(_BYE[why])
        own.news.set()

    with ends_of(call, end):
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        try:
            await _go_on(call, own, send, words)
        except (DibsError, ApiProblem):  # the head of the answer is sent: no other can be told
            words.append(b"unavailable")
        word = b"behind" if own.behind else words[0]
        if word:
            await _send(send, sse("bye", word))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _go_on(call: Call, own: Feed, send: Send, words: list[bytes]) -> None:
    """Send what there is until there are words, or more than the caller reads."""
    news = await own.begin()
    while not words and not own.behind:  # asked right before each is sent
        await _send(send, news)
        await asyncio.sleep(0)  # others have their turn, however much is to be sent
        news = await _news(own, call.service.limits.stream_beat)


async def _news(own: Feed, beat: float) -> bytes:
    """What has come, or a sign of life."""
    try:
        async with asyncio.timeout(beat):
            await own.news.wait()
    except TimeoutError:
        return own.alive()
    own.news.clear()
    return await own.take()


async def _send(send: Send, body: bytes) -> None:
    if body:
        await send({"type": "http.response.body", "body": body, "more_body": True})
