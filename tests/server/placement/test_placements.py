"""Servers of one service whose settings differ: what breaks exclusion is refused, what does not goes on."""

import re
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from dibs import sync
from dibs.core.names import fingerprint
from dibs.errors import BackendUnavailable, Corrupt, NotConfigured
from dibs.model import Acquire, Granted, Notification, Release, Released, Renew, Renewed, Revoke
from dibs.server import main
from dibs.server.placement import drain
from dibs.server.placement import table as table_module
from dibs.server.placement.reachability import SILENT_FOR
from dibs.server.placement.registry import read_list, write_list
from dibs.server.placement.rules import PlacementSettings
from dibs.server.placement.table import RoutingTable
from tests.server.placement.asking import Fleet, acquired, is_held, memory, until
from tests.server.world import LONG, Patch, World, lock
from tests.servers.redis import RedisServer

ALONE = 1.0


@pytest.fixture(autouse=True)
def _fresh_alone(monkeypatch: Patch) -> None:
    monkeypatch.setattr(table_module, "FRESH_ALONE", ALONE)
    monkeypatch.setattr(drain, "FRESH_ALONE", ALONE)


def named(name: str, store: PlacementSettings) -> PlacementSettings:
    return PlacementSettings(name=name, url=store.url)


def table(of: World) -> RoutingTable:
    return of.runtime.reader.table


def test_settings_that_mean_other_stores_are_refused_and_the_others_go_on(fleet: Fleet) -> None:
    a, b = fleet.a, fleet.b
    unreachable = PlacementSettings(name="b", url="redis://127.0.0.1:1")
    with pytest.raises(BackendUnavailable):
        fleet.start(a, unreachable)
    here = fleet.client(fleet.start(a, b))  # so the other one was not recorded
    for theirs, message in (
        ((a, memory("b")), "placement b"),
        ((named("a", b), named("b", a)), "written down as the placement b"),
        ((b,), "lack the placement a"),
        ((a, named("c", a)), "are one store"),
    ):
        with pytest.raises(NotConfigured, match=message):
            fleet.start(*theirs)
    here.release("x", acquired(here, "x"))


