"""Temporal, its workers and clients that end, hang or answer nothing: what is reported, and what recovers."""

import asyncio
import gc
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.converter import DataConverter, PayloadCodec
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

import dibs
import dibs.sync
from dibs.errors import BackendUnavailable, Forbidden, IncompatibleVersion, NotConfigured
from dibs.model import Inspect, Queued, Refused, Renew, Renewed
from dibs.stores.registry import store_for, store_of
from dibs.stores.temporal import ids, wire
from dibs.stores.temporal.client import pollers
from dibs.stores.temporal.errors import explain
from dibs.stores.temporal.store import TemporalStore
from dibs.stores.temporal.url import TemporalTarget
from dibs.testing.proxy import FaultProxy
from tests.cli.processes import Cli, end
from tests.connections import connection_to
from tests.servers.temporal import TemporalServer
from tests.servers.waiting import wait_until
from tests.stores.sides import Side, acquire, both_sides, granted, release
from tests.stores.temporal.serving import ThreadedWorker, brokers_for
from tests.temporal.brokers import Waiter, serving
from tests.temporal.workers import unique

pytestmark = [pytest.mark.multiprocess, pytest.mark.once]


def new_key() -> bytes:
    """A key that no other test uses."""
    return f"lock:{uuid4().hex}".encode()


@both_sides
async def test_there_is_no_such_host(side: Side) -> None:
    with pytest.raises(BackendUnavailable, match="there is no such host"):
        await side.open(store_for("temporal://nowhere.invalid:7233/default"))


@both_sides
async def test_it_does_not_speak_tls(temporal_server: TemporalServer, side: Side) -> None:
    with pytest.raises(NotConfigured, match=r"does not speak TLS: add \?tls=false"):
        await side.open(store_for(f"{temporal_server.url}?api_key=a"))


@both_sides
async def test_there_is_no_such_namespace(temporal_server: TemporalServer, side: Side) -> None:
    url = f"temporal://{temporal_server.address}/nope"

    backend = await side.open(store_for(url))
    for command in (acquire("a", new_key()), Inspect(new_key())):
        with pytest.raises(NotConfigured, match="namespace create --namespace nope"):
            await backend.apply([command])


DISABLED = "Operation on this namespace: ExecuteMultiOperation is disabled"
"""What servers before 1.28 say."""


@pytest.mark.parametrize(
    ("status", "message", "kind", "reason"),
    [
        (RPCStatusCode.UNAUTHENTICATED, "no", Forbidden, "check the API key"),
        (RPCStatusCode.PERMISSION_DENIED, "no", Forbidden, "for this namespace"),
        (RPCStatusCode.PERMISSION_DENIED, DISABLED, IncompatibleVersion, "is too old"),
        (RPCStatusCode.UNIMPLEMENTED, "no", IncompatibleVersion, "an update together with a start"),
        (RPCStatusCode.RESOURCE_EXHAUSTED, "no", BackendUnavailable, "takes no more calls"),
        (RPCStatusCode.INTERNAL, "no", BackendUnavailable, "could not apply it"),
    ],
)
def test_what_a_servers_error_means(
    status: RPCStatusCode, message: str, kind: type[Exception], reason: str
) -> None:
    target = TemporalTarget(address="h:1", namespace="n")
    failure = explain(RPCError(message, status, b""), target)
    assert type(failure) is kind
    assert reason in str(failure)
    assert "h:1/n" in str(failure)
    assert f"({message})" in str(failure)


@both_sides
async def test_nobody_serves_the_queue(temporal_server: TemporalServer, side: Side) -> None:
    """It is said at once. What was asked for in vain ends with its ttl, if a worker comes before."""
    queue, key = f"empty-{uuid4().hex}", new_key()

    backend = await side.open(store_for(f"{temporal_server.url}?task_queue={queue}"))
    with pytest.raises(BackendUnavailable) as error:
        await backend.apply([acquire("a", key)])
    assert f"nobody serves the task queue '{queue}'" in str(error.value)
    assert "dibs temporal worker" in str(error.value)
    with brokers_for(temporal_server, queue):
        await side.again(backend, release("a", key), within=20)
        granted((await backend.apply([acquire("b", key)]))[0])


