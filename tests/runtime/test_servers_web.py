"""Web servers of several processes: uvicorn's workers, and gunicorn's, forked after the client was used."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

import dibs.sync
from tests.runtime.real_stores import SHARED, url_of
from tests.servers.ports import HOST
from tests.servers.process import ServerProcess
from tests.servers.server import Server
from tests.servers.waiting import wait_until

pytestmark = [pytest.mark.once, pytest.mark.multiprocess]

ROOT = Path(__file__).resolve().parents[2]
LONG = 30.0
AT_ONCE, REQUESTS = 8, 40


class Site(Server):
    """A web server of two processes, and those who ask it."""

    PORT_IS_TAKEN = "in use"

    def __init__(self, folder: Path, leases: str, environment: pytest.MonkeyPatch) -> None:
        super().__init__(folder)
        self.counter = folder / "counter"
        self.counter.write_text("0")
        self.client = dibs.sync.connect(leases)
        self._asked = 0
        for name, value in {
            "LEASES": leases,
            "COUNTER": str(self.counter),
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        }.items():
            environment.setenv(name, value)

    def serve(self, *command: str) -> None:
        """Start a server by its module, its arguments, and `{port}` among them."""
        self._command = command
        self.start()

    def _launch(self) -> ServerProcess:
        words = [part.format(port=self.port) for part in self._command]
        log = self.folder / "server.log"
        return ServerProcess([sys.executable, "-m", *words], log=log, end_signal=signal.SIGTERM)

    def _answers(self) -> bool:
        """Whether it serves, and it is this one and not somebody else's on that port."""
        try:
            self.ask()
        except (OSError, ValueError):
            return False
        if self.counter.read_text() == "0":
            self._asked = 0
            return False
        return True

    def ask(self) -> Any:
        """One request."""
        with urlopen(f"http://{HOST}:{self.port}/", timeout=LONG) as answer:
            self._asked += 1
            return json.loads(answer.read())

    def ask_many(self) -> list[Any]:
        """So many requests, several at once, and more until both processes have answered some."""
        answers: list[Any] = []
        with ThreadPoolExecutor(AT_ONCE) as threads:
            while len({answer["pid"] for answer in answers}) < 2:
                answers += threads.map(lambda _: self.ask(), range(REQUESTS))
        return answers

    def check(self, answers: list[Any]) -> None:
        """None counted at the same time as another, and each by its own name."""
        assert int(self.counter.read_text()) >= self._asked
        assert len({answer["token"] for answer in answers}) == len(answers)
        for answer in answers:
            assert answer["owner"].split("/")[1] == str(answer["pid"])
        assert self.client.lock("counter").acquire(wait=LONG).release()


@pytest.fixture
def site(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Site]:
    site = Site(tmp_path, url_of(kind, request, tmp_path), monkeypatch)
    with ExitStack() as stack:
        stack.push(site)
        yield site
    site.client.close()


@pytest.mark.parametrize(
    "kind", ["sqlite", *(pytest.param(kind, marks=pytest.mark.long) for kind in SHARED[1:])]
)
def test_uvicorns_workers_take_turns(site: Site) -> None:
    site.serve(*["uvicorn", "--workers", "2", "--port", "{port}", "tests.runtime.serving:app"])
    answers = site.ask_many()
    site.check(answers)
    assert int(site.counter.read_text()) == site._asked
    site.stop()
    assert [status.name for status in site.client.list()] == []


@pytest.mark.parametrize(
    ("kind", "worker"),
    [
        ("redis", "gthread"),
        pytest.param("postgres", "asgi", marks=pytest.mark.long),
    ],
)
def test_gunicorns_workers_inherit_nothing_that_was_made_before_the_fork(
    site: Site, worker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER", "yes")
    name = "wsgi" if worker == "gthread" else "app"
    options = f"--preload --workers 2 -b {HOST}:{{port}} --no-control-socket"
    options += " --threads 4" if worker == "gthread" else ""
    site.serve("gunicorn", "-k", worker, *options.split(), f"tests.runtime.serving:{name}")
    began = time.monotonic()
    answers = site.ask_many()
    assert {answer["master_lost"] for answer in answers} == {True}
    killed = answers[-1]["pid"]
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: _asked_of_another(site, killed, answers), "another worker has come")
    site.check(answers)
    time.sleep(max(0.0, began + 1.2 - time.monotonic()))  # longer than its ttl
    [holder] = site.client.lock("master").status().holders
    assert holder.owner.split("/")[1] == str(site.pid), "the master's lease outlived workers"
    site.stop()
    assert site.client.lock("master").acquire(wait=LONG).release()


def _asked_of_another(site: Site, killed: int, answers: list[Any]) -> bool:
    """Whether a process has answered that didn't before; one that is being killed may refuse."""
    before = {answer["pid"] for answer in answers}
    try:
        answers.append(site.ask())
    except OSError:
        return False
    return answers[-1]["pid"] not in before
