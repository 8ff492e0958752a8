"""OpenTelemetry links from a waiter's span to the spans of the holders that it waits for."""

from collections.abc import Iterable

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from dibs.model import Holder

MOST = 8
"""Links of one span, at most."""

_w3c = TraceContextTextMapPropagator()


def trace_of(span: trace.Span) -> str:
    """The span's W3C `traceparent`, to be stored with what it acquires; empty if it is not sampled."""
    about = span.get_span_context()
    if not (about.is_valid and about.trace_flags.sampled):
        return ""
    carrier: dict[str, str] = {}
    _w3c.inject(carrier, trace.set_span_in_context(span))
    return carrier["traceparent"]


class Links:
    """The links of one span, at most one to each holder's."""

    __slots__ = ("_linked", "_span")

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        self._linked: set[str] = set()

    def add(self, holders: Iterable[Holder]) -> None:
        """Link to the spans that acquired these leases, where they were traced."""
        for traced in filter(None, (holder.trace for holder in holders)):
            if traced not in self._linked and len(self._linked) < MOST:
                self._linked.add(traced)
                context = _w3c.extract({"traceparent": traced})
                there = trace.get_current_span(context).get_span_context()
                if there.is_valid:
                    self._span.add_link(there, {"dibs.link": "holder"})
