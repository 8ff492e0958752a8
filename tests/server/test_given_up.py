"""A caller whose acquire had no answer gives its id up: nothing is granted under it afterwards."""

from secrets import token_urlsafe

import pytest

from leasehold.errors import BackendUnavailable
from leasehold.model import Acquire, Command, Gone
from leasehold.runtime.port import Answer
from leasehold.server.own_ids import is_own
from tests.server.test_api_locks import acquire
from tests.server.world import World, b64

pytestmark = pytest.mark.once


class Late:
    """The way from a server to its store, on which acquires are overtaken."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self._world = world
        runtime = world.server.service.runtime
        self._call = runtime.call
        self.under_way: list[Command] = []
        self.is_lost = True
        monkeypatch.setattr(runtime, "call", self.call)

    async def call(self, command: Command, patience: float | None = None) -> Answer:
        """An acquire is under way for longer than anybody waits; or it has an answer, and a copy is."""
        if type(command) is not Acquire:
            return await self._call(command, patience)
        self.under_way.append(command)
        if self.is_lost:
            raise BackendUnavailable("the store took too long")
        answer = await self._call(command, patience)
        return Answer(answer.reply, answer.sent, resent=True)

    def arrive(self) -> list[object]:
        """What has been under way comes to the store."""

        async def come() -> list[object]:
            return [(await self._call(each)).reply for each in self.under_way]

        found: list[object] = self._world.do(come)
        return found


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


@pytest.mark.parametrize("wait", [None, 5])
def test_a_copy_of_what_was_released_is_never_granted(
    servers: tuple[World, World], monkeypatch: pytest.MonkeyPatch, wait: float | None
) -> None:
    late, name, mine = Late(servers[0], monkeypatch), f"copy/{wait}", token_urlsafe(16)
    late.is_lost = False
    client = servers[0].client()
    query = {"id": mine} if wait is None else {"id": mine, "wait": wait}
    assert acquire(client, name, **query).status_code == 200
    assert client.delete(f"/v1/locks/{b64(name)}", params={"id": mine}).status_code == 200
    assert set(late.arrive()) == {Gone()}


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
    """Nobody else ever asked for a grant under it, and a tomb for each plain cycle would be dear."""
    client, name = servers[0].client(), "plain"
    made = acquire(client, name).json()["id"]
    assert is_own(made)
    assert client.delete(f"/v1/locks/{b64(name)}", params={"id": made}).status_code == 200
    assert acquire(client, name, id=made).status_code == 200, "it is not remembered"
    assert not is_own("o" * 22)


@pytest.mark.parametrize("how", ["alone", "in a batch"])
def test_who_asked_again_with_success_has_it_buried_too(
    servers: tuple[World, World], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    late, name, mine = Late(servers[0], monkeypatch), f"again/{how}", token_urlsafe(16)
    client = servers[0].client()
    assert acquire(client, name, id=mine).status_code == 503
    late.is_lost = False
    monkeypatch.undo()
    assert acquire(client, name, id=mine).status_code == 200
    if how == "alone":
        assert client.delete(f"/v1/locks/{b64(name)}", params={"id": mine}).status_code == 200
    else:
        key = b64(b"lock:" + name.encode()).removeprefix("base64:")
        release = {"op": "release", "key": key, "id": mine}
        told = client.post("/v1/batch", json={"commands": [release]}).json()["replies"]
        assert told[0]["is"] == "released"
    assert late.arrive() == [Gone()]
