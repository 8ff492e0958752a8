"""Whether a server's requests are traced: they are where its process has set OpenTelemetry up."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from dibs.server.serve import Server


@asynccontextmanager
async def traced(server: "Server") -> AsyncGenerator[None]:
    """Trace as long as the server runs, if there is anybody to tell."""
    tracer = _tracer()
    if tracer is not None:
        from dibs.server.spans import Spans  # only where OpenTelemetry is there

        service = server.service
        spans = service.spans = Spans(service, tracer)
        service.observers.append(spans.saw)
    yield


def _tracer() -> "Tracer | None":
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None  # nobody has set one, and so nobody would ever see a span
    return provider.get_tracer("dibs.server")
