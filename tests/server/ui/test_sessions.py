"""Sessions on the wire: how they begin and end, and all that is none. See also the matrix of all routes."""

import re
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from leasehold.errors import NotConfigured
from leasehold.server.config import read_config
from leasehold.server.limits import Limits
from leasehold.server.principal import Scope
from leasehold.server.ui.seal import Seal, Session, new_session
from leasehold.server.ui.tickets import LIFETIME, MOST, Tickets
from tests.server.world import World, b64
from tests.servers.certificates import key_of, self_signed

pytestmark = pytest.mark.once

COOKIE = re.compile(
    r"leasehold_session=([\w.-]+); Path=/; Max-Age=(\d+); HttpOnly; SameSite=Strict(; Secure)?"
)

_trust = ssl.create_default_context()  # each client would read the certificates anew


class Profile:
    """A browser's, as the server sees it: its cookies, and the dashboard's page in it."""

    def __init__(self, world: World, **headers: str) -> None:
        self.client = httpx2.Client(base_url=world.url, headers=headers, verify=_trust)
        self.origin = {"origin": world.url}
        self.page = dict(self.origin)

    def sign_in(self, key: str = "", **body: str) -> httpx2.Response:
        answer = self.client.post("/ui/session", json=body or {"key": key}, headers=self.origin)
        if answer.status_code == 200:
            self.page["leasehold-csrf"] = answer.json()["csrf"]
        return answer

    @property
    def sealed(self) -> str:
        return self.client.cookies["leasehold_session"]

    def with_cookie(self, sealed: str, name: str = "leasehold_session") -> int:
        """The status of what is asked with that cookie."""
        headers = {"cookie": f"{name}={sealed}"}
        self.client.cookies.clear()
        return self.client.get("/v1/about", headers=headers).status_code


@pytest.fixture
def enter(world: World) -> Iterator[Callable[..., Profile]]:
    """A profile that has signed in with a key of these scopes; an administrator's without."""
    found: list[Profile] = []

    def enter(*scopes: str, at: World = world, **key: Any) -> Profile:
        found.append(profile := Profile(at))
        answer = profile.sign_in(at.key(*scopes, **key) if scopes else at.admin_key)
        assert answer.status_code == 200, answer.text
        return profile

    yield enter
    for each in found:
        each.client.close()


@pytest.fixture
def profile(world: World) -> Iterator[Profile]:
    """One that has not signed in."""
    profile = Profile(world)
    yield profile
    profile.client.close()


def type_of(answer: httpx2.Response) -> str:
    assert answer.headers["content-type"] == "application/problem+json"
    return str(answer.json()["type"]).removeprefix("/problems/")


# ---- signing in -----------------------------------------------------------------------------------


def test_a_key_for_a_session(world: World, profile: Profile) -> None:
    key = world.key("acquire", prefixes=[b"jobs/", b"\xff/"], name="<b>me</b>")
    answer = profile.sign_in(f" {key}\n")
    found = COOKIE.fullmatch(answer.headers["set-cookie"])
    assert found
    assert 12 * 3600 - 60 < int(found[2]) <= 12 * 3600
    assert found[3] is None, "without TLS there is none to insist on"
    told = answer.json()
    assert told == {
        "csrf": told["csrf"],
        "name": "<b>me</b>",
        "scopes": ["acquire", "read"],
        "prefixes": ["am9icy8", "_y8"],
        "admin": False,
        "expires_at": told["expires_at"],
    }
    assert re.fullmatch(r"[\w-]{43}", told["csrf"])
    assert abs(told["expires_at"] - time.time() - 12 * 3600) < 60
    assert profile.client.get("/ui/session").json() == told
    for secret in (key, key.rpartition("_")[2]):
        assert secret not in answer.text + str(answer.headers), "it is never seen again"
    assert answer.headers["cache-control"] == "no-store"
    held = profile.client.post(f"/v1/locks/{b64('jobs/x')}", headers=profile.page)
    assert held.status_code == 200
    assert profile.client.get(f"/v1/locks/{b64('jobs/x')}").status_code == 200
    denied = profile.client.post(f"/v1/locks/{b64('x')}", headers=profile.page)
    assert (denied.status_code, type_of(denied)) == (403, "forbidden")


@pytest.mark.parametrize(
    "key", ["", "x", "lh_", "lh_000000000000_0123456789012345678901", "\0", "é", "lh_é"]
)
def test_no_key(profile: Profile, key: str) -> None:
    answer = profile.sign_in(key)
    assert (answer.status_code, type_of(answer)) == (401, "unauthenticated")
    assert "set-cookie" not in answer.headers
    assert "there is no such key" in answer.json()["detail"]


