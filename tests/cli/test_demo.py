"""`dibs demo`: what it shows is so, and nothing is left of it."""

import json
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dibs import sync
from dibs.cli import main
from dibs.cli.demo.crew import MOST_ALONE, TOGETHER, shared
from dibs.cli.demo.roles import TTL, TURNS, workers
from dibs.cli.demo.story import Story, process_of, worker_of
from dibs.model import Holder
from dibs.server.observatory.events import Event
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
    assert 0 < float(killed.rsplit(maxsplit=3)[1]) <= TTL, "its lease outlives it"
    with sync.connect(opened["url"].replace("//", f"//{opened['key']}@")) as client:
        assert client.status("jobs/printer").last_token
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
    folder = tmp_path / "new" / "kept here %41?#"
    demos.append(demo := Demo(cli, place, "--workers", "4", "--folder", str(folder)))
    children = demo.children
    demo.process.kill()
    demo.ended()
    wait_until(lambda: not any(map(alive, children)), "none is left")
    assert (folder / "leases.db").exists()
    demos.append(
        again := Demo(cli, place, "--workers", "1", "--folder", str(folder), "--for", "0s")
    )
    assert again.opened["key"] != demo.opened["key"], "the first key was shown once"
    assert again.ended() == (0, "")
    assert (folder / "leases.db").exists()
    assert list(place.iterdir()) == []


def test_without_its_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("dibs.cli.demo.show", "dibs.server.serve", "dibs.server.front"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["demo"]) == 64
    assert "pip install 'dibs[server]'" in capsys.readouterr().err


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["demo", "--port", str(port)]) == 64
    told = capsys.readouterr().err
    assert f"cannot listen on port {port}: Address already in use; without --port" in told


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--for", "soon"], "--for is 'soon'"),
        (["--workers", "0"], "1<=x<=200"),
        (["--folder", "/dev/null/x"], "cannot create --folder /dev/null/x: Not a directory"),
    ],
)
def test_what_it_refuses(options: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", *options]) == 64
    assert told in capsys.readouterr().err


def test_who_takes_part() -> None:
    twenty = workers(20)
    assert len(set(twenty)) == 20
    assert {each.partition("-")[0] for each in twenty} == set(TURNS)
    assert twenty[:8] == workers(8)
    assert len(set(workers(200))) == 200


@pytest.mark.parametrize("number", [1, 8, 20, 200])
def test_who_has_a_process_alone(number: int) -> None:
    parts = shared(workers(number))
    assert Counter(each for part in parts for each in part) == Counter(workers(number))
    assert all(len(part) <= TOGETHER for part in parts)
    alone = [each for each in workers(number) if each.startswith(("printer", "candidate"))]
    assert [[each] for each in alone[:MOST_ALONE]] == parts[: min(len(alone), MOST_ALONE)]


KEY = b"lock:jobs/printer"


def holder(lease: str, token: int) -> Holder:
    owner = "h/7/printer-1"
    return Holder(lease, owner, token, 1, (0,), held_for=1.0, expires_in=4.25)


def test_what_is_told_of_a_death() -> None:
    story = Story()
    told = story.killed(KEY, holder("a", 10))
    assert told == "kill -9 7: printer-1 dies while holding jobs/printer, for 4.2 s more"
    next_one = Event("granted", KEY, 0.0, "b", "h/8/printer-2", token=1015, waited=2.5)
    late = Event("expired", KEY, 0.0, "a", "h/7/printer-1", token=10)
    passed = "jobs/printer passes from printer-1, which is dead, to printer-2"
    assert [story.heard(each) for each in (late, next_one, late)] == ["", passed, ""]
    assert story.heard(next_one) == "", "to be granted is nothing special"
    assert story.summed_up(20.0) == "2 grants in 20 s; the longest wait was 2.5 s"
    assert story.summed_up(20.0) == "0 grants in 20 s; the longest wait was 0.0 s"
    assert story.closed() == "2 grants and 1 kill in total; all processes have ended"


def test_what_is_told_of_others() -> None:
    story = Story()
    leads = Event("granted", b"leader:jobs/planner", 0.0, "c", "h/9/candidate-1", token=5)
    assert story.heard(leads) == "jobs/planner: candidate-1 is the leader now"
    late = Event("expired", b"lock:shop/scales", 0.0, "d", "h/9/forgetful-1", token=5)
    assert story.heard(late) == ("shop/scales: forgetful-1 did not renew its lease, so it expired")
    assert story.heard(late) == "", "once"
    assert story.heard(Event("released", KEY, 0.0)) == ""


@pytest.mark.parametrize(
    ("owner", "process", "worker"),
    [("host/7/a-1", 7, "a-1"), ("x", 0, "x"), ("host/x/y", 0, "y"), ("", 0, "")],
)
def test_what_an_owner_says(owner: str, process: int, worker: str) -> None:
    assert (process_of(owner), worker_of(owner)) == (process, worker)
