"""What ends an answer that takes long: each end is told of while it lasts, and none once it is over."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.requests import Request

from dibs.server.auth.policy import BrowserSession
from dibs.server.call import Call
from dibs.server.drain import End, ends_of
from dibs.server.routes.events import ROUTES
from tests.server.inside import service_of
from tests.server.world import LONG, World

pytestmark = pytest.mark.once

(ROUTE,) = ROUTES
"""One whose answer has no end of its own."""


class Caller:
    """Somebody who has signed in, asks for what takes long, and sends nothing more; may hang up."""

    def __init__(self, world: World) -> None:
        self.service = service = service_of(world)
        self._hung_up = asyncio.Event()
        self.is_heard = False
        key = world.key("read")
        principal = world.do(lambda: service.keys.admit(f"Bearer {key}"))
        request = Request({"type": "http", "headers": []}, self._receive)
        self.call = Call(service, request, ROUTE)
        self.call.principal = principal
        self.session = BrowserSession(principal.key_id, int(service.keys.now() + 3600), "x")
        self.call.session = self.session

    async def _receive(self) -> dict[str, Any]:
        self.is_heard = True
        try:
            await self._hung_up.wait()
        finally:
            self.is_heard = False
        return {"type": "http.disconnect"}

    async def sign_out(self) -> None:
        await self.service.sessions.end(self.session)

    async def lose_key(self) -> None:
        await self.service.keys.revoke(self.call.principal.key_id)

    async def hang_up(self) -> None:
        self._hung_up.set()

    async def see_drain(self) -> None:
        self.service.drain.begin()


@pytest.fixture
def world() -> Iterator[World]:
    world = World.over()
    yield world
    world.close()


ENDS = pytest.mark.parametrize(
    ("end", "why"),
    [
        (Caller.see_drain, "draining"),
        (Caller.lose_key, "key"),
        (Caller.sign_out, "session"),
        (Caller.hang_up, "gone"),
    ],
)


@ENDS
def test_it_is_told_while_it_lasts(world: World, end: Callable[..., Any], why: End) -> None:
    caller, told = Caller(world), asyncio.Queue[End]()

    async def last() -> End:
        with ends_of(caller.call, told.put_nowait):
            await end(caller)
            async with asyncio.timeout(LONG):
                return await told.get()

    assert world.do(last) == why
    assert told.empty(), "that it was left is no end"


@ENDS
def test_it_is_taken_back(world: World, end: Callable[..., Any], why: End) -> None:
    caller, told = Caller(world), list[End]()

    async def leave_early() -> None:
        with ends_of(caller.call, told.append):
            await asyncio.sleep(0)
            assert caller.is_heard
        await asyncio.sleep(0)
        assert not caller.is_heard, "what else it sends is for others to read"
        await end(caller)
        for _ in range(10):  # turns of the loop, in any of which it might still be told
            await asyncio.sleep(0)

    world.do(leave_early)
    assert told == [], f"{why}: nobody is there any more"


def test_whoever_has_no_session_has_no_end_of_it(world: World) -> None:
    caller, told = Caller(world), list[End]()
    caller.call.session = None

    async def last() -> None:
        with ends_of(caller.call, told.append):
            await caller.sign_out()
            await caller.lose_key()

    world.do(last)
    assert told == ["key"]
