"""Who may call what: a matrix over the server's own table of routes, so that no route can be left out.

Each route is asked for without a key, with keys that are good for nothing (bad, revoked, expired, and tokens
of those), and with a key of each scope for each of several directories. What comes of it is held against
what the route says that it needs, and what no answer may tell is looked for in every answer.
"""

import ssl
import time
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import httpx2
import jwt
import msgspec
import pytest

from leasehold.backends.http import wire
from leasehold.backends.http.names import encoded
from leasehold.core.names import fingerprint
from leasehold.server.answers import Answer, empty
from leasehold.server.app import Application
from leasehold.server.call import Call
from leasehold.server.keys import KeyRing
from leasehold.server.principal import IMPLIED, Principal, Scope
from leasehold.server.routes import ROUTES
from leasehold.server.routing import Needs, Route, everywhere, somewhere
from leasehold.server.secrets import derived
from leasehold.server.ui.seal import Seal, new_session
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

COMMANDS: dict[type, tuple[Scope, dict[str, Any]]] = {
    wire.Acquire: (Scope.ACQUIRE, {"id": "x" * 22, "owner": "me", "ttl": 10.0}),
    wire.Renew: (Scope.ACQUIRE, {"id": "x" * 22, "ttl": 10.0}),
    wire.Release: (Scope.ACQUIRE, {"id": "x" * 22}),
    wire.Resize: (Scope.ACQUIRE, {"id": "x" * 22, "units": 1, "seq": 1}),
    wire.Inspect: (Scope.READ, {}),
    wire.Revoke: (Scope.FORCE, {"lease": "0" * 24, "reason": "a test"}),
}
"""What each command of a batch needs, and how one is made."""


def shown(route: Route) -> str:
    return f"{route.method} {route.path}"


every_route = pytest.mark.parametrize("route", ROUTES, ids=shown)


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


@pytest.fixture(scope="module")
def matrix() -> Iterator[Matrix]:
    world = World.over()
    try:
        held = world.client().post(
            f"/v1/locks/{b64(NAME)}",
            params={"client-id": OWNER, "ttl": 600, "note": NOTE},
        )
        assert held.status_code == 200
        everybody = [
            Someone(scope, directories, client_of(world, world.key(scope, prefixes=directories)))
            for scope in Scope
            for directories in DIRECTORIES
        ]
        yield Matrix(world, held.json()["id"], everybody, _headers_of_nobody(world))
        for who in everybody:
            who.client.close()
    finally:
        world.close()


_trust = ssl.create_default_context()  # each client would read the certificates anew


def client_of(world: World, key: str | None = None) -> httpx2.Client:
    """Somebody with a key, or without."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return httpx2.Client(base_url=world.url, headers=headers, timeout=30, verify=_trust)


def _headers_of_nobody(world: World) -> dict[str, str | None]:
    ring: KeyRing = world.server.service.keys
    revoked, revoked_text = world.do(lambda: ring.create("revoked", {Scope.ADMIN}, []))
    token_of_revoked = ring.token(revoked)
    world.do(lambda: ring.revoke(revoked.key_id))
    _, expired = world.do(lambda: ring.create("old", {Scope.ADMIN}, [], expires_in=1e-6))
    good, good_text = world.do(lambda: ring.create("good", {Scope.ADMIN}, []))
    return {
        "no key": None,
        "an empty header": "",
        "another scheme": f"Basic {good_text}",
        "the key alone": good_text,
        "a bad key": f"Bearer {good_text[:-1]}{'A' if good_text[-1] != 'A' else 'Q'}",
        "a key cut short": f"Bearer {good_text[:-1]}",
        "a key that never was": "Bearer lh_000000000000_0123456789012345678901",
        "its id alone": f"Bearer lh_{good.key_id}_",
        "a revoked key": f"Bearer {revoked_text}",
        "a token of a revoked key": f"Bearer {token_of_revoked}",
        "an expired key": f"Bearer {expired}",
        "an expired token": f"Bearer {_token(ring, good, -3600)}",
        "a token of another service": f"Bearer {_token(ring, good, 60, secret=b'x' * 32)}",
        "a token of nobody's": f"Bearer {_token(ring, None, 60)}",
    }


def _token(ring: KeyRing, who: Principal | None, seconds: float, secret: bytes = b"") -> str:
    claims = {
        "iss": "leasehold",
        "sub": who.key_id if who else "nobody",
        "iat": int(time.time() + seconds - 60),
        "exp": int(time.time() + seconds),
    }
    return jwt.encode(claims, secret or derived(ring.secret, "tokens"), "HS256")


# ---- asking ---------------------------------------------------------------------------------------


def path_of(route: Route, name: bytes = NAME) -> str:
    """The route's path, about a resource in the directory, or about the directory itself."""
    path = route.path.replace("{name}", b64(name)).replace("{dir}", b64(INSIDE[:-1]))
    return path.replace("{word}", "nothing").replace("{rest}", "nothing")