def test_a_token_is_no_key(world: World, profile: Profile) -> None:
    """Or what lasts for a minute would last for half a day."""
    assert profile.sign_in(world.client().post("/v1/token").text).status_code == 401


def test_a_key_that_has_ended(world: World, profile: Profile) -> None:
    ring = world.server.service.keys
    who, revoked = world.do(lambda: ring.create("old", {Scope.READ}, []))
    world.do(lambda: ring.revoke(who.key_id))
    _, expired = world.do(lambda: ring.create("old", {Scope.READ}, [], expires_in=1e-6))
    for key, told in ((revoked, "was revoked"), (expired, "has expired")):
        answer = profile.sign_in(key)
        assert answer.status_code == 401
        assert told in answer.json()["detail"]


@pytest.mark.parametrize(
    ("body", "media", "status"),
    [
        (b'{"key": "x", "ticket": "x"}', "application/json", 400),
        (b"{}", "application/json", 400),
        (b'{"keys": "x"}', "application/json", 400),
        (b'{"key": 1}', "application/json", 400),
        (b'["x"]', "application/json", 400),
        (b'{"key": "\xff"}', "application/json", 400),
        (b'{"key": "x"}', "text/plain", 415),
        (b"key=x", "application/x-www-form-urlencoded", 415),
        (b'{"key": "x"}', "application/json-patch+json", 415),
        (b'{"key": "' + b"x" * 5000 + b'"}', "application/json", 413),
    ],
)
def test_no_sign_in(profile: Profile, body: bytes, media: str, status: int) -> None:
    headers = profile.origin | {"content-type": media}
    answer = profile.client.post("/ui/session", content=body, headers=headers)
    assert answer.status_code == status, answer.text
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "null"},
        {"origin": "http://127.0.0.1"},
        {"origin": "https://locks.example"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
    ids=str,
)
def test_only_the_dashboard_signs_in(
    world: World, profile: Profile, headers: dict[str, str]
) -> None:
    """Or another page could have somebody work in the name of its own key."""
    if "sec-fetch-site" in headers:
        headers = headers | profile.origin
    answer = profile.client.post("/ui/session", json={"key": world.admin_key}, headers=headers)
    assert (answer.status_code, type_of(answer)) == (403, "csrf")
    assert "set-cookie" not in answer.headers


def test_a_key_that_ends_soon_bounds_its_session(world: World, profile: Profile) -> None:
    ring = world.server.service.keys
    _, key = world.do(lambda: ring.create("short", {Scope.READ}, [], expires_in=100))
    answer = profile.sign_in(key)
    assert answer.json()["expires_at"] <= time.time() + 100
    assert int(COOKIE.fullmatch(answer.headers["set-cookie"])[2]) <= 100  # type: ignore[index]


def test_signing_in_has_its_bounds() -> None:
    """Each time is written down, and that costs the store something."""
    world = World.over(limits=Limits(sign_ins_per_key=2))
    try:
        profile = Profile(world)
        key = world.key("read")
        assert [profile.sign_in(key).status_code for _ in range(3)] == [200, 200, 429]
        answer = profile.sign_in(key)
        assert (type_of(answer), answer.headers["retry-after"]) == ("limit", "60")
        assert profile.sign_in(world.admin_key).status_code == 200
        assert profile.client.get("/ui/session").status_code == 200
        profile.client.close()
    finally:
        world.close()


# ---- what is no session ---------------------------------------------------------------------------


def test_a_session_that_was_changed(enter: Callable[..., Profile]) -> None:
    profile = enter("read")
    sealed = profile.sealed
    assert profile.with_cookie(sealed) == 200
    key_id, expires, nonce, mark = sealed.split(".")
    changed = {
        f"{key_id}.{int(expires) + 1}.{nonce}.{mark}",
        f"{key_id}.0{expires}.{nonce}.{mark}",
        f"{'0' * 12}.{expires}.{nonce}.{mark}",
        f"{key_id}.{expires}.{nonce[::-1]}.{mark}",
        f"{key_id}.{expires}.{nonce}.{mark[:-1]}",
        f"{key_id}.{expires}.{nonce}.{mark[::-1]}",
        f"{key_id}.{expires}.{nonce}.",
        f"{key_id}.{expires}.{nonce}",
        f"{sealed}x",
        f'"{sealed}"',
        sealed.upper(),
        "x",
    }
    assert {text: profile.with_cookie(text) for text in changed} == dict.fromkeys(changed, 401)
    assert profile.with_cookie(sealed, "Leasehold_Session") == 401
    assert profile.with_cookie(sealed) == 200


