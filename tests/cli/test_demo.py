"""`dibs demo`: what it shows is so, and nothing is left of it."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from dibs import sync
from dibs.cli import main
from dibs.cli.demo.show import ALONE, Show, processes
from dibs.cli.demo.worker import TTL, TURNS
from dibs.cli.exits import UNAVAILABLE
from dibs.server.config import ServerConfig
from dibs.server.lock_events import LockEvent
from tests.cli.processes import Cli, alive
from tests.servers.waiting import wait_until

HASTY = """
import sys
from dibs.cli import main
from dibs.cli.demo import show

show.KILLED_EVERY, show.REPLACED_AFTER, show.GLANCE = 0.5, 0.1, 0.05
sys.exit(main())
"""
"""The same, where there is more to be seen in less time."""


class Demo:
    """One that runs."""

    def __init__(self, cli: Cli, folder: Path, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HASTY, "demo", "--json", *options],
            env=cli.environment | {"TMPDIR": str(folder)},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.opened = self.says("listening")

    def says(self, event: str, part: str = "") -> dict[str, Any]:
        """What it says next that has this in it."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said: dict[str, Any] = json.loads(line)
            if said["event"] == event and part in said.get("message", ""):
                return said
        raise AssertionError(self.ended())

    @property
    def children(self) -> list[int]:
        pid = self.process.pid
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def ended(self) -> tuple[int, str]:
        _, err = self.process.communicate(timeout=30)
        return self.process.returncode, err


@pytest.fixture
def demos() -> Iterator[list[Demo]]:
    found: list[Demo] = []
    yield found
    for demo in found:
        if demo.process.poll() is None:
            demo.process.kill()
            demo.process.communicate()


@pytest.mark.once
@pytest.mark.multiprocess
def test_it_is_real_and_leaves_nothing(cli: Cli, tmp_path: Path, demos: list[Demo]) -> None:
    (place := tmp_path / "tmp").mkdir()
    demos.append(demo := Demo(cli, place, "--workers", "8"))
    opened = demo.opened
    assert (opened["workers"], opened["processes"]) == (8, 4)
    assert opened["sign_in_url"].startswith(f"{opened['url']}/#ticket=")
    children = demo.children
    assert len(children) == 4
    killed = demo.says("told", "kill -9 ")["message"]
    pid = int(killed.split()[2].rstrip(":"))
    assert pid in children
    assert not alive(pid)
    assert 0 < float(killed.rsplit(maxsplit=2)[1]) <= TTL, "its lease outlives it"
    with sync.connect(opened["url"].replace("//", f"//{opened['key']}@")) as client:
        wait_until(lambda: client.status("jobs/printer").last_token, "the printer works")
    wait_until(
        lambda: pid not in demo.children and len(demo.children) == 4, "somebody takes its place"
    )
    children = demo.children
    demo.process.send_signal(signal.SIGINT)
    assert demo.says("told", "in total; all processes have ended")
    assert demo.ended() == (0, "")
    assert not any(map(alive, children))
    assert list(place.iterdir()) == []


@pytest.mark.once
@pytest.mark.multiprocess
def test_its_workers_die_with_it(cli: Cli, tmp_path: Path, demos: list[Demo]) -> None:
    (place := tmp_path / "tmp").mkdir()
    demos.append(demo := Demo(cli, place, "--workers", "4"))
    children = demo.children
    demo.process.kill()
    demo.ended()
    wait_until(lambda: not any(map(alive, children)), "none is left")


def test_without_its_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("dibs.cli.demo.show", "dibs.server.main", "dibs.server.front"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["demo"]) == 64
    assert "pip install 'dibs[server]'" in capsys.readouterr().err


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["demo", "--port", str(port)]) == UNAVAILABLE
    assert f"127.0.0.1:{port}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--for", "soon"], "--for is 'soon'"),
        (["--workers", "0"], "1<=x<=200"),
    ],
)
def test_what_it_refuses(options: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", *options]) == 64
    assert told in capsys.readouterr().err


def test_a_lost_lease_is_told_once_and_without_figures() -> None:
    config = ServerConfig(listen="127.0.0.1:0", leases=f"memory://{uuid4()}")
    told = Show(config, lambda *_, **__: None)
    scales = partial(LockEvent, key=b"lock:shop/scales", at=0.0, owner="host/1/forgetful-1")
    assert told._line(scales("granted", lease="a", token=7)) == ""
    expired = told._line(scales("expired", lease="a", token=7))
    assert expired == "shop/scales: forgetful-1 did not renew its lease, so it expired"
    assert told._line(scales("expired", lease="a", token=7, found=True)) == "", "seen twice"
    assert "forgetful-1" in told._line(scales("expired", lease="b", token=8)), "another lease"
    new = LockEvent("granted", key=b"leader:jobs/planner", at=0.0, owner="h/2/candidate-1", token=9)
    assert told._line(new) == "jobs/planner: candidate-1 is the leader now"


@pytest.mark.parametrize("number", [1, 8, 20, 200])
def test_who_takes_part(number: int) -> None:
    parts = list(processes(number))
    names = [each for part in parts for each in part]
    assert len(set(names)) == len(names) == number
    assert len(parts) <= ALONE + 1
    assert all(len(part) == 1 for part in parts[:-1])
    assert number < 20 or {each.partition("-")[0] for each in names} == set(TURNS)
