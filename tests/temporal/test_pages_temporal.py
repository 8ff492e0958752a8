"""The examples of the page about Temporal, as they stand there, beside a worker started as it says."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.test_guarantees import defined_tests
from tests.pages import DOCS, blocks
from tests.servers.process import ServerProcess
from tests.servers.temporal import TemporalServer
from tests.temporal.test_examples_temporal import QUEUE

PAGE = "temporal.md"
GATE, ACTIVITY, PLAIN, RELAY = range(4)

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

pytestmark = [pytest.mark.once, pytest.mark.multiprocess]


@pytest.fixture(scope="module")
def settings(
    temporal_server: TemporalServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """With a worker for permits."""
    folder = tmp_path_factory.mktemp("page")
    found = {
        "HOME": str(folder),
        "PATH": os.defpath,
        "TEMPORAL_ADDRESS": temporal_server.address,
        "TEMPORAL_TASK_QUEUE": QUEUE,
        "DIBS_URL": f"sqlite:///{folder}/leases.db",
    }
    command: list[str | Path] = [sys.executable, "-m", "dibs", "temporal", "worker"]
    log = folder / "worker.log"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in found.items():
            patch.setenv(name, value)
        worker = ServerProcess([*command, "--address", temporal_server.address], log=log)
    worker.wait_until(lambda: "ready" in log.read_text(), "was ready")
    yield found
    worker.signal(signal.SIGTERM)
    worker.end()


def run(which: int, folder: Path, settings: dict[str, str], more: str = "") -> str:
    """What a block prints; it is put into a file, as the sandbox imports a workflow's module anew."""
    program = folder / "page.py"
    program.write_text(blocks(PAGE)[which] + more)
    done = subprocess.run(
        [sys.executable, "-W", "error", program],
        env=settings,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def test_the_gate(settings: dict[str, str], tmp_path: Path) -> None:
    assert re.match("order 42 went through slot [0-3]$", run(GATE, tmp_path, settings))


def test_plain_python(settings: dict[str, str], tmp_path: Path) -> None:
    assert re.match(r"GPUs \(0, 1\) with token \d{16}$", run(PLAIN, tmp_path, settings))


def test_an_activity(settings: dict[str, str], tmp_path: Path) -> None:
    told = run(ACTIVITY, tmp_path, settings)
    assert re.match(r"acme: 3 rows by slot 0, under token \d{16}$", told)


def test_a_permit_goes_from_run_to_run(settings: dict[str, str], tmp_path: Path) -> None:
    assert re.match(r"still slot 0, token \d{16}$", run(RELAY, tmp_path, settings, RUNS_RELAY))


def test_every_test_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", (DOCS / PAGE).read_text("utf-8")))
    assert len(named) > 15
    assert named - defined_tests() == set()
