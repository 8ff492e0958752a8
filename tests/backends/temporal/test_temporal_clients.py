"""A store made from somebody's own Temporal client: the same server, and the same way to write payloads."""

import asyncio
from uuid import uuid4

import pytest
from temporalio.client import Client
from temporalio.worker import Worker

import dibs
from dibs.backends.temporal.protocol.ids import broker_id
from dibs.errors import BackendUnavailable
from dibs.temporal.worker.served import ACTIVITIES, WORKFLOWS
from tests.backends.temporal.looking import Looker, new_key
from tests.servers.temporal import TemporalServer
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
    """Of a long name a broker's ID has but a hash, and its input was written by another converter."""
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
