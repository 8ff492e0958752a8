"""Workers that gunicorn forks after its master has used the client: they inherit nothing of it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

import dibs.sync
from tests.servers.waiting import wait_until

LONG = 30.0

APPLICATION = """
import asyncio, json, os, pathlib, sys
import dibs, dibs.sync

counts = pathlib.Path("counter")
client = dibs.sync.connect(os.environ["LEASES"])
tasks = dibs.Client(client.session)
counter = client.lock("counter", ttl=5)

async def use_it():
    async with tasks.lock("warm") as lease:
        await lease.renew()

asyncio.run(use_it())
master = client.lock("master", ttl=1).acquire()

def app(environ, start_response):
    with counter as lease:  # reading and writing are apart: only the lock keeps the count right
        counts.write_text(str(int(counts.read_text()) + 1))
        answer = os.getpid(), lease.owner, lease.token, master.lost
    body = json.dumps(answer).encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
"""


@pytest.fixture
def gunicorn(redis_url: str, tmp_path: Path) -> Iterator[tuple[str, int]]:
    """A server of two processes with four threads each: its URL, and its process."""
    (tmp_path / "counting.py").write_text(APPLICATION)
    (tmp_path / "counter").write_text("0")
    listener = socket.create_server(("127.0.0.1", 0))  # requests wait here until it is up
    options = f"--preload --workers 2 --threads 4 -b fd://{listener.fileno()} --no-control-socket"
    with subprocess.Popen(
        [sys.executable, "-m", "gunicorn", *options.split(), "counting:app"],
        cwd=tmp_path,
        env=os.environ | {"LEASES": redis_url},
        pass_fds=[listener.fileno()],
        stderr=subprocess.DEVNULL,
    ) as server:
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/", server.pid
        finally:
            server.terminate()
    listener.close()


@pytest.mark.once
@pytest.mark.multiprocess
def test_gunicorns_workers_inherit_nothing_that_was_made_before_the_fork(
    gunicorn: tuple[str, int], redis_url: str, tmp_path: Path
) -> None:
    url, master = gunicorn
    answers: list[Any] = []

    def ask(_: object = None) -> None:
        with urlopen(url, timeout=LONG) as answer:
            answers.append(json.loads(answer.read()))

    def another_answers() -> bool:
        """One that did not before; the one that is being killed may refuse."""
        before = {pid for pid, *_ in answers}
        try:
            ask()
        except OSError:
            return False
        return answers[-1][0] not in before

    with ThreadPoolExecutor(8) as threads:
        while len({pid for pid, *_ in answers}) < 2:
            list(threads.map(ask, range(40)))
    began = time.monotonic()
    os.kill(answers[-1][0], signal.SIGKILL)
    wait_until(another_answers, "another worker has come")
    assert int((tmp_path / "counter").read_text()) >= len(answers)
    assert len({token for _, _, token, _ in answers}) == len(answers)
    for pid, owner, _, master_lost in answers:
        assert owner.split("/")[1] == str(pid)
        assert master_lost, "the master's lease is none of a worker's"
    time.sleep(max(0.0, began + 1.2 - time.monotonic()))  # longer than its ttl
    with dibs.sync.connect(redis_url) as client:
        [holder] = client.lock("master").status().holders
        assert holder.owner.split("/")[1] == str(master), "the master's lease outlived workers"
        assert client.lock("counter").acquire(wait=LONG).release()
