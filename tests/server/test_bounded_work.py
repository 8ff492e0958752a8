"""No single request keeps a store busy: huge capacities, looks at crowds, long texts."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from dibs.model import (
    MANY,
    MAX_CAPACITY,
    Acquire,
    Command,
    Failed,
    Granted,
    Inspect,
    Renew,
    Renewed,
    Resize,
    Revoke,
    Revoked,
    Status,
)
from dibs.server.limits import MAX_ID, MAX_OWNER, MAX_TEXT
from dibs.stores.http import wire
from tests.server.world import World, b64
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer

ID = "an-id-of-twenty-two-letters"
CROWD = 300


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    settings: dict[str, Any] = {}
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        server.client().flushall()
        settings["leases"] = server.url
    if request.param == "postgres":
        database: PostgresServer = request.getfixturevalue("postgres_server")
        settings["leases"] = database.new_database()
    world = World.over(tmp_path, **settings)
    yield world
    world.close()


def post(client: httpx2.Client, *commands: Command) -> list[Any]:
    said = wire.Batch(tuple(map(wire.to_wire, commands)))
    answer = client.post("/v1/batch", content=msgspec.json.encode(said))
    assert answer.status_code == 200, answer.text
    told = msgspec.json.decode(answer.content, type=wire.BatchAnswer)
    return [wire.to_model(each) for each in told.replies]


def _size(replies: list[Any]) -> int:
    return len(msgspec.json.encode(list(map(wire.to_wire, replies))))


OTHER_CAPACITIES = [
    *((kind, 1, 2) for kind in ("lock", "leader", "tasklock")),
    ("lock", 2, 2),
    ("rwlock", 1, 1),
    ("rwlock", 2, MANY),
]
"""Each would let others in beside whoever holds it, or shut a writer out for good."""


def key(name: str, kind: str = "semaphore") -> bytes:
    return f"{kind}:{name}".encode()


def test_a_billion_slots_are_refused_and_a_million_units_have_none(world: World) -> None:
    client = world.client("acquire", prefixes=[b"a/"])
    huge = {"capacity": 2**30 - 1, "units": 2**30 - 1, "ttl": 60}
    answer = client.post(f"/v1/locks/{b64('a/x')}", params=huge)
    assert answer.status_code == 400
    assert str(MAX_CAPACITY) in answer.text
    refused = post(
        client,
        Acquire(key("a/x"), ID, "me", 60.0, units=2**30 - 1, capacity=2**30 - 1),
        Acquire(key("a/x", "rwlock"), ID, "me", 60.0, units=MANY + 1, capacity=MANY + 1),
        Resize(key("a/x"), ID, 2**30 - 1, 1),
        *(
            Acquire(key("a/x", kind), ID, "me", 60.0, units=units, capacity=capacity)
            for kind, units, capacity in OTHER_CAPACITIES
        ),
    )
    assert {(type(each), each.reason) for each in refused} == {(Failed, "invalid")}
    most = {"capacity": MAX_CAPACITY, "units": MAX_CAPACITY, "ttl": 60}
    granted = client.post(f"/v1/locks/{b64('a/x')}", params=most)
    assert granted.status_code == 200
    assert granted.json()["slots"] == []


def test_a_batch_of_looks_at_a_crowd_is_one_look_of_a_hundred_holders(world: World) -> None:
    client = world.client()
    crowd = [Acquire(key("a/m"), f"{ID}{n}", "me", 60.0, capacity=CROWD) for n in range(CROWD)]
    assert {type(each) for each in post(client, *crowd)} == {Granted}
    looks = post(client, *[Inspect(key("a/m"))] * 512)
    told = [each for each in looks if type(each) is Status]
    assert {(len(each.holders), each.holding, each.used) for each in told} == {(100, CROWD, CROWD)}
    assert len({repr(each) for each in told}) == 1, "all are answers of one look"
    assert len(told) > 20
    assert {each.reason for each in looks[len(told) :]} == {"busy"}
    assert _size(looks) < 1_200_000
    shown = client.get(f"/v1/locks/{b64('a/m')}", params={"kind": "semaphore"}).json()
    assert (len(shown["holders"]), shown["holding"]) == (100, CROWD)


def test_an_answer_about_many_crowds_is_bounded(world: World) -> None:
    client = world.client()
    note = "\x01" * MAX_TEXT
    for name in range(40):
        wish = Acquire(key(f"a/{name}"), "", "me", 60.0, capacity=9, note=note)
        post(client, *(replace(wish, id=f"{ID}{n}") for n in range(9)))
    looks = [Inspect(key(f"a/{name}")) for name in range(40)]
    replies = post(client, *looks, Renew(key("a/0"), f"{ID}0", 60.0))
    assert _size(replies) < 1_200_000
    assert [type(replies[n]) for n in (0, -2, -1)] == [Status, Failed, Renewed]
    assert len(client.get("/v1/scan").content) < 1_200_000


def test_a_look_behind_a_change_is_another_look(world: World) -> None:
    client = world.client()
    look = Inspect(key("a/l", "lock"))
    free, again, _, held, _, other = post(
        client,
        look,
        look,
        Acquire(key("a/l", "lock"), ID, "me", 60.0),
        look,
        *[Inspect(key(f"a/{n}", "lock")) for n in range(70)],
    )[:6]
    assert free == again
    assert (free.holding, held.holding) == (0, 1)
    assert other.key == key("a/1", "lock")


def test_a_batch_has_few_revocations(world: World) -> None:
    """Each of them reads all holders."""
    client = world.client()
    post(client, Acquire(key("a/r", "lock"), ID, "me", 60.0))
    replies = post(client, *[Revoke(key("a/r", "lock"), None, "so")] * 9)
    assert [type(each) for each in replies] == [Revoked] + [Failed] * 8


def test_a_batch_takes_few_slots(world: World) -> None:
    wishes = [Acquire(key(f"a/s{n}"), ID, "me", 60.0, 1024, 1024) for n in range(12)]
    replies = post(world.client(), *wishes)
    assert [type(each) for each in replies] == [Granted] * 8 + [Failed] * 4


def test_texts_are_bounded_in_bytes(world: World) -> None:
    client = world.client()
    big = "\N{LOCK}"  # four bytes
    fits = Acquire(
        key("a/t", "lock"),
        big * (MAX_ID // 4),
        big * (MAX_OWNER // 4),
        60.0,
        note=big * (MAX_TEXT // 4),
    )
    flawed = [
        replace(fits, **{name: getattr(fits, name) + "x"}) for name in ("id", "owner", "note")
    ]
    *refused, granted = post(client, *flawed, fits)
    assert [each.reason for each in refused] == ["invalid"] * 3
    assert type(granted) is Granted
    for name, most in (("client-id", MAX_OWNER), ("note", MAX_TEXT)):
        answer = client.post(f"/v1/locks/{b64('a/u')}", params={name: big * (most // 4 + 1)})
        assert answer.status_code == 400
        assert "bytes" in answer.text
