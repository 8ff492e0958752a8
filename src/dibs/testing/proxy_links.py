"""The connections of a `FaultProxy`: two ends, a stream of bytes each way, and what befalls them.

Everything here runs in the proxy's own event loop.
"""

import asyncio
import math
import socket
import struct
import threading
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

type Direction = Literal["to_server", "to_client"]


@dataclass(eq=False, slots=True)
class ResetOrder:
    """An order to reset the first `times` connections that carry `count` bytes in a direction."""

    count: int
    direction: Direction
    times: int


@dataclass(slots=True)
class ProxyRules:
    """The faults in force."""

    swallow: set[Direction] = field(default_factory=set[Direction])
    delays: dict[Direction, tuple[float, float]] = field(
        default_factory=dict[Direction, tuple[float, float]]
    )
    rate: float = math.inf
    reset: ResetOrder | None = None

    def clear(self) -> None:
        """No faults any more."""
        self.swallow.clear()
        self.delays.clear()
        self.rate = math.inf
        self.reset = None


@dataclass(slots=True)
class ProxyCounts:
    """What went through; `changed` is notified of every change."""

    accepted: int = 0
    resets: int = 0
    passed: Counter[Direction] = field(default_factory=Counter[Direction])
    swallowed: Counter[Direction] = field(default_factory=Counter[Direction])
    changed: threading.Condition = field(default_factory=threading.Condition)


RESET = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 seconds: closing sends an RST
MANY = 1 << 18  # bytes under way in a stream, from which its source has to wait
TICK = 0.02  # seconds of traffic in a piece that is throttled


class ProxyLink:
    """One connection through the proxy, from its acceptance until both ends are closed."""

    def __init__(
        self,
        rules: ProxyRules,
        counts: ProxyCounts,
        links: "set[ProxyLink]",
        upstream: tuple[str, int],
    ) -> None:
        self.rules = rules
        self.counts = counts
        self.lost_bytes = False
        self.closed = False
        self._links = links
        self._upstream = upstream
        self._connecting: asyncio.Task[None] | None = None
        self._ended = 0
        self.client, self.server = ProxyEnd(self), ProxyEnd(self)
        self.client.received = ProxyStream(self, "to_server", self.client, self.server)
        self.server.received = ProxyStream(self, "to_client", self.server, self.client)

    def joined(self, end: "ProxyEnd") -> None:
        """An end is connected; after the client's it goes on to the server's, if anything may."""
        if end is self.client:
            self._links.add(self)
            with self.counts.changed:
                self.counts.accepted += 1
                self.counts.changed.notify_all()
            if "to_server" in self.rules.swallow:
                self.lost_bytes = True
            else:
                self._connecting = asyncio.ensure_future(self._connect())
        self.balance()

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: self.server, *self._upstream)
        except OSError:
            self.close(reset=True)

    def close(self, *, reset: bool = False) -> None:
        """Close both ends now, whatever is still under way."""
        if self.closed:
            return
        self.closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        for end in (self.client, self.server):
            end.close(reset=reset)

    def stream_ended(self) -> None:
        """Once both directions have, the connection has ended as it should."""
        self._ended += 1
        if self._ended == 2:
            for end in (self.client, self.server):
                end.finish()

    def end_lost(self, error: Exception | None) -> None:
        """Unless that is how it was to end, the other end is of no use now."""
        if self._ended < 2:
            self.close(reset=error is not None)
        with self.counts.changed:
            if self.client.transport is None and self.server.transport is None:
                self._links.discard(self)
            self.counts.changed.notify_all()

    def balance(self) -> None:
        """See again whether either end has to wait."""
        for end in (self.client, self.server):
            end.received.balance()

    def heal(self) -> None:
        """Pass on what is late, and close if what comes next would not fit what came before."""
        if self.lost_bytes:
            self.close()
        for end in (self.client, self.server):
            end.received.hurry()


