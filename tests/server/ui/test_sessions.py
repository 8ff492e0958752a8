"""Sessions on the wire: what is none, which pages may use one, and how it ends."""

import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from dibs.errors import NotConfigured
from dibs.server.config import read_config
from tests.server.inside import cookie_for, session_in, ticket_of
from tests.server.world import Patch, World, b64, entered, lock, problem
from tests.servers.certificates import key_of, self_signed
from tests.servers.waiting import wait_until

type Start = Callable[..., World]


def test_a_forged_session_is_none(world: World, start: Start) -> None:
    profile, other, theirs = entered(world, "read"), start(), entered(world, "acquire")
    sealed = profile.sealed
    key_id, expires, nonce = session_in(world, sealed)
    body, mark = sealed.split(".")
    others = [(key_id, expires + 1, nonce), ("0" * 12, expires, nonce), (key_id, expires, "x")]
    later = time.time() + 100
    forged = [
        *(f"{cookie_for(world, *each).split('.')[0]}.{mark}" for each in others),
        *(f"{body}.{mark[:-1]}", f"{body}.", body, f"{sealed}x", f".{sealed}"),
        *(f'"{sealed}"', sealed.upper(), "x"),
        cookie_for(world, key_id, time.time() - 1),
        cookie_for(world, "0" * 12, later),
        cookie_for(other, key_id, later),
        f"{theirs.sealed}; dibs_session={sealed}",  # set by another port, to slip in its own
        f"x; Dibs_Session={sealed}",
    ]
    for text in forged:
        assert profile.with_cookie(f"dibs_session={text}") == 401, text
    good = [sealed, cookie_for(world, key_id, later), f"x; dibs_session={sealed}"]
    for text in (*good, f"{sealed}; dibs_session={sealed}", f"{sealed}; a=b"):
        assert profile.with_cookie(f"dibs_session={text}") == 200, text


def test_each_credential_is_good_for_one_use(world: World) -> None:
    profile = entered(world, "read")
    csrf, sealed = profile.page["dibs-csrf"], profile.sealed
    link = ticket_of(world)
    for text in (csrf, link):
        assert profile.with_cookie(f"dibs_session={text}") == 401
    for text in (csrf, sealed, link):
        headers = {"authorization": f"Bearer {text}"}
        assert profile.client.get("/v1/about", headers=headers).status_code == 401
    for text in (csrf, sealed):
        assert profile.sign_in(ticket=text).status_code == 401
    cookie = {"cookie": f"dibs_session={sealed}"}
    for text in (sealed, link):
        page = profile.page | cookie | {"dibs-csrf": text}
        assert profile.client.delete("/ui/session", headers=page).status_code == 403
    by_key = {"authorization": f"Bearer {world.admin_key}", "cookie": "theme=dark; dibs_session=x"}
    assert profile.client.post(lock("by-key"), headers=by_key).status_code == 200
    answer = profile.client.get("/v1/locks", headers={"cookie": "theme=dark"})
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")


def test_a_page_gives_each_header_once_and_other_sites_may_not_even_read(world: World) -> None:
    """What else a forged page might send: see `test_no_other_page_may`."""
    profile, path = entered(world), lock("guarded")
    page = profile.page | {"sec-fetch-site": "same-origin"}
    for name in page:
        answer = profile.client.post(path, headers=[*page.items(), (name, "x")])
        assert problem(answer) == (400, "malformed"), name
    assert profile.client.get(path).status_code == 404, "nobody has acquired it"
    for site, status in (("same-origin", 200), ("none", 200), ("same-site", 403), ("x", 403)):
        answer = profile.client.get("/v1/about", headers={"sec-fetch-site": site})
        assert answer.status_code == status
    assert profile.client.post(path, headers=profile.page).status_code == 200


def test_behind_a_proxy_that_ends_tls(start: Start) -> None:
    """If it changes Host, the service is configured with the origins that browsers use."""
    world = start(origins=("https://Locks.example/",))
    at_host = "https://127.0.0.1:" + world.url.rpartition(":")[2]
    client = world.stranger()
    for origin in (at_host, "https://locks.example"):
        client.headers["origin"] = origin
        answer = client.post("/ui/session", json={"key": world.admin_key})
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("__Host-dibs_session=")
        assert cookie.endswith("; Secure")
        client.headers["cookie"] = cookie.partition(";")[0]
        client.headers["dibs-csrf"] = answer.json()["csrf"]
        assert client.post(lock(cookie[-99:-50])).status_code == 200
        assert client.delete("/ui/session").headers["set-cookie"].startswith("__Host-")
    for origin in ("https://other.example", "http://locks.example"):
        client.headers["origin"] = origin
        answer = client.post("/ui/session", json={"key": world.admin_key})
        assert answer.status_code == 403, origin
    for origin in ("locks.example", "https://a/b", "ftp://a", "*", "https://u@a", "null"):
        with pytest.raises(NotConfigured, match="origins"):
            read_config(None, {"origins": [origin]}, {})


