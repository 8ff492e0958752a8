"""The dashboard's files on the wire: what is there, with which headers; and no path leads elsewhere."""

import re
from pathlib import Path

import httpx2

import dibs.server.ui
from tests.server.world import World

ASSETS = Path(dibs.server.ui.__file__).parent / "assets"

GUARDS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; font-src 'self'; manifest-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}


def check_guarded(answer: httpx2.Response) -> None:
    headers = answer.headers
    assert {name: headers.get(name) for name in GUARDS} == GUARDS
    assert re.fullmatch(r"([a-z-]+=\(\)(, )?)+", headers["permissions-policy"])
    assert "access-control-allow-origin" not in headers
    assert [name for name, _ in headers.multi_items() if headers.get_list(name)[1:]] == []


def test_a_file_is_served_as_it_is_with_all_guards(world: World) -> None:
    client = world.stranger()
    found = {f"/ui/{path.relative_to(ASSETS).as_posix()}": path for path in ASSETS.rglob("*.*")}
    for path, file in {"/": ASSETS / "index.html", **found}.items():
        answer = client.get(path)
        assert (answer.status_code, answer.content) == (200, file.read_bytes())
        assert answer.headers["content-type"].partition(";")[0] == TYPES[file.suffix[1:]]
        assert answer.headers["cache-control"] == "no-cache"
        check_guarded(answer)
        again = client.get(path, headers={"if-none-match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        check_guarded(again)
        head = client.head(path)
        assert (head.status_code, head.headers["etag"]) == (200, answer.headers["etag"])
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        answer = client.request(method, "/ui/index.html")
        assert answer.status_code == 405
        check_guarded(answer)


def test_programs_are_sent_to_the_api(world: World) -> None:
    client = world.stranger()
    answer = client.get("/", headers={"accept": "application/json"})
    assert (answer.status_code, answer.json()["type"]) == (404, "/problems/no-such-route")
    assert "/v1/openapi.json" in answer.json()["detail"]
    check_guarded(answer)
    check_guarded(client.post("/"))
    check_guarded(client.get("/ui/session"))
    for accept in ("*/*", "text/html,application/xhtml+xml,*/*;q=0.8", "application/json, */*"):
        assert client.get("/", headers={"accept": accept}).status_code == 200


TRICKS = [
    "/ui/",
    "/ui/../__init__.py",
    "/ui/%2e%2e/__init__.py",
    "/ui/..%2f__init__.py",
    "/ui/%252e%252e/__init__.py",
    "/ui//etc/passwd",
    "/ui/%2fetc%2fpasswd",
    "/ui/index.html%00.js",
    "/ui/INDEX.HTML",
    "/ui/" + "../" * 2000,
]


def test_no_path_leads_elsewhere(world: World) -> None:
    for path in TRICKS:
        asked = f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"
        head, _, body = world.answer_to(asked.encode()).partition(b"\r\n\r\n")
        assert int(head.split()[1]) in (400, 404), head
        assert b"content-type: application/problem+json" in head.lower()
        for word in (b"root:", b"import", b"<html", str(ASSETS).encode()):
            assert word not in body
        assert b"default-src 'none'" in head
