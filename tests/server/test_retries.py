"""A request that is lost, late or sent twice: nothing is granted that its caller does not know of."""

import asyncio
import socket
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

import httpx2
import pytest

from dibs.core.names import fingerprint
from dibs.errors import BackendUnavailable
from dibs.model import Acquire, Command, Gone, Notification
from dibs.runtime.port import CallResult, TimedReply
from tests.server.inside import quotas_of, runtime_of, store_of
from tests.server.world import (
    ID,
    LONG,
    World,
    acquire,
    acquired,
    batch,
    lock,
    problem,
    released,
    waiting,
)
from tests.servers.waiting import wait_until

pytestmark = pytest.mark.once


@pytest.fixture
def clients(servers: tuple[World, World]) -> list[httpx2.Client]:
    """One of each server, with the same key."""
    return [world.client(key=servers[0].admin_key) for world in servers]


# -- a retry at another server ----------------------------------------------------------------------


class Abandoned:
    """A request at one server whose caller waits for it no more, and has asked another one."""

    def __init__(self, world: World, name: str, **query: object) -> None:
        self._world = world
        self.line: socket.socket = world.connected()
        self.line.sendall(
            f"POST {lock(name)}?{urlencode(query)} HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: Bearer {world.admin_key}\r\n\r\n".encode()
        )
        wait_until(lambda: quotas_of(world).waiting, "it waits")

    def end(self, *, hang_up: bool = False) -> None:
        """Wait for its end."""
        if hang_up:
            self.line.close()
        wait_until(lambda: not quotas_of(self._world).waiting, "it waits no more")
        self.line.close()


def in_line(
    pool: ThreadPoolExecutor, client: httpx2.Client, world: World, name: str, **query: object
) -> Future[httpx2.Response]:
    """A request that waits at a server."""
    before = quotas_of(world).waiting
    found = pool.submit(acquire, client, name, wait=LONG, **query)
    wait_until(lambda: quotas_of(world).waiting > before, "it waits")
    client.get(lock(name))  # the store has heard of it by now
    return found


@pytest.mark.parametrize("store", ["sqlite", "redis", "postgres"])
def test_two_servers_of_one_service(
    request: pytest.FixtureRequest, tmp_path: Path, pool: ThreadPoolExecutor, store: str
) -> None:
    """Either will do, also to wait for what the other has granted."""
    url = f"sqlite:///{tmp_path / 'leases.db'}"
    if store != "sqlite":
        url = request.getfixturevalue(f"{store}_url")
    settings: dict[str, Any] = {"leases": url, "records": url, "secret": ("s" * 32,)}
    with World.over(**settings) as one, World.over(**settings) as two:
        assert one.server.first_key
        assert two.server.first_key is None
        token = one.client().post("/v1/token").text
        here, there = one.client(), two.client(key=token)
        held = acquired(here, "shared/x", note="mine")
        shown = there.get(lock("shared/x")).json()
        assert shown["id"] == fingerprint(held["id"])
        assert [each["id"] for each in there.get("/v1/locks").json()["locks"]] == [shown["id"]]
        assert there.patch(lock("shared/x"), params={"id": held["id"]}).status_code == 200
        waits = in_line(pool, there, two, "shared/x")
        released(here, "shared/x", held)
        assert waits.result(LONG).json()["sequencer"] > held["sequencer"]


@pytest.mark.parametrize("how", ["released", "hangs up", "waits in vain", "drains"])
def test_a_retry_elsewhere_owns_the_lease(
    tmp_path: Path, pool: ThreadPoolExecutor, how: str
) -> None:
    """Whatever becomes of the first request."""
    with World.over(tmp_path) as one, World.over(tmp_path) as two:
        here, there = one.client(), two.client(key=one.admin_key)
        query: dict[str, Any] = {"id": ID, "ttl": 30}
        held = acquired(here, "x")
        first = Abandoned(one, "x", **query, wait=1 if how == "waits in vain" else 30)
        again = in_line(pool, there, two, "x", **query)
        released(here, "x", held)
        granted = again.result(LONG).json()
        if how == "released":
            released(there, "x", granted)
            first.end()
            assert acquire(here, "x").status_code == 200, "nobody has it"
            return
        if how == "drains":
            one.do(one.server.shutdown.begin)
        first.end(hang_up=how == "hangs up")
        assert store_of(one).keeper.flush(LONG), "what the first server does about it is done"
        assert there.patch(lock("x"), params=query).status_code == 200
        assert there.get(lock("x")).json()["sequencer"] == granted["sequencer"]


