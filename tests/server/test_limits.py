"""Bounds: slow, stuck, greedy clients cost themselves something, and nobody else."""

import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx2
import pytest

from dibs.errors import BackendUnavailable
from dibs.model import Command, Release
from dibs.server import audit, quotas
from dibs.server.auth import keys
from dibs.server.limits import Limits
from dibs.server.placement import restrictions
from tests.server.inside import audit_of, quotas_of, runtime_of, store_of
from tests.server.world import ID, LONG, World, acquire, acquired, b64, batch, lock, problem
from tests.servers.waiting import wait_until

LIMITS = Limits(
    max_body=65536,
    connections=40,
    waiters_per_key=2,
    leases_per_key=3,
    acquires_at_once=2,
    tombstones_per_key=3,
)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World.over(limits=LIMITS) as world:
        yield world


@pytest.fixture(scope="module")
def hasty() -> Iterator[World]:
    """A server that gives little time."""
    with World.over(limits=Limits(request_time=0.4, idle_time=1.0)) as world:
        yield world


def received(line: socket.socket) -> bytes:
    """Everything until the server hangs up."""
    with line.makefile("rb") as file:
        return file.read()


# -- connections and bodies -------------------------------------------------------------------------


def test_a_body_that_drips_is_late_too(hasty: World) -> None:
    with hasty.connected() as line:
        head = f"POST /v1/batch HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {hasty.admin_key}\r\n"
        line.sendall(head.encode() + b"Content-Length: 5000\r\n\r\n")
        line.settimeout(0.2)
        give_up, answer = time.monotonic() + LONG, b""
        while time.monotonic() < give_up and not answer:
            try:
                line.sendall(b" ")
                answer = line.recv(65536)
            except TimeoutError:
                continue
        assert answer.startswith(b"HTTP/1.1 408"), answer


def test_a_body_is_bounded(world: World) -> None:
    pieces = iter([b" " * 1000] * 70)  # without a length
    for content in (b" " * 70_000, pieces):
        assert world.client().post("/v1/batch", content=content).status_code == 413


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
def test_the_server_hangs_up_on_what_is_no_http(hasty: World, sent: bytes) -> None:
    with hasty.connected() as line:
        line.sendall(sent)
        answer = received(line)
    assert re.match(rb"HTTP/1.1 40[0145] ", answer), answer
    assert hasty.client("read").get("/v1/limits").status_code == 200


def test_an_idle_connection_is_closed(hasty: World) -> None:
    with hasty.connected() as line:
        line.sendall(b"GET /problems/held HTTP/1.1\r\nHost: x\r\n\r\n")
        assert received(line).startswith(b"HTTP/1.1 200")


def test_so_many_connections_in_all(world: World) -> None:
    with ExitStack() as stack:
        lines = [stack.enter_context(world.connected()) for _ in range(60)]
        world.settle()  # then all are there
        lines[-1].sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert received(lines[-1]).startswith(b"HTTP/1.1 503")
    wait_until(lambda: _is_served(world), "the connections have ended")


def _is_served(world: World) -> bool:
    try:
        return httpx2.get(f"{world.url}/livez").status_code == 200
    except httpx2.TransportError:
        return False


def test_many_acquires_at_once_delay_no_renewal(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "TURN_TIMEOUT", 0.1)
    client = world.client()
    held, acquiring = acquired(client, "precious"), quotas_of(world).acquiring
    acquiring.busy += LIMITS.acquires_at_once
    try:
        refused = acquire(client, "another")
        assert problem(refused) == (503, "overloaded")
        assert int(refused.headers["retry-after"]) >= 1
        own = {"id": held["id"]}
        assert client.patch(lock("precious"), params=own).status_code == 200
        assert client.delete(lock("precious"), params=own).status_code == 200
    finally:
        acquiring.busy -= LIMITS.acquires_at_once


