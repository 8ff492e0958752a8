"""Who may call what: a matrix over the server's own table of routes, so that no route can be left out.

Each route is asked for without a key, with keys that are good for nothing (bad, revoked, expired, and tokens
of those), and with a key of each scope for each of several directories. What comes of it is held against
what the route says that it needs, and what no answer may tell is looked for in every answer. A session of the
dashboard may what its key may, by the page's own requests only.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

import msgspec
import pytest

from dibs.core.names import fingerprint
from dibs.model import Acquire, Command, Inspect, Release, Renew, Resize, Revoke
from dibs.server.api.routing import Operation
from dibs.server.app import TABLE
from dibs.server.auth import key_cache
from dibs.server.auth.credentials import ServiceSecret, Signatures
from dibs.server.auth.policy import Scope
from dibs.stores.http.names import encoded
from tests.server.inside import cookie_for, served_by
from tests.server.world import Client, Profile, World, b64, entered, lock

INSIDE, NAME, UNUSED = b"matrix/in/", b"matrix/in/x", b"matrix/in/never-used"
"""A directory, what is held in it, and what isn't."""

DIRECTORIES: tuple[tuple[bytes, ...], ...] = (
    (),
    (b"matrix/",),
    (INSIDE,),
    (b"matrix/other/",),
    (b"matrix/in/deeper/", b"matrix/i/", b"MATRIX/IN/", b"/matrix/in/", b"matrix//in/"),
)
"""What keys are good for: everything, what is around, the directory itself, and others that look alike."""

OWNER, NOTE = "the-holder-of-it", "what-it-is-for"

IMPLIED = {
    Scope.READ: {"read"},
    Scope.ACQUIRE: {"read", "acquire"},
    Scope.FORCE: {"read", "force"},
    Scope.ADMIN: {"read", "acquire", "force", "admin"},
}
"""What each scope allows, told in other words than the server's own."""


@dataclass
class Someone:
    """A key, as one case of the matrix."""

    scope: Scope
    directories: tuple[bytes, ...]
    key: str
    client: Client

    def may(self, scope: Scope, name: bytes) -> bool:
        inside = not self.directories or any(name.startswith(each) for each in self.directories)
        return scope.value in IMPLIED[self.scope] and inside

    def __str__(self) -> str:
        return f"{self.scope} for {self.directories or 'everything'}"


class Matrix:
    """A server with something held, and everybody who may ask it."""

    def __init__(self, world: World) -> None:
        self.world = world
        own = {"ttl": 600, "note": NOTE, "client-id": OWNER}
        self.lease_id: str = world.client().acquired(NAME, **own)["id"]
        self.stranger = world.stranger()
        self.everybody: list[Someone] = []
        for scope in Scope:
            for directories in DIRECTORIES:
                key = world.key(scope, prefixes=directories)
                who = Someone(scope, directories, key, world.client(key=key))
                self.everybody.append(who)
        self.nobody = _headers_of_nobody(world)
        """Headers that let nobody in, by what is wrong with them."""

    def one(self, scope: Scope, *directories: bytes) -> Client:
        found = (each for each in self.everybody if each.scope is scope)
        return next(each.client for each in found if each.directories == directories)


def _headers_of_nobody(world: World) -> dict[str, str | None]:
    ring = world.server.keys

    def token(key_id: str, seconds: float, secret: ServiceSecret = ring.secrets) -> str:
        claims = (key_id, int(time.time() + seconds))
        return "Bearer " + Signatures(secret, "token").sign(claims)

    good_text = world.key("admin")
    good, revoked_text = good_text.split("_")[1], world.key("admin")
    token_of_revoked = token(revoked_text.split("_")[1], 60)
    world.revoke(revoked_text)
    _, expired = world.do(lambda: ring.create("old", {Scope.ADMIN}, [], expires_in=1e-6))
    return {
        "no key": None,
        "an empty header": "",
        "another scheme": f"Basic {good_text}",
        "the key alone": good_text,
        "a bad key": f"Bearer {good_text[:-1]}{'A' if good_text[-1] != 'A' else 'Q'}",
        "a key cut short": f"Bearer {good_text[:-1]}",
        "a key that never was": "Bearer dibs_000000000000_0123456789012345678901",
        "its id alone": f"Bearer dibs_{good}_",
        "a revoked key": f"Bearer {revoked_text}",
        "a token of a revoked key": token_of_revoked,
        "an expired key": f"Bearer {expired}",
        "an expired token": token(good, -3600),
        "a token of another service": token(good, 60, ServiceSecret(["x" * 32])),
        "a token of nobody's": token("nobody", 60),
    }


def shown(route: Operation) -> str:
    return f"{route.method} {route.path}"