def test_a_session_of_another_service(world: World, enter: Callable[..., Profile]) -> None:
    profile = enter("read")
    key_id = profile.sealed.partition(".")[0]
    foreign = Seal(b"x" * 32).sealed(new_session(key_id, int(time.time()) + 100))
    assert profile.with_cookie(foreign) == 401
    other = World.over()
    try:
        at_other = Profile(other)
        assert at_other.sign_in(other.admin_key).status_code == 200
        assert profile.with_cookie(at_other.sealed) == 401
        at_other.client.close()
    finally:
        other.close()


def test_a_session_that_is_over(world: World, enter: Callable[..., Profile]) -> None:
    profile = enter("read")
    seal = Seal(world.server.service.keys.secret)
    key_id = profile.sealed.partition(".")[0]
    now = int(time.time())
    for expires_at, status in ((now - 1, 401), (now + 100, 200)):
        assert profile.with_cookie(seal.sealed(new_session(key_id, expires_at))) == status
    assert profile.with_cookie(seal.sealed(new_session("0" * 12, now + 100))) == 401


def test_two_sessions_at_once_are_none(enter: Callable[..., Profile]) -> None:
    """A server on another port of this host may set a cookie for some path, to slip somebody its own."""
    one, other = enter("read"), enter("acquire")
    mine, theirs = one.sealed, other.sealed
    both = f"leasehold_session={theirs}; leasehold_session={mine}"
    one.client.cookies.clear()
    answer = one.client.get("/v1/about", headers={"cookie": both})
    assert (answer.status_code, "two sessions" in answer.text) == (401, True)
    for rest in ("leasehold_session=x", "leasehold_session=", f"leasehold_session={mine}", "a=b"):
        headers = {"cookie": f"{rest}; leasehold_session={mine}"}
        assert one.client.get("/v1/about", headers=headers).status_code == 200, rest


@pytest.mark.parametrize("name", ["origin", "leasehold-csrf", "sec-fetch-site"])
def test_headers_that_disagree(enter: Callable[..., Profile], name: str) -> None:
    profile = enter()
    page = profile.page | {"sec-fetch-site": "same-origin"}
    headers = [*page.items(), (name, "x")]
    answer = profile.client.post(f"/v1/locks/{b64('x')}", headers=headers)
    assert (answer.status_code, type_of(answer)) == (400, "malformed")


def test_other_cookies_are_nothing(world: World) -> None:
    """Whoever brings a key, or nothing, is asked for no more than before."""
    with httpx2.Client(
        base_url=world.url, headers={"cookie": "theme=dark"}, verify=_trust
    ) as client:
        answer = client.get("/v1/locks")
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        client.headers["authorization"] = f"Bearer {world.admin_key}"
        client.headers["cookie"] = "leasehold_session=x"
        assert client.post(f"/v1/locks/{b64('by-key')}").status_code == 200


# ---- whose page asks ------------------------------------------------------------------------------


def test_what_the_page_must_bring(enter: Callable[..., Profile]) -> None:
    profile, other = enter(), enter()
    origin, path = profile.origin, f"/v1/locks/{b64('guarded')}"
    for headers, told in (
        (origin, "needs the header leasehold-csrf"),
        (origin | {"leasehold-csrf": other.page["leasehold-csrf"]}, "not this session's"),
        ({"leasehold-csrf": profile.page["leasehold-csrf"]}, "no header Origin"),
        (profile.page | {"origin": "null"}, "another site's page"),
        (profile.page | {"sec-fetch-site": "same-site"}, "another site's page"),
    ):
        answer = profile.client.post(path, headers=headers)
        assert (answer.status_code, type_of(answer)) == (403, "csrf"), headers
        assert told in answer.json()["detail"]
    assert profile.client.get(path).status_code == 404, "nobody has acquired it"
    for site in ("same-origin", "none"):
        assert profile.client.get("/v1/about", headers={"sec-fetch-site": site}).status_code == 200
    for site in ("same-site", "cross-site", "anything"):
        answer = profile.client.get("/v1/about", headers={"sec-fetch-site": site})
        assert (answer.status_code, type_of(answer)) == (403, "csrf")
    assert profile.client.post(path, headers=profile.page).status_code == 200


