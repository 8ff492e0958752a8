"""uvicorn's HTTP/1.1, with bounds: on headers, on how long a request may take to arrive, on connections,
and on how long a client may take nothing of its answer.

What one connection costs is bounded, whatever its client sends or leaves out; so slow or stuck clients
hold up nobody but themselves.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from leasehold.server.accounts import Accounts, Counted
from leasehold.server.express import ExpressProtocol
from leasehold.server.limits import Limits
from leasehold.server.problems import Problem

if TYPE_CHECKING:
    from leasehold.server.service import Meter

SWEEP = 1.0
"""Seconds between two looks at all connections, at most."""


_AROUND = len(": \r\n")
"""Bytes of a header besides its name and value."""


class BoundedProtocol(ExpressProtocol):
    """One connection."""

    limits: Limits
    meters: "Sequence[Meter]"

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: Any = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.key_id = ""
        """Whose key it has brought last."""
        self.is_lost = False
        self.refused = 0
        """The status with which it was cut off before the answer to a request had begun."""
        self._counted: Counted | None = None
        self._arriving_since: float | None = self.loop.time()
        """Since when a request is on its way that has not arrived; also before the first byte."""
        self._stalled_since: float | None = None
        self._in_headers = False
        self._header_bytes = 0
        """Of headers that have not ended; the end of what came before them may be among it."""
        self._told_bytes = 0
        """Of a request's line and headers, as the parser tells them one by one."""

    # -- asyncio's ----------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            self._end(Problem("overloaded", "there are too many connections", retry_after=1))

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if self._counted is not None:
            self._counted.end()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._in_headers:
            self._header_bytes += len(data)
            if self._header_bytes > self.limits.max_headers:
                self._end(self._too_much())

    def pause_writing(self) -> None:
        self._stalled_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._stalled_since = None
        super().resume_writing()

    # -- the parser's -------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["leasehold.connection"] = self  # type: ignore[typeddict-unknown-key]
        self._arriving_since = self.loop.time()
        self._in_headers = True
        self._told_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._told(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._told(len(name) + len(value) + _AROUND)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._header_bytes = 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._arriving_since = None
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if self._told_bytes > self.limits.max_headers:
            return self._end(self._too_much())
        self._count(400)
        super().send_400_response(msg)

    # -- ours ---------------------------------------------------------------------------------------

    def belongs_to(self, accounts: Accounts, key_id: str) -> None:
        """Count it with a key's connections. Raises `Problem`, 429."""
        try:
            counted = accounts.one_more(key_id, "connections")
        except Problem as problem:
            problem.headers = ((b"connection", b"close"),)
            raise
        if self._counted is not None:
            self._counted.end()
        self._counted = counted
        self.key_id = key_id

    def _told(self, length: int) -> None:
        """So much more of a line and headers, which may all have come at once. Raises to end the parsing."""
        self._told_bytes += length
        if self._told_bytes > self.limits.max_headers:
            raise self._too_much()

    def _too_much(self) -> Problem:
        most = self.limits.max_headers
        return Problem(
            "headers-too-large", f"a request's line and headers are {most} bytes at most"
        )

    def sweep(self, now: float) -> None:
        """Cut it off if its client is too slow."""
        limits = self.limits
        arriving, stalled = self._arriving_since, self._stalled_since
        if stalled is not None and now - stalled > limits.stall_time:
            self.transport.abort()
        elif self.flow.read_paused:
            self._arriving_since = arriving and now  # it is we who take no more just now
        elif arriving is not None and now - arriving > limits.request_time:
            self._end(Problem("late", f"a request has {limits.request_time:g} seconds to arrive"))
        elif self.idle_since is not None and now - self.idle_since > limits.idle_time:
            self.transport.close()

    def _end(self, problem: Problem) -> None:
        """Say why, if an answer has not begun, and hang up."""
        transport, cycle = self.transport, self.cycle
        if transport.is_closing():
            return
        # there is none before a connection's first request, whatever its type says
        answering = bool(cycle) and cycle.response_started and not cycle.response_complete
        if not answering:
            answer = problem.answer()
            self._count(answer.status)
            lines = [b"HTTP/1.1 %d \r\n" % answer.status]
            lines += [name + b": " + value + b"\r\n" for name, value in answer.headers]
            lines.append(b"content-length: %d\r\nconnection: close\r\n\r\n" % len(answer.body))
            transport.write(b"".join(lines) + answer.body)
        transport.close()

    def _count(self, status: int) -> None:
        """A request was refused. One whose handler runs is counted there, where it finds that out."""
        self.refused = status
        cycle = self.cycle
        if not bool(cycle) or cycle.response_complete:
            since = self._arriving_since
            seconds = 0.0 if since is None else self.loop.time() - since
            for meter in self.meters:
                meter(None, status, seconds)


def sweep_every(limits: Limits) -> float:
    """Seconds between two looks at all connections."""
    return min(SWEEP, limits.request_time / 4, limits.stall_time / 4, limits.idle_time / 4)


def bounded(limits: Limits, meters: "Sequence[Meter]") -> type[BoundedProtocol]:
    """The protocol, with these bounds; these are told whom it refuses."""
    return type("BoundedProtocol", (BoundedProtocol,), {"limits": limits, "meters": meters})
