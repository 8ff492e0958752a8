"""The health endpoint's own small HTTP."""

import asyncio

import pytest

from dibs import NotConfigured
from dibs.temporal.worker.health import LONGEST, HealthServer, host_port


async def ask(server: HealthServer, request: bytes) -> str:
    host, port = host_port(server.address, "")
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(request)
    try:
        return (await reader.read()).decode()
    finally:
        writer.close()


def get(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n".encode()


async def test_it_answers() -> None:
    why: list[str | None] = ["it is connecting"]
    async with HealthServer(
        "127.0.0.1", 0, {"/livez": lambda: None, "/readyz": lambda: why[0]}
    ) as up:
        assert (await ask(up, get("/livez"))).startswith("HTTP/1.1 200 OK\r\n")
        refused = await ask(up, get("/readyz?verbose"))
        assert refused.startswith("HTTP/1.1 503 ")
        assert refused.endswith("\r\n\r\nit is connecting\n")
        why[0] = None
        assert (await ask(up, get("/readyz"))).endswith("\r\n\r\nok\n")
        head = await ask(up, get("/readyz", "HEAD"))
        assert "Content-Length: 3\r\n" in head
        assert head.endswith("\r\n\r\n")
        assert (await ask(up, get("/"))).startswith("HTTP/1.1 404 ")
        post = await ask(up, get("/livez", "POST"))
        assert post.startswith("HTTP/1.1 405 ")
        assert "Allow: GET, HEAD" in post


@pytest.mark.parametrize(
    "request_", [b"nonsense\r\n\r\n", b"GET /" + b"a" * LONGEST + b"\r\n", b"\r\n"]
)
async def test_what_is_no_request_gets_no_answer(request_: bytes) -> None:
    async with HealthServer("127.0.0.1", 0, {"/livez": lambda: None}) as up:
        try:
            assert await ask(up, request_) == ""
        except ConnectionResetError:
            pass
        assert (await ask(up, get("/livez"))).startswith("HTTP/1.1 200 ")


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
