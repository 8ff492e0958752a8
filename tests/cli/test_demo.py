"""`dibs demo`: it shows what really happens, and leaves nothing behind."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dibs import sync
from dibs.cli.demo.worker import TTL
from dibs.cli.exits import UNAVAILABLE, USAGE
from tests.cli.processes import Cli, Main, alive, children, line
from tests.servers.waiting import wait_until

HASTY = """
import sys
from dibs.cli import main
from dibs.cli.demo import show

show.KILLED_EVERY, show.REPLACED_AFTER, show.GLANCE = 0.5, 0.1, 0.05
sys.exit(main())
"""
"""The same, where there is more to be seen in less time."""


def next_event(demo: "subprocess.Popen[str]", event: str, part: str = "") -> dict[str, Any]:
    while text := line(demo):
        said: dict[str, Any] = json.loads(text)
        if said["event"] == event and part in said.get("message", ""):
            return said
    raise AssertionError(demo.communicate())


def test_it_is_real_and_leaves_nothing(cli: Cli, tmp_path: Path) -> None:
    environment = cli.environment | {"TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir()
    hasty = [sys.executable, "-c", HASTY]
    demo = cli.start("demo", "--json", "--workers", "8", program=hasty, env=environment)
    opened = next_event(demo, "listening")
    assert (opened["workers"], opened["processes"]) == (8, 4)
    assert opened["sign_in_url"].startswith(f"{opened['url']}/#ticket=")
    workers = children(demo.pid)
    assert len(workers) == 4
    killed = next_event(demo, "told", "kill -9 ")["message"]
    pid = int(killed.split()[2].rstrip(":"))
    assert pid in workers
    assert not alive(pid)
    assert 0 < float(killed.rsplit(maxsplit=2)[1]) <= TTL, "its lease outlives it"
    with sync.connect(opened["url"].replace("//", f"//{opened['key']}@")) as client:
        wait_until(lambda: client.status("jobs/printer").last_token, "the printer works")
    wait_until(lambda: len(set(children(demo.pid)) - {pid}) == 4, "another takes its place")
    workers = children(demo.pid)
    demo.send_signal(signal.SIGINT)
    assert next_event(demo, "told", "in total; all processes have ended")
    _, err = demo.communicate(timeout=30)
    assert (demo.returncode, err) == (0, "")
    assert not any(map(alive, workers))
    assert list((tmp_path / "tmp").iterdir()) == []


def test_what_it_refuses(verb: Main, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = verb("demo", "--port", str(port))
    assert (done.code, f"127.0.0.1:{port}" in done.err) == (UNAVAILABLE, True)
    for module in ("dibs.cli.demo.show", "dibs.server.main", "dibs.server.front"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    done = verb("demo")
    assert (done.code, "pip install 'dibs[server]'" in done.err) == (USAGE, True)
