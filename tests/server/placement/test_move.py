"""Directories that drain, and move between stores."""

import asyncio
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import httpx2
import pytest

from dibs.errors import BackendUnavailable
from dibs.model import Acquire, Command, Inspect, Queued, Release, Status
from dibs.runtime.port import TimedReply
from dibs.server.placement import drain as drain_module
from dibs.server.placement.drain import write_homes
from dibs.server.placement.registry import (
    ORDER,
    Deadline,
    Home,
    MoveOrder,
    read_all,
)
from dibs.server.placement.restrictions import write_record
from dibs.server.records.port import Conflict
from dibs.sync import Client, Waiting, connect
from tests.server.inside import records_of
from tests.server.placement.asking import (
    Fleet,
    acquired,
    away,
    is_held,
    is_moving,
    lock,
    memory,
    move,
    moved,
    progress,
    released,
    until,
)
from tests.server.world import LONG, b64


class Pair(Fleet):
    """Two servers of one service with two stores."""

    def __init__(self) -> None:
        super().__init__()
        places = memory("one", region="DE"), memory("two", region="US")
        self.clients = [self.client(self.start(*places)) for _ in range(2)]

    def waiting(self, key: bytes) -> int:
        one = self.store(0, "one")
        status = self.servers[0].do(lambda: one.call(Inspect(key))).reply
        assert isinstance(status, Status)
        return status.waiting

    def drain(
        self, directory: bytes, to: str, deadline: float | None = 3600.0, *, overdue: bool = False
    ) -> None:
        """Begin a move as a server does that crashes next."""
        records = records_of(self.servers[0])

        async def do() -> None:
            found = await read_all(records)
            order = MoveOrder(to, Deadline(deadline, time.time()))
            await write_record(records, ORDER, directory, order, 0)
            home = found.home_of(directory).draining(to, time.time())
            home = home.overdue() if overdue else home
            await write_homes(records, found, {**found.homes, directory: home})

        self.servers[0].do(do)


@pytest.fixture
def pair() -> Iterator[Pair]:
    found = Pair()
    yield found
    found.close()


def audited(client: httpx2.Client) -> list[str]:
    lines = client.get("/v1/audit").json()["entries"]
    return [each["what"] for each in lines if each["what"].startswith("move ")]


def rule_of(directory: str) -> str:
    return f"/v1/restrict/locks/{b64(directory)}/"


def test_without_a_deadline_a_directory_in_use_stays_until_it_is_idle(pair: Pair) -> None:
    here, there = pair.clients
    held = acquired(here, "d/busy")
    old = acquired(here, "d/idle")
    released(here, "d/idle", old)
    move(here, "d", "two", deadline=None)
    seen = progress(there, "d")
    assert (seen["place"], seen["to"], seen["phase"], seen["keys"]) == ("one", "two", "pending", 1)
    assert 0 < seen["ends_in"] <= 60
    for client in (here, there):  # nothing else changes for its users
        assert is_held(client, "d/busy")
        assert client.patch(lock("d/busy"), params={"id": held["id"], "ttl": 60}).status_code == 200
        again = acquired(client, "d/idle")
        released(client, "d/idle", again)
    got: list[dict[str, Any]] = []
    waiter = threading.Thread(
        target=lambda: got.append(acquired(there, "d/busy", wait=LONG)), daemon=True
    )
    waiter.start()
    until(lambda: there.get(f"{lock('d/busy')}/queue").json().get("waiting") != 0)
    released(there, "d/busy", held)
    waiter.join(LONG)
    assert got[0]["sequencer"] > held["sequencer"]
    assert progress(here, "d")["phase"] == "pending"
    released(here, "d/busy", got[0])
    until(lambda: moved(here, "d", "two"))
    for client, name in ((here, "d/busy"), (there, "d/idle")):
        assert acquired(client, name)["sequencer"] > got[0]["sequencer"]
    assert audited(here) == ["move finished", "move ordered"]


