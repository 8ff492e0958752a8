"""The worker as a process: served, drained, killed, asked how it is."""

import asyncio
import signal
import socket
import subprocess
import sys

import pytest
from temporalio.client import Client

from dibs.temporal import PermitSlotInput, PermitSlotWorkflow
from tests.servers.temporal import TemporalServer
from tests.temporal.turned import turned
from tests.temporal.worker_processes import (
    ANY_PORT,
    LONG,
    WorkerProcess,
    environment,
    fetch,
    free_address,
    run,
)
from tests.temporal.workers import connected, status_of, unique, until

pytestmark = [pytest.mark.once, pytest.mark.multiprocess]


async def permit(client: Client, queue: str) -> str:
    """One that is held; its workflow ID."""
    found = f"permit:{unique('r')}:0"
    given = PermitSlotInput(resource=found.split(":")[1], slot="0", lease_seconds=300)
    await client.start_workflow(PermitSlotWorkflow.run, given, id=found, task_queue=queue)
    return found


async def until_begun(client: Client, permit: str) -> None:
    """A worker has done its first task."""

    async def begun() -> bool:
        history = await client.get_workflow_handle(permit).fetch_history()
        return len(history.events) >= 4

    await until(begun)


async def released(client: Client, permit: str) -> str:
    """How it ended, after its holder has said that it is done."""
    handle = client.get_workflow_handle(permit, result_type=str)
    await handle.signal("release")
    async with asyncio.timeout(LONG):
        return str(await handle.result())


async def test_drained_without_losing_a_permit(temporal_server: TemporalServer) -> None:
    """SIGTERM ends it with 0, what is held stays held, and the next worker goes on with it."""
    client, queue = await connected(temporal_server), unique("queue")
    url = f"{temporal_server.url}?task_queue={queue}"
    with WorkerProcess("--url", url, "--health", ANY_PORT, "--metrics", ANY_PORT) as first:
        health = await asyncio.to_thread(first.until_at, "health")
        metrics = await asyncio.to_thread(first.until_at, "metrics")
        await asyncio.to_thread(first.until, "ready")
        held = await permit(client, queue)
        await until_begun(client, held)
        assert await asyncio.to_thread(fetch, health, "/readyz") == (200, "ok\n")
        assert await asyncio.to_thread(fetch, health, "/livez") == (200, "ok\n")
        status, told = await asyncio.to_thread(fetch, metrics, "/metrics")
        assert status == 200
        assert f'task_queue="{queue}"' in told
        first.signal(signal.SIGTERM)
        await asyncio.to_thread(first.until, "draining")
        await asyncio.to_thread(first.until, "stopped")
        assert await asyncio.to_thread(first.ended) == 0
    assert await status_of(client, held) == "RUNNING"
    with WorkerProcess("--address", temporal_server.address, "--task-queue", queue) as second:
        await asyncio.to_thread(second.until, "ready")
        assert await released(client, held) == "released"
        second.signal(signal.SIGINT)
        assert await asyncio.to_thread(second.ended) == 0


async def test_it_speaks_as_a_data_converter_of_its_users_does(
    temporal_server: TemporalServer,
) -> None:
    """A permit whose input nobody else could read is served, and its outcome is written likewise."""
    plain, queue = await connected(temporal_server), unique("queue")
    client = await Client.connect(temporal_server.address, data_converter=turned)
    env = environment(TEMPORAL_TASK_QUEUE=queue, TEMPORAL_ADDRESS=temporal_server.address)
    with WorkerProcess("--data-converter", "tests.temporal.turned:turned", env=env) as served:
        await asyncio.to_thread(served.until, "ready")
        held = await permit(client, queue)
        assert await released(client, held) == "released"
    assert await plain.get_workflow_handle(held, result_type=str).result() == "desaeler"


async def test_two_workers_and_one_is_killed(temporal_server: TemporalServer) -> None:
    client, queue = await connected(temporal_server), unique("queue")
    env = environment(TEMPORAL_TASK_QUEUE=queue, TEMPORAL_ADDRESS=temporal_server.address)
    with WorkerProcess(env=env) as first, WorkerProcess(env=env) as second:
        await asyncio.to_thread(first.until, "ready")
        held = await permit(client, queue)
        await until_begun(client, held)
        await asyncio.to_thread(second.until, "ready")
        first.process.kill()
        await asyncio.to_thread(first.ended)
        assert await released(client, held) == "released"  # the dead one has it in its cache
        assert await released(client, await permit(client, queue)) == "released"


def test_alive_but_not_ready_before_it_is_served() -> None:
    """A server that takes the connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        with WorkerProcess("--address", address, "--health", ANY_PORT) as worker:
            health = worker.until_at("health")
            assert fetch(health, "/livez") == (200, "ok\n")
            assert fetch(health, "/readyz") == (503, "it is connecting\n")
            worker.signal(signal.SIGTERM)
            worker.until("stopped")
            assert worker.ended() == 0


def test_a_second_signal_ends_it_at_once() -> None:
    code = (
        "import asyncio, os, signal\n"
        "from dibs.temporal.worker.serve import AT_ONCE, _ending_by_signals\n"
        "async def main():\n"
        "    stopping = asyncio.Event()\n"
        "    with _ending_by_signals(stopping):\n"
        "        for _ in range(2): os.kill(os.getpid(), signal.SIGTERM)\n"
        "        await stopping.wait()\n"
        "        print('one', flush=True)\n"
        "        await asyncio.sleep(AT_ONCE * 2)\n"
        "        print('drains', flush=True)\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LONG, check=False
    )
    assert (done.stdout, done.stderr) == ("one\ndrains\n", "")
    assert done.returncode == -signal.SIGTERM


def test_a_wrong_address() -> None:
    nobody = free_address()
    done = run("temporal", "worker", "--address", nobody)
    assert done.returncode == 69
    assert f"{nobody}/default can't be reached: check that the server runs" in done.stderr


def test_a_wrong_namespace(temporal_server: TemporalServer) -> None:
    name = unique("namespace")
    done = run("temporal", "worker", "--address", temporal_server.address, "--namespace", name)
    assert done.returncode == 64
    assert "serving" not in done.stderr
    assert f"{temporal_server.address} has no namespace '{name}'" in done.stderr
    assert f"temporal operator namespace create --namespace {name}" in done.stderr


@pytest.mark.parametrize("option", ["--health", "--metrics"])
def test_a_taken_port(option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run("temporal", "worker", "--address", free_address(), option, address)
    assert done.returncode == 64
    assert address in done.stderr
