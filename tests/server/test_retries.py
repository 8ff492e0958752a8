"""A request that is lost, late or sent twice: nothing is granted that its caller does not know of."""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal

import httpx2
import pytest

from dibs.errors import BackendUnavailable
from dibs.model import Acquire, Command, Gone, Release
from dibs.runtime.port import CallResult, TimedReply
from tests.server.world import ID, LONG, Client, Patch, Pool, World, head, lock, problem
from tests.servers.waiting import wait_until

pytestmark = pytest.mark.once

type Servers = tuple[World, World]
type Clients = list[Client]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Two servers of one service, over SQLite."""
    folder = tmp_path_factory.mktemp("two")
    with World.over(folder) as one, World.over(folder) as two:
        yield one, two


@pytest.fixture
def clients(servers: Servers) -> Clients:
    return [world.client(key=servers[0].admin_key) for world in servers]


def in_line(
    pool: Pool, client: Client, world: World, name: str, **query: object
) -> Future[httpx2.Response]:
    before = world.server.quotas.waiting
    found = pool.submit(client.acquire, name, wait=LONG, **query)
    wait_until(lambda: world.server.quotas.waiting > before, "it waits")
    client.get(lock(name))  # the store has heard of it by now
    return found


@pytest.mark.parametrize("how", ["released", "hangs up", "drains"])
def test_a_retry_elsewhere_owns_it(tmp_path: Path, pool: Pool, how: str) -> None:
    """Whatever becomes of the first request."""
    with World.over(tmp_path) as one, World.over(tmp_path) as two, one.connected() as first:
        here, there = one.client(), two.client(key=one.admin_key)
        query: dict[str, Any] = {"id": ID, "ttl": 30}
        held = here.acquired("x")
        first.sendall(head(f"POST {lock('x')}?id={ID}&ttl=30&wait=30", one.admin_key))
        wait_until(lambda: one.server.quotas.waiting, "it waits")
        again = in_line(pool, there, two, "x", **query)
        here.release("x", held)
        granted = again.result(LONG).json()
        match how:
            case "released":
                there.release("x", granted)
            case "drains":
                one.do(one.server.shutdown.begin)
            case _:
                first.close()
        wait_until(lambda: not one.server.quotas.waiting, "it waits no more")
        if how == "released":
            assert here.acquire("x").status_code == 200, "nobody has it"
            return
        assert one.store.keeper.flush(LONG), "what the first server does about it is done"
        assert there.patch(lock("x"), params=query).status_code == 200
        assert there.get(lock("x")).json()["sequencer"] == granted["sequencer"]


def test_a_retry_keeps_its_place_in_line_and_can_give_it_up(
    servers: Servers, clients: Clients, pool: Pool
) -> None:
    name, client, mine = "retried/in line", clients[1], {"id": ID}
    held = client.acquired(name)
    assert client.acquire(name, **mine, wait=0.1).status_code == 409
    assert client.waiting(name) == 1
    assert client.delete(lock(name), params=mine).status_code == 200
    assert client.waiting(name) == 0
    mine = {"id": f"{ID}again"}
    assert client.acquire(name, **mine, wait=0.1).status_code == 409
    later = in_line(pool, client, servers[1], name)
    again = in_line(pool, client, servers[1], name, **mine)
    assert client.waiting(name) == 2
    client.release(name, held)
    granted = again.result(LONG).json()
    client.release(name, granted)
    assert granted["sequencer"] < later.result(LONG).json()["sequencer"]


@pytest.mark.parametrize("brought", [False, True], ids=["the server's id", "the caller's id"])
def test_a_waiter_that_missed_its_turn_waits_again_or_is_refused(
    servers: Servers, clients: Clients, monkeypatch: Patch, pool: Pool, brought: bool
) -> None:
    """The caller's own id is over; others wait on under another."""
    name, (here, there), runtime = f"missed/{brought}", clients, servers[0].runtime
    call, acquires, resumed = runtime.call, list[Command](), asyncio.Event()

    async def paused(command: Command, wait: float | None = None) -> TimedReply:
        if type(command) is Acquire:
            acquires.append(command)
            if len(acquires) > 1:
                await resumed.wait()
        return await call(command, wait)

    held = there.acquired(name)
    monkeypatch.setattr(runtime, "call", paused)
    monkeypatch.setattr(runtime.receiver, "deliver", lambda _: None)
    mine = {"id": f"{ID}missed"} if brought else {}
    missed = pool.submit(here.acquire, name, wait=LONG, ttl=3, **mine)
    wait_until(lambda: there.waiting(name) == 1, "it is in line")
    after = pool.submit(there.acquired, name, wait=LONG)
    wait_until(lambda: there.waiting(name) == 2, "another is behind it")
    there.release(name, held)
    next_one = after.result(LONG)  # the grant was not claimed
    servers[0].do(resumed.set)
    if brought:
        assert problem(missed.result(LONG)) == (410, "lost")
        return
    wait_until(lambda: there.waiting(name) == 1, "it is in line again")
    there.release(name, next_one)
    granted = missed.result(LONG).json()
    assert granted["sequencer"] > next_one["sequencer"]
    there.release(name, granted)


type Fate = Literal["lost", "resent", "resent, slowly"]
"""Of an acquire: it fails in the end, or has an answer while a copy is under way."""


