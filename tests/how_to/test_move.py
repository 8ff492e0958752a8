"""How to move locks to another store while they are in use."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen

import pytest

from dibs.sync import connect
from tests.pages import write_files
from tests.servers.waiting import wait_until

pytestmark = [pytest.mark.once, pytest.mark.multiprocess, pytest.mark.slow]

DIBS = [sys.executable, "-m", "dibs"]


@pytest.fixture(autouse=True)
def _in_a_folder_with_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files("how-to/move.md", tmp_path)
    monkeypatch.chdir(tmp_path)


@contextmanager
def serving(*options: str, environment: pytest.MonkeyPatch) -> Iterator[None]:
    """A service that all commands use meanwhile."""
    command = [*DIBS, "serve", "--json", "--listen", "127.0.0.1:0", *options]
    with Popen(command, stdout=PIPE, text=True) as server:
        assert server.stdout is not None
        listening = json.loads(server.stdout.readline())
        environment.setenv("DIBS_URL", listening["url"])
        if "first_key" in listening:
            environment.setenv("DIBS_API_KEY", listening["first_key"])
        try:
            yield
        finally:
            server.terminate()


@contextmanager
def working() -> Iterator["Popen[str]"]:
    """The worker of the page, but it does not end by itself."""
    program = Path("worker.py")
    program.write_text(program.read_text("utf-8").replace("range(20)", "range(10_000)"), "utf-8")
    with Popen([sys.executable, program], stdout=PIPE, stderr=PIPE, text=True) as worker:
        try:
            yield worker
        finally:
            worker.terminate()


def next_token(worker: "Popen[str]") -> int:
    assert worker.stdout is not None
    line = worker.stdout.readline()
    assert line, worker.communicate()[1]
    return int(re.findall(r"job \d+, token (\d+)", line)[0])


def dibs(*words: str) -> tuple[int, str]:
    """Its exit code and output."""
    done = subprocess.run([*DIBS, *words], stdout=PIPE, stderr=DEVNULL, text=True, check=False)
    return done.returncode, done.stdout.strip()


def test_a_directory_in_use_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        serving("--config", "server.toml", environment=monkeypatch),
        connect() as client,
        working() as worker,
        client.lock("shop/long") as lease,
    ):
        tokens = [next_token(worker)]
        assert dibs("move", "shop/", "--to", "new", "--yes")[0] == 0
        wait_until(lambda: dibs("run", "-n", "shop/other", "true")[0] == 69, "it drains")
        assert dibs("move", "shop/")[1].startswith("shop/ moves from old to new once it is idle")
        lease.ensure()
        lease.release()
        assert dibs("move", "shop/", "--wait") == (0, "shop/ lives at new")
        while tokens[-1] - tokens[0] < 70 * 60 * 1e6:  # until one is from the new store
            tokens.append(next_token(worker))
        worker.terminate()
        assert worker.communicate()[1] == ""
    assert tokens == sorted(set(tokens))


def test_a_service_with_one_store_gets_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving("--leases", "sqlite:///leases.db", environment=monkeypatch):
        acquired = json.loads(dibs("acquire", "shop/stock", "--ttl", "5m", "--json")[1])
    with serving("--config", "second.toml", environment=monkeypatch):
        monkeypatch.setenv("DIBS_LOCK_ID", acquired["lease_id"])
        assert dibs("renew", "shop/stock", "--ttl", "5m")[0] == 0
        assert dibs("release", "shop/stock")[0] == 0
        assert dibs("move", "/", "--to", "new", "--wait", "--yes") == (0, "/ lives at new")
