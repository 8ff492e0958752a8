"""The connections of a `FaultProxy`: two ends, bytes on their way between them, and what happens to these.

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


@dataclass(eq=False, slots=True)
class ProxyState:
    """The faults in force, the open connections, and counters of what went through."""

    upstream: tuple[str, int]
    swallow: set[Direction] = field(default_factory=set[Direction])
    delays: dict[Direction, tuple[float, float]] = field(
        default_factory=dict[Direction, tuple[float, float]]
    )
    rate: float = math.inf
    reset: ResetOrder | None = None
    links: "set[ProxyLink]" = field(
        default_factory=lambda: set[ProxyLink]()  # noqa: PLW0108 - the class comes later
    )
    accepted: int = 0
    resets: int = 0
    passed: Counter[Direction] = field(default_factory=Counter[Direction])
    swallowed: Counter[Direction] = field(default_factory=Counter[Direction])
    changed: threading.Condition = field(default_factory=threading.Condition)
    """Notified of every change of a counter."""

    def clear_faults(self) -> None:
        """End all faults."""
        self.swallow.clear()
        self.delays.clear()
        self.rate = math.inf
        self.reset = None


RESET = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 seconds: closing sends an RST
MANY = 1 << 18  # bytes under way in a direction, from which their source has to wait
TICK = 0.02  # seconds of traffic in a piece that is throttled


class ProxyLink:
    """A connection through the proxy, from its acceptance until both ends are closed."""

    def __init__(self, state: ProxyState) -> None:
        self.state: ProxyState = state
        self.lost_bytes: bool = False
        self.closed: bool = False
        self.client: ProxyEnd = ProxyEnd(self, "to_server")
        self.server: ProxyEnd = ProxyEnd(self, "to_client")
        self.client.peer, self.server.peer = self.server, self.client
        self._connecting: asyncio.Task[None] | None = None
        self._ended = 0

    def joined(self, end: "ProxyEnd") -> None:
        """An end is connected. After the client's, connect to the server unless that is to hang."""
        state = self.state
        if end is self.client:
            state.links.add(self)
            with state.changed:
                state.accepted += 1
                state.changed.notify_all()
            if "to_server" in state.swallow:
                self.lost_bytes = True
            else:
                self._connecting = asyncio.ensure_future(self._connect())
        self.balance()

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: self.server, *self.state.upstream)
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

    def direction_ended(self) -> None:
        """Close both ends once both directions have ended."""
        self._ended += 1
        if self._ended == 2:
            for end in (self.client, self.server):
                if end.transport is not None:
                    end.transport.close()  # when all that was written is sent

    def end_lost(self, error: Exception | None) -> None:
        """Close the other end, too, unless both directions have ended."""
        if self._ended < 2:
            self.close(reset=error is not None)
        with self.state.changed:
            if self.client.transport is None and self.server.transport is None:
                self.state.links.discard(self)
            self.state.changed.notify_all()

    def balance(self) -> None:
        """See again whether either end has to wait."""
        self.client.balance()
        self.server.balance()

    def heal(self) -> None:
        """Pass on what is late, and close if what comes next would not fit what came before."""
        if self.lost_bytes:
            self.close()
        self.client.hurry()
        self.server.hurry()


class ProxyEnd(asyncio.Protocol):
    """A socket at an end of a connection, and the bytes read from it, which go to its peer.

    An empty piece is the end of that direction.
    """

    peer: "ProxyEnd"

    def __init__(self, link: ProxyLink, direction: Direction) -> None:
        self.transport: asyncio.Transport | None = None
        self._link = link
        self._direction: Direction = direction
        self._full = False  # it does not take what is written fast enough
        self._ended = False  # it will send no more
        self._late: deque[tuple[float, bytes]] = deque()  # when to pass on, and what
        self._size = 0
        self._free_at = 0.0  # when what was sent before is through
        self._pieces = 0
        self._timer: asyncio.TimerHandle | None = None
        self._order: ResetOrder | None = None
        self._left = 0  # bytes until that order is carried out

    # -- the socket --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._link.joined(self)

    def eof_received(self) -> bool:
        self._ended = True
        self.data_received(b"")
        return True  # the other direction goes on

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._link.end_lost(exc)

    def pause_writing(self) -> None:
        self._full = True
        self._link.balance()

    def resume_writing(self) -> None:
        self._full = False
        self._link.balance()

    def close(self, *, reset: bool) -> None:
        """Close the socket now."""
        if self.transport is not None:
            if reset:
                raw = self.transport.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self.transport.abort()

    def balance(self) -> None:
        """Stop reading while too much is under way, or there is nowhere to put it."""
        transport, peer = self.transport, self.peer
        if transport is None or transport.is_closing() or self._ended:
            return
        stuck = peer.transport is None or peer._full or self._size > MANY
        if stuck and self._direction not in self._link.state.swallow:
            transport.pause_reading()
        else:
            transport.resume_reading()

    # -- bytes on their way ------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Pass it on, when its time has come."""
        if self._swallows(data):
            return
        rate = self._link.state.rate
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

    def _delay(self) -> float:
        seconds, jitter = self._link.state.delays.get(self._direction, (0.0, 0.0))
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
        state = self._link.state
        if self._direction not in state.swallow:
            return False
        self._link.lost_bytes = True
        self._count(state.swallowed, len(data))
        return True

    def _write(self, piece: bytes) -> None:
        target = self.peer.transport
        if target is None or target.is_closing():
            return
        if not piece:
            with suppress(OSError):  # that side has gone already
                target.write_eof()
            self._link.direction_ended()
            return
        resets = self._resets_within(len(piece))
        piece = piece[: self._left] if resets else piece
        target.write(piece)
        if resets:
            self._link.close(reset=True)
        self._count(self._link.state.passed, len(piece), resets=resets)

    def _resets_within(self, count: int) -> bool:
        """Count these bytes for an order to reset; True if it is to be carried out now."""
        order = self._link.state.reset
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
        state = self._link.state
        with state.changed:
            counter[self._direction] += count
            state.resets += resets
            state.changed.notify_all()
