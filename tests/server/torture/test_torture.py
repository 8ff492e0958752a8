"""Short runs of the torture of two servers, and what its judges find; see `__main__` for full runs."""

import http.client
import json
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from dibs.testing import HistoryEvent as Event
from dibs.testing import Recorder, TorturePlan
from tests.server.torture.judging import ServiceJudge, still_held, waits
from tests.server.torture.site import StoreName, running
from tests.server.torture.storm import SERVER_FAULTS
from tests.server.torture.trial import KINDS, ServiceTorture, tortured
from tests.server.torture.truth import StreamJudge, followed
from tests.server.world import b64
from tests.servers.ports import HOST
from tests.servers.waiting import wait_until
from tests.stores.http.processes import DibsServer
from tests.torture.in_line import in_line

KEY = b"lock:x/lock-1"


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.serial
@pytest.mark.multiprocess
def test_nothing_is_held_twice_while_servers_and_ways_are_struck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dibs.testing.torture.supervise.LINGER", 0.0)  # the store ends anyway
    plan = TorturePlan(seconds=8, processes=3, tasks=4, ttl=1, seed=3, primitives=KINDS)
    with tortured(tmp_path, "redis", plan, raw=1) as torture:
        verdict = torture.run()
    assert verdict.violations == [], str(verdict)
    assert verdict.trouble == "", str(verdict)
    assert torture.storm.trouble == ""
    assert torture.storm.counts.total() > 2
    assert verdict.cycles > 20


HOLDER, WAITER = "holder-0123456789-0123456789", "waiter-0123456789-0123456789"

LOOKS = 50
"""Requests that a server answers after another one, which it has begun to work on by then."""


def sent(server: DibsServer, method: str, **query: Any) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(HOST, server.port, timeout=10.0)
    path = f"/v1/locks/{b64('x')}?{urlencode(query)}"
    connection.request(method, path, headers={"Authorization": f"Bearer {server.key}"})
    return connection


def ask(server: DibsServer, method: str, **query: Any) -> dict[str, Any]:
    with closing(sent(server, method, **query)) as connection:
        found: dict[str, Any] = json.loads(connection.getresponse().read() or b"{}")
        return found


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.multiprocess
@pytest.mark.parametrize("bug", ["", "gives-up-for-the-caller"])
def test_a_paused_server_keeps_the_ids_of_its_callers(tmp_path: Path, bug: str) -> None:
    """They may hold through another server meanwhile. With the planted bug the ids are given up."""
    with running(tmp_path, "redis", 1, bug=bug) as site:
        first, second = site.servers
        assert "sequencer" in ask(second, "POST", ttl=60, id=HOLDER)
        waiting = sent(first, "POST", ttl=60, id=WAITER, wait=30)
        wait_until(lambda: ask(second, "GET")["waiting"] == 1, "it waits")
        first.pause()
        waiting.close()
        with closing(sent(second, "POST", ttl=60, id=WAITER, wait=30)) as again:
            for _ in range(
                LOOKS
            ):  # so its Acquire is at the store, and the notification comes here
                ask(second, "GET")
            ask(second, "DELETE", id=HOLDER)
            token = json.loads(again.getresponse().read())["sequencer"]
        first.resume()
        found = [ask(first, "GET").get("sequencer") for _ in range(LOOKS)]
        assert set(found) <= {token, None}
        assert (found[-1] is None) == bool(bug)


@pytest.mark.long
@pytest.mark.multiprocess
@pytest.mark.serial
@pytest.mark.timeout(400)
@pytest.mark.parametrize("store", ["redis", "postgres"])
def test_events_tell_the_truth_while_servers_are_killed(tmp_path: Path, store: StoreName) -> None:
    plan = TorturePlan(seconds=60, processes=4, tasks=3, ttl=2, seed=5, primitives=KINDS)
    with running(tmp_path, store, plan.seed) as site, followed(site) as readers:
        torture = ServiceTorture(site, plan, raw=1, kinds=SERVER_FAULTS)
        verdict = torture.run()
    assert verdict.violations == [], str(verdict)
    assert torture.storm.trouble == ""
    assert torture.storm.counts.total() > 5
    for reader in readers:
        assert reader.trouble == ""
        assert reader.judge.lies == []
        assert reader.judge.counts["begun"] > 1, "it was followed through a kill"
        assert reader.judge.counts["judged"] > 100


# -- the judge of histories -------------------------------------------------------------------------


def judged(folder: Path, *events: Event) -> list[str]:
    with Recorder(folder / "history-1.jsonl") as recorder:
        for event in events:
            recorder.record(event)
    verdict = ServiceJudge(TorturePlan(ttl=1)).judge(folder, [])
    return [each.message for each in verdict.violations]


