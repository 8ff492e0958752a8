"""The dashboard's files on the wire: what is there, with which headers; and no path leads elsewhere."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

import dibs.server.ui
from tests.server.world import LONG, World

pytestmark = pytest.mark.once

ASSETS = Path(dibs.server.ui.__file__).parent / "assets"
PATHS = ["/", *sorted(f"/ui/{path.relative_to(ASSETS).as_posix()}" for path in ASSETS.rglob("*.*"))]

MAY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "font-src 'self'; manifest-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)


@pytest.fixture(scope="module")
def client(world: World) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=world.url) as client:
        yield client


def check_guarded(answer: httpx2.Response) -> None:
    headers = answer.headers
    assert headers["content-security-policy"] == MAY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-opener-policy"] == "same-origin"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert re.fullmatch(r"([a-z-]+=\(\)(, )?)+", headers["permissions-policy"])
    assert "access-control-allow-origin" not in headers
    doubled = [name for name, _ in headers.multi_items() if headers.get_list(name)[1:]]
    assert doubled == []


@pytest.mark.parametrize("path", PATHS)
def test_a_file_is_served_as_it_is_with_all_guards(client: httpx2.Client, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    file = ASSETS / (path.removeprefix("/ui/").strip("/") or "index.html")
    assert answer.content == file.read_bytes()
    kind = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
    expected = kind.get(path.rpartition(".")[2], "text/html" if path == "/" else "")
    assert answer.headers["content-type"].partition(";")[0] == expected
    assert answer.headers["cache-control"] == "no-cache"
    check_guarded(answer)
    again = client.get(path, headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    check_guarded(again)
    head = client.head(path)
    assert (head.status_code, head.headers["etag"]) == (200, answer.headers["etag"])


def test_programs_are_sent_to_the_api(client: httpx2.Client) -> None:
    answer = client.get("/", headers={"accept": "application/json"})
    assert (answer.status_code, answer.json()["type"]) == (404, "/problems/no-such-route")
    assert "/v1/openapi.json" in answer.json()["detail"]
    check_guarded(answer)
    check_guarded(client.post("/"))
    check_guarded(client.get("/ui/session"))
    for accept in ("*/*", "text/html,application/xhtml+xml,*/*;q=0.8", "application/json, */*"):
        assert client.get("/", headers={"accept": accept}).status_code == 200


def test_a_file_is_only_read(client: httpx2.Client) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        answer = client.request(method, "/ui/index.html")
        assert answer.status_code == 405
        check_guarded(answer)


TRICKS = [
    "/ui/",
    "/ui/..",
    "/ui/../ui/index.html",
    "/ui/../__init__.py",
    "/ui/%2e%2e/__init__.py",
    "/ui/..%2f__init__.py",
    "/ui/..%5c__init__.py",
    "/ui/%252e%252e/__init__.py",
    "/ui//etc/passwd",
    "/ui/%2fetc%2fpasswd",
    "/ui/file:///etc/passwd",
    "/ui/index.html%00.js",
    "/ui/%ff%fe",
    "/ui/index.html/..",
    "/ui/INDEX.HTML",
    "/ui/views/",
    "/ui/session/x",
    "/index.html",
    "/ui/" + "../" * 2000,
]


@pytest.mark.parametrize("path", TRICKS, ids=lambda path: path[:40])
def test_no_path_leads_elsewhere(world: World, path: str) -> None:
    status, head, body = asked_as_written(world, path)
    assert status in (400, 404), head
    assert b"content-type: application/problem+json" in head.lower()
    for word in (b"root:", b"import", b"<html", str(ASSETS).encode()):
        assert word not in body
    if path.startswith("/ui/"):
        assert MAY.encode() in head


def asked_as_written(world: World, path: str) -> tuple[int, bytes, bytes]:
    """The answer to a path that no client would send like that."""
    with socket.create_connection(("127.0.0.1", int(world.url.rpartition(":")[2])), LONG) as sock:
        head = f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"
        sock.sendall(head.encode())
        with sock.makefile("rb") as file:
            text, _, body = file.read().partition(b"\r\n\r\n")
    return int(text.split()[1]), text, body