class Late:
    """The way from a server to its store, on which acquires are overtaken."""

    def __init__(self, world: World, monkeypatch: Patch, fate: Fate = "lost") -> None:
        self._world, self._fate = world, fate
        runtime = world.runtime
        self._call = runtime.call
        self.under_way: list[Command] = []
        self._resumed = asyncio.Event()
        monkeypatch.setattr(runtime, "call", self.call)
        monkeypatch.setattr(runtime, "call_all", self.call_all)

    async def call(self, command: Command, wait: float | None = None) -> TimedReply:
        """Each acquire is under way for longer than anybody waits, or a copy of it is."""
        if type(command) is not Acquire:
            return await self._call(command, wait)
        self.under_way.append(command)
        if self._fate == "lost":
            raise BackendUnavailable("the store took too long")
        answer = await self._call(command, wait)
        if self._fate == "resent, slowly":
            await self._resumed.wait()
        return TimedReply(answer.reply, answer.sent, resent=True)

    async def call_all(
        self, commands: Sequence[Command], wait: float | None = None
    ) -> Sequence[CallResult]:
        each = (self.call(command, wait) for command in commands)
        return await asyncio.gather(*each, return_exceptions=True)  # type: ignore[return-value]

    def resume(self) -> None:
        """Let what is slow have its answer now."""
        self._world.do(self._resumed.set)

    def arrive(self) -> list[object]:
        """What comes of the acquires that were under way, when they reach the store."""

        async def come() -> list[object]:
            return [(await self._call(each)).reply for each in self.under_way]

        found: list[object] = self._world.do(come)
        return found


@pytest.mark.parametrize(
    ("asked", "fate"),
    [
        ("alone", "lost"),
        ("and again elsewhere", "lost"),
        ("in line", "resent"),
        ("without an id", "resent"),
        ("by batch", "lost"),
        ("by batch", "resent"),
    ],
)
def test_what_was_given_up_is_never_granted(
    servers: Servers, clients: Clients, monkeypatch: Patch, asked: str, fate: Fate
) -> None:
    """Not by a copy either; a lone request may be given up at another server."""
    name, (here, there) = f"{asked}/{fate}", clients
    resource, own = {"key": f"lock:{name}"}, {"id": ID}
    late = Late(servers[0], monkeypatch, fate)
    if asked == "by batch":
        wish = resource | own | {"op": "acquire", "owner": "web-3", "ttl": 30}
        look, reply = here.batch(resource | {"op": "inspect"}, wish)
        wanted = "failed" if fate == "lost" else "granted"
        assert (look["is"], reply["is"]) == ("status", wanted)
        here.batch(resource | own | {"op": "release"})
    else:
        query = {} if asked == "without an id" else own
        wait = {"wait": 5} if asked == "in line" else {}
        answer = here.acquire(name, **query, **wait)
        assert answer.status_code == (503 if fate == "lost" else 200)
        own = {"id": answer.json().get("id", ID)}
        if "again" in asked:
            there.acquired(name, **own)
        is_held = fate == "resent" or "again" in asked
        assert there.delete(lock(name), params=own).status_code == (200 if is_held else 410)
    assert set(late.arrive()) == {Gone()}
    assert there.acquire(name).status_code == 200


def test_an_id_that_its_caller_never_learns_is_given_up_by_the_server(
    servers: Servers, clients: Clients, monkeypatch: Patch
) -> None:
    late = Late(servers[0], monkeypatch)
    for name, query in (("nobody's", {}), ("nobody's/in line", {"wait": 0.1})):
        assert clients[0].acquire(name, **query).status_code == 503
    assert servers[0].store.keeper.flush(LONG)
    assert set(late.arrive()) == {Gone()}


def test_what_is_granted_after_its_caller_hung_up_is_given_up_by_the_server(
    servers: Servers, monkeypatch: Patch
) -> None:
    """The caller brought no id and did not wait in line."""
    world = servers[0]
    late = Late(world, monkeypatch, "resent, slowly")
    with world.connected() as line:
        line.sendall(head(f"POST {lock('left')}", world.admin_key))
        wait_until(lambda: late.under_way, "it is under way")
    world.settle()  # then the server knows that the caller has left
    late.resume()
    wait_until(lambda: not world.server.quotas.acquiring.busy, "it has been answered")
    world.settle()
    assert world.store.keeper.flush(LONG)
    assert late.arrive() == [Gone()]


def test_a_release_that_was_sent_twice_is_no_loss(
    servers: Servers, clients: Clients, monkeypatch: Patch
) -> None:
    """Its first copy ended the lease, and the answer to that was lost."""
    runtime, name = servers[0].runtime, "released/twice"
    call = runtime.call

    async def twice(command: Command, wait: float | None = None) -> TimedReply:
        answer = await call(command, wait)
        if type(command) is not Release:
            return answer
        return TimedReply((await call(command, wait)).reply, answer.sent, resent=True)

    monkeypatch.setattr(runtime, "call", twice)
    held = clients[0].acquired(name)
    answer = clients[0].delete(lock(name), params={"id": held["id"]})
    assert problem(answer) == (503, "unavailable")
    assert clients[1].delete(lock(name), params={"id": held["id"]}).status_code == 410
