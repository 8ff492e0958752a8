"""Spans of OpenTelemetry for every acquire and every hold, linked to the trace of whoever is in the way."""

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

    from dibs.links import Links, trace_of
except ModuleNotFoundError as _error:
    raise needs("OpenTelemetry", "otel") from _error

_GIVEN_UP = frozenset({"released", "detached", "forgotten", "resigned"})
"""Ends of a hold that are no loss."""


def instrument(*, names: bool = False, tracer_provider: trace.TracerProvider | None = None) -> None:
    """From now on each acquire of this process is a span `dibs.acquire`, and each hold `dibs.hold`.

    An acquire that is refused, or waits in vain, is linked to the trace of each holder that is traced too,
    in whichever process: its `traceparent` is stored with the lease. A hold tells when it is
    renewed, and fails if it is lost. Spans have names of locks only with `names=True`, as those may tell
    what their readers should not know. Without a `tracer_provider` it is the global one. Called again it
    takes the place of what was said before.
    """
    observe(_Tracing(trace.get_tracer("dibs", tracer_provider=tracer_provider), names=names))


def uninstrument() -> None:
    """No more spans, but for the ends of those that have begun."""
    observe(None)


class _Tracing:
    """Is told of them all."""

    def __init__(self, tracer: trace.Tracer, *, names: bool) -> None:
        self.tracer = tracer
        self._names = names
        self.outside: dict[object, contexts.Context] = {}
        """Of each task or thread that is acquiring: what it was within before."""
        self.forgotten: deque[tuple[trace.Span, int]] = deque()
        """Spans to be ended, and since when: the garbage collector may have interrupted just that."""

    def about(self, *keys: bytes) -> dict[str, Any]:
        """What both sorts of spans say of a key, or of several."""
        kinds, names = zip(*map(split_key, keys), strict=True)
        found = {"dibs.kind": kinds[0] if len(keys) == 1 else "allof"}
        if self._names:
            shown = [name.decode("utf-8", "backslashreplace") for name in names]
            found["dibs.name"] = ", ".join(shown)
        return found

    def acquiring(
        self, requests: Sequence[AcquireRequest], wait: float | None, me: object
    ) -> "_Attempt":
        """Somebody begins to acquire."""
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
        """Whoever is acquiring here is refused because of these."""
        attempt = _attempt.get()
        if attempt is not None:
            attempt.links.add(holders)

    def holding(self, lease: TracedLease, me: object, *, here: bool) -> "_Witness":
        """Somebody has a lease, who need not be the one who runs this."""
        self.end_forgotten()
        around = self.outside.get(me)
        if around is None and not here:
            around = contexts.Context()  # somebody else's acquire, by whoever runs this
        return _Witness(self, lease, around)

    def end_forgotten(self) -> None:
        """End what could not be ended when it was over."""
        while self.forgotten:
            span, over = self.forgotten.popleft()
            span.end(over)


class _Attempt:
    """One acquire."""

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
        """It has ended."""
        span = self._span
        span.set_attribute("dibs.outcome", _outcome(error))
        if isinstance(error, Exception):
            span.set_attribute("error.type", type(error).__qualname__)
            if not isinstance(error, AcquireTimeout):
                span.set_status(trace.StatusCode.ERROR)
        span.end()
        self._tracing.outside.pop(self._me, None)
        if not isinstance(error, GeneratorExit):  # nobody goes on, and we are in anybody's context
            _attempt.set(self._around)
            contexts.detach(self._context)


class _Witness:
    """One hold."""

    def __init__(
        self, tracing: _Tracing, lease: TracedLease, around: contexts.Context | None
    ) -> None:
        self._tracing = tracing
        about = tracing.about(lease.key) | {"dibs.token": lease.token}
        self._span = tracing.tracer.start_span("dibs.hold", around, attributes=about)

    def renewed(self) -> None:
        """The store keeps it for longer."""
        self._span.add_event("renewed")

    def ended(self, how: str) -> None:
        """It was given up, or lost."""
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