def params_of(route: Route, **more: str) -> dict[str, str]:
    """The parameters that it can't do without."""
    fields = msgspec.structs.fields(route.query) if route.query else ()
    return {field.encode_name: "x" * 22 for field in fields if field.required} | more


def ask(
    client: httpx2.Client, route: Route, name: bytes = NAME, method: str = "", **more: str
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


# ---- the table itself -----------------------------------------------------------------------------


def test_the_server_serves_this_table_and_nothing_else(matrix: Matrix) -> None:
    http = matrix.world.server._front
    assert http is not None
    served = http.config.app.router.routes  # type: ignore[union-attr]
    assert served == tuple(ROUTES)


def test_a_route_without_a_class_cant_be_made() -> None:
    async def handler(_: Any) -> Any: ...

    with pytest.raises(TypeError, match="needs"):
        Route(method="GET", path="/x", handler=handler, summary="")  # type: ignore[call-arg]


@every_route
def test_what_a_route_needs_is_whole(route: Route) -> None:
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
    assert {shown(route) for route in ROUTES if route.needs.kind == "public"} == PUBLIC


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
def test_what_changes_things_needs_more_than_to_read(route: Route) -> None:
    if route.method == "GET" or route.needs.kind == "session" or shown(route) in FOR_EVERY_KEY:
        return
    assert route.needs.scope in (Scope.ACQUIRE, Scope.FORCE, Scope.ADMIN), shown(route)


@every_route
def test_what_is_an_administrators_stays_so(route: Route) -> None:
    for path, scope in LEAST.items():
        is_below = route.path == path or route.path.startswith(f"{path}/")
        if is_below and not (path == "/v1/restrict" and route.method == "GET"):
            assert route.needs.scope is scope, shown(route)


@pytest.mark.parametrize("needs", [everywhere(Scope.FORCE), somewhere(Scope.FORCE)], ids=str)
def test_a_class_holds_wherever_it_is_used(matrix: Matrix, needs: Needs) -> None:
    """Also one that no route has just now."""

    async def handler(_: Call) -> Answer:
        return empty(204)

    route = Route(method="GET", path="/x", needs=needs, handler=handler, summary="")
    application = Application(matrix.world.server.service, [route])
    for who in matrix.everybody:
        status = matrix.world.do(partial(_status_of, application, who))
        bounded = needs.kind == "everywhere" and bool(who.directories)
        allowed = who.may(Scope.FORCE, (who.directories or (b"",))[0]) and not bounded
        assert status == (204 if allowed else 403), who


async def _status_of(application: Application, who: Someone) -> int:
    transport = httpx2.ASGITransport(application)
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://here", verify=_trust
    ) as client:
        return (await client.get("/x", headers=dict(who.client.headers))).status_code


def test_every_scope_is_implied_as_it_is_told() -> None:
    everybody = Principal("", "", frozenset(), ())
    for scope in Scope:
        someone = Someone(scope, (), None)  # type: ignore[arg-type]
        assert {each for each in Scope if someone.may(each, b"")} == IMPLIED[scope]
        assert not everybody.may(scope, b"")
        assert not everybody.may_somewhere(scope)


# ---- nobody ---------------------------------------------------------------------------------------


