"""Nobody answers: whoever waits is told in time, and may leave at any time."""

import asyncio
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.converter import DataConverter, PayloadCodec
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

import dibs.sync
from dibs.errors import BackendUnavailable
from dibs.stores.registry import store_for, store_of
from dibs.stores.temporal import ids, wire
from dibs.stores.temporal.client import pollers
from tests.cli.processes import Cli, end
from tests.connections import connection_to
from tests.servers.temporal import TemporalServer
from tests.servers.waiting import wait_until
from tests.stores.redis.both_worlds import acquire
from tests.stores.temporal.looking import new_key
from tests.stores.temporal.serving import ThreadedWorker, brokers_for

pytestmark = [pytest.mark.multiprocess, pytest.mark.once]

LONG = 30.0
"""Seconds within which everything that is to happen at once has happened, on a busy machine too."""


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    found = Cli(tmp_path)
    yield found
    found.kill_all()


def interrupt(process: "subprocess.Popen[str]") -> None:
    """It ends as interrupted, in time."""
    process.send_signal(signal.SIGINT)
    code, _, told = end(process)
    assert code == -signal.SIGINT, told


def test_who_waits_for_a_server_that_hangs_may_leave(tmp_path: Path, cli: Cli) -> None:
    name = uuid4().hex
    with TemporalServer(tmp_path) as server, brokers_for(server) as cli.url:
        with dibs.sync.connect(cli.url) as client, client.lock(name, ttl=600):
            waiter = cli.start("run", name, "--", "true")
            wait_until(lambda: client.status(name).waiting == 1, "it waits")
            server.pause()
            interrupt(waiter)
            told = cli("run", name, "--wait", "1", "--", "true")
            assert told.returncode == 69
            assert "check that the server runs, and the host, port and firewall" in told.stderr
            server.resume()


def test_who_connects_to_what_never_answers_may_leave(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hole:
        hole.settimeout(LONG)
        cli.url = f"temporal://127.0.0.1:{hole.getsockname()[1]}/default"
        caller = cli.start("run", "x", "--", "true")
        connection, _ = hole.accept()
        with connection:
            interrupt(caller)


def test_who_waits_for_a_worker_that_has_gone_is_told_whom_to_start(
    temporal_server: TemporalServer, cli: Cli
) -> None:
    queue, name = f"gone-{uuid4().hex}", uuid4().hex
    worker = ThreadedWorker(temporal_server.address, queue)
    worker.start()
    cli.url = f"{temporal_server.url}?task_queue={queue}"
    with dibs.sync.connect(cli.url) as client:
        held = client.lock(name, ttl=600).acquire()
        waiter = cli.start("run", name, "--wait", "60", "--", "true")
        wait_until(lambda: client.status(name).waiting == 1, "it waits")
        worker.stop()
        told = cli("run", name, "--wait", "1", "--", "true")
        assert told.returncode == 69
        assert f"`dibs temporal worker --task-queue {queue}`" in told.stderr
        interrupt(waiter)
        with brokers_for(temporal_server, queue):
            held.release()


@workflow.defn(name=ids.BROKER)
class Mute:
    """A broker that takes every call and answers none."""

    @workflow.run
    async def run(self, given: wire.BrokerInput) -> None:
        await workflow.wait_condition(lambda: False)

    @workflow.update(name=ids.APPLY)
    async def take(self, call: wire.BrokerCall) -> wire.BrokerAnswer:
        await workflow.wait_condition(lambda: False)
        return wire.BrokerAnswer([])


async def test_a_call_that_was_taken_and_is_not_answered_has_an_end(
    temporal_server: TemporalServer,
) -> None:
    queue = f"mute-{uuid4().hex}"
    client = await Client.connect(temporal_server.address)
    runner = UnsandboxedWorkflowRunner()
    backend = connection_to(store_for(f"{temporal_server.url}?task_queue={queue}"), "async")
    async with Worker(client, task_queue=queue, workflows=[Mute], workflow_runner=runner):
        while not await pollers(client, queue):
            await asyncio.sleep(0.02)
        key = new_key()
        async with asyncio.timeout(LONG):
            with pytest.raises(BackendUnavailable, match=r"did not answer within 0\.9 s"):
                await backend.apply([acquire("a", key, ttl=6.0)])
        await client.get_workflow_handle(ids.broker_id(key)).terminate()
    await backend.close()


class Broken(PayloadCodec):
    """Whatever is to be sent can't be."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        raise ValueError("no key to encrypt with")

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)


async def test_what_can_not_be_sent_is_told(
    temporal_server: TemporalServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Temporal's own handle of a start that was never sent would be waited for, for ever."""
    monkeypatch.setenv("TEMPORAL_TASK_QUEUE", url.rpartition("=")[2])
    converter = DataConverter(payload_codec=Broken())
    client = await Client.connect(temporal_server.address, data_converter=converter)
    backend = connection_to(store_of(client), "async")
    async with asyncio.timeout(LONG):
        with pytest.raises(BackendUnavailable, match="no key to encrypt with"):
            await backend.apply([acquire("a", new_key())])
    await backend.close()
