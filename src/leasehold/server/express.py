"""uvicorn's HTTP/1.1, with less to do for each request.

An answer that is there as a whole is one write; a request is begun as it is read, without a turn of the loop
between; and no timer runs for each answer: whoever sweeps (see `protocol`) ends connections that are idle.
"""

import asyncio
import re
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import Scope

    from leasehold.server.answers import Header

_FORBIDDEN = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
"""What may be in no value of a header, or it would be two."""


class ExpressProtocol(HttpToolsProtocol):
    """One connection."""

    idle_since: float | None = None
    """When its last answer had been given, while nothing else has come."""
    _begins_now = False
    """The next request is begun at once: only the first of what is read in one go, or a client who sends
    thousands at a time would have all of them answered before anybody else has a turn."""

    def data_received(self, data: bytes) -> None:
        self._begins_now = True
        super().data_received(data)
        self._begins_now = False

    def on_message_begin(self) -> None:
        self.idle_since = None
        super().on_message_begin()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if not self._begins_now:
            return super()._start_asgi_task(cycle, app)
        self._begins_now = False
        task = asyncio.Task(cycle.run_asgi(app), loop=self.loop, eager_start=True)
        if not task.done():
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    def answer(self, scope: "Scope", status: int, headers: "Sequence[Header]", body: bytes) -> bool:
        """Give a whole answer to that request; False where it has to be sent as ASGI has it."""
        cycle = self.cycle
        if (
            cycle.scope is not scope  # others came behind it, on the same connection
            or cycle.response_started
            or cycle.disconnected
            or not cycle.keep_alive
            or self.flow.write_paused
            or scope["method"] == "HEAD"
        ):
            return False
        names, values = zip(*headers, strict=True)
        if b"connection" in names or _FORBIDDEN.search(b"".join(values)):
            return False
        lines = [b"%b: %b\r\n" % each for each in (*cycle.default_headers, *headers)]
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        cycle.message_event.set()
        self.transport.write(b"".join((STATUS_LINE[status], *lines, b"\r\n", body)))
        self.on_response_complete()
        return True

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self.idle_since = self.loop.time()
