"""uvicorn's HTTP/1.1, with bounds: on headers, on how long a request may take to arrive, on connections,
and on how long a client may take nothing of its answer.

What one connection costs is bounded, whatever its client sends or leaves out; so slow or stuck clients
hold up nobody but themselves.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from uvicorn.config import Config
from uvicorn.server import ServerState

from dibs.server.accounts import Accounts, Counted
from dibs.server.connection import lay_into
from dibs.server.express import ExpressProtocol
from dibs.server.limits import Limits
from dibs.server.problems import Problem

if TYPE_CHECKING:
    from starlette.types import Scope

    from dibs.server.answers import Header
    from dibs.server.service import Meter

SWEEP = 1.0
"""Seconds between two looks at all connections, at most."""

OFTEN = 0.05
"""The same, at least: whoever gives no time at all has no core to spare for it."""


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
        self._in_message = False
        self._begun = 0
        """So many requests have begun in what was read last."""
        self._header_bytes = 0
        """Of headers that have not ended."""
        self._told_bytes = 0
        """Of a request's line and headers, as the parser tells them one by one."""
        self._refusal: Problem | None = None
        """Why the parser was stopped."""

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
        within, self._begun = self._in_message, 0
        super().data_received(data)
        # where something else ended in it nobody knows how much of it is theirs: the next read tells
        if self._in_headers and within + self._begun == 1:
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
        lay_into(cast("Scope", self.scope), self)
        self._arriving_since = self.loop.time()
        self._in_headers = self._in_message = True
        self._begun += 1
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
        if self.parser.should_upgrade() and _has_body(self.headers):
            # what follows an upgrade is read as another protocol's, or as the next request
            self._refuse(Problem("malformed", "there is only HTTP/1.1 here: ask without Upgrade"))
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._arriving_since = None
        self._in_message = False
        super().on_message_complete()

    def _unsupported_upgrade_warning(self) -> None:
        """What comes now is no HTTP/1.1: there is one answer, and no more."""
        if self.is_at_rest:
            self.transport.close()
        else:
            self.cycle.keep_alive = False

    def send_400_response(self, msg: str) -> None:
        if self._refusal is not None:
            return self._end(self._refusal)
        if not self._may_refuse:
            return self.transport.close()
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
            self._refuse(self._too_much())

    def _refuse(self, problem: Problem) -> None:
        """Stop the parser."""
        self._refusal = problem
        raise problem

    def _too_much(self) -> Problem:
        most = self.limits.max_headers
        return Problem(
            "headers-too-large", f"a request's line and headers are {most} bytes at most"
        )

    def sweep(self, now: float) -> None:
        """Cut it off if its client is too slow."""
        limits = self.limits
        if self._stalled_since is None and self.transport.is_closing():
            self._stalled_since = now  # what is not sent yet may be too little to pause for
        arriving, stalled = self._arriving_since, self._stalled_since
        if stalled is not None and now - stalled > limits.stall_time:
            self.transport.abort()
        elif self.flow.read_paused:
            self._arriving_since = arriving and now  # it is we who take no more just now
        elif arriving is not None and now - arriving > limits.request_time:
            self._end(Problem("late", f"a request has {limits.request_time:g} seconds to arrive"))
        elif self.is_at_rest and now - self.answered_at > limits.idle_time:
            self.transport.close()

    def _end(self, problem: Problem) -> None:
        """Say why, if an answer has not begun, and hang up."""
        transport = self.transport
        if transport.is_closing():
            return
        if self._may_refuse:
            answer = problem.answer()
            self._count(answer.status)
            length = b"%d" % len(answer.body)
            ending = (b"content-length", length), (b"connection", b"close")
            transport.write(self.head(answer.status, (*answer.headers, *ending)) + answer.body)
        transport.close()

    @property
    def _may_refuse(self) -> bool:
        """What is written now answers what is refused, and nothing that was asked for before it."""
        cycle = self.under_way
        if cycle is None or self.is_at_rest:
            return True
        return not (cycle.response_started or self._in_headers or self.pipeline)

    def _count(self, status: int) -> None:
        """A request was refused. One whose handler runs is counted there, where it finds that out."""
        self.refused = status
        if self.under_way is None or self.is_at_rest:
            since = self._arriving_since
            seconds = 0.0 if since is None else self.loop.time() - since
            for meter in self.meters:
                meter(None, status, seconds)


def _has_body(headers: "Iterable[Header]") -> bool:
    found = dict(headers)
    return found.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in found


def sweep_every(limits: Limits) -> float:
    """Seconds between two looks at all connections."""
    shortest = min(limits.request_time, limits.stall_time, limits.idle_time)
    return max(min(SWEEP, shortest / 4), OFTEN)


def bounded(limits: Limits, meters: "Sequence[Meter]") -> type[BoundedProtocol]:
    """The protocol, with these bounds; these are told whom it refuses."""
    return type("BoundedProtocol", (BoundedProtocol,), {"limits": limits, "meters": meters})
