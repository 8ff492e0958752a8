"""OpenTelemetry spans: one for each request, linked to the traces of the holders that it waits for.

OpenTelemetry's ASGI instrumentation makes the spans. It gets a scope without path, query, address and
headers, because spans must not contain a name, an id or a secret. A holder's trace is stored with its lease,
so links are the same whichever server granted it.
"""

import os
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from opentelemetry import trace
from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.metrics import NoOpMeterProvider
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as Connection

from dibs.contrib.otel import Links, trace_of
from dibs.core.names import KINDS
from dibs.errors import DibsError
from dibs.model import Command, Inspect, Refused, Reply, Status
from dibs.runtime.port import TimedReply
from dibs.server.api.routing import Operation

_LOOK = 1.0
"""Seconds that the store has to answer who the holders are."""

_TRACE_HEADERS = frozenset({b"traceparent", b"tracestate"})

_NO_HEADER = "(?!)"
"""A pattern for headers in spans that matches none. Without it environment variables decide."""

_REQUEST = "dibs.request"
"""Where the cleaned scope has the `_Request`."""

_current: ContextVar["_Request | None"] = ContextVar("dibs_request", default=None)


class _Request:
    """A request that is being traced: it is answered by `app`, with `scope` and `send`."""

    def __init__(
        self, operation: Operation | None, app: ASGIApp, scope: Connection, send: Send
    ) -> None:
        self.operation = operation
        self.span: trace.Span = trace.INVALID_SPAN
        self.links = Links(self.span)
        self.error: Exception | None = None
        self._app, self._scope, self._send = app, scope, send
        self._has_begun = False
        self._commands = 0
        self._replies: set[str] = set()

    async def answer(self, receive: Receive, send: Send) -> None:
        """Answer inside the span, which `send` ends with the last part of the answer."""

        async def send_part(message: Message) -> None:
            is_stream = self.operation is not None and self.operation.is_stream
            if self._has_begun and is_stream:
                return await self._send(message)
            if not self._has_begun:
                self._describe()
            await send(message)
            if is_stream:
                self.span.end()
            self._has_begun = True

        self.span = trace.get_current_span()
        self.links = Links(self.span)
        outer = _current.set(self)
        try:
            await self._app(self._scope, receive, send_part)
            if not self._has_begun:
                self._describe()
                self.span.set_attribute("error.type", "hung_up")
        except Exception as error:  # noqa: BLE001  # its text would be in the span
            self.error = error
        finally:
            _current.reset(outer)

    def saw(self, command: Command, reply: Reply) -> None:
        """Count a command that was answered."""
        self._commands += 1
        self._replies.add(type(reply).__name__.lower())
        if self._commands == 1:
            kind = command.key.partition(b":")[0].decode("ascii", "replace")
            self.span.set_attribute("dibs.command", type(command).__name__.lower())
            self.span.set_attribute("dibs.kind", kind if kind in KINDS else "other")

    def _describe(self) -> None:
        if self._commands > 1:
            self.span.set_attribute("dibs.commands", self._commands)
        if self._replies:
            self.span.set_attribute("dibs.reply", ",".join(sorted(self._replies)))


class Tracing:
    """The spans of one server. `call` applies a command to its store; `now` is the server's clock."""

    def __init__(
        self,
        provider: trace.TracerProvider,
        call: Callable[[Command, float], Awaitable[TimedReply]],
        now: Callable[[], float],
    ) -> None:
        os.environ.setdefault("OTEL_SEMCONV_STABILITY_OPT_IN", "http")  # the stable attributes
        self._tracer = provider.get_tracer("dibs.server")
        self._call = call
        self._now = now
        self._middleware = OpenTelemetryMiddleware(
            _run,
            default_span_details=_details,
            tracer=self._tracer,
            meter_provider=NoOpMeterProvider(),  # `/metrics` has these figures
            http_capture_headers_server_request=[_NO_HEADER],
            http_capture_headers_server_response=[_NO_HEADER],
            exclude_spans=["receive", "send"],
        )

    async def answer(
        self,
        operation: Operation | None,
        app: ASGIApp,
        scope: Connection,
        receive: Receive,
        send: Send,
    ) -> None:
        """Have `app` answer a request within a span."""
        headers = [each for each in scope["headers"] if each[0] in _TRACE_HEADERS]
        request = _Request(operation, app, scope, send)
        cleaned = {
            **scope,
            "path": "",
            "query_string": b"",
            "client": None,
            "headers": [each for each in headers if each[1].isascii()],
            _REQUEST: request,
        }
        await self._middleware(cleaned, receive, send)
        if request.error is not None:
            raise request.error

    @property
    def trace(self) -> str:
        """The `traceparent` of the current request, stored with what it acquires; empty if not sampled."""
        request = _current.get()
        return "" if request is None else trace_of(request.span)

    def saw(self, command: Command, reply: Reply) -> None:
        """A command was answered."""
        request = _current.get()
        if request is None or not request.span.is_recording():
            return
        request.saw(command, reply)
        if type(reply) is Refused:
            request.links.add(reply.holders)

    async def look(self, key: bytes) -> None:
        """Link to the holders of a key, for which this request waits."""
        request = _current.get()
        if request is None or not request.span.is_recording():
            return
        try:
            reply = (await self._call(Inspect(key), _LOOK)).reply
        except DibsError:
            return  # the answer matters more than the links
        if isinstance(reply, Status):
            request.links.add(reply.holders)

    @contextmanager
    def waiting(self) -> Generator[None]:
        """A span inside that of the request, while it waits in the queue."""
        request, begun = _current.get(), self._now()
        if request is None or not request.span.is_recording():
            yield
            return
        with self._tracer.start_as_current_span(
            "dibs.wait", record_exception=False, set_status_on_exception=False
        ):
            try:
                yield
            finally:
                request.span.set_attribute("dibs.waited", round(self._now() - begun, 6))


async def _run(scope: Connection, receive: Receive, send: Send) -> None:
    await scope[_REQUEST].answer(receive, send)


def _details(scope: Connection) -> tuple[str, dict[str, Any]]:
    """The name of a request's span, and attributes that the instrumentation does not know."""
    operation, method = scope[_REQUEST].operation, scope["method"]
    about = {"server.address": scope["server"][0]} if scope["server"] else {}
    if operation is None:
        return method, about
    return f"{method} {operation.path}", {"http.route": operation.path, **about}
