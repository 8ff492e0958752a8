"""Spans of OpenTelemetry for acquires and holds. An acquire is linked to the holders that it waits for."""

from collections import deque
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from time import time_ns
from typing import Any

from dibs.contrib import needs
from dibs.core.names import split_key
from dibs.errors import AcquireTimeout
from dibs.locks.hooks import TracedLease, observe
from dibs.locks.requests import AcquireRequest
from dibs.model import MANY, Holder

try:
    from opentelemetry import context as contexts
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError as _error:
    raise needs("OpenTelemetry", "otel") from _error

MAX_LINKS = 8
"""Links of one span, at most."""

_w3c = TraceContextTextMapPropagator()


def trace_of(span: trace.Span) -> str:
    """The span's W3C `traceparent`, which is stored with its lease; empty if the span is not sampled."""
    about = span.get_span_context()
    if not (about.is_valid and about.trace_flags.sampled):
        return ""
    carrier: dict[str, str] = {}
    _w3c.inject(carrier, trace.set_span_in_context(span))
    return carrier["traceparent"]


class Links:
    """Links from a waiter's span to the spans of the holders that it waits for, one each."""

    __slots__ = ("_linked", "_span")

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        self._linked: set[str] = set()

    def add(self, holders: Iterable[Holder]) -> None:
        """Link to the spans that acquired these leases, if they were traced."""
        for traced in filter(None, (holder.trace for holder in holders)):
            if traced not in self._linked and len(self._linked) < MAX_LINKS:
                self._linked.add(traced)
                context = _w3c.extract({"traceparent": traced})
                there = trace.get_current_span(context).get_span_context()
                if there.is_valid:
                    self._span.add_link(there, {"dibs.link": "holder"})


_GIVEN_UP = frozenset({"released", "detached", "forgotten", "resigned"})
"""Ends of a hold that are no loss."""


def instrument(*, names: bool = False, tracer_provider: trace.TracerProvider | None = None) -> None:
    """From now on each acquire of this process is a span `dibs.acquire`, and each hold `dibs.hold`.

    An acquire that is refused, or waits in vain, is linked to the trace of each holder that is traced too,
    in whichever process: its `traceparent` is stored with the lease. A hold has an event for each renewal,
    and fails if it is lost. Spans have names of locks only with `names=True`, because names can be
    confidential. The default `tracer_provider` is the global one. A later call replaces an earlier one.
    """
    observe(_Tracing(trace.get_tracer("dibs", tracer_provider=tracer_provider), names=names))


def uninstrument() -> None:
    """No more spans, but for the ends of those that have begun."""
    observe(None)


class _Tracing:
    """Makes a span for each acquire and each hold."""

    def __init__(self, tracer: trace.Tracer, *, names: bool) -> None:
        self.tracer = tracer
        self._names = names
        self.outside: dict[object, contexts.Context] = {}
        """Of each task or thread that is acquiring: what it was within before."""
        self.forgotten: deque[tuple[trace.Span, int]] = deque()
        """Spans to be ended, and since when: the garbage collector may have interrupted just that."""

    def about(self, *keys: bytes) -> dict[str, Any]:
        """Attributes of both kinds of spans, for a key or several."""
        kinds, names = zip(*map(split_key, keys), strict=True)
        found = {"dibs.kind": kinds[0] if len(keys) == 1 else "allof"}
        if self._names:
            shown = [name.decode("utf-8", "backslashreplace") for name in names]
            found["dibs.name"] = ", ".join(shown)
        return found

    def acquiring(
        self, requests: Sequence[AcquireRequest], wait: float | None, me: object
    ) -> "_Attempt":
        """Begin the span of an acquire."""
        self.end_forgotten()
        about = self.about(*(request.key for request in requests))
        if wait is not None:
            about["dibs.wait"] = wait
        if len(requests) > 1:
            about["dibs.keys"] = len(requests)
        elif 1 < requests[0].units < MANY:
            about["dibs.units"] = requests[0].units
        return _Attempt(self, about, me)

    def in_the_way(self, holders: Iterable[Holder]) -> None:
        """Link the acquire of this context to its holders."""
        attempt = _attempt.get()
        if attempt is not None:
            attempt.links.add(holders)

    def holding(self, lease: TracedLease, me: object, *, here: bool) -> "_Witness":
        """Begin the span of a hold. The holder can be another task or thread than the caller."""
        self.end_forgotten()
        around = self.outside.get(me)
        if around is None and not here:
            around = contexts.Context()  # the acquire of another task or thread
        return _Witness(self, lease, around)

    def end_forgotten(self) -> None:
        """End the spans that the garbage collector kept from ending in time."""
        while self.forgotten:
            span, over = self.forgotten.popleft()
            span.end(over)


class _Attempt:
    """The span of an acquire."""

    def __init__(self, tracing: _Tracing, about: dict[str, Any], me: object) -> None:
        self._tracing = tracing
        self._me = me
        tracing.outside[me] = contexts.get_current()
        self._span = tracing.tracer.start_span(
            "dibs.acquire", kind=trace.SpanKind.CLIENT, attributes=about
        )
        self.links = Links(self._span)
        self._context = contexts.attach(trace.set_span_in_context(self._span))
        self._around = _attempt.get()
        _attempt.set(self)
        self._trace = trace_of(self._span)

    def traced(self, request: AcquireRequest) -> AcquireRequest:
        """The request with this span's trace, if the span is sampled."""
        return request._replace(trace=self._trace) if self._trace else request

    def end(self, error: BaseException | None) -> None:
        """End the span with the acquire's result."""
        span = self._span
        span.set_attribute("dibs.outcome", _outcome(error))
        if isinstance(error, Exception):
            span.set_attribute("error.type", type(error).__qualname__)
            if not isinstance(error, AcquireTimeout):
                span.set_status(trace.StatusCode.ERROR)
        span.end()
        self._tracing.outside.pop(self._me, None)
        if not isinstance(error, GeneratorExit):  # closed by the garbage collector, in any context
            _attempt.set(self._around)
            contexts.detach(self._context)


class _Witness:
    """The span of a hold."""

    def __init__(
        self, tracing: _Tracing, lease: TracedLease, around: contexts.Context | None
    ) -> None:
        self._tracing = tracing
        about = tracing.about(lease.key) | {"dibs.token": lease.token}
        self._span = tracing.tracer.start_span("dibs.hold", around, attributes=about)

    def renewed(self) -> None:
        """Add an event for a renewal."""
        self._span.add_event("renewed")

    def ended(self, how: str) -> None:
        """End the span: the lease was released or lost."""
        span = self._span
        span.set_attribute("dibs.end", how)
        if how == "forgotten":
            self._tracing.forgotten.append((span, time_ns()))
            return
        if how not in _GIVEN_UP:
            span.add_event("lost", {"dibs.reason": how})
            span.set_attribute("error.type", "LeaseLost")
            span.set_status(trace.StatusCode.ERROR)
        span.end()


_attempt: ContextVar[_Attempt | None] = ContextVar("dibs_attempt", default=None)


def _outcome(error: BaseException | None) -> str:
    if error is None:
        return "granted"
    if isinstance(error, AcquireTimeout):
        return "refused"
    return "failed" if isinstance(error, Exception) else "cancelled"
