"""`/v1/events` and `/v1/watch/…`: what happens to locks, over real HTTP."""

import asyncio
import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

import dibs.sync
from dibs.errors import BackendUnavailable
from dibs.server import lock_events
from dibs.server.api import events as event_routes
from dibs.server.limits import Limits
from dibs.server.lock_events import EventLog, LockEvent
from tests.server.inside import event_log, events_of, keys_of, runtime_of, server_id_of
from tests.server.world import World, b64
from tests.servers.waiting import wait_until


@pytest.fixture
def world() -> Iterator[World]:
    world = World.over(limits=Limits(streams_per_key=2, event_streams_per_key=4))
    yield world
    world.close()


type Told = tuple[str, str, Any]
"""The id of an event, its kind, its data."""


@contextmanager
def following(
    client: httpx2.Client, path: str = "/v1/events", last: str = "", **params: Any
) -> Generator[Iterator[Told]]:
    headers = {"last-event-id": last} if last else {}
    with client.stream("GET", path, params=params, headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/event-stream"
        yield events(answer.iter_lines())


def events(lines: Iterator[str]) -> Iterator[Told]:
    number, name = "", ""
    for line in lines:
        if line.startswith("id: "):
            number = line.removeprefix("id: ")
        elif line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            data = line.removeprefix("data: ")
            yield number, name, json.loads(data) if data.startswith("{") else data
        elif not line:
            name = ""


def begin(*streams: Iterator[Told]) -> None:
    """They stand once their first events have come."""
    for news in streams:
        next(news)


def happened(news: Iterator[Told], count: int) -> list[str]:
    """The next events, in short."""
    found: list[str] = []
    while len(found) < count:
        _, name, data = next(news)
        assert name == ""
        found.append(f"{data['what']} {data['owner']}")
    return found


def acquire(client: httpx2.Client, name: str, owner: str = "me", **params: Any) -> dict[str, Any]:
    query = {"client-id": owner, "ttl": 60, **params}
    answer = client.post(f"/v1/locks/{b64(name)}", params=query)
    assert answer.status_code == 200, answer.text
    held: dict[str, Any] = answer.json()
    return held


def release(client: httpx2.Client, name: str, lease_id: str) -> None:
    assert client.delete(f"/v1/locks/{b64(name)}", params={"id": lease_id}).status_code == 200


def test_what_happens_is_told(world: World) -> None:
    client = world.client()
    with following(client) as news:
        number, name, hello = next(news)
        assert (name, hello["server"]) == ("hello", server_id_of(world))
        assert number == f"{hello['server']}-0"
        held = acquire(client, "jobs/1", note="why not")
        client.patch(f"/v1/locks/{b64('jobs/1')}", params={"id": held["id"], "ttl": 60})
        number, name, granted = next(news)
        assert (number, name) == (f"{hello['server']}-1", "")
        assert (granted["what"], granted["token"]) == ("granted", held["sequencer"])
        assert (granted["kind"], granted["name"]) == ("lock", b64("jobs/1").removeprefix("base64:"))
        assert (granted["owner"], granted["note"]) == ("me", "why not")
        assert held["id"] not in str(granted)
        client.delete(
            f"/v1/locks/{b64('jobs/1')}", params={"force": True, "now": True, "reason": "a test"}
        )
        _, _, freed = next(news)
        assert (freed["what"], freed["reason"]) == ("freed", "a test")


def test_renewals_are_told_where_they_are_wanted(world: World) -> None:
    client = world.client()
    with following(client, renewals=True) as news, following(client) as few:
        begin(news, few)
        held = acquire(client, "x")
        client.patch(f"/v1/locks/{b64('x')}", params={"id": held["id"], "ttl": 60})
        release(client, "x", held["id"])
        assert happened(news, 3) == ["granted me", "renewed me", "released me"]
        assert happened(few, 2) == ["granted me", "released me"]


def test_what_is_done_in_the_store_itself_is_found(tmp_path: Path) -> None:
    world = World.over(tmp_path)
    try:
        with (
            following(world.client()) as news,
            dibs.sync.connect(world.config.leases) as there,
        ):
            next(news)
            with there.lock("x", note="another").acquire(wait=30):
                _, _, granted = next(news)
                assert (granted["what"], granted["found"]) == ("granted", True)
                assert granted["note"] == "another"
            _, _, released = next(news)
            assert released["what"] == "released"
    finally:
        world.close()


def test_a_watched_lock_that_changes_in_the_store_itself(tmp_path: Path) -> None:
    world = World.over(tmp_path)
    try:
        with (
            following(world.client(), f"/v1/watch/locks/{b64('x')}") as news,
            dibs.sync.connect(world.config.leases) as there,
        ):
            next(news)
            with there.lock("x").acquire(wait=30):
                assert len(changes(news, "granted")) == 1
            assert changes(news, "released") == []
    finally:
        world.close()


def test_a_watch_goes_on_after_looks_that_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_routes, "LOOK_EVERY", 0.05)
    world, failures = World.over(tmp_path), list[object]()

    async def away(command: object, *_: object) -> None:
        failures.append(command)
        raise BackendUnavailable("away")

    try:
        with (
            following(world.client(), f"/v1/watch/locks/{b64('x')}") as news,
            dibs.sync.connect(world.config.leases) as there,
        ):
            next(news)
            with monkeypatch.context() as patch:
                patch.setattr(runtime_of(world), "call", away)
                wait_until(lambda: len(failures) > 2, "looks that fail")
            with there.lock("x").acquire(wait=30):
                assert len(changes(news, "granted")) == 1
    finally:
        world.close()


