"""Links of OpenTelemetry from whoever is kept waiting to the spans of those who are in the way."""

from collections.abc import Iterable

from opentelemetry import trace

from dibs.core.marks import mark_of, span_of
from dibs.core.notes import mark_in
from dibs.model import Holder

MOST = 8
"""So many are linked to from one span."""

_SAMPLED = trace.TraceFlags(trace.TraceFlags.SAMPLED)


def mark_for(span: trace.Span) -> str:
    """What leads to a span from what it acquires; empty if nobody keeps it."""
    about = span.get_span_context()
    if not (about.is_valid and about.trace_flags.sampled):
        return ""
    return mark_of(about.trace_id, about.span_id)


class Links:
    """Those of one span, to each holder once."""

    __slots__ = ("_linked", "_span")

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        self._linked: set[str] = set()

    def add(self, holders: Iterable[Holder]) -> None:
        """To the spans that led to these holds, where they are known."""
        for mark in filter(None, (mark_in(holder.note) for holder in holders)):
            if mark not in self._linked and len(self._linked) < MOST:
                self._linked.add(mark)
                there = trace.SpanContext(*span_of(mark), is_remote=True, trace_flags=_SAMPLED)
                self._span.add_link(there, {"dibs.link": "holder"})
