"""`temporal://` on a server that takes no update together with a start."""

import asyncio

import pytest
from temporalio.service import RPCError, RPCStatusCode

import dibs
from dibs.stores.temporal.client.updating import starts_apart
from dibs.stores.temporal.protocol.ids import broker_id
from tests.servers.temporal import TemporalServer
from tests.temporal.brokers import serving
from tests.temporal.older_servers import older_server
from tests.temporal.workers import unique, until_closed

pytestmark = [pytest.mark.once]


async def test_a_broker_is_started_and_then_called(temporal_server: TemporalServer) -> None:
    async with (
        serving(temporal_server.address) as here,
        older_server(temporal_server.address) as old,
    ):
        url = f"temporal://{old.address}/default?task_queue={here.queue}"
        async with dibs.connect(url) as client:
            name = unique("lock")
            async with client.lock(name) as lease:
                first = lease.token
            waiting = [asyncio.create_task(_token(client, name)) for _ in range(3)]
            tokens = await asyncio.gather(*waiting)
            assert len({first, *tokens}) == 4
            assert first < min(tokens)
            handle = here.client.get_workflow_handle(broker_id(b"lock:" + name.encode()))
            await handle.terminate()
            await until_closed(here.client, handle.id)
            assert await _token(client, name) > max(tokens)  # started anew
        assert old.refused == 1  # it is asked once


@pytest.mark.parametrize(
    ("said", "status", "apart"),
    [
        ("unknown method ExecuteMultiOperation", RPCStatusCode.UNIMPLEMENTED, True),
        (
            "ExecuteMultiOperation API is disabled on this namespace.",
            RPCStatusCode.PERMISSION_DENIED,
            True,
        ),
        (
            "UpdateWorkflowExecution operation is disabled on this namespace.",
            RPCStatusCode.PERMISSION_DENIED,
            False,
        ),
        ("Request unauthorized.", RPCStatusCode.PERMISSION_DENIED, False),
        ("ExecuteMultiOperation took too long", RPCStatusCode.UNAVAILABLE, False),
    ],
)
async def test_an_old_server_s_refusal_is_told_from_others(
    said: str, status: RPCStatusCode, apart: bool
) -> None:
    assert starts_apart(RPCError(said, status, b"")) is apart


async def _token(client: dibs.Client, name: str) -> int:
    async with client.lock(name) as lease:
        return lease.token
