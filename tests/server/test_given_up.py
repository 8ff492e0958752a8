"""A caller whose acquire had no answer gives its id up: nothing is granted under it afterwards."""

import asyncio
import socket
from collections.abc import Sequence
from secrets import token_urlsafe
from typing import Any, Literal

import httpx2
import pytest

from dibs.errors import BackendUnavailable
from dibs.model import Acquire, Command, Gone
from dibs.runtime.port import CallResult, TimedReply
from dibs.stores.http.names import encoded
from tests.server.inside import quotas_of, runtime_of, store_of
from tests.server.test_api_locks import acquire
from tests.server.test_api_retries import Forsaken
from tests.server.world import LONG, World, b64
from tests.servers.waiting import wait_until

pytestmark = pytest.mark.once


type Fate = Literal["lost", "resent", "resent, slowly", "silent"]
"""Of an acquire: it is given up in the end, or has an answer while a copy is under way, or has none yet."""


class Late:
    """The way from a server to its store, on which acquires are overtaken."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch, fate: Fate = "lost") -> None:
        self._world, self._fate = world, fate
        runtime = runtime_of(world)
        self._call = runtime.call
        self.under_way: list[Command] = []
        self._goes_on = asyncio.Event()
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
            await self._goes_on.wait()
        return TimedReply(answer.reply, answer.sent, resent=True)

    def go_on(self) -> None:
        """What is slow has its answer now."""
        self._world.do(self._goes_on.set)

    async def call_all(
        self, commands: Sequence[Command], wait: float | None = None
    ) -> Sequence[CallResult]:
        """Each on its own."""
        each = (self.call(command, wait) for command in commands)
        return await asyncio.gather(*each, return_exceptions=True)  # type: ignore[return-value]

    def arrive(self) -> list[object]:
        """What has been under way comes to the store."""

        async def come() -> list[object]:
            return [(await self._call(each)).reply for each in self.under_way]

        found: list[object] = self._world.do(come)
        return found


def batch(client: httpx2.Client, name: str, *ops: dict[str, Any]) -> list[Any]:
    """What came of these, which are about one lock and travel together."""
    key = encoded(b"lock:" + name.encode())
    answer = client.post("/v1/batch", json={"commands": [{"key": key} | op for op in ops]})
    assert answer.status_code == 200, answer.text
    replies: list[Any] = answer.json()["replies"]
    return replies


@pytest.mark.parametrize("at", [0, 1], ids=["same server", "another"])
def test_an_id_that_is_unknown_yet_is_never_granted(
    servers: tuple[World, World], monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    late, name, mine = Late(servers[0], monkeypatch), f"late/{at}", token_urlsafe(16)
    key = servers[0].admin_key
    assert acquire(servers[0].client(key=key), name, id=mine).status_code == 503
    given_up = servers[at].client(key=key).delete(f"/v1/locks/{b64(name)}", params={"id": mine})
    assert given_up.status_code == 410
    assert late.arrive() == [Gone()]
    assert acquire(servers[1].client(key=key), name).status_code == 200


@pytest.mark.parametrize("brought", [True, False], ids=["his own id", "the server's"])
@pytest.mark.parametrize("wait", [None, 5])
def test_a_copy_of_what_was_released_is_never_granted(
    servers: tuple[World, World],
    monkeypatch: pytest.MonkeyPatch,
    wait: float | None,
    brought: bool,
) -> None:
    late, name = Late(servers[0], monkeypatch, "resent"), f"copy/{wait}/{brought}"
    client = servers[0].client()
    query: dict[str, Any] = {"id": token_urlsafe(16)} if brought else {}
    held = acquire(client, name, **query | ({} if wait is None else {"wait": wait}))
    assert held.status_code == 200
    mine = held.json()["id"]
    assert client.delete(f"/v1/locks/{b64(name)}", params={"id": mine}).status_code == 200
    assert set(late.arrive()) == {Gone()}


@pytest.mark.parametrize(("fate", "told"), [("lost", "failed"), ("resent", "granted")])
def test_what_travelled_with_others_is_never_granted_late(
    servers: tuple[World, World], monkeypatch: pytest.MonkeyPatch, fate: Fate, told: str
) -> None:
    late, name, mine = Late(servers[0], monkeypatch, fate), f"batch/{fate}", token_urlsafe(16)
    client = servers[0].client()
    wanted = {"op": "acquire", "id": mine, "owner": "web-3", "ttl": 30}
    replies = batch(client, name, {"op": "inspect"}, wanted)
    assert [reply["is"] for reply in replies] == ["status", told]
    batch(client, name, {"op": "release", "id": mine})
    assert late.arrive() == [Gone()]


def test_what_its_caller_waits_for_no_more_is_never_granted_late(
    servers: tuple[World, World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """He has hung up before the store has answered, and gives his id up later."""
    late, name, mine = Late(servers[0], monkeypatch, "silent"), "hung up", token_urlsafe(16)
    Forsaken(servers[0], name, id=mine, wait=30).hang_up()
    batch(servers[0].client(), name, {"op": "release", "id": mine})
    assert late.arrive() == [Gone()]


@pytest.mark.parametrize("query", [{}, {"wait": 0.1}], ids=["at once", "in line"])
def test_what_nobody_can_give_up_is_given_up_by_the_server(
    servers: tuple[World, World], monkeypatch: pytest.MonkeyPatch, query: dict[str, float]
) -> None:
    """Whoever brings no id is told of none where there is no answer."""
    late, name = Late(servers[0], monkeypatch), f"nobody's/{len(query)}"
    assert acquire(servers[0].client(), name, **query).status_code == 503
    assert store_of(servers[0]).keeper.flush(LONG)
    assert set(late.arrive()) == {Gone()}


def test_what_came_for_one_who_has_left_is_never_granted_late(
    servers: tuple[World, World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """He brought no id and did not wait, and hung up before the answer."""
    world, name = servers[0], "left"
    late, host = Late(world, monkeypatch, "resent, slowly"), world.url.removeprefix("http://")
    with socket.create_connection((host.split(":")[0], int(host.split(":")[1])), LONG) as line:
        head = f"POST /v1/locks/{b64(name)} HTTP/1.1\r\nHost: x\r\n"
        line.sendall(f"{head}Authorization: Bearer {world.admin_key}\r\n\r\n".encode())
        wait_until(lambda: late.under_way, "it is under way")
    world.settle()  # then the server knows that he has left
    late.go_on()
    accounts = quotas_of(world)
    wait_until(lambda: not accounts.acquiring.busy, "it has been answered")
    world.do(lambda: asyncio.sleep(0))
    assert store_of(world).keeper.flush(LONG)
    assert late.arrive() == [Gone()]


def test_one_that_was_released_elsewhere_is_never_granted(
    servers: tuple[World, World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server that is asked to release it knows nothing of the copy."""
    late, name, mine = Late(servers[0], monkeypatch), "elsewhere", token_urlsafe(16)
    key = servers[0].admin_key
    assert acquire(servers[0].client(key=key), name, id=mine).status_code == 503
    other = servers[1].client(key=key)
    assert acquire(other, name, id=mine).status_code == 200
    assert other.delete(f"/v1/locks/{b64(name)}", params={"id": mine}).status_code == 200
    assert late.arrive() == [Gone()]
    assert acquire(other, name).status_code == 200


