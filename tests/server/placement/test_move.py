"""Directories that drain, and move between stores."""

import asyncio
import threading
import time
from datetime import UTC, datetime
from itertools import pairwise
from queue import Queue
from typing import Any

import pytest

from dibs import sync
from dibs.errors import BackendUnavailable
from dibs.model import Command
from dibs.runtime.port import TimedReply
from dibs.server.placement import drain
from dibs.server.placement.drain import Drainer, write_homes
from dibs.server.placement.registry import ORDER, Deadline, Home, MoveOrder, read_all
from dibs.server.placement.restrictions import write_record
from dibs.server.records.port import Conflict
from tests.server.placement.asking import Fleet, acquired, is_held, is_moving, restriction, until
from tests.server.world import LONG, Client, Patch, Pool, away, lock

type Pair = list[Client]


def audited(client: Client) -> list[str]:
    lines = client.get("/v1/audit").json()["entries"]
    return [each["what"] for each in lines if each["what"].startswith("move ")]


def test_without_a_deadline_a_directory_stays_until_it_is_idle(pair: Pair, pool: Pool) -> None:
    here, there = pair
    held = acquired(here, "d/busy")
    old = acquired(here, "d/idle")
    here.release("d/idle", old)
    here.move("d", "b", deadline=None)
    seen = there.progress("d")
    assert (seen["place"], seen["to"], seen["phase"], seen["keys"]) == ("a", "b", "pending", 1)
    assert 0 < seen["ends_in"] <= 60
    for client in (here, there):  # nothing else changes for its users
        assert is_held(client, "d/busy")
        assert client.renewed("d/busy", held["id"]).status_code == 200
        client.release("d/idle", acquired(client, "d/idle"))
    waiter = pool.submit(acquired, there, "d/busy", wait=LONG)
    until(lambda: here.waiting("d/busy") == 1)
    there.release("d/busy", held)
    got = waiter.result()
    assert got["sequencer"] > held["sequencer"]
    assert here.progress("d")["phase"] == "pending"
    here.release("d/busy", got)
    until(lambda: here.moved("d", "b"))
    for client, name in ((here, "d/busy"), (there, "d/idle")):
        assert acquired(client, name)["sequencer"] > got["sequencer"]
    assert audited(here) == ["move finished", "move ordered"]


def test_a_directory_in_use_drains_and_its_holders_go_on(fleet: Fleet, pair: Pair) -> None:
    here, there = pair
    held, other = acquired(here, "d/x"), acquired(here, "d/y")
    here.move("d", "b")
    fleet.know("d", "draining")
    for client in (here, there):
        for name in ("d/x", "d/new"):
            answer = client.post(lock(name), params={"ttl": 60, "wait": 10})
            assert is_moving(answer), answer.text
            assert int(answer.headers["retry-after"]) >= 1
        assert client.renewed("d/x", held["id"]).status_code == 200
        assert client.get(lock("d/x")).status_code == 200
        client.release("elsewhere", acquired(client, "elsewhere"))
    seen = there.progress("d")
    assert (seen["place"], seen["to"], seen["phase"], seen["keys"]) == ("a", "b", "draining", 2)
    left = (datetime.fromisoformat(seen["until"]) - datetime.now(UTC)).total_seconds()
    assert 840 < left <= 900
    there.release("d/y", other)
    assert is_moving(there.post(lock("d/y"), params={"ttl": 60})), "one is held still"
    there.release("d/x", held)
    until(lambda: here.moved("d", "b"))
    for client, name in ((here, "d/x"), (there, "d/y")):
        assert acquired(client, name)["sequencer"] > other["sequencer"]


def test_at_the_deadline_leases_are_revoked_and_their_units_stay_taken(pair: Pair) -> None:
    here, there = pair
    held = acquired(here, "d/x", ttl=4)
    renewed_at = time.monotonic()
    here.move("d", "b", deadline=1)

    def is_revoked() -> bool:
        nonlocal renewed_at
        sent = time.monotonic()
        answer = there.renewed("d/x", held["id"], ttl=4)
        if answer.status_code == 200:
            renewed_at = sent
            return False
        return answer.status_code == 410 and "moves to the placement b" in answer.text

    until(is_revoked)
    assert is_moving(there.post(lock("d/x"), params={"ttl": 60})), "it is not free yet"
    token = acquired(there, "d/x")["sequencer"]
    assert time.monotonic() - renewed_at >= 4 * 0.99, "nobody held it twice"
    assert token > held["sequencer"]
    assert here.moved("d", "b")
    assert audited(here) == ["move finished", "move deadline", "move ordered"]


