"""Short runs of the torture of two servers, and its planted bugs; see `__main__` for full runs."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlencode

import pytest

from dibs.testing import TorturePlan
from tests.server.torture.bugs import BUGS
from tests.server.torture.site import StoreName, running
from tests.server.torture.trial import KINDS, ServiceTorture, tortured
from tests.server.torture.truth import judged
from tests.server.world import ID, TRUST, Client, head, lock
from tests.servers.ports import HOST
from tests.servers.waiting import wait_until
from tests.stores.http.processes import DibsServer

pytestmark = [pytest.mark.slow, pytest.mark.serial, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dibs.testing.torture.supervise.LINGER", 0.0)  # the store ends anyway


def test_nothing_is_held_twice_while_servers_and_ways_are_struck(tmp_path: Path) -> None:
    plan = TorturePlan(seconds=60, cycles=20, processes=2, tasks=4, ttl=1, seed=3, primitives=KINDS)
    with tortured(tmp_path, "redis", plan, raw=1) as torture:
        verdict = torture.run()
    assert verdict.violations == [], str(verdict)
    assert verdict.trouble == "", str(verdict)
    assert torture.storm.counts.total() > 2
    assert verdict.cycles >= 20


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(BUGS.keys() - {"gives-up-for-the-caller"}))
def test_a_planted_bug_is_found(tmp_path: Path, name: str) -> None:
    plan = TorturePlan(seconds=60, processes=6, tasks=3, ttl=1, seed=1, primitives=KINDS)
    with tortured(tmp_path, "redis", plan, bug=name) as torture:
        verdict = torture.run()
    assert BUGS[name].rule in {each.rule for each in verdict.violations}, str(verdict)


@pytest.mark.long
@pytest.mark.parametrize("store", ["redis", "postgres"])
def test_events_tell_the_truth_while_servers_are_killed(tmp_path: Path, store: StoreName) -> None:
    plan = TorturePlan(seconds=60, processes=4, tasks=3, ttl=2, seed=5, primitives=KINDS)
    over = threading.Event()
    with running(tmp_path, store, plan.seed, "") as site, ThreadPoolExecutor() as pool:
        judges = [pool.submit(judged, each.url, str(each.port), over) for each in site.servers]
        try:
            verdict = ServiceTorture(site, plan, raw=1).run()
        finally:
            over.set()
    assert verdict.violations == [], str(verdict)
    for judge in (each.result() for each in judges):
        assert judge.lies == []
        assert judge.counts["begun"] > 1, "it was followed through a kill"
        assert judge.counts["judged"] > 50


LOOKS = 50
"""Requests that a server answers after another one, which it has begun to work on by then."""


def client_of(server: DibsServer) -> Client:
    header = {"Authorization": f"Bearer {server.key}"}
    return Client(base_url=f"http://{HOST}:{server.port}", headers=header, verify=TRUST)


@pytest.mark.parametrize("bug", ["", "gives-up-for-the-caller"])
def test_a_paused_server_keeps_the_ids_of_its_callers(tmp_path: Path, bug: str) -> None:
    """They may hold through another server meanwhile. With the planted bug the ids are given up."""
    holder, waiter = {"id": f"{ID}1"}, {"id": f"{ID}2", "client-id": "web-3", "ttl": 60, "wait": 30}
    with running(tmp_path, "redis", 1, bug) as site, ThreadPoolExecutor() as pool:
        first, second = site.servers
        with client_of(first) as here, client_of(second) as there:
            there.acquired("x", **holder)
            with socket.create_connection((HOST, first.port)) as line:
                line.sendall(head(f"POST {lock('x')}?{urlencode(waiter)}", first.key))
                wait_until(lambda: there.waiting("x") == 1, "it waits")
                first.pause()
            again = pool.submit(there.acquired, "x", **waiter)
            for _ in range(LOOKS):  # so its Acquire is at the store, and is notified here
                there.get(lock("x"))
            there.release("x", holder)
            token = again.result()["sequencer"]
            first.resume()
            found = [here.get(lock("x")).json().get("sequencer") for _ in range(LOOKS)]
            assert set(found) <= {token, None}
            assert (found[-1] is None) == bool(bug)
