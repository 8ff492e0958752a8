"""Asking for a route, and judging what comes of it."""

import httpx2
import msgspec
import pytest

from dibs.server.api.routing import Operation
from dibs.server.app import TABLE
from dibs.server.auth.policy import Scope
from dibs.stores.http.names import encoded
from tests.server.authorization.matrix import INSIDE, NAME, NOTE, OWNER, Matrix, Someone
from tests.server.world import b64


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