def test_over_tls(start: Start, tmp_path: Path) -> None:
    certificate = self_signed(tmp_path / "server.pem")
    world = start(tls_cert=str(certificate), tls_key=str(key_of(certificate)))
    trusted = ssl.create_default_context(cafile=certificate)
    origins = {"origin": world.url.replace("https", "http")}, {"origin": world.url}
    with httpx2.Client(base_url=world.url, verify=trusted) as client:
        key = {"key": world.admin_key}
        refused, answer = (client.post("/ui/session", json=key, headers=each) for each in origins)
        cookie, _, rest = answer.headers["set-cookie"].partition("; ")
        assert (refused.status_code, answer.status_code) == (403, 200)
        assert rest == "Path=/; Max-Age=43200; HttpOnly; SameSite=Strict; Secure"
        client.cookies.clear()
        for name, status in ((cookie, 200), (cookie.removeprefix("__Host-"), 401)):
            assert client.get("/v1/about", headers={"cookie": name}).status_code == status


def test_signing_out_ends_the_session(world: World) -> None:
    profile, other = entered(world, "read"), entered(world, "read")
    sealed = profile.sealed
    answer = profile.client.delete("/ui/session", headers=profile.page)
    assert (answer.status_code, answer.content) == (204, b"")
    expected = "dibs_session=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict"
    assert answer.headers["set-cookie"] == expected
    assert profile.client.get("/ui/session").status_code == 401
    assert profile.with_cookie(f"dibs_session={sealed}") == 401, "also for a copy of the cookie"
    assert other.client.get("/ui/session").status_code == 200
    lines = world.client().get("/v1/audit", params={"limit": 3}).json()["entries"]
    assert [line["what"] for line in lines] == ["signed out", "signed in", "signed in"]
    assert lines[0]["who"] == "a test"
    assert lines[1]["detail"] == {"with": "a key", "from": "127.0.0.1"}
    assert sealed not in str(lines)


def test_a_session_and_its_streams_end_with_their_key(world: World) -> None:
    profile, short = entered(world, "read"), entered(world, "read")
    key_id = session_in(world, profile.sealed).key_id
    ends = cookie_for(world, session_in(world, short.sealed).key_id, time.time() + 2)
    short.client.cookies.clear()
    with profile.client.stream("GET", "/v1/events") as stream:
        lines = stream.iter_lines()
        assert "event: hello" in next(line for line in lines if line.startswith("event"))
        assert world.client().delete(f"/v1/keys/{key_id}").status_code == 200
        assert "data: key ended" in list(lines)
    answer = profile.client.get("/v1/about")
    assert (answer.status_code, "was revoked" in answer.json()["detail"]) == (401, True)
    assert profile.client.delete("/ui/session", headers=profile.page).status_code == 401
    cookie = {"cookie": f"dibs_session={ends}"}
    with short.client.stream("GET", "/v1/events", headers=cookie) as stream:
        assert stream.status_code == 200
        assert "session ended" in stream.read().decode()


@pytest.mark.parametrize(
    "path", ["/v1/events", "/v1/stream", f"/v1/watch/locks/{b64('secret')}", "an acquire"]
)
def test_what_is_open_ends_on_signing_out(world: World, path: str) -> None:
    profile, other, admin = entered(world, "acquire"), entered(world, "read"), world.client()
    held = admin.acquired("secret")
    said: list[str] = []

    def listen() -> None:
        method, url = ("POST", f"{lock('secret')}?wait=50") if is_acquire else ("GET", path)
        with profile.client.stream(method, url, headers=profile.page) as stream:
            said.extend(stream.iter_lines())

    is_acquire = path == "an acquire"
    waiter = threading.Thread(target=listen)
    with other.client.stream("GET", "/v1/events") as stays:
        others = stays.iter_lines()
        next(others)
        waiter.start()
        wait_until(lambda: said or admin.waiting("secret"), "it listens, or waits in line")
        assert profile.sign_out_elsewhere().status_code == 204
        wait_until(lambda: not admin.waiting("secret"), "its place in line is given up")
        admin.release("secret", held)
        admin.release("secret", admin.acquired("secret"))
        waiter.join(30)
        assert "session ended" in str(said)
        assert not any("granted" in each for each in said)
        assert any("granted" in line for line in others)


def test_all_servers_share_sessions(start: Start, tmp_path: Path, monkeypatch: Patch) -> None:
    here, there = start(tmp_path), start(tmp_path)
    profile = entered(here, "read")
    client = there.stranger()
    client.headers["cookie"] = f"dibs_session={profile.sealed}"
    assert client.get("/ui/session").json() == profile.client.get("/ui/session").json()
    page = {"origin": there.url, "dibs-csrf": profile.page["dibs-csrf"]}
    assert client.post(lock("x"), headers=page).status_code == 403
    with profile.client.stream("GET", "/v1/events") as stream:
        assert client.delete("/ui/session", headers=page).status_code == 204
        assert "session ended" in stream.read().decode(), "at the other server, too"
    assert profile.client.get("/ui/session").status_code == 401
    profile = entered(here, "read")
    client.headers["cookie"] = f"dibs_session={profile.sealed}"
    with monkeypatch.context() as now:
        here.cut_off(now)
        answer = profile.client.delete("/ui/session", headers=profile.page)
        assert (answer.status_code, "set-cookie" in answer.headers) == (503, False)
    assert profile.client.get("/ui/session").status_code == 200
    assert profile.client.delete("/ui/session", headers=profile.page).status_code == 204
    wait_until(lambda: client.get("/ui/session").status_code == 401, "it ends there too")
