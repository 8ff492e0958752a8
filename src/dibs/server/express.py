"""uvicorn's HTTP/1.1, with less to do for each request.

An answer that is there as a whole is one write; a request is begun as it is read, without a turn of the loop
between; and no timer runs for each answer: whoever sweeps (see `protocol`) ends connections that are idle.
Why that is done with uvicorn's insides: docs/adr/0014.
"""

import asyncio
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import (
    HEADER_VALUE_RE,
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence, Sized

    from starlette.types import Scope

    from dibs.server.answers import Header


FEW = 16
"""So many requests may lie behind the one under way before nothing more is read."""

MANY = 1_000
"""With so many that have come in one go nobody waits for answers: they cost memory, and are hung up on."""


class _Flow(FlowControl):
    """Nothing more is read while enough lies there to be answered, whoever asks for more of a body."""

    def __init__(self, transport: asyncio.Transport, pipeline: "Sized") -> None:
        super().__init__(transport)
        self._pipeline = pipeline

    def resume_reading(self) -> None:
        if self.read_paused and len(self._pipeline) < FEW:
            super().resume_reading()


class ExpressProtocol(HttpToolsProtocol):
    """One connection."""

    answered_at = 0.0
    """When its last answer was complete, by the loop's clock."""
    under_way: RequestResponseCycle | None = None
    """The request that was begun last, and its answer. Others may have come behind it."""
    _begins_now = False
    """The next request is begun at once: only the first of what is read in one go, or a client who sends
    thousands at a time would have all of them answered before anybody else has a turn."""

    @property
    def is_at_rest(self) -> bool:
        """Something was asked for, and all of it is answered."""
        cycle = self.under_way
        return cycle is not None and cycle.response_complete and not self.pipeline

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport, self.pipeline)

    def connection_lost(self, exc: Exception | None) -> None:
        cycle = self.under_way
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True  # uvicorn tells the latest, which may not have begun
            cycle.message_event.set()
        super().connection_lost(exc)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self.flow.resume_reading()  # or nobody would notice that the client hangs up
        if len(self.pipeline) > MANY:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self._begins_now = True
        super().data_received(data)
        self._begins_now = False

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if self.transport.is_closing():
            return None  # nobody would hear what came of it
        self.under_way = cycle
        if not self._begins_now:
            return super()._start_asgi_task(cycle, app)
        self._begins_now = False
        task = asyncio.Task(cycle.run_asgi(app), loop=self.loop, eager_start=True)
        if not task.done():
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    def answer(self, scope: "Scope", status: int, headers: "Sequence[Header]", body: bytes) -> bool:
        """Give a whole answer to that request; False where it has to be sent as ASGI has it."""
        cycle = self.under_way
        if (
            cycle is None
            or cycle.scope is not scope
            or cycle.response_started
            or cycle.response_complete
            or cycle.disconnected
            or not cycle.keep_alive
            or self.flow.write_paused
            or scope["method"] == "HEAD"
        ):
            return False
        names, values = zip(*headers, strict=True)
        if b"connection" in names or HEADER_VALUE_RE.search(b"".join(values)):
            return False
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        cycle.message_event.set()
        self.transport.write(self.head(status, headers) + body)
        self.on_response_complete()
        return True

    def head(self, status: int, headers: "Iterable[Header]") -> bytes:
        """The lines before a body, with what stands in every answer."""
        lines = [b"%b: %b\r\n" % each for each in (*self.server_state.default_headers, *headers)]
        return b"".join((STATUS_LINE[status], *lines, b"\r\n"))

    def on_response_complete(self) -> None:
        self.answered_at = self.loop.time()
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        self.flow.resume_reading()