def test_behind_a_proxy() -> None:
    """TLS is its part; where it changes Host, the service has to be told how browsers call it."""
    world = World.over(origins=("https://Locks.example/",))
    try:
        at_host = {"origin": "https://127.0.0.1:" + world.url.rpartition(":")[2]}
        for headers in (at_host, {"origin": "https://locks.example"}):
            with httpx2.Client(base_url=world.url, headers=headers, verify=_trust) as client:
                answer = client.post("/ui/session", json={"key": world.admin_key})
                told = answer.headers["set-cookie"]
                assert told.startswith("__Host-leasehold_session=")
                assert told.endswith("; Secure")
                client.headers["cookie"] = told.partition(";")[0]
                client.headers["leasehold-csrf"] = answer.json()["csrf"]
                assert client.post(f"/v1/locks/{b64(told[-99:-50])}").status_code == 200
                assert client.delete("/ui/session").headers["set-cookie"].startswith("__Host-")
        with httpx2.Client(base_url=world.url, verify=_trust) as client:
            for origin in ("https://other.example", "http://locks.example"):
                answer = client.post(
                    "/ui/session", json={"key": world.admin_key}, headers={"origin": origin}
                )
                assert answer.status_code == 403, origin
    finally:
        world.close()


@pytest.mark.parametrize(
    "origin", ["locks.example", "https://", "https://a/b", "ftp://a", "*", "https://u@a", "null"]
)
def test_what_is_no_origin(origin: str) -> None:
    with pytest.raises(NotConfigured, match="origins"):
        read_config(None, {"origins": [origin]}, {})


def test_over_tls(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path / "server.pem")
    world = World.over(tls_cert=str(certificate), tls_key=str(key_of(certificate)))
    trusted = ssl.create_default_context(cafile=certificate)
    try:
        with httpx2.Client(base_url=world.url, verify=trusted) as client:
            told = ""
            for origin, status in ((world.url.replace("https", "http"), 403), (world.url, 200)):
                answer = client.post(
                    "/ui/session", json={"key": world.admin_key}, headers={"origin": origin}
                )
                assert answer.status_code == status
                told = answer.headers.get("set-cookie", "")
            assert told.startswith("__Host-leasehold_session=")
            assert told.endswith("; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict; Secure")
            pair = told.partition(";")[0]
            for cookie, status in ((pair, 200), (pair.removeprefix("__Host-"), 401)):
                client.cookies.clear()
                assert client.get("/v1/about", headers={"cookie": cookie}).status_code == status
    finally:
        world.close()


# ---- its end --------------------------------------------------------------------------------------


def test_signing_out(world: World, enter: Callable[..., Profile]) -> None:
    profile, other = enter("read"), enter("read")
    sealed = profile.sealed
    for headers in (
        profile.origin,
        profile.origin | {"leasehold-csrf": other.page["leasehold-csrf"]},
    ):
        assert profile.client.delete("/ui/session", headers=headers).status_code == 403
    answer = profile.client.delete("/ui/session", headers=profile.page)
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["set-cookie"] == (
        "leasehold_session=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict"
    )
    assert profile.client.get("/ui/session").status_code == 401
    assert profile.with_cookie(sealed) == 401, "whoever has kept it has nothing"
    assert other.client.get("/ui/session").status_code == 200
    lines = world.client().get("/v1/audit", params={"limit": 3}).json()["entries"]
    assert [line["what"] for line in lines] == ["signed out", "signed in", "signed in"]
    assert lines[0]["who"] == "a test"
    assert lines[1]["detail"] == {"with": "a key", "from": "127.0.0.1"}
    assert sealed.rpartition(".")[2] not in str(lines)


def test_a_session_ends_with_its_key(world: World, enter: Callable[..., Profile]) -> None:
    profile = enter("read")
    key_id = profile.sealed.partition(".")[0]
    with profile.client.stream("GET", "/v1/events") as stream:
        lines = stream.iter_lines()
        assert "hello" in next(line for line in lines if line.startswith("event"))
        assert world.client().delete(f"/v1/keys/{key_id}").status_code == 200
        assert "data: key ended" in list(lines)
    answer = profile.client.get("/v1/about")
    assert (answer.status_code, "was revoked" in answer.json()["detail"]) == (401, True)
    assert profile.client.get("/ui/session").status_code == 401
    assert profile.client.delete("/ui/session", headers=profile.page).status_code == 401


