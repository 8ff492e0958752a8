"""`dibs temporal worker`: its command line, its life as a process, and its health endpoint."""

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import datetime
from typing import Self

import pytest
from temporalio.client import Client

from dibs.cli.temporal import LOGGERS
from dibs.temporal import PermitSlotInput, PermitSlotWorkflow
from dibs.temporal.worker.health import HealthServer, host_port
from tests.cli.processes import Main
from tests.servers.ports import free_port
from tests.servers.temporal import TemporalServer
from tests.temporal.turned import turned
from tests.temporal.workers import PATIENCE, connected, status_of, unique, until_event

pytestmark = [pytest.mark.once, pytest.mark.multiprocess]

ANY_PORT = "127.0.0.1:0"


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in the environment names a server or a store."""
    for name in os.environ:
        if name.startswith(("DIBS_", "TEMPORAL_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", os.devnull)


@pytest.fixture
def _loggers() -> Iterator[None]:
    before = {name: list(logging.getLogger(name).handlers) for name in LOGGERS}
    yield
    for name, handlers in before.items():
        logging.getLogger(name).handlers = handlers


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_temporal_is_loaded_only_where_it_is_used_and_says_what_to_install() -> None:
    lines = [["version"], ["temporal", "worker", "--help"], ["--help"]]
    done = python(
        "import sys; from dibs.cli import main\n"
        f"for line in {lines}: main(line)\n"
        "print([name for name in sys.modules if name.startswith('temporalio')], flush=True)\n"
        "sys.modules['temporalio'] = None\n"
        "assert main(['temporal', 'worker']) == 64\n"
        "from dibs.temporal import Semaphore"
    )
    assert done.stdout.endswith("[]\n"), done.stderr
    assert done.returncode == 1
    advice = "needs the package temporalio: pip install 'dibs[temporal]'"
    assert done.stderr.count(advice) == 2, done.stderr


@pytest.mark.usefixtures("_loggers")
def test_wrong_usage(
    temporal_server: TemporalServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also what it serves: the store of the settings, where that is Temporal."""
    nobody, namespace = f"127.0.0.1:{free_port()}", unique("namespace")
    monkeypatch.setenv("DIBS_URL", f"temporal://{nobody}/orders")
    monkeypatch.setenv("DIBS_STORES__FLEET__URL", f"temporal://{nobody}/fleet")
    monkeypatch.setenv("DIBS_STORES__CACHE__URL", "redis://localhost")
    wrong = {
        "--url redis://localhost": "looks like temporal://host:7233/namespace",
        "--health 8080": "the health endpoint's address is '8080'",
        "--drain soon": "drain is 'soon'",
        "--data-converter json": "write it as package.module:name",
        "--data-converter json:JSONEncoder": "the data converter is <class 'json.encoder.JSON",
        "--task-queue=": "task-queue is empty",
        "--profile nosuch": "nosuch",
        "--store cache": "is not a temporal:// store",
        "": f"{nobody}/orders can't be reached: check that the server runs",
        "--store fleet": f"{nobody}/fleet can't be reached",
        f"--address {temporal_server.address} --namespace {namespace}": (
            f"temporal operator namespace create --namespace {namespace}"
        ),
    }
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        wrong |= {
            f"--address {nobody} {each} {address}": address for each in ("--health", "--metrics")
        }
        line = Main(capsys)
        for options, words in wrong.items():
            done = line("temporal", "worker", *options.split())
            assert done.code == (69 if "can't be reached" in words else 64), done.err
            assert words in done.err
            assert "serving" not in done.err


class WorkerProcess:
    """A worker that ends with the block."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dibs", "temporal", "worker", "--json", *arguments],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *about: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=PATIENCE)

    async def until(self, event: str) -> str:
        """Read its log up to an event; returns the event's message."""
        return await asyncio.to_thread(self._until, event)

    def _until(self, event: str) -> str:
        assert self.process.stderr is not None
        read = []
        for line in self.process.stderr:
            logged = json.loads(line)  # also what Temporal's core logs
            assert datetime.fromisoformat(logged["time"]).tzinfo is not None
            read.append(logged)
            if logged["event"] == event:
                return str(logged["message"])
        raise AssertionError(f"it ended with {self.process.wait(PATIENCE)} before {event}: {read}")

    async def address_of(self, endpoint: str) -> str:
        message = await self.until(endpoint)
        return message.removeprefix(f"{endpoint} at http://").partition("/")[0]

    async def ended(self) -> int:
        """Its exit code."""
        await asyncio.to_thread(self.process.communicate, timeout=PATIENCE)
        return self.process.returncode


