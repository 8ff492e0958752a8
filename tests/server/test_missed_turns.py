"""A server that stands still while the turn of somebody who waits there comes and passes."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from secrets import token_urlsafe

import pytest

from dibs.model import Acquire, Command, Notification
from dibs.runtime.port import TimedReply
from tests.server.inside import runtime_of
from tests.server.test_api_locks import acquire, acquired, waiting
from tests.server.world import LONG, World, b64
from tests.servers.waiting import wait_until

pytestmark = pytest.mark.once


class Still:
    """A server that hears of no push, and of whose acquires only the first leaves before `goes_on`."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = world
        self._runtime = runtime_of(world)
        self._call, self._acquires, self._moves = self._runtime.call, 0, asyncio.Event()
        monkeypatch.setattr(self._runtime, "call", self.call)
        monkeypatch.setattr(self._runtime.receiver, "deliver", self.lose)

    async def call(self, command: Command, wait: float | None = None) -> TimedReply:
        if type(command) is Acquire:
            self._acquires += 1
            if self._acquires > 1:
                await self._moves.wait()
        return await self._call(command, wait)

    def lose(self, push: Notification) -> None:
        pass

    def goes_on(self) -> None:
        self.world.do(self._moves.set)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.mark.parametrize("brought", [False, True], ids=["the server's id", "an id of his own"])
def test_who_missed_his_turn_waits_again_or_is_told(
    servers: tuple[World, World],
    monkeypatch: pytest.MonkeyPatch,
    pool: ThreadPoolExecutor,
    brought: bool,
) -> None:
    """An id that the caller has brought is over; the others wait on under another."""
    name, key = f"missed/{brought}", servers[0].admin_key
    first, second, third = (servers[number].client(key=key) for number in (0, 1, 1))
    holder = acquired(second, name)
    still = Still(servers[0], monkeypatch)
    mine = {"id": token_urlsafe(16)} if brought else {}
    missed = pool.submit(acquire, first, name, wait=LONG, ttl=5, **mine)
    wait_until(lambda: waiting(second, name) == 1, "he is in line")
    after = pool.submit(acquire, third, name, wait=LONG)
    wait_until(lambda: waiting(second, name) == 2, "another is behind him")
    second.delete(f"/v1/locks/{b64(name)}", params={"id": holder["id"]})
    next_one = after.result(LONG)
    assert next_one.status_code == 200, "his grant was not claimed, so it is the next one's"
    still.goes_on()
    if brought:
        told = missed.result(LONG)
        assert (told.status_code, told.json()["type"]) == (410, "/problems/lost")
        return
    wait_until(lambda: waiting(second, name) == 1, "he is in line again")
    path = f"/v1/locks/{b64(name)}"
    assert second.delete(path, params={"id": next_one.json()["id"]}).status_code == 200
    granted = missed.result(LONG).json()
    assert granted["sequencer"] > next_one.json()["sequencer"]
    assert second.delete(path, params={"id": granted["id"]}).status_code == 200


def test_one_id_may_wait_for_two_locks(
    servers: tuple[World, World], pool: ThreadPoolExecutor
) -> None:
    """The grant of one is none of the other."""
    key, mine = servers[0].admin_key, token_urlsafe(16)
    clients = [servers[number].client(key=key) for number in (0, 0, 1)]
    other, names = clients.pop(), ("two/x", "two/y")
    holders = [acquired(other, name) for name in names]
    waits = []
    for client, name in zip(clients, names, strict=True):
        waits.append(pool.submit(acquire, client, name, wait=LONG, id=mine))
        wait_until(partial(waiting, other, name), "it is in line")
    for wait, name, holder in zip(waits, names, holders, strict=True):
        other.delete(f"/v1/locks/{b64(name)}", params={"id": holder["id"]})
        granted = wait.result(LONG)
        assert granted.status_code == 200
        (now,) = other.get(f"/v1/locks/{b64(name)}").json()["holders"]
        assert granted.json()["sequencer"] == now["token"]