def test_a_retry_keeps_its_place_in_line_and_can_give_it_up(
    servers: tuple[World, World], clients: list[httpx2.Client], pool: ThreadPoolExecutor
) -> None:
    name, client, mine = "retried/in line", clients[1], {"id": ID}
    held = acquired(client, name)
    assert acquire(client, name, **mine, wait=0.1).status_code == 409
    assert waiting(client, name) == 1
    assert client.delete(lock(name), params=mine).status_code == 200
    assert waiting(client, name) == 0
    mine = {"id": f"{ID}again"}
    assert acquire(client, name, **mine, wait=0.1).status_code == 409
    later = in_line(pool, client, servers[1], name)
    again = in_line(pool, client, servers[1], name, **mine)
    assert waiting(client, name) == 2
    released(client, name, held)
    granted = again.result(LONG).json()
    released(client, name, granted)
    assert granted["sequencer"] < later.result(LONG).json()["sequencer"]


def test_one_id_may_wait_for_two_locks(
    clients: list[httpx2.Client], pool: ThreadPoolExecutor
) -> None:
    """The grant of one is none of the other."""
    here, there = clients
    for name in ("two/x", "two/y"):
        held = acquired(there, name)
        waits = pool.submit(acquired, here, name, wait=LONG, id=f"{ID}two")
        wait_until(partial(waiting, there, name), "it is in line")
        released(there, name, held)
        (now,) = there.get(lock(name)).json()["holders"]
        assert waits.result(LONG)["sequencer"] == now["token"]


class Paused:
    """A server that receives no notification, and of whose acquires only the first leaves at once."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = world
        self._runtime = runtime_of(world)
        self._call, self._acquires, self._resumed = self._runtime.call, 0, asyncio.Event()
        monkeypatch.setattr(self._runtime, "call", self.call)
        monkeypatch.setattr(self._runtime.receiver, "deliver", self.lose)

    async def call(self, command: Command, wait: float | None = None) -> TimedReply:
        if type(command) is Acquire:
            self._acquires += 1
            if self._acquires > 1:
                await self._resumed.wait()
        return await self._call(command, wait)

    def lose(self, notification: Notification) -> None:
        pass

    def resume(self) -> None:
        self.world.do(self._resumed.set)


@pytest.mark.parametrize("brought", [False, True], ids=["the server's id", "the caller's id"])
def test_a_waiter_that_missed_its_turn_waits_again_or_is_refused(
    servers: tuple[World, World],
    clients: list[httpx2.Client],
    monkeypatch: pytest.MonkeyPatch,
    pool: ThreadPoolExecutor,
    brought: bool,
) -> None:
    """The caller's own id is over; others wait on under another."""
    name, (here, there) = f"missed/{brought}", clients
    held, paused = acquired(there, name), Paused(servers[0], monkeypatch)
    mine = {"id": f"{ID}missed"} if brought else {}
    missed = pool.submit(acquire, here, name, wait=LONG, ttl=3, **mine)
    wait_until(lambda: waiting(there, name) == 1, "it is in line")
    after = pool.submit(acquired, there, name, wait=LONG)
    wait_until(lambda: waiting(there, name) == 2, "another is behind it")
    released(there, name, held)
    next_one = after.result(LONG)  # the grant was not claimed
    paused.resume()
    if brought:
        assert problem(missed.result(LONG)) == (410, "lost")
        return
    wait_until(lambda: waiting(there, name) == 1, "it is in line again")
    released(there, name, next_one)
    granted = missed.result(LONG).json()
    assert granted["sequencer"] > next_one["sequencer"]
    released(there, name, granted)


# -- an acquire without an answer -------------------------------------------------------------------

type Fate = Literal["lost", "resent", "resent, slowly", "silent"]
"""Of an acquire: it fails in the end, or has an answer while a copy is under way, or has none yet."""


