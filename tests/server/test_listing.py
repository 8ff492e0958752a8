"""`/v1/scan` and `/v1/queues`: all that is held, and the longest lines."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dibs.server import quotas
from dibs.server.api import listing, reading
from dibs.stores.http.names import encoded
from tests.server.inside import quotas_of
from tests.server.world import World, b64, batch, problem


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World.over() as world:
        yield world


def line_up(client: httpx2.Client, *owners: str, key: str) -> None:
    """A holder, and those who wait behind it."""
    wish = {"op": "acquire", "key": key, "ttl": 60, "queue": True}
    replies = batch(client, *(wish | {"id": f"{each:_<22}", "owner": each} for each in owners))
    assert {each["is"] for each in replies} <= {"granted", "queued"}


def keys(page: dict[str, Any]) -> list[str]:
    return [each["key"] for each in page["items"]]


def test_names_of_every_kind_are_listed_by_what_they_begin_with(world: World) -> None:
    client = world.client()
    for each in ("lock:every/1", "leader:every/2", "semaphore:every/3", "lock:other"):
        line_up(client, "owner", key=each)
    asked = {"names": encoded(b"every/")}
    page = client.get("/v1/scan", params=asked).json()
    wanted = (b"leader:every/2", b"lock:every/1", b"semaphore:every/3")
    assert keys(page) == [encoded(each) for each in wanted]
    first = client.get("/v1/scan", params=asked | {"limit": "1"}).json()
    following = client.get("/v1/scan", params=asked | {"cursor": first["cursor"]}).json()
    assert keys(following) == keys(page)[1:]


@pytest.mark.parametrize("path", ["/v1/scan", "/v1/queues"])
def test_names_are_spelt_as_in_paths_or_without_the_mark(world: World, path: str) -> None:
    client = world.client()
    line_up(client, "holder", "waiter", key="lock:spelt/1")
    line_up(client, "another", key="lock:spelling")

    def listed(prefix: str) -> list[str]:
        return keys(client.get(path, params={"names": prefix}).json())

    assert listed(b64("spelt/")) == listed(encoded(b"spelt/")) == [encoded(b"lock:spelt/1")]
    assert listed(b64("none/")) == []
    for wrong in ("base64:!", "YQ==", "base64:YQ=", "base64:base64:YQ", b64("x" * 513)):
        answer = client.get(path, params={"names": wrong})
        assert problem(answer) == (400, "malformed"), wrong


def test_the_longest_line_comes_first(world: World) -> None:
    client = world.client()
    for name, owners in (("a", "ab"), ("b", "abcd"), ("c", "a")):
        line_up(client, *owners, key=f"lock:lines/{name}")
    asked = {"names": encoded(b"lines/")}
    found = client.get("/v1/queues", params=asked).json()
    lines = [(each["key"], each["waiting"]) for each in found["items"]]
    assert lines == [(encoded(b"lock:lines/b"), 3), (encoded(b"lock:lines/a"), 1)]
    assert (found["count"], found["complete"]) == (2, True)
    assert found["items"][0]["waiters"][0]["owner"] == "b"
    one = client.get("/v1/queues", params=asked | {"limit": "1"}).json()
    assert (len(one["items"]), one["count"]) == (1, 2)
    hidden = world.client("read", prefixes=[b"public/"]).get("/v1/queues").json()
    assert hidden == {"items": [], "count": 0, "complete": True}


def test_two_servers_over_one_store_show_the_same_queues(tmp_path: Path) -> None:
    """Also queues that one of them has seen nothing of."""
    with World.over(tmp_path) as one, World.over(tmp_path) as two:
        clients = [world.client(key=one.admin_key) for world in (one, two)]
        line_up(clients[0], *"ab", key="lock:q0")
        line_up(clients[1], *"abc", key="lock:q1")
        shown = [client.get("/v1/queues").json()["items"] for client in clients]
        first, second = (
            [
                (each["key"], each["waiting"], [waiter["owner"] for waiter in each["waiters"]])
                for each in items
            ]
            for items in shown
        )
        assert [waiting for _, waiting, _ in first] == [2, 1]
        assert first == second


def test_not_all_of_many_keys_are_read_for_their_queues(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "QUEUE_PAGES", 1)
    monkeypatch.setattr(reading, "LOOKS", 2)
    client, last = world.client(), 2 * reading.AT_ONCE - 1
    for number in range(last + 1):
        owners = ("holder", "waiter") if number in (0, last) else ("holder",)
        line_up(client, *owners, key=f"lock:many/{number:03}")
    found = client.get("/v1/queues", params={"names": encoded(b"many/")}).json()
    assert (keys(found), found["complete"]) == ([encoded(b"lock:many/000")], False)


def test_walks_through_all_keys_count_as_reads(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "TURN_TIMEOUT", 0.1)
    client, reading = world.client(), quotas_of(world).reading
    limit = world.config.limits.reads_at_once
    reading.busy += limit
    try:
        assert problem(client.get("/v1/queues")) == (503, "overloaded")
    finally:
        reading.busy -= limit
    assert client.get("/v1/queues").status_code == 200
