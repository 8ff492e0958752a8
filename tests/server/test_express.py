"""Answers in one write, requests begun as they are read: what HTTP/1.1 asks for holds all the same."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from dibs.server.answers import Answer, text
from dibs.server.express import FEW
from dibs.server.express import MANY as MOST
from dibs.server.limits import Limits
from dibs.server.protocol import OFTEN, SWEEP, BoundedProtocol, bounded, sweep_every
from tests.server.test_limits import connected, said
from tests.server.world import LONG, World

MANY = 800

USUAL = Limits()


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
async def talking_to(
    app: Any, limits: Limits = USUAL
) -> AsyncIterator[tuple[BoundedProtocol, socket.socket]]:
    """A connection to it, over a real socket, in this loop."""
    loop = asyncio.get_running_loop()
    config = uvicorn.Config(app, ws="none", lifespan="off", log_config=None, access_log=False)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    kind = bounded(limits, ())
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


async def wait_for(ready: Callable[[], bool]) -> None:
    """Let the loop turn until it is so."""
    async with asyncio.timeout(LONG):
        while not ready():
            await asyncio.sleep(0)


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
        line.sendall(asks("/livez"))
        assert line.recv(1 << 16).startswith(b"HTTP/1.1 200"), "and what comes after them"
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


async def test_the_first_is_begun_as_it_is_read_and_answered_in_one_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    echo, written = Echo(), list[bytes]()
    async with talking_to(echo) as (protocol, line):
        monkeypatch.setattr(protocol.transport, "write", written.append)
        line.send(asks("/one/d"))
        read = protocol.data_received
        begun: list[int] = []

        def reading(data: bytes) -> None:
            read(data)
            begun.extend(echo.begun)

        monkeypatch.setattr(protocol, "data_received", reading)
        await wait_for(lambda: bool(begun))
    assert begun == echo.begun
    assert len(written) == 1
    assert written[0].startswith(b"HTTP/1.1 200 OK\r\n")
    assert written[0].endswith(b"/one/d")


async def test_what_takes_its_time_is_kept_until_it_is_done() -> None:
    goes_on = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await goes_on.wait()
        await text("/d")(scope, receive, send)

    async with talking_to(app) as (protocol, line):
        line.send(asks("/"))
        await wait_for(lambda: bool(protocol.tasks))
        goes_on.set()
        await heard(line, 1)
        await asyncio.sleep(0)
        assert not protocol.tasks


async def test_to_head_there_is_no_body() -> None:
    async with talking_to(Echo()) as (_, line):
        line.send(asks("/first/d", method="HEAD") + asks("/second/d"))
        found = await heard(line, 2)
    head, _, rest = found.partition(b"\r\n\r\n")
    assert b"content-length: 8" in head
    assert rest.startswith(b"HTTP/1.1 200 OK")
    assert rest.endswith(b"\r\n\r\n/second/d")


@pytest.mark.parametrize("wish", [b"1.0\r\nHost: x", b"1.1\r\nHost: x\r\nConnection: close"])
async def test_who_wants_no_more_is_told_and_hung_up_on(wish: bytes) -> None:
    async with talking_to(Echo()) as (_, line):
        line.send(b"GET /last/d HTTP/%b\r\n\r\n" % wish)
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


async def test_behind_an_answer_that_ends_the_connection_nothing_is_begun() -> None:
    echo = Echo()
    echo.headers = [(b"connection", b"close")]
    async with talking_to(echo) as (_, line):
        line.send(asks("/1/d") + asks("/2/d", "/3/d", method="DELETE"))
        await heard(line, 1)
        await asyncio.sleep(0.05)  # for what must not happen
    assert len(echo.begun) == 1


def test_every_answer_says_whose_it_is(world: World) -> None:
    """Also those that are given before there is a request: else a client takes them for a proxy's."""
    crowded = World.over(limits=Limits(connections=0))
    try:
        with connected(crowded) as line:
            refused = said(line)
    finally:
        crowded.close()
    assert refused.startswith(b"HTTP/1.1 503")
    with connected(world) as line:
        line.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        slow = said(line)
    with connected(world) as line:
        line.sendall(asks("/livez"))
        fast = line.recv(1 << 16)
    for answer in (refused, slow, fast):
        assert b"\r\ndibs-server: " in answer, answer
        assert b"\r\nx-content-type-options: nosniff\r\n" in answer


async def test_after_an_answer_nobody_is_told_to_go_on_with_the_body() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await text("/d")(scope, receive, send)
        await receive()

    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n"
    async with talking_to(app) as (_, line):
        line.send(head + b"x" + asks("/2"))
        found = await heard(line, 2)
    assert re.findall(rb"HTTP/1.1 (\d+)", found) == [b"200", b"200"]


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


@pytest.mark.parametrize("how", ["as a whole", "in pieces", "begun during the one before"])
async def test_no_connection_is_idle_while_an_answer_is_under_way(how: str) -> None:
    """However long it takes, and however its request came."""
    goes_on, asked = asyncio.Event(), asks("/slow")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/slow" or how == "begun during the one before":
            await goes_on.wait()
        await text(f"{scope['path']}/d")(scope, receive, send)

    limits = Limits(idle_time=10.0)
    now = asyncio.get_running_loop().time

    async with talking_to(app, limits) as (protocol, line):
        if how == "begun during the one before":
            line.send(asks("/first") + asked[:9])
            await wait_for(lambda: bool(protocol.tasks))
            goes_on.set()
            await heard(line, 1)
            goes_on.clear()
        else:
            line.send(asks("/first"))
            await heard(line, 1)
            if how == "in pieces":
                line.send(asked[:9])
        protocol.sweep(now() + 9.0)
        line.send(asked if how == "as a whole" else asked[9:])
        await wait_for(lambda: not protocol.is_at_rest and bool(protocol.tasks))
        for later in (0.0, 11.0, 100.0):
            protocol.sweep(now() + later)
        goes_on.set()
        assert (await heard(line, 1)).endswith(b"/slow/d")
        protocol.sweep(now() + 9.0)
        assert not protocol.transport.is_closing()
        protocol.sweep(now() + 11.0)
        assert protocol.transport.is_closing()