every_route = pytest.mark.parametrize("route", TABLE, ids=shown)


def ask(
    client: Client,
    route: Operation,
    name: bytes = NAME,
    method: str = "",
    headers: dict[str, str] | None = None,
    **more: str,
) -> tuple[int, str]:
    """The status of an answer about a resource or its directory, and its text, if it has an end."""
    path = route.path.replace("{name}", b64(name)).replace("{dir}", b64(INSIDE[:-1]))
    path = path.replace("{word}", "nothing").replace("{rest}", "nothing")
    fields = msgspec.structs.fields(route.query) if route.query else ()
    params = {field.encode_name: "x" * 22 for field in fields if field.required} | more
    request = client.build_request(method or route.method, path, params=params, headers=headers)
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


@pytest.fixture(scope="module")
def matrix() -> Iterator[Matrix]:
    with pytest.MonkeyPatch.context() as patch, World.over() as world:
        patch.setattr(key_cache, "MIN_LOOKUP_INTERVAL", 0.0)
        yield Matrix(world)


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

OF_ADMINISTRATORS = ("/v1/keys", "/v1/audit", "/v1/restrict", "/v1/move", "/v1/placements")
"""What is an administrator's, whatever a table says: but for reading what holds in one's own directory."""

FOR_EVERY_KEY = {"POST /v1/token", "POST /identity/token", "POST /v1/batch", "POST /ui/session"}
"""These change something and need no scope by themselves."""


def test_the_server_serves_this_table_and_nothing_else(matrix: Matrix) -> None:
    served = served_by(matrix.world)
    assert len(served) == len({path for path, _ in served}), "one route for each path"
    found = {(path, method, needs) for path, each in served for method, needs in each.items()}
    with_a_head = {
        (each.path, "HEAD", each.needs)
        for each in TABLE
        if each.method == "GET" and not each.is_stream
    }
    assert found == {(each.path, each.method, each.needs) for each in TABLE} | with_a_head


def test_what_routes_need() -> None:
    assert {shown(route) for route in TABLE if route.needs.kind == "public"} == PUBLIC
    for route in TABLE:
        if any(f"{route.path}/".startswith(f"{path}/") for path in OF_ADMINISTRATORS):
            is_restriction = route.path.startswith("/v1/restrict") and route.method == "GET"
            assert is_restriction or route.needs.scope is Scope.ADMIN, shown(route)
        elif route.method != "GET" and shown(route) not in FOR_EVERY_KEY:
            scopes = (Scope.ACQUIRE, Scope.FORCE, Scope.ADMIN)
            assert route.needs.kind == "session" or route.needs.scope in scopes, shown(route)


@every_route
def test_each_key_may_do_what_the_route_needs_and_no_more(matrix: Matrix, route: Operation) -> None:
    for who in matrix.everybody if route.needs.kind != "session" else ():
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
                allowed = who.may(_scope(route), NAME if "{name}" in route.path else INSIDE)
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


def _check_looks_unused(who: Someone, route: Operation, status: int, text: str, where: str) -> None:
    """What may not be read looks like what is not there, to the last letter."""
    if "{name}" in route.path:
        assert (status, text) == ask(who.client, route, UNUSED), where
        assert status == 404, where
    else:
        assert status in (200, 404), where
        found = msgspec.json.decode(text)
        assert not any(value for value in found.values() if isinstance(value, list)), where


def test_force_needs_its_own_scope(matrix: Matrix) -> None:
    (route,) = (route for route in TABLE if route.needs.forced is not None)
    assert route.needs.forced is Scope.FORCE
    for who in matrix.everybody:
        where = f"force by a key with {who}"
        unheld = ask(who.client, route, UNUSED, force="true", reason="a test")
        if who.may(Scope.FORCE, UNUSED):
            check_let_in(*unheld, where)
        else:
            check_refused(*unheld, where)
            held = ask(who.client, route, force="true", reason="a test")
            assert held == unheld, f"{where} tells what is held"


@every_route
def test_without_a_good_key_no_route_answers(matrix: Matrix, route: Operation) -> None:
    client = matrix.stranger
    for what, header in matrix.nobody.items():
        methods: list[str] = [route.method]
        if header is None and route.method == "GET":
            methods.append("HEAD")
        for method in methods:
            headers = {} if header is None else {"authorization": header}
            status, text = ask(client, route, method=method, headers=headers)
            where = f"{method} {route.path} with {what}"
            if route.needs.kind == "public":
                check_let_in(status, text, where)
            else:
                assert status == 401 or (method, status) == ("HEAD", 405), f"{where}: {text}"
            assert OWNER not in text
            assert matrix.lease_id not in text


