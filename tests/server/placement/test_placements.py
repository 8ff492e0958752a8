"""Servers of one service whose settings differ: what breaks exclusion is refused, what does not goes on."""

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest

import dibs
from dibs import sync
from dibs.core.names import fingerprint
from dibs.errors import BackendUnavailable, Corrupt, NotConfigured
from dibs.model import Acquire, Granted, Notification, Released, Renew, Renewed, Revoke
from dibs.model import Release as GiveUp
from dibs.server import main
from dibs.server.placement import drain
from dibs.server.placement import table as table_module
from dibs.server.placement.reachability import SILENT_FOR
from dibs.server.placement.registry import read_list, write_list
from dibs.server.placement.rules import PlacementSettings
from dibs.server.placement.table import RoutingTable
from dibs.testing.proxy import FaultProxy
from tests.server.inside import placements_of, records_of, runtime_of, table_reader_of
from tests.server.placement.asking import acquired, is_held, lock, move, moved, released, until
from tests.server.world import LONG, World
from tests.servers.ports import HOST
from tests.servers.redis import RedisServer

FRESH = 0.5
ALONE = 1.0


class Fleet:
    """Servers over the same records, with whatever stores each is told of."""

    def __init__(self) -> None:
        self.one, self.two, self.three = (f"memory://{uuid4()}" for _ in range(3))
        self._records = f"memory://{uuid4()}"
        self._servers: list[World] = []
        self._key = ""

    def start(self, *placements: PlacementSettings, store: str = "") -> World:
        found = World.over(
            leases=store, records=self._records, placement=placements, placement_fresh=FRESH
        )
        self._servers.append(found)
        self._key = self._key or found.admin_key
        return found

    def client(self, of: World) -> httpx2.Client:
        return of.client(key=self._key)

    def close(self) -> None:
        for each in self._servers:
            each.close()


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    monkeypatch.setattr(table_module, "FRESH_ALONE", ALONE)
    monkeypatch.setattr(drain, "FRESH_ALONE", ALONE)
    found = Fleet()
    yield found
    found.close()