async def fetch(address: str, path: str) -> tuple[int, str]:
    def get() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{address}{path}", timeout=PATIENCE) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    return await asyncio.to_thread(get)


async def held_permit(client: Client, queue: str) -> str:
    """The workflow ID of a permit that its worker knows."""
    resource = unique("resource")
    given = PermitSlotInput(resource=resource, slot="0", lease_seconds=300)
    found = f"permit:{resource}:0"
    handle = await client.start_workflow(PermitSlotWorkflow.run, given, id=found, task_queue=queue)
    await until_event(handle, "WORKFLOW_TASK_COMPLETED")
    return found


async def released(client: Client, permit: str) -> str:
    """Its result after its release."""
    handle = client.get_workflow_handle(permit, result_type=str)
    await handle.signal("release")
    async with asyncio.timeout(PATIENCE):
        return str(await handle.result())


async def test_drained_without_losing_a_permit(temporal_server: TemporalServer) -> None:
    """SIGTERM ends it with 0, what is held stays held, and the next worker goes on with it."""
    client, queue = await connected(temporal_server), unique("queue")
    url = f"{temporal_server.url}?task_queue={queue}"
    with WorkerProcess("--url", url, "--health", ANY_PORT, "--metrics", ANY_PORT) as first:
        health = await first.address_of("health")
        metrics = await first.address_of("metrics")
        await first.until("ready")
        held = await held_permit(client, queue)
        assert await fetch(health, "/readyz") == (200, "ok\n")
        assert await fetch(health, "/livez") == (200, "ok\n")
        status, page = await fetch(metrics, "/metrics")
        assert status == 200
        assert f'task_queue="{queue}"' in page
        first.process.send_signal(signal.SIGTERM)
        await first.until("draining")
        await first.until("stopped")
        assert await first.ended() == 0
    assert await status_of(client, held) == "RUNNING"
    with WorkerProcess("--address", temporal_server.address, "--task-queue", queue) as second:
        await second.until("ready")
        assert await released(client, held) == "released"
        second.process.send_signal(signal.SIGINT)
        assert await second.ended() == 0


async def test_one_of_two_is_killed_and_they_use_the_data_converter_of_their_users(
    temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They read a permit's input that nobody else could, and write its result likewise."""
    plain, queue = await connected(temporal_server), unique("queue")
    client = await Client.connect(temporal_server.address, data_converter=turned)
    monkeypatch.setenv("TEMPORAL_TASK_QUEUE", queue)
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal_server.address)
    converting = ("--data-converter", "tests.temporal.turned:turned")
    with WorkerProcess(*converting) as first, WorkerProcess(*converting) as second:
        await first.until("ready")
        held = await held_permit(client, queue)
        await second.until("ready")
        first.process.kill()
        await first.ended()
        assert await released(client, held) == "released"  # the dead one has it in its cache
    assert await plain.get_workflow_handle(held, result_type=str).result() == "desaeler"


async def test_alive_but_not_ready_before_it_is_served() -> None:
    """A server that takes the connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        with WorkerProcess("--address", address, "--health", ANY_PORT) as worker:
            health = await worker.address_of("health")
            assert await fetch(health, "/livez") == (200, "ok\n")
            assert await fetch(health, "/readyz") == (503, "it is connecting\n")
            worker.process.send_signal(signal.SIGTERM)
            await worker.until("stopped")
            assert await worker.ended() == 0


def test_a_second_signal_ends_it_at_once() -> None:
    done = python(
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
        "asyncio.run(main())\n",
    )
    assert (done.stdout, done.stderr) == ("one\ndrains\n", "")
    assert done.returncode == -signal.SIGTERM


async def test_a_process_whose_event_loop_is_stuck_is_not_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def alive() -> None: ...

    monkeypatch.setattr("dibs.temporal.worker.health.PATIENCE", 0.2)
    async with HealthServer("127.0.0.1", 0, {"/livez": alive}) as up:
        with socket.create_connection(host_port(up.address, "")) as asking:
            asking.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = asking.makefile().read()  # blocks the loop meanwhile
        assert answer.startswith("HTTP/1.0 503 ")
        assert "its event loop does not answer" in answer
