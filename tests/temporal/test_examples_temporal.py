"""The examples for Temporal, in their folder and on the page, print what they promise.

They run on a server for development; one starts its own, as anybody's first one would.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pages import DOCS, blocks, promise_of
from tests.servers.binaries import temporal_program
from tests.servers.process import ServerProcess
from tests.servers.temporal import TemporalServer

FOLDER = DOCS.parent / "examples/temporal"
NAMES = sorted(path.name for path in FOLDER.glob("*.py") if promise_of(path.read_text("utf-8")))
STARTS_ITS_OWN = "throttled_gate.py"
QUEUE = "permits-of-pages-and-examples"
"""The same for all: a broker stays on the queue on which it was started, and they use the same pools."""
PAGE = "temporal.md"

pytestmark = [pytest.mark.once, pytest.mark.multiprocess]


def run(
    program: Path, folder: Path, *given: str, **settings: str
) -> "subprocess.CompletedProcess[str]":
    """Without anybody's own settings."""
    env = {"HOME": str(folder), "PATH": "/usr/bin:/bin", "TEMPORAL_TASK_QUEUE": QUEUE, **settings}
    return subprocess.run(
        [sys.executable, "-W", "error", program, *given],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def check(name: str, done: "subprocess.CompletedProcess[str]") -> None:
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert re.search(promise_of((FOLDER / name).read_text("utf-8")), done.stdout), done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_it_prints_what_it_says(name: str, tmp_path: Path, temporal_server: TemporalServer) -> None:
    check(name, run(FOLDER / name, tmp_path, TEMPORAL_ADDRESS=temporal_server.address))


@pytest.mark.long
def test_one_starts_its_own_server_and_stops_it(tmp_path: Path) -> None:
    path = f"{temporal_program().path.parent}{os.pathsep}/usr/bin{os.pathsep}/bin"
    check(STARTS_ITS_OWN, run(FOLDER / STARTS_ITS_OWN, tmp_path, "--dev", PATH=path))


RUNS_RELAY = """
import asyncio
from temporalio.client import Client
from temporalio.envconfig import ClientConfig
from temporalio.worker import Worker
from dibs.temporal import DibsPlugin

async def main():
    settings = ClientConfig.load_client_connect_config()
    client = await Client.connect(**settings, plugins=[DibsPlugin()])
    async with Worker(client, task_queue="relays", workflows=[Relay]):
        print(await client.execute_workflow(Relay.run, 2, id="relay", task_queue="relays"))

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.fixture(scope="module")
def served(
    temporal_server: TemporalServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """A worker for permits; the settings of its users."""
    folder = tmp_path_factory.mktemp("page")
    address = temporal_server.address
    settings: dict[str, str] = {
        "TEMPORAL_ADDRESS": address,
        "DIBS_URL": f"sqlite:///{folder}/leases.db",
    }
    command: list[str | Path] = [sys.executable, "-m", "dibs", "temporal", "worker"]
    log = folder / "worker.log"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**settings, "TEMPORAL_TASK_QUEUE": QUEUE}.items():
            patch.setenv(name, value)
        worker = ServerProcess([*command, "--address", address], log=log)
    worker.wait_until(lambda: "ready" in log.read_text(), "was ready")
    yield settings
    worker.signal(signal.SIGTERM)
    worker.end()


@pytest.mark.parametrize(
    ("block", "more", "output"),
    [
        (0, RUNS_RELAY, r"still slot 0, token \d{16}$"),
        (1, "", r"GPUs \(0, 1\) with token \d{16}$"),
    ],
    ids=["relay", "plain Python"],
)
def test_the_page_s_programs(
    block: int, more: str, output: str, served: dict[str, str], tmp_path: Path
) -> None:
    program = tmp_path / "page.py"  # a file, as the sandbox imports a workflow's module anew
    program.write_text(blocks(PAGE)[block] + more)
    done = run(program, tmp_path, **served)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.match(output, done.stdout)
