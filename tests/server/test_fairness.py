"""API keys take turns: a flood by one delays another by a few turns, and costs nobody a renewal."""

import asyncio
import socket
import time
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx2
import pytest

from dibs.model import Acquire, Command
from dibs.runtime.port import TimedReply
from dibs.server.limits import Limits
from dibs.server.quotas import FairQueue
from dibs.server.reach import LOOKS
from tests.server.inside import has_looked, keys_of, quotas_of, runtime_of
from tests.server.test_api_locks import acquire, acquired
from tests.server.test_limits import connected
from tests.server.world import LONG, World, b64
from tests.servers.waiting import wait_until

MANY = 20


@contextmanager
def served(**limits: Any) -> Generator[World]:
    world = World.over(limits=Limits(**limits))
    try:
        yield world
    finally:
        world.close()


class Gate:
    """Lets what goes to the store through one by one."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self._world = world
        self._room = asyncio.Semaphore(0)
        self.order: list[str] = []
        """Whose acquires went to the store."""
        self.reads = 0
        runtime = runtime_of(world)
        call, scan = runtime.call, runtime.scan
        wait_until(lambda: has_looked(world), "the server's own first look, which takes no room")

        async def slow_call(command: Command, wait: float | None = None) -> TimedReply:
            if type(command) is Acquire:
                self.order.append(command.owner)
                await self._room.acquire()
            return await call(command, wait)

        async def slow_scan(*given: Any) -> Any:
            self.reads += 1
            await self._room.acquire()
            return await scan(*given)

        monkeypatch.setattr(runtime, "call", slow_call)
        monkeypatch.setattr(runtime, "scan", slow_scan)

    def open(self, number: int) -> None:
        def release() -> None:
            for _ in range(number):
                self._room.release()

        self._world.do(release)


def total(world: World, key: str, sort: str) -> int:
    """What a key has under way and waiting."""
    share = getattr(quotas_of(world), sort)._shares.get(key.split("_")[1])
    return 0 if share is None else int(share.total)


def test_acquires_of_one_key_wait_for_its_own_and_another_has_the_next_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with served(acquires_at_once=1, acquires_per_key=MANY) as world, ThreadPoolExecutor(30) as pool:
        gate = Gate(world, monkeypatch)
        flood, other = world.key("acquire", name="flood"), world.key("acquire", name="other")
        clients = {key: world.client(key=key) for key in (flood, other)}
        asked: list[Future[httpx2.Response]] = []

        def ask(key: str, name: str) -> None:
            owner = {"client-id": key[-4:]}
            asked.append(pool.submit(lambda: acquire(clients[key], name, **owner)))

        for number in range(MANY):
            ask(flood, f"flood/{number}")
        wait_until(lambda: total(world, flood, "acquiring") == MANY, "the flood")
        refused = acquire(clients[flood], "too many")
        assert (refused.status_code, refused.json()["type"]) == (429, "/problems/limit")
        assert refused.headers["retry-after"] == "1"
        ask(other, "other")
        wait_until(lambda: total(world, other, "acquiring") == 1, "the other one")
        gate.open(MANY + 1)
        assert [each.result(LONG).status_code for each in asked] == [200] * (MANY + 1)
        assert len(gate.order) == MANY + 1
        assert gate.order.index(other[-4:]) <= 2
        assert not quotas_of(world).acquiring._shares


def acquires(name: str, number: int) -> dict[str, Any]:
    """A batch of them."""
    return {"commands": [
        {"op": "acquire", "key": b64(f"lock:{name}/{each}").removeprefix("base64:"),
         "id": f"{name}-{each}", "owner": "x", "ttl": 60}
        for each in range(number)
    ]}  # fmt: skip


def test_batches_of_one_key_have_a_quarter_of_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(acquires_at_once=8) as world, ThreadPoolExecutor(2) as pool:
        runtime, goes_on = runtime_of(world), asyncio.Event()
        call_all = runtime.call_all
        sent: list[int] = []

        async def slow(commands: Any, *given: Any) -> Any:
            sent.append(len(commands))
            await goes_on.wait()
            return await call_all(commands, *given)

        monkeypatch.setattr(runtime, "call_all", slow)
        key = world.key("acquire", name="flood")
        flood = [
            pool.submit(world.client(key=key).post, "/v1/batch", json=acquires(name, 8))
            for name in "ab"
        ]
        wait_until(lambda: total(world, key, "acquiring") == 16, "both batches are there")
        for number in range(3):
            assert acquire(world.client("acquire"), f"other/{number}").status_code == 200
        assert sent == [8]
        world.do(goes_on.set)
        for each in flood:
            replies = each.result(LONG).json()["replies"]
            assert [reply["is"] for reply in replies] == ["granted"] * 8
        wait_until(lambda: not quotas_of(world).acquiring._shares, "nothing is left")
        assert quotas_of(world).acquiring.busy == 0


async def test_work_that_fits_starts_when_larger_work_before_it_is_given_up() -> None:
    queue = FairQueue("bytes", 16)
    await queue.begin("a", 2)
    large = asyncio.create_task(queue.begin("a", 3))
    small = asyncio.create_task(queue.begin("a", 2))
    await queue.begin("b", 1)
    await asyncio.sleep(0)
    assert (large.done(), small.done(), queue.busy) == (False, False, 3)
    large.cancel()
    await small
    assert (large.cancelled(), queue.busy) == (True, 5)
    for key, cost in (("a", 2), ("b", 1), ("a", 2)):
        queue.end(key, cost)
    assert (queue.busy, queue._shares, queue._next) == (0, {}, {})


async def test_work_that_costs_nothing_has_a_turn() -> None:
    queue = FairQueue("bytes", 8, 2)
    async with queue.turn("a", 0):
        async with queue.turn("a", 0):
            pass
    assert not queue._shares


def test_a_forced_release_in_a_batch_waits_with_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(reads_at_once=1, reads_per_key=100) as world, ThreadPoolExecutor(1) as pool:
        client = world.client()
        held, gate = acquired(client, "x"), Gate(world, monkeypatch)
        page = pool.submit(client.get, "/v1/scan?limit=100")
        wait_until(lambda: bool(gate.reads), "it is under way")
        name = b64("lock:x").removeprefix("base64:")
        revoke = {"op": "revoke", "key": name, "lease": None, "reason": "why", "now": True}
        renew = {"op": "renew", "key": name, "id": held["id"], "ttl": 60}
        batch = client.post("/v1/batch", json={"commands": [revoke, renew]}).json()
        assert [each["is"] for each in batch["replies"]] == ["failed", "renewed"]
        assert client.post("/v1/batch", json={"commands": [revoke]}).status_code == 429
        gate.open(100)
        assert page.result(LONG).status_code == 200
        (reply,) = client.post("/v1/batch", json={"commands": [revoke]}).json()["replies"]
        assert reply["is"] == "revoked"


def test_renewals_and_releases_go_past_reads_and_acquires(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"acquires_at_once": 1, "reads_at_once": 1, "reads_per_key": 100}
    with served(**limits) as world, ThreadPoolExecutor(4) as pool:
        holder = world.client("acquire")
        held = acquired(holder, "precious")
        gate, key = Gate(world, monkeypatch), world.key("acquire", name="flood")
        flood = [
            pool.submit(world.client(key=key).get, "/v1/scan?limit=100"),
            pool.submit(acquire, world.client(key=key), "x"),
        ]
        wait_until(lambda: bool(gate.reads and gate.order), "both are under way")
        refused = world.client(key=key).get("/v1/locks")
        assert (refused.status_code, refused.json()["type"]) == (429, "/problems/limit")
        path, own = f"/v1/locks/{b64('precious')}", {"id": held["id"]}
        assert holder.patch(path, params=own).status_code == 200
        assert holder.delete(path, params=own).status_code == 200
        gate.open(100)
        assert [each.result(LONG).status_code for each in flood] == [200, 200]


def test_work_that_waits_for_its_turn_may_be_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(acquires_at_once=1) as world:
        gate, key = Gate(world, monkeypatch), world.key("acquire")
        host, port = world.url.removeprefix("http://").split(":")
        lines = [socket.create_connection((host, int(port)), LONG) for _ in range(3)]
        for number, line in enumerate(lines):
            line.sendall(
                f"POST /v1/locks/{b64(str(number))} HTTP/1.1\r\nHost: x\r\n"
                f"Authorization: Bearer {key}\r\n\r\n".encode()
            )
        wait_until(lambda: total(world, key, "acquiring") == 3, "all are there")
        for line in lines:
            line.close()
        gate.open(3)
        queue = quotas_of(world).acquiring
        wait_until(lambda: not queue._shares, "nothing is left")
        assert queue.busy == 0


def test_so_many_changes_of_keys_for_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(changes_per_key=1) as world, ThreadPoolExecutor(1) as pool:
        keys, goes_on = keys_of(world), asyncio.Event()
        create = keys.create

        async def slow(*given: Any, **more: Any) -> Any:
            await goes_on.wait()
            return await create(*given, **more)

        key = world.admin_key
        monkeypatch.setattr(keys, "create", slow)
        new = {"name": "x", "scopes": ["read"], "prefixes": []}
        first = pool.submit(world.client(key=key).post, "/v1/keys", json=new)
        wait_until(lambda: total(world, key, "changing") == 1, "it is under way")
        second = world.client(key=key).post("/v1/keys", json=new)
        assert (second.status_code, second.json()["type"]) == (429, "/problems/limit")
        world.do(goes_on.set)
        assert first.result(LONG).status_code == 201


def test_so_many_bytes_of_bodies_for_a_key() -> None:
    with served(body_bytes_per_key=70_000, max_body=65_536) as world:
        key = world.key("acquire")
        with connected(world) as line:
            head = f"POST /v1/batch HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
            line.sendall(head.encode() + b"Content-Length: 60000\r\n\r\n")
            wait_until(lambda: total(world, key, "small_bodies") == 60_000, "its body is awaited")
            padding = b'{"commands":[]}' + b" " * 20_000
            refused = world.client(key=key).post("/v1/batch", content=padding)
            assert (refused.status_code, refused.json()["type"]) == (429, "/problems/limit")
            other = world.client("acquire").post("/v1/batch", content=padding)
            assert other.status_code == 200


def test_slow_bodies_of_others_delay_no_renewal() -> None:
    with served(body_bytes_per_key=1 << 20) as world, ExitStack() as stack:
        for _ in range(8):
            head = f"POST /v1/batch HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {world.key('read')}\r\n"
            line = stack.enter_context(connected(world))
            line.sendall(head.encode() + b"Content-Length: 1048576\r\n\r\n")
        bodies = quotas_of(world).bodies
        wait_until(lambda: bodies.busy == 8 << 20, "their bodies are awaited")
        began = time.monotonic()
        assert world.client("acquire").post("/v1/batch", json={"commands": []}).status_code == 200
        assert time.monotonic() - began < 3


def test_waiting_takes_a_turn_among_acquires_until_it_waits() -> None:
    with served(acquires_per_key=1) as world, ThreadPoolExecutor() as pool:
        key, accounts = world.key("acquire"), quotas_of(world)
        key_id = key.split("_")[1]
        client, path = world.client(key=key), f"/v1/locks/{b64('x')}"
        world.client().post(path)
        world.do(lambda: accounts.acquiring.begin(key_id, 1))
        assert client.post(path, params={"wait": 9}).status_code == 429
        world.do(lambda: accounts.acquiring.end(key_id, 1))
        waits = pool.submit(client.post, path, params={"wait": 2})
        wait_until(lambda: accounts.of(key_id).waiters, "it waits")
        wait_until(lambda: not accounts.acquiring.busy, "its turn is over")
        assert waits.result(LONG).status_code == 409


def test_looks_of_streams_take_turns_among_reads() -> None:
    with served(reads_per_key=10) as world:
        key = world.key("read")
        world.do(lambda: quotas_of(world).reading.begin(key.split("_")[1], 10))
        with world.client(key=key).stream("GET", f"/v1/watch/locks/{b64('x')}") as stream:
            assert "unavailable" in stream.read().decode()


def pages(client: httpx2.Client, path: str, limit: int) -> Iterator[httpx2.Response]:
    query: dict[str, Any] = {"limit": limit}
    while True:
        yield (answer := client.get(path, params=query))
        following = answer.json().get("cursor") or answer.json().get("next")
        if not following:
            return
        query["cursor" if path == "/v1/scan" else "from"] = following


def test_many_directories_are_read_in_few_looks_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with served() as world:
        names, seen, before = [f"{n:02}/x" for n in range(40)], list[str](), 0
        for name in names:
            acquired(world.client(), name)
        client = world.client("read", prefixes=[name[:3].encode() for name in names])
        gate = Gate(world, monkeypatch)
        gate.open(1000)
        for page in pages(client, "/v1/scan", 100):
            assert gate.reads - before <= LOOKS
            before = gate.reads
            seen += [each["key"] for each in page.json()["items"]]
        assert seen == [b64(f"lock:{each}").removeprefix("base64:") for each in names]


@pytest.mark.parametrize("path", ["/v1/scan", "/v1/locks"])
def test_a_page_is_bounded_by_bytes_and_nothing_is_left_out(path: str) -> None:
    with served() as world:
        client = world.client()
        for at in range(0, 1000, 100):
            wishes = [
                {"op": "acquire", "key": b64(f"lock:{number:04}").removeprefix("base64:"),
                 "id": f"id{number}", "owner": "x", "ttl": 60, "note": "x" * 1000}
                for number in range(at, at + 100)
            ]  # fmt: skip
            told = client.post("/v1/batch", json={"commands": wishes}).json()["replies"]
            assert {each["is"] for each in told} == {"granted"}
        sizes, seen = list[int](), list[str]()
        for answer in pages(client, path, 1000):
            sizes.append(len(answer.content))
            page = answer.json()
            seen += [each.get("key") or each["name"] for each in page.get("items") or page["locks"]]
        assert len(seen) == len(set(seen)) == 1000
        assert max(sizes) < 1 << 21
        assert len(sizes) > 1
