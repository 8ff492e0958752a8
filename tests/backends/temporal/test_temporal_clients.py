"""A store made from somebody's own Temporal client: the same server, and the same way to write payloads."""

import dataclasses
from collections.abc import Sequence
from uuid import uuid4

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.converter import DataConverter, PayloadCodec
from temporalio.worker import Worker

import leasehold
from leasehold.errors import BackendUnavailable
from leasehold.temporal.served import ACTIVITIES, WORKFLOWS
from tests.servers.temporal import TemporalServer
from tests.temporal.brokers import QUICK

pytestmark = pytest.mark.once


class Turned(PayloadCodec):
    """Writes everything backwards, in the stead of encrypting it."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._turned(each) for each in payloads]

    decode = encode

    def _turned(self, payload: Payload) -> Payload:
        return Payload(metadata=payload.metadata, data=payload.data[::-1])


async def test_it_goes_where_the_client_goes_and_speaks_as_it_does(
    temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = f"codec-{uuid4().hex}"
    monkeypatch.setenv("TEMPORAL_TASK_QUEUE", queue)
    turned = dataclasses.replace(DataConverter.default, payload_codec=Turned())
    theirs = await Client.connect(temporal_server.address, data_converter=turned)
    served = Worker(
        theirs,
        task_queue=queue,
        workflows=WORKFLOWS,
        activities=ACTIVITIES,
        workflow_runner=QUICK,
    )
    name = uuid4().hex
    async with served, leasehold.connect(client=theirs) as client:
        assert client.url == temporal_server.url
        async with client.lock(name, wait=30):
            assert [each.name async for each in client.list(name)] == [name.encode()]


def test_a_client_of_something_else_is_refused() -> None:
    with pytest.raises(leasehold.NotConfigured, match="only from a client of redis, temporalio"):
        leasehold.connect(client=BackendUnavailable())
