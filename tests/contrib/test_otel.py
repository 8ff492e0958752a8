"""Spans of acquires and holds, in asyncio and threads, by OpenTelemetry's own SDK."""

import asyncio
from collections.abc import Iterator

import pytest
from opentelemetry.trace import StatusCode

from dibs import BackendUnavailable
from dibs.contrib import otel
from dibs.errors import LeaseLost
from tests.locks.worlds import World, in_both_worlds, site
from tests.traced import Traces, about, ids, links, parent

pytestmark = pytest.mark.once

ACQUIRE, HOLD = "dibs.acquire", "dibs.hold"


@pytest.fixture
def traces() -> Iterator[Traces]:
    traces = Traces()
    otel.instrument(tracer_provider=traces.provider)
    yield traces
    otel.uninstrument()


@in_both_worlds
async def test_an_acquire_and_a_hold(w: World, traces: Traces) -> None:
    pool = w.client.semaphore("pool/secret", 3)
    with traces.tracer.start_as_current_span("mine") as mine:
        lease = await w.get(pool.acquire(units=2, wait=5, note="why"))
        with traces.tracer.start_as_current_span("inside"):
            pass
    (holder,) = (await w.get(pool.status())).holders
    assert holder.note == "why", "what is hidden there stays hidden"
    await w.get(lease.release())
    acquire, hold, inside = (traces.one(name) for name in (ACQUIRE, HOLD, "inside"))
    assert {parent(each) for each in (acquire, hold, inside)} == {ids(mine)}  # type: ignore[arg-type]
    assert about(acquire) == {
        "dibs.kind": "semaphore",
        "dibs.wait": 5,
        "dibs.units": 2,
        "dibs.outcome": "granted",
    }
    assert about(hold) == {
        "dibs.kind": "semaphore",
        "dibs.token": lease.token,
        "dibs.end": "released",
    }
    assert "secret" not in traces.text
    assert "why" not in traces.text
    otel.instrument(names=True, tracer_provider=traces.provider)
    await w.get((await w.get(w.client.lock(b"a/\xff").acquire())).release())
    assert [about(span).get("dibs.name") for span in traces.some(HOLD, 2)] == [None, "a/\\xff"]


def test_a_refused_acquire_is_linked_to_the_holders(traces: Traces) -> None:
    w = World("sync")
    with w.client.lock("a"):
        assert w.another().lock("a").try_acquire() is None
    first, second = traces.some(ACQUIRE, 2)
    assert links(second) == [ids(first)]
    assert about(second) == {
        "dibs.kind": "lock",
        "dibs.wait": 0,
        "dibs.outcome": "refused",
        "error.type": "AcquireTimeout",
    }
    assert second.status.status_code is StatusCode.UNSET, "it may well be in use"


def test_a_renewal_and_a_loss(traces: Traces) -> None:
    w = World("sync")
    lease = w.client.lock("a", ttl=30).acquire()
    lease.renew()
    w.another().revoke("a", reason="a test", now=True)
    with pytest.raises(LeaseLost):
        lease.renew()
    hold = traces.one(HOLD)
    events = [(event.name, dict(event.attributes or {})) for event in hold.events]
    assert events == [("renewed", {}), ("lost", {"dibs.reason": "revoked"})]
    assert (hold.status.status_code, about(hold)["error.type"]) == (StatusCode.ERROR, "LeaseLost")
    assert "a test" not in traces.text


def test_a_store_that_is_away(traces: Traces) -> None:
    def gone(_: object) -> None:
        raise BackendUnavailable("it is away, said payroll/x")

    store, client = site(World("sync"))
    store.before = gone
    with pytest.raises(BackendUnavailable):
        client.lock("a").acquire(wait=0)
    span = traces.one(ACQUIRE)
    assert (span.status.status_code, about(span)["dibs.outcome"]) == (StatusCode.ERROR, "failed")
    assert about(span)["error.type"] == "BackendUnavailable"
    assert "payroll" not in traces.text


async def test_a_wait_that_is_cancelled(traces: Traces) -> None:
    w = World("async")
    async with w.client.lock("a"):
        task = asyncio.create_task(w.another().lock("a").acquire().__aenter__())
        await w.turn()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert about(traces.some(ACQUIRE, 2)[1])["dibs.outcome"] == "cancelled"


def test_several_at_once(traces: Traces) -> None:
    w = World("sync")
    other = w.another()
    both = w.module.AllOf(other.lock("a"), other.lock("b"))
    with w.client.lock("b"):
        assert both.try_acquire() is None
    first, refused = traces.some(ACQUIRE, 2)
    assert links(refused) == [ids(first)]
    assert (about(refused)["dibs.kind"], about(refused)["dibs.keys"]) == ("allof", 2)
    with both:
        assert w.client.lock("a").try_acquire() is None
    granted, last = traces.some(ACQUIRE, 4)[2:]
    assert links(last) == [ids(granted)]
    assert {about(each)["dibs.kind"] for each in traces.some(HOLD, 3)} == {"lock"}


def test_a_lease_that_was_forgotten_ends_with_the_next_acquire(traces: Traces) -> None:
    """Not within the garbage collector, which may have interrupted an exporter that holds its lock."""
    w = World("sync")
    lease = w.client.lock("a").acquire()
    with pytest.warns(ResourceWarning):
        del lease
    assert not traces.named(HOLD)
    w.client.lock("b").acquire().release()
    forgotten, _ = traces.some(HOLD, 2)
    assert about(forgotten)["dibs.end"] == "forgotten"


def test_it_can_be_ended(traces: Traces) -> None:
    w = World("sync")
    with w.client.lock("a"):
        otel.uninstrument()
    w.client.lock("b").acquire().release()
    assert (len(traces.named(ACQUIRE)), len(traces.named(HOLD))) == (1, 1)
