"""Bounds: slow, stuck, greedy clients cost themselves something, and nobody else."""

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_urlsafe

import httpx2
import pytest

from dibs.server.limits import Limits
from dibs.server.quotas import CENSUS_EVERY, FEW, ExpiringSet, Quotas
from dibs.stores.http.names import encoded
from tests.server.inside import keys_of, quotas_of, runtime_of
from tests.server.test_api_locks import acquire, acquired
from tests.server.world import LONG, World, b64
from tests.servers.waiting import wait_until

LIMITS = Limits(
    max_body=65536,
    connections=40,
    waiters_per_key=2,
    leases_per_key=3,
    acquires_at_once=2,
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World.over(tmp_path_factory.mktemp("limits"), limits=LIMITS)
    yield world
    world.close()


@pytest.fixture(scope="module")
def hasty() -> Iterator[World]:
    """One that gives little time; whoever is to be served in good time asks the other."""
    world = World.over(limits=Limits(request_time=0.4, idle_time=1.0))
    yield world
    world.close()


@contextmanager
def connected(world: World) -> Iterator[socket.socket]:
    host, port = world.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), LONG) as line:
        yield line


def said(line: socket.socket) -> bytes:
    """Everything until it hangs up."""
    line.settimeout(LONG)
    found = b""
    while piece := line.recv(65536):
        found += piece
    return found


def test_they_are_told(world: World) -> None:
    told = world.client("read").get("/v1/limits").json()
    assert (told["max_ttl"], told["leases_per_key"], told["max_name"]) == (86400, 3, 512)


def test_an_id_of_a_batch_may_be_as_long_in_other_requests(world: World) -> None:
    client = world.client()
    most = client.get("/v1/limits").json()["max_id"]
    wish = {"op": "acquire", "key": encoded(b"lock:long"), "owner": "x", "ttl": 60, "queue": True}
    told = client.post("/v1/batch", json={"commands": [wish | {"id": "x" * most}]}).json()
    assert told["replies"][0]["is"] == "granted"
    one = f"/v1/locks/{b64('long')}"
    assert client.patch(one, params={"id": "x" * most}).status_code == 200
    for ask in (client.patch, client.delete):
        assert ask(one, params={"id": "x" * (most + 1)}).status_code == 400
    assert client.delete(one, params={"id": "x" * most}).status_code == 200


def test_a_body_that_drips_is_late_too(hasty: World) -> None:
    with connected(hasty) as line:
        head = f"POST /v1/batch HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {hasty.admin_key}\r\n"
        line.sendall(head.encode() + b"Content-Length: 5000\r\n\r\n")
        line.settimeout(0.2)
        give_up = time.monotonic() + LONG
        answer = b""
        while time.monotonic() < give_up and not answer:
            try:
                line.sendall(b" ")
                answer = line.recv(65536)
            except TimeoutError:
                continue
        assert answer.startswith(b"HTTP/1.1 408"), answer


def test_a_body_is_bounded(world: World) -> None:
    client = world.client()
    declared = client.post("/v1/batch", content=b" " * 70_000)
    assert declared.status_code == 413

    def pieces() -> Iterator[bytes]:
        for _ in range(70):
            yield b" " * 1000

    assert client.post("/v1/batch", content=pieces()).status_code == 413


