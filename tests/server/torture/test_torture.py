"""Short runs of the torture of two servers, and its planted bugs; see `__main__` for full runs."""

import http.client
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from dibs.testing import TorturePlan
from tests.server.torture.bugs import BUGS
from tests.server.torture.site import StoreName, running
from tests.server.torture.trial import KINDS, ServiceTorture, tortured
from tests.server.torture.truth import judged
from tests.server.world import lock
from tests.servers.ports import HOST
from tests.servers.waiting import wait_until
from tests.stores.http.processes import DibsServer

pytestmark = [pytest.mark.slow, pytest.mark.serial, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dibs.testing.torture.supervise.LINGER", 0.0)  # the store ends anyway


def test_nothing_is_held_twice_while_servers_and_ways_are_struck(tmp_path: Path) -> None:
    plan = TorturePlan(seconds=6, processes=2, tasks=4, ttl=1, seed=3, primitives=KINDS)
    with tortured(tmp_path, "redis", plan, raw=1) as torture:
        verdict = torture.run()
    assert verdict.violations == [], str(verdict)
    assert verdict.trouble == "", str(verdict)
    assert torture.storm.counts.total() > 2
    assert verdict.cycles > 20


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


HOLDER, WAITER = "holder-0123456789-0123456789", "waiter-0123456789-0123456789"

LOOKS = 50
"""Requests that a server answers after another one, which it has begun to work on by then."""


def sent(server: DibsServer, method: str, **query: Any) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(HOST, server.port, timeout=10.0)
    headers = {"Authorization": f"Bearer {server.key}"}
    connection.request(method, f"{lock('x')}?{urlencode(query)}", headers=headers)
    return connection


def ask(server: DibsServer, method: str, **query: Any) -> dict[str, Any]:
    with closing(sent(server, method, **query)) as connection:
        found: dict[str, Any] = json.loads(connection.getresponse().read() or b"{}")
        return found


@pytest.mark.parametrize("bug", ["", "gives-up-for-the-caller"])
def test_a_paused_server_keeps_the_ids_of_its_callers(tmp_path: Path, bug: str) -> None:
    """They may hold through another server meanwhile. With the planted bug the ids are given up."""
    with running(tmp_path, "redis", 1, bug) as site:
        first, second = site.servers
        assert "sequencer" in ask(second, "POST", ttl=60, id=HOLDER)
        waiting = sent(first, "POST", ttl=60, id=WAITER, wait=30)
        wait_until(lambda: ask(second, "GET")["waiting"] == 1, "it waits")
        first.pause()
        waiting.close()
        with closing(sent(second, "POST", ttl=60, id=WAITER, wait=30)) as again:
            for _ in range(LOOKS):  # so its Acquire is at the store, and is notified here
                ask(second, "GET")
            ask(second, "DELETE", id=HOLDER)
            token = json.loads(again.getresponse().read())["sequencer"]
        first.resume()
        found = [ask(first, "GET").get("sequencer") for _ in range(LOOKS)]
        assert set(found) <= {token, None}
        assert (found[-1] is None) == bool(bug)
