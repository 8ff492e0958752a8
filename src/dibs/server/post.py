"""Pushes on their way to clients: which of the streams that are open here each one goes to.

The store pushes to this server's own inbox. A client whose commands name its stream gets what is for
its leases and places there. Everything here is a hint: a client whose stream is at another server asks
again in time, as if pushes had been lost.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Iterable

from dibs.model import Notification
from dibs.runtime.notifications import ForwardingReceiver, Receiver


class Stream:
    """What is on its way to one client."""

    __slots__ = ("_most", "address", "behind", "key_id", "leases", "news", "recheck", "waiting")

    def __init__(self, address: str, key_id: str, most: int) -> None:
        self.address = address
        """The inbox that the client's commands name."""
        self.key_id = key_id
        self.news = asyncio.Event()
        """There is something to be sent."""
        self.waiting: deque[Notification] = deque()
        self.recheck = False
        """Pushes may have been lost: the client should ask again for all that waits."""
        self.behind = False
        """More has come than the client reads; it is to be cut off."""
        self.leases: dict[str, None] = {}
        """The fingerprints whose pushes go here, oldest first."""
        self._most = most

    def put(self, notification: Notification) -> None:
        """One more push."""
        if len(self.waiting) >= self._most:
            self.behind = True
        else:
            self.waiting.append(notification)
        self.news.set()

    def take(self) -> list[Notification]:
        """All that has come."""
        self.news.clear()
        found = list(self.waiting)
        self.waiting.clear()
        return found


class Post:
    """All streams of one server."""

    def __init__(self, server_id: str, *, backlog: int, leases: int) -> None:
        self._server_id = server_id
        self._backlog = backlog
        self._most_leases = leases
        self._streams: dict[str, Stream] = {}
        self._to: dict[str, Stream] = {}

    def open(self, key_id: str) -> Stream:
        """A stream for one client."""
        address = f"{self._server_id}.{secrets.token_urlsafe(12)}"
        stream = self._streams[address] = Stream(address, key_id, self._backlog)
        return stream

    def close(self, stream: Stream) -> None:
        """The client has gone."""
        self._streams.pop(stream.address, None)
        for lease in stream.leases:
            if self._to.get(lease) is stream:
                del self._to[lease]

    def of(self, inbox: str, key_id: str) -> Stream | None:
        """The stream that a command names, if it is here and of the same key."""
        stream = self._streams.get(inbox)
        return stream if stream is not None and stream.key_id == key_id else None

    def expect(self, lease: str, stream: Stream) -> None:
        """Pushes for that fingerprint go there."""
        before = self._to.get(lease)
        if before is not stream:
            if before is not None:
                before.leases.pop(lease, None)
            self._to[lease] = stream
            stream.leases[lease] = None
            if len(stream.leases) > self._most_leases:
                self.forget(next(iter(stream.leases)))

    def forget(self, lease: str) -> None:
        """It has ended."""
        stream = self._to.pop(lease, None)
        if stream is not None:
            stream.leases.pop(lease, None)

    def deliver(self, notification: Notification) -> bool:
        """Put a push into its stream; tell whether it has one."""
        stream = self._to.get(notification.lease)
        if stream is None:
            return False
        stream.put(notification)
        return True

    def recheck(self) -> None:
        """Pushes may have been lost on their way here."""
        for stream in self._streams.values():
            stream.recheck = True
            stream.news.set()

    @property
    def streams(self) -> Iterable[Stream]:
        """All that are open."""
        return self._streams.values()


class TappedMail(ForwardingReceiver):
    """A runtime's mail, of which what is for a stream goes there. Takes the place of its receiver."""

    def __init__(self, receiver: Receiver, post: Post) -> None:
        super().__init__(receiver)
        self._post = post

    def deliver(self, notification: Notification) -> None:
        if not self._post.deliver(notification):
            super().deliver(notification)

    def recheck(self) -> None:
        super().recheck()
        self._post.recheck()
