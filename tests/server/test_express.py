"""Answers in one write, requests begun as they are read: what HTTP/1.1 asks for holds all the same."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from leasehold.server.answers import Answer, text
from leasehold.server.limits import Limits
from leasehold.server.protocol import BoundedProtocol, bounded
from tests.server.test_limits import connected, said
from tests.server.world import LONG, World

MANY = 800


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    world = World.over(limits=Limits(max_body=1000, request_time=3600))
    yield world
    world.close()


class Echo:
    """An application that says which path it was asked for, and remembers in which turn of the loop."""

    def __init__(self) -> None:
        self.turn = 0
        self.begun: list[int] = []
        self.headers: list[tuple[bytes, bytes]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.begun.append(self.turn)
        answer = text(scope["path"])
        answer.headers += self.headers
        await answer(scope, receive, send)

    async def count_turns(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.turn += 1


@asynccontextmanager
async def talking_to(app: Any) -> AsyncIterator[tuple[BoundedProtocol, socket.socket]]:
    """A connection to it, over a real socket, in this loop."""
    loop = asyncio.get_running_loop()
    config = uvicorn.Config(app, ws="none", lifespan="off", log_config=None, access_log=False)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    kind = bounded(Limits(), ())
    transport, protocol = await loop.connect_accepted_socket(
        lambda: kind(config, ServerState(), {}, loop), ours
    )
    try:
        yield protocol, theirs
    finally:
        transport.abort()
        await asyncio.sleep(0)
        theirs.close()


async def heard(line: socket.socket, number: int) -> bytes:
    """So many answers."""
    loop, found = asyncio.get_running_loop(), b""
    async with asyncio.timeout(LONG):
        while found.count(b"HTTP/1.1 ") < number or not found.endswith((b"\r\n", b"d")):
            found += await loop.sock_recv(line, 1 << 16)
    return found


def asks(*paths: str, method: str = "GET") -> bytes:
    return "".join(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n" for path in paths).encode()


def test_thousands_in_one_go_are_answered_in_their_order(world: World) -> None:
    """None of them is begun within another, or the stack would not be deep enough."""
    wanted = [("/livez", b"200"), ("/nothing", b"404")] * (MANY // 2)
    with connected(world) as line:
        line.sendall(asks(*(path for path, _ in wanted)))
        found = b""
        while found.count(b"HTTP/1.1 ") < MANY:
            found += line.recv(1 << 16) or pytest.fail(f"{found.count(b'HTTP/1.1 ')} answers")
    assert re.findall(rb"HTTP/1.1 (\d+) ", found) == [status for _, status in wanted]


async def test_of_all_that_comes_in_one_go_one_is_begun_in_a_turn() -> None:
    """Others have their turn between."""
    echo = Echo()
    turns = asyncio.create_task(echo.count_turns())
    async with talking_to(echo) as (_, line):
        line.send(asks(*(f"/{number}/d" for number in range(50))))
        found = await heard(line, 50)
    turns.cancel()
    assert re.findall(rb"/(\d+)/d", found) == [b"%d" % number for number in range(50)]
    assert len(set(echo.begun)) == 50, echo.begun


async def test_to_head_there_is_no_body() -> None:
    async with talking_to(Echo()) as (_, line):
        line.send(asks("/first/d", method="HEAD") + asks("/second/d"))
        found = await heard(line, 2)
    head, _, rest = found.partition(b"\r\n\r\n")
    assert b"content-length: 8" in head
    assert rest.startswith(b"HTTP/1.1 200 OK")
    assert rest.endswith(b"\r\n\r\n/second/d")


async def test_who_wants_no_more_is_told_and_hung_up_on() -> None:
    async with talking_to(Echo()) as (_, line):
        line.send(b"GET /last/d HTTP/1.0\r\nHost: x\r\n\r\n")
        found = await heard(line, 1)
        assert b"connection: close" in found
        assert await asyncio.get_running_loop().sock_recv(line, 1) == b""


def test_an_answer_may_end_the_connection(world: World) -> None:
    with connected(world) as line:
        head = f"POST /v1/batch HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {world.admin_key}\r\n"
        line.sendall(head.encode() + b"Content-Length: 5000\r\n\r\n")
        answer = said(line)
    assert answer.startswith(b"HTTP/1.1 413"), answer
    assert b"connection: close" in answer


@pytest.mark.parametrize("value", [b"a\r\nset-cookie: b", b"a\nb", b"a\x00b"])
async def test_no_value_of_a_header_becomes_two_headers(
    value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    echo = Echo()
    echo.headers = [(b"location", value)]
    async with talking_to(echo) as (_, line):
        line.send(asks("/d"))
        async with asyncio.timeout(LONG):
            assert await asyncio.get_running_loop().sock_recv(line, 1) == b"", "it hangs up"
    assert "Invalid HTTP header value" in caplog.text


async def test_a_body_that_comes_after_its_answer_is_dropped() -> None:
    async with talking_to(Echo()) as (protocol, line):
        line.send(b"POST /one/d HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n")
        assert (await heard(line, 1)).endswith(b"/one/d")
        line.send(b"abc" + asks("/two/d"))
        assert (await heard(line, 1)).endswith(b"/two/d")
        assert not protocol.cycle.body


async def test_nothing_is_written_to_who_has_left() -> None:
    left = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        await Answer(200, b"late", [(b"x", b"y")])(scope, receive, send)
        left.set()

    async with talking_to(app) as (protocol, line):
        line.send(asks("/"))
        while protocol.scope is None:
            await asyncio.sleep(0)
        line.close()
        async with asyncio.timeout(LONG):
            await left.wait()
        assert not protocol.cycle.response_started


def test_blank_lines_keep_no_connection_open() -> None:
    world = World.over(limits=Limits(idle_time=0.5))
    try:
        with connected(world) as line:
            line.sendall(asks("/livez"))
            line.settimeout(0.1)
            for _ in range(round(LONG / 0.1)):
                try:
                    if not line.recv(65536):
                        break
                    line.sendall(b"\r\n")
                except TimeoutError:
                    line.sendall(b"\r\n")
                except OSError:
                    break
            else:
                pytest.fail("it was kept open")
    finally:
        world.close()
