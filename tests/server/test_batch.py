"""`/v1/batch`: many commands in one call, each with an answer of its own."""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx2
import msgspec
import pytest

from dibs.core.names import fingerprint
from dibs.model import (
    Acquire,
    Command,
    Failed,
    Granted,
    Inspect,
    Lost,
    Queued,
    Release,
    Released,
    Renew,
    Resize,
    Revoke,
    Status,
)
from dibs.server.limits import Limits
from dibs.stores.http import wire
from tests.server.inside import server_id_of
from tests.server.world import World, b64

ID = "an-id-of-enough-letters-"


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    world = World.over(limits=Limits(leases_per_key=20, waiters_per_key=3))
    yield world
    world.close()


def key(name: str, kind: str = "lock") -> bytes:
    return f"{kind}:{name}".encode()


def post(client: httpx2.Client, *commands: Command) -> list[Any]:
    said = wire.Batch(tuple(map(wire.to_wire, commands)))
    answer = client.post("/v1/batch", content=msgspec.json.encode(said))
    assert answer.status_code == 200, answer.text
    told = msgspec.json.decode(answer.content, type=wire.BatchAnswer)
    return [wire.to_model(each) for each in told.replies]


@pytest.mark.parametrize("text", ["lock:jobs/b", "base64:bG9jazpqb2JzL2I", "bG9jazpqb2JzL2I=", "ü"])
def test_a_key_that_is_not_encoded_is_told_how(world: World, text: str) -> None:
    command = {"op": "inspect", "key": text}
    (reply,) = world.client().post("/v1/batch", json={"commands": [command]}).json()["replies"]
    assert (reply["is"], reply["reason"]) == ("failed", "invalid")
    assert "KIND:NAME in URL-safe base64 without padding" in reply["detail"]
    assert "bG9jazpqb2JzL2I for lock:jobs/b" in reply["detail"]


def test_each_has_its_answer_in_order(world: World) -> None:
    client = world.client("acquire")
    k = key("order/1")
    replies = post(
        client,
        Acquire(k, ID + "1", "me", 30.0, note="why"),
        Acquire(k, ID + "2", "you", 30.0),
        Acquire(k, ID + "3", "they", 30.0, queue=True),
        Inspect(k),
        Renew(k, ID + "1", 60.0),
        Release(k, ID + "1"),
        Renew(k, ID + "1", 60.0),
    )
    kinds = [type(reply).__name__ for reply in replies]
    assert kinds == [
        "Granted", "Refused", "Queued", "Status", "Renewed", "Released", "Lost",
    ]  # fmt: skip
    assert replies[1].holders[0].owner == "me"
    assert replies[3].waiters[0].owner == "they"


def test_a_key_that_is_misspelt_fails_alone(world: World) -> None:
    content = b'{"commands": [{"op": "inspect", "key": "?"}, {"op": "inspect", "key": "bG9jazp4"}]}'
    answer = world.client().post("/v1/batch", content=content)
    failed, status = answer.json()["replies"]
    assert (failed["is"], failed["reason"]) == ("failed", "invalid")
    assert failed["detail"].startswith("`key` must be")
    assert status["is"] == "status"


def test_msgpack_too(world: World) -> None:
    client = world.client("read")
    answer = client.post(
        "/v1/batch",
        content=msgspec.msgpack.encode(wire.Batch((wire.to_wire(Inspect(key("x"))),))),
        headers={"Content-Type": "application/msgpack", "Accept": "application/msgpack"},
    )
    found = msgspec.msgpack.decode(answer.content, type=wire.BatchAnswer)
    assert [wire.to_model(each) for each in found.replies] == [Status(key("x"), 0)]
    assert answer.headers["dibs-server"] == server_id_of(world)


def test_a_client_may_not_use_keys_of_other_kinds(world: World) -> None:
    """Those in which waiters at other stores say what they wait for are no way around prefixes."""
    (answer,) = post(world.client(), Acquire(key("a-fingerprint", "wait"), ID + "w", "me", 30.0))
    assert (type(answer), answer.reason) == (Failed, "invalid")


def test_what_one_may_not(world: World) -> None:
    admin = world.client()
    post(admin, Acquire(key("theirs/x"), ID + "5", "they", 30.0))
    client = world.client("acquire", prefixes=[b"mine/"])
    for command in (
        Acquire(key("theirs/y"), ID + "6", "me", 30.0),
        Renew(key("theirs/x"), ID + "5", 30.0),
        Release(key("theirs/x"), ID + "5"),
        Resize(key("theirs/x"), ID + "5", 2, 1),
        Revoke(key("mine/x"), None, "no scope for it"),
    ):
        (reply,) = post(client, command)
        assert (type(reply), reply.reason) == (Failed, "forbidden")
    assert post(client, Inspect(key("theirs/x"))) == [Status(key("theirs/x"), 0)]
    (status,) = post(admin, Inspect(key("theirs/x")))
    assert [holder.owner for holder in status.holders] == ["they"]