@every_route
def test_nobody_is_let_in(matrix: Matrix, route: Route) -> None:
    methods = [route.method, *(["HEAD"] if route.method == "GET" else [])]
    with client_of(matrix.world) as client:
        for what, header in matrix.nobody.items():
            client.headers.pop("authorization", None)
            if header is not None:
                client.headers["authorization"] = header
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
        bad = client.get("/v1/locks", headers={"authorization": "Bearer lh_x"})
    for answer in (missing, bad):
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["type"] == "/problems/unauthenticated"
        assert answer.headers["www-authenticate"].startswith("Bearer")
    assert "invalid_token" in bad.headers["www-authenticate"]


# ---- everybody ------------------------------------------------------------------------------------


@every_route
def test_everybody_may_what_the_route_says_and_no_more(matrix: Matrix, route: Route) -> None:
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


def _scope(route: Route) -> Scope:
    assert route.needs.scope is not None
    return route.needs.scope


def _resource(route: Route) -> bytes:
    return NAME if "{name}" in route.path else INSIDE


def _check_looks_unused(who: Someone, route: Route, status: int, text: str, where: str) -> None:
    """What may not be read looks like what is not there, to the last letter."""
    if "{name}" in route.path:
        assert (status, text) == ask(who.client, route, UNUSED), where
        assert status == 404, where
    else:
        assert status in (200, 404), where
        found = msgspec.json.decode(text)
        assert not any(value for value in found.values() if isinstance(value, list)), where


FORCED = [route for route in ROUTES if route.needs.forced is not None]


@pytest.mark.parametrize("route", FORCED, ids=shown)
def test_force_needs_its_own_scope(matrix: Matrix, route: Route) -> None:
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


# ---- sessions of the dashboard --------------------------------------------------------------------


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
    return Visitor(who, client, {"origin": world.url, "leasehold-csrf": answer.json()["csrf"]})


NEEDS_A_KEY = {"POST /v1/token", "POST /identity/token"}
"""What a session is no good for: whatever may be had for it would outlive a sign-out."""

SESSION_ROUTES = [route for route in ROUTES if route.needs.kind == "session"]

key_routes = pytest.mark.parametrize(
    "route",
    [route for route in ROUTES if route.needs.kind not in ("public", "session")],
    ids=shown,
)


@pytest.mark.parametrize("route", SESSION_ROUTES, ids=shown)
def test_no_key_is_a_session(matrix: Matrix, visitors: list[Visitor], route: Route) -> None:
    for visitor in visitors:
        status, text = ask(visitor.who.client, route)
        assert status == 401, f"{shown(route)} by {visitor.who}: {status} {text}"
        key = visitor.who.client.headers["authorization"]
        with _with_headers(visitor.client, visitor.page | {"authorization": key}):
            status, _ = ask(visitor.client, route)
        assert status == 401, "whoever brings a key is not looked at for a cookie"


@pytest.mark.once
@key_routes
def test_a_session_may_what_its_key_may(
    matrix: Matrix, visitors: list[Visitor], route: Route
) -> None:
    """By the page's own requests; nothing is changed by any other."""
    for visitor in visitors:
        where = f"{shown(route)} by a session of {visitor.who}"
        by_key, refusal = ask(visitor.who.client, route)
        with _with_headers(visitor.client, visitor.page):
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
    matrix: Matrix, visitors: list[Visitor], route: Route
) -> None:
    """Not even an administrator's: whatever changes something needs the page's own token and origin."""
    admin, other = visitors[-len(DIRECTORIES)], visitors[0]
    assert (admin.who.scope, admin.who.directories) == (Scope.ADMIN, ())
    foreign = {"sec-fetch-site": "cross-site"}
    forged: list[dict[str, str]] = [admin.page | foreign, foreign]
    if route.method != "GET":
        origin, token = ({name: admin.page[name]} for name in ("origin", "leasehold-csrf"))
        forged += [
            {},
            origin,
            token,
            token | {"origin": "null"},
            token | {"origin": "http://127.0.0.1:1"},
            token | {"origin": matrix.world.url.replace("127.0.0.1", "localhost")},
            admin.page | {"sec-fetch-site": "same-site"},
            admin.page | {"sec-fetch-site": "none"},
            origin | {"leasehold-csrf": other.page["leasehold-csrf"]},
            origin | {"leasehold-csrf": ""},
        ]
    for headers in forged:
        with _with_headers(admin.client, headers):
            status, text = ask(admin.client, route)
        assert status == 403, f"{shown(route)} with {headers}: {status} {text}"
        assert msgspec.json.decode(text)["type"] == "/problems/csrf", text
    assert ask(admin.who.client, SEEN)[0] == 200, "it is held as before"


