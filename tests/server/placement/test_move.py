"""Directories that move between stores while they are idle."""

import asyncio
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from dibs.errors import BackendUnavailable
from dibs.model import Command
from dibs.runtime.port import TimedReply
from dibs.server.placement import drain
from dibs.server.placement.registry import (
    ORDER,
    Home,
    MoveOrder,
    read_all,
    write_homes,
    write_record,
)
from dibs.server.placement.rules import PlacementSettings
from dibs.server.records.port import Conflict
from tests.server.inside import placements_of, records_of, table_reader_of
from tests.server.placement.asking import acquired, is_held, lock, move, moved, released, until
from tests.server.world import LONG, World, b64

FRESH = 0.5
"""Shorter than usual, as each move waits for it."""


class Pair:
    """Two servers of one service with two stores."""

    def __init__(self) -> None:
        settings: dict[str, Any] = {
            "leases": "",
            "records": f"memory://{uuid4()}",
            "placement": (
                PlacementSettings(name="one", url=f"memory://{uuid4()}", region="DE"),
                PlacementSettings(name="two", url=f"memory://{uuid4()}", region="US"),
            ),
            "placement_fresh": FRESH,
        }
        self.servers = (World.over(**settings), World.over(**settings))
        key = self.servers[0].admin_key
        self.clients = [world.client(key=key) for world in self.servers]

    def store(self, server: int, place: str) -> Any:
        """A place's own runtime, behind the router's back."""
        return placements_of(self.servers[server])[place]

    def know(self, directory: bytes, phase: str) -> None:
        """Wait until every server has read that a directory is at that step."""

        def do() -> bool:
            tables = [table_reader_of(each).table for each in self.servers]
            homes = [each.homes.get(directory) for each in tables]
            return all(each is not None and each.phase == phase for each in homes)

        until(do)

    def freeze(self, directory: bytes, to: str) -> None:
        """Begin a move as a server does that crashes next."""
        world = self.servers[0]
        records = records_of(world)

        async def do() -> None:
            found = await read_all(records)
            await write_record(records, ORDER, directory, MoveOrder(to), 0)
            home = found.home_of(directory).frozen(to)
            await write_homes(records, found, {**found.homes, directory: home})

        world.do(do)

    def close(self) -> None:
        for world in self.servers:
            world.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    found = Pair()
    yield found
    found.close()


def progress(client: httpx2.Client, directory: str) -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"/v1/move/{b64(directory)}/").json()
    return found


def test_a_directory_in_use_stays_and_moves_once_it_is_idle(pair: Pair) -> None:
    here, there = pair.clients
    held = acquired(here, "d/busy")
    old = acquired(here, "d/idle")
    released(here, "d/idle", old)
    move(here, "d", "two")
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
    lines = here.get("/v1/audit").json()["entries"]
    moves = [each["what"] for each in lines if each["what"].startswith("move ")]
    assert moves == ["move finished", "move ordered"]


def test_tokens_rise_there_and_back(pair: Pair) -> None:
    here, there = pair.clients
    last = 0
    for to in ("two", "one", ""):
        for client in (here, there):
            lease = acquired(client, "d/x")
            assert lease["sequencer"] > last
            last = lease["sequencer"]
            released(client, "d/x", lease)
        if to:
            move(here, "d", to)
            until(lambda to=to: moved(there, "d", to))  # type: ignore[misc]


def test_a_frozen_directory_says_so_and_its_holders_go_on(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "settled_after", lambda _: 3600.0)
    here, there = pair.clients
    held = acquired(here, "d/x")
    pair.freeze(b"d/", "two")
    pair.know(b"d/", "moving")
    answer = there.post(lock("d/y"), params={"ttl": 60})
    assert (answer.status_code, answer.json()["type"]) == (503, "/problems/moving")
    assert int(answer.headers["retry-after"]) >= 1
    assert progress(there, "d")["phase"] == "moving"
    assert there.patch(lock("d/x"), params={"id": held["id"], "ttl": 60}).status_code == 200
    assert there.get(lock("d/x")).status_code == 200
    acquired(there, "elsewhere")
    released(there, "d/x", held)


@pytest.mark.parametrize("in_use", [False, True])
def test_any_server_goes_on_after_a_crash(pair: Pair, in_use: bool) -> None:
    here, there = pair.clients
    if in_use:
        acquired(here, "d/x")
    pair.freeze(b"d/", "two")
    pair.servers[0].close()
    until(lambda: progress(there, "d")["phase"] != "moving")
    assert progress(there, "d")["place"] == ("one" if in_use else "two")
    acquired(there, "d/y")