class Late:
    """The way from a server to its store, on which acquires are overtaken."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch, fate: Fate = "lost") -> None:
        self._world, self._fate = world, fate
        runtime = runtime_of(world)
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
        if self._fate == "silent":
            await asyncio.Event().wait()
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
    ("asked", "fate", "status", "given_up"),
    [
        ("alone", "lost", 503, "here"),
        ("alone", "lost", 503, "elsewhere"),
        ("alone", "lost", 503, "after a retry here"),
        ("alone", "lost", 503, "after a retry here, by batch"),
        ("alone", "lost", 503, "after a retry elsewhere"),
        ("alone", "resent", 200, "here"),
        ("in line", "resent", 200, "here"),
        ("without an id", "resent", 200, "here"),
        ("by batch", "lost", 200, "by batch"),
        ("by batch", "resent", 200, "by batch"),
        ("hung up", "silent", 0, "by batch"),
    ],
)
def test_what_was_given_up_is_never_granted(
    servers: tuple[World, World],
    clients: list[httpx2.Client],
    monkeypatch: pytest.MonkeyPatch,
    asked: str,
    fate: Fate,
    status: int,
    given_up: str,
) -> None:
    """Not by a copy either, at whichever server its caller gives it up."""
    name = f"{asked}/{fate}/{given_up}"
    resource, mine = {"key": f"lock:{name}"}, {"id": ID}
    late = Late(servers[0], monkeypatch, fate)
    match asked:
        case "by batch":
            wish = resource | mine | {"op": "acquire", "owner": "web-3", "ttl": 30}
            look, reply = batch(clients[0], resource | {"op": "inspect"}, wish)
            wanted = "failed" if fate == "lost" else "granted"
            assert (look["is"], reply["is"]) == ("status", wanted)
        case "hung up":
            Abandoned(servers[0], name, **mine, wait=30).end(hang_up=True)
        case _:
            query: dict[str, Any] = {} if asked == "without an id" else dict(mine)
            answer = acquire(
                clients[0], name, **query | ({"wait": 5} if asked == "in line" else {})
            )
            assert answer.status_code == status
            mine = {"id": answer.json().get("id", mine["id"])}
    client = clients["elsewhere" in given_up]
    if "after a retry" in given_up:
        if client is clients[0]:
            monkeypatch.undo()
        acquired(client, name, **mine)
    if "by batch" in given_up:
        batch(client, resource | mine | {"op": "release"})
    else:
        is_held = status == 200 or "after a retry" in given_up
        assert client.delete(lock(name), params=mine).status_code == (200 if is_held else 410)
    assert set(late.arrive()) == {Gone()}
    assert acquire(clients[1], name).status_code == 200


@pytest.mark.parametrize("query", [{}, {"wait": 0.1}], ids=["at once", "in line"])
def test_an_id_that_its_caller_never_learns_is_given_up_by_the_server(
    servers: tuple[World, World],
    clients: list[httpx2.Client],
    monkeypatch: pytest.MonkeyPatch,
    query: dict[str, float],
) -> None:
    late, name = Late(servers[0], monkeypatch), f"nobody's/{len(query)}"
    assert acquire(clients[0], name, **query).status_code == 503
    assert store_of(servers[0]).keeper.flush(LONG)
    assert set(late.arrive()) == {Gone()}


def test_what_is_granted_after_its_caller_hung_up_is_given_up_by_the_server(
    servers: tuple[World, World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller brought no id and did not wait in line."""
    world = servers[0]
    late = Late(world, monkeypatch, "resent, slowly")
    with world.connected() as line:
        head = f"POST {lock('left')} HTTP/1.1\r\nHost: x\r\n"
        line.sendall(f"{head}Authorization: Bearer {world.admin_key}\r\n\r\n".encode())
        wait_until(lambda: late.under_way, "it is under way")
    world.settle()  # then the server knows that the caller has left
    late.resume()
    wait_until(lambda: not quotas_of(world).acquiring.busy, "it has been answered")
    world.settle()
    assert store_of(world).keeper.flush(LONG)
    assert late.arrive() == [Gone()]


def test_only_an_id_that_another_server_may_have_seen_leaves_a_tombstone(
    clients: list[httpx2.Client],
) -> None:
    here, there = clients
    held = acquired(here, "plain")
    released(here, "plain", held)
    assert acquire(here, "plain", id=held["id"]).status_code == 200, "its own id, released here"
    held = acquired(here, "made elsewhere")
    released(there, "made elsewhere", held)
    assert acquire(here, "made elsewhere", id=held["id"]).status_code == 410