@pytest.fixture(scope="module")
def cookies_of_nobody(matrix: Matrix) -> dict[str, tuple[str, str]]:
    """Cookies that let nobody in, by what is wrong with them, and the tokens that go with them."""
    ring: KeyRing = matrix.world.server.service.keys
    good = ring.administrator()
    assert good is not None
    revoked, _ = matrix.world.do(lambda: ring.create("revoked", {Scope.ADMIN}, []))
    matrix.world.do(lambda: ring.revoke(revoked.key_id))
    expired, _ = matrix.world.do(lambda: ring.create("old", {Scope.ADMIN}, [], expires_in=1e-6))
    own, foreign, now = Seal(ring.secret), Seal(b"x" * 32), int(time.time())
    sessions = {
        "a session that is over": (own, new_session(good.key_id, now - 1)),
        "a session of a revoked key": (own, new_session(revoked.key_id, now + 60)),
        "a session of an expired key": (own, new_session(expired.key_id, now + 60)),
        "a session of another service": (foreign, new_session(good.key_id, now + 60)),
    }
    found = {
        what: (seal.sealed(session), seal.token(session))
        for what, (seal, session) in sessions.items()
    }
    return found | {"no session": ("x", "x"), "nothing": ("", "")}


@pytest.mark.once
@pytest.mark.parametrize("route", [r for r in ROUTES if r.needs.kind != "public"], ids=shown)
def test_no_cookie_of_nobodys_lets_in(
    matrix: Matrix, cookies_of_nobody: dict[str, tuple[str, str]], route: Route
) -> None:
    with client_of(matrix.world) as client:
        for what, (sealed, token) in cookies_of_nobody.items():
            for name in ("leasehold_session", "__Host-leasehold_session"):
                headers = {"cookie": f"{name}={sealed}", "leasehold-csrf": token}
                with _with_headers(client, headers | {"origin": matrix.world.url}):
                    status, text = ask(client, route)
                assert status == 401, f"{shown(route)} with {what}: {status} {text}"


SEEN = next(route for route in ROUTES if shown(route) == "GET /v1/locks/{name}")


@contextmanager
def _with_headers(client: httpx2.Client, headers: dict[str, str]) -> Generator[None]:
    client.headers.update(headers)
    try:
        yield
    finally:
        for name in headers:
            del client.headers[name]


# ---- batches --------------------------------------------------------------------------------------


def test_every_command_of_a_batch_is_in_this_matrix() -> None:
    assert set(get_args(wire.Command.__value__)) == set(COMMANDS)


def send(who: Someone, *commands: dict[str, Any]) -> list[dict[str, Any]]:
    answer = who.client.post("/v1/batch", json={"commands": commands})
    assert answer.status_code == 200, answer.text
    replies: list[dict[str, Any]] = answer.json()["replies"]
    return replies


def command(kind: type, key: bytes) -> dict[str, Any]:
    return {"op": kind.__name__.lower(), "key": encoded(key), **COMMANDS[kind][1]}


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.__name__)
def test_each_command_needs_its_scope_for_its_name(matrix: Matrix, kind: type) -> None:
    scope = COMMANDS[kind][0]
    names = (
        NAME,
        b"matrix/other/x",
        b"matrix/in/../other/x",
        b"elsewhere",
        b"matrix/in",
        b"\xff/x",
    )
    for who in matrix.everybody:
        keys = [b"lock:" + name for name in names]
        keys += [b"semaphore:" + NAME, b"tasklock:" + NAME, b"leader:" + NAME, b"rwlock:" + NAME]
        for key, reply in zip(keys, send(who, *(command(kind, key) for key in keys)), strict=True):
            where = f"{kind.__name__} of {key!r} by a key with {who}"
            name = key.partition(b":")[2]
            told = str({field: value for field, value in reply.items() if field != "key"})
            check_tells_nothing_secret(matrix, who, told, where)
            if who.may(scope, name):
                assert reply.get("reason") != "forbidden", f"{where}: {reply}"
            elif kind is wire.Inspect:
                (unused,) = send(who, command(kind, b"lock:" + name + b"-never-used"))
                assert reply | {"key": ""} == unused | {"key": ""}, where
            else:
                assert (reply["is"], reply["reason"]) == ("failed", "forbidden"), where
                assert scope.value in reply["detail"]
    _release_all(matrix)


