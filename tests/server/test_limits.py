"""Bounds: slow, stuck, greedy clients cost themselves something, and nobody else.

API keys take turns: a flood by one delays another by a few turns, and costs nobody a renewal.
"""

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from dibs.model import Acquire, Command, Gone, Granted, Release
from dibs.runtime.port import TimedReply
from dibs.server import audit, quotas
from dibs.server.auth import keys
from dibs.server.limits import Limits
from dibs.server.placement import restrictions
from dibs.server.quotas import FairQueue
from tests.server.inside import has_looked
from tests.server.world import ID, LONG, Client, World, b64, head, key, lock, problem, shared
from tests.servers.waiting import wait_until

LIMITS = Limits(
    max_body=65536, connections=40, waiters_per_key=2, leases_per_key=3, tombstones_per_key=3
)


world = shared(limits=LIMITS)
hasty = shared(limits=Limits(request_time=0.4, idle_time=1.0))


def test_a_body_is_bounded_in_size_and_in_time(world: World, hasty: World) -> None:
    pieces = iter([b" " * 1000] * 70)  # without a length
    for content in (b" " * 70_000, pieces):
        assert world.client().post("/v1/batch", content=content).status_code == 413
    with hasty.connected() as line:
        line.sendall(head("POST /v1/batch", hasty.admin_key, 5000))
        line.settimeout(0.2)
        while True:
            line.sendall(b" ")
            with suppress(TimeoutError):
                assert line.recv(65536).startswith(b"HTTP/1.1 408")
                break