def test_a_frozen_directory_goes_on_where_it_is_if_the_new_store_is_away(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "FROZEN", 1.0)
    _, there = pair.clients

    async def away(*_: object) -> Any:
        raise BackendUnavailable("it is away")

    for server in (0, 1):
        monkeypatch.setattr(pair.store(server, "two"), "call", away)
    pair.freeze(b"d/", "two")
    until(lambda: progress(there, "d")["phase"] != "moving")
    acquired(there, "d/x")


def test_a_grant_at_the_old_place_that_comes_too_late_is_told_to_nobody(
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


def test_what_lives_at_the_new_place_is_not_denied_by_an_old_reading(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = pair.clients
    records = records_of(pair.servers[0])

    async def away(*_: object) -> Any:
        raise BackendUnavailable("the records are away")

    with monkeypatch.context() as patched:
        patched.setattr(records, "revision", away)
        until(lambda: here.post(lock("other"), params={"ttl": 60}).status_code == 503)
        move(there, "d", "two")
        until(lambda: moved(there, "d", "two"))
        held = acquired(there, "d/x")
        query = {"id": held["id"], "ttl": 60}
        assert here.patch(lock("d/x"), params=query).status_code == 503
        assert here.get(lock("d/x")).status_code == 503
    assert here.patch(lock("d/x"), params=query).status_code == 200


@pytest.mark.once
def test_nobody_holds_what_another_does_while_its_directory_moves_to_and_fro(pair: Pair) -> None:
    until_then = time.monotonic() + 8
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


def test_a_restriction_is_pending_until_its_directory_is_idle(pair: Pair) -> None:
    here, there = pair.clients
    held = acquired(here, "r/x")
    path = f"/v1/restrict/locks/{b64('r')}/"
    assert here.put(path, json={"regions_allowed": ["XN"]}).status_code == 200
    assert there.get(path).json()["state"] == "Pending"
    assert progress(here, "r")["phase"] == "pending"
    released(there, "r/x", held)
    until(lambda: bool(there.get(path).json()["state"] == "Enforced"))
    assert there.get(path).json()["placement"] == "two"


def test_what_a_rule_or_a_wish_keeps_here_is_not_carried_along(pair: Pair) -> None:
    here, there = pair.clients
    rule = f"/v1/restrict/locks/{b64('eu/in')}/"
    assert here.put(rule, json={"regions_allowed": ["XE"]}).status_code == 200
    move(here, "shop", "one")
    held = {name: acquired(here, name) for name in ("eu/in/1", "shop/1")}
    assert here.put("/v1/move", json={"to": "two"}).status_code == 200
    until(lambda: there.get("/v1/move").json() | {"keys": 0} == settled("two"))
    assert there.get(rule).json()["state"] == "Enforced"
    assert (moved(here, "eu/in", "one"), moved(here, "shop", "one")) == (True, True)
    assert moved(here, "eu", "two")
    for name, lease in held.items():
        assert is_held(there, name)
        released(there, name, lease)


def settled(place: str) -> dict[str, Any]:
    return {"place": place, "to": "", "phase": "settled", "keys": 0, "ends_in": 0.0}


def test_a_rule_that_is_set_while_its_directory_is_frozen_keeps_it(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = [3600.0]
    monkeypatch.setattr(drain, "settled_after", lambda _: waits[0])
    here, _ = pair.clients
    pair.freeze(b"d/", "two")
    rule = f"/v1/restrict/locks/{b64('d')}/"
    assert here.put(rule, json={"regions_allowed": ["XE"]}).status_code == 200
    assert here.get(rule).json()["state"] == "Pending"
    waits[0] = 0.0
    until(lambda: here.get(rule).json()["state"] == "Enforced")
    assert here.get(rule).json()["placement"] == "one"


async def test_a_mover_that_has_not_read_a_new_rule_begins_nothing(pair: Pair) -> None:
    here, _ = pair.clients
    records = records_of(pair.servers[0])
    found = await read_all(records)
    rule = f"/v1/restrict/locks/{b64('d')}/"
    assert here.put(rule, json={"regions_allowed": ["XE"]}).status_code == 200
    with pytest.raises(Conflict):
        await write_homes(records, found, {b"d/": Home("one").frozen("two")})


def test_a_server_that_cant_read_the_records_grants_nothing_and_renews(pair: Pair) -> None:
    here, _ = pair.clients
    held = acquired(here, "d/x")
    records = records_of(pair.servers[0])

    async def away() -> int:
        raise BackendUnavailable("the records are away")

    records.revision = away  # type: ignore[method-assign]
    until(lambda: here.post(lock("d/other"), params={"ttl": 60}).status_code == 503)
    query = {"id": held["id"], "ttl": 60}
    assert here.patch(lock("d/x"), params=query).status_code == 200
    released(here, "d/x", held)