def _release_all(matrix: Matrix) -> None:
    """What the matrix has acquired in passing."""
    admin = matrix.everybody[-len(DIRECTORIES)]
    assert (admin.scope, admin.directories) == (Scope.ADMIN, ())
    kinds = (b"lock", b"semaphore", b"rwlock", b"tasklock", b"leader")
    names = (
        NAME,
        b"matrix/other/x",
        b"matrix/in/../other/x",
        b"elsewhere",
        b"matrix/in",
        b"\xff/x",
    )
    send(admin, *(command(wire.Release, k + b":" + n) for k in kinds for n in names))


def test_what_a_key_may_not_inspect_looks_never_used_to_an_administrator_too(
    matrix: Matrix,
) -> None:
    admin = matrix.everybody[-len(DIRECTORIES)]
    outsider = next(who for who in matrix.everybody if who.directories == (b"matrix/other/",))
    (truth,) = send(admin, command(wire.Inspect, b"lock:" + UNUSED))
    (told,) = send(outsider, command(wire.Inspect, b"lock:" + UNUSED))
    assert told == truth


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    "key",
    [b"", b":", b"lock", b"lock:", b"LOCK:" + NAME, b" lock:x", b"lock\0:x", b"lock:" + b"x" * 513],
)
def test_a_key_that_is_none_is_let_through_by_no_scope(
    matrix: Matrix, kind: type, key: bytes
) -> None:
    admin = matrix.everybody[-len(DIRECTORIES)]
    (reply,) = send(admin, command(kind, key))
    assert (reply["is"], reply["reason"]) == ("failed", "invalid")


# ---- what is done with keys -----------------------------------------------------------------------


def keys_of(who: Someone) -> Iterable[dict[str, Any]]:
    found: list[dict[str, Any]] = who.client.get("/v1/keys").json()["keys"]
    return found


def test_an_administrator_of_a_directory_gives_out_keys_for_that_only(matrix: Matrix) -> None:
    inside = next(
        who for who in matrix.everybody if (who.scope, who.directories) == (Scope.ADMIN, (INSIDE,))
    )
    outside = next(
        who
        for who in matrix.everybody
        if (who.scope, who.directories) == (Scope.ADMIN, (b"matrix/other/",))
    )
    body = {"name": "made by the matrix", "scopes": ["admin"]}
    for beyond in (
        [],
        ["matrix/"],
        ["matrix/other/"],
        ["matrix/in/", "matrix/other/"],
        ["matrix/i"],
    ):
        answer = inside.client.post("/v1/keys", json=body | {"prefixes": beyond})
        check_refused(answer.status_code, answer.text, f"a key for {beyond}")
    made = inside.client.post("/v1/keys", json=body | {"prefixes": ["matrix/in/sub"]})
    assert made.status_code == 201
    key = made.json()
    assert made.headers["location"] == f"/v1/keys/{key['id']}"
    assert key["prefixes"] == ["matrix/in/sub/"]
    assert key["id"] in {each["id"] for each in keys_of(inside)}
    assert key["id"] not in {each["id"] for each in keys_of(outside)}
    assert not any("key" in each or "digest" in each for each in keys_of(inside))
    for who, status in ((outside, 404), (inside, 200)):
        assert who.client.delete(f"/v1/keys/{key['id']}").status_code == status
    with client_of(matrix.world) as client:
        client.headers["authorization"] = f"Bearer {key['key']}"
        assert client.get("/v1/locks").status_code == 401


def test_a_stream_ends_with_its_key(matrix: Matrix) -> None:
    world = matrix.world
    ring: KeyRing = world.server.service.keys
    principal, text = world.do(lambda: ring.create("short", {Scope.READ}, []))
    client = world.client(key=text)
    with client.stream("GET", "/v1/stream") as stream:
        assert stream.status_code == 200
        lines = stream.iter_lines()
        assert "hello" in next(lines)
        world.client().delete(f"/v1/keys/{principal.key_id}")
        for _ in lines:
            pass  # it comes to its end
    assert client.get("/v1/locks").status_code == 401


