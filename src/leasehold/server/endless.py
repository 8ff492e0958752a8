"""Answers without an end: server-sent events.

They go on until the caller goes, its key or session ends, or the server stops.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.json import encode

from leasehold.errors import LeaseholdError
from leasehold.server.call import Call, hung_up
from leasehold.server.drain import draining
from leasehold.server.observatory.events import Event, shape
from leasehold.server.problems import Problem

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]

ALIVE = b": still here\n\n"


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


def sse_of(event: Event, number: str = "") -> bytes:
    """Something that has happened; it is encoded once for all who are told of it."""
    if not event.json:
        event.json = encode(shape(event))
    return sse("", event.json, number)


async def endless(
    call: Call, feed: AbstractContextManager[Feed], counted_as: str = "streams"
) -> "ASGIApp":
    """An answer of what a feed gives, which is left with the answer. Raises `Problem`: 429, 503."""
    if call.service.drain.begun:
        raise draining()
    counted = call.service.accounts.one_more(call.principal.key_id, counted_as)

    async def run(scope: "Scope", receive: "Receive", send: "Send") -> None:
        with counted, feed as own:
            await _run(call, own, send)

    return run


async def _run(call: Call, own: Feed, send: "Send") -> None:
    service, loop = call.service, asyncio.get_running_loop()
    over: asyncio.Future[bytes] = loop.create_future()

    def end(word: bytes) -> None:
        if not over.done():
            over.set_result(word)
        own.news.set()

    leave: list[Callable[[], None]] = [
        service.drain.watch(lambda: end(b"draining")),
        service.keys.watch(call.principal.key_id, lambda: end(b"key ended")),
    ]
    if call.session is not None:
        leave.append(service.sessions.watch(call.session, lambda: end(b"session ended")))
    gone = loop.create_task(hung_up(call))
    gone.add_done_callback(lambda _: end(b""))
    try:
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        try:
            news = await own.begin()
            while not over.done() and not own.behind:  # asked right before each is sent
                await _send(send, news)
                await asyncio.sleep(0)  # others have their turn, however much is to be sent
                news = await _news(own, service.limits.stream_beat)
        except (LeaseholdError, Problem):  # the head of the answer is sent: no other can be told
            end(b"unavailable")
        word = b"behind" if own.behind else over.result()
        if word:
            await _send(send, sse("bye", word))
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    finally:
        gone.cancel()
        for forget in leave:
            forget()


async def _news(own: Feed, beat: float) -> bytes:
    """What has come, or a sign of life."""
    try:
        async with asyncio.timeout(beat):
            await own.news.wait()
    except TimeoutError:
        return own.alive()
    own.news.clear()
    return await own.take()


async def _send(send: "Send", body: bytes) -> None:
    if body:
        await send({"type": "http.response.body", "body": body, "more_body": True})