def test_only_what_begins_so_and_may_be_read_is_told(world: World) -> None:
    admin, inside = world.client(), world.client("read", prefixes=[b"in/"])
    with (
        following(inside) as theirs,
        following(admin, prefix=b64("in/a")) as some,
        following(admin, kind="semaphore") as pools,
    ):
        begin(theirs, some, pools)
        for name in ("out/a", "in/a", "in/b"):
            acquire(admin, name, owner=name)
        acquire(admin, "in/a", owner="pool", capacity=2)
        assert happened(theirs, 3) == ["granted in/a", "granted in/b", "granted pool"]
        assert happened(some, 2) == ["granted in/a", "granted pool"]
        assert happened(pools, 1) == ["granted pool"]


def test_whoever_was_away_goes_on_where_it_was(world: World) -> None:
    client = world.client()
    with following(client) as news:
        next(news)
        acquire(client, "a", owner="first")
        last, _, _ = next(news)
    acquire(client, "b", owner="second")
    with following(client, last=last) as news:
        number, name, _ = next(news)
        assert (number, name) == (last, "hello")
        assert happened(news, 1) == ["granted second"]


@pytest.mark.parametrize("last", ["000000000000-1", "{}-7", "{}-x", "{}--1", "rubbish", "{}-1"])
def test_whoever_cant_go_on_begins_anew(world: World, last: str) -> None:
    client = world.client()
    events_of(world).log = event_log(1)
    for name in ("a", "b", "c"):
        acquire(client, name)
    with following(client, last=last.format(server_id_of(world))) as news:
        next(news)
        _, name, snapshot = next(news)
        assert name == "reset"
        assert [item["key"] for item in snapshot["items"]] == [
            b64(f"lock:{each}").removeprefix("base64:") for each in "abc"
        ]
        acquire(client, "d", owner="later")
        assert happened(news, 1) == ["granted later"]


def test_whoever_is_behind_is_cut_off_and_told_so(world: World) -> None:
    client = world.client()
    events_of(world).log = event_log(3)
    with following(client) as news:
        next(news)
        posts = [("op", "acquire"), ("owner", "x"), ("ttl", 9)]
        commands = [
            dict(posts) | {"key": b64(f"lock:{n}").removeprefix("base64:"), "id": f"{n:022}"}
            for n in range(10)
        ]
        assert client.post("/v1/batch", json={"commands": commands}).status_code == 200
        assert [(name, data) for _, name, data in news] == [("bye", "behind")]


@pytest.mark.parametrize("path", ["/v1/events", f"/v1/watch/locks/{b64('x')}"])
def test_it_ends_with_its_key_and_with_the_server(world: World, path: str) -> None:
    key = world.key("read")
    with following(world.client(key=key), path) as ends, following(world.client(), path) as stays:
        begin(ends, stays)
        world.do(lambda: keys_of(world).revoke(key.split("_")[1]))
        assert [(name, data) for _, name, data in ends] == [("bye", "key ended")]
        world.do(world.server.stop)
        assert [(name, data) for _, name, data in stays] == [("bye", "draining")]


def test_signs_of_life_say_where_it_is() -> None:
    world = World.over(limits=Limits(stream_beat=0.05))
    try:
        with world.client().stream("GET", "/v1/events") as answer:
            lines = answer.iter_lines()
            while not next(lines).startswith(": "):
                pass
            assert next(lines) == ""
            assert next(lines) == f"id: {server_id_of(world)}-0"
    finally:
        world.close()


@pytest.mark.parametrize(
    "params", [{"prefix": "base64:!"}, {"prefix": b64("x" * 513)}, {"kind": "no"}, {"other": 1}]
)
def test_what_cant_be_meant_is_refused(world: World, params: dict[str, Any]) -> None:
    answer = world.client().get("/v1/events", params=params)
    assert (answer.status_code, answer.json()["type"]) == (400, "/problems/malformed")