def test_a_directory_in_use_drains_and_its_holders_go_on(pair: Pair) -> None:
    here, there = pair.clients
    held, other = acquired(here, "d/x"), acquired(here, "d/y")
    move(here, "d", "two")
    pair.know(b"d/", "draining")
    for client in (here, there):
        for name in ("d/x", "d/new"):
            answer = client.post(lock(name), params={"ttl": 60, "wait": 10})
            assert is_moving(answer), answer.text
            assert int(answer.headers["retry-after"]) >= 1
        renewal = client.patch(lock("d/x"), params={"id": held["id"], "ttl": 60})
        assert renewal.status_code == 200
        assert client.get(lock("d/x")).status_code == 200
        released(client, "elsewhere", acquired(client, "elsewhere"))
    seen = progress(there, "d")
    assert (seen["place"], seen["to"], seen["phase"], seen["keys"]) == ("one", "two", "draining", 2)
    left = (datetime.fromisoformat(seen["until"]) - datetime.now(UTC)).total_seconds()
    assert 840 < left <= 900
    released(there, "d/y", other)
    assert is_moving(there.post(lock("d/y"), params={"ttl": 60})), "one is held still"
    released(there, "d/x", held)
    until(lambda: moved(here, "d", "two"))
    for client, name in ((here, "d/x"), (there, "d/y")):
        assert acquired(client, name)["sequencer"] > other["sequencer"]
    assert audited(here) == ["move finished", "move ordered"]


def test_at_the_deadline_leases_are_revoked_and_their_units_stay_taken(pair: Pair) -> None:
    here, there = pair.clients
    held = acquired(here, "d/x", ttl=4)
    since = time.monotonic()
    move(here, "d", "two", deadline=1)
    query = {"id": held["id"], "ttl": 4}
    renewed = since

    def is_revoked() -> bool:
        nonlocal renewed
        sent = time.monotonic()
        answer = there.patch(lock("d/x"), params=query)
        if answer.status_code == 200:
            renewed = sent
            return False
        return answer.status_code == 410 and "moves to the placement two" in answer.text

    until(is_revoked)
    assert is_moving(there.post(lock("d/x"), params={"ttl": 60})), "it is not free yet"
    token = acquired(there, "d/x")["sequencer"]
    assert time.monotonic() - renewed >= 4 * 0.99, "nobody held it twice"
    assert token > held["sequencer"]
    assert moved(here, "d", "two")
    assert audited(here) == ["move finished", "move deadline", "move ordered"]


@pytest.mark.parametrize(
    ("is_new", "wait"),
    [(False, None), (True, LONG)],
    ids=["waits already", "comes during the move"],
)
def test_a_client_waits_through_a_move(pair: Pair, is_new: bool, wait: float | None) -> None:
    here, _ = pair.clients
    held = acquired(here, "d/x")
    reports: list[str] = []
    tokens: list[int] = []
    is_reported = threading.Event()

    def report(waiting: Waiting) -> None:
        if waiting.is_moving and waiting.waited > 0.5:  # longer than through an outage
            reports.append(str(waiting))
            is_reported.set()

    def work() -> None:
        try:
            with client.lock("d/x", wait=wait).acquire(on_wait=report) as lease:
                tokens.append(lease.token)
        finally:
            is_reported.set()

    waiter = threading.Thread(target=work, daemon=True)
    with impatient(pair) as client:
        if is_new:
            move(here, "d", "two")
            pair.know(b"d/", "draining")
            waiter.start()
        else:
            waiter.start()
            until(lambda: pair.waiting(b"lock:d/x") == 1)
            move(here, "d", "two")
        assert is_reported.wait(LONG)
        released(here, "d/x", held)
        waiter.join(LONG)
    assert "its directory is moving to another store" in reports[0]
    assert tokens[0] > held["sequencer"]
    assert moved(here, "d", "two")


@pytest.mark.parametrize("wait", [0, 0.2])
def test_a_client_that_stops_waiting_reports_the_move(pair: Pair, wait: float) -> None:
    here, _ = pair.clients
    held = acquired(here, "d/x")
    move(here, "d", "two")
    pair.know(b"d/", "draining")
    with impatient(pair) as client:
        with pytest.raises(BackendUnavailable, match="moving to another store") as caught:
            client.lock("d/y").acquire(wait=wait)
    assert "d/y" in str(caught.value)
    assert "Retry-After" not in str(caught.value), "no advice for programs that speak HTTP"
    released(here, "d/x", held)


def impatient(pair: Pair) -> Client:
    """A client that would give up on an outage after a moment."""
    scheme, _, place = pair.servers[1].url.partition("://")
    key = pair.servers[0].admin_key
    return connect(f"{scheme}://{key}@{place}", connect_timeout=0.1)


