"""Directories that move between stores, while their locks are in use."""

import logging
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from dibs.errors import BackendUnavailable
from dibs.model import Acquire, Granted, Release
from dibs.server.config import Placement
from dibs.server.placing.documents import HOME, write
from dibs.server.placing.home import Home
from tests.server.placing.asking import acquired, is_held, lock, move, moved, released, until
from tests.server.world import LONG, World, b64

FRESH = 1.5
"""Shorter than usual, as each move waits for it."""


class Pair:
    """Two servers of one service with two stores."""

    def __init__(self, *urls: str) -> None:
        first, second = urls or (f"memory://{uuid4()}", f"memory://{uuid4()}")
        settings: dict[str, Any] = {
            "store": "",
            "records": f"memory://{uuid4()}",
            "placement": (
                Placement(name="one", url=first, region="DE"),
                Placement(name="two", url=second, region="US"),
            ),
            "placement_fresh": FRESH,
        }
        self.servers = (World.over(**settings), World.over(**settings))
        key = self.servers[0].admin_key
        self.clients = [world.client(key=key) for world in self.servers]

    def store(self, server: int, place: str) -> Any:
        """A place's own runtime, behind the router's back."""
        return self.servers[server].server.service.runtime.ways.named[place]

    def know(self, directory: bytes, phase: str) -> None:
        """Wait until every server has read that a directory is at that step."""

        def do() -> bool:
            tables = [each.server.service.runtime.atlas.table for each in self.servers]
            homes = [each.homes.get(directory) for each in tables]
            return all(each is not None and each.phase == phase for each in homes)

        until(do)

    def close(self) -> None:
        for world in self.servers:
            world.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    found = Pair()
    yield found
    found.close()


def test_what_is_held_stays_held_and_goes_over_when_it_is_free(pair: Pair) -> None:
    here, there = pair.clients
    held = acquired(here, "d/busy")
    old = acquired(here, "d/idle")
    released(here, "d/idle", old)
    move(here, "d", "two")
    pair.know(b"d/", "moving")
    for client in (here, there):  # nobody gets what is held, and its holder goes on
        assert is_held(client, "d/busy")
        assert client.patch(lock("d/busy"), params={"id": held["id"], "ttl": 60}).status_code == 200
    until(lambda: there.post(lock("d/idle"), params={"ttl": 60}).status_code == 200)
    seen = there.get("/v1/locks/base64:ZA/").json()["locks"]
    assert [each["name"] for each in seen] == [b64(n)[7:] for n in ("d/busy", "d/idle")]
    assert there.get(f"/v1/move/{b64('d')}/").json()["keys"] == 1
    got: list[dict[str, Any]] = []
    waiter = threading.Thread(
        target=lambda: got.append(acquired(there, "d/busy", wait=LONG)), daemon=True
    )
    waiter.start()
    released(there, "d/busy", held)
    waiter.join(LONG)
    assert got[0]["sequencer"] > held["sequencer"]
    until(lambda: moved(here, "d", "two"))
    again = here.get(lock("d/busy")).json()
    assert again["sequencer"] == got[0]["sequencer"]
    until(lambda: steps_written(here)[-1] == "move finished")
    assert steps_written(here)[:2] == ["move ordered", "move started"]
    assert set(steps_written(here)[2:-1]) == {"move phase"}


def steps_written(client: httpx2.Client) -> list[str]:
    """What the audit has of moves, oldest first."""
    lines = client.get("/v1/audit").json()["entries"]
    return [each["what"] for each in reversed(lines) if each["what"].startswith("move ")]


def test_tokens_rise_there_and_back(pair: Pair) -> None:
    here, there = pair.clients
    last = 0
    for to in ("two", "one"):
        for client in (here, there):
            lease = acquired(client, "d/x")
            assert lease["sequencer"] > last
            last = lease["sequencer"]
            released(client, "d/x", lease)
        move(here, "d", to)
        until(lambda to=to: moved(there, "d", to))  # type: ignore[misc]
    lease = acquired(here, "d/x")
    assert lease["sequencer"] > last


def batch(client: httpx2.Client, *commands: dict[str, Any]) -> list[dict[str, Any]]:
    answer = client.post("/v1/batch", json={"commands": commands})
    assert answer.status_code == 200, answer.text
    replies: list[dict[str, Any]] = answer.json()["replies"]
    return replies