def test_a_refusal_says_how_to_come_in(matrix: Matrix) -> None:
    missing, bad = (
        matrix.stranger.get("/v1/locks", headers=headers)
        for headers in ({}, {"authorization": "Bearer dibs_x"})
    )
    for answer in (missing, bad):
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["type"] == "/problems/unauthenticated"
        assert answer.headers["www-authenticate"].startswith("Bearer")
    assert "invalid_token" in bad.headers["www-authenticate"]


COMMANDS: dict[type, tuple[Scope, dict[str, Any]]] = {
    Acquire: (Scope.ACQUIRE, {"id": "x" * 22, "owner": "me", "ttl": 10.0}),
    Renew: (Scope.ACQUIRE, {"id": "x" * 22, "ttl": 10.0}),
    Release: (Scope.ACQUIRE, {"id": "x" * 22}),
    Resize: (Scope.ACQUIRE, {"id": "x" * 22, "units": 1, "seq": 1}),
    Inspect: (Scope.READ, {}),
    Revoke: (Scope.FORCE, {"lease": "0" * 24, "reason": "a test"}),
}
"""What each command of a batch needs, and how one is made."""
assert set(get_args(Command.__value__)) == set(COMMANDS)

NAMES = (NAME, b"matrix/other/x", b"matrix/in/../other/x", b"elsewhere", b"matrix/in", b"\xff/x")
KEYS = [*(b"lock:" + name for name in NAMES)]
KEYS += [kind + b":" + NAME for kind in (b"semaphore", b"tasklock", b"leader", b"rwlock")]
NO_KEYS = (b"", b":", b"lock", b"LOCK:x", b" lock:x", b"lock\0:x", b"lock:" + b"x" * 513)


def send(client: Client, kind: type, *keys: bytes) -> list[dict[str, Any]]:
    command = {"op": kind.__name__.lower()} | COMMANDS[kind][1]
    return client.batch(*(command | {"key": key} for key in keys))


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.__name__)
def test_each_command_needs_its_scope_for_its_name(matrix: Matrix, kind: type) -> None:
    scope, admin = COMMANDS[kind][0], matrix.one(Scope.ADMIN)
    for who in matrix.everybody:
        for key, reply in zip(KEYS, send(who.client, kind, *KEYS), strict=True):
            where = f"{kind.__name__} of {key!r} by a key with {who}"
            name = key.partition(b":")[2]
            told = str({field: value for field, value in reply.items() if field != "key"})
            check_tells_nothing_secret(matrix, who, told, where)
            if who.may(scope, name):
                assert reply.get("reason") != "forbidden", f"{where}: {reply}"
            elif kind is Inspect:
                (unused,) = send(admin, kind, b"lock:" + name + b"-never-used")
                assert reply | {"key": ""} == unused | {"key": ""}, where
            else:
                assert (reply["is"], reply["reason"]) == ("failed", "forbidden"), where
                assert scope.value in reply["detail"]
    assert {each["reason"] for each in send(admin, kind, *NO_KEYS)} == {"invalid"}
    send(admin, Release, *KEYS)  # what was acquired in passing


def test_an_administrator_of_a_directory_gives_out_keys_for_that_only(matrix: Matrix) -> None:
    inside = matrix.one(Scope.ADMIN, INSIDE)
    outside = matrix.one(Scope.ADMIN, b"matrix/other/")
    body = {"name": "made by the matrix", "scopes": ["force"]}
    others = (["matrix/"], ["matrix/other/"], ["matrix/in/", "matrix/other/"], ["matrix/i"])
    for beyond in ([], *others):
        answer = inside.post("/v1/keys", json=body | {"prefixes": beyond})
        check_refused(answer.status_code, answer.text, f"a key for {beyond}")
    made = inside.post("/v1/keys", json=body | {"prefixes": ["matrix/in/sub"]})
    key = made.json()
    assert made.headers["location"] == f"/v1/keys/{key['id']}"
    assert key["prefixes"] == ["matrix/in/sub/"]
    for client, sees in ((inside, True), (outside, False)):
        listed = client.get("/v1/keys").json()["keys"]
        assert (key["id"] in {each["id"] for each in listed}) is sees
        assert not any("key" in each or "digest" in each for each in listed)
    for client, status in ((outside, 404), (inside, 200)):
        assert client.delete(f"/v1/keys/{key['id']}").status_code == status
    assert matrix.world.client(key=key["key"]).get("/v1/locks").status_code == 401