def test_streams_count_and_those_of_all_events_apart(world: World) -> None:
    client, one = world.client(), f"/v1/watch/locks/{b64('x')}"
    with following(client), following(client), following(client), following(client):
        answer = client.get("/v1/events")
        assert answer.status_code == 429
        assert answer.json()["detail"] == "this API key has reached its limit of 4 event streams"
        with following(client, one), client.stream("GET", "/v1/stream") as pushes:
            assert pushes.status_code == 200
            assert client.get(one).status_code == 429
        with following(world.client("read")):
            pass


def test_an_event_is_put_into_words_once_for_all(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[LockEvent] = []

    def counted(event: LockEvent) -> dict[str, Any]:
        told.append(event)
        return shape(event)

    shape = lock_events.event_json
    monkeypatch.setattr(event_routes, "event_json", counted)
    client, key = world.client(), world.client("read")
    one = f"/v1/watch/locks/{b64('x')}"
    with following(client) as all_, following(key) as theirs, following(client, one) as its:
        begin(all_, theirs, its)
        acquire(client, "x")
        assert happened(all_, 1) == happened(theirs, 1) == happened(its, 1) == ["granted me"]
    assert len(told) == 1


def test_others_have_their_turn_while_somebody_catches_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_routes, "EVENTS_AT_ONCE", 1)
    client = world.client()
    for number in range(5):
        acquire(client, f"turn/{number}", owner="x")
    log = events_of(world).log
    others = [True]
    """Whether another had its turn, before each look into the log."""

    def looked(*asked: Any) -> list[LockEvent]:
        assert others[-1]
        others.append(False)
        asyncio.get_running_loop().call_soon(others.__setitem__, -1, True)
        return EventLog.after(log, *asked)

    monkeypatch.setattr(log, "after", looked)
    with following(client, recent=5) as news:
        next(news)
        assert happened(news, 5) == ["granted x"] * 5
    assert len(others) > 5


def test_one_lock_is_told_now_and_with_each_change(world: World) -> None:
    client = world.client()
    with following(client, f"/v1/watch/locks/{b64('x')}") as news:
        _, name, status = next(news)
        assert (name, "holders" in status) == ("status", False)
        held = acquire(client, "x")
        acquire(client, "another")
        assert changes(news, "granted") == ["me"]
        client.patch(f"/v1/locks/{b64('x')}", params={"id": held["id"], "ttl": 60})
        assert changes(news, "renewed") == ["me"]
        release(client, "x", held["id"])
        assert changes(news, "released") == []


def changes(news: Iterator[Told], until: str) -> list[str]:
    """Who holds it by the first status after that event."""
    _, name, data = next(news)
    assert (name, data["what"]) == ("", until)
    _, name, status = next(news)
    assert name == "status"
    return [holder["owner"] for holder in status.get("holders", [])]


def test_one_lock_of_another_kind(world: World) -> None:
    client = world.client()
    path = f"/v1/watch/locks/{b64('x')}"
    acquire(client, "x", owner="one", capacity=2)
    with following(client, path, kind="semaphore") as news:
        _, _, status = next(news)
        assert [holder["owner"] for holder in status["holders"]] == ["one"]
        acquire(client, "x", owner="two", capacity=2)
        assert changes(news, "granted") == ["one", "two"]


def test_a_waiter_is_told_and_its_grant(world: World) -> None:
    """One that waits by commands; the store pushes its grant through this server."""
    client = world.client()
    held = acquire(client, "x", owner="first")
    k = b64("lock:x").removeprefix("base64:")
    wait = {"op": "acquire", "key": k, "id": "i" * 22, "owner": "next", "ttl": 60, "queue": True}
    with following(client) as news, client.stream("GET", "/v1/stream") as pushes:
        next(news)
        lines = pushes.iter_lines()
        next(lines)
        inbox = json.loads(next(lines).removeprefix("data: "))["inbox"]
        client.post("/v1/batch", json={"commands": [wait | {"inbox": inbox}]})
        assert happened(news, 1) == ["queued next"]
        release(client, "x", held["id"])
        assert sorted(happened(news, 2)) == ["granted next", "released first"]


def test_a_store_that_cant_be_read_ends_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: object) -> None:
        raise BackendUnavailable("away")

    monkeypatch.setattr(runtime_of(world), "call", away)
    with following(world.client(), f"/v1/watch/locks/{b64('x')}") as news:
        assert [(name, data) for _, name, data in news] == [("bye", "unavailable")]
