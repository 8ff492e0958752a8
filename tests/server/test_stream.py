"""`/v1/stream`: pushes for those whose commands name it."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import msgspec
import pytest

from dibs.core.names import fingerprint
from dibs.model import Acquire, Notification, Queued, Release, Renew, Revoke
from dibs.server.limits import Limits
from dibs.stores.http import wire
from tests.server.inside import keys_of, notifications_of, server_id_of
from tests.server.test_batch import ID, key, post
from tests.server.world import LONG, World
from tests.servers.waiting import wait_until


@pytest.fixture
def world() -> Iterator[World]:
    world = World.over(limits=Limits(streams_per_key=2))
    yield world
    world.close()


type Events = Iterator[tuple[str, Any]]


@contextmanager
def listening(client: httpx2.Client) -> Iterator[Events]:
    with client.stream("GET", "/v1/stream") as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/event-stream"
        yield events(answer.iter_lines())


def events(lines: Iterator[str]) -> Events:
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            data = line.removeprefix("data: ")
            yield name, json.loads(data) if data.startswith("{") else data


def test_grants_and_revocations_are_pushed(world: World) -> None:
    client = world.client()
    with listening(client) as news:
        name, hello = next(news)
        assert name == "hello"
        assert hello["server"] == server_id_of(world)
        inbox, k = hello["inbox"], key("pushed")
        post(client, Acquire(k, ID + "1", "first", 30.0))
        (queued,) = post(client, Acquire(k, ID + "2", "second", 30.0, queue=True, inbox=inbox))
        assert type(queued) is Queued
        post(client, Release(k, ID + "1"))
        pushes = [push_of(next(news))]
        while pushes[-1].event != "granted":
            pushes.append(push_of(next(news)))
        assert pushes[-1].lease == fingerprint(ID + "2")
        assert pushes[-1].granted_at >= queued.now
        assert ID not in str(pushes)
        post(client, Renew(k, ID + "2", 30.0))
        post(client, Revoke(k, None, "a test"))
        told = push_of(next(news))
        assert (told.event, told.detail) == ("revoked", "a test")


def push_of(event: tuple[str, Any]) -> Notification:
    name, data = event
    assert name == "notification", event
    return wire.notification_to_model(msgspec.convert(data, wire.Notification), "")


def test_only_its_owners_commands_may_name_it(world: World) -> None:
    client, other = world.client(), world.client("acquire")
    with listening(client) as news:
        _, hello = next(news)
        k = key("mine")
        post(client, Acquire(k, ID + "1", "first", 30.0, inbox=hello["inbox"]))
        post(other, Acquire(k, ID + "2", "x", 30.0, queue=True, inbox=hello["inbox"]))
        post(client, Release(k, ID + "1"))
        post(client, Revoke(k, None, "of the other"))
        post(client, Acquire(key("own"), ID + "3", "x", 30.0, inbox=hello["inbox"]))
        post(client, Revoke(key("own"), None, "our own"))
        assert push_of(next(news)).detail == "our own"


def test_so_many_streams_for_a_key(world: World) -> None:
    client = world.client()
    with listening(client), listening(client):
        answer = client.get("/v1/stream")
        assert (answer.status_code, answer.json()["type"]) == (429, "/problems/limit")


def test_a_revoked_keys_stream_ends(world: World) -> None:
    key_text = world.key("read")
    with listening(world.client(key=key_text)) as news:
        next(news)
        world.do(lambda: keys_of(world).revoke(key_text.split("_")[1]))
        assert list(news) == [("bye", "key ended")]


def test_streams_are_told_of_the_end(world: World) -> None:
    with listening(world.client()) as news:
        next(news)
        world.do(world.server.stop)
        assert list(news) == [("bye", "draining")]


@pytest.mark.parametrize("pushes", [5_000, 100], ids=["behind", "stuck"])
def test_a_client_that_does_not_read_is_cut_off(pushes: int) -> None:
    """Because it is behind by too much, or because it has taken nothing for too long."""
    world = World.over(limits=Limits(stream_backlog=1_000, stall_time=0.4))
    post_office = notifications_of(world)
    host, port = world.url.removeprefix("http://").split(":")
    news = Notification(b"lock:x", "a-lease", "", "revoked", detail="x" * 100_000)

    def push() -> int:
        streams = list(post_office.streams)
        for stream in streams:
            for _ in range(pushes):
                stream.put(news)
        return len(streams)

    try:
        with socket.create_connection((host, int(port)), LONG) as line:
            ask = f"GET /v1/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {world.admin_key}\r\n\r\n"
            line.sendall(ask.encode())
            wait_until(lambda: world.do(lambda: list(post_office.streams)), "a stream")
            assert world.do(push) == 1
            wait_until(lambda: not world.do(lambda: list(post_office.streams)), "its end")
        assert world.client().get("/v1/limits").status_code == 200
    finally:
        world.close()
