"""OpenTelemetry spans: one for each request, linked to the traces of the holders that it waits for.

A holder's trace is stored with its lease, so the link is there whichever server granted it. No span
carries a name, an id or a secret: the route stands for the path.
"""

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from dibs.contrib.otel import MAX_LINKS, Links, trace_of
from dibs.core.names import KINDS
from dibs.errors import DibsError
from dibs.model import Acquire, Command, Inspect, Queued, Refused, Reply, Status
from dibs.runtime.port import TimedReply
from dibs.server.api.routing import Operation
from dibs.server.auth.policy import Principal

if TYPE_CHECKING:
    from starlette.types import Scope

    from dibs.server.service import Service

_REMEMBERED = 10_000
"""So many places in line are remembered, whose holders were looked at."""

_LOOK = 1.0
"""Seconds that the store has to tell who is in the way."""

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

_read = TraceContextTextMapPropagator().extract

_current: ContextVar["RequestSpan | None"] = ContextVar("dibs_request_span", default=None)


class RequestSpan:
    """One request's."""

    __slots__ = ("_method", "_replies", "_token", "commands", "links", "queued", "span")

    def __init__(self, tracer: trace.Tracer, scope: "Scope") -> None:
        method = scope["method"]
        self._method = method if method in _METHODS else "_OTHER"
        about: dict[str, Any] = {
            "http.request.method": self._method,
            "url.scheme": scope.get("scheme", "http"),
            "network.protocol.version": scope.get("http_version", "1.1"),
        }
        if server := scope.get("server"):
            about["server.address"], about["server.port"] = server
        self.span = tracer.start_span(
            "HTTP" if self._method == "_OTHER" else self._method,
            _read(_carrier(scope["headers"])),
            trace.SpanKind.SERVER,
            about,
        )
        self._token = contexts.attach(trace.set_span_in_context(self.span))
        self.commands = 0
        self._replies: set[str] = set()
        self.queued: dict[bytes, None] = {}
        """Keys for which something has begun to wait."""
        self.links = Links(self.span)
        _current.set(self)

    def saw(self, command: Command, reply: Reply) -> None:
        """A command of it was answered."""
        self.commands += 1
        self._replies.add(type(reply).__name__.lower())
        if self.commands == 1:
            kind = command.key.partition(b":")[0].decode("ascii", "replace")
            self.span.set_attribute("dibs.command", type(command).__name__.lower())
            self.span.set_attribute("dibs.kind", kind if kind in KINDS else "other")

    def answered(self, route: Operation | None, status: int) -> None:
        """What it came to, 0 for no answer; a stream has ended, for a trace, where it begins."""
        span = self.span
        if route is not None:
            span.update_name(f"{self._method} {route.path}")
            span.set_attribute("http.route", route.path)
        if status:
            span.set_attribute("http.response.status_code", status)
        if status >= 500:
            span.set_attribute("error.type", str(status))
            span.set_status(trace.StatusCode.ERROR)
        if self.commands > 1:
            span.set_attribute("dibs.commands", self.commands)
        if self._replies:
            span.set_attribute("dibs.reply", ",".join(sorted(self._replies)))
        if route is not None and route.media == "text/event-stream":
            span.end()

    def end(self) -> None:
        """It is over."""
        if self.span.is_recording():
            self.span.end()
        contexts.detach(self._token)
        _current.set(None)

    def hung_up(self, route: Operation | None) -> None:
        """The caller has gone, and there is no answer."""
        self.answered(route, 0)
        self.span.set_attribute("error.type", "hung_up")


class Spans:
    """Those of one server."""

    def __init__(self, service: "Service", tracer: trace.Tracer) -> None:
        self._service = service
        self._tracer = tracer
        self._waiting: dict[tuple[bytes, str], None] = {}

    def begin(self, scope: "Scope") -> RequestSpan:
        """A request has come."""
        return RequestSpan(self._tracer, scope)

    @property
    def trace(self) -> str:
        """The `traceparent` of the current request, stored with what it acquires; empty if not sampled."""
        seen = _current.get()
        return "" if seen is None else trace_of(seen.span)

    def saw(self, _: Principal, command: Command, reply: Reply) -> None:
        """A command was answered."""
        seen = _current.get()
        if seen is None or not seen.span.is_recording():
            return
        seen.saw(command, reply)
        if type(reply) is Refused:
            seen.links.add(reply.holders)
        elif type(reply) is Queued and type(command) is Acquire and self._is_new(command):
            seen.queued[command.key] = None

    def _is_new(self, command: Acquire) -> bool:
        """It waits since now: it will ask again and again, and is linked once."""
        place = command.key, command.id
        if place in self._waiting:
            return False
        self._waiting[place] = None
        if len(self._waiting) > _REMEMBERED:
            del self._waiting[next(iter(self._waiting))]
        return True

    async def look_ahead(self) -> None:
        """Link to those who are in the way of what this request has queued for."""
        seen = _current.get()
        if seen is not None and seen.queued:
            keys = list(seen.queued)[:MAX_LINKS]
            seen.queued.clear()
            await self._look(seen, keys)

    @contextmanager
    def waiting(self) -> Generator[None]:
        """A request waits in line: a span within its own."""
        seen, begun = _current.get(), self._service.now()
        if seen is None or not seen.span.is_recording():
            yield
            return
        with self._tracer.start_as_current_span(
            "dibs.wait", record_exception=False, set_status_on_exception=False
        ):
            try:
                yield
            finally:
                seen.span.set_attribute("dibs.waited", round(self._service.now() - begun, 6))

    async def look(self, key: bytes) -> None:
        """Link to those who are in the way of a key, for which this request waits."""
        seen = _current.get()
        if seen is not None and seen.span.is_recording():
            await self._look(seen, [key])

    async def _look(self, seen: RequestSpan, keys: Sequence[bytes]) -> None:
        try:
            told = await self._service.runtime.call_all([Inspect(key) for key in keys], _LOOK)
        except DibsError:
            return  # a trace is worth no more
        for each in told:
            if type(each) is TimedReply and isinstance(each.reply, Status):
                seen.links.add(each.reply.holders)


def _carrier(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """What a request says of its trace."""
    return {
        name.decode(): value.decode("latin-1")
        for name, value in headers
        if name in (b"traceparent", b"tracestate")
    }