def test_a_stream_ends_with_its_session(world: World, enter: Callable[..., Profile]) -> None:
    profile = enter("read")
    seal = Seal(world.server.service.keys.secret)
    short = seal.sealed(new_session(profile.sealed.partition(".")[0], int(time.time()) + 2))
    profile.client.cookies.clear()
    headers = {"cookie": f"leasehold_session={short}"}
    with profile.client.stream("GET", "/v1/events", headers=headers) as stream:
        assert stream.status_code == 200
        assert "session ended" in stream.read().decode()


@pytest.mark.once
def test_any_server_of_the_service_takes_it(tmp_path: Path, enter: Callable[..., Profile]) -> None:
    here = World.over(tmp_path)
    there = World.over(tmp_path)
    try:
        profile = enter("read", at=here)
        with httpx2.Client(base_url=there.url, verify=_trust) as client:
            client.headers["cookie"] = f"leasehold_session={profile.sealed}"
            assert client.get("/ui/session").json() == profile.client.get("/ui/session").json()
            page = {"origin": there.url, "leasehold-csrf": profile.page["leasehold-csrf"]}
            assert client.post(f"/v1/locks/{b64('x')}", headers=page).status_code == 403
            assert client.delete("/ui/session", headers=page).status_code == 204
    finally:
        there.close()
        here.close()


# ---- tickets --------------------------------------------------------------------------------------


def ticket_of(world: World) -> str:
    url = world.server.sign_in_url
    assert url is not None
    return url.removeprefix(f"{world.url}/#ticket=")


def test_a_ticket_is_good_once(tmp_path: Path) -> None:
    world = World.over(tmp_path)
    try:
        profile = Profile(world)
        assert profile.sign_in(ticket="x" * 22).status_code == 401
        assert profile.sign_in(ticket=f"{ticket_of(world)}x").status_code == 401
        told = profile.sign_in(ticket=ticket_of(world)).json()
        assert (told["name"], told["admin"]) == ("first administrator", True)
        again = profile.sign_in(ticket=ticket_of(world))
        assert again.status_code == 401
        assert "used already" in again.json()["detail"]
        assert profile.client.get("/v1/keys").status_code == 200
        line = world.client().get("/v1/audit").json()["entries"][0]
        assert (line["what"], line["detail"]["with"]) == (
            "signed in",
            "the link that the server printed",
        )
        profile.client.close()
    finally:
        world.close()
    for wanted in (False, True):
        again_started = World.over(tmp_path, sign_in=wanted)
        try:
            assert (again_started.server.sign_in_url is not None) == wanted
            if wanted:
                profile = Profile(again_started)
                assert profile.sign_in(ticket=ticket_of(world)).status_code == 401, (
                    "of another start"
                )
                assert profile.sign_in(ticket=ticket_of(again_started)).json()["admin"]
                profile.client.close()
        finally:
            again_started.close()


def test_a_ticket_for_nobody(tmp_path: Path) -> None:
    """There are keys, but none for everything: whoever starts the server gets no more than they have."""
    world = World.over(tmp_path)
    ring = world.server.service.keys
    first = world.server.service.keys.list()[0].id
    world.do(lambda: ring.create("part", {Scope.ADMIN}, [b"x/"]))
    ticket = ticket_of(world)
    world.do(lambda: ring.revoke(first))
    profile = Profile(world)
    assert profile.sign_in(ticket=ticket).status_code == 401
    profile.client.close()
    world.close()
    with pytest.raises(NotConfigured, match="no key is an administrator's"):
        World.over(tmp_path, sign_in=True)


def test_tickets_end_and_are_bounded() -> None:
    now = 1000.0
    tickets = Tickets(lambda: now)
    good, late = tickets.issue("a"), tickets.issue("b")
    assert tickets.redeem(good) == "a"
    assert tickets.redeem(good) is None
    now += LIFETIME
    assert tickets.redeem(late) is None
    first = tickets.issue("c")
    for _ in range(MOST):
        tickets.issue("d")
    assert tickets.redeem(first) is None
    assert tickets.redeem("\ud800") is None


def test_what_a_seal_takes() -> None:
    seal, other = Seal(b"a" * 32), Seal(b"b" * 32)
    session = new_session("0123456789ab", 100)
    assert seal.opened(seal.sealed(session)) == session
    assert other.opened(seal.sealed(session)) is None
    assert seal.token(session) not in (other.token(session), seal.sealed(session))
    assert seal.token(session) != seal.token(Session("0123456789ab", 101, session.nonce))
    assert seal.opened(seal.sealed(session).replace("100", "١٠٠")) is None