def test_retained_units_are_waited_for_until_the_deadline(fleet: Fleet, pair: Pair) -> None:
    here, there = pair
    task = {"key": "tasklock:d/x", "id": "task" * 6}
    here.batch({"op": "acquire", "owner": "me", "ttl": 60.0, **task})
    here.batch({"op": "release", "retain": 3600.0, **task})
    here.move("d", "b")
    fleet.know("d", "draining")
    assert there.progress("d")["keys"] == 1
    here.move("d", "b", deadline=0.1)  # instead of the first one
    until(lambda: there.moved("d", "b"))


def test_moving_everything_leaves_directories_with_rules_of_their_own(pair: Pair) -> None:
    here, there = pair
    rule = restriction("eu/in")
    assert here.put(rule, json={"regions_allowed": ["XE"]}).status_code == 200
    here.move("shop", "a")
    held = {name: acquired(here, name) for name in ("eu/in/1", "shop/1")}
    assert here.put("/v1/move", json={"to": "b"}).status_code == 200
    settled = {"place": "b", "to": "", "phase": "settled", "until": None}
    until(lambda: settled.items() <= there.get("/v1/move").json().items())
    assert there.get(rule).json()["state"] == "Enforced"
    assert all(here.moved(*each) for each in (("eu/in", "a"), ("shop", "a"), ("eu", "b")))
    acquired(there, "other/1")
    assert len(there.get("/v1/locks").json()["locks"]) == 3, "of both placements"
    for name, lease in held.items():
        assert is_held(there, name)
        there.release(name, lease)


# ---- those who wait meanwhile ---------------------------------------------------------------------


def impatient(fleet: Fleet) -> sync.Client:
    """A client that would give up on an outage after a moment."""
    scheme, _, place = fleet.servers[1].url.partition("://")
    key = fleet.servers[0].admin_key
    return sync.connect(f"{scheme}://{key}@{place}", connect_timeout=0.1)


def test_clients_wait_through_a_move(fleet: Fleet, pair: Pair, pool: Pool) -> None:
    """Also one that began to wait before it, and one that comes during the move."""
    here, _ = pair
    held = acquired(here, "d/x")
    reports: Queue[str] = Queue()

    def report(state: sync.Waiting) -> None:
        if state.is_moving and state.waited > 0.5:  # longer than through an outage
            reports.put(str(state))

    def wait(seconds: float | None) -> int:
        with client.lock("d/x", wait=seconds).acquire(on_wait=report) as lease:
            return lease.token

    with impatient(fleet) as client:
        first = pool.submit(wait, None)
        until(lambda: here.waiting("d/x") == 1)
        here.move("d", "b")
        fleet.know("d", "draining")
        second = pool.submit(wait, LONG)
        for _ in range(2):
            assert "its directory is moving to another store" in reports.get(timeout=LONG)
        here.release("d/x", held)
        assert min(first.result(), second.result()) > held["sequencer"]
    assert here.moved("d", "b")


def test_nobody_is_served_at_the_old_placement_while_it_drains(fleet: Fleet, pair: Pair) -> None:
    """Neither a client that stops waiting, nor a waiter that renews.

    Its next renewal would look like that of a holder, also at a server without the records.
    """
    here, _ = pair
    held = acquired(here, "d/x")
    waiter = {"id": "waits" * 5, "owner": "me", "ttl": 60.0, "queue": True}
    (reply,) = here.batch({"op": "acquire", "key": "lock:d/x", **waiter})
    assert reply["is"] == "queued"
    here.move("d", "b")
    fleet.know("d", "draining")
    with impatient(fleet) as client:
        for wait in (0, 0.2):
            with pytest.raises(BackendUnavailable, match="moving to another store") as caught:
                client.lock("d/y").acquire(wait=wait)
            assert caught.value.moving
            assert "Retry-After" not in str(caught.value), "that is for programs that speak HTTP"
    here.release("d/x", held)
    answers = [here.renewed("d/x", "waits" * 5) for _ in range(2)]
    assert [each.status_code for each in answers] == [503, 410]
    until(lambda: here.moved("d", "b"))


# ---- what goes wrong meanwhile --------------------------------------------------------------------


