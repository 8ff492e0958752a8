"""`/v1/stream`: pushes for one client's leases and places, as server-sent events."""

from collections.abc import Generator
from contextlib import contextmanager

from starlette.types import ASGIApp

from dibs.server.api.routing import SIGNED_IN, Operation
from dibs.server.call import Call
from dibs.server.endless import ALIVE, Feed, endless, sse
from dibs.server.post import Stream
from dibs.stores.http.wire import Hello, to_wire


async def stream(call: Call) -> ASGIApp:
    """Open a stream."""
    return await endless(call, _opened(call))


@contextmanager
def _opened(call: Call) -> Generator[Feed]:
    post = call.service.post
    own = post.open(call.principal.key_id)
    try:
        beat = call.service.limits.stream_beat
        yield _Pushes(own, Hello(own.address, call.service.server_id, beat=beat))
    finally:
        post.close(own)


class _Pushes:
    """See `Feed`."""

    def __init__(self, own: Stream, hello: Hello) -> None:
        self.news = own.news
        self._own = own
        self._hello = hello

    @property
    def behind(self) -> bool:
        return self._own.behind

    async def begin(self) -> bytes:
        return sse("hello", self._hello)

    async def take(self) -> bytes:
        own = self._own
        parts: list[bytes] = []
        if own.recheck:
            own.recheck = False
            parts.append(sse("recheck", b"{}"))
        parts += [sse("notification", to_wire(each)) for each in own.take()]
        return b"".join(parts)

    def alive(self) -> bytes:
        return ALIVE


ROUTES = (
    Operation(
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
