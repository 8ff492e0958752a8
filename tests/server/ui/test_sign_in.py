"""Signing in on the wire: what is a key for a session, and what is none."""

import re
import time

import pytest

from dibs.server.auth.policy import Scope
from dibs.server.limits import Limits
from tests.server.inside import keys_of
from tests.server.ui.profiles import Profile, type_of
from tests.server.world import World, b64

pytestmark = pytest.mark.once


COOKIE = re.compile(
    r"dibs_session=([\w.-]+); Path=/; Max-Age=(\d+); HttpOnly; SameSite=Strict(; Secure)?"
)


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
    assert re.fullmatch(r"[\w.-]+", told["csrf"])
    assert abs(told["expires_at"] - time.time() - 12 * 3600) < 60
    assert profile.client.get("/ui/session").json() == told
    for secret in (key, key.split("_", 2)[2]):
        assert secret not in answer.text + str(answer.headers), "it is never seen again"
    assert answer.headers["cache-control"] == "no-store"
    held = profile.client.post(f"/v1/locks/{b64('jobs/x')}", headers=profile.page)
    assert held.status_code == 200
    assert profile.client.get(f"/v1/locks/{b64('jobs/x')}").status_code == 200
    denied = profile.client.post(f"/v1/locks/{b64('x')}", headers=profile.page)
    assert (denied.status_code, type_of(denied)) == (403, "forbidden")


@pytest.mark.parametrize(
    "key", ["", "x", "dibs_", "dibs_000000000000_0123456789012345678901", "\0", "é", "dibs_é"]
)
def test_no_key(profile: Profile, key: str) -> None:
    answer = profile.sign_in(key)
    assert (answer.status_code, type_of(answer)) == (401, "unauthenticated")
    assert "set-cookie" not in answer.headers
    assert "unknown API key" in answer.json()["detail"]


def test_a_token_is_no_key(world: World, profile: Profile) -> None:
    """Or what lasts for a minute would last for half a day."""
    assert profile.sign_in(world.client().post("/v1/token").text).status_code == 401


def test_a_key_that_has_ended(world: World, profile: Profile) -> None:
    ring = keys_of(world)
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
    ring = keys_of(world)
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