def test_who_gives_no_time_costs_no_core() -> None:
    assert sweep_every(Limits(idle_time=0)) == sweep_every(Limits(request_time=0)) == OFTEN
    assert sweep_every(Limits()) == SWEEP


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


# -- many requests on one connection ----------------------------------------------------------------


class Gate:
    """An application that answers so many requests as it was told, and remembers which have begun."""

    def __init__(self) -> None:
        self.room = asyncio.Semaphore(0)
        self.begun: list[str] = []
        self.left = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.begun.append(scope["path"])
        gone = asyncio.ensure_future(self._gone(receive))
        await self.room.acquire()
        gone.cancel()
        await text(f"{scope['path']}/d")(scope, receive, send)

    async def _gone(self, receive: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left.set()


async def turns(number: int = 20) -> None:
    """For what must not happen."""
    for _ in range(number):
        await asyncio.sleep(0)


async def test_no_more_is_read_than_a_few_requests_ahead() -> None:
    gate = Gate()
    async with talking_to(gate) as (protocol, line):
        for answered in range(3):
            line.send(asks(*("/" for _ in range(2 * FEW))))
            await wait_for(lambda: bool(protocol.pipeline))
            await turns()
            assert len(protocol.pipeline) == 2 * FEW - 1 - answered, "the rest lies in the socket"
            gate.room.release()
            await heard(line, 1)
        for _ in range(6 * FEW - 3):
            gate.room.release()
        await heard(line, 6 * FEW - 3)
        assert len(gate.begun) == 6 * FEW


async def test_who_sends_very_many_at_once_is_hung_up_on() -> None:
    gate = Gate()
    async with talking_to(gate) as (protocol, line):
        line.send(asks(*("/" for _ in range(MOST + 2))))
        await wait_for(lambda: protocol.is_lost)
        async with asyncio.timeout(LONG):
            await gate.left.wait()
    assert len(gate.begun) == 1


async def test_a_hang_up_is_noticed_behind_which_something_lies() -> None:
    """Or its place in line would be kept, and its stream be told more and more."""
    gate = Gate()
    async with talking_to(gate) as (_, line):
        line.send(asks("/1", "/2", "/3"))
        await wait_for(lambda: bool(gate.begun))
        line.close()
        async with asyncio.timeout(LONG):
            await gate.left.wait()
    assert gate.begun == ["/1"]


async def test_what_is_no_http_is_not_answered_in_place_of_what_came_before() -> None:
    gate = Gate()
    async with talking_to(gate) as (_, line):
        line.send(asks("/1") + b"GARBAGE\r\n\r\n")
        async with asyncio.timeout(LONG):
            assert await asyncio.get_running_loop().sock_recv(line, 1) == b""


async def test_who_takes_nothing_of_a_last_answer_is_cut_off() -> None:
    """Also if so little is left of it that writing was never paused."""
    now = asyncio.get_running_loop().time

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await text("x" * 4_000_000)(scope, receive, send)

    async with talking_to(app) as (protocol, line):
        protocol.transport.set_write_buffer_limits(high=8_000_000)
        line.send(asks("/"))
        await wait_for(lambda: protocol.transport.get_write_buffer_size() > 0)
        protocol.sweep(now() + 80.0)  # it is idle, so it is to be closed
        for later in (80.0, 90.0):
            protocol.sweep(now() + later)
        await turns()
        assert not protocol.is_lost
        protocol.sweep(now() + 96.0)
        await wait_for(lambda: protocol.is_lost)


UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"


@pytest.mark.parametrize("pieces", [1, 2])
async def test_a_body_behind_an_upgrade_is_no_request(pieces: int) -> None:
    echo, inner = Echo(), asks("/inner/d", method="POST")
    async with talking_to(echo) as (_, line):
        head = b"POST /outer/d HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n" % len(inner)
        outer = head + UPGRADE + b"\r\n"
        line.send(outer + inner if pieces == 1 else outer)
        if pieces == 2:
            await turns()
            with suppress(OSError):  # it has hung up
                line.send(inner)
        found = b""
        async with asyncio.timeout(LONG):
            while piece := await asyncio.get_running_loop().sock_recv(line, 1 << 16):
                found += piece
    assert found.startswith(b"HTTP/1.1 400")
    assert b"ask without Upgrade" in found
    assert len(re.findall(rb"HTTP/1.1 \d", found)) == 1
    assert echo.begun == []


@pytest.mark.parametrize("answered", ["at once", "later"])
async def test_behind_an_upgrade_without_a_body_nothing_is_read(answered: str) -> None:
    """It is answered as if it had not asked for one, and is the last."""
    gate = Gate()
    if answered == "at once":
        gate.room.release()
    async with talking_to(gate) as (_, line):
        line.send(b"GET /1 HTTP/1.1\r\nHost: x\r\n" + UPGRADE + b"\r\n" + asks("/2"))
        await wait_for(lambda: bool(gate.begun))
        if answered == "later":
            line.send(asks("/3"))
            await turns()
            gate.room.release()
        found = await heard(line, 1)
        async with asyncio.timeout(LONG):
            assert await asyncio.get_running_loop().sock_recv(line, 1) == b""
    assert found.endswith(b"/1/d")
    assert gate.begun == ["/1"]
