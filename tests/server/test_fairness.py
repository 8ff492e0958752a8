"""API keys take turns: a flood by one delays another by a few turns, and costs nobody a renewal."""

import asyncio
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from dibs.model import Acquire, Command
from dibs.runtime.port import TimedReply
from dibs.server.api.reading import LOOKS
from dibs.server.limits import Limits
from dibs.server.quotas import FairQueue
from tests.server.inside import has_looked, quotas_of, runtime_of
from tests.server.world import LONG, World, acquire, acquired, b64, batch, lock, problem
from tests.servers.waiting import wait_until

MANY = 20


@contextmanager
def served(**limits: Any) -> Generator[World]:
    with World.over(limits=Limits(**limits)) as world:
        yield world


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


BODY = b'{"commands":[]}' + b" " * 20_000
NEW_KEY = b'{"name": "x", "scopes": ["read"], "prefixes": []}'


@pytest.mark.parametrize(
    ("queue", "limits", "method", "path", "body"),
    [
        ("acquiring", {"acquires_per_key": 1}, "POST", f"{lock('x')}?wait=0.1", b""),
        ("reading", {"reads_per_key": 10}, "GET", "/v1/scan", b""),
        ("reading", {"reads_per_key": 10}, "GET", f"/v1/watch/locks/{b64('x')}", b""),
        ("changing", {"changes_per_key": 1}, "POST", "/v1/keys", NEW_KEY),
        ("small_bodies", {"body_bytes_per_key": 70_000}, "POST", "/v1/batch", BODY),
    ],
)
def test_work_of_one_key_at_once_is_bounded(
    queue: str, limits: dict[str, int], method: str, path: str, body: bytes
) -> None:
    (most,) = limits.values()
    with served(**limits, max_body=65_536) as world:
        key, work = world.key("admin"), getattr(quotas_of(world), queue)
        world.do(lambda: work.begin(key.split("_")[1], most))
        with world.client(key=key).stream(method, path, content=body) as refused:
            told = refused.read().decode()
        assert refused.status_code == 429 or "unavailable" in told
        with world.client("admin").stream(method, path, content=body) as answer:
            assert answer.status_code in (200, 201)
        world.do(lambda: work.end(key.split("_")[1], most))
        with world.client(key=key).stream(method, path, content=body) as answer:
            assert answer.status_code in (200, 201, 409)


def test_waiting_in_line_takes_a_turn_only_to_join_it(pool: ThreadPoolExecutor) -> None:
    with served(acquires_per_key=1) as world:
        key, accounts = world.key("acquire"), quotas_of(world)
        acquired(world.client(), "x")
        waits = pool.submit(acquire, world.client(key=key), "x", wait=0.5)
        wait_until(lambda: accounts.of(key.split("_")[1]).waiters, "it waits")
        wait_until(lambda: not accounts.acquiring.busy, "its turn is over")
        assert waits.result(LONG).status_code == 409


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
