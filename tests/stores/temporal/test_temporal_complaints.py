"""A program whose calls nobody answers leaves nothing behind of which its loop would complain."""

import asyncio
import gc
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

import dibs
from dibs.locks import acquire
from dibs.model import Renew
from dibs.stores.temporal.store import TemporalStore
from dibs.testing.proxy import FaultProxy
from tests.connections import connection_to
from tests.servers.temporal import TemporalServer
from tests.temporal.brokers import Waiter, serving
from tests.temporal.workers import unique

pytestmark = [pytest.mark.once]


@asynccontextmanager
async def without_complaints() -> AsyncGenerator[None]:
    """The loop complains of exceptions that nobody has looked at once they are thrown away."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: complaints.append(about))
    yield
    await asyncio.sleep(0.2)
    gc.collect()
    assert not complaints


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer for the same."""
    monkeypatch.setattr(acquire, "BRIEFLY", 30.0)


@pytest.mark.usefixtures("patient")
async def test_a_call_to_a_queue_that_nobody_serves(temporal_server: TemporalServer) -> None:
    async with without_complaints():
        url = f"{temporal_server.url}?task_queue={unique('nobody')}"
        async with dibs.connect(url) as client:
            with pytest.raises(dibs.BackendUnavailable, match="nobody serves"):
                await client.lock(unique("lock"), ttl=30).acquire(wait=0)


@pytest.mark.usefixtures("patient")
async def test_a_call_that_is_not_served(temporal_server: TemporalServer) -> None:
    """There is a worker, but of something else."""
    async with without_complaints(), serving(temporal_server.address, Waiter) as here:
        async with dibs.connect(f"{temporal_server.url}?task_queue={here.queue}") as client:
            with pytest.raises(dibs.BackendUnavailable, match="did not answer"):
                await client.lock(unique("lock"), ttl=3).acquire(wait=0)


async def test_a_call_that_is_cancelled(temporal_server: TemporalServer) -> None:
    at = urlsplit(temporal_server.url)
    assert at.hostname is not None
    assert at.port is not None
    with FaultProxy(at.hostname, at.port) as proxy:
        async with without_complaints():
            backend = connection_to(TemporalStore(proxy.url_for(temporal_server.url)), "async")
            await backend.open()
            proxy.hang()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await backend.apply([Renew(b"lock:a", "id", 1.0, inbox=backend.inbox)])
            proxy.heal()
            await backend.close()
