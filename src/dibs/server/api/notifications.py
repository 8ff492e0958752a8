"""`/v1/stream`: notifications for one client's leases and queue positions, as server-sent events.

The store sends notifications to this server's own inbox. A client whose commands name its stream gets those
for its leases there. They are hints: a client whose stream is at another server asks again in time, as if
notifications had been lost.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.types import ASGIApp

from dibs.model import Notification
from dibs.runtime.notifications import ForwardingReceiver, Receiver
from dibs.server.api.routing import SIGNED_IN, Caller, route
from dibs.server.api.schemas import NoData
from dibs.server.api.sse import ALIVE, EventStreams, sse
from dibs.server.limits import Limits
from dibs.stores.http import wire
from dibs.stores.http.wire import Hello, to_wire


class ClientStream:
    """Notifications for one client that are not sent yet; see `Feed`."""

    def __init__(self, address: str, key_id: str, most: int, hello: Hello) -> None:
        self.address: str = address
        """The inbox that the client's commands name."""
        self.key_id: str = key_id
        self.news: asyncio.Event = asyncio.Event()
        self.behind: bool = False
        self.recheck: bool = False
        """Notifications may have been lost: the client should ask again for all that waits."""
        self.leases: dict[str, None] = {}
        """The fingerprints of the leases whose notifications go here, oldest first."""
        self._waiting: deque[Notification] = deque()
        self._most = most
        self._hello = hello

    def put(self, notification: Notification) -> None:
        """Append a notification. More than the client reads put it `behind`."""
        if len(self._waiting) >= self._most:
            self.behind = True
        else:
            self._waiting.append(notification)
        self.news.set()

    async def begin(self) -> bytes:
        """Return the event with its address."""
        return sse("hello", self._hello)

    async def take(self) -> bytes:
        """Return all notifications as events."""
        parts: list[bytes] = []
        if self.recheck:
            self.recheck = False
            parts.append(sse("recheck", b"{}"))
        parts += [sse("notification", to_wire(each)) for each in self._waiting]
        self._waiting.clear()
        return b"".join(parts)

    def alive(self) -> bytes:
        """Return a comment."""
        return ALIVE


class NotificationStreams:
    """All streams of one server, and which of them gets the notifications of a lease."""

    def __init__(self, server_id: str, limits: Limits) -> None:
        self._server_id = server_id
        self._backlog = limits.stream_backlog
        self._beat = limits.stream_beat
        self._most_leases = limits.leases_per_key + limits.waiters_per_key
        self._streams: dict[str, ClientStream] = {}
        self._of_leases: dict[str, ClientStream] = {}

    @contextmanager
    def opened(self, key_id: str) -> Generator[ClientStream]:
        """A stream for one client, until the block ends."""
        address = f"{self._server_id}.{secrets.token_urlsafe(12)}"
        hello = Hello(address, self._server_id, beat=self._beat)
        stream = ClientStream(address, key_id, self._backlog, hello)
        self._streams[address] = stream
        try:
            yield stream
        finally:
            del self._streams[address]
            for lease in stream.leases:
                if self._of_leases.get(lease) is stream:
                    del self._of_leases[lease]

    def of(self, inbox: str, key_id: str) -> ClientStream | None:
        """The stream that a command names, if it is here and belongs to the same API key."""
        stream = self._streams.get(inbox)
        return stream if stream is not None and stream.key_id == key_id else None

    def expect(self, lease: str, stream: ClientStream) -> None:
        """Send the notifications of a lease to this stream; `lease` is its fingerprint."""
        before = self._of_leases.get(lease)
        if before is not stream:
            if before is not None:
                before.leases.pop(lease, None)
            self._of_leases[lease] = stream
            stream.leases[lease] = None
            if len(stream.leases) > self._most_leases:
                self.forget(next(iter(stream.leases)))

    def forget(self, lease: str) -> None:
        """Send no more notifications of a lease, which has ended."""
        stream = self._of_leases.pop(lease, None)
        if stream is not None:
            stream.leases.pop(lease, None)

    def deliver(self, notification: Notification) -> bool:
        """Put a notification into its stream. Returns whether it has one."""
        stream = self._of_leases.get(notification.lease)
        if stream is None:
            return False
        stream.put(notification)
        return True

    def recheck(self) -> None:
        """Have all clients ask again: notifications may have been lost on their way here."""
        for stream in self._streams.values():
            stream.recheck = True
            stream.news.set()

    @property
    def streams(self) -> Iterable[ClientStream]:
        """All open streams."""
        return self._streams.values()


class StreamReceiver(ForwardingReceiver):
    """Puts notifications into the streams of clients. Takes the place of a runtime's receiver."""

    def __init__(self, receiver: Receiver, streams: NotificationStreams) -> None:
        super().__init__(receiver)
        self._streams = streams

    def deliver(self, notification: Notification) -> None:
        if not self._streams.deliver(notification):
            super().deliver(notification)

    def recheck(self) -> None:
        super().recheck()
        self._streams.recheck()


@dataclass(eq=False)
class NotificationRoutes:
    """Opens streams."""

    _answers: EventStreams
    _streams: NotificationStreams

    @route(
        "GET",
        "/v1/stream",
        SIGNED_IN,
        answers={200: str},
        problems=(429, 503),
        media="text/event-stream",
        events={
            "hello": Hello,
            "notification": wire.Notification,
            "recheck": NoData,
            "bye": str,
        },
    )
    async def stream(self, caller: Caller) -> ASGIApp:
        """Notifications for the leases and queue positions whose commands name this stream.

        Send the `inbox` of `hello` with the commands of `/v1/batch`. After `recheck`, send the commands of
        all waiters again: notifications may have been lost. `bye` announces the end of the stream.
        """
        return self._answers.answer(caller, self._streams.opened(caller.principal.key_id))
