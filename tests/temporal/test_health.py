"""The health endpoint over HTTP."""

import asyncio
import socket

import pytest

from dibs import NotConfigured
from dibs.temporal.worker.health import HealthServer, host_port


async def ask(server: HealthServer, request: bytes) -> str:
    host, port = host_port(server.address, "")
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(request)
    try:
        return (await reader.read()).decode()
    finally:
        writer.close()


async def alive() -> None:
    """All is well."""


def get(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n".encode()


async def test_it_answers() -> None:
    why: list[str | None] = ["it is connecting"]

    async def ready() -> str | None:
        return why[0]

    async with HealthServer("127.0.0.1", 0, {"/livez": alive, "/readyz": ready}) as up:
        assert (await ask(up, get("/livez"))).startswith("HTTP/1.0 200 OK\r\n")
        refused = await ask(up, get("/readyz?verbose"))
        assert refused.startswith("HTTP/1.0 503 ")
        assert refused.endswith("\r\n\r\nit is connecting\n")
        why[0] = None
        assert (await ask(up, get("/readyz"))).endswith("\r\n\r\nok\n")
        head = await ask(up, get("/readyz", "HEAD"))
        assert "Content-Length: 3\r\n" in head
        assert head.endswith("\r\n\r\n")
        assert (await ask(up, get("/"))).startswith("HTTP/1.0 404 ")
        post = await ask(up, get("/livez", "POST"))
        assert post.startswith("HTTP/1.0 501 ")


@pytest.mark.parametrize(
    "request_", [b"nonsense\r\n\r\n", b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", b"\r\n"]
)
async def test_a_request_that_is_none_gets_no_ok(request_: bytes) -> None:
    async with HealthServer("127.0.0.1", 0, {"/livez": alive}) as up:
        try:
            assert " 200 " not in await ask(up, request_)
        except ConnectionResetError:
            pass
        assert (await ask(up, get("/livez"))).startswith("HTTP/1.0 200 ")


async def test_a_silent_client_keeps_no_other_from_its_answer() -> None:
    async with HealthServer("127.0.0.1", 0, {"/livez": alive}) as up:
        _, silent = await asyncio.open_connection(*host_port(up.address, ""))
        assert (await ask(up, get("/livez"))).startswith("HTTP/1.0 200 ")
        silent.close()


async def test_a_process_whose_event_loop_is_stuck_is_not_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dibs.temporal.worker.health.PATIENCE", 0.2)
    async with HealthServer("127.0.0.1", 0, {"/livez": alive}) as up:
        with socket.create_connection(host_port(up.address, "")) as asking:
            asking.sendall(get("/livez"))
            answer = asking.makefile().read()  # blocks the loop meanwhile
        assert answer.startswith("HTTP/1.0 503 ")
        assert "its event loop does not answer" in answer


async def test_a_taken_port_is_said() -> None:
    async with HealthServer("127.0.0.1", 0, {}) as up:
        host, port = host_port(up.address, "")
        with pytest.raises(NotConfigured, match=f"can't listen on 127.0.0.1:{port}"):
            async with HealthServer(host, port, {}):
                pass


@pytest.mark.parametrize(
    ("text", "found"),
    [("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:0", ("::1", 0)), ("box:8080", ("box", 8080))],
)
def test_addresses(text: str, found: tuple[str, int]) -> None:
    assert host_port(text, "it") == found


@pytest.mark.parametrize("text", ["8080", ":8080", "box", "box:", "box:x", "box:70000", "::1:80"])
def test_no_addresses(text: str) -> None:
    with pytest.raises(ValueError, match=f"the address is '{text}'"):
        host_port(text, "the address")