def test_a_file_of_another_machine_is_another_store(
    fleet: Fleet, monkeypatch: Patch, tmp_path: Path
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


def test_a_lone_store_gets_a_second_beside_it_while_it_is_in_use(fleet: Fleet) -> None:
    lone = fleet.start(store=fleet.a.url)
    before = fleet.client(lone)
    held, idle = acquired(before, "d/held"), acquired(before, "d/idle")
    before.release("d/idle", idle)
    both = fleet.start(fleet.b, named("default", fleet.a))
    after = fleet.client(both)
    assert is_held(after, "d/held")
    assert set(lone.runtime.named) == {"default"}
    after.move("d", "b")
    assert before.renewed("d/held", held["id"]).status_code == 200
    before.release("d/held", held)
    until(lambda: after.moved("d", "b"))
    until(lambda: table(lone).home_of(KEY).place == "b")
    assert before.post(lock("d/idle"), params={"ttl": 60}).status_code == 503
    before.release("other/x", acquired(before, "other/x"))
    assert before.get("/v1/locks/base64:b3RoZXI/").json()["locks"] == []
    assert before.get("/v1/locks/base64:ZA/").status_code == 503, "it can't see all of it"
    with pytest.raises(NotConfigured, match=r"lack the placement b .*, where d/ lives"):
        fleet.start(store=fleet.a.url)
    fleet.start(named("default", fleet.a), fleet.b)
    assert acquired(after, "d/idle")["sequencer"] > idle["sequencer"]


def test_a_lone_store_needs_no_records_until_it_may_have_company(
    fleet: Fleet, monkeypatch: Patch
) -> None:
    lone = fleet.start(store=fleet.a.url)
    before = fleet.client(lone)
    held = acquired(before, "d/held")
    lone.cut_off(monkeypatch)
    end = time.monotonic() + 2 * ALONE
    while time.monotonic() < end or not stale(lone):
        lease = before.post(lock("d/x"), params={"ttl": 60})
        assert lease.status_code == 200, lease.text
        assert before.renewed("d/held", held["id"]).status_code == 200
        before.release("d/x", lease.json())
        gone = before.delete(lock("d/x"), params={"id": lease.json()["id"]})
        assert gone.status_code in (200, 410), "that nothing is there needs no records either"
        time.sleep(0.05)
    before.release("d/held", held)

    lone.do(lambda: pause(lone, monkeypatch))  # it believes what it has read for as long as it may
    both = fleet.start(named("default", fleet.a), fleet.b)
    after = fleet.client(both)
    after.move("d", "b")
    while True:
        has_begun = b"d/" in table(both).homes
        answer = before.post(lock("d/x"), params={"ttl": 60})
        if answer.status_code == 503:
            break
        assert not has_begun, "it moves while a server may believe that there is one store"
        before.release("d/x", answer.json())
        time.sleep(0.01)
    until(lambda: after.moved("d", "b"))
    acquired(after, "d/x")
    assert before.post(lock("d/x"), params={"ttl": 60}).status_code == 503


def stale(of: World) -> bool:
    """It has read that there is one store when the records were away already."""
    reader = of.runtime.reader
    return reader._revision is None and reader.is_lone


def pause(of: World, monkeypatch: Patch) -> None:
    """It reads nothing by itself any more, only when it has to."""
    reading = of.runtime.reader

    async def read() -> None:
        if not reading.is_fresh:
            await type(reading).read(reading)

    monkeypatch.setattr(reading, "read", read)


def test_the_default_placement_may_be_given_up(fleet: Fleet) -> None:
    here = fleet.client(fleet.start(fleet.a, fleet.b))
    lease = acquired(here, "x")
    here.release("x", lease)
    assert here.put("/v1/move", json={"to": "b"}).status_code == 200
    until(lambda: bool(here.get("/v1/move").json()["phase"] == "settled"))
    later = fleet.client(fleet.start(fleet.b))
    assert acquired(later, "x")["sequencer"] > lease["sequencer"]
    assert is_held(here, "x")


def test_records_that_were_lost_stop_all_grants(fleet: Fleet) -> None:
    world = fleet.start(fleet.a, fleet.b)
    here = fleet.client(world)
    here.move("d", "b")
    until(lambda: here.moved("d", "b"))
    held = acquired(here, "d/x")
    records = world.server.records

    async def lose() -> None:
        listing, version = await read_list(records)
        assert listing is not None
        await records.delete("placements", "all", version)
        await write_list(records, listing, 0)

    world.do(lose)
    until(lambda: here.post(lock("d/y"), params={"ttl": 60}).status_code == 503)
    with pytest.raises(Corrupt, match=r"not before .*Z, as fencing tokens would fall") as caught:
        world.do(world.runtime.reader.read)
    (at,) = re.findall(r"not before (\S+Z)", str(caught.value))
    assert datetime.fromisoformat(at).timestamp() > held["sequencer"] / 1e6
    here.release("d/x", held)


KEY = b"lock:d/x"


def replies(of: World, *commands: Any) -> list[Any]:
    answers = of.do(lambda: of.runtime.call_all(commands))
    return [getattr(each, "reply", each) for each in answers]


def an(name: str, key: bytes = KEY) -> Acquire:
    return Acquire(key, name * 24, "me", 30.0)


def test_one_batch(fleet: Fleet, monkeypatch: Patch) -> None:
    """Commands about one key keep their order, and a server that cannot grant still renews."""
    world = fleet.start(fleet.a, fleet.b)
    revoke = Revoke(KEY, None, "a test", now=True)
    first, ended, second = replies(world, an("x"), revoke, an("y"))
    assert (type(first), ended.count, type(second)) == (Granted, 1, Granted)
    world.cut_off(monkeypatch)
    new = an("z", b"lock:d/z")
    until(lambda: isinstance(replies(world, new)[0], BackendUnavailable))
    found = replies(world, Renew(KEY, "y" * 24, 30.0), new, Release(KEY, "y" * 24))
    kinds: list[Callable[..., Any]] = [type(each) for each in found]
    assert kinds == [Renewed, BackendUnavailable, Released]


def is_renewed(lease: sync.Lease) -> bool:
    try:
        lease.renew()
    except BackendUnavailable:  # the server has not noticed yet that the placement answers again
        return False
    return True


def test_a_placement_that_hangs_costs_no_lease_at_another(
    fleet: Fleet, tmp_path: Path, monkeypatch: Patch
) -> None:
    """The leases are held by one client, whose keeper has one connection."""
    with RedisServer(tmp_path) as redis:
        places = fleet.a, PlacementSettings(name="b", url=redis.url)
        world = fleet.start(*places)
        admin = fleet.client(world)
        admin.move("d", "b")
        until(lambda: admin.moved("d", "b"))
        monkeypatch.setenv("DIBS_API_KEY", world.admin_key)
        with sync.connect(world.url) as client:
            there = client.lock("d/y", ttl=60).acquire(wait=LONG)
            here = client.lock("x", ttl=3).acquire()
            redis.pause()
            renew_now = Notification(there.key, fingerprint(there._id), "", "revoked")
            client.session.keeper.notifications.deliver(renew_now)
            began = time.monotonic()
            later = fleet.start(*places)
            assert time.monotonic() - began < 2 * SILENT_FOR + 1.5
            until(lambda: type(replies(later, an("x", b"lock:z"))[0]) is Granted)
            for limit in (2 * SILENT_FOR + 0.5, 0.5):  # until it has noticed, and then
                began = time.monotonic()
                found = replies(later, *(Renew(key, "x" * 24, 60.0) for key in (b"lock:z", KEY)))
                assert time.monotonic() - began < limit
                assert [type(each) for each in found] == [Renewed, BackendUnavailable]
            assert not here.wait_lost(3), here.reason
            redis.resume()
            until(lambda: is_renewed(there))
            assert not there.lost
            there.release()
            here.release()
        until(lambda: type(replies(later, an("z"))[0]) is Granted)
