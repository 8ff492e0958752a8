"""`dibs temporal worker`: its command line, its life as a process, what it logs, and its health endpoint."""

import asyncio
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Self

import pytest
from temporalio.client import Client

from dibs import NotConfigured
from dibs.cli.temporal import LOGGERS, TimedMessages, show_logs
from dibs.temporal import PermitSlotInput, PermitSlotWorkflow
from dibs.temporal.worker.health import HealthServer, host_port
from tests.servers.ports import free_port
from tests.servers.temporal import TemporalServer
from tests.temporal.turned import turned
from tests.temporal.workers import PATIENCE, connected, status_of, unique, until_event

pytestmark = [pytest.mark.once, pytest.mark.multiprocess]

ANY_PORT = "127.0.0.1:0"


def environment(**more: str) -> dict[str, str]:
    """Ours, without anything that names a server or a store."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DIBS_", "TEMPORAL_"))}
    return {**kept, "TEMPORAL_CONFIG_FILE": os.devnull, **more}


def python(
    *arguments: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment() if env is None else env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def run(*arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return python("-m", "dibs", *arguments, env=env)


class WorkerProcess:
    """A worker that ends with the block."""

    def __init__(self, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dibs", "temporal", "worker", "--json", *arguments],
            env=environment() if env is None else env,
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


def free_address() -> str:
    return f"127.0.0.1:{free_port()}"


# -- its command line ------------------------------------------------------------------------------


@pytest.mark.parametrize("line", [["version"], ["temporal", "worker", "--help"], ["--help"]])
def test_temporal_is_not_loaded_for_nothing(line: list[str]) -> None:
    done = python(
        "-c",
        "import sys; from dibs.cli import main\n"
        f"main({line!r})\n"
        "print([name for name in sys.modules if name.startswith('temporalio')])",
    )
    assert done.stdout.endswith("[]\n"), done.stderr


@pytest.mark.parametrize(
    ("use", "code"),
    [
        ("from dibs.cli import main; sys.exit(main(['temporal', 'worker']))", 64),
        ("from dibs.temporal import Semaphore", 1),
    ],
)
def test_without_temporal_it_says_what_to_install(use: str, code: int) -> None:
    done = python("-c", f"import sys; sys.modules['temporalio'] = None; {use}")
    assert done.returncode == code
    assert "needs the package temporalio: pip install 'dibs[temporal]'" in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--url", "redis://localhost"], "looks like temporal://host:7233/namespace"),
        (["--health", "8080"], "the health endpoint's address is '8080'"),
        (["--metrics", "nowhere"], "the metrics' address is 'nowhere'"),
        (["--drain", "soon"], "drain is 'soon'"),
        (["--data-converter", "json"], "write it as package.module:name"),
        (["--data-converter", "no.such:thing"], "No module named 'no'"),
        (["--data-converter", "json:dumps"], "the data converter is <function dumps at "),
        (["--data-converter", "json:JSONEncoder"], "is <class 'json.encoder.JSONEncoder'>: give"),
        (["--task-queue", ""], "task-queue is empty"),
        (["--address", ""], "address is empty"),
        (["--profile", "nosuch"], "nosuch"),
    ],
)
def test_wrong_usage(options: list[str], said: str) -> None:
    done = run("temporal", "worker", *options)
    assert done.returncode == 64, done.stderr
    assert said in done.stderr


def test_it_serves_the_store_of_the_settings() -> None:
    """DIBS_URL, or `--store`, where that is Temporal."""
    nobody = free_address()
    env = environment(
        DIBS_URL=f"temporal://{nobody}/orders",
        DIBS_STORES__FLEET__URL=f"temporal://{nobody}/fleet",
        DIBS_STORES__CACHE__URL="redis://localhost",
    )
    for options, code, said in (
        ([], 69, f"{nobody}/orders can't be reached: check that the server runs"),
        (["--store", "fleet"], 69, f"{nobody}/fleet can't be reached"),
        (["--store", "cache"], 64, "is not a temporal:// store"),
        (["--store", "none"], 64, "is not in the settings"),
    ):
        done = run(*options, "temporal", "worker", env=env)
        assert (done.returncode, said in done.stderr) == (code, True), done.stderr


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


# -- its life --------------------------------------------------------------------------------------


async def held_permit(client: Client, queue: str) -> str:
    """Its workflow ID."""
    resource = unique("resource")
    given = PermitSlotInput(resource=resource, slot="0", lease_seconds=300)
    found = f"permit:{resource}:0"
    await client.start_workflow(PermitSlotWorkflow.run, given, id=found, task_queue=queue)
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
        await until_event(client.get_workflow_handle(held), "WORKFLOW_TASK_COMPLETED")
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


async def test_it_uses_the_data_converter_of_its_users(temporal_server: TemporalServer) -> None:
    """It reads a permit's input that nobody else could, and writes its result likewise."""
    plain, queue = await connected(temporal_server), unique("queue")
    client = await Client.connect(temporal_server.address, data_converter=turned)
    env = environment(TEMPORAL_TASK_QUEUE=queue, TEMPORAL_ADDRESS=temporal_server.address)
    with WorkerProcess("--data-converter", "tests.temporal.turned:turned", env=env) as served:
        await served.until("ready")
        held = await held_permit(client, queue)
        assert await released(client, held) == "released"
    assert await plain.get_workflow_handle(held, result_type=str).result() == "desaeler"


