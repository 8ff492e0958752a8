"""API keys take turns: a flood by one delays another by a few turns, and costs nobody a renewal."""

import asyncio
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from dibs.model import Acquire, Command
from dibs.runtime.port import TimedReply
from dibs.server.api.reading import LOOKS
from dibs.server.limits import Limits
from dibs.server.quotas import FairQueue
from tests.server.inside import has_looked, keys_of, quotas_of, runtime_of
from tests.server.world import LONG, World, acquire, acquired, b64, batch, lock, problem
from tests.servers.waiting import wait_until

MANY = 20


@contextmanager
def served(**limits: Any) -> Generator[World]:
    with World.over(limits=Limits(**limits)) as world:
        yield world


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(30) as pool:
        yield pool


class Gate:
    """Lets acquires and scans through to the store one by one."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self._world = world
        self._room = asyncio.Semaphore(0)
        self.order: list[str] = []
        """Owners of the acquires that reached the store."""
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


def post(key: str, path: str, length: int = 0) -> bytes:
    """The head of a request."""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
    return (head + (f"Content-Length: {length}\r\n" if length else "") + "\r\n").encode()


async def test_smaller_work_starts_when_larger_work_before_it_is_given_up() -> None:
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
    async with queue.turn("a", 0), queue.turn("a", 0):
        pass  # work that costs nothing has its turn
    assert (queue.busy, queue._shares, queue._next) == (0, {}, {})


def test_acquires_of_one_key_wait_for_its_own_and_another_has_the_next_turn(
    monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor
) -> None:
    with served(acquires_at_once=1, acquires_per_key=MANY) as world:
        gate = Gate(world, monkeypatch)
        flood, other = world.key("acquire", name="flood"), world.key("acquire", name="other")
        clients = {key: world.client(key=key) for key in (flood, other)}

        def ask(key: str, name: str) -> Any:
            return pool.submit(acquire, clients[key], name, **{"client-id": key[-4:]})

        asked = [ask(flood, f"flood/{number}") for number in range(MANY)]
        wait_until(lambda: total(world, flood, "acquiring") == MANY, "the flood")
        refused = acquire(clients[flood], "too many")
        assert (*problem(refused), refused.headers["retry-after"]) == (429, "limit", "1")
        asked.append(ask(other, "other"))
        wait_until(lambda: total(world, other, "acquiring") == 1, "the other one")
        gate.open(MANY + 1)
        assert [each.result(LONG).status_code for each in asked] == [200] * (MANY + 1)
        assert len(gate.order) == MANY + 1
        assert gate.order.index(other[-4:]) <= 2
        assert not quotas_of(world).acquiring._shares


def test_batches_of_one_key_have_a_quarter_of_the_room(
    monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor
) -> None:
    with served(acquires_at_once=8) as world:
        runtime, goes_on, sent = runtime_of(world), asyncio.Event(), list[int]()
        call_all = runtime.call_all

        async def slow(commands: Any, *given: Any) -> Any:
            sent.append(len(commands))
            await goes_on.wait()
            return await call_all(commands, *given)

        monkeypatch.setattr(runtime, "call_all", slow)
        key, wish = world.key("acquire"), {"op": "acquire", "owner": "x", "ttl": 60}
        floods = [
            [wish | {"key": f"lock:{name}/{n}", "id": f"{name}-{n}"} for n in range(8)]
            for name in "ab"
        ]
        flood = [pool.submit(batch, world.client(key=key), *each) for each in floods]
        wait_until(lambda: total(world, key, "acquiring") == 16, "both batches are there")
        for number in range(3):
            acquired(world.client("acquire"), f"other/{number}")
        assert sent == [8]
        world.do(goes_on.set)
        for each in flood:
            assert [reply["is"] for reply in each.result(LONG)] == ["granted"] * 8
        wait_until(lambda: not quotas_of(world).acquiring._shares, "nothing is left")
        assert quotas_of(world).acquiring.busy == 0


def test_renewals_and_releases_go_past_reads_and_acquires(
    monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor
) -> None:
    """A forced release counts as a read."""
    limits = {"acquires_at_once": 1, "reads_at_once": 1, "reads_per_key": 100}
    with served(**limits) as world:
        holder, flood = world.client(), world.client("acquire")
        held, gate = acquired(holder, "precious"), Gate(world, monkeypatch)
        under_way = [
            pool.submit(holder.get, "/v1/scan?limit=100"),
            pool.submit(acquire, flood, "x"),
        ]
        wait_until(lambda: bool(gate.reads and gate.order), "both are under way")
        assert problem(holder.get("/v1/locks")) == (429, "limit")
        own, resource = {"id": held["id"]}, {"key": "lock:precious"}
        revoke = resource | {"op": "revoke", "lease": None, "reason": "why", "now": True}
        renew = resource | own | {"op": "renew", "ttl": 60}
        assert [each["is"] for each in batch(holder, revoke, renew)] == ["failed", "renewed"]
        assert holder.patch(lock("precious"), params=own).status_code == 200
        assert holder.delete(lock("precious"), params=own).status_code == 200
        gate.open(100)
        assert [each.result(LONG).status_code for each in under_way] == [200, 200]
        assert [each["is"] for each in batch(holder, revoke)] == ["revoked"]


def test_work_that_waits_for_its_turn_may_be_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(acquires_at_once=1) as world:
        gate, key = Gate(world, monkeypatch), world.key("acquire")
        with ExitStack() as stack:
            for number in range(3):
                line = stack.enter_context(world.connected())
                line.sendall(post(key, lock(str(number))))
            wait_until(lambda: total(world, key, "acquiring") == 3, "all are there")
        gate.open(3)
        queue = quotas_of(world).acquiring
        wait_until(lambda: not queue._shares, "nothing is left")
        assert queue.busy == 0


def test_so_many_changes_of_keys_for_a_key(
    monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor
) -> None:
    with served(changes_per_key=1) as world:
        keys, goes_on = keys_of(world), asyncio.Event()
        create = keys.create

        async def slow(*given: Any, **more: Any) -> Any:
            await goes_on.wait()
            return await create(*given, **more)

        client, new = world.client(), {"name": "x", "scopes": ["read"], "prefixes": []}
        monkeypatch.setattr(keys, "create", slow)
        first = pool.submit(client.post, "/v1/keys", json=new)
        wait_until(lambda: total(world, world.admin_key, "changing") == 1, "it is under way")
        assert problem(client.post("/v1/keys", json=new)) == (429, "limit")
        world.do(goes_on.set)
        assert first.result(LONG).status_code == 201


def test_so_many_bytes_of_bodies_for_a_key() -> None:
    padding = b'{"commands":[]}' + b" " * 20_000
    with served(body_bytes_per_key=70_000, max_body=65_536) as world:
        key = world.key("acquire")
        with world.connected() as line:
            line.sendall(post(key, "/v1/batch", 60_000))
            wait_until(lambda: total(world, key, "small_bodies") == 60_000, "its body is awaited")
            refused = world.client(key=key).post("/v1/batch", content=padding)
            assert problem(refused) == (429, "limit")
            other = world.client("acquire").post("/v1/batch", content=padding)
            assert other.status_code == 200


def test_slow_bodies_of_others_delay_no_renewal() -> None:
    with served(body_bytes_per_key=1 << 20) as world, ExitStack() as stack:
        for _ in range(8):
            line = stack.enter_context(world.connected())
            line.sendall(post(world.key("read"), "/v1/batch", 1 << 20))
        bodies = quotas_of(world).bodies
        wait_until(lambda: bodies.busy == 8 << 20, "their bodies are awaited")
        began = time.monotonic()
        assert batch(world.client("acquire")) == []
        assert time.monotonic() - began < 3


def test_whoever_waits_in_line_needs_a_turn_only_to_join_it(pool: ThreadPoolExecutor) -> None:
    with served(acquires_per_key=1) as world:
        key, accounts = world.key("acquire"), quotas_of(world)
        key_id, client = key.split("_")[1], world.client(key=key)
        acquired(world.client(), "x")
        world.do(lambda: accounts.acquiring.begin(key_id, 1))
        assert acquire(client, "x", wait=9).status_code == 429
        world.do(lambda: accounts.acquiring.end(key_id, 1))
        waits = pool.submit(acquire, client, "x", wait=0.5)
        wait_until(lambda: accounts.of(key_id).waiters, "it waits")
        wait_until(lambda: not accounts.acquiring.busy, "its turn is over")
        assert waits.result(LONG).status_code == 409


def test_looks_of_streams_take_turns_among_reads() -> None:
    with served(reads_per_key=10) as world:
        key = world.key("read")
        world.do(lambda: quotas_of(world).reading.begin(key.split("_")[1], 10))
        with world.client(key=key).stream("GET", f"/v1/watch/locks/{b64('x')}") as stream:
            assert "unavailable" in stream.read().decode()


def test_many_directories_are_read_in_few_looks_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with served() as world:
        names, seen, query = [f"{n:02}/x" for n in range(40)], list[str](), {"limit": "100"}
        for name in names:
            acquired(world.client(), name)
        client = world.client("read", prefixes=[name[:3].encode() for name in names])
        gate = Gate(world, monkeypatch)
        gate.open(1000)
        while len(seen) < 40:
            before = gate.reads
            page = client.get("/v1/scan", params=query).json()
            assert gate.reads - before <= LOOKS
            seen += [each["key"] for each in page["items"]]
            query["cursor"] = page["cursor"] or ""
        assert seen == [b64(f"lock:{each}").removeprefix("base64:") for each in names]
