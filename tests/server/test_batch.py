"""`/v1/batch`: many commands in one call, each with an answer of its own, and bounds on their work."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

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
    Queued,
    Release,
    Renew,
    Renewed,
    Resize,
    Revoke,
    Revoked,
    Status,
)
from dibs.server.limits import MAX_ID, MAX_OWNER, MAX_TEXT, Limits
from dibs.stores.http import wire
from tests.server.world import ID, World, acquire, acquired, key, lock, problem, send


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World.over(limits=Limits(leases_per_key=20, waiters_per_key=3)) as world:
        yield world


def kinds(replies: list[Any]) -> list[type]:
    return [type(each) for each in replies]


@pytest.mark.parametrize("text", ["?", "lock:jobs/b", "base64:bG9jazpqb2JzL2I", "bG9jazp4=", "ü"])
def test_a_key_that_is_not_encoded_fails_alone_and_says_how(world: World, text: str) -> None:
    commands = [{"op": "inspect", "key": text}, {"op": "inspect", "key": "bG9jazp4"}]
    answer = world.client().post("/v1/batch", json={"commands": commands})
    failed, status = answer.json()["replies"]
    assert (failed["is"], failed["reason"], status["is"]) == ("failed", "invalid", "status")
    assert "KIND:NAME in URL-safe base64 without padding" in failed["detail"]
    assert "bG9jazpqb2JzL2I for lock:jobs/b" in failed["detail"]


def test_msgpack_too(world: World) -> None:
    kind = "application/msgpack"
    answer = world.client("read").post(
        "/v1/batch",
        content=msgspec.msgpack.encode(wire.Batch((wire.to_wire(Inspect(key("x"))),))),
        headers={"Content-Type": kind, "Accept": kind},
    )
    found = msgspec.msgpack.decode(answer.content, type=wire.BatchAnswer)
    assert [wire.to_model(each) for each in found.replies] == [Status(key("x"), 0)]
    assert answer.headers["dibs-server"] == world.server.server_id


VALID = Acquire(key("z"), ID, "me", 30.0)


@pytest.mark.parametrize(
    "command",
    [
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
    ],
    ids=lambda command: type(command).__name__,
)
def test_a_command_out_of_bounds(world: World, command: Command) -> None:
    (reply,) = send(world.client(), command)
    assert (type(reply), reply.reason) == (Failed, "invalid"), reply


def test_texts_are_bounded_in_bytes(world: World) -> None:
    big = "\N{LOCK}"  # four bytes
    fits = replace(VALID, id=big * (MAX_ID // 4), owner=big * (MAX_OWNER // 4))
    fits = replace(fits, note=big * (MAX_TEXT // 4))
    longer = [{name: getattr(fits, name) + "x"} for name in ("id", "owner", "note")]
    *refused, granted = send(world.client(), *(replace(fits, **each) for each in longer), fits)
    assert [each.reason for each in refused] == ["invalid"] * 3
    assert type(granted) is Granted


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400),
        (b"{}", 400),
        (b'{"commands": [{"op": "destroy", "key": "x"}]}', 400),
        (b'{"commands": [{"op": "inspect", "key": "\xff"}]}', 400),
        (b'{"commands": [' + b",".join([b'{"op":"inspect","key":"eA"}'] * 513) + b"]}", 400),
        (b'{"commands":[],"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400),
        (b"\x82\xa8commands\x90\xa1x" + b"\x91" * 100_000 + b"\xc0", 400),
        (b" " * (1 << 20) + b" ", 413),
        (b"text", 415),
    ],
    ids=range(9),
)
def test_a_body_that_is_no_batch(world: World, content: bytes, status: int) -> None:
    kinds = {b"\x82": "application/msgpack", b"t": "text/plain"}
    headers = {"Content-Type": kinds.get(content[:1], "application/json")}
    answer = world.client("read").post("/v1/batch", content=content, headers=headers)
    assert (answer.status_code, answer.json()["status"]) == (status, status)


# -- what a key may, and how much -------------------------------------------------------------------


def test_a_key_has_so_many_leases(world: World) -> None:
    client = world.client("acquire")
    wishes = [Acquire(key(f"many/{n}"), f"{ID}{n}", "me", 30.0) for n in range(30)]
    replies = send(client, *wishes)
    assert kinds(replies) == [Granted] * 20 + [Failed] * 10
    assert {reply.reason for reply in replies[20:]} == {"busy"}
    send(client, Release(wishes[0].key, wishes[0].id))
    assert kinds(send(client, wishes[20])) == [Granted]
    assert kinds(send(world.client("acquire"), wishes[21])) == [Granted], "others have their own"


@pytest.mark.parametrize("keep", [0.0, 9000.0], ids=["lock_delay", "retain"])
def test_units_that_stay_taken_count_as_leases(world: World, keep: float) -> None:
    client = world.client("acquire")
    wish = Acquire(key(f"kept/{keep}"), ID, "me", 1.0, lock_delay=9000.0 - keep)
    held = [replace(wish, key=key(f"kept/{keep}/{i}"), id=f"{ID}{i}") for i in range(20)]
    assert set(kinds(send(client, *held))) == {Granted}
    if keep:
        send(client, *(Release(each.key, each.id, keep) for each in held))
    else:
        time.sleep(1.1)  # the leases expire
    for each in held:
        send(client, Renew(each.key, each.id, 1.0), Release(each.key, each.id))
    assert kinds(send(client, wish, Release(wish.key, ID, 9000.0))) == [Failed] * 2


def test_a_key_has_so_many_places_in_line(world: World) -> None:
    send(world.client(), Acquire(key("line"), f"{ID}h", "they", 30.0))
    client = world.client("acquire")
    waits = [Acquire(key("line"), f"{ID}w{n}", "me", 30.0, queue=True) for n in range(5)]
    replies = send(client, *waits)
    assert kinds(replies) == [Queued] * 3 + [Failed] * 2
    assert replies[3].reason == "busy"
    assert kinds(send(client, waits[2])) == [Queued], "a sign of life"
    send(client, Release(key("line"), f"{ID}w0"))
    assert kinds(send(client, waits[3])) == [Queued]


def test_a_revocation_is_written_down(world: World) -> None:
    admin = world.client()
    send(world.client("acquire"), Acquire(key("forced/1"), f"{ID}f", "me", 30.0))
    (reply,) = send(admin, Revoke(key("forced/1"), None, "it hangs", now=True))
    assert reply.count == 1
    entries = admin.get("/v1/audit").json()["entries"]
    (entry,) = [each for each in entries if each["name"] == "forced/1"]
    assert (entry["what"], entry["detail"]["reason"]) == ("force release", "it hangs")
    assert f"{ID}f" not in str(entries)


def test_the_address_of_a_holder_by_batch_is_known(world: World) -> None:
    client = world.client()
    send(client, Acquire(key("noted"), f"{ID}n", "me", 30.0, note="mine"))
    assert client.get(lock("noted")).json()["info"]["ip"] == "127.0.0.1"


# -- no batch keeps a store busy --------------------------------------------------------------------


CROWD = 300
MOST_BYTES = 1_200_000
"""Of an answer, and a little more."""


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """A server over each store that looks at keys by scripts of its own."""
    settings: dict[str, Any] = {}
    if request.param != "sqlite":
        settings["leases"] = request.getfixturevalue(f"{request.param}_url")
    with World.over(tmp_path, **settings) as world:
        yield world


def size(replies: list[Any]) -> int:
    return len(msgspec.json.encode(list(map(wire.to_wire, replies))))


def test_a_batch_of_looks_at_a_crowd_is_one_look_of_a_hundred_holders(stored: World) -> None:
    client, k = stored.client(), key("a/m", "semaphore")
    crowd = [Acquire(k, f"{ID}{n}", "me", 60.0, capacity=CROWD) for n in range(CROWD)]
    assert set(kinds(send(client, *crowd))) == {Granted}
    looks = send(client, *[Inspect(k)] * 512)
    told = [each for each in looks if type(each) is Status]
    assert {(len(each.holders), each.holding, each.used) for each in told} == {(100, CROWD, CROWD)}
    assert len({repr(each) for each in told}) == 1, "all are answers of one look"
    assert len(told) > 20
    assert {each.reason for each in looks[len(told) :]} == {"busy"}
    assert size(looks) < MOST_BYTES
    shown = client.get(lock("a/m"), params={"kind": "semaphore"}).json()
    assert (len(shown["holders"]), shown["holding"]) == (100, CROWD)


def test_an_answer_about_many_crowds_is_bounded(stored: World) -> None:
    client, keys = stored.client(), [key(f"a/{n}", "semaphore") for n in range(40)]
    for k in keys:
        wish = Acquire(k, "", "me", 60.0, capacity=9, note="\x01" * MAX_TEXT)
        send(client, *(replace(wish, id=f"{ID}{n}") for n in range(9)))
    replies = send(client, *map(Inspect, keys), Renew(keys[0], f"{ID}0", 60.0))
    assert size(replies) < MOST_BYTES
    assert [type(replies[n]) for n in (0, -2, -1)] == [Status, Failed, Renewed]
    assert len(client.get("/v1/scan").content) < MOST_BYTES


def test_a_look_after_a_change_is_another_look(stored: World) -> None:
    k, other = key("a/l"), key("a/1")
    looks: list[Command] = [
        Inspect(k),
        Inspect(k),
        Acquire(k, ID, "me", 60.0),
        Inspect(k),
        Inspect(other),
    ]
    free, again, _, held, another = send(stored.client(), *looks)
    assert free == again
    assert (free.holding, held.holding, another.key) == (0, 1, other)


def test_a_batch_has_few_revocations_and_takes_few_slots(stored: World) -> None:
    """Each revocation reads all holders; each slot is written."""
    client = stored.client()
    send(client, Acquire(key("a/r"), ID, "me", 60.0))
    replies = send(client, *[Revoke(key("a/r"), None, "so")] * 9)
    assert kinds(replies) == [Revoked] + [Failed] * 8
    pools = [key(f"a/s{n}", "semaphore") for n in range(12)]
    replies = send(client, *(Acquire(k, ID, "me", 60.0, 1024, 1024) for k in pools))
    assert kinds(replies) == [Granted] * 8 + [Failed] * 4


def test_a_million_units_have_no_slots(stored: World) -> None:
    most = {"capacity": MAX_CAPACITY, "units": MAX_CAPACITY}
    assert acquired(stored.client(), "a/x", **most)["slots"] == []
    refused = acquire(stored.client(), "a/y", capacity=MAX_CAPACITY + 1)
    assert problem(refused) == (400, "malformed")
    assert str(MAX_CAPACITY) in refused.text


def test_a_page_of_leases_with_many_slots_is_bounded(world: World) -> None:
    for number in range(15):
        client = world.client("acquire")  # as a key has only so many leases
        pools = [key(f"{number:02}/{n:02}", "semaphore") for n in range(20)]
        for half in (pools[:8], pools[8:16], pools[16:]):
            send(
                client,
                *(Acquire(k, f"{ID}{n}", "me", 60.0, 1024, 1024) for n, k in enumerate(half)),
            )
    answer = world.client().get("/v1/scan", params={"limit": 1000})
    assert len(answer.json()["items"]) > 20
    assert len(answer.content) < MOST_BYTES
