"""The table itself: each route says what it needs, and the server goes by that."""

from functools import partial
from typing import Any, get_args

import httpx2
import pytest
from starlette.responses import Response

from dibs.server.api.responses import empty_response
from dibs.server.api.routing import Caller, Needs, Operation, everywhere, route, somewhere
from dibs.server.app import TABLE, Application
from dibs.server.auth.policy import IMPLIED, Principal, Scope
from tests.server.authorization.asking import every_route, shown
from tests.server.authorization.matrix import TRUST, Matrix, Someone
from tests.server.inside import application_of, served_by

PUBLIC = {
    "GET /",
    "GET /ui/{rest}",
    "POST /ui/session",
    "GET /livez",
    "GET /metrics",
    "GET /readyz",
    "GET /problems/{word}",
    "GET /v1/openapi.json",
}
"""What anybody may read, without a key. Whoever adds a route here has thought about it."""


def test_the_server_serves_this_table_and_nothing_else(matrix: Matrix) -> None:
    served = served_by(matrix.world)
    assert len(served) == len({path for path, _ in served}), "one route for each path"
    assert {
        (path, method, needs) for path, methods in served for method, needs in methods.items()
    } == {
        (each.path, method, each.needs)
        for each in TABLE
        for method in (
            each.method,
            *(["HEAD"] if each.method == "GET" and not each.is_stream else []),
        )
    }


def test_a_route_without_a_class_cant_be_made() -> None:
    async def handler(_: Any) -> Any: ...

    with pytest.raises(TypeError, match="needs"):
        Operation(method="GET", path="/x", handler=handler, summary="")  # type: ignore[call-arg]


@every_route
def test_what_a_route_needs_is_whole(route: Operation) -> None:
    needs = route.needs
    kinds = get_args(Needs.__annotations__["kind"])
    assert needs.kind in kinds
    assert (needs.scope is not None) == (needs.kind in ("path", "somewhere", "everywhere"))
    if needs.kind == "path":
        assert "{name}" in route.path or "{dir}" in route.path
    if needs.hidden:
        assert (needs.kind, route.method) == ("path", "GET")


@pytest.mark.parametrize("kind", ["path", "somewhere", "everywhere"])
def test_a_class_that_needs_a_scope_cant_be_made_without(kind: Any) -> None:
    with pytest.raises(ValueError, match="scope"):
        Needs(kind)


@pytest.mark.parametrize("kind", ["public", "signed-in", "commands", "session", "anything"])
def test_a_class_that_looks_at_no_scope_cant_be_made_with_one(kind: Any) -> None:
    with pytest.raises(ValueError, match=r"scope|anything"):
        Needs(kind, Scope.ADMIN)


def test_only_these_are_public() -> None:
    assert {shown(route) for route in TABLE if route.needs.kind == "public"} == PUBLIC


LEAST = {
    "/v1/keys": Scope.ADMIN,
    "/v1/audit": Scope.ADMIN,
    "/v1/restrict": Scope.ADMIN,
    "/v1/move": Scope.ADMIN,
    "/v1/placements": Scope.ADMIN,
}
"""What is an administrator's, whatever a table says: but for reading what holds in one's own directory."""

FOR_EVERY_KEY = {"POST /v1/token", "POST /identity/token", "POST /v1/batch", "POST /ui/session"}
"""What is no mere reading, and asks for no scope by itself: see what else is tested of it."""


@every_route
def test_what_changes_things_needs_more_than_to_read(route: Operation) -> None:
    if route.method == "GET" or route.needs.kind == "session" or shown(route) in FOR_EVERY_KEY:
        return
    assert route.needs.scope in (Scope.ACQUIRE, Scope.FORCE, Scope.ADMIN), shown(route)


@every_route
def test_what_is_an_administrators_stays_so(route: Operation) -> None:
    for path, scope in LEAST.items():
        is_below = route.path == path or route.path.startswith(f"{path}/")
        if is_below and not (path == "/v1/restrict" and route.method == "GET"):
            assert route.needs.scope is scope, shown(route)


@pytest.mark.parametrize("needs", [everywhere(Scope.FORCE), somewhere(Scope.FORCE)], ids=str)
def test_a_class_holds_wherever_it_is_used(matrix: Matrix, needs: Needs) -> None:
    """Also one that no route has just now."""

    class Part:
        @route("GET", "/x", needs, summary="")
        async def get(self, _: Caller) -> Response:
            return empty_response(204)

    application = application_of(matrix.world, Part())
    for who in matrix.everybody:
        status = matrix.world.do(partial(_status_of, application, who))
        bounded = needs.kind == "everywhere" and bool(who.directories)
        allowed = who.may(Scope.FORCE, (who.directories or (b"",))[0]) and not bounded
        assert status == (204 if allowed else 403), who


async def _status_of(application: Application, who: Someone) -> int:
    transport = httpx2.ASGITransport(application)
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://here", verify=TRUST
    ) as client:
        return (await client.get("/x", headers=dict(who.client.headers))).status_code


def test_every_scope_is_implied_as_it_is_told() -> None:
    everybody = Principal("", "", frozenset(), ())
    for scope in Scope:
        someone = Someone(scope, (), None)  # type: ignore[arg-type]
        assert {each for each in Scope if someone.may(each, b"")} == IMPLIED[scope]
        assert not everybody.may(scope, b"")
        assert not everybody.may_somewhere(scope)
