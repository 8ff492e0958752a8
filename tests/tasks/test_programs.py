"""Whole programs: an application whose lifespan runs tasks, and one that does nothing else."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.pages import blocks, run

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.multiprocess

ALONE = """
import asyncio
import signal
from dibs.tasks import Tasks

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it

tasks = Tasks()

@tasks.every("1s", name="job", missed="latest")
async def job():
    print("runs", flush=True)
    try:
        while tasks.running:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        print("is done", flush=True)
    except asyncio.CancelledError:
        print("is cancelled", flush=True)
        raise

@tasks.add
async def beside():
    try:
        await asyncio.Event().wait()
    finally:
        print("beside ends", flush=True)

try:
    asyncio.run(tasks.run())
    print("ended")
except KeyboardInterrupt:
    print("interrupted")
"""

APPLICATION = """
from contextlib import asynccontextmanager
from fastapi import FastAPI
from dibs.tasks import Tasks

tasks = Tasks(shutdown_timeout=0.2)

@tasks.every("1s", name="job", missed="latest")
async def job():
    import asyncio
    print("runs", flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        print("is cancelled", flush=True)

@asynccontextmanager
async def lifespan(app):
    async with tasks:
        yield
    print("stopped", flush=True)

app = FastAPI(lifespan=lifespan)
"""


@contextmanager
def program(tmp_path: Path, *command: str) -> "Generator[subprocess.Popen[str]]":
    """One that runs, and is gone after the block, whatever becomes of the test."""
    with subprocess.Popen(
        [sys.executable, *command],
        cwd=tmp_path,
        env=os.environ | {"DIBS_URL": f"sqlite:///{tmp_path}/leases.db"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def until_it_runs(process: "subprocess.Popen[str]") -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line == "runs\n":
            return
    pytest.fail(f"it never ran: {process.stderr and process.stderr.read()}")


@pytest.mark.parametrize(
    ("number", "last"), [(signal.SIGTERM, "ended"), (signal.SIGINT, "interrupted")]
)
def test_a_signal_ends_it_after_what_runs(
    tmp_path: Path, number: signal.Signals, last: str
) -> None:
    with program(tmp_path, "-c", ALONE) as process:
        until_it_runs(process)
        process.send_signal(number)
        told, wrong = process.communicate(timeout=60)
    assert told.splitlines() == ["beside ends", "is done", last]
    assert (process.returncode, wrong) == (0, "")


def test_in_an_application_s_lifespan(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APPLICATION)
    quiet = ("--port", "0", "--log-level", "warning")
    with program(tmp_path, "-m", "uvicorn", "app:app", *quiet) as process:
        until_it_runs(process)
        process.send_signal(signal.SIGTERM)
        told, wrong = process.communicate(timeout=60)
    assert told.splitlines() == ["is cancelled", "stopped"]
    assert "Traceback" not in wrong
    assert "did not end within 0.2 s" in wrong


def test_a_thread_that_never_ends_does_not_keep_the_process(tmp_path: Path) -> None:
    code = """
import asyncio, threading
from dibs.tasks import Tasks

tasks = Tasks(shutdown_timeout=0.1)

@tasks.every("1s", name="job", missed="latest")
def job():
    print("runs", flush=True)
    threading.Event().wait()

asyncio.run(tasks.run())
print("ended")
"""
    with program(tmp_path, "-c", code) as process:
        until_it_runs(process)
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=60)[0] == "ended\n"
    assert process.returncode == 0


def test_importing_it_imports_no_cron(tmp_path: Path) -> None:
    code = "import sys, dibs.tasks; print('cronsim' in sys.modules)"
    with program(tmp_path, "-c", code) as process:
        assert process.communicate(timeout=60) == ("False\n", "")


@pytest.mark.multiprocess
def test_the_page_s_example_works(tmp_path: Path) -> None:
    told = run(blocks("tasks.md")[0], tmp_path)
    assert "polled, with token" in told
    assert re.search(r"^poll every 1 s won [1-9]", told, re.MULTILINE), told
    assert "billing/__main__:report cron 0 3 * * * (Europe/Berlin) won" in told
