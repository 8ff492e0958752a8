"""Temporal as a store: calls and waiters at its brokers, and what ends, hangs or answers nothing."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker

import dibs
import dibs.sync
from dibs.errors import BackendUnavailable, Forbidden, IncompatibleVersion, NotConfigured
from dibs.model import (
    Acquire,
    Failed,
    Granted,
    Inspect,
    Lost,
    Queued,
    Refused,
    Release,
    Released,
    Renew,
    Renewed,
    Status,
    Unknown,
)
from dibs.stores.registry import store_for
from dibs.stores.temporal import ids, wire
from dibs.stores.temporal.errors import explain
from dibs.stores.temporal.url import TemporalTarget
from dibs.temporal.worker.served import ACTIVITIES, WORKFLOWS
from dibs.testing.proxy import FaultProxy
from tests.cli.processes import Cli, end
from tests.servers.temporal import TemporalServer
from tests.servers.waiting import wait_until
from tests.stores.sides import Side, acquire, findings, granted, in_tasks, in_threads, release
from tests.stores.temporal.serving import brokers_for
from tests.temporal.brokers import QUICK
from tests.temporal.turned import turned

pytestmark = pytest.mark.once


def new_key() -> bytes:
    """A key that no other test uses."""
    return f"lock:{uuid4().hex}".encode()


async def broker_of(url: str, key: bytes) -> WorkflowHandle[Any, Any]:
    """The broker of a key, as its server knows it."""
    client = await Client.connect(urlsplit(url).netloc)
    return client.get_workflow_handle(ids.broker_id(key))


async def updates(broker: WorkflowHandle[Any, Any]) -> int:
    """Number of updates that its newest run has taken."""
    events = (await broker.fetch_history()).events
    return sum(
        each.HasField("workflow_execution_update_accepted_event_attributes") for each in events
    )


async def queue(backend: Any, name: str, key: bytes) -> None:
    (reply,) = await backend.apply([acquire(name, key, queue=True, inbox=backend.inbox)])
    assert isinstance(reply, Queued), reply


# -- calls and waiters -------------------------------------------------------------------------------


@in_tasks
async def test_an_acquire_costs_one_update_and_looking_starts_nothing(
    temporal_url: str, side: Side
) -> None:
    key = new_key()
    broker, backend = await broker_of(temporal_url, key), await side.open(temporal_url)
    (status,) = await backend.apply([Inspect(key)])
    assert isinstance(status, Status)
    await backend.apply([Renew(key, "a", 30.0), Release(key, "a")])
    with pytest.raises(RPCError, match="not found"):
        await broker.describe()
    await backend.apply([Release(key, "a", tombstone=60.0)])
    assert await updates(broker) == 1, "a tombstone is to be remembered"
    granted((await backend.apply([acquire("b", key, queue=True, inbox=backend.inbox)]))[0])
    assert await updates(broker) == 2
    assert await backend.apply([release("b", key)]) == [Released()]
    assert await updates(broker) == 3


@in_tasks
async def test_a_name_is_not_taken_for_the_error(temporal_url: str, side: Side) -> None:
    """The server quotes the name: "workflow not found for ID: dibs:lock:namespace …"."""
    backend, key = await side.open(temporal_url), b"lock:namespace " + uuid4().hex.encode()
    assert await backend.apply([Renew(key, "a", 30.0), Release(key, "a")]) == [Lost(), Unknown()]


@in_tasks
async def test_silent_brokers_delay_no_renewal_of_others(temporal_url: str, side: Side) -> None:
    """Theirs are on a task queue that nobody serves any more."""
    backend, key = await side.open(temporal_url), new_key()
    away = await side.open(f"{temporal_url}?task_queue=nobody")
    silent = [new_key() for _ in range(10)]
    with pytest.raises(BackendUnavailable):
        await away.apply([acquire("s", each, ttl=1.0) for each in silent])
    await backend.apply([acquire("a", key)])
    renewals = [Renew(each, "s", 1.0) for each in silent]
    began = time.monotonic()
    (*_, reply) = await backend.apply([*renewals, Renew(key, "a", 30.0)])
    assert isinstance(reply, Renewed)
    assert time.monotonic() - began < 8.0, "not one silent broker after the other"


@in_tasks
async def test_waiters_have_one_call_at_the_broker_that_ends_with_their_places(
    temporal_url: str, side: Side
) -> None:
    """Five may block in a broker; with ten, a server would keep the release off for seconds."""
    key = new_key()
    broker = await broker_of(temporal_url, key)
    holder = await side.open(temporal_url)
    waiters = [await side.open(temporal_url) for _ in range(10)]
    await holder.apply([acquire("a", key, ttl=600.0)])
    for number, waiter in enumerate(waiters):
        await queue(waiter, f"w{number}", key)
    await queue(waiters[0], "other", key)
    while await updates(broker) < 13:  # twelve calls, and one that waits
        await asyncio.sleep(0.02)
    began = time.monotonic()
    assert await holder.apply([release("a", key)]) == [Released()]
    assert time.monotonic() - began < 1.0
    assert (await side.pushed(waiters[0], "granted")).key == key
    for number, waiter in enumerate(waiters):
        await waiter.apply([release(f"w{number}", key), release("other", key)])
    seen = -1
    async with asyncio.timeout(20):  # those far back ask once more
        while (now := await updates(broker)) > seen:
            seen = now
            await asyncio.sleep(6)


@in_tasks
async def test_many_who_ask_at_once_are_served(temporal_url: str, side: Side) -> None:
    """A server takes ten updates of a workflow at a time."""
    backend = await side.open(temporal_url)
    key = new_key()
    asks = [acquire(f"n{n}", key, capacity=60) for n in range(60)]
    answers = await asyncio.gather(*(backend.apply([ask]) for ask in asks))
    assert [type(reply) for (reply,) in answers] == [Granted] * 60
    assert len({reply.slots for (reply,) in answers}) == 60


@in_tasks
async def test_what_is_too_large_is_refused_before_it_harms_its_key(
    temporal_url: str, side: Side
) -> None:
    """Between 2 and 4 MB the server takes it, and the broker could never answer."""
    key = new_key()
    backend = await side.open(temporal_url)
    large = Acquire(key, "a", "me", 30.0, capacity=1000, note="x" * 3_000_000)
    fitting = [acquire(f"n{n}", key, capacity=1000, note="y" * 1_900) for n in range(300)]
    replies = await backend.apply([acquire("b", key, capacity=1000), large, *fitting])
    assert replies[1] == Failed("invalid", replies[1].detail)
    assert f"{wire.TEXTS} bytes" in replies[1].detail
    rest = [replies[0], *replies[2:]]
    assert [reply.slots for reply in rest] == [(slot,) for slot in range(301)]


@in_tasks
async def test_a_long_name_is_listed_by_others(temporal_url: str, side: Side) -> None:
    """Its broker's ID has but a hash; its memo has the key."""
    key = new_key() + b"/" + b"\xff" * 400
    await (await side.open(temporal_url)).apply([acquire("a", key)])
    other = await side.open(temporal_url)
    async with asyncio.timeout(20):  # the server's index lags behind a little
        while not (items := (await other.scan(key[:40], None, 10)).items):
            await asyncio.sleep(0.05)
    assert [status.key for status in items] == [key]


