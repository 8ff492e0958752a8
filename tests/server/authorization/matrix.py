"""Everybody who may ask a server, what is held there, and how answers are judged."""

import ssl
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx2
import msgspec
import pytest

from dibs.server.api.routing import Operation
from dibs.server.app import TABLE
from dibs.server.auth.policy import Scope
from dibs.stores.http.names import encoded
from tests.server.world import World, b64

INSIDE, NAME, UNUSED = b"matrix/in/", b"matrix/in/x", b"matrix/in/never-used"
"""A directory, what is held in it, and what isn't."""

DIRECTORIES: tuple[tuple[bytes, ...], ...] = (
    (),
    (b"matrix/",),
    (INSIDE,),
    (b"matrix/in/deeper/",),
    (b"matrix/other/",),
    (b"matrix/i/", b"MATRIX/IN/", b"/matrix/in/", b"matrix//in/"),
)
"""What keys are good for: everything, what is around, the directory itself, and others that look alike."""

OWNER, NOTE = "the-holder-of-it", "what-it-is-for"


TRUST = ssl.create_default_context()  # each client would read the certificates anew


@dataclass
class Someone:
    """A key, as one case of the matrix."""

    scope: Scope
    directories: tuple[bytes, ...]
    client: httpx2.Client

    def may(self, scope: Scope, name: bytes) -> bool:
        """What it may, told in other words than the server's own."""
        implied = {
            Scope.READ: {"read"},
            Scope.ACQUIRE: {"read", "acquire"},
            Scope.FORCE: {"read", "force"},
            Scope.ADMIN: {"read", "acquire", "force", "admin"},
        }[self.scope]
        inside = not self.directories or any(name.startswith(each) for each in self.directories)
        return scope.value in implied and inside

    def __str__(self) -> str:
        return f"{self.scope} for {self.directories or 'everything'}"


@dataclass
class Matrix:
    """A server with something held, and everybody who may ask it."""

    world: World
    lease_id: str
    everybody: list[Someone]
    nobody: dict[str, str | None]
    """Headers that let nobody in, by what is wrong with them."""

    def one(self, scope: Scope, *directories: bytes) -> httpx2.Client:
        """The client of one of them."""
        found = (each for each in self.everybody if each.scope is scope)
        return next(each.client for each in found if each.directories == directories)


def client_of(world: World, key: str | None = None) -> httpx2.Client:
    """Somebody with a key, or without."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return httpx2.Client(base_url=world.url, headers=headers, timeout=30, verify=TRUST)


@contextmanager
def with_headers(client: httpx2.Client, headers: dict[str, str]) -> Generator[None]:
    client.headers.update(headers)
    try:
        yield
    finally:
        for name in headers:
            del client.headers[name]


def shown(route: Operation) -> str:
    return f"{route.method} {route.path}"


every_route = pytest.mark.parametrize("route", TABLE, ids=shown)


def path_of(route: Operation, name: bytes = NAME) -> str:
    """The route's path, about a resource in the directory, or about the directory itself."""
    path = route.path.replace("{name}", b64(name)).replace("{dir}", b64(INSIDE[:-1]))
    return path.replace("{word}", "nothing").replace("{rest}", "nothing")


def params_of(route: Operation, **more: str) -> dict[str, str]:
    """The parameters that it can't do without."""
    fields = msgspec.structs.fields(route.query) if route.query else ()
    return {field.encode_name: "x" * 22 for field in fields if field.required} | more


def ask(
    client: httpx2.Client, route: Operation, name: bytes = NAME, method: str = "", **more: str
) -> tuple[int, str]:
    """The status of an answer, and its text, if it has an end."""
    request = client.build_request(
        method or route.method, path_of(route, name), params=params_of(route, **more)
    )
    answer = client.send(request, stream=True)
    try:
        is_endless = "event-stream" in answer.headers.get("content-type", "")
        return answer.status_code, "" if is_endless else answer.read().decode()
    finally:
        answer.close()


def check_refused(status: int, text: str, where: str) -> None:
    assert status == 403, f"{where}: {status} {text}"
    assert msgspec.json.decode(text)["type"] == "/problems/forbidden", where
    for secret in (OWNER, NOTE):
        assert secret not in text, where


def check_let_in(status: int, text: str, where: str) -> None:
    assert status not in (401, 403), f"{where}: {status} {text}"
    assert status < 500, f"{where}: {status} {text}"


def check_tells_nothing_secret(matrix: Matrix, who: Someone, text: str, where: str) -> None:
    """An id is for administrators; what may not be read is in no answer."""
    if not who.may(Scope.ADMIN, NAME):
        assert matrix.lease_id not in text, where
    if not who.may(Scope.READ, NAME):
        for secret in (OWNER, NOTE, encoded(NAME), encoded(b"lock:" + NAME), encoded(b"x")):
            assert f'"{secret}"' not in text, where
        assert OWNER not in text, where