def test_a_waiter_that_renews_is_not_granted_while_its_directory_drains(pair: Pair) -> None:
    """Its next renewal would look like that of a holder, also at a server without the records."""
    here, _ = pair.clients
    held = acquired(here, "d/x")
    one, key, waiter = pair.store(0, "one"), b"lock:d/x", "waits" * 5
    queued = pair.servers[0].do(lambda: one.call(Acquire(key, waiter, "me", 60.0, queue=True)))
    assert isinstance(queued.reply, Queued)
    move(here, "d", "two")
    pair.know(b"d/", "draining")
    released(here, "d/x", held)
    answers = [here.patch(lock("d/x"), params={"id": waiter, "ttl": 60}) for _ in range(2)]
    assert [each.status_code for each in answers] == [503, 410]
    until(lambda: moved(here, "d", "two"))


def test_retained_units_are_waited_for_until_the_deadline(pair: Pair) -> None:
    here, there = pair.clients
    one, key, task = pair.store(0, "one"), b"tasklock:d/x", "task" * 6
    commands = (Acquire(key, task, "me", 60.0), Release(key, task, retain=3600.0))
    pair.servers[0].do(lambda: one.call_all(commands))
    move(here, "d", "two")
    pair.know(b"d/", "draining")
    assert progress(there, "d")["keys"] == 1
    move(here, "d", "two", deadline=0.1)  # instead of the first one
    until(lambda: moved(there, "d", "two"))


def test_an_order_to_stay_ends_the_drain(pair: Pair) -> None:
    here, there = pair.clients
    acquired(here, "d/x")
    move(here, "d", "two")
    pair.know(b"d/", "draining")
    move(there, "d", "one")
    pair.know(b"d/", "settled")
    released(here, "d/y", acquired(here, "d/y"))
    assert is_held(there, "d/x")


@pytest.mark.parametrize("phase", ["idle", "held", "overdue", "held, without a deadline"])
def test_any_server_goes_on_after_a_crash(pair: Pair, phase: str) -> None:
    here, there = pair.clients
    held = None if phase == "idle" else acquired(here, "d/x", ttl=5)
    is_gentle = phase == "held, without a deadline"
    pair.drain(b"d/", "two", None if is_gentle else 3600.0, overdue=phase == "overdue")
    pair.servers[0].close()
    if phase == "held":
        assert held is not None
        pair.know_at(1, b"d/", "draining")
        released(there, "d/x", held)
    until(lambda: progress(there, "d")["phase"] != "draining")
    assert progress(there, "d")["place"] == ("one" if is_gentle else "two")
    acquired(there, "d/y")


def test_a_directory_stays_where_it_is_if_the_new_store_is_away(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain_module, "PATIENCE", 1.0)
    _, there = pair.clients

    async def fail(*_: object) -> Any:
        raise BackendUnavailable("it is away")

    for server in (0, 1):
        monkeypatch.setattr(pair.store(server, "two"), "call", fail)
    pair.drain(b"d/", "two")
    until(lambda: progress(there, "d")["phase"] != "draining")
    acquired(there, "d/x")


