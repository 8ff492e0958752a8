"""A worker of an earlier release: its code was recorded, as histories are.

`python -m tests.temporal.older_release FOLDER` records the source there, such as another checkout's `src`.
"""

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Self

from tests.temporal.histories import RECORDED
from tests.temporal.worker_processes import LONG, environment

CODE = RECORDED / "older-release.zip"

WHAT_IT_TAKES = """
import sys
sys.path.insert(0, sys.argv[1])
from dibs.temporal.worker.served import WORKFLOWS
for name, module in list(sys.modules.items()):
    if name.partition(".")[0] == "dibs":
        print(module.__file__)
"""

SERVE = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])

import dibs
assert dibs.__file__.startswith(sys.argv[1])

from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker
from dibs.temporal.served import ACTIVITIES, WORKFLOWS, DibsBroker  # where it had them

DibsBroker.EVENTS = 60

async def main():
    client = await Client.connect(sys.argv[2])
    async with Worker(
        client, task_queue=sys.argv[3], workflows=WORKFLOWS, activities=ACTIVITIES,
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        print("serves", flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


class OlderWorker:
    """Serves permits and brokers for a block, in a process of its own. Its brokers' runs are short."""

    def __init__(self, address: str, queue: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(CODE), address, queue],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "serves\n"
        return self

    def __exit__(self, *about: object) -> None:
        try:
            self._process.communicate(timeout=LONG)  # it ends with its input
        finally:
            self._process.kill()


def record(source: Path) -> None:
    """Keep what such a worker takes."""
    found = subprocess.run(
        [sys.executable, "-c", WHAT_IT_TAKES, str(source)],
        check=True,
        capture_output=True,
        text=True,
    )
    with zipfile.ZipFile(CODE, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(map(Path, found.stdout.split())):
            entry = zipfile.ZipInfo(str(path.relative_to(source)))
            entry.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(entry, path.read_bytes())


if __name__ == "__main__":
    record(Path(sys.argv[1]).resolve())