def test_the_server_hangs_up_on_what_is_no_http_and_on_the_idle(hasty: World) -> None:
    start, end = b"GET /v1/locks HTTP/1.1\r\nHost: x\r\n", b"Connection: close\r\n\r\n"
    for sent in (
        b"GARBAGE\r\n\r\n",
        start.replace(b"GET", b"FOO") + end,
        start + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        start + b"Content-Length: many\r\n\r\n",
        start + b"Bad Header: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ):
        top, _, body = hasty.answer_to(sent).partition(b"\r\n\r\n")
        assert top.startswith(b"HTTP/1.1 400 "), sent
        assert b"content-type: text/plain" in top
        assert body.count(b"\n") == 0 < len(body)
    for sent in (
        b"POST /v1/batch HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: x\r\n" + end,
        start + b"Host: y\r\n" + end,
    ):
        assert re.match(rb"HTTP/1.1 40[0145] ", hasty.answer_to(sent)), sent
    idle = hasty.answer_to(b"GET /problems/held HTTP/1.1\r\nHost: x\r\n\r\n")
    assert idle.startswith(b"HTTP/1.1 200"), "and then it hung up"
    assert hasty.client("read").get("/v1/limits").status_code == 200


def test_so_many_connections_in_all(world: World) -> None:
    with ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(world.connected())
        world.settle()  # then all are there
        refused = world.answer_to(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert refused.startswith(b"HTTP/1.1 503")
    world.settle()  # then all have ended


@pytest.mark.parametrize("by_batch", [False, True], ids=["alone", "batch"])
def test_so_many_leases(world: World, by_batch: bool) -> None:
    """One id on several names counts for each."""
    client = world.client("acquire")

    def is_granted(number: int, client: Client = client) -> bool:
        name = f"{by_batch}/{number}"
        if not by_batch:
            return client.acquire(name, id=ID).status_code == 200
        return type(client.apply(Acquire(key(name), ID, "x", 60.0))[0]) is Granted

    assert [is_granted(number) for number in range(5)] == [True] * 3 + [False] * 2
    assert client.delete(lock(f"{by_batch}/0"), params={"id": ID}).status_code == 200
    assert [is_granted(3), is_granted(4)] == [True, False]
    assert is_granted(4, world.client("acquire")), "another key has its own"
    assert problem(client.acquire("one more")) == (429, "limit")


def test_so_many_waiters(world: World) -> None:
    world.client("acquire").acquired("crowded")
    key = world.key("acquire")
    account = world.server.quotas.of(key.split("_")[1])
    client = world.client(key=key)
    with ThreadPoolExecutor() as pool:
        waits = [pool.submit(client.acquire, "crowded", wait=50) for _ in range(2)]
        wait_until(lambda: account.waiters == 2, "two in line")
        assert client.acquire("crowded", wait=50).status_code == 429
        assert client.acquire("crowded").status_code == 409, "trying is not waiting"
        world.revoke(key)
        assert [each.result(LONG).status_code for each in waits] == [401, 401]
    assert account.waiters == 0


def test_tombstones_are_few(world: World) -> None:
    """They are counted for each name."""
    client, ids = world.client("acquire"), [f"{ID}{n}" for n in range(4)]
    for name in ("tombs", "other"):
        k = key(name)
        client.apply(*(Release(k, each, tombstone=80_000.0) for each in (*ids[:1] * 5, *ids)))
        for each, kept in zip(ids, [True] * 3 + [False], strict=True):
            (reply,) = client.apply(Acquire(k, each, "x", 60.0))
            assert (reply == Gone()) == (kept and name == "tombs"), each


def test_a_key_forces_only_so_often(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What frees nothing does not count, and is not written down."""
    monkeypatch.setattr(world.server.audit, "_forced", audit._Rate(1, 10))
    force: dict[str, Any] = {"force": True, "reason": "a test", "now": True}
    revoke: dict[str, Any] = {"op": "revoke", "lease": None, "reason": "a test", "now": True}
    admin = world.client("admin")
    before = admin.get("/v1/audit").json()
    assert admin.delete(lock("x"), params=force).status_code == 404
    (none,) = admin.batch(revoke | {"key": "lock:x"})
    assert (none["is"], none["count"]) == ("revoked", 0)
    assert admin.get("/v1/audit").json() == before
    for name in "xy":
        admin.acquired(name)
    assert admin.delete(lock("x"), params=force).status_code == 200
    assert admin.delete(lock("y"), params=force).status_code == 429
    assert admin.batch(revoke | {"key": "lock:y"})[0]["is"] == "failed"
    assert admin.get(lock("y")).status_code == 200


def test_so_many_keys_and_restrictions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "KEYS_EACH", 3)
    monkeypatch.setattr(restrictions, "RULES_EACH", 2)
    theirs, admin = world.client("admin", prefixes=[b"shop/"]), world.client()

    def made(client: Client) -> int:
        new = {"name": "a", "scopes": ["read"], "prefixes": ["shop/"]}
        answer = client.post("/v1/keys", json=new)
        if answer.status_code == 201:
            client.delete(f"/v1/keys/{answer.json()['id']}")
        return answer.status_code

    new = {"name": "a", "scopes": ["admin"], "prefixes": ["shop/"]}
    assert theirs.post("/v1/keys", json=new).status_code == 403, "it would have a count of its own"
    assert [made(theirs) for _ in range(3)] == [201, 201, 429]
    assert made(admin) == 201

    def restricted(client: Client, directory: str) -> int:
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
            wish = Acquire(b"", "", "x", 60.0, note="x" * 1000)
            numbers = range(at, at + 100)
            client.apply(*(replace(wish, key=b"lock:%04d" % n, id=f"id{n}") for n in numbers))
        for path, items, following, asked in (
            ("/v1/scan", "items", "cursor", "cursor"),
            ("/v1/locks", "locks", "next", "from"),
        ):
            seen, pages, query = set[str](), 0, {"limit": "1000"}
            while not pages or query[asked]:
                answer = client.get(path, params=query)
                assert len(answer.content) < 1 << 21
                page, pages = answer.json(), pages + 1
                seen |= {each.get("key") or each["name"] for each in page[items]}
                query[asked] = page[following] or ""
            assert (len(seen), pages > 1) == (1000, True)


# -- API keys take turns ----------------------------------------------------------------------------

MANY = 20


class Gate:
    """Keeps acquires and scans from the store until it opens."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self._world = world
        self._opened = asyncio.Event()
        self.order: list[str] = []
        """Owners of the acquires that reached the store."""
        self.reads = 0
        runtime = world.runtime
        call, scan = runtime.call, runtime.scan
        wait_until(lambda: has_looked(world), "the server's own first look, which takes no room")

        async def slow_call(command: Command, wait: float | None = None) -> TimedReply:
            if type(command) is Acquire:
                self.order.append(command.owner)
                await self._opened.wait()
            return await call(command, wait)

        async def slow_scan(*given: Any) -> Any:
            self.reads += 1
            await self._opened.wait()
            return await scan(*given)

        monkeypatch.setattr(runtime, "call", slow_call)
        monkeypatch.setattr(runtime, "scan", slow_scan)

    def open(self) -> None:
        self._world.do(self._opened.set)


def total(world: World, key: str, sort: str) -> int:
    """What a key has under way and waiting."""
    share = getattr(world.server.quotas, sort)._shares.get(key.split("_")[1])
    return 0 if share is None else int(share.total)


async def test_work_of_a_key_starts_in_its_order_unless_it_is_given_up() -> None:
    queue = FairQueue("bytes", 16)
    await queue.begin("a", 2)
    large = asyncio.create_task(queue.begin("a", 3))
    small = asyncio.create_task(queue.begin("a", 2))
    await asyncio.sleep(0)
    assert not small.done()
    large.cancel()
    await small
    assert queue.busy == 4


def test_api_keys_take_turns(monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor) -> None:
    with World.over(limits=Limits(acquires_at_once=1, acquires_per_key=MANY)) as world:
        gate = Gate(world, monkeypatch)
        flood, other = world.key("acquire", name="flood"), world.key("acquire", name="other")
        clients = {key: world.client(key=key) for key in (flood, other)}

        def ask(key: str, name: str) -> Any:
            return pool.submit(clients[key].acquire, name, **{"client-id": key[-4:]})

        asked = [ask(flood, f"flood/{number}") for number in range(MANY)]
        wait_until(lambda: total(world, flood, "acquiring") == MANY, "the flood")
        refused = clients[flood].acquire("too many")
        assert (*problem(refused), refused.headers["retry-after"]) == (429, "limit", "1")
        asked.append(ask(other, "other"))
        wait_until(lambda: total(world, other, "acquiring") == 1, "the other one")
        gate.open()
        assert [each.result(LONG).status_code for each in asked] == [200] * (MANY + 1)
        assert len(gate.order) == MANY + 1
        assert gate.order.index(other[-4:]) <= 2
        assert not world.server.quotas.acquiring._shares


def test_batches_leave_room(monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor) -> None:
    with World.over(limits=Limits(acquires_at_once=8)) as world:
        runtime, goes_on, sent = world.runtime, asyncio.Event(), list[int]()
        call_all = runtime.call_all

        async def slow(commands: Any, *given: Any) -> Any:
            sent.append(len(commands))
            await goes_on.wait()
            return await call_all(commands, *given)

        monkeypatch.setattr(runtime, "call_all", slow)
        greedy = world.key("acquire")
        flood = [
            pool.submit(
                world.client(key=greedy).apply,
                *(Acquire(key(f"{name}/{n}"), f"{name}-{n}", "x", 60.0) for n in range(8)),
            )
            for name in "ab"
        ]
        wait_until(lambda: total(world, greedy, "acquiring") == 16, "both batches are there")
        for number in range(3):
            world.client("acquire").acquired(f"other/{number}")
        assert sent == [8]
        world.do(goes_on.set)
        for each in flood:
            assert {type(reply) for reply in each.result(LONG)} == {Granted}
        wait_until(lambda: not world.server.quotas.acquiring._shares, "nothing is left")
        assert world.server.quotas.acquiring.busy == 0


def test_renewals_wait_for_nobody(
    monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor
) -> None:
    """Nor do releases: not for reads and acquires, nor for the rest of their batch.

    A forced release counts as a read.
    """
    monkeypatch.setattr(quotas, "TURN_TIMEOUT", 2 * LONG)
    limits = Limits(acquires_at_once=1, reads_at_once=1, reads_per_key=100)
    with World.over(limits=limits) as world:
        holder, other = world.client(), world.client("acquire")
        held, gate = holder.acquired("precious"), Gate(world, monkeypatch)
        under_way = [pool.submit(holder.get, "/v1/scan?limit=100"), pool.submit(other.acquire, "x")]
        wait_until(lambda: bool(gate.reads and gate.order), "both are under way")
        own, resource = {"id": held["id"]}, {"key": "lock:precious"}
        renew = resource | own | {"op": "renew", "ttl": 60}
        wish = {"op": "acquire", "key": "lock:y", "id": ID, "owner": "y", "ttl": 60}
        release = {"op": "release", "key": "lock:z", "id": ID}
        found = [each["is"] for each in holder.batch(release, wish, renew)]
        assert found == ["unknown", "failed", "renewed"]
        monkeypatch.setattr(quotas, "TURN_TIMEOUT", 0.1)
        assert problem(holder.get("/v1/locks")) == (429, "limit")
        for late in (other.acquire("y"), other.get("/v1/queues")):
            assert problem(late) == (503, "overloaded")
            assert int(late.headers["retry-after"]) >= 1
        revoke = resource | {"op": "revoke", "lease": None, "reason": "why", "now": True}
        assert [each["is"] for each in holder.batch(revoke, renew)] == ["failed", "renewed"]
        assert holder.patch(lock("precious"), params=own).status_code == 200
        assert holder.delete(lock("precious"), params=own).status_code == 200
        gate.open()
        assert [each.result(LONG).status_code for each in under_way] == [200, 200]
        assert [each["is"] for each in holder.batch(revoke)] == ["revoked"]


def test_slow_bodies_of_others_delay_no_renewal() -> None:
    with World.over(limits=Limits(body_bytes_per_key=1 << 20)) as world, ExitStack() as stack:
        for _ in range(8):
            line = stack.enter_context(world.connected())
            line.sendall(head("POST /v1/batch", world.key("read"), 1 << 20))
        bodies = world.server.quotas.bodies
        wait_until(lambda: bodies.busy == 8 << 20, "their bodies are awaited")
        client = world.client("acquire")
        client.timeout = 3.0
        assert client.batch() == []


def test_work_of_one_key_at_once_is_bounded() -> None:
    bodies = b'{"commands":[]}' + b" " * 20_000
    new_key = b'{"name": "x", "scopes": ["read"], "prefixes": []}'
    with World.over(
        limits=Limits(
            reads_per_key=10, changes_per_key=1, body_bytes_per_key=70_000, max_body=65_536
        )
    ) as world:
        other = world.client("admin")
        for queue, cost, method, path, body in (
            ("reading", 10, "GET", f"/v1/watch/locks/{b64('x')}", b""),
            ("changing", 1, "POST", "/v1/keys", new_key),
            ("small_bodies", 70_000, "POST", "/v1/batch", bodies),
        ):
            key, work = world.key("admin"), getattr(world.server.quotas, queue)
            own = world.client(key=key)
            world.do(partial(work.begin, key.split("_")[1], cost))
            with own.stream(method, path, content=body) as refused:
                told = refused.read().decode()
            assert refused.status_code == 429 or "unavailable" in told, path
            with other.stream(method, path, content=body) as answer:
                assert answer.status_code in (200, 201)
            world.do(partial(work.end, key.split("_")[1], cost))
            with own.stream(method, path, content=body) as answer:
                assert answer.status_code in (200, 201)