def test_a_store_that_is_away(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer says when to ask again, and nothing else fails."""

    async def away(*_: object) -> None:
        raise BackendUnavailable("it is away")

    monkeypatch.setattr(runtime_of(world), "call", away)
    answer = acquire(world.client(), "x")
    assert (*problem(answer), answer.headers["retry-after"]) == (503, "unavailable", "1")
    assert world.client().get("/v1/limits").status_code == 200


# -- of an API key ----------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [False, True], ids=["one id each", "one id for all"])
@pytest.mark.parametrize("by_batch", [False, True], ids=["alone", "batch"])
def test_so_many_leases(world: World, own: bool, by_batch: bool) -> None:
    """One id on several names counts for each."""
    client = world.client("acquire")

    def is_granted(number: int) -> bool:
        name, mine = f"{own}/{by_batch}/{number}", ID if own else f"{ID}{number}"
        if not by_batch:
            return acquire(client, name, id=mine).status_code == 200
        wish = {"op": "acquire", "key": f"lock:{name}", "id": mine, "owner": "x", "ttl": 60}
        return bool(batch(client, wish)[0]["is"] == "granted")

    assert [is_granted(number) for number in range(5)] == [True] * 3 + [False] * 2
    first = {"id": ID if own else f"{ID}0"}
    assert client.delete(lock(f"{own}/{by_batch}/0"), params=first).status_code == 200
    assert [is_granted(3), is_granted(4)] == [True, False]
    assert problem(acquire(client, "one more")) == (429, "limit")


def test_one_id_in_several_queues_counts_for_each(world: World) -> None:
    client, told = world.client("acquire"), []
    for number in range(3):
        acquired(world.client("acquire"), f"queued/{number}")
        wish = {"op": "acquire", "id": ID, "owner": "x", "ttl": 60, "queue": True}
        told += batch(client, wish | {"key": f"lock:queued/{number}"})
    assert [each["is"] for each in told] == ["queued", "queued", "failed"]


def test_so_many_waiters(world: World) -> None:
    acquired(world.client("acquire"), "crowded")
    key = world.key("acquire")
    account = quotas_of(world).of(key.split("_")[1])
    with ThreadPoolExecutor() as pool:
        waits = [
            pool.submit(acquire, world.client(key=key), "crowded", wait=50, **{"client-id": owner})
            for owner in "ab"
        ]
        wait_until(lambda: account.waiters == 2, "two in line")
        client = world.client(key=key)
        assert acquire(client, "crowded", wait=50).status_code == 429
        assert acquire(client, "crowded").status_code == 409, "trying is not waiting"
        world.revoke(key)
        assert [each.result(LONG).status_code for each in waits] == [401, 401]
    assert account.waiters == 0


def test_tombstones_are_few_and_short(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    store, found = store_of(world), list[float]()
    call, call_all = store.call, store.call_all

    async def seen(command: Command, *rest: Any) -> Any:
        found.extend([command.tombstone] if type(command) is Release else [])
        return await call(command, *rest)

    async def all_seen(commands: list[Command], *rest: Any) -> Any:
        found.extend(each.tombstone for each in commands if type(each) is Release)
        return await call_all(commands, *rest)

    monkeypatch.setattr(store, "call", seen)
    monkeypatch.setattr(store, "call_all", all_seen)
    client = world.client("acquire")

    def asked_for(*ids: str, name: str = "x", of: httpx2.Client = client) -> list[float]:
        release = {"op": "release", "key": f"lock:{name}", "tombstone": 80_000}
        found.clear()
        batch(of, *({**release, "id": each} for each in ids))
        return found

    most = quotas.MAX_TOMBSTONE
    assert asked_for(*["same"] * 5) == [most] * 5, "one id of one name is one tombstone"
    assert asked_for("1", "2", "3") == [most, most, 0.0]
    assert asked_for("same", name="y") == [0.0]
    client.delete(lock("z"), params={"id": "made-up"})
    assert found[1:] == [0.0]
    assert asked_for("same", of=world.client("acquire")) == [most], "another key has its own"


FORCE: dict[str, Any] = {"force": True, "reason": "a test", "now": True}
REVOKE: dict[str, Any] = {"op": "revoke", "lease": None, "reason": "a test", "now": True}


def test_a_forced_release_of_a_free_lock_is_not_audited(world: World) -> None:
    admin = world.client("admin")
    before = admin.get("/v1/audit").json()
    assert admin.delete(lock("x"), params=FORCE).status_code == 404
    (none,) = batch(admin, REVOKE | {"key": "lock:x"})
    assert (none["is"], none["count"]) == ("revoked", 0)
    assert admin.get("/v1/audit").json() == before


def test_a_key_forces_only_so_often(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_of(world), "_forced", audit._Rate(1, 10))
    admin = world.client("admin")
    for name in "xy":
        acquired(admin, name)
    assert admin.delete(lock("x"), params=FORCE).status_code == 200
    assert admin.delete(lock("y"), params=FORCE).status_code == 429
    assert batch(admin, REVOKE | {"key": "lock:y"})[0]["is"] == "failed"
    assert admin.get(lock("y")).status_code == 200


def test_an_administrator_of_a_directory_makes_only_so_many_keys_and_restrictions(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "KEYS_EACH", 3)
    monkeypatch.setattr(restrictions, "RULES_EACH", 2)
    theirs, admin = world.client("admin", prefixes=[b"shop/"]), world.client()

    def made(client: httpx2.Client) -> int:
        new = {"name": "a", "scopes": ["read"], "prefixes": ["shop/"]}
        answer = client.post("/v1/keys", json=new)
        if answer.status_code == 201:
            client.delete(f"/v1/keys/{answer.json()['id']}")
        return answer.status_code

    new = {"name": "a", "scopes": ["admin"], "prefixes": ["shop/"]}
    assert theirs.post("/v1/keys", json=new).status_code == 403, "it would have a count of its own"
    assert [made(theirs) for _ in range(3)] == [201, 201, 429]
    assert made(admin) == 201

    def restricted(client: httpx2.Client, directory: str) -> int:
        return client.put(f"/v1/restrict/locks/{b64(directory)}/", json={}).status_code

    assert [restricted(theirs, f"shop/{each}") for each in "abca"] == [200, 200, 429, 200]
    assert restricted(admin, "shop/c") == restricted(admin, "elsewhere") == 200
    before = admin.get("/v1/audit").json()
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: restricted(theirs, "shop/a"), range(8))) == {200}
    assert admin.get("/v1/audit").json() == before, "nothing has changed"


def test_a_large_page_is_split_by_bytes_and_nothing_is_left_out() -> None:
    with World.over() as world:
        client = world.client()
        for at in range(0, 1000, 100):
            wish = {"op": "acquire", "owner": "x", "ttl": 60, "note": "x" * 1000}
            wishes = [
                wish | {"key": f"lock:{number:04}", "id": f"id{number}"}
                for number in range(at, at + 100)
            ]
            assert {each["is"] for each in batch(client, *wishes)} == {"granted"}
        for path, items, following in (
            ("/v1/scan", "items", "cursor"),
            ("/v1/locks", "locks", "next"),
        ):
            pages, query = list[dict[str, Any]](), {"limit": "1000"}
            while not pages or pages[-1][following]:
                answer = client.get(path, params=query)
                assert len(answer.content) < 1 << 21
                pages.append(answer.json())
                query["cursor" if path == "/v1/scan" else "from"] = pages[-1][following] or ""
            seen = {each.get("key") or each["name"] for page in pages for each in page[items]}
            assert (len(seen), len(pages) > 1) == (1000, True)