@pytest.mark.once
def test_a_revocation_reaches_another_server_and_what_waits_there(tmp_path: Path) -> None:
    here, there = World.over(tmp_path), World.over(tmp_path)
    try:
        admin = client_of(here, here.admin_key)
        made = admin.post("/v1/keys", json={"name": "short", "scopes": ["acquire"]}).json()
        path = f"/v1/locks/{b64(NAME)}"
        assert admin.post(path, params={"ttl": 60}).status_code == 200
        with client_of(there, made["key"]) as client, ThreadPoolExecutor(1) as pool:
            token = client.post("/v1/token").text
            with client.stream("GET", "/v1/stream") as stream:
                lines = stream.iter_lines()
                assert "hello" in next(lines)
                waiting = pool.submit(client.post, path, params={"ttl": 9, "wait": 30})
                begun = time.monotonic()
                assert admin.delete(f"/v1/keys/{made['id']}").status_code == 200
                for _ in lines:
                    pass  # it comes to its end
            assert waiting.result(30).status_code == 401
            took = time.monotonic() - begun
            assert took < 10  # it is 2 s at most where the machine has nothing else to do
            for credential in (made["key"], token):
                client.headers["authorization"] = f"Bearer {credential}"
                assert client.get("/v1/locks").status_code == 401
        admin.close()
    finally:
        here.close()
        there.close()


def test_what_was_refused_stands_in_the_audit() -> None:
    world = World.over()
    try:
        reader, inside = (world.client(scope, prefixes=[INSIDE]) for scope in ("read", "admin"))
        for path in ("/v1/audit", "/v1/keys"):
            assert reader.get(path).status_code == 403
        assert reader.post(f"/v1/locks/{b64(NAME)}", params={"ttl": 9}).status_code == 403
        revoke = {
            "op": "revoke",
            "key": encoded(b"lock:" + NAME),
            "lease": None,
            "reason": "a test",
        }
        answer = reader.post("/v1/batch", json={"commands": [revoke]})
        assert answer.json()["replies"][0]["reason"] == "forbidden"
        lines = world.client().get("/v1/audit").json()["entries"]
        assert [line["detail"]["tried"] for line in lines if line["what"] == "denied"] == [
            "revoke in POST /v1/batch",
            "POST /v1/locks/{name}",
            "GET /v1/keys",
            "GET /v1/audit",
        ]
        seen = inside.get("/v1/audit").json()["entries"]
        assert [line["name"] for line in seen] == [NAME.decode()] * 2
        _check_that_force_is_audited_without_ids(world)
    finally:
        world.close()


def _check_that_force_is_audited_without_ids(world: World) -> None:
    path, admin = f"/v1/locks/{b64(NAME)}", world.client()
    held = admin.post(path, params={"ttl": 60}).json()
    force = {"id": held["id"], "force": "true", "reason": "a test"}
    assert admin.delete(path, params=force).status_code == 200
    answer = admin.get("/v1/audit")
    newest = answer.json()["entries"][0]
    assert (newest["what"], newest["name"]) == ("force release", NAME.decode())
    assert newest["detail"]["lease"] == fingerprint(held["id"])
    assert held["id"] not in answer.text


def test_a_name_has_one_spelling_and_is_judged_by_its_bytes(matrix: Matrix) -> None:
    outsider = next(
        who
        for who in matrix.everybody
        if (who.scope, who.directories) == (Scope.ACQUIRE, (b"matrix/other/",))
    )
    good = encoded(NAME)
    for path in (
        f"/v1/locks/base64%3A{good}",
        f"/v1/locks/base64:{good}%3D",
        f"/v1/locks/base64:{good}%00",
        f"/v1/locks/base64:{encoded(b'matrix/other/../in/x')}/../base64:{good}",
        f"/v1/locks/base64:{encoded(b'matrix/other/')}%2F..%2Fbase64:{good}",
        f"/v1//locks/base64:{good}",
        f"/V1/locks/base64:{good}",
    ):
        answer = outsider.client.post(path, params={"ttl": 10})
        assert answer.status_code in (400, 403, 404, 405), path
        assert OWNER not in answer.text
