"""`dibs demo`: it shows what really happens, and leaves nothing behind."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from dibs import sync
from dibs.cli.demo.show import ALONE, Show, processes
from dibs.cli.demo.worker import TTL, TURNS
from dibs.cli.exits import UNAVAILABLE, USAGE
from dibs.server.config import ServerConfig
from dibs.server.lock_events import LockEvent
from tests.cli.processes import Cli, Main, alive, children
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
        self.opened = self.next_event("listening")

    def next_event(self, event: str, part: str = "") -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said: dict[str, Any] = json.loads(line)
            if said["event"] == event and part in said.get("message", ""):
                return said
        raise AssertionError(self.ended())

    @property
    def children(self) -> list[int]:
        return children(self.process.pid)

    def ended(self) -> tuple[int, str]:
        _, err = self.process.communicate(timeout=30)
        return self.process.returncode, err


@pytest.fixture
def start(cli: Cli, tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    found: list[Demo] = []
    (tmp_path / "tmp").mkdir()

    def start(*options: str) -> Demo:
        found.append(Demo(cli, tmp_path / "tmp", *options))
        return found[-1]

    yield start
    for demo in found:
        if demo.process.poll() is None:
            demo.process.kill()
            demo.process.communicate()


@pytest.mark.once
@pytest.mark.multiprocess
def test_it_is_real_and_leaves_nothing(tmp_path: Path, start: Callable[..., Demo]) -> None:
    demo = start("--workers", "8")
    opened = demo.opened
    assert (opened["workers"], opened["processes"]) == (8, 4)
    assert opened["sign_in_url"].startswith(f"{opened['url']}/#ticket=")
    children = demo.children
    assert len(children) == 4
    killed = demo.next_event("told", "kill -9 ")["message"]
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
    assert demo.next_event("told", "in total; all processes have ended")
    assert demo.ended() == (0, "")
    assert not any(map(alive, children))
    assert list((tmp_path / "tmp").iterdir()) == []
    demo = start("--workers", "4")
    children = demo.children
    demo.process.kill()
    demo.ended()
    wait_until(lambda: not any(map(alive, children)), "the end of its workers")


def test_without_its_extra(verb: Main, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("dibs.cli.demo.show", "dibs.server.main", "dibs.server.front"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    done = verb("demo")
    assert (done.code, "pip install 'dibs[server]'" in done.err) == (USAGE, True)


def test_what_it_refuses(verb: Main) -> None:
    for words in (("--for", "soon"), ("--workers", "0")):
        assert verb("demo", *words).code == USAGE
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = verb("demo", "--port", str(port))
    assert (done.code, f"127.0.0.1:{port}" in done.err) == (UNAVAILABLE, True)


def test_a_lost_lease_is_reported_once() -> None:
    config = ServerConfig(listen="127.0.0.1:0", leases=f"memory://{uuid4()}")
    line = Show(config, lambda *_, **__: None)._line
    event = partial(LockEvent, key=b"lock:shop/scales", at=0.0, owner="host/1/forgetful-1")
    assert line(event("granted", lease="a", token=7)) == ""
    expired = line(event("expired", lease="a", token=7))
    assert expired == "shop/scales: forgetful-1 did not renew its lease, so it expired"
    assert line(event("expired", lease="a", token=7, found=True)) == "", "seen twice"
    assert "forgetful-1" in line(event("expired", lease="b", token=8)), "another lease"


@pytest.mark.parametrize("number", [1, 8, 20, 200])
def test_who_takes_part(number: int) -> None:
    parts = list(processes(number))
    names = [each for part in parts for each in part]
    assert len(set(names)) == len(names) == number
    assert len(parts) <= ALONE + 1
    assert all(len(part) == 1 for part in parts[:-1])
    assert number < 20 or {each.partition("-")[0] for each in names} == set(TURNS)
