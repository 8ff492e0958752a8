"""`/v1/batch`: many commands in one call, each with an answer of its own, and bounds on their work."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dibs.model import (
    MANY,
    Acquire,
    Command,
    Failed,
    Granted,
    Inspect,
    Queued,
    Release,
    Renew,
    Resize,
    Revoke,
    Revoked,
    Status,
)
from dibs.server.limits import MAX_ID, MAX_OWNER, MAX_TEXT, Limits
from dibs.stores.http import wire
from tests.server.world import ID, World, key, shared

world = shared(limits=Limits(leases_per_key=20, waiters_per_key=3))


def kinds(replies: list[Any]) -> list[type]:
    return [type(each) for each in replies]


VALID = Acquire(key("z"), ID, "me", 30.0)
OUT_OF_BOUNDS: tuple[Command, ...] = (
    *(replace(VALID, ttl=ttl) for ttl in (0.5, 1e9)),
    *(replace(VALID, floor=floor) for floor in (-1, 2**51)),
    *(replace(VALID, key=k) for k in (key("z", "spoon"), key("z" * 513), key("z", "wait"))),
    replace(VALID, id=""),
    replace(VALID, units=1 << 62, capacity=1 << 63),
    replace(VALID, priority=-(1 << 62)),
    Renew(key("z", "wait"), ID, 0.5),
    Release(key("z"), ID, retain=1e12),
    Revoke(key("z"), None, " "),
    # a billion slots, and capacities that let others in beside a holder, or shut a writer out
    replace(VALID, key=key("z", "semaphore"), units=2**30 - 1, capacity=2**30 - 1),
    Resize(key("z", "semaphore"), ID, 2**30 - 1, 1),
    *(
        replace(VALID, key=key("z", kind), units=units, capacity=capacity)
        for kind, units, capacity in (
            *(("lock", 1, 2), ("lock", 2, 2), ("leader", 1, 2), ("tasklock", 1, 2)),
            *(("rwlock", 1, 1), ("rwlock", 2, MANY), ("rwlock", MANY + 1, MANY + 1)),
        )
    ),
)


def test_a_command_out_of_bounds(world: World) -> None:
    """Texts are bounded in bytes, not letters."""
    client, big = world.client(), "\N{LOCK}"  # four bytes
    fits = replace(VALID, id=big * (MAX_ID // 4), owner=big * (MAX_OWNER // 4))
    fits = replace(fits, note=big * (MAX_TEXT // 4))
    longer = [{name: getattr(fits, name) + "x"} for name in ("id", "owner", "note")]
    for command in (*OUT_OF_BOUNDS, *(replace(fits, **each) for each in longer)):
        (reply,) = client.apply(command)
        assert (type(reply), reply.reason) == (Failed, "invalid"), command
    assert kinds(client.apply(fits)) == [Granted]


def test_a_body_that_is_no_batch(world: World) -> None:
    inspects = b",".join([b'{"op":"inspect","key":"eA"}'] * 513)
    client, of_json = world.client("read"), "application/json"
    for content, kind, status in (
        (b"", of_json, 400),
        (b'{"commands": [{"op": "destroy", "key": "x"}]}', of_json, 400),
        (b'{"commands": [{"op": "inspect", "key": "\xff"}]}', of_json, 400),
        (b'{"commands": [' + inspects + b"]}", of_json, 400),
        (b'{"commands":[],"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", of_json, 400),
        (b"\x82\xa8commands\x90\xa1x" + b"\x91" * 100_000 + b"\xc0", "application/msgpack", 400),
        (b" " * (1 << 20) + b" ", of_json, 413),
        (b"text", "text/plain", 415),
    ):
        answer = client.post("/v1/batch", content=content, headers={"Content-Type": kind})
        assert (answer.status_code, answer.json()["status"]) == (status, status), content[:50]


@pytest.mark.parametrize("keep", [0.0, 9000.0], ids=["lock_delay", "retain"])
def test_units_that_stay_taken_count_as_leases(world: World, keep: float) -> None:
    client = world.client("acquire")
    wish = Acquire(key(f"kept/{keep}"), ID, "me", 1.0, lock_delay=9000.0 - keep)
    held = [replace(wish, key=key(f"kept/{keep}/{i}"), id=f"{ID}{i}") for i in range(20)]
    assert set(kinds(client.apply(*held))) == {Granted}
    if keep:
        client.apply(*(Release(each.key, each.id, keep) for each in held))
    else:
        time.sleep(1.1)  # the leases expire
    for each in held:
        client.apply(Renew(each.key, each.id, 1.0), Release(each.key, each.id))
    assert kinds(client.apply(wish, Release(wish.key, ID, 9000.0))) == [Failed] * 2


def test_a_key_has_so_many_places_in_line(world: World) -> None:
    """One id in two queues has two."""
    for name in ("line", "other"):
        world.client().apply(Acquire(key(name), f"{ID}h", "they", 30.0))
    client = world.client("acquire")
    waits = [Acquire(key("line"), f"{ID}w{n}", "me", 30.0, queue=True) for n in range(4)]
    replies = client.apply(waits[0], replace(waits[0], key=key("other")), *waits[1:])
    assert kinds(replies) == [Queued] * 3 + [Failed] * 2
    assert replies[3].reason == "busy"
    assert kinds(client.apply(waits[1])) == [Queued], "a heartbeat"
    client.apply(Release(key("line"), f"{ID}w0"))
    assert kinds(client.apply(waits[3])) == [Queued]


CROWD = 300
MOST_BYTES = 1_200_000  # of an answer, and a little more


@pytest.mark.parametrize("store", ["sqlite", "redis", "postgres"])
def test_a_batch_of_looks_at_a_crowd_is_one_look_of_a_hundred_holders(
    request: pytest.FixtureRequest, tmp_path: Path, store: str
) -> None:
    """Over each store that looks at keys by scripts of its own."""
    settings: dict[str, Any] = {}
    if store != "sqlite":
        settings["leases"] = request.getfixturevalue(f"{store}_url")
    k = key("a/m", "semaphore")
    wish = Acquire(k, "", "me", 60.0, capacity=CROWD, note="\x01" * 100)  # long in JSON
    crowd = [replace(wish, id=f"{ID}{n}") for n in range(CROWD)]
    with World.over(tmp_path, **settings) as world:
        client = world.client()
        assert set(kinds(client.apply(*crowd))) == {Granted}
        looks = client.apply(*[Inspect(k)] * 512)
    told = [each for each in looks if type(each) is Status]
    assert {(len(each.holders), each.holding, each.used) for each in told} == {(100, CROWD, CROWD)}
    assert len({repr(each) for each in told}) == 1, "all are answers of one look"
    assert len(told) > 10
    assert {each.reason for each in looks[len(told) :]} == {"busy"}
    assert len(msgspec.json.encode(list(map(wire.to_wire, looks)))) < MOST_BYTES


def test_each_command_of_a_batch_sees_those_before_it(world: World) -> None:
    """It has few revocations, which read all holders, and takes few slots, which are written."""
    client, k, other = world.client(), key("a/l"), key("a/none")
    commands = Inspect(k), Inspect(k), Acquire(k, ID, "me", 60.0), Inspect(k), Inspect(other)
    free, again, _, held, another = client.apply(*commands)
    assert free == again
    assert (free.holding, held.holding, another.key) == (0, 1, other)
    replies = client.apply(*[Revoke(k, None, "so")] * 9)
    assert kinds(replies) == [Revoked] + [Failed] * 8
    pools = [key(f"a/s{n}", "semaphore") for n in range(12)]
    replies = client.apply(*(Acquire(k, ID, "me", 60.0, 1024, 1024) for k in pools))
    assert kinds(replies) == [Granted] * 8 + [Failed] * 4