@pytest.mark.parametrize(
    "command",
    [
        Acquire(key("z"), ID, "me", 0.5),
        Acquire(key("z"), ID, "me", 1e9),
        Acquire(key("z"), ID, "me", 30.0, note="x" * 5000),
        Acquire(key("z"), "", "me", 30.0),
        Acquire(key("z"), ID, "me", 30.0, units=1 << 62, capacity=1 << 63),
        Acquire(key("z"), ID, "me", 30.0, priority=-(1 << 62)),
        Acquire(key("z", "spoon"), ID, "me", 30.0),
        Acquire(key("z" * 513), ID, "me", 30.0),
        Acquire(key("z"), ID, "me", 30.0, floor=2**51),
        Acquire(key("z"), ID, "me", 30.0, floor=-1),
        Renew(key("z", "wait"), ID, 0.5),
        Release(key("z"), ID, retain=1e12),
        Revoke(key("z"), None, " "),
    ],
    ids=lambda command: type(command).__name__,
)
def test_out_of_bounds(world: World, command: Command) -> None:
    (reply,) = post(world.client(), command)
    assert (type(reply), reply.reason) == (Failed, "invalid"), reply


def test_what_is_no_batch(world: World) -> None:
    client = world.client()
    for content, status in (
        (b"", 400),
        (b"{}", 400),
        (b'{"commands": [{"op": "destroy", "key": "x"}]}', 400),
        (b'{"commands": [{"op": "inspect", "key": "\xff"}]}', 400),
        (b'{"commands": [' + b",".join([b'{"op":"inspect","key":"eA"}'] * 513) + b"]}", 400),
        (b" " * (1 << 20) + b" ", 413),
    ):
        answer = client.post("/v1/batch", content=content)
        assert (answer.status_code, answer.json()["status"]) == (status, status), content[:60]
    answer = client.post("/v1/batch", content=b"{}", headers={"Content-Type": "text/plain"})
    assert answer.status_code == 415
    assert post(client) == []


def test_a_key_has_so_many_leases(world: World) -> None:
    client = world.client("acquire")
    more = [Acquire(key(f"many/{i}"), f"{ID}{i}", "me", 30.0) for i in range(30)]
    replies = post(client, *more)
    assert [type(reply) for reply in replies] == [Granted] * 20 + [Failed] * 10
    assert {reply.reason for reply in replies[20:]} == {"busy"}
    replies = post(client, Release(key("many/0"), f"{ID}0"))
    assert [type(reply) for reply in replies] == [Released]
    (reply,) = post(client, Acquire(key("many/20"), f"{ID}20", "me", 30.0))
    assert type(reply) is Granted
    (reply,) = post(world.client("acquire"), Acquire(key("many/21"), ID + "z", "me", 30.0))
    assert type(reply) is Granted, "others have their own"


@pytest.mark.parametrize("keep", [0.0, 9000.0])
def test_units_that_stay_taken_count_as_leases(world: World, keep: float) -> None:
    client = world.client("acquire")
    wish = Acquire(key(f"kept/{keep}"), ID, "me", 1.0, lock_delay=9000.0 - keep)
    held = [replace(wish, key=key(f"kept/{keep}/{i}"), id=f"{ID}{i}") for i in range(20)]
    assert {type(reply) for reply in post(client, *held)} == {Granted}
    if keep:
        post(client, *(Release(each.key, each.id, keep) for each in held))
    else:
        time.sleep(1.5)
    for each in held:
        post(client, Renew(each.key, each.id, 1.0), Release(each.key, each.id))
    replies = post(client, wish, Release(wish.key, ID, 9000.0))
    assert [type(reply) for reply in replies] == [Failed] * 2


def test_ending_others_leases_is_written_down(world: World) -> None:
    admin, holder = world.client(), world.client("acquire")
    k = key("forced/1")
    post(holder, Acquire(k, ID + "f", "me", 30.0))
    (reply,) = post(admin, Revoke(k, None, "it hangs", now=True))
    assert reply.count == 1
    assert type(post(holder, Renew(k, ID + "f", 30.0))[0]) is Lost
    entries = admin.get("/v1/audit").json()["entries"]
    (entry,) = [each for each in entries if each["name"] == "forced/1"]
    assert entry["what"] == "force release"
    assert entry["detail"]["reason"] == "it hangs"
    assert ID + "f" not in str(entries)


def test_the_service_knows_the_address_of_what_came_in_a_batch(world: World) -> None:
    client = world.client()
    post(client, Acquire(key("noted"), ID + "n", "me", 30.0, note="mine"))
    shown = client.get(f"/v1/locks/{b64('noted')}").json()
    assert shown["info"]["ip"] == "127.0.0.1"
    assert shown["id"] == fingerprint(ID + "n")


def test_a_key_has_so_many_places_in_line(world: World) -> None:
    post(world.client(), Acquire(key("line"), ID + "h", "they", 30.0))
    client = world.client("acquire")

    def wait(number: int) -> Command:
        return Acquire(key("line"), f"{ID}w{number}", "me", 30.0, queue=True)

    replies = post(client, *map(wait, range(5)))
    assert [type(reply) for reply in replies] == [Queued] * 3 + [Failed] * 2
    assert replies[3].reason == "busy"
    assert [type(reply) for reply in post(client, wait(2))] == [Queued], "a sign of life"
    post(client, Release(key("line"), f"{ID}w0"))
    assert [type(reply) for reply in post(client, wait(3))] == [Queued]


@pytest.mark.parametrize("how", ["json", "msgpack"])
def test_what_is_nested_deeply_is_refused(world: World, how: str) -> None:
    deep = 100_000
    if how == "json":
        body = b'{"commands":[],"x":' + b"[" * deep + b"]" * deep + b"}"
    else:
        body = b"\x82\xa8commands\x90\xa1x" + b"\x91" * deep + b"\xc0"
    answer = world.client("read").post(
        "/v1/batch", content=body, headers={"Content-Type": f"application/{how}"}
    )
    assert (answer.status_code, answer.json()["type"]) == (400, "/problems/malformed")