@pytest.mark.parametrize(
    "sent",
    [
        b"GARBAGE\r\n\r\n",
        b"GET /v1/locks HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /v1/locks HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"GET /v1/locks HTTP/1.1\r\nBad Header: x\r\n\r\n",
        b"POST /v1/batch HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET /v1/locks HTTP/1.1\r\nHost: x\r\nHost: y\r\nConnection: close\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=["garbage", "smuggled", "negative", "header", "chunk", "star", "connect", "hosts", "tls"],
)
def test_what_is_no_http_is_hung_up_on(world: World, hasty: World, sent: bytes) -> None:
    with connected(hasty) as line:
        line.sendall(sent)
        answer = said(line)
    assert re.match(rb"HTTP/1.1 40[0145] ", answer), answer
    assert world.client("read").get("/v1/limits").status_code == 200


def test_an_idle_connection_is_closed(hasty: World) -> None:
    with connected(hasty) as line:
        line.sendall(b"GET /problems/held HTTP/1.1\r\nHost: x\r\n\r\n")
        assert said(line).startswith(b"HTTP/1.1 200")


def test_so_many_connections_in_all(world: World) -> None:
    lines = []
    host, port = world.url.removeprefix("http://").split(":")
    try:
        for _ in range(60):
            lines.append(socket.create_connection((host, int(port)), LONG))
        world.settle()  # then all are there
        lines[-1].sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        refused = said(lines[-1])
    finally:
        for line in lines:
            line.close()
    assert refused.startswith(b"HTTP/1.1 503")


def test_so_many_leases_for_a_key(world: World) -> None:
    client = world.client("acquire")
    held = [acquired(client, f"leases/{i}") for i in range(3)]
    answer = acquire(client, "leases/3")
    assert (answer.status_code, answer.json()["type"]) == (429, "/problems/limit")
    client.delete(f"/v1/locks/{b64('leases/0')}", params={"id": held[0]["id"]})
    assert acquire(client, "leases/3").status_code == 200


@pytest.mark.parametrize("how", ["one by one", "in a batch"])
def test_one_id_on_several_names_counts_for_each(world: World, how: str) -> None:
    client, mine = world.client("acquire"), token_urlsafe(16)
    names = [f"same/{how}/{number}" for number in range(5)]
    if how == "one by one":
        got = [acquire(client, name, id=mine).status_code == 200 for name in names]
    else:
        wish = {"op": "acquire", "id": mine, "owner": "x", "ttl": 60}
        got = []
        for name in names:
            one = wish | {"key": encoded(f"lock:{name}".encode())}
            told = client.post("/v1/batch", json={"commands": [one]}).json()["replies"]
            got.append(told[0]["is"] == "granted")
    assert got == [True] * 3 + [False] * 2
    client.delete(f"/v1/locks/{b64(names[0])}", params={"id": mine})
    assert acquire(client, names[3], id=mine).status_code == 200
    assert acquire(client, names[4], id=mine).status_code == 429


def test_one_id_in_several_queues_counts_for_each(world: World) -> None:
    holder, names = world.client("acquire"), [f"queued/{number}" for number in range(3)]
    client, mine = world.client("acquire"), token_urlsafe(16)
    told = []
    for name in names:
        acquired(holder, name)
        wish = {"op": "acquire", "id": mine, "owner": "x", "ttl": 60, "queue": True}
        one = wish | {"key": encoded(f"lock:{name}".encode())}
        told += client.post("/v1/batch", json={"commands": [one]}).json()["replies"]
    assert [each["is"] for each in told] == ["queued", "queued", "failed"]


def test_so_many_waiters_for_a_key(world: World) -> None:
    acquired(world.client(), "crowded")
    key = world.key("acquire")
    waiting = [world.client(key=key) for _ in range(2)]
    threads = [
        threading.Thread(target=lambda c=client: acquire(c, "crowded", wait=50))
        for client in waiting
    ]
    for thread in threads:
        thread.start()
    reader, path = world.client("read"), f"/v1/locks/{b64('crowded')}"
    wait_until(lambda: reader.get(path).json()["waiting"] == 2, "two in line")
    client = world.client(key=key)
    assert acquire(client, "crowded", wait=50).status_code == 429
    assert acquire(client, "crowded").status_code == 409, "trying is not waiting"
    key_id = key.split("_")[1]
    world.do(lambda: keys_of(world).revoke(key_id))
    for thread in threads:
        thread.join(LONG)
    assert quotas_of(world).of(key_id).waiters == 0


def test_a_flood_of_acquires_costs_nobody_a_renewal(world: World) -> None:
    """While acquires use up their budget, renewals and releases go on."""
    client = world.client()
    held = acquired(client, "precious")
    accounts = quotas_of(world)

    def fill() -> None:
        accounts.acquiring.busy += 2

    world.do(fill)
    try:
        refused = acquire(client, "another")
        assert (refused.status_code, refused.json()["type"]) == (503, "/problems/overloaded")
        assert int(refused.headers["retry-after"]) >= 1
        path = f"/v1/locks/{b64('precious')}"
        assert client.patch(path, params={"id": held["id"], "ttl": 30}).status_code == 200
        assert client.delete(path, params={"id": held["id"]}).status_code == 200
    finally:
        accounts.acquiring.busy -= 2


def test_a_store_that_is_away(tmp_path: Path) -> None:
    """It says so, with a hint when to ask again, and nothing else fails."""
    world = World.over(tmp_path)
    try:
        client = world.client()

        async def away(*_: object) -> None:
            from dibs.errors import BackendUnavailable

            raise BackendUnavailable("it is away")

        runtime = runtime_of(world)
        runtime.call = away  # type: ignore[assignment]
        answer: httpx2.Response = acquire(client, "x")
        assert (answer.status_code, answer.json()["type"]) == (503, "/problems/unavailable")
        assert answer.headers["retry-after"] == "1"
        assert client.get("/v1/limits").status_code == 200
    finally:
        world.close()


def test_many_leases_are_counted_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may ask for `/metrics`, as often as they like."""
    time_now, counts = [0.0], list[float]()
    counted = ExpiringSet.counted

    def counting(tally: ExpiringSet, now: float) -> int:
        counts.append(now)
        return counted(tally, now)

    monkeypatch.setattr(ExpiringSet, "counted", counting)
    accounts = Quotas(Limits(), lambda: time_now[0])
    accounts.leased("a key", (b"lock:x", "first"), 60.0)
    assert accounts.census() == (1, 0)
    for number in range(FEW):
        accounts.leased("another key", (b"lock:x", str(number)), 60.0)
    assert accounts.census().leases == 1, "it was counted a moment ago"
    time_now[0] = CENSUS_EVERY
    del counts[:]
    assert {accounts.census() for _ in range(40)} == {(FEW + 1, 0)}
    assert len(counts) == 4, "two keys, leases and places"
    time_now[0] = 61.0
    assert accounts.census() == (0, 0)
