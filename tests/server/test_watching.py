"""What `/v1/scan`, `/v1/queues`, `/v1/events` and force release have for those who look after locks."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dibs.server.api import listing, reading
from dibs.stores.http.names import encoded
from tests.server.inside import quotas_of
from tests.server.world import World, b64


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    world = World.over()
    yield world
    world.close()


def send(client: httpx2.Client, op: str, key: str, **fields: Any) -> dict[str, Any]:
    """One command, of the key that is written out, and what came of it."""
    command = {"op": op, "key": encoded(key.encode()), **fields}
    answer = client.post("/v1/batch", json={"commands": [command]})
    assert answer.status_code == 200, answer.text
    reply: dict[str, Any] = answer.json()["replies"][0]
    return reply


def acquire(client: httpx2.Client, key: str, owner: str, **fields: Any) -> str:
    """A lease, or a place in line; its id."""
    lease = f"{owner:0<22}".replace("@", "_")
    reply = send(client, "acquire", key, id=lease, owner=owner, ttl=60, queue=True, **fields)
    assert reply["is"] in ("granted", "queued")
    return lease


def names(page: dict[str, Any]) -> list[str]:
    return [each["key"] for each in page["items"]]


def test_names_of_every_kind_are_listed_by_what_they_begin_with(world: World) -> None:
    client = world.client()
    for key in ("lock:every/1", "leader:every/2", "semaphore:every/3", "lock:other"):
        acquire(client, key, f"owner of {key[:-1]}")
    page = client.get("/v1/scan", params={"names": encoded(b"every/")}).json()
    assert names(page) == [
        encoded(key) for key in (b"leader:every/2", b"lock:every/1", b"semaphore:every/3")
    ]
    first = client.get("/v1/scan", params={"names": encoded(b"every/"), "limit": 1}).json()
    asked = {"names": encoded(b"every/"), "cursor": first["cursor"]}
    assert names(client.get("/v1/scan", params=asked).json()) == names(page)[1:]


def test_prefix_and_names_do_not_go_together(world: World) -> None:
    answer = world.client().get("/v1/scan", params={"names": "YQ", "prefix": "YQ"})
    assert (answer.status_code, answer.json()["type"]) == (400, "/problems/malformed")


@pytest.mark.parametrize("path", ["/v1/scan", "/v1/queues"])
def test_names_are_spelt_as_in_paths_or_without_the_mark(world: World, path: str) -> None:
    client = world.client()
    for owner in ("the holder", "who waits"):
        acquire(client, "lock:spelt/1", owner)
    acquire(client, "lock:spelling", "another")

    def told(prefix: str) -> dict[str, Any]:
        found: dict[str, Any] = client.get(path, params={"names": prefix}).json()
        return found | {"items": names(found)}

    assert told(b64("spelt/")) == told(encoded(b"spelt/"))
    assert told(b64("spelt/")) != told(b64("none/"))
    for wrong in ("base64:!", "YQ==", "base64:YQ=", "base64:base64:YQ", b64("x" * 513)):
        answer = client.get(path, params={"names": wrong})
        assert (answer.status_code, answer.json()["type"]) == (400, "/problems/malformed"), wrong


def test_the_longest_line_comes_first(world: World) -> None:
    client = world.client()
    for name, waiting in (("lines/a", 1), ("lines/b", 3), ("lines/c", 0)):
        for place in range(waiting + 1):
            acquire(
                client, f"lock:{name}", f"{name} at {place}".replace("/", "-").replace(" ", "_")
            )
    asked = {"names": encoded(b"lines/")}
    found = client.get("/v1/queues", params=asked).json()
    told = [(each["key"], each["waiting"]) for each in found["items"]]
    assert told == [(encoded(b"lock:lines/b"), 3), (encoded(b"lock:lines/a"), 1)]
    assert found["count"] == 2
    assert found["items"][0]["waiters"][0]["owner"] == "lines-b_at_1"
    assert found["complete"]
    one = client.get("/v1/queues", params={**asked, "limit": 1}).json()
    assert (len(one["items"]), one["count"]) == (1, 2)


def test_two_servers_over_one_store_show_the_same_queues(tmp_path: Path) -> None:
    """Also queues that one of them has seen nothing of."""
    worlds = World.over(tmp_path), World.over(tmp_path)
    try:
        clients = [world.client(key=worlds[0].admin_key) for world in worlds]
        for number, client in enumerate(clients):
            for place in range(number + 2):
                acquire(client, f"lock:q{number}", f"owner_{number}_{place}")
        first, second = (client.get("/v1/queues").json() for client in clients)
        for queue in (*first["items"], *second["items"]):
            for each in (*queue["holders"], *queue["waiters"]):
                for name in ("expires_in", "held_for", "waited"):  # time goes on in between
                    each.pop(name, None)
            queue.pop("now", None)
        assert [each["waiting"] for each in first["items"]] == [2, 1]
        assert first == second
    finally:
        for world in worlds:
            world.close()


def test_not_all_of_many_keys_are_read_for_their_queues(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "QUEUE_PAGES", 1)
    monkeypatch.setattr(reading, "LOOKS", 2)
    client = world.client()
    for number in range(2 * reading.AT_ONCE):
        acquire(client, f"lock:many/{number:03}", f"many-{number}")
    for name in ("many/000", "many/199"):
        acquire(client, f"lock:{name}", f"waits for {name}".replace(" ", "_").replace("/", "-"))
    found = client.get("/v1/queues", params={"names": encoded(b"many/")}).json()
    assert (names(found), found["complete"]) == ([encoded(b"lock:many/000")], False)


def test_walks_through_all_keys_count_as_reads(world: World) -> None:
    client, reading = world.client(), quotas_of(world).reading
    limit = world.config.limits.reads_at_once
    reading.busy += limit
    try:
        answer = client.get("/v1/queues")
        assert (answer.status_code, answer.json()["type"]) == (503, "/problems/overloaded")
    finally:
        reading.busy -= limit
    assert client.get("/v1/queues").status_code == 200


def test_lines_that_may_not_be_seen_are_left_out(world: World) -> None:
    client = world.client()
    for place in range(2):
        acquire(client, "lock:secret/line", f"secret{place}")
    found = world.client("read", prefixes=[b"public/"]).get("/v1/queues").json()
    assert found == {"items": [], "count": 0, "complete": True}


def test_one_may_begin_with_what_has_happened_lately(world: World) -> None:
    client = world.client()
    for number in range(3):
        lease = acquire(client, "lock:lately", f"late{number}")
        send(client, "release", "lock:lately", id=lease)
    asked = {"prefix": b64("lately"), "recent": "4"}
    with client.stream("GET", "/v1/events", params=asked) as answer:
        found: list[str] = []
        for line in answer.iter_lines():
            if line.startswith("data: {") and '"what"' in line:
                told = json.loads(line.removeprefix("data: "))
                found.append(f"{told['what']} {told['owner']}")
            if len(found) == 4:
                break
    assert found == ["granted late1", "released late1", "granted late2", "released late2"]


def test_one_lease_of_several_is_ended_by_its_fingerprint(world: World) -> None:
    client = world.client()
    for owner in ("pool-a", "pool-b"):
        acquire(client, "semaphore:forced", owner, capacity=2)
    path = f"/v1/locks/{b64('forced')}"
    held = client.get(path, params={"kind": "semaphore"}).json()["holders"]
    lease = next(each["lease"] for each in held if each["owner"] == "pool-b")
    asked = {"kind": "semaphore", "force": True, "now": True, "reason": "a test", "lease": lease}
    assert client.delete(path, params=asked).json()["count"] == 1
    held = client.get(path, params={"kind": "semaphore"}).json()["holders"]
    assert [each["owner"] for each in held] == ["pool-a"]
    refused = client.delete(path, params={"id": "x", "lease": lease})
    assert refused.status_code == 400
