"""What goes wrong, said so that it can be put right; and what is well again by itself."""

import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio.service import RPCError, RPCStatusCode

import dibs.sync
from dibs.errors import BackendUnavailable, Forbidden, IncompatibleVersion, NotConfigured
from dibs.model import Granted, Inspect, Queued, Refused, Renew, Renewed
from dibs.stores.registry import store_for
from dibs.stores.temporal.errors import explain
from dibs.stores.temporal.url import TemporalTarget
from tests.servers.ports import free_port
from tests.servers.temporal import TemporalServer
from tests.stores.redis.both_worlds import Side, acquire, granted, release
from tests.stores.temporal.looking import new_key
from tests.stores.temporal.serving import ThreadedWorker, brokers_for

pytestmark = pytest.mark.once


def test_nobody_listens_there(side: Side) -> None:
    async def case() -> None:
        with pytest.raises(BackendUnavailable, match="can't be reached: check that"):
            await side.open(store_for(f"temporal://127.0.0.1:{free_port()}/default"))

    side.run(case)


def test_there_is_no_such_host(side: Side) -> None:
    async def case() -> None:
        with pytest.raises(BackendUnavailable, match="there is no such host"):
            await side.open(store_for("temporal://nowhere.invalid:7233/default"))

    side.run(case)


def test_it_does_not_speak_tls(temporal_server: TemporalServer, side: Side) -> None:
    async def case() -> None:
        with pytest.raises(NotConfigured, match=r"does not speak TLS: add \?tls=false"):
            await side.open(store_for(f"{temporal_server.url}?api_key=a"))

    side.run(case)


def test_there_is_no_such_namespace(temporal_server: TemporalServer, side: Side) -> None:
    url = f"temporal://{temporal_server.address}/nope"

    async def case() -> None:
        backend = await side.open(store_for(url))
        for command in (acquire("a", new_key()), Inspect(new_key())):
            with pytest.raises(NotConfigured, match="namespace create --namespace nope"):
                await backend.apply([command])

    side.run(case)


@pytest.mark.parametrize(
    ("status", "kind", "told"),
    [
        (RPCStatusCode.UNAUTHENTICATED, Forbidden, "check the API key"),
        (RPCStatusCode.PERMISSION_DENIED, Forbidden, "for this namespace"),
        (RPCStatusCode.UNIMPLEMENTED, IncompatibleVersion, "an update together with a start"),
        (RPCStatusCode.RESOURCE_EXHAUSTED, BackendUnavailable, "takes no more calls"),
        (RPCStatusCode.INTERNAL, BackendUnavailable, "could not apply it"),
    ],
)
def test_what_a_servers_error_means(
    status: RPCStatusCode, kind: type[Exception], told: str
) -> None:
    failure = explain(
        RPCError("said so", status, b""), TemporalTarget(address="h:1", namespace="n")
    )
    assert type(failure) is kind
    assert told in str(failure)
    assert "h:1/n" in str(failure)
    assert "(said so)" in str(failure)


def test_an_old_server_is_told_apart() -> None:
    """Before 1.28 updates together with a start are off, and it says so in these words."""
    said = "Operation on this namespace: ExecuteMultiOperation is disabled"
    error = RPCError(said, RPCStatusCode.PERMISSION_DENIED, b"")
    failure = explain(error, TemporalTarget(address="h:1", namespace="n"))
    assert isinstance(failure, IncompatibleVersion)
    assert "is too old" in str(failure)


def test_nobody_serves_the_queue(temporal_server: TemporalServer, side: Side) -> None:
    """It is said at once. What was asked for in vain ends with its ttl, if a worker comes before."""
    queue, key = f"empty-{uuid4().hex}", new_key()

    async def case() -> None:
        backend = await side.open(store_for(f"{temporal_server.url}?task_queue={queue}"))
        with pytest.raises(BackendUnavailable) as error:
            await backend.apply([acquire("a", key)])
        assert f"nobody serves the task queue '{queue}'" in str(error.value)
        assert "dibs temporal worker" in str(error.value)
        with brokers_for(temporal_server, queue):
            await side.again(backend, release("a", key), within=20)
            granted((await backend.apply([acquire("b", key)]))[0])

    side.run(case)


def test_a_broker_stays_on_the_queue_that_it_was_started_on(
    temporal_server: TemporalServer, side: Side
) -> None:
    """Who names another queue is served as long as that one is, and an error names it."""
    first, other, key = f"first-{uuid4().hex}", f"other-{uuid4().hex}", new_key()
    worker = ThreadedWorker(temporal_server.address, first)
    worker.start()

    async def case() -> None:
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

    side.run(case)


def test_a_worker_that_stops_is_missed_and_its_successor_knows_all(
    temporal_server: TemporalServer, side: Side
) -> None:
    queue, key = f"changing-{uuid4().hex}", new_key()
    worker = ThreadedWorker(temporal_server.address, queue)
    worker.start()

    async def case() -> None:
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

    side.run(case)


@pytest.mark.slow
def test_a_server_that_is_killed_comes_back_with_all_leases(tmp_path: Path) -> None:
    key = new_key()
    side = Side("async")
    with TemporalServer(tmp_path, on_file=True) as server, brokers_for(server) as url:

        async def case() -> None:
            backend = await side.open(store_for(url))
            first = granted((await backend.apply([acquire("a", key, ttl=600.0)]))[0])
            server.kill()
            with pytest.raises(BackendUnavailable):
                await backend.apply([Renew(key, "a", 600.0)])
            server.start()
            (again,) = await side.again(backend, acquire("a", key, ttl=600.0), within=60)
            assert again == Granted(first.token, first.slots, granted(again).ttl)
            (other,) = await side.again(backend, acquire("b", key))
            assert type(other).__name__ == "Refused"

        side.run(case)


def test_doctor_tells_of_server_and_worker(url: str, temporal_server: TemporalServer) -> None:
    with dibs.sync.connect(url) as client:
        found = {each.about: each for each in client.examine()}
    assert found["server"].told.startswith("Temporal 1.")
    assert found["worker"].level == "ok"
    assert "a worker serves the task queue" in found["worker"].told
    assert "development server" in found["promises"].told
    with dibs.sync.connect(f"{temporal_server.url}?task_queue=nobody") as client:
        found = {each.about: each for each in client.examine()}
    assert found["worker"].level == "problem"
    assert "dibs temporal worker" in found["worker"].advice


def test_without_the_extra_the_error_names_the_command() -> None:
    code = (
        "import sys; sys.modules['temporalio'] = None\n"
        "from dibs.sync import connect\n"
        "from dibs.errors import NotConfigured\n"
        "try: connect('temporal://host/x')\n"
        "except NotConfigured as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'dibs[temporal]'" in done.stdout, done.stderr


def test_what_it_promises() -> None:
    promised = store_for("temporal://host/x").capabilities.names()
    assert {"cluster", "durable", "fenced", "notifies", "clock", "crash", "power-loss"} <= promised
