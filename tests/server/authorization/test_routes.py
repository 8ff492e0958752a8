"""Each route says what it needs, the server goes by that, and with a key everybody may that and no more."""

from typing import Any

import msgspec
import pytest

from dibs.server.api.routing import Needs, Operation
from dibs.server.app import TABLE
from dibs.server.auth.policy import IMPLIED, Principal, Scope
from tests.server.authorization.matrix import (
    INSIDE,
    NAME,
    OWNER,
    UNUSED,
    Matrix,
    Someone,
    ask,
    check_let_in,
    check_refused,
    check_tells_nothing_secret,
    client_of,
    every_route,
    shown,
)
from tests.server.inside import served_by

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


@pytest.mark.parametrize("kind", ["path", "somewhere", "everywhere", "public", "session", "other"])
def test_needs_have_a_scope_if_they_look_at_one(kind: Any) -> None:
    looks = kind in ("path", "somewhere", "everywhere")
    with pytest.raises(ValueError, match=r"scope|other"):
        Needs(kind, None if looks else Scope.ADMIN)


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
"""These change something and need no scope by themselves."""


@every_route
def test_changes_need_more_than_reads(route: Operation) -> None:
    if route.method == "GET" or route.needs.kind == "session" or shown(route) in FOR_EVERY_KEY:
        return
    assert route.needs.scope in (Scope.ACQUIRE, Scope.FORCE, Scope.ADMIN), shown(route)


@every_route
def test_what_is_only_for_administrators(route: Operation) -> None:
    for path, scope in LEAST.items():
        is_below = route.path == path or route.path.startswith(f"{path}/")
        if is_below and not (path == "/v1/restrict" and route.method == "GET"):
            assert route.needs.scope is scope, shown(route)


def test_what_each_scope_implies() -> None:
    everybody = Principal("", "", frozenset(), ())
    for scope in Scope:
        someone = Someone(scope, (), None)  # type: ignore[arg-type]
        assert {each for each in Scope if someone.may(each, b"")} == IMPLIED[scope]
        assert not everybody.may(scope, b"")
        assert not everybody.may_somewhere(scope)


@every_route
def test_each_key_may_do_what_the_route_needs_and_no_more(matrix: Matrix, route: Operation) -> None:
    if route.needs.kind == "session":
        pytest.skip("keys are nothing to it: see test_no_key_is_a_session")
    for who in matrix.everybody:
        where = f"{shown(route)} by a key with {who}"
        status, text = ask(who.client, route)
        check_tells_nothing_secret(matrix, who, text, where)
        match route.needs.kind:
            case "public" | "signed-in" | "commands":
                allowed = True
            case "path" if route.needs.hidden:
                allowed = True
                if not who.may(Scope.READ, NAME):
                    _check_looks_unused(who, route, status, text, where)
            case "path":
                allowed = who.may(_scope(route), _resource(route))
            case "somewhere":
                allowed = any(who.may(_scope(route), each) for each in who.directories or (b"",))
            case "everywhere":
                allowed = not who.directories and who.may(_scope(route), b"")
            case kind:
                pytest.fail(f"{kind}: decide what this means, here too")
        if allowed:
            check_let_in(status, text, where)
        else:
            check_refused(status, text, where)
            assert ask(who.client, route, UNUSED) == (status, text), f"{where} tells what is held"


def _scope(route: Operation) -> Scope:
    assert route.needs.scope is not None
    return route.needs.scope


def _resource(route: Operation) -> bytes:
    return NAME if "{name}" in route.path else INSIDE


def _check_looks_unused(who: Someone, route: Operation, status: int, text: str, where: str) -> None:
    """What may not be read looks like what is not there, to the last letter."""
    if "{name}" in route.path:
        assert (status, text) == ask(who.client, route, UNUSED), where
        assert status == 404, where
    else:
        assert status in (200, 404), where
        found = msgspec.json.decode(text)
        assert not any(value for value in found.values() if isinstance(value, list)), where


FORCED = [route for route in TABLE if route.needs.forced is not None]


@pytest.mark.parametrize("route", FORCED, ids=shown)
def test_force_needs_its_own_scope(matrix: Matrix, route: Operation) -> None:
    forced = route.needs.forced
    assert forced is Scope.FORCE
    for who in matrix.everybody:
        where = f"force by a key with {who}"
        unheld = ask(who.client, route, UNUSED, force="true", reason="a test")
        if who.may(forced, UNUSED):
            check_let_in(*unheld, where)
        else:
            check_refused(*unheld, where)
            held = ask(who.client, route, force="true", reason="a test")
            assert held == unheld, f"{where} tells what is held"
    assert FORCED


@every_route
def test_without_a_good_key_no_route_answers(matrix: Matrix, route: Operation) -> None:
    with client_of(matrix.world) as client:
        for what, header in matrix.nobody.items():
            methods: list[str] = [route.method]
            client.headers.pop("authorization", None)
            if header is not None:
                client.headers["authorization"] = header
            elif route.method == "GET":
                methods.append("HEAD")
            for method in methods:
                status, text = ask(client, route, method=method)
                where = f"{method} {route.path} with {what}"
                if route.needs.kind == "public":
                    check_let_in(status, text, where)
                else:
                    assert status in (401, 405), f"{where}: {status} {text}"
                    assert method == "HEAD" or status == 401
                assert OWNER not in text
                assert matrix.lease_id not in text


def test_a_refusal_says_how_to_come_in(matrix: Matrix) -> None:
    with client_of(matrix.world) as client:
        missing = client.get("/v1/locks")
        bad = client.get("/v1/locks", headers={"authorization": "Bearer dibs_x"})
    for answer in (missing, bad):
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["type"] == "/problems/unauthenticated"
        assert answer.headers["www-authenticate"].startswith("Bearer")
    assert "invalid_token" in bad.headers["www-authenticate"]
