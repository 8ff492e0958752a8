"""What ends an answer that takes long: each end is told of while it lasts, and none once it is over."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.requests import Request

from dibs.server.api.routing import Caller
from dibs.server.auth.policy import BrowserSession
from dibs.server.shutdown import End
from tests.server.inside import endings_of, keys_of, sessions_of, shutdown_of
from tests.server.world import LONG, World

pytestmark = pytest.mark.once


class Someone:
    """Somebody who has signed in, asks for what takes long, and sends nothing more; may hang up."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._hung_up = asyncio.Event()
        self.is_heard = False
        key = world.key("read")
        keys = keys_of(world)
        self.caller = Caller(Request({"type": "http", "headers": []}, self._receive))
        self.caller.principal = world.do(lambda: keys.admit(f"Bearer {key}"))
        expires_at = int(keys.now() + 3600)
        self.session = BrowserSession(self.caller.principal.key_id, expires_at, "x")
        self.caller.session = self.session

    async def _receive(self) -> dict[str, Any]:
        self.is_heard = True
        try:
            await self._hung_up.wait()
        finally:
            self.is_heard = False
        return {"type": "http.disconnect"}

    async def sign_out(self) -> None:
        await sessions_of(self._world).end(self.session)

    async def lose_key(self) -> None:
        await keys_of(self._world).revoke(self.caller.principal.key_id)

    async def hang_up(self) -> None:
        self._hung_up.set()

    async def see_drain(self) -> None:
        shutdown_of(self._world).begin()


@pytest.fixture
def world() -> Iterator[World]:
    world = World.over()
    yield world
    world.close()


ENDS = pytest.mark.parametrize(
    ("end", "why"),
    [
        (Someone.see_drain, "draining"),
        (Someone.lose_key, "key"),
        (Someone.sign_out, "session"),
        (Someone.hang_up, "gone"),
    ],
)


@ENDS
def test_it_is_told_while_it_lasts(world: World, end: Callable[..., Any], why: End) -> None:
    someone, told = Someone(world), asyncio.Queue[End]()

    async def last() -> End:
        with endings_of(world).watching(someone.caller, told.put_nowait):
            await end(someone)
            async with asyncio.timeout(LONG):
                return await told.get()

    assert world.do(last) == why
    assert told.empty(), "that it was left is no end"


@ENDS
def test_it_is_taken_back(world: World, end: Callable[..., Any], why: End) -> None:
    someone, told = Someone(world), list[End]()

    async def leave_early() -> None:
        with endings_of(world).watching(someone.caller, told.append):
            await asyncio.sleep(0)
            assert someone.is_heard
        await asyncio.sleep(0)
        assert not someone.is_heard, "what else it sends is for others to read"
        await end(someone)
        for _ in range(10):  # turns of the loop, in any of which it might still be told
            await asyncio.sleep(0)

    world.do(leave_early)
    assert told == [], f"{why}: nobody is there any more"


def test_whoever_has_no_session_has_no_end_of_it(world: World) -> None:
    someone, told = Someone(world), list[End]()
    someone.caller.session = None

    async def last() -> None:
        with endings_of(world).watching(someone.caller, told.append):
            await someone.sign_out()
            await someone.lose_key()

    world.do(last)
    assert told == ["key"]
