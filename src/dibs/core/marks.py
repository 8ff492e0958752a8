"""A span of somebody's trace, as it is kept with a hold: so that whoever is in its way can find it."""

from base64 import urlsafe_b64decode, urlsafe_b64encode

LENGTH = 32
"""Letters of a mark."""

_TRACE, _SPAN = 16, 8
"""Bytes of a trace's id, and of a span's."""


def mark_of(trace_id: int, span_id: int) -> str:
    """The mark of a span."""
    return urlsafe_b64encode(trace_id.to_bytes(_TRACE) + span_id.to_bytes(_SPAN)).decode()


def span_of(mark: str) -> tuple[int, int]:
    """The trace's id, and the span's, of a mark that `notes.mark_in` has found."""
    raw = urlsafe_b64decode(mark)
    return int.from_bytes(raw[:_TRACE]), int.from_bytes(raw[_TRACE:])