def test_a_late_grant_at_the_old_place_is_not_reported(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = pair.clients
    store = pair.store(0, "one")
    call = store.call
    is_held_up, go_on = threading.Event(), asyncio.Event()

    async def late(command: Command, *rest: Any) -> TimedReply:
        if command.key == b"lock:d/x" and not go_on.is_set():
            is_held_up.set()
            await go_on.wait()
        answer: TimedReply = await call(command, *rest)
        return answer

    monkeypatch.setattr(store, "call", late)
    answers: list[httpx2.Response] = []
    asking = threading.Thread(
        target=lambda: answers.append(here.post(lock("d/x"), params={"ttl": 60, "id": "late" * 6}))
    )
    asking.start()
    assert is_held_up.wait(LONG)
    move(there, "d", "two")
    until(lambda: moved(there, "d", "two"))
    acquired(there, "d/x")
    pair.servers[0].do(go_on.set)
    asking.join(LONG)
    assert answers[0].status_code in (409, 503)


def test_a_server_with_an_old_reading_denies_nothing_that_has_moved(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = pair.clients
    with monkeypatch.context() as patched:
        away(pair.servers[0], patched)
        until(lambda: here.post(lock("other"), params={"ttl": 60}).status_code == 503)
        move(there, "d", "two")
        until(lambda: moved(there, "d", "two"))
        held = acquired(there, "d/x")
        query = {"id": held["id"], "ttl": 60}
        assert here.patch(lock("d/x"), params=query).status_code == 503
        assert here.get(lock("d/x")).status_code == 503
    assert here.patch(lock("d/x"), params=query).status_code == 200


@pytest.mark.once
def test_locks_exclude_and_tokens_rise_while_a_directory_moves_to_and_fro(pair: Pair) -> None:
    until_then = time.monotonic() + 5
    log: list[tuple[float, float, int]] = []

    def use(client: httpx2.Client) -> None:
        while time.monotonic() < until_then:
            answer = client.post(lock("d/x"), params={"ttl": 60})
            if answer.status_code == 200:
                since, lease = time.monotonic(), answer.json()
                time.sleep(0.002)
                log.append((since, time.monotonic(), lease["sequencer"]))
                released(client, "d/x", lease)
            time.sleep(0.05)

    key = pair.servers[0].admin_key
    users = [
        threading.Thread(target=use, args=(world.client(key=key),))
        for world in pair.servers
        for _ in range(2)
    ]
    for each in users:
        each.start()
    moves, to = 0, "two"
    move(pair.clients[0], "d", to)
    while time.monotonic() < until_then:
        if moved(pair.clients[1], "d", to):
            moves, to = moves + 1, {"two": "one", "one": "two"}[to]
            move(pair.clients[0], "d", to)
        time.sleep(0.05)
    for each in users:
        each.join()
    assert moves > 1
    log.sort()
    for (_, end, token), (begin, _, later) in pairwise(log):
        assert end < begin, "two held it at a time"
        assert token < later, "a token fell"


def test_a_restriction_is_pending_until_its_directory_has_drained(pair: Pair) -> None:
    here, there = pair.clients
    held = acquired(here, "r/x")
    path = rule_of("r")
    rule = {"regions_allowed": ["XN"]}
    assert here.put(path, json={**rule, "deadline": None}).status_code == 200
    assert there.get(path).json()["state"] == "Pending"
    assert progress(here, "r")["phase"] == "pending"
    assert here.put(path, json=rule).status_code == 200
    pair.know(b"r/", "draining")
    assert there.get(path).json()["details"]["regions_allowed"] == ["XN"]
    released(there, "r/x", held)
    until(lambda: bool(there.get(path).json()["state"] == "Enforced"))
    assert there.get(path).json()["placement"] == "two"


def test_moving_everything_leaves_directories_with_rules_of_their_own(pair: Pair) -> None:
    here, there = pair.clients
    rule = rule_of("eu/in")
    assert here.put(rule, json={"regions_allowed": ["XE"]}).status_code == 200
    move(here, "shop", "one")
    held = {name: acquired(here, name) for name in ("eu/in/1", "shop/1")}
    assert here.put("/v1/move", json={"to": "two"}).status_code == 200
    settled = {"place": "two", "to": "", "phase": "settled", "until": None}
    until(lambda: settled.items() <= there.get("/v1/move").json().items())
    assert there.get(rule).json()["state"] == "Enforced"
    assert (moved(here, "eu/in", "one"), moved(here, "shop", "one")) == (True, True)
    assert moved(here, "eu", "two")
    for name, lease in held.items():
        assert is_held(there, name)
        released(there, name, lease)


def test_a_rule_that_is_set_while_its_directory_drains_keeps_it(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain_module, "settled_after", lambda _: 3600.0)
    here, _ = pair.clients
    pair.drain(b"d/", "two")
    rule = rule_of("d")
    assert here.put(rule, json={"regions_allowed": ["XE"]}).status_code == 200
    until(lambda: here.get(rule).json()["state"] == "Enforced")
    assert here.get(rule).json()["placement"] == "one"
    acquired(here, "d/x")


async def test_a_step_that_does_not_know_a_new_rule_is_not_taken(pair: Pair) -> None:
    here, _ = pair.clients
    records = records_of(pair.servers[0])
    found = await read_all(records)
    rule = rule_of("d")
    assert here.put(rule, json={"regions_allowed": ["XE"]}).status_code == 200
    with pytest.raises(Conflict):
        await write_homes(records, found, {b"d/": Home("one").draining("two", 0.0)})
