"""`/v1/batch`: many commands in one call, each with an answer of its own."""

import time
from collections.abc import Iterator
from typing import Any

import httpx2
import msgspec
import pytest
from msgspec.structs import replace

from dibs.core.names import fingerprint
from dibs.server.limits import Limits
from dibs.stores.http import wire
from dibs.stores.http.names import encoded
from tests.server.world import World, b64

ID = "an-id-of-enough-letters-"


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    world = World.over(limits=Limits(leases_per_key=20, waiters_per_key=3))
    yield world
    world.close()


def key(name: str, kind: str = "lock") -> str:
    return encoded(f"{kind}:{name}".encode())


def post(client: httpx2.Client, *commands: wire.Command) -> list[Any]:
    answer = client.post("/v1/batch", content=msgspec.json.encode(wire.Batch(commands)))
    assert answer.status_code == 200, answer.text
    return list(msgspec.json.decode(answer.content, type=wire.BatchAnswer).replies)


def test_each_has_its_answer_in_order(world: World) -> None:
    client = world.client("acquire")
    k = key("order/1")
    replies = post(
        client,
        wire.Acquire(k, ID + "1", "me", 30.0, note="why"),
        wire.Acquire(k, ID + "2", "you", 30.0),
        wire.Acquire(k, ID + "3", "they", 30.0, queue=True),
        wire.Inspect(k),
        wire.Renew(k, ID + "1", 60.0),
        wire.Release(k, ID + "1"),
        wire.Renew(k, ID + "1", 60.0),
        wire.Acquire("?", ID + "4", "me", 30.0),
    )
    kinds = [type(reply).__name__ for reply in replies]
    assert kinds == [
        "Granted", "Refused", "Queued", "Status", "Renewed", "Released", "Lost", "Failed",
    ]  # fmt: skip
    assert replies[1].holders[0].owner == "me"
    assert replies[3].waiters[0].owner == "they"


def test_msgpack_too(world: World) -> None:
    client = world.client("read")
    answer = client.post(
        "/v1/batch",
        content=msgspec.msgpack.encode(wire.Batch((wire.Inspect(key("x")),))),
        headers={"Content-Type": "application/msgpack", "Accept": "application/msgpack"},
    )
    found = msgspec.msgpack.decode(answer.content, type=wire.BatchAnswer)
    assert found.replies == (wire.Status(key("x"), 0),)
    assert answer.headers["dibs-server"] == world.server.service.server_id


def test_a_client_may_not_use_keys_of_other_kinds(world: World) -> None:
    """Those in which waiters at other stores say what they wait for are no way around prefixes."""
    (answer,) = post(
        world.client(), wire.Acquire(key("a-fingerprint", "wait"), ID + "w", "me", 30.0)
    )
    assert (type(answer), answer.reason) == (wire.Failed, "invalid")


def test_what_one_may_not(world: World) -> None:
    admin = world.client()
    post(admin, wire.Acquire(key("theirs/x"), ID + "5", "they", 30.0))
    client = world.client("acquire", prefixes=[b"mine/"])
    for command in (
        wire.Acquire(key("theirs/y"), ID + "6", "me", 30.0),
        wire.Renew(key("theirs/x"), ID + "5", 30.0),
        wire.Release(key("theirs/x"), ID + "5"),
        wire.Resize(key("theirs/x"), ID + "5", 2, 1),
        wire.Revoke(key("mine/x"), None, "no scope for it"),
    ):
        (reply,) = post(client, command)
        assert (type(reply), reply.reason) == (wire.Failed, "forbidden")
    assert post(client, wire.Inspect(key("theirs/x"))) == [wire.Status(key("theirs/x"), 0)]
    (status,) = post(admin, wire.Inspect(key("theirs/x")))
    assert [holder.owner for holder in status.holders] == ["they"]


