"""Servers whose table is old: of what was granted elsewhere meanwhile they never say that it is not there."""

import asyncio
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from secrets import token_urlsafe
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from dibs.model import (
    Acquire,
    Granted,
    Inspect,
    Lost,
    Release,
    Released,
    Renew,
    Renewed,
    Resize,
    Revoke,
    Revoked,
    Status,
)
from dibs.server.config import Placement
from dibs.server.placing.atlas import Atlas
from tests.server.placing.asking import acquired, lock, move, until
from tests.server.placing.test_placements import away, table, told
from tests.server.world import World

LAST = 60.0
"""So long the old table may be believed: longer than the tests take."""

FORCE: dict[str, str | bool] = {"force": True, "reason": "a test", "now": True}


@dataclass
class Apart:
    """Two servers over two stores: `d/` is moving, which one of them has read, and the other has not."""

    new: World
    old: World
    here: httpx2.Client
    there: httpx2.Client

    @contextmanager
    def held_back(self) -> Generator[None]:
        """The other one has read nothing since before the move."""
        atlas = self.old.server.service.runtime.atlas

        def forget() -> None:
            atlas.table = self.before
            atlas._revision = None

        self.old.do(forget)
        yield

    def __post_init__(self) -> None:
        self.before = table(self.old)


@pytest.fixture(scope="module")
def apart() -> Iterator[Apart]:
    urls = [f"memory://{uuid4()}" for _ in range(2)]
    settings: dict[str, Any] = {
        "store": "",
        "records": f"memory://{uuid4()}",
        "placement": tuple(Placement(name=n, url=u) for n, u in zip("ab", urls, strict=True)),
        "placement_fresh": LAST,
    }
    new = World.over(**settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Atlas, "keep", _reads_nothing)
        old = World.over(**settings)
    found = Apart(new, old, new.client(), old.client(key=new.admin_key))
    acquired(found.here, "d/kept", ttl=600)
    move(found.here, "d", "b")
    until(lambda: b"d/" in table(new).homes)
    yield found
    old.close()
    new.close()


async def _reads_nothing(_: Atlas) -> None:
    await asyncio.Event().wait()


# ---- what is told, and what is not ----------------------------------------------------------------


@dataclass
class Way:
    """One way to ask of a lease, over HTTP, and what has to come of it."""

    ask: Callable[[httpx2.Client, str, dict[str, Any]], httpx2.Response]
    is_right: Callable[[dict[str, Any], dict[str, Any]], bool] = lambda _told, _lease: True


WAYS = {
    "renew": Way(
        lambda client, name, lease: client.patch(lock(name), params={"id": lease["id"], "ttl": 60})
    ),
    "release": Way(
        lambda client, name, lease: client.delete(lock(name), params={"id": lease["id"]})
    ),
    "acquire again": Way(
        lambda client, name, lease: client.post(lock(name), params={"id": lease["id"], "ttl": 60}),
        lambda told, lease: told["sequencer"] == lease["sequencer"],
    ),
    "revoke": Way(
        lambda client, name, _: client.delete(lock(name), params=FORCE),
        lambda told, _: told["count"] == 1,
    ),
    "look": Way(
        lambda client, name, _: client.get(lock(name)),
        lambda told, lease: told["sequencer"] == lease["sequencer"],
    ),
}


def granted(apart: Apart) -> tuple[str, dict[str, Any]]:
    """A name that is held at the new place, as one server knows."""
    name = f"d/{uuid4()}"
    lease = acquired(apart.here, name)
    assert table(apart.new).homes[b"d/"].to == "b"
    return name, lease


@pytest.mark.parametrize("way", WAYS)
def test_a_lease_that_was_granted_at_the_new_place_is_found(apart: Apart, way: str) -> None:
    name, lease = granted(apart)
    with apart.held_back():
        answer = WAYS[way].ask(apart.there, name, lease)
    assert answer.status_code == 200, answer.text
    assert WAYS[way].is_right(answer.json(), lease)
    is_over = way in ("release", "revoke")
    assert apart.here.get(lock(name)).status_code == (404 if is_over else 200)


@pytest.mark.parametrize("way", WAYS)
def test_who_cannot_read_the_records_says_that_it_does_not_know(
    apart: Apart, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, lease = granted(apart)
    with apart.held_back(), monkeypatch.context() as patch:
        away(apart.old, patch)
        answer = WAYS[way].ask(apart.there, name, lease)
    assert answer.status_code == 503, answer.text
    assert apart.here.get(lock(name)).status_code == 200


def test_what_travels_together_is_found(apart: Apart) -> None:
    names = [b"lock:d/%d" % number for number in range(4)]
    held = [Acquire(name, name.hex(), "me", 60.0) for name in names]
    assert all(isinstance(each, Granted) for each in told(apart.new, *held))
    renewals = [Renew(name, name.hex(), 60.0) for name in names]
    resizes = [Resize(name, name.hex(), 1, 1) for name in names]
    for commands, kind in (
        (renewals, Renewed),
        (resizes, Granted),
        (held, Granted),
        ([Inspect(name) for name in names], Status),
        ([Release(names[0], names[0].hex()), Release(names[1], names[1].hex())], Released),
        ([Revoke(name, None, "a test", now=True) for name in names[2:]], Revoked),
    ):
        with apart.held_back():
            found = told(apart.old, *commands)
        assert [type(each) for each in found] == [kind] * len(commands)
        assert kind is not Status or all(each.holders[0].owner == "me" for each in found)
        assert kind is not Revoked or all(each.count == 1 for each in found)


def test_what_is_really_not_there_is_said_of_a_whole_batch_by_one_reading(
    apart: Apart, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = apart.old.server.service.records
    revision, asked = records.revision, list[bool]()

    async def count() -> int:
        asked.append(True)
        return await revision()

    monkeypatch.setattr(records, "revision", count)
    renewals = [Renew(b"lock:elsewhere/%d" % number, "x" * 24, 60.0) for number in range(50)]
    assert [type(each) for each in told(apart.old, *renewals)] == [Lost] * 50
    assert len(asked) == 1


def test_with_one_store_nothing_is_read_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World.over()
    try:
        away(world, monkeypatch)
        client = world.client()
        query: dict[str, str | int] = {"id": token_urlsafe(16), "ttl": 60}
        assert client.patch(lock("x"), params=query).status_code == 410
        assert client.get(lock("x")).status_code == 404
    finally:
        world.close()