def test_a_drain_ends_if_the_directory_has_to_stay(
    fleet: Fleet, pair: Pair, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(drain, "PATIENCE", 1.0)
    here, there = pair
    directories = ("by order", "by restriction", "as the new store is away")
    for each in directories:
        acquired(here, f"{each}/x")
        here.move(each, "b")
        fleet.know(each, "draining")
    there.move("by order", "a")
    rule = {"regions_allowed": ["XE"]}
    assert here.put(restriction("by restriction"), json=rule).status_code == 200
    for server in (0, 1):
        monkeypatch.setattr(fleet.store(server, "b"), "call", away)
    for each in directories:
        fleet.know(each, "settled")
        assert there.progress(each)["place"] == "a"
        here.release(f"{each}/y", acquired(here, f"{each}/y"))
        assert is_held(there, f"{each}/x")
    assert here.get(restriction("by restriction")).json()["state"] == "Enforced"


def test_another_server_goes_on_after_a_crash(fleet: Fleet, pair: Pair, monkeypatch: Patch) -> None:
    here, there = pair
    records = fleet.servers[0].server.records
    ttls = {"held": 60, "overdue": 3, "gentle": 60}
    held = {each: acquired(here, f"{each}/x", ttl=ttl) for each, ttl in ttls.items()}

    async def wait(_: Drainer) -> None:
        """Take no step."""

    async def begin() -> None:
        """Take the first steps of four moves."""
        found = await read_all(records)
        homes: dict[bytes, Home] = {}
        for name in (b"idle/", b"held/", b"overdue/", b"gentle/"):
            deadline = Deadline(None if name == b"gentle/" else 3600.0, time.time())
            await write_record(records, ORDER, name, MoveOrder("b", deadline), 0)
            home = found.home_of(name).draining("b", time.time())
            homes[name] = home.overdue() if name == b"overdue/" else home
        await write_homes(records, found, homes)

    with monkeypatch.context() as patched:
        patched.setattr(Drainer, "go_on", wait)
        fleet.servers[0].do(begin)
        fleet.servers[0].close()
    there.release("held/x", held["held"])
    until(lambda: all(there.progress(each)["phase"] != "draining" for each in (*held, "idle")))
    places = {each: there.progress(each)["place"] for each in (*held, "idle")}
    assert places == {"held": "b", "overdue": "b", "gentle": "a", "idle": "b"}
    for each in places:
        acquired(there, f"{each}/y")


def test_a_late_grant_at_the_old_place_is_hidden(
    fleet: Fleet, pair: Pair, pool: Pool, monkeypatch: Patch
) -> None:
    here, there = pair
    store = fleet.store(0, "a")
    call = store.call
    is_held_up, go_on = threading.Event(), asyncio.Event()

    async def late(command: Command, *rest: Any) -> TimedReply:
        if command.key == b"lock:d/x" and not go_on.is_set():
            is_held_up.set()
            await go_on.wait()
        answer: TimedReply = await call(command, *rest)
        return answer

    monkeypatch.setattr(store, "call", late)
    asking = pool.submit(here.post, lock("d/x"), params={"ttl": 60, "id": "late" * 6})
    assert is_held_up.wait(LONG)
    there.move("d", "b")
    until(lambda: there.moved("d", "b"))
    acquired(there, "d/x")
    fleet.servers[0].do(go_on.set)
    assert asking.result().status_code in (409, 503)


def test_a_server_with_an_old_reading_denies_nothing(
    fleet: Fleet, pair: Pair, monkeypatch: Patch
) -> None:
    here, there = pair
    with monkeypatch.context() as patched:
        fleet.servers[0].cut_off(patched)
        until(lambda: here.post(lock("other"), params={"ttl": 60}).status_code == 503)
        there.move("d", "b")
        until(lambda: there.moved("d", "b"))
        held = acquired(there, "d/x")
        assert here.renewed("d/x", held["id"]).status_code == 503
        assert here.get(lock("d/x")).status_code == 503
    assert here.renewed("d/x", held["id"]).status_code == 200


async def test_a_step_that_does_not_know_a_new_rule_is_not_taken(fleet: Fleet, pair: Pair) -> None:
    here, _ = pair
    records = fleet.servers[0].server.records
    found = await read_all(records)
    rule = {"regions_allowed": ["XE"]}
    assert here.put(restriction("d"), json=rule).status_code == 200
    with pytest.raises(Conflict):
        await write_homes(records, found, {b"d/": Home("a").draining("b", 0.0)})


def test_locks_exclude_while_a_directory_moves_to_and_fro(
    fleet: Fleet, pair: Pair, pool: Pool
) -> None:
    until_then = time.monotonic() + 3
    log: list[tuple[float, float, int]] = []

    def use(client: Client) -> None:
        while time.monotonic() < until_then:
            answer = client.post(lock("d/x"), params={"ttl": 60})
            if answer.status_code == 200:
                since, lease = time.monotonic(), answer.json()
                time.sleep(0.002)
                log.append((since, time.monotonic(), lease["sequencer"]))
                client.release("d/x", lease)
            time.sleep(0.05)

    users = [pool.submit(use, fleet.client(world)) for world in fleet.servers * 2]
    moves, to = 0, "b"
    pair[0].move("d", to)
    while time.monotonic() < until_then or moves < 2:
        if pair[1].moved("d", to):
            moves, to = moves + 1, {"b": "a", "a": "b"}[to]
            pair[0].move("d", to)
        time.sleep(0.05)
    for each in users:
        each.result()
    log.sort()
    for (_, end, token), (begin, _, later) in pairwise(log):
        assert end < begin, "two held it at a time"
        assert token < later, "a token fell"
