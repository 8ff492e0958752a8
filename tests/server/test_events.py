"""`/v1/events`, `/v1/watch/…` and `/v1/stream`: what happens to locks, as clients receive it."""

import json
import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import dibs.sync
from dibs.core.names import fingerprint
from dibs.errors import BackendUnavailable
from dibs.model import Acquire, Notification, Page, Release, Revoke
from dibs.server import activity
from dibs.server.api import events as event_routes
from dibs.server.app import TABLE
from dibs.server.auth import credentials
from dibs.server.limits import Limits
from dibs.stores.http import wire
from tests.server.inside import event_log, followers_of
from tests.server.world import ID, Client, World, away, b64, head, key, lock, problem, written
from tests.servers.waiting import wait_until

WATCH = f"/v1/watch/locks/{b64('x')}"


@pytest.fixture
def world() -> Iterator[World]:
    with World.over(limits=Limits(streams_per_key=2, event_streams_per_key=4)) as world:
        yield world


@pytest.fixture
def filed(tmp_path: Path) -> Iterator[World]:
    with World.over(tmp_path) as world:
        yield world


type Event = tuple[str, str, Any]
"""An id, a kind, and data."""


@contextmanager
def following(
    client: Client, path: str = "/v1/events", last: str = "", **params: Any
) -> Generator[Iterator[Event]]:
    headers = {"last-event-id": last} if last else {}
    with client.stream("GET", path, params=params, headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/event-stream"
        routes = (r for r in TABLE if re.fullmatch(r.path.replace("{name}", "[^/]+"), path))
        yield events(answer.iter_lines(), next(routes).events)


def events(lines: Iterator[str], described: Mapping[str, Any]) -> Iterator[Event]:
    """Each event, with data as the OpenAPI document has it."""
    number, name = "", ""
    for line in lines:
        field, _, value = line.partition(": ")
        match field:
            case "id":
                number = value
            case "event":
                name = value
            case "data":
                data = json.loads(value) if value.startswith("{") else value
                kind = described[name or "message"]
                msgspec.convert(data, kind)
                assert kind is str or set(data) - {"is"} <= set(kind.__struct_fields__)
                yield number, name, data
            case _:
                name = ""


def happened(news: Iterator[Event], count: int) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        _, name, data = next(news)
        assert name == ""
        found.append(f"{data['what']} {data['owner']}")
    return found


def changes(news: Iterator[Event], until: str) -> list[str]:
    """The owners in the first status after that event."""
    _, name, data = next(news)
    assert (name, data["what"]) == ("", until)
    _, name, status = next(news)
    assert name == "status"
    return [holder["owner"] for holder in status.get("holders", [])]


def rest(news: Iterator[Event]) -> list[tuple[str, Any]]:
    return [(name, data) for _, name, data in news]


def acquired_by(client: Client, name: str, owner: str, **query: Any) -> dict[str, Any]:
    return client.acquired(name, **query | {"client-id": owner})


def test_events_of_a_lease(world: World) -> None:
    client = world.client()
    with following(client, renewals=True) as news, following(client) as few:
        number, name, hello = next(news)
        next(few)
        assert (name, hello["server"]) == ("hello", world.server.server_id)
        assert number == f"{hello['server']}-0"
        held = acquired_by(client, "jobs/1", "me", note="why not")
        client.renewed("jobs/1", held["id"])
        assert client.acquire("jobs/1", wait=0.05, **{"client-id": "you"}).status_code == 409
        number, name, granted = next(news)
        assert (number, name) == (f"{hello['server']}-1", "")
        wanted: dict[str, Any] = {"what": "granted", "kind": "lock", "name": written("jobs/1")}
        wanted |= {"owner": "me", "note": "why not", "lease": fingerprint(held["id"])}
        wanted |= {"token": held["sequencer"], "slots": [0], "found": False, "waited": 0.0}
        assert granted | wanted == granted
        force: dict[str, Any] = {"force": True, "now": True, "reason": "a test"}
        client.delete(lock("jobs/1"), params=force)
        assert happened(news, 1) == ["renewed me"]
        queued, left, freed = [next(news)[2] for _ in range(3)]
        assert not queued["found"], "the server knows that by itself, without a look at the store"
        assert not left["found"]
        assert (freed["what"], freed["reason"]) == ("freed", "a test")
        assert happened(few, 4) == ["granted me", "queued you", "left you", "freed me"]


def test_only_what_matches_and_may_be_read_is_sent(world: World) -> None:
    admin, inside = world.client(), world.client("read", prefixes=[b"in/"])
    with (
        following(inside) as theirs,
        following(admin, prefix=b64("in/a")) as some,
        following(admin, kind="semaphore") as pools,
    ):
        for news in (theirs, some, pools):
            next(news)
        for name in ("out/a", "in/a", "in/b"):
            acquired_by(admin, name, name)
        acquired_by(admin, "in/a", "pool", capacity=2)
        assert happened(theirs, 3) == ["granted in/a", "granted in/b", "granted pool"]
        assert happened(some, 2) == ["granted in/a", "granted pool"]
        assert happened(pools, 1) == ["granted pool"]


def test_a_stream_resumes_where_it_was_or_begins_with_recent_events(world: World) -> None:
    client = world.client()
    with following(client) as news:
        next(news)
        acquired_by(client, "a", "first")
        last, _, _ = next(news)
    acquired_by(client, "b", "second")
    with following(client, last=last) as news:
        number, name, _ = next(news)
        assert (number, name) == (last, "hello")
        assert happened(news, 1) == ["granted second"]
    for owner in "012":
        client.release("lately", acquired_by(client, "lately", owner))
    with following(client, prefix=b64("lately"), recent=4) as news:
        next(news)
        assert happened(news, 4) == ["granted 1", "released 1", "granted 2", "released 2"]


def test_a_stream_that_cannot_resume_begins_with_all_there_is(world: World) -> None:
    client, server = world.client(), world.server.server_id
    world.server.activity.log = event_log(1)
    for name in ("a", "b", "c"):
        client.acquired(name)
    keys = [written(f"lock:{each}") for each in "abc"]
    for last in ("000000000000-1", *(f"{server}-{n}" for n in ("7", "x", "-1", "1")), "rubbish"):
        with following(client, last=last) as news:
            next(news)
            _, name, snapshot = next(news)
            assert (name, [item["key"] for item in snapshot["items"]]) == ("reset", keys), last


def test_a_stream_with_renewals_resumes_only_if_none_are_missing(world: World) -> None:
    """Renewals are not logged while no stream wants them."""
    client = world.client()
    held = acquired_by(client, "a", "me")

    def resumed(last: str, *, renewals: bool = True) -> tuple[list[str], str]:
        """The kinds of the first events, the last of which is a renewal, and its id."""
        wait_until(lambda: world.do(lambda: not followers_of(world)), "no other stream")
        with following(client, last=last, renewals=renewals) as news:
            kinds = [next(news)[1]]
            client.renewed("a", held["id"]).raise_for_status()
            while renewals and kinds[-1] != "":
                last, kind, _ = next(news)
                kinds.append(kind)
        return kinds, last

    _, last = resumed("")
    for _ in range(2):  # the second time, renewals were missed earlier, but none since
        kinds, last = resumed(last)
        assert kinds == ["hello", ""]
        assert resumed(last, renewals=False) == (["hello"], last), "it does not want renewals"
        kinds, last = resumed(last)
        assert kinds == ["hello", "reset", ""]


def test_a_client_that_is_behind_is_cut_off(world: World) -> None:
    client = world.client()
    world.server.activity.log = event_log(3)
    with following(client) as news:
        next(news)
        wish = {"op": "acquire", "owner": "x", "ttl": 9}
        client.batch(*(wish | {"key": f"lock:{n}", "id": f"{n:022}"} for n in range(10)))
        assert rest(news) == [("bye", "behind")]


def test_what_others_do_is_found(filed: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "PAGE", 3)
    monkeypatch.setattr(activity, "FOLLOWED", 0.1)
    with (
        following(filed.client()) as news,
        following(filed.client(), WATCH) as watched,
        dibs.sync.connect(filed.config.leases) as there,
        ExitStack() as stack,
    ):
        next(news)
        next(watched)
        for number in range(7):  # more than a page
            stack.enter_context(there.lock(f"other/{number}"))
        with there.lock("x", note="another", wait=30):
            assert len(changes(watched, "granted")) == 1
        assert changes(watched, "released") == []
        found = [next(news)[2] for _ in range(9)]
    assert all(each["found"] for each in found)
    names = {each["name"] for each in found if each["what"] == "granted"}
    assert len(names) == 8
    assert [each["what"] for each in found if each["note"]] == ["granted", "released"]


def test_streams_go_on_after_looks_that_fail(filed: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "FOLLOWED", 0.01)
    monkeypatch.setattr(event_routes, "LOOK_EVERY", 0.05)
    errors = [BackendUnavailable("away"), RuntimeError("a bug")] * 2
    scan, call = filed.runtime.scan, filed.runtime.call

    async def failing_scan(*asked: Any) -> Page:
        if errors:
            raise errors.pop()
        return await scan(*asked)

    async def failing_call(*asked: Any) -> Any:
        return await (away() if errors else call(*asked))

    client = filed.client()
    with (
        following(client) as news,
        following(client, WATCH) as watched,
        dibs.sync.connect(filed.config.leases) as there,
    ):
        next(news)
        next(watched)
        monkeypatch.setattr(filed.server.activity, "_scan", failing_scan)
        monkeypatch.setattr(filed.runtime, "call", failing_call)
        wait_until(lambda: not errors, "looks that fail")
        with there.lock("x", wait=30):
            assert next(news)[2]["what"] == "granted"
            assert len(changes(watched, "granted")) == 1


def all_streams(stack: ExitStack, world: World, key: str) -> list[Iterator[Event]]:
    paths, client = ("/v1/events", "/v1/stream", WATCH), world.client(key=key)
    found = [stack.enter_context(following(client, path)) for path in paths]
    for news in found:
        next(news)
    return found


def test_streams_end_with_their_key_and_with_the_server(world: World) -> None:
    key, other = world.key("read"), world.key("read")
    with ExitStack() as stack:
        ends, stays = (all_streams(stack, world, each) for each in (key, other))
        world.revoke(key)
        assert [rest(news) for news in ends] == [[("bye", "key ended")]] * 3
        world.do(world.server.stop)
        assert [rest(news) for news in stays] == [[("bye", "draining")]] * 3


def test_streams_end_with_their_token(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of its key stay."""
    monkeypatch.setattr(credentials, "TOKEN_LIFETIME", 1)
    monkeypatch.setattr(credentials, "TOKEN_LEEWAY", 2)
    client = world.client()
    with ExitStack() as stack:
        stays = stack.enter_context(following(client))
        next(stays)
        token = client.post("/v1/token").text
        for news in all_streams(stack, world, token):
            assert rest(news)[-1] == ("bye", "token expired")
        assert problem(world.client(key=token).get("/v1/about")) == (401, "unauthenticated")
        acquired_by(client, "x", "me")
        assert happened(stays, 1) == ["granted me"]


def test_so_many_streams_for_a_key(world: World) -> None:
    """Those of all events are counted apart from the others."""
    client = world.client()
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(following(client))
        answer = client.get("/v1/events")
        assert problem(answer) == (429, "limit")
        assert answer.json()["detail"] == "this API key has reached its limit of 4 event streams"
        for path in (WATCH, "/v1/stream"):
            stack.enter_context(following(client, path))
        assert problem(client.get(WATCH)) == problem(client.get("/v1/stream")) == (429, "limit")
        stack.enter_context(following(world.client("read")))


@pytest.mark.parametrize("pushes", [1_100, 100], ids=["behind", "stuck"])
def test_a_client_that_does_not_read_is_cut_off(pushes: int) -> None:
    """Because it is behind by too much, or because it has taken nothing for too long."""
    news = Notification(b"lock:x", "a-lease", "", "revoked", detail="x" * 100_000)
    with World.over(limits=Limits(stream_backlog=1_000, stall_time=0.4, stream_beat=0.1)) as world:
        streams = world.server.streams.streams

        def push() -> None:
            (stream,) = streams
            for _ in range(pushes):
                stream.put(news)

        with world.connected() as line:
            line.sendall(head("GET /v1/stream", world.admin_key))
            wait_until(lambda: world.do(lambda: list(streams)), "a stream")
            world.do(push)
            wait_until(lambda: not world.do(lambda: list(streams)), "its end")
        assert world.client().get("/v1/limits").status_code == 200


def notified(news: Iterator[Event]) -> Notification:
    _, name, data = next(news)
    assert name == "notification"
    return wire.notification_to_model(msgspec.convert(data, wire.Notification), "")


def test_an_inbox_is_only_for_commands_of_its_own_key(world: World) -> None:
    client, other, k = world.client(), world.client("acquire"), key("mine")
    with following(client, "/v1/stream") as news:
        inbox = next(news)[2]["inbox"]
        client.apply(Acquire(k, f"{ID}1", "first", 30.0, inbox=inbox))
        other.apply(Acquire(k, f"{ID}2", "x", 30.0, queue=True, inbox=inbox))
        client.apply(Release(k, f"{ID}1"), Revoke(k, None, "of the other"))
        client.apply(Acquire(key("own"), f"{ID}3", "x", 30.0, inbox=inbox))
        client.apply(Revoke(key("own"), None, "our own"))
        assert notified(news).detail == "our own"
