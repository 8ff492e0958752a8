"""`/v1/stream`: pushes for one client's leases and places, as server-sent events."""

import asyncio
from typing import TYPE_CHECKING

from msgspec.json import encode

from leasehold.backends.http.translation import push_to_wire
from leasehold.backends.http.wire import Hello
from leasehold.server.call import Call, hung_up
from leasehold.server.drain import draining
from leasehold.server.post import Stream
from leasehold.server.routing import SIGNED_IN, Route

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

EVENTS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


async def stream(call: Call) -> "ASGIApp":
    """Open a stream."""
    if call.service.drain.begun:
        raise draining()
    counted = call.service.accounts.one_more(call.principal.key_id, "streams")

    async def run(scope: "Scope", receive: "Receive", send: "Send") -> None:
        with counted:
            await _run(call, send)

    return run


async def _run(call: Call, send: "Send") -> None:
    service, loop = call.service, asyncio.get_running_loop()
    own = service.post.open(call.principal.key_id)
    over: asyncio.Future[bytes] = loop.create_future()

    def end(word: bytes) -> None:
        if not over.done():
            over.set_result(word)
        own.news.set()

    leave = [
        service.drain.watch(lambda: end(b"draining")),
        service.keys.watch(call.principal.key_id, lambda: end(b"key ended")),
    ]
    gone = loop.create_task(hung_up(call))
    gone.add_done_callback(lambda _: end(b""))
    try:
        await send({"type": "http.response.start", "status": 200, "headers": EVENTS})
        beat = service.limits.stream_beat
        hello = Hello(own.address, service.server_id, beat=beat)
        await _send(send, b"event: hello\ndata: " + encode(hello) + b"\n\n")
        while not over.done() and not own.behind:
            await _send(send, await _news(own, beat))
        word = over.result() if over.done() else b"behind"
        if word and not own.behind:
            await _send(send, b"event: bye\ndata: " + word + b"\n\n")
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    finally:
        gone.cancel()
        for forget in leave:
            forget()
        service.post.close(own)


async def _news(own: Stream, beat: float) -> bytes:
    """What has come, or a sign of life."""
    try:
        async with asyncio.timeout(beat):
            await own.news.wait()
    except TimeoutError:
        return b": still here\n\n"
    parts = []
    if own.recheck:
        own.recheck = False
        parts.append(b"event: recheck\ndata: {}\n\n")
    parts += [
        b"event: wakeup\ndata: " + encode(push_to_wire(each)) + b"\n\n" for each in own.take()
    ]
    return b"".join(parts)


async def _send(send: "Send", body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


ROUTES = (
    Route(
        method="GET",
        path="/v1/stream",
        needs=SIGNED_IN,
        handler=stream,
        summary="Pushes for the leases and places whose commands name this stream",
        answers={200: str},
        problems=(429, 503),
        media="text/event-stream",
    ),
)