@pytest.mark.parametrize(
    "command",
    [
        wire.Acquire(key("z"), ID, "me", 0.5),
        wire.Acquire(key("z"), ID, "me", 1e9),
        wire.Acquire(key("z"), ID, "me", 30.0, note="x" * 5000),
        wire.Acquire(key("z"), "", "me", 30.0),
        wire.Acquire(key("z"), ID, "me", 30.0, units=1 << 62, capacity=1 << 63),
        wire.Acquire(key("z"), ID, "me", 30.0, priority=-(1 << 62)),
        wire.Acquire(key("z", "spoon"), ID, "me", 30.0),
        wire.Acquire(key("z" * 513), ID, "me", 30.0),
        wire.Acquire(key("z"), ID, "me", 30.0, floor=2**51),
        wire.Acquire(key("z"), ID, "me", 30.0, floor=-1),
        wire.Renew(key("z", "wait"), ID, 0.5),
        wire.Release(key("z"), ID, retain=1e12),
        wire.Revoke(key("z"), None, " "),
    ],
    ids=lambda command: type(command).__name__,
)
def test_out_of_bounds(world: World, command: wire.Command) -> None:
    (reply,) = post(world.client(), command)
    assert (type(reply), reply.reason) == (wire.Failed, "invalid"), reply


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
    more = [wire.Acquire(key(f"many/{i}"), f"{ID}{i}", "me", 30.0) for i in range(30)]
    replies = post(client, *more)
    assert [type(reply) for reply in replies] == [wire.Granted] * 20 + [wire.Failed] * 10
    assert {reply.reason for reply in replies[20:]} == {"busy"}
    replies = post(client, wire.Release(key("many/0"), f"{ID}0"))
    assert [type(reply) for reply in replies] == [wire.Released]
    (reply,) = post(client, wire.Acquire(key("many/20"), f"{ID}20", "me", 30.0))
    assert type(reply) is wire.Granted
    (reply,) = post(world.client("acquire"), wire.Acquire(key("many/21"), ID + "z", "me", 30.0))
    assert type(reply) is wire.Granted, "others have their own"


@pytest.mark.parametrize("keep", [0.0, 9000.0])
def test_units_that_stay_taken_count_as_leases(world: World, keep: float) -> None:
    client = world.client("acquire")
    wish = wire.Acquire(key(f"kept/{keep}"), ID, "me", 1.0, lock_delay=9000.0 - keep)
    held = [replace(wish, key=key(f"kept/{keep}/{i}"), id=f"{ID}{i}") for i in range(20)]
    assert {type(reply) for reply in post(client, *held)} == {wire.Granted}
    if keep:
        post(client, *(wire.Release(each.key, each.id, keep) for each in held))
    else:
        time.sleep(1.5)
    for each in held:
        post(client, wire.Renew(each.key, each.id, 1.0), wire.Release(each.key, each.id))
    replies = post(client, wish, wire.Release(wish.key, ID, 9000.0))
    assert [type(reply) for reply in replies] == [wire.Failed] * 2


def test_ending_others_leases_is_written_down(world: World) -> None:
    admin, holder = world.client(), world.client("acquire")
    k = key("forced/1")
    post(holder, wire.Acquire(k, ID + "f", "me", 30.0))
    (reply,) = post(admin, wire.Revoke(k, None, "it hangs", now=True))
    assert reply.count == 1
    assert type(post(holder, wire.Renew(k, ID + "f", 30.0))[0]) is wire.Lost
    entries = admin.get("/v1/audit").json()["entries"]
    (entry,) = [each for each in entries if each["name"] == "forced/1"]
    assert entry["what"] == "force release"
    assert entry["detail"]["reason"] == "it hangs"
    assert ID + "f" not in str(entries)


def test_the_service_knows_the_address_of_what_came_in_a_batch(world: World) -> None:
    client = world.client()
    post(client, wire.Acquire(key("noted"), ID + "n", "me", 30.0, note="mine"))
    shown = client.get(f"/v1/locks/{b64('noted')}").json()
    assert shown["info"]["ip"] == "127.0.0.1"
    assert shown["id"] == fingerprint(ID + "n")


def test_a_key_has_so_many_places_in_line(world: World) -> None:
    post(world.client(), wire.Acquire(key("line"), ID + "h", "they", 30.0))
    client = world.client("acquire")

    def wait(number: int) -> wire.Command:
        return wire.Acquire(key("line"), f"{ID}w{number}", "me", 30.0, queue=True)

    replies = post(client, *map(wait, range(5)))
    assert [type(reply) for reply in replies] == [wire.Queued] * 3 + [wire.Failed] * 2
    assert replies[3].reason == "busy"
    assert [type(reply) for reply in post(client, wait(2))] == [wire.Queued], "a sign of life"
    post(client, wire.Release(key("line"), f"{ID}w0"))
    assert [type(reply) for reply in post(client, wait(3))] == [wire.Queued]


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
