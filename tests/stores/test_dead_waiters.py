"""Waiters are killed, and a living one behind them gets the lock within two claim timeouts."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dibs.core.timing import claim_timeout
from dibs.sync import Client, connect

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow, pytest.mark.once]

TTL = 4.0
CLAIM_TIMEOUT = claim_timeout(TTL)
SLACK = 3 * CLAIM_TIMEOUT
"""Before, the twenty cost more than thirty seconds."""
EACH = 10

WAITERS = f"""
import sys, threading, time
from dibs.sync import connect
client = connect(sys.argv[1])
for _ in range({EACH}):
    threading.Thread(target=client.lock("x", ttl={TTL}).acquire, daemon=True).start()
time.sleep(600)
"""


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/leases.db"
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with connect(url) as found:
        yield found


def wait_for(client: Client, waiting: int) -> None:
    while client.status("x").waiting != waiting:
        time.sleep(0.05)


@pytest.mark.timeout(120)
def test_any_number_of_killed_waiters_costs_two_claim_timeouts(url: str, client: Client) -> None:
    held = client.lock("x", ttl=60).acquire()
    command = [sys.executable, "-c", WAITERS, url]
    dead = [subprocess.Popen(command) for _ in range(2)]
    try:
        wait_for(client, 2 * EACH)
    finally:
        for process in dead:
            process.kill()
            process.wait()
    held.release()
    began = time.monotonic()
    with client.lock("x", ttl=TTL, wait=60):
        assert time.monotonic() - began < 2 * CLAIM_TIMEOUT + SLACK