def away(of: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records can't be reached from one server any more."""

    async def fail(*_: object) -> Any:
        raise BackendUnavailable("the records are away")

    for name in ("revision", "all", "get", "put"):
        monkeypatch.setattr(records_of(of), name, fail)


def places(of: World) -> Any:
    return placements_of(of)


def table(of: World) -> RoutingTable:
    return table_reader_of(of).table


def test_a_name_that_means_another_store_is_refused_and_the_others_go_on(fleet: Fleet) -> None:
    here = fleet.client(
        fleet.start(
            PlacementSettings(name="a", url=fleet.one), PlacementSettings(name="b", url=fleet.two)
        )
    )
    for theirs, told in (
        ((("a", fleet.one), ("b", fleet.three)), "placement b"),
        ((("a", fleet.two), ("b", fleet.one)), "written down as the placement b"),
        ((("b", fleet.two),), "lack the placement a"),
        ((("a", fleet.one), ("c", fleet.one)), "are one store"),
    ):
        with pytest.raises(NotConfigured, match=told):
            fleet.start(*(PlacementSettings(name=name, url=url) for name, url in theirs))
    released(here, "x", acquired(here, "x"))


def test_another_order_puts_nothing_elsewhere(fleet: Fleet) -> None:
    a, b = PlacementSettings(name="a", url=fleet.one), PlacementSettings(name="b", url=fleet.two)
    here, there = fleet.client(fleet.start(a, b)), fleet.client(fleet.start(b, a))
    acquired(here, "x")
    assert is_held(there, "x")


def test_a_file_of_another_machine_is_another_store(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(main, "is_found_with", lambda *_: False)  # the records are for all machines
    file = f"sqlite:///{tmp_path / 'leases.db'}"
    monkeypatch.setattr(main, "gethostname", lambda: "machine-1")
    for _ in range(2):
        fleet.start(store=file)
    monkeypatch.setattr(main, "gethostname", lambda: "machine-2")
    with pytest.raises(
        NotConfigured, match=r"leases\.db on machine-1\. A SQLite file, or a store at"
    ):
        fleet.start(store=file)
    monkeypatch.undo()
    with pytest.raises(NotConfigured, match=r"leases\.db on machine-1"):
        fleet.start(store=file)


def test_a_new_placement_that_cant_be_reached_is_not_written_down(fleet: Fleet) -> None:
    a = PlacementSettings(name="a", url=fleet.one)
    with pytest.raises(BackendUnavailable):
        fleet.start(a, PlacementSettings(name="b", url="redis://127.0.0.1:1"))
    fleet.start(a, PlacementSettings(name="b", url=fleet.two))


@pytest.mark.once
def test_a_lone_store_gets_a_second_beside_it_while_it_is_in_use(fleet: Fleet) -> None:
    lone = fleet.start(store=fleet.one)
    before = fleet.client(lone)
    held, idle = acquired(before, "d/held"), acquired(before, "d/idle")
    released(before, "d/idle", idle)
    named = fleet.start(
        PlacementSettings(name="b", url=fleet.two), PlacementSettings(name="default", url=fleet.one)
    )
    after = fleet.client(named)
    assert is_held(after, "d/held")
    assert set(places(lone)) == {"default"}
    move(after, "d", "b")
    assert before.patch(lock("d/held"), params={"id": held["id"], "ttl": 60}).status_code == 200
    released(before, "d/held", held)
    until(lambda: moved(after, "d", "b"))
    until(lambda: table(lone).home_of(KEY).place == "b")
    assert before.post(lock("d/idle"), params={"ttl": 60}).status_code == 503
    released(before, "other/x", acquired(before, "other/x"))
    assert before.get("/v1/locks/base64:b3RoZXI/").json()["locks"] == []
    assert before.get("/v1/locks/base64:ZA/").status_code == 503, "it can't see all of it"
    with pytest.raises(NotConfigured, match=r"lack the placement b .*, where d/ lives"):
        fleet.start(store=fleet.one)
    fleet.start(
        PlacementSettings(name="default", url=fleet.one), PlacementSettings(name="b", url=fleet.two)
    )
    assert acquired(after, "d/idle")["sequencer"] > idle["sequencer"]


@pytest.mark.once
def test_nothing_moves_while_a_server_may_believe_that_there_is_one_store(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    lone = fleet.start(store=fleet.one)
    before = fleet.client(lone)
    away(lone, monkeypatch)
    until(lambda: stale(lone))
    released(before, "d/x", acquired(before, "d/x"))
    lone.do(lambda: pause(lone, monkeypatch))  # it believes what it has read for as long as it may
    named = fleet.start(
        PlacementSettings(name="default", url=fleet.one), PlacementSettings(name="b", url=fleet.two)
    )
    after = fleet.client(named)
    move(after, "d", "b")
    while True:
        has_begun = b"d/" in table(named).homes
        answer = before.post(lock("d/x"), params={"ttl": 60})
        if answer.status_code == 503:
            break
        assert not has_begun
        released(before, "d/x", answer.json())
    until(lambda: moved(after, "d", "b"))
    acquired(after, "d/x")
    assert before.post(lock("d/x"), params={"ttl": 60}).status_code == 503


def stale(of: World) -> bool:
    """It has read that there is one store when the records were away already."""
    reader = table_reader_of(of)
    return reader._revision is None and reader.is_lone


def pause(of: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads nothing by itself any more, only when it has to."""
    reading = table_reader_of(of)

    async def read() -> None:
        if not reading.is_fresh:
            await type(reading).read(reading)

    monkeypatch.setattr(reading, "read", read)


def test_a_service_with_one_store_needs_no_records_for_its_locks(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    lone = fleet.start(store=fleet.one)
    client = fleet.client(lone)
    held = acquired(client, "d/held")
    away(lone, monkeypatch)
    runtime = runtime_of(lone)
    end = runtime.now() + 3 * ALONE
    while runtime.now() < end:
        lease = client.post(lock("d/x"), params={"ttl": 60})
        assert lease.status_code == 200, lease.text
        renewal = client.patch(lock("d/held"), params={"id": held["id"], "ttl": 60})
        assert renewal.status_code == 200
        released(client, "d/x", lease.json())
        gone = client.delete(lock("d/x"), params={"id": lease.json()["id"]})
        assert gone.status_code in (200, 410), "that nothing is there needs no records either"
    assert client.get("/v1/locks/base64:ZA/").status_code == 200


def test_a_lone_server_that_was_stopped_for_long_reads_before_it_grants(fleet: Fleet) -> None:
    lone = fleet.start(store=fleet.one)
    client = fleet.client(lone)
    reading = table_reader_of(lone)

    def age() -> None:
        reading.table = reading.table.aged(float("-inf"))

    lone.do(age)
    assert client.post(lock("d/x"), params={"ttl": 60}).status_code == 200


@pytest.mark.once
def test_the_default_placement_may_be_given_up(fleet: Fleet) -> None:
    a, b = PlacementSettings(name="a", url=fleet.one), PlacementSettings(name="b", url=fleet.two)
    here = fleet.client(fleet.start(a, b))
    lease = acquired(here, "x")
    released(here, "x", lease)
    assert here.put("/v1/move", json={"to": "b"}).status_code == 200
    later: list[World] = []

    def has_started() -> bool:
        try:
            later.append(fleet.start(b))
        except NotConfigured:
            return False
        return True

    until(has_started)
    assert acquired(fleet.client(later[0]), "x")["sequencer"] > lease["sequencer"]
    assert is_held(here, "x")


@pytest.mark.once
def test_records_that_have_lost_something_are_not_believed(fleet: Fleet) -> None:
    a, b = PlacementSettings(name="a", url=fleet.one), PlacementSettings(name="b", url=fleet.two)
    world = fleet.start(a, b)
    here = fleet.client(world)
    move(here, "d", "b")
    until(lambda: moved(here, "d", "b"))
    held = acquired(here, "d/x")
    records = records_of(world)

    async def lose() -> None:
        listing, version = await read_list(records)
        assert listing is not None
        await records.delete("placements", "all", version)
        await write_list(records, listing, 0)

    world.do(lose)
    until(lambda: here.post(lock("d/y"), params={"ttl": 60}).status_code == 503)
    with pytest.raises(Corrupt, match=r"not before .*Z, as fencing tokens would fall") as caught:
        world.do(lambda: table_reader_of(world).read())
    (at,) = re.findall(r"not before (\S+Z)", str(caught.value))
    assert datetime.fromisoformat(at).timestamp() > held["sequencer"] / 1e6
    released(here, "d/x", held)


# ---- many commands at a time ----------------------------------------------------------------------

KEY = b"lock:d/x"


def told(of: World, *commands: Any) -> list[Any]:
    """What comes of these, which travel together."""
    answers = of.do(lambda: runtime_of(of).call_all(commands))
    return [getattr(each, "reply", each) for each in answers]


def an(name: str, key: bytes = KEY) -> Acquire:
    return Acquire(key, name * 24, "me", 30.0)


def test_who_can_grant_nothing_renews_what_came_in_the_same_batch(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = fleet.start(
        PlacementSettings(name="a", url=fleet.one), PlacementSettings(name="b", url=fleet.two)
    )
    assert isinstance(told(world, an("x"))[0], Granted)
    away(world, monkeypatch)
    new = an("y", b"lock:d/y")
    until(lambda: isinstance(told(world, new)[0], BackendUnavailable))
    found = told(world, Renew(KEY, "x" * 24, 30.0), new, GiveUp(KEY, "x" * 24))
    kinds: list[Callable[..., Any]] = [type(each) for each in found]
    assert kinds == [Renewed, BackendUnavailable, Released]


def test_what_is_about_one_key_keeps_its_order_also_where_leases_are_ended(fleet: Fleet) -> None:
    world = fleet.start(
        PlacementSettings(name="a", url=fleet.one), PlacementSettings(name="b", url=fleet.two)
    )
    for number in range(20):
        key = b"lock:d/%d" % number
        first, ended, second = told(
            world, an("x", key), Revoke(key, None, "a test", now=True), an("y", key)
        )
        assert (type(first), ended.count, type(second)) == (Granted, 1, Granted)


def test_a_store_that_hangs_delays_no_answer_of_another(
    fleet: Fleet, redis_server: RedisServer
) -> None:
    """The client of both waits for a sixth of its ttl, and needs the renewal at the other one."""
    with FaultProxy(HOST, redis_server.port) as proxy:
        slow = PlacementSettings(name="b", url=proxy.url_for(redis_server.url))
        world = fleet.start(PlacementSettings(name="a", url=fleet.one), slow)
        client = fleet.client(world)
        move(client, "d", "b")
        until(lambda: moved(client, "d", "b"))
        keys = (b"lock:x", b"lock:d/x")
        until(
            lambda: all(type(each) is Granted for each in told(world, *(an("x", k) for k in keys)))
        )
        proxy.hang()
        began = time.monotonic()
        found = told(world, *(Renew(key, "x" * 24, 24.0) for key in keys))
        assert time.monotonic() - began < 24.0 / 6
        assert [type(each) for each in found] == [Renewed, BackendUnavailable]
        proxy.heal()
        until(lambda: type(told(world, Renew(keys[1], "x" * 24, 24.0))[0]) is Renewed)


NOTICED = 2 * SILENT_FOR
"""Seconds until a server has noticed that a placement hangs."""


@pytest.fixture
def two(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[World, RedisServer]]:
    """A server with placements a and b, whose directory d/ lives in a Redis at b."""
    with RedisServer(tmp_path) as redis:
        b = PlacementSettings(name="b", url=redis.url)
        world = fleet.start(PlacementSettings(name="a", url=fleet.one), b)
        client = fleet.client(world)
        move(client, "d", "b")
        until(lambda: moved(client, "d", "b"))
        monkeypatch.setenv("DIBS_API_KEY", world.admin_key)
        yield world, redis


def is_renewed(lease: sync.Lease) -> bool:
    try:
        lease.renew()
    except BackendUnavailable:  # the server has not noticed yet that the placement answers again
        return False
    return True


@pytest.mark.once
def test_a_placement_that_hangs_costs_no_lease_at_another(two: tuple[World, RedisServer]) -> None:
    """Both are held by one client, whose keeper has one connection."""
    world, redis = two
    with sync.connect(world.url) as client:
        there = client.lock("d/y", ttl=60).acquire(wait=LONG)
        here = client.lock("x", ttl=3).acquire()
        redis.pause()
        lease = fingerprint(there._id)
        client.session.keeper.notifications.deliver(
            Notification(there.key, lease, "", "revoked")  # so that it is renewed now
        )
        assert not here.wait_lost(8), here.reason
        redis.resume()
        until(lambda: is_renewed(there))
        assert not there.lost
        there.release()
        here.release()


@pytest.mark.once
async def test_tries_at_a_placement_that_hangs_delay_no_acquire_at_another(
    two: tuple[World, RedisServer],
) -> None:
    """An event loop's connection takes two batches at a time, and all tries are under way at once."""
    world, redis = two
    async with dibs.connect(world.url) as client:
        async with client.lock("x", wait=LONG), client.lock("d/x", wait=LONG):
            pass
        redis.pause()

        async def try_for_ever(number: int) -> None:
            while True:
                with suppress(BackendUnavailable):
                    await client.lock(f"d/{number}", ttl=60).acquire(wait=0)
                await asyncio.sleep(0.01)

        tries = [asyncio.create_task(try_for_ever(number)) for number in range(4)]
        await asyncio.sleep(0.1)  # until these are under way
        for limit in (NOTICED, 0.0, 0.0, 0.0):
            began = time.monotonic()
            async with client.lock("x", ttl=30, wait=LONG):
                pass
            assert time.monotonic() - began < limit + 1.5
        for each in tries:
            each.cancel()
        await asyncio.wait(tries)
        redis.resume()

        async def answers() -> bool:
            try:
                async with client.lock("d/x", wait=0):
                    return True
            except BackendUnavailable:
                return False

        while not await answers():
            await asyncio.sleep(0.01)


@pytest.mark.once
def test_a_placement_that_hangs_at_the_start_delays_neither_it_nor_a_batch(
    two: tuple[World, RedisServer], fleet: Fleet
) -> None:
    world, redis = two
    redis.pause()
    began = time.monotonic()
    again = fleet.start(*world.config.placement)
    assert time.monotonic() - began < NOTICED + 1.5
    until(lambda: type(told(again, an("x", b"lock:x"))[0]) is Granted)
    for limit in (NOTICED + 0.5, 0.5):
        began = time.monotonic()
        found = told(again, *(Renew(key, "x" * 24, 60.0) for key in (b"lock:x", KEY)))
        assert time.monotonic() - began < limit
        assert [type(each) for each in found] == [Renewed, BackendUnavailable]
    redis.resume()
    until(lambda: type(told(again, an("z"))[0]) is Granted)
