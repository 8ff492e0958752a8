"""Whose page asks: a session alone changes nothing, its own page has to ask."""

import ssl
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from dibs.errors import NotConfigured
from dibs.server.config import read_config
from tests.server.ui.profiles import TRUST, Profile, type_of
from tests.server.world import World, b64
from tests.servers.certificates import key_of, self_signed

pytestmark = pytest.mark.once


def test_what_the_page_must_bring(enter: Callable[..., Profile]) -> None:
    profile, other = enter(), enter()
    origin, path = profile.origin, f"/v1/locks/{b64('guarded')}"
    for headers, told in (
        (origin, "need the header dibs-csrf"),
        (origin | {"dibs-csrf": other.page["dibs-csrf"]}, "another session"),
        ({"dibs-csrf": profile.page["dibs-csrf"]}, "Origin header is missing"),
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
            with httpx2.Client(base_url=world.url, headers=headers, verify=TRUST) as client:
                answer = client.post("/ui/session", json={"key": world.admin_key})
                told = answer.headers["set-cookie"]
                assert told.startswith("__Host-dibs_session=")
                assert told.endswith("; Secure")
                client.headers["cookie"] = told.partition(";")[0]
                client.headers["dibs-csrf"] = answer.json()["csrf"]
                assert client.post(f"/v1/locks/{b64(told[-99:-50])}").status_code == 200
                assert client.delete("/ui/session").headers["set-cookie"].startswith("__Host-")
        with httpx2.Client(base_url=world.url, verify=TRUST) as client:
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
            assert told.startswith("__Host-dibs_session=")
            assert told.endswith("; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict; Secure")
            pair = told.partition(";")[0]
            for cookie, status in ((pair, 200), (pair.removeprefix("__Host-"), 401)):
                client.cookies.clear()
                assert client.get("/v1/about", headers={"cookie": cookie}).status_code == status
    finally:
        world.close()
