"""The examples for Temporal run on a server for development and print what their docstrings say.

One starts its own, as anybody's first one would.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.test_examples import EXAMPLES, pattern_of, promised
from tests.servers.binaries import temporal_program
from tests.servers.ports import HOST, free_port
from tests.servers.temporal import TemporalServer

FOLDER = EXAMPLES / "temporal"
STARTS_ITS_OWN = "throttled_gate.py"
QUEUE = "permits-of-pages-and-examples"
"""One for all: a broker stays on the queue on which it was started, and they speak of the same pools."""

pytestmark = [pytest.mark.once, pytest.mark.multiprocess]


def examples() -> list[str]:
    return sorted(path.name for path in FOLDER.glob("*.py") if promised(path.read_text("utf-8")))


def run(
    name: str, folder: Path, *given: str, path: str = "", **settings: str
) -> "subprocess.CompletedProcess[str]":
    """Without anybody's own settings."""
    settings |= {"HOME": str(folder), "PATH": f"{path}{os.pathsep}/usr/bin{os.pathsep}/bin"}
    settings |= {"TEMPORAL_TASK_QUEUE": QUEUE}
    return subprocess.run(
        [sys.executable, "-W", "error", FOLDER / name, *given],
        cwd=folder,
        env=settings,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def check(name: str, done: "subprocess.CompletedProcess[str]") -> None:
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    told = promised((FOLDER / name).read_text("utf-8"))
    assert pattern_of(told).search(done.stdout), done.stdout


@pytest.mark.parametrize("name", sorted({*examples()} - {STARTS_ITS_OWN}))
def test_it_prints_what_it_says(name: str, tmp_path: Path, temporal_server: TemporalServer) -> None:
    check(name, run(name, tmp_path, TEMPORAL_ADDRESS=temporal_server.address))


def test_one_starts_its_own_server_and_stops_it(tmp_path: Path) -> None:
    path = temporal_program().path.parent
    done = run(STARTS_ITS_OWN, tmp_path, "--dev", path=str(path))
    check(STARTS_ITS_OWN, done)


def test_without_a_server_they_say_how_to_start_one(tmp_path: Path) -> None:
    address = f"{HOST}:{free_port()}"
    done = run(STARTS_ITS_OWN, tmp_path, TEMPORAL_ADDRESS=address)
    assert done.returncode == 1
    assert f"no Temporal server answers at {address}" in done.stderr
    assert "server start-dev`, or give --dev" in done.stderr


@pytest.mark.parametrize(("given", "code"), [("--help", 0), ("--dve", 2)])
@pytest.mark.parametrize("name", examples())
def test_help_runs_nothing(name: str, given: str, code: int, tmp_path: Path) -> None:
    done = run(name, tmp_path, given, TEMPORAL_ADDRESS=f"{HOST}:{free_port()}")
    assert (done.returncode, done.stderr) == (code, "")
    assert "--dev" in done.stdout or "Prints:" in done.stdout


def test_it_ends_once_nobody_reads_it(tmp_path: Path, temporal_server: TemporalServer) -> None:
    """And Temporal does not retry an activity that could not print."""
    reader, writer = os.pipe()
    os.close(reader)
    settings = {"HOME": str(tmp_path), "TEMPORAL_ADDRESS": temporal_server.address}
    with os.fdopen(writer, "wb") as closed:
        done = subprocess.run(
            [sys.executable, FOLDER / STARTS_ITS_OWN],
            env=settings | {"PATH": "/usr/bin:/bin", "TEMPORAL_TASK_QUEUE": QUEUE},
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            timeout=100,
            check=False,
        )
    assert done.returncode == 130, done.stderr