@both_sides
async def test_a_broker_stays_on_the_queue_that_it_was_started_on(
    temporal_server: TemporalServer, side: Side
) -> None:
    """Who names another queue is served as long as that one is, and an error names it."""
    first, other, key = f"first-{uuid4().hex}", f"other-{uuid4().hex}", new_key()
    worker = ThreadedWorker(temporal_server.address, first)
    worker.start()

    try:
        holder = await side.open(store_for(f"{temporal_server.url}?task_queue={first}"))
        granted((await holder.apply([acquire("a", key)]))[0])
        backend = await side.open(store_for(f"{temporal_server.url}?task_queue={other}"))
        (refused,) = await backend.apply([acquire("b", key)])
        assert isinstance(refused, Refused)
    finally:
        worker.stop()
    with pytest.raises(BackendUnavailable, match=f"the task queue '{first}'"):
        await backend.apply([Renew(key, "b", 6.0)])


@both_sides
async def test_a_worker_that_stops_is_missed_and_its_successor_knows_all(
    temporal_server: TemporalServer, side: Side
) -> None:
    queue, key = f"changing-{uuid4().hex}", new_key()
    worker = ThreadedWorker(temporal_server.address, queue)
    worker.start()

    backend = await side.open(store_for(f"{temporal_server.url}?task_queue={queue}"))
    try:
        first = granted((await backend.apply([acquire("a", key)]))[0])
    finally:
        worker.stop()
    with pytest.raises(BackendUnavailable, match="worker"):
        await backend.apply([Renew(key, "a", 3.0)])
    with brokers_for(temporal_server, queue):
        (renewed,) = await side.again(backend, Renew(key, "a", 30.0))
        assert isinstance(renewed, Renewed)
        (queued,) = await backend.apply([acquire("b", key, queue=True)])
        assert isinstance(queued, Queued)
        await backend.apply([release("a", key)])
        second = granted((await backend.apply([acquire("b", key, queue=True)]))[0])
        assert second.token > first.token


def test_doctor_tells_of_server_and_worker(
    temporal_url: str, temporal_server: TemporalServer
) -> None:
    with dibs.sync.connect(temporal_url) as client:
        found = {each.about: each for each in client.examine()}
    assert found["server"].told.startswith("Temporal 1.")
    assert found["worker"].level == "ok"
    assert "a worker serves the task queue" in found["worker"].told
    assert "development server" in found["promises"].told
    with dibs.sync.connect(f"{temporal_server.url}?task_queue=nobody") as client:
        found = {each.about: each for each in client.examine()}
    assert found["worker"].level == "problem"
    assert "dibs temporal worker" in found["worker"].advice


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
    temporal_server: TemporalServer, temporal_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Temporal's own handle of a start that was never sent would be waited for, for ever."""
    monkeypatch.setenv("TEMPORAL_TASK_QUEUE", temporal_url.rpartition("=")[2])
    converter = DataConverter(payload_codec=Broken())
    client = await Client.connect(temporal_server.address, data_converter=converter)
    backend = connection_to(store_of(client), "async")
    async with asyncio.timeout(LONG):
        with pytest.raises(BackendUnavailable, match="no key to encrypt with"):
            await backend.apply([acquire("a", new_key())])
    await backend.close()


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
    monkeypatch.setattr("dibs.locks.acquire.BRIEFLY", 30.0)


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


def test_what_was_used_before_a_fork_is_of_no_use_in_the_child(temporal_url: str) -> None:
    """It says so, the child can connect anew and ends as any program does, and its parent goes on."""
    code = """if True:
        import os, sys
        from dibs import NotConfigured
        from dibs.sync import connect
        client = connect(sys.argv[1])
        with client.lock(sys.argv[2], ttl=30) as lease:
            child = os.fork()
            if not child:
                try:
                    client.lock(sys.argv[2] + "-own").acquire(wait=5)
                except NotConfigured as error:
                    print(lease.lost, "connect in the child" in str(error), flush=True)
                with connect(sys.argv[1]) as own:
                    print(own.lock(sys.argv[2]).try_acquire() is None, flush=True)
                    own.lock(sys.argv[2] + "-own").acquire(wait=5).release()
                print("ends", flush=True)
                sys.exit(7)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
            lease.renew()
            print(lease.lost)
    """
    command = [sys.executable, "-W", "ignore", "-c", code, temporal_url, uuid4().hex]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    lines = ["True True", "True", "ends", "7", "False"]
    assert (done.stdout.splitlines(), done.returncode) == (lines, 0), done.stderr


def test_a_child_ends_whose_parent_found_no_server() -> None:
    """Its threads are there all the same, and in the child they are not."""
    code = """if True:
        import os, sys
        from dibs import BackendUnavailable
        from dibs.sync import connect
        try:
            connect("temporal://127.0.0.1:1").lock("x").acquire(wait=0)
        except BackendUnavailable:
            print("nobody", flush=True)
        for _ in range(5):
            child = os.fork()
            if not child:
                sys.exit(7)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    """
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.split(), done.returncode) == (["nobody", *"77777"], 0), done.stderr
