"""A caller that asks again under an id of its own, at another server, while the first has yet to miss it."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from secrets import token_hex, token_urlsafe
from urllib.parse import urlencode

import httpx2
import pytest

from dibs.core.names import fingerprint
from tests.server.inside import quotas_of, shutdown_of
from tests.server.test_api_locks import acquire, acquired
from tests.server.world import LONG, World, b64
from tests.servers.waiting import wait_until

pytestmark = pytest.mark.once

A_WHILE = 0.5
"""Seconds in which whatever the first server does about it has been done, as a rule."""


class Forsaken:
    """A request at one server whose caller hears nothing of it any more, and has asked another one."""

    def __init__(self, world: World, name: str, **query: object) -> None:
        self._world = world
        host, port = world.url.removeprefix("http://").split(":")
        self._line = socket.create_connection((host, int(port)), LONG)
        self._line.sendall(
            f"POST /v1/locks/{b64(name)}?{urlencode(query)} HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: Bearer {world.admin_key}\r\n\r\n".encode()
        )
        self.until(lambda: self.waits)

    @property
    def waits(self) -> bool:
        return bool(quotas_of(self._world).waiting)

    def until(self, condition: Callable[[], object]) -> None:
        give_up = time.monotonic() + LONG
        while not condition():
            assert time.monotonic() < give_up
            time.sleep(0.005)

    def hang_up(self) -> None:
        """Only now it is seen that the caller has gone."""
        self._line.close()
        self.until(lambda: not self.waits)

    def end(self) -> None:
        """Its time is over."""
        self.until(lambda: not self.waits)
        self._line.close()


class Asked(threading.Thread):
    """The same request at the other server."""

    def __init__(
        self, client: httpx2.Client, world: World, name: str, query: dict[str, object]
    ) -> None:
        super().__init__(daemon=True)
        self.answer: httpx2.Response | None = None
        self._client, self._name, self._query = client, name, query
        busy = quotas_of(world).waiting
        self.start()
        while quotas_of(world).waiting <= busy:
            time.sleep(0.005)
        client.get(f"/v1/locks/{b64(name)}")  # the store has heard of it by now

    def run(self) -> None:
        self.answer = acquire(self._client, self._name, **self._query)


def test_what_it_released_elsewhere_is_not_granted_again(servers: tuple[World, World]) -> None:
    """The first server still waits in line for it, and asks again."""
    one, two = servers
    holder, there = one.client(key=one.admin_key), two.client(key=one.admin_key)
    name, mine = "retried/released", token_urlsafe(16)
    held = acquired(holder, name)
    path = f"/v1/locks/{b64(name)}"
    first = Forsaken(one, name, id=mine, ttl=30, wait=30)
    again = Asked(there, two, name, {"id": mine, "ttl": 30, "wait": 30})
    assert holder.delete(path, params={"id": held["id"]}).status_code == 200
    again.join(LONG)
    assert again.answer is not None
    assert again.answer.status_code == 200
    assert there.delete(path, params={"id": mine}).status_code == 200
    first.end()
    assert acquire(holder, name).status_code == 200, "nobody has it"


@pytest.mark.parametrize("how", ["hangs up late", "waits in vain", "drains"])
def test_what_it_got_elsewhere_stays_its_own(servers: tuple[World, World], how: str) -> None:
    one, two = servers
    holder, there = one.client(key=one.admin_key), two.client(key=one.admin_key)
    name, mine = f"retried/{how}", token_urlsafe(16)
    held = acquired(holder, name)
    path = f"/v1/locks/{b64(name)}"
    first = Forsaken(one, name, id=mine, ttl=30, wait=1 if how == "waits in vain" else 30)
    again = Asked(there, two, name, {"id": mine, "ttl": 30, "wait": 30})
    assert holder.delete(path, params={"id": held["id"]}).status_code == 200
    again.join(LONG)
    assert again.answer is not None
    assert again.answer.status_code == 200
    if how == "hangs up late":
        first.hang_up()
    else:
        if how == "drains":
            one.do(shutdown_of(one).begin)
        first.end()
    until = time.monotonic() + A_WHILE
    while time.monotonic() < until:
        renewed = there.patch(path, params={"id": mine, "ttl": 30})
        assert renewed.status_code == 200, "the first server has given it up"
    assert there.get(path).json()["sequencer"] == again.answer.json()["sequencer"]


def test_who_asks_again_has_kept_its_place(servers: tuple[World, World]) -> None:
    _, two = servers
    client = two.client(key=servers[0].admin_key)
    name, mine = "retried/in line", token_urlsafe(16)
    path, held = f"/v1/locks/{b64(name)}", acquired(client, name)
    assert acquire(client, name, id=mine, wait=0.1).status_code == 409
    later = Asked(client, two, name, {"wait": 30})
    again = Asked(client, two, name, {"id": mine, "wait": 30})
    assert client.get(path).json()["waiting"] == 2
    client.delete(path, params={"id": held["id"]})
    again.join(LONG)
    assert again.answer is not None
    assert client.delete(path, params={"id": mine}).status_code == 200
    later.join(LONG)
    assert later.answer is not None
    assert again.answer.json()["sequencer"] < later.answer.json()["sequencer"]


def test_who_gives_up_leaves_the_line_by_a_release(servers: tuple[World, World]) -> None:
    _, two = servers
    client = two.client(key=servers[0].admin_key)
    name, mine = "retried/in vain", token_urlsafe(16)
    path = f"/v1/locks/{b64(name)}"
    acquired(client, name)
    assert acquire(client, name, id=mine, wait=0.1).status_code == 409
    assert client.get(path).json()["waiting"] == 1
    assert client.delete(path, params={"id": mine}).status_code == 200
    assert client.get(path).json()["waiting"] == 0


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[World, World]]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('servers') / 'leases.db'}"
    else:
        url = request.getfixturevalue(f"{request.param}_url")
    secret = (token_hex(16),)
    first = World.over(leases=url, records=url, secret=secret)
    second = World.over(leases=url, records=url, secret=secret)
    yield first, second
    first.close()
    second.close()


@pytest.mark.once
def test_any_of_them_will_do(servers: tuple[World, World]) -> None:
    one, two = servers
    here, there = one.client(), two.client(key=one.admin_key)
    held = acquired(here, "shared/x", note="mine")
    shown = there.get(f"/v1/locks/{b64('shared/x')}").json()
    assert shown["id"] == fingerprint(held["id"])
    assert [lock["id"] for lock in there.get("/v1/locks").json()["locks"]] == [shown["id"]]
    path, query = f"/v1/locks/{b64('shared/x')}", {"id": held["id"]}
    assert there.patch(path, params=query | {"ttl": 60}).status_code == 200
    got: list[httpx2.Response] = []
    waiter = threading.Thread(target=lambda: got.append(acquire(there, "shared/x", wait=30)))
    waiter.start()
    wait_until(lambda: here.get(path).json()["waiting"], "somebody in line")
    assert here.delete(path, params=query).status_code == 200
    waiter.join(LONG)
    assert got[0].status_code == 200
    assert got[0].json()["sequencer"] > held["sequencer"]


@pytest.mark.once
def test_the_first_key_is_one(servers: tuple[World, World]) -> None:
    one, two = servers
    assert one.server.first_key
    assert two.server.first_key is None
    token = one.client().post("/v1/token").text
    answer = two.client(key=token).get("/v1/locks")
    assert answer.status_code == 200, "a token of the one is good at the other"