def test_one_that_the_service_made_leaves_nothing_behind(servers: tuple[World, World]) -> None:
    """Nobody else asked for a grant with it, so its release needs no tombstone."""
    client, name = servers[0].client(), "plain"
    made = acquire(client, name).json()["id"]
    assert client.delete(f"/v1/locks/{b64(name)}", params={"id": made}).status_code == 200
    assert acquire(client, name, id=made).status_code == 200, "it has no tombstone"


def test_another_server_cannot_know_who_made_an_id(servers: tuple[World, World]) -> None:
    name, path = "made elsewhere", f"/v1/locks/{b64('made elsewhere')}"
    key = servers[0].admin_key
    made = acquire(servers[0].client(key=key), name).json()["id"]
    assert servers[1].client(key=key).delete(path, params={"id": made}).status_code == 200
    assert acquire(servers[0].client(key=key), name, id=made).status_code == 410


@pytest.mark.parametrize("how", ["alone", "in a batch"])
def test_who_asked_again_with_success_has_it_buried_too(
    servers: tuple[World, World], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    late, name, mine = Late(servers[0], monkeypatch), f"again/{how}", token_urlsafe(16)
    client = servers[0].client()
    assert acquire(client, name, id=mine).status_code == 503
    monkeypatch.undo()
    assert acquire(client, name, id=mine).status_code == 200
    if how == "alone":
        assert client.delete(f"/v1/locks/{b64(name)}", params={"id": mine}).status_code == 200
    else:
        (told,) = batch(client, name, {"op": "release", "id": mine})
        assert told["is"] == "released"
    assert late.arrive() == [Gone()]