class ProxyEnd(asyncio.Protocol):
    """One of a connection's two sockets; `received` is the stream of the bytes read from it."""

    received: "ProxyStream"

    def __init__(self, link: ProxyLink) -> None:
        self.transport: asyncio.Transport | None = None
        self.full = False  # it does not take what is written fast enough
        self.ended = False  # it will send no more
        self._link = link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._link.joined(self)

    def data_received(self, data: bytes) -> None:
        self.received.arrived(data)

    def eof_received(self) -> bool:
        self.ended = True
        self.received.arrived(b"")
        return True  # the other direction goes on

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._link.end_lost(exc)

    def pause_writing(self) -> None:
        self.full = True
        self._link.balance()

    def resume_writing(self) -> None:
        self.full = False
        self._link.balance()

    def finish(self) -> None:
        """Close it when all that was written is sent."""
        if self.transport is not None:
            self.transport.close()

    def close(self, *, reset: bool) -> None:
        """Close it now."""
        if self.transport is not None:
            if reset:
                raw = self.transport.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self.transport.abort()


class ProxyStream:
    """The bytes of a connection that go in one direction; an empty piece is its end."""

    def __init__(
        self, link: ProxyLink, direction: Direction, source: ProxyEnd, target: ProxyEnd
    ) -> None:
        self._link = link
        self._direction: Direction = direction
        self._source, self._target = source, target
        self._late: deque[tuple[float, bytes]] = deque()  # when to pass on, and what
        self._size = 0
        self._free_at = 0.0  # when what was sent before is through
        self._pieces = 0
        self._timer: asyncio.TimerHandle | None = None
        self._order: ResetOrder | None = None
        self._left = 0  # bytes until that order is carried out

    def arrived(self, data: bytes) -> None:
        """Pass it on, when its time has come."""
        if self._swallows(data):
            return
        rate = self._link.rules.rate
        size = len(data) if rate == math.inf else max(1, int(rate * TICK))
        late = self._delay()
        now = asyncio.get_running_loop().time()
        for start in range(0, len(data) or 1, size or 1):
            piece = data[start : start + size]
            self._free_at = max(self._free_at, now + late) + len(piece) / rate
            self._late.append((self._free_at, piece))
            self._size += len(piece)
        self._pass_on()

    def hurry(self) -> None:
        """Pass on now what is late."""
        self._free_at = 0.0
        self._late = deque((0.0, piece) for _, piece in self._late)
        self._pass_on()

    def balance(self) -> None:
        """Let the source wait while too much is under way, or there is nowhere to put it."""
        source = self._source.transport
        if source is None or source.is_closing() or self._source.ended:
            return
        stuck = self._target.transport is None or self._target.full or self._size > MANY
        if stuck and self._direction not in self._link.rules.swallow:
            source.pause_reading()
        else:
            source.resume_reading()

    def _delay(self) -> float:
        seconds, jitter = self._link.rules.delays.get(self._direction, (0.0, 0.0))
        self._pieces += 1
        return seconds + (0.0 if self._pieces % 2 else jitter)

    def _pass_on(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop = asyncio.get_running_loop()
        while self._late and not self._link.closed:
            due, piece = self._late[0]
            if due > loop.time():
                self._timer = loop.call_at(due, self._pass_on)
                break
            self._late.popleft()
            self._size -= len(piece)
            if not self._swallows(piece):
                self._write(piece)
        self.balance()

    def _swallows(self, data: bytes) -> bool:
        if self._direction not in self._link.rules.swallow:
            return False
        self._link.lost_bytes = True
        self._count(self._link.counts.swallowed, len(data))
        return True

    def _write(self, piece: bytes) -> None:
        target = self._target.transport
        if target is None or target.is_closing():
            return
        if not piece:
            with suppress(OSError):  # that side has gone already
                target.write_eof()
            self._link.stream_ended()
            return
        resets = self._resets_within(len(piece))
        piece = piece[: self._left] if resets else piece
        target.write(piece)
        if resets:
            self._link.close(reset=True)
        self._count(self._link.counts.passed, len(piece), resets=resets)

    def _resets_within(self, count: int) -> bool:
        """Count these bytes for an order to reset, and tell whether it is to be carried out."""
        order = self._link.rules.reset
        if order is None or order.direction != self._direction or not order.times:
            return False
        if order is not self._order:
            self._order, self._left = order, order.count
        if count < self._left:
            self._left -= count
            return False
        order.times -= 1
        return True

    def _count(self, counter: Counter[Direction], count: int, *, resets: bool = False) -> None:
        counts = self._link.counts
        with counts.changed:
            counter[self._direction] += count
            counts.resets += resets
            counts.changed.notify_all()