def granted(at: float, invoked: float, token: int, process: int) -> Event:
    owner = f"{process}-{token}"
    return Event(at, "granted", KEY.decode(), owner, token, invoked, at + 0.01, process=process)


@pytest.mark.parametrize(
    ("came", "waited", "found"),
    [(1.2, 0.1, True), (1.0, 0.1, False), (1.2, 1.5, False)],
    ids=["overtaken", "asked before the other was in line", "silent for too long"],
)
def test_callers_in_line_are_served_first(
    tmp_path: Path, came: float, waited: float, found: bool
) -> None:
    """The one asked at 1.0, and was told at 1.1 that it was in line."""
    told = judged(
        tmp_path,
        in_line(1.1, KEY, 1.0, 1),
        granted(came + waited, came, 7, 2),
        granted(came + waited + 0.1, 1.0, 8, 1),
    )
    assert [each.startswith("out of turn: token 7") for each in told] == [True] * found


def test_a_wait_counts_from_when_the_lock_became_free() -> None:
    first, waited, late = (
        granted(at, invoked, at, 1) for at, invoked in ((1, 0.5), (4, 0.8), (9, 8))
    )
    assert list(waits([first._replace(until=2.0), waited, late])) == [(2.0, waited)]


def test_a_release_that_was_acknowledged_was_done(tmp_path: Path) -> None:
    (told,) = judged(tmp_path, still_held(1.0, KEY, 7, 1))
    assert told == "token 7 was released, which was acknowledged, and is held still"


# -- the judge of events ----------------------------------------------------------------------------


def event(what: str, at: float, lease: str, token: int = 1, **more: Any) -> tuple[str, Any]:
    about = {"kind": "lock", "name": "eA", "units": 1, "slots": [0], "found": False}
    return "message", about | {"what": what, "at": at, "lease": lease, "token": token, **more}


def lies(*events: tuple[str, Any]) -> list[str]:
    judge = StreamJudge("a server")
    for kind, data in (("hello", {"server": "one"}), *events):
        judge.take(kind, data)
    return judge.lies


def test_true_events_pass() -> None:
    assert not lies(
        event("expired", 0.5, "before", 1, held_for=9.0),  # nobody knows of its grant
        event("granted", 1.0, "a", 2),
        event("queued", 1.2, "b", 0, slots=[]),
        event("released", 2.0, "a", 2, held_for=1.0),
        event("granted", 2.0, "b", 3),
        event("resized", 2.5, "b", 4, units=2, slots=[0, 1]),
        event("granted", 2.6, "c", 5, slots=[2]),
        event("expired", 3.0, "b", 4, units=2, slots=[0, 1], held_for=1.0),
        ("hello", {"server": "another"}),
        event("granted", 2.9, "c", 3),
    )


WRITER: dict[str, Any] = {"kind": "rwlock", "units": None, "slots": []}

READER: dict[str, Any] = {"kind": "rwlock", "units": 1, "slots": []}


@pytest.mark.parametrize(
    ("events", "lie"),
    [
        ([event("granted", 2, "b", 2)], "granted before the end of token 1"),
        (
            [event("released", 3, "a", held_for=2.0), event("granted", 2.9, "b", 2)],
            "granted 0.100 s before the end of token 1",
        ),
        (
            [event("released", 3, "a", held_for=2.0), event("granted", 3, "b", 1)],
            "its token is not above 1",
        ),
        ([event("released", 3, "a", held_for=1.5)], "it was held for 2.000 s"),
        ([event("released", 0.5, "a", held_for=-0.5)], "it ended 0.500 s before it was granted"),
        ([event("released", 3, "a", 7, held_for=2.0)], "it had token 1"),
        ([event("granted", 2, "a", 2)], "it has token 1 already"),
        (
            [event("granted", 2, "r", 2, **READER), event("granted", 3, "w", 3, **WRITER)],
            "granted before the end of token 2",
        ),
        (
            [event("granted", 2, "w", 2, **WRITER), event("granted", 3, "r", 3, **READER)],
            "granted before the end of token 2",
        ),
    ],
    ids=lambda each: each.replace(" ", "-") if isinstance(each, str) else "",
)
def test_a_lie_is_found(events: list[tuple[str, Any]], lie: str) -> None:
    """The first one, `a`, was granted at 1 with token 1."""
    found = lies(event("granted", 1, "a"), *events)
    assert [lie in each for each in found] == [True]


def test_readers_share() -> None:
    assert not lies(event("granted", 1, "a", **READER), event("granted", 2, "b", 2, **READER))
