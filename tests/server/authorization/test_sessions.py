"""A session of the dashboard may what its key may, by the page's own requests only."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import httpx2
import msgspec
import pytest

from dibs.server.api.routing import Operation
from dibs.server.app import TABLE
from dibs.server.auth.credentials import ServiceSecret, Signatures
from dibs.server.auth.keys import KeyService
from dibs.server.auth.policy import BrowserSession, Scope
from tests.server.authorization.matrix import (
    DIRECTORIES,
    Matrix,
    Someone,
    ask,
    check_tells_nothing_secret,
    client_of,
    shown,
    with_headers,
)
from tests.server.inside import keys_of
from tests.server.world import World


@dataclass
class Visitor:
    """Somebody who has signed in with a key, by way of a browser."""

    who: Someone
    client: httpx2.Client
    page: dict[str, str]
    """Headers of what the dashboard's own page sends."""


@pytest.fixture(scope="module")
def visitors(matrix: Matrix) -> Iterator[list[Visitor]]:
    """One for each key of the matrix."""
    found = [_signed_in(matrix.world, who) for who in matrix.everybody]
    yield found
    for each in found:
        each.client.close()


def _signed_in(world: World, who: Someone) -> Visitor:
    client = client_of(world)
    key = who.client.headers["authorization"].removeprefix("Bearer ")
    answer = client.post("/ui/session", json={"key": key}, headers={"origin": world.url})
    assert answer.status_code == 200, answer.text
    return Visitor(who, client, {"origin": world.url, "dibs-csrf": answer.json()["csrf"]})


NEEDS_A_KEY = {"POST /v1/token", "POST /identity/token"}
"""What a session is no good for: whatever may be had for it would outlive a sign-out."""

SESSION_ROUTES = [route for route in TABLE if route.needs.kind == "session"]

key_routes = pytest.mark.parametrize(
    "route",
    [route for route in TABLE if route.needs.kind not in ("public", "session")],
    ids=shown,
)


@pytest.mark.parametrize("route", SESSION_ROUTES, ids=shown)
def test_no_key_is_a_session(matrix: Matrix, visitors: list[Visitor], route: Operation) -> None:
    for visitor in visitors:
        status, text = ask(visitor.who.client, route)
        assert status == 401, f"{shown(route)} by {visitor.who}: {status} {text}"
        key = visitor.who.client.headers["authorization"]
        with with_headers(visitor.client, visitor.page | {"authorization": key}):
            status, _ = ask(visitor.client, route)
        assert status == 401, "whoever brings a key is not looked at for a cookie"


@pytest.mark.once
@key_routes
def test_a_session_may_what_its_key_may(
    matrix: Matrix, visitors: list[Visitor], route: Operation
) -> None:
    """By the page's own requests; nothing is changed by any other."""
    for visitor in visitors:
        where = f"{shown(route)} by a session of {visitor.who}"
        by_key, refusal = ask(visitor.who.client, route)
        with with_headers(visitor.client, visitor.page):
            status, text = ask(visitor.client, route)
        if shown(route) in NEEDS_A_KEY:
            assert (by_key, status) == (200, 403), where
            continue
        assert status == by_key, f"{where}: {text}"
        if status == 403:
            assert text == refusal, where
        check_tells_nothing_secret(matrix, visitor.who, text, where)


@pytest.mark.once
@key_routes
def test_a_session_is_nothing_to_another_page(
    matrix: Matrix, visitors: list[Visitor], route: Operation
) -> None:
    """Not even an administrator's: whatever changes something needs the page's own token and origin."""
    admin, other = visitors[-len(DIRECTORIES)], visitors[0]
    assert (admin.who.scope, admin.who.directories) == (Scope.ADMIN, ())
    foreign = {"sec-fetch-site": "cross-site"}
    forged: list[dict[str, str]] = [admin.page | foreign, foreign]
    if route.method != "GET":
        origin, token = ({name: admin.page[name]} for name in ("origin", "dibs-csrf"))
        forged += [
            {},
            origin,
            token,
            token | {"origin": "null"},
            token | {"origin": "http://127.0.0.1:1"},
            token | {"origin": matrix.world.url.replace("127.0.0.1", "localhost")},
            admin.page | {"sec-fetch-site": "same-site"},
            admin.page | {"sec-fetch-site": "none"},
            origin | {"dibs-csrf": other.page["dibs-csrf"]},
            origin | {"dibs-csrf": ""},
        ]
    for headers in forged:
        with with_headers(admin.client, headers):
            status, text = ask(admin.client, route)
        assert status == 403, f"{shown(route)} with {headers}: {status} {text}"
        assert msgspec.json.decode(text)["type"] == "/problems/csrf", text
    assert ask(admin.who.client, SEEN)[0] == 200, "it is held as before"


@pytest.fixture(scope="module")
def cookies_of_nobody(matrix: Matrix) -> dict[str, tuple[str, str]]:
    """Cookies that let nobody in, by what is wrong with them, and the tokens that go with them."""
    ring: KeyService = keys_of(matrix.world)
    good = ring.administrator()
    assert good is not None
    revoked, _ = matrix.world.do(lambda: ring.create("revoked", {Scope.ADMIN}, []))
    matrix.world.do(lambda: ring.revoke(revoked.key_id))
    expired, _ = matrix.world.do(lambda: ring.create("old", {Scope.ADMIN}, [], expires_in=1e-6))
    own, foreign, now = ring.secrets, ServiceSecret(["x" * 32]), int(time.time())
    sessions = {
        "a session that is over": (own, BrowserSession(good.key_id, now - 1, "a")),
        "a session of a revoked key": (own, BrowserSession(revoked.key_id, now + 60, "b")),
        "a session of an expired key": (own, BrowserSession(expired.key_id, now + 60, "c")),
        "a session of another service": (foreign, BrowserSession(good.key_id, now + 60, "d")),
    }
    found = {
        what: (
            Signatures(secret, "session").sign(session),
            Signatures(secret, "csrf").sign(session.nonce),
        )
        for what, (secret, session) in sessions.items()
    }
    return found | {"no session": ("x", "x"), "nothing": ("", "")}


@pytest.mark.once
@pytest.mark.parametrize("route", [r for r in TABLE if r.needs.kind != "public"], ids=shown)
def test_a_cookie_that_is_wrong_or_over_is_no_session(
    matrix: Matrix, cookies_of_nobody: dict[str, tuple[str, str]], route: Operation
) -> None:
    with client_of(matrix.world) as client:
        for what, (sealed, token) in cookies_of_nobody.items():
            for name in ("dibs_session", "__Host-dibs_session"):
                headers = {"cookie": f"{name}={sealed}", "dibs-csrf": token}
                with with_headers(client, headers | {"origin": matrix.world.url}):
                    status, text = ask(client, route)
                assert status == 401, f"{shown(route)} with {what}: {status} {text}"


SEEN = next(route for route in TABLE if shown(route) == "GET /v1/locks/{name}")
