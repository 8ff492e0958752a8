"""A request belongs to the trace of whoever asks, in both worlds, and to none where nobody does."""

import asyncio
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan

import dibs
import dibs.sync
from dibs.errors import AcquireTimeout
from dibs.stores.http.requests import trace_lines
from tests.stores.http.serving import Served
from tests.traced import Traces, ids, links, parent, traces_kept

pytestmark = pytest.mark.once

BATCH = "POST /v1/batch"


@pytest.fixture(scope="module")
def kept() -> Iterator[Traces]:
    with traces_kept() as traces:
        yield traces


@pytest.fixture(scope="module")
def traced(kept: Traces) -> Iterator[Served]:
    service = Served()
    yield service
    service.close()


@pytest.fixture
def traces(kept: Traces, traced: Served) -> Traces:
    kept.clear()
    return kept


@pytest.fixture
def name() -> str:
    return secrets.token_hex(4)


def within(traces: Traces, span: ReadableSpan) -> list[ReadableSpan]:
    """The batches that belong to a span."""
    return [each for each in traces.some(BATCH) if parent(each) == ids(span)]


def test_a_thread(traces: Traces, traced: Served, name: str) -> None:
    def refused(client: dibs.sync.Client) -> None:
        with traces.tracer.start_as_current_span("other"), pytest.raises(AcquireTimeout):
            client.lock(name).acquire(wait=0)

    with dibs.sync.connect(traced.url) as client, ThreadPoolExecutor(1) as elsewhere:
        with traces.tracer.start_as_current_span("mine"):
            held = client.lock(name).acquire()
        elsewhere.submit(refused, client).result()
        held.release()
    traces.some(BATCH, 3)
    (first,) = within(traces, traces.one("mine"))
    (second,) = within(traces, traces.one("other"))
    assert links(second) == [ids(first)], "over the service, to the holder's trace"
    assert any(parent(each) == (0, 0) for each in traces.named(BATCH)), "its release is in none"


async def test_tasks_whose_commands_have_gathered(
    traces: Traces, traced: Served, name: str
) -> None:
    """A batch belongs to the first of them; never to whoever has opened the connection."""

    async def one(client: dibs.Client, number: int) -> None:
        with traces.tracer.start_as_current_span(f"task {number}"):
            for turn in range(5):
                async with client.lock(f"{name}/{number}/{turn}"):
                    pass

    async with dibs.connect(traced.url) as client:
        with traces.tracer.start_as_current_span("opened it"):
            await client.lock(name).status()
        traces.one(BATCH)
        traces.clear()
        async with asyncio.TaskGroup() as group:
            for number in range(6):
                group.create_task(one(client, number))
    tasks = {ids(traces.one(f"task {number}")) for number in range(6)}
    found = [parent(each) for each in traces.some(BATCH)]
    assert found
    assert set(found) <= tasks


def test_what_is_said(traces: Traces) -> None:
    state = trace.TraceState([("vendor", "x")])
    there = trace.SpanContext(
        1, 2, is_remote=True, trace_flags=trace.TraceFlags(1), trace_state=state
    )
    with ThreadPoolExecutor(1) as elsewhere, trace.use_span(trace.NonRecordingSpan(there)):
        assert trace_lines() == (
            b"traceparent: 00-00000000000000000000000000000001-0000000000000002-01\r\n"
            b"tracestate: vendor=x\r\n"
        )
        assert elsewhere.submit(trace_lines).result() == b"", "another thread is in no span"