@pytest.mark.once
def test_tokens_rise_for_an_idle_key_that_was_pushed_as_far_ahead_as_one_may(pair: Pair) -> None:
    here, there = pair.clients
    key = urlsafe_b64encode(b"lock:d/x").rstrip(b"=").decode()
    now = time.time_ns() // 1000
    last = 0
    for floor in (2**53 - 2**41, now + 2**40, now + 2**33, now + 2**31 - 10**7):
        for tokens in (10**6, 1000, 64):
            take = {"op": "acquire", "key": key, "id": f"{floor}.{tokens}", "owner": "x", "ttl": 9}
            take |= {"floor": floor, "tokens": tokens}
            took, _ = batch(here, take, {"op": "release", "key": key, "id": take["id"]})
            last = max(last, took["token"] + tokens - 1 if took["is"] == "granted" else 0)
    assert last > now + 2**30, "that much is allowed"
    move(here, "d", "two")
    until(lambda: moved(there, "d", "two"))
    assert acquired(there, "d/x")["sequencer"] > last


@pytest.mark.once
def test_a_token_at_the_end_of_all_tokens_leaves_the_others_alone(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    here, there = pair.clients
    world, store = pair.servers[0], pair.store(0, "one")
    wish = Acquire(b"lock:d/evil", "e1", "who goes there directly", 60.0, floor=2**53 - 10)
    assert isinstance(world.do(lambda: store.call(wish)).reply, Granted)
    move(here, "d", "two")
    pair.know(b"d/", "moving")
    world.do(lambda: store.call(Release(b"lock:d/evil", "e1")))
    there.post(lock("d/evil"), params={"ttl": 60})  # which has a guard take it
    pair.know(b"d/", "sealed")
    with caplog.at_level(logging.WARNING, "dibs.server"):
        until(lambda: "lock:d/evil" in caplog.text)
    assert "there are too few" in caplog.text
    for client in (here, there):
        acquired(client, "d/other", capacity=2)
    acquired(here, "elsewhere")


@pytest.mark.once
def test_a_floor_at_the_top_is_nobodys_fault(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    here, there = pair.clients
    world = pair.servers[0]
    records = world.server.service.records
    world.do(lambda: write(records, HOME, b"d/", Home("one", floor=2**53), 0))
    pair.know(b"d/", "settled")
    for _ in range(3):  # its tokens are above that of the store's own clock
        released(here, "d/x", acquired(here, "d/x"))
    with caplog.at_level(logging.WARNING, "dibs.server"):
        move(here, "d", "two")
        until(lambda: "moving d/" in caplog.text)
    assert "there is no floor above the one that it has" in caplog.text
    assert "d/x" not in caplog.text
    acquired(there, "d/x")


def test_a_restriction_is_pending_until_nothing_is_left(pair: Pair) -> None:
    here, there = pair.clients
    held = acquired(here, "r/x")
    path = f"/v1/restrict/locks/{b64('r')}/"
    assert here.put(path, json={"regions_allowed": ["XN"]}).status_code == 200
    assert there.get(path).json()["state"] == "Pending"
    until(lambda: here.get(f"/v1/move/{b64('r')}/").json()["phase"] == "moving")
    assert there.get(path).json()["state"] == "Pending"
    released(there, "r/x", held)
    until(lambda: bool(there.get(path).json()["state"] == "Enforced"))
    assert there.get(path).json()["placement"] == "two"


def test_a_semaphore_moves_whole(pair: Pair) -> None:
    here, there = pair.clients
    first = acquired(here, "d/s", capacity=3, units=2)
    move(here, "d", "two")
    pair.know(b"d/", "moving")
    assert is_held(there, "d/s", capacity=3)
    query = {"id": first["id"], "kind": "semaphore"}
    assert here.delete(lock("d/s"), params=query).status_code == 200
    second = acquired(there, "d/s", capacity=3, units=2)
    assert second["sequencer"] > first["sequencer"]
    assert is_held(here, "d/s", capacity=3, units=2)
    acquired(here, "d/s", capacity=3)


def test_to_end_everybodys_leases_ends_no_guard(pair: Pair) -> None:
    here, there = pair.clients
    acquired(here, "d/x")
    move(here, "d", "two")
    pair.know(b"d/", "moving")
    over = acquired(here, "d/y")
    query: dict[str, str | bool] = {"force": True, "reason": "a test", "now": True}
    assert there.delete(lock("d/y"), params=query).json()["count"] == 1
    assert acquired(there, "d/y")["sequencer"] > over["sequencer"]
    assert there.delete(lock("d/x"), params=query).json()["count"] == 1
    until(lambda: moved(here, "d", "two"))


def test_a_server_that_cant_read_the_records_grants_nothing_and_renews(pair: Pair) -> None:
    here, _ = pair.clients
    held = acquired(here, "d/x")
    records = pair.servers[0].server.service.records

    async def away() -> int:
        raise BackendUnavailable("the records are away")

    records.revision = away  # type: ignore[method-assign]
    until(lambda: here.post(lock("d/other"), params={"ttl": 60}).status_code == 503)
    query = {"id": held["id"], "ttl": 60}
    assert here.patch(lock("d/x"), params=query).status_code == 200
    released(here, "d/x", held)