def test_what_was_refused_or_forced_stands_in_the_audit() -> None:
    with World.over() as world:
        admin, name = world.client(), NAME.decode()
        reader, inside = (world.client(scope, prefixes=[INSIDE]) for scope in ("read", "admin"))
        for path in ("/v1/audit", "/v1/keys"):
            assert reader.get(path).status_code == 403
        assert reader.acquire(NAME).status_code == 403
        revoke = {"op": "revoke", "key": f"lock:{name}", "lease": None, "reason": "why"}
        assert reader.batch(revoke)[0]["reason"] == "forbidden"
        lines = admin.get("/v1/audit").json()["entries"]
        assert [line["detail"]["tried"] for line in lines if line["what"] == "denied"] == [
            "revoke in POST /v1/batch",
            "POST /v1/locks/{name}",
            "GET /v1/keys",
            "GET /v1/audit",
        ]
        seen = inside.get("/v1/audit").json()["entries"]
        assert [line["name"] for line in seen] == [name] * 2
        ids = [admin.acquired(NAME)["id"]]
        force = {"id": ids[0], "force": "true", "now": "true", "reason": "a test"}
        assert admin.delete(lock(NAME), params=force).status_code == 200
        ids.append(admin.acquired(NAME)["id"])
        assert admin.batch(revoke)[0]["is"] == "revoked"
        answer = admin.get("/v1/audit")
        forced = answer.json()["entries"][:2]
        assert {(each["what"], each["name"]) for each in forced} == {("force release", name)}
        assert [each["detail"]["reason"] for each in forced] == ["why", "a test"]
        assert forced[1]["detail"]["lease"] == fingerprint(ids[0])
        assert not [each for each in ids if each in answer.text]


type Visitor = tuple[Someone, Profile]


@pytest.fixture(scope="module")
def visitors(matrix: Matrix) -> list[Visitor]:
    """One signed in with each key for everything or for one directory, an administrator's last."""
    some = [who for who in matrix.everybody if who.directories in ((), (INSIDE,))]
    return [(who, entered(matrix.world, key=who.key)) for who in some]


NEEDS_A_KEY = {"POST /v1/token", "POST /identity/token"}
"""What a session is no good for: whatever may be had for it would outlive a sign-out."""

SEEN = next(route for route in TABLE if shown(route) == "GET /v1/locks/{name}")

signed_in_routes = pytest.mark.parametrize(
    "route", [route for route in TABLE if route.needs.kind != "public"], ids=shown
)


@pytest.mark.once
@signed_in_routes
def test_what_a_session_may(matrix: Matrix, visitors: list[Visitor], route: Operation) -> None:
    """No key is a session, nor is a session looked at beside a key."""
    for who, browser in visitors:
        where = f"{shown(route)} by a session of {who}"
        by_key, refusal = ask(who.client, route)
        if route.needs.kind == "session":
            both = browser.page | {"authorization": f"Bearer {who.key}"}
            assert by_key == ask(browser.client, route, headers=both)[0] == 401, where
            continue
        status, text = ask(browser.client, route, headers=browser.page)
        if shown(route) in NEEDS_A_KEY:
            assert (by_key, status) == (200, 403), where
            continue
        assert status == by_key, f"{where}: {text}"
        assert status != 403 or text == refusal, where
        check_tells_nothing_secret(matrix, who, text, where)


@pytest.mark.once
@signed_in_routes
def test_no_other_page_may(matrix: Matrix, visitors: list[Visitor], route: Operation) -> None:
    """Not even an administrator's: whatever changes something needs the page's own token and origin.

    One that is over is nothing to any page.
    """
    (who, admin), (_, other) = visitors[-2], visitors[0]
    assert (who.scope, who.directories) == (Scope.ADMIN, ())
    over = cookie_for(matrix.world, who.key.split("_")[1], time.time() - 1)
    headers = admin.page | {"cookie": f"dibs_session={over}"}
    assert ask(matrix.stranger, route, headers=headers)[0] == 401
    if route.needs.kind == "session":
        return  # signing out: see `ui`
    foreign = {"sec-fetch-site": "cross-site"}
    forged: list[dict[str, str]] = [admin.page | foreign, foreign]
    if route.method != "GET":
        origin, token = admin.origin, {"dibs-csrf": admin.page["dibs-csrf"]}
        alias = matrix.world.url.replace("127.0.0.1", "localhost")
        forged += [{}, origin, token]
        forged += [token | {"origin": each} for each in ("null", "http://127.0.0.1:1", alias)]
        forged += [admin.page | {"sec-fetch-site": each} for each in ("same-site", "none")]
        forged += [origin | {"dibs-csrf": each} for each in (other.page["dibs-csrf"], "")]
    for headers in forged:
        status, text = ask(admin.client, route, headers=headers)
        assert status == 403, f"{shown(route)} with {headers}: {status} {text}"
        assert msgspec.json.decode(text)["type"] == "/problems/csrf", text
    assert ask(who.client, SEEN)[0] == 200, "it is held as before"