@in_threads
async def test_a_client_that_is_newer_than_the_workers_is_told(
    temporal_url: str, side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "BrokerCall", partial(wire.BrokerCall, format=wire.FORMAT + 1))
    backend = await side.open(temporal_url)
    told = f"the worker of this broker knows {wire.FORMAT}: update that first"
    with pytest.raises(IncompatibleVersion, match=told):
        await backend.apply([acquire("a", new_key())])


async def test_it_goes_where_the_client_goes_and_speaks_as_it_does(
    temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, name = f"codec-{uuid4().hex}", uuid4().hex
    monkeypatch.setenv("TEMPORAL_TASK_QUEUE", queue)
    theirs = await Client.connect(temporal_server.address, data_converter=turned)
    served = Worker(
        theirs, task_queue=queue, workflows=WORKFLOWS, activities=ACTIVITIES, workflow_runner=QUICK
    )
    async with served, dibs.connect(client=theirs) as client:
        assert client.url == temporal_server.url
        async with client.lock(name, wait=30):
            assert [each.name async for each in client.list(name)] == [name.encode()]


# -- what is reported --------------------------------------------------------------------------------


@in_tasks
async def test_what_is_configured_wrongly(temporal_server: TemporalServer, side: Side) -> None:
    with pytest.raises(NotConfigured, match="or from a client of temporalio"):
        dibs.connect(client=object())
    with pytest.raises(BackendUnavailable, match="there is no such host"):
        await side.open(store_for("temporal://nowhere.invalid:7233/default"))
    with pytest.raises(NotConfigured, match=r"does not speak TLS: add \?tls=false"):
        await side.open(store_for(f"{temporal_server.url}?api_key=a"))
    backend = await side.open(store_for(f"temporal://{temporal_server.address}/nope"))
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
        (RPCStatusCode.RESOURCE_EXHAUSTED, "no", BackendUnavailable, "could not do it"),
        (RPCStatusCode.INTERNAL, "no", BackendUnavailable, "could not do it"),
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


def test_doctor_misses_a_worker(temporal_server: TemporalServer) -> None:
    found = findings(f"{temporal_server.url}?task_queue=nobody")["worker"]
    assert found.level == "problem"
    assert "dibs temporal worker" in found.advice


# -- workers that are away ---------------------------------------------------------------------------


@in_threads
async def test_a_worker_that_is_away_is_missed_and_its_successor_knows_all(
    temporal_server: TemporalServer, temporal_url: str, side: Side
) -> None:
    """Clients that name another queue are served as long as that worker is, and errors name the queue.

    What was asked in vain ends with its ttl, if a worker comes before.
    """
    queue, empty = f"changing-{uuid4().hex}", f"empty-{uuid4().hex}"
    key, new = new_key(), new_key()
    with brokers_for(temporal_server, queue) as url:
        backend, other = await side.open(url), await side.open(temporal_url)
        first = granted((await backend.apply([acquire("a", key)]))[0])
        (refused,) = await other.apply([acquire("b", key)])
        assert isinstance(refused, Refused)
    early = await side.open(f"{temporal_server.url}?task_queue={empty}")
    for user, command, told in (
        (backend, Renew(key, "a", 3.0), f"worker of the task queue '{queue}' well"),
        (other, Renew(key, "b", 3.0), f"the task queue '{queue}'"),
        (early, acquire("a", new), f"nobody serves the task queue '{empty}'"),
        (
            other,
            acquire("c", new, ttl=3.0),
            f"'{empty}'.*terminate --workflow-id {ids.broker_id(new)}",
        ),
    ):
        with pytest.raises(BackendUnavailable, match=told):
            await user.apply([command])
    with brokers_for(temporal_server, queue), brokers_for(temporal_server, empty):
        (renewed,) = await side.again(backend, Renew(key, "a", 30.0), within=20)
        assert isinstance(renewed, Renewed)
        await side.again(early, release("a", new), release("c", new), within=20)
        granted((await early.apply([acquire("b", new)]))[0])
        (queued,) = await backend.apply([acquire("b", key, queue=True)])
        assert isinstance(queued, Queued)
        await backend.apply([release("a", key)])
        second = granted((await backend.apply([acquire("b", key, queue=True)]))[0])
        assert second.token > first.token


# -- processes ---------------------------------------------------------------------------------------


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    found = Cli(tmp_path)
    yield found
    found.kill_all()


@pytest.mark.slow
@pytest.mark.multiprocess
def test_commands_may_be_interrupted_while_no_server_or_worker_answers(
    temporal_server: TemporalServer, cli: Cli
) -> None:
    queue, name = f"gone-{uuid4().hex}", uuid4().hex
    words = ("run", name, "--wait", "60", "--", "true")
    with FaultProxy("127.0.0.1", temporal_server.port) as proxy, ExitStack() as stack:
        with brokers_for(temporal_server, queue) as cli.url:
            behind_proxy = cli.environment | {"DIBS_URL": proxy.url_for(cli.url)}
            client = stack.enter_context(dibs.sync.connect(cli.url))
            held = client.lock(name, ttl=600).acquire()
            waiters = [cli.start(*words, env=behind_proxy)]
            wait_until(lambda: client.status(name).waiting, "it waits")
            proxy.hang()
        before = proxy.accepted
        waiters.append(cli.start(*words, env=behind_proxy))
        wait_until(lambda: proxy.accepted > before, "it connects")
        for waiter in waiters:
            waiter.send_signal(signal.SIGINT)
            code, _, said = end(waiter)
            assert code == -signal.SIGINT, said
        held.detach()


@pytest.mark.multiprocess
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
