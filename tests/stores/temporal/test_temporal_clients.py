"""A store made from somebody's own Temporal client: the same server, and the same way to write payloads."""

import asyncio
import time
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client
from temporalio.worker import Worker

import dibs
from dibs.errors import BackendUnavailable
from dibs.stores.temporal import client as temporal_client
from dibs.stores.temporal import ids, wire
from dibs.stores.temporal import store as temporal_store
from dibs.stores.temporal.ids import broker_id
from dibs.temporal.worker.served import ACTIVITIES, WORKFLOWS
from tests.servers.temporal import TemporalServer
from tests.stores.temporal.looking import Looker, new_key
from tests.temporal.brokers import QUICK
from tests.temporal.turned import turned
from tests.temporal.workers import PATIENCE

pytestmark = pytest.mark.once


async def test_it_goes_where_the_client_goes_and_speaks_as_it_does(
    temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = f"codec-{uuid4().hex}"
    monkeypatch.setenv("TEMPORAL_TASK_QUEUE", queue)
    theirs = await Client.connect(temporal_server.address, data_converter=turned)
    served = Worker(
        theirs,
        task_queue=queue,
        workflows=WORKFLOWS,
        activities=ACTIVITIES,
        workflow_runner=QUICK,
    )
    name = uuid4().hex
    async with served, dibs.connect(client=theirs) as client:
        assert client.url == temporal_server.url
        async with client.lock(name, wait=30):
            assert [each.name async for each in client.list(name)] == [name.encode()]


async def test_a_broker_whose_name_only_others_can_read_is_left_out_of_a_list(
    temporal_server: TemporalServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of a long name a broker's ID has but a hash, and its memo was written by another converter."""
    hidden = new_key() + b"/" + b"n" * 400
    looker = Looker(f"{temporal_server.url}?task_queue=codec-{uuid4().hex}")
    looker.start_broker(hidden)
    theirs = await Client.connect(temporal_server.address, data_converter=turned)
    async with dibs.connect(client=theirs) as client:
        async with asyncio.timeout(PATIENCE):
            while broker_id(hidden) not in caplog.text:  # the server's index lags behind a little
                assert not [each async for each in client.list(uuid4().hex)]
                await asyncio.sleep(0.05)
    looker.terminate(broker_id(hidden))


def test_a_client_of_something_else_is_refused() -> None:
    with pytest.raises(dibs.NotConfigured, match="or from a client of temporalio"):
        dibs.connect(client=BackendUnavailable())


HOUR = 3600.0


class Off:
    """A clock that is so many seconds ahead."""

    def __init__(self, by: float) -> None:
        self._by = by

    def time(self) -> float:
        return time.time() + self._by

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


@pytest.mark.parametrize("by", [HOUR, -HOUR])
async def test_a_clock_that_is_an_hour_off(
    url: str, by: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporal_store, "time", Off(by))
    monkeypatch.setattr(temporal_client, "time", Off(by))
    async with dibs.connect(url) as client:
        lease = await client.lock(uuid4().hex, ttl=30).acquire(wait=30)
        assert lease.token > 0
        await lease.release()
        found = {each.about: each for each in await client.examine()}
    if by > 0:
        assert found["worker"].level == "warning"
        assert "this machine's clock seems to be ahead" in found["worker"].told
    else:
        assert found["worker"].level == "ok"


async def test_nobody_is_nobody_whatever_the_clock_says(
    temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporal_client, "time", Off(-HOUR))
    url = f"{temporal_server.url}?task_queue=nobody-{uuid4().hex}"
    async with dibs.connect(url) as client:
        with pytest.raises(BackendUnavailable, match="nobody serves"):
            await client.lock(uuid4().hex, ttl=30).acquire(wait=10)


async def test_a_broker_on_a_queue_that_nobody_serves_is_named(
    url: str, temporal_server: TemporalServer
) -> None:
    """Whoever started it there named another queue than we do, which is served."""
    nowhere, client = f"typo-{uuid4().hex[:8]}", await Client.connect(temporal_server.address)
    key = f"lock:{nowhere}".encode()
    stray = await client.start_workflow(
        ids.BROKER,
        wire.BrokerInput(wire.text_of(key)),
        id=ids.broker_id(key),
        task_queue=nowhere,
    )
    async with dibs.connect(url) as store:
        told = (
            f"nobody serves the task queue '{nowhere}', on which the broker {stray.id} in .*"
            f"terminate --workflow-id {stray.id}"
        )
        with pytest.raises(dibs.BackendUnavailable, match=told):
            await store.lock(nowhere, ttl="9s").acquire(wait=0)
    await stray.terminate()
