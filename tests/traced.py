"""OpenTelemetry's own SDK, set up as a process would, for as long as a test needs it."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.servers.waiting import wait_until


class Traces:
    """All spans that have ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("a user's own")

    def clear(self) -> None:
        """Forget what has ended until now."""
        self._exporter.clear()

    @property
    def ended(self) -> Sequence[ReadableSpan]:
        """All of them."""
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        """Those of a name, the oldest first."""
        return [span for span in self.ended if span.name == name]

    def some(self, name: str, count: int = 1) -> Sequence[ReadableSpan]:
        """Those of a name, once there are so many: a request's ends a moment after its answer."""
        wait_until(lambda: len(self.named(name)) >= count, f"{count} spans {name}")
        return self.named(name)

    def one(self, name: str) -> ReadableSpan:
        """The only one of a name."""
        (span,) = self.some(name)
        return span

    @property
    def text(self) -> str:
        """All that was told."""
        return "\n".join(span.to_json() for span in self.ended)


@contextmanager
def traces_kept() -> Generator[Traces]:
    """As `trace.set_tracer_provider` does it, which a process can do only once."""
    traces = Traces()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace, "_TRACER_PROVIDER", traces.provider)
        yield traces
    traces.provider.shutdown()


def about(span: ReadableSpan) -> dict[str, Any]:
    """What it says."""
    return dict(span.attributes or {})


def ids(span: ReadableSpan) -> tuple[int, int]:
    """Its trace's id, and its own."""
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def parent(span: ReadableSpan) -> tuple[int, int]:
    """Those of its parent; zeros for none."""
    return (0, 0) if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def links(span: ReadableSpan) -> list[tuple[int, int]]:
    """Those of the spans that it is linked to."""
    return [(link.context.trace_id, link.context.span_id) for link in span.links]