async def test_two_workers_and_one_is_killed(temporal_server: TemporalServer) -> None:
    client, queue = await connected(temporal_server), unique("queue")
    env = environment(TEMPORAL_TASK_QUEUE=queue, TEMPORAL_ADDRESS=temporal_server.address)
    with WorkerProcess(env=env) as first, WorkerProcess(env=env) as second:
        await first.until("ready")
        held = await held_permit(client, queue)
        await until_event(client.get_workflow_handle(held), "WORKFLOW_TASK_COMPLETED")
        await second.until("ready")
        first.process.kill()
        await first.ended()
        assert await released(client, held) == "released"  # the dead one has it in its cache


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
        "-c",
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


# -- what it logs: the time, and exceptions with their trace ---------------------------------------


@pytest.fixture
def _loggers() -> Iterator[None]:
    before = {name: list(logging.getLogger(name).handlers) for name in LOGGERS}
    yield
    for name, handlers in before.items():
        logging.getLogger(name).handlers = handlers


@pytest.mark.usefixtures("_loggers")
@pytest.mark.parametrize("as_json", [False, True])
def test_its_logs(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    messages = TimedMessages(as_json=as_json)
    show_logs(messages)
    messages.show("ready", "ready")
    try:
        raise ValueError("no such slot")
    except ValueError:
        logging.getLogger("temporalio.worker").exception("A task failed")
    logging.getLogger("temporalio.core").warning("gRPC call poll retried 6 times")  # left out
    lines = capsys.readouterr().err.splitlines()
    if as_json:
        ready, failed = map(json.loads, lines)
        assert (ready["event"], failed["event"], failed["message"]) == (
            "ready", "error", "A task failed",
        )  # fmt: skip
        assert "time" in failed
        assert failed["traceback"].endswith("ValueError: no such slot")
    else:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]{12}\+00:00 dibs: ready", lines[0])
        assert lines[1].endswith(" dibs: A task failed")
        assert lines[2].startswith("Traceback")
        assert lines[-1] == "ValueError: no such slot"


# -- its health endpoint ---------------------------------------------------------------------------


async def ask(server: HealthServer, request: bytes) -> str:
    reader, writer = await asyncio.open_connection(*host_port(server.address, ""))
    writer.write(request)
    try:
        return (await reader.read()).decode()
    finally:
        writer.close()


async def alive() -> None:
    """All is well."""


def request(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n".encode()


async def test_health_over_http() -> None:
    why: list[str | None] = ["it is connecting"]

    async def ready() -> str | None:
        return why[0]

    async with HealthServer("127.0.0.1", 0, {"/livez": alive, "/readyz": ready}) as up:
        _, silent = await asyncio.open_connection(*host_port(up.address, ""))
        assert (await ask(up, request("/livez"))).startswith("HTTP/1.0 200 OK\r\n")
        silent.close()
        refused = await ask(up, request("/readyz?verbose"))
        assert refused.startswith("HTTP/1.0 503 ")
        assert refused.endswith("\r\n\r\nit is connecting\n")
        why[0] = None
        assert (await ask(up, request("/readyz"))).endswith("\r\n\r\nok\n")
        head = await ask(up, request("/readyz", "HEAD"))
        assert "Content-Length: 3\r\n" in head
        assert head.endswith("\r\n\r\n")
        assert (await ask(up, request("/"))).startswith("HTTP/1.0 404 ")
        assert (await ask(up, request("/livez", "POST"))).startswith("HTTP/1.0 501 ")
        host, port = host_port(up.address, "")
        with pytest.raises(NotConfigured, match=f"can't listen on 127.0.0.1:{port}"):
            async with HealthServer(host, port, {}):
                pass


@pytest.mark.parametrize(
    "nonsense", [b"nonsense\r\n\r\n", b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", b"\r\n"]
)
async def test_a_request_that_makes_no_sense_gets_no_ok(nonsense: bytes) -> None:
    async with HealthServer("127.0.0.1", 0, {"/livez": alive}) as up:
        try:
            assert " 200 " not in await ask(up, nonsense)
        except ConnectionResetError:
            pass
        assert (await ask(up, request("/livez"))).startswith("HTTP/1.0 200 ")


async def test_a_process_whose_event_loop_is_stuck_is_not_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dibs.temporal.worker.health.PATIENCE", 0.2)
    async with HealthServer("127.0.0.1", 0, {"/livez": alive}) as up:
        with socket.create_connection(host_port(up.address, "")) as asking:
            asking.sendall(request("/livez"))
            answer = asking.makefile().read()  # blocks the loop meanwhile
        assert answer.startswith("HTTP/1.0 503 ")
        assert "its event loop does not answer" in answer


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:0", ("::1", 0)), ("box:8080", ("box", 8080)),
        *((text, None) for text in ("8080", ":8080", "box", "box:", "box:x", "box:70000", "::1:80")),
    ],
)  # fmt: skip
def test_addresses(text: str, found: tuple[str, int] | None) -> None:
    if found is not None:
        assert host_port(text, "it") == found
    else:
        with pytest.raises(ValueError, match=f"the address is '{text}'"):
            host_port(text, "the address")
