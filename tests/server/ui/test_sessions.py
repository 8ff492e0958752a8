"""Sessions on the wire: what is none, and how they end. See also the matrix of all routes."""

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from dibs.server.lock_events import LockEvent
from tests.server.inside import cookie_for, events_of, session_in, sessions_of, ticket_of
from tests.server.test_records_away import cut_off
from tests.server.ui.profiles import TRUST, Profile, type_of
from tests.server.world import World, b64
from tests.servers.waiting import wait_until

pytestmark = pytest.mark.once


def test_a_session_that_was_changed(world: World, enter: Callable[..., Profile]) -> None:
    profile = enter("read")
    sealed = profile.sealed
    assert profile.with_cookie(sealed) == 200
    key_id, expires, nonce = session_in(world, sealed)
    body, mark = sealed.split(".")
    others = [
        (key_id, expires + 1, nonce),
        ("0" * 12, expires, nonce),
        (key_id, expires, nonce[::-1]),
    ]
    bodies = [cookie_for(world, *each).split(".")[0] for each in others]
    changed = {
        *(f"{each}.{mark}" for each in bodies),
        f"{body}.{mark[:-1]}",
        f"{body}.{mark[::-1]}",
        f"{body}.",
        body,
        f"{sealed}x",
        f'"{sealed}"',
        f".{sealed}",
        sealed.upper(),
        "x",
    }
    assert {text: profile.with_cookie(text) for text in changed} == dict.fromkeys(changed, 401)
    assert profile.with_cookie(sealed, "Dibs_Session") == 401
    assert profile.with_cookie(sealed) == 200


def test_what_was_signed_for_something_else_is_no_session(
    world: World, enter: Callable[..., Profile]
) -> None:
    """Nor is a session anything else."""
    profile = enter("read")
    csrf, sealed = profile.page["dibs-csrf"], profile.sealed
    token, link = world.client().post("/v1/token").text, ticket_of(world)
    for text in (csrf, token, link):
        assert profile.with_cookie(text) == 401
    for text in (csrf, sealed, link):
        headers = {"authorization": f"Bearer {text}"}
        assert httpx2.get(f"{world.url}/v1/about", headers=headers).status_code == 401
    for text in (csrf, sealed, token):
        assert profile.sign_in(ticket=text).status_code == 401
    cookie = {"cookie": f"dibs_session={sealed}"}
    for text in (sealed, token, link):
        page = profile.page | cookie | {"dibs-csrf": text}
        assert profile.client.delete("/ui/session", headers=page).status_code == 403


def test_a_session_of_another_service(world: World, enter: Callable[..., Profile]) -> None:
    profile = enter("read")
    key_id = session_in(world, profile.sealed).key_id
    other = World.over()
    try:
        at_other = Profile(other)
        assert at_other.sign_in(other.admin_key).status_code == 200
        assert profile.with_cookie(at_other.sealed) == 401
        assert profile.with_cookie(cookie_for(other, key_id, time.time() + 100)) == 401
        at_other.client.close()
    finally:
        other.close()


def test_a_session_that_is_over(world: World, enter: Callable[..., Profile]) -> None:
    profile = enter("read")
    key_id = session_in(world, profile.sealed).key_id
    now = time.time()
    for expires_at, status in ((now - 1, 401), (now + 100, 200)):
        assert profile.with_cookie(cookie_for(world, key_id, expires_at)) == status
    assert profile.with_cookie(cookie_for(world, "0" * 12, now + 100)) == 401


def test_two_sessions_at_once_are_none(enter: Callable[..., Profile]) -> None:
    """A server on another port of this host may set a cookie for some path, to slip somebody its own."""
    one, other = enter("read"), enter("acquire")
    mine, theirs = one.sealed, other.sealed
    both = f"dibs_session={theirs}; dibs_session={mine}"
    one.client.cookies.clear()
    answer = one.client.get("/v1/about", headers={"cookie": both})
    assert (answer.status_code, "two sessions" in answer.text) == (401, True)
    for rest in ("dibs_session=x", "dibs_session=", f"dibs_session={mine}", "a=b"):
        headers = {"cookie": f"{rest}; dibs_session={mine}"}
        assert one.client.get("/v1/about", headers=headers).status_code == 200, rest


@pytest.mark.parametrize("name", ["origin", "dibs-csrf", "sec-fetch-site"])
def test_headers_that_disagree(enter: Callable[..., Profile], name: str) -> None:
    profile = enter()
    page = profile.page | {"sec-fetch-site": "same-origin"}
    headers = [*page.items(), (name, "x")]
    answer = profile.client.post(f"/v1/locks/{b64('x')}", headers=headers)
    assert (answer.status_code, type_of(answer)) == (400, "malformed")


def test_other_cookies_are_nothing(world: World) -> None:
    """Whoever brings a key, or nothing, is asked for no more than before."""
    with httpx2.Client(
        base_url=world.url, headers={"cookie": "theme=dark"}, verify=TRUST
    ) as client:
        answer = client.get("/v1/locks")
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        client.headers["authorization"] = f"Bearer {world.admin_key}"
        client.headers["cookie"] = "dibs_session=x"
        assert client.post(f"/v1/locks/{b64('by-key')}").status_code == 200


# ---- its end --------------------------------------------------------------------------------------


def test_signing_out(world: World, enter: Callable[..., Profile]) -> None:
    profile, other = enter("read"), enter("read")
    sealed = profile.sealed
    for headers in (
        profile.origin,
        profile.origin | {"dibs-csrf": other.page["dibs-csrf"]},
    ):
        assert profile.client.delete("/ui/session", headers=headers).status_code == 403
    answer = profile.client.delete("/ui/session", headers=profile.page)
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["set-cookie"] == (
        "dibs_session=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict"
    )
    assert profile.client.get("/ui/session").status_code == 401
    assert profile.with_cookie(sealed) == 401, "whoever has kept it has nothing"
    assert other.client.get("/ui/session").status_code == 200
    lines = world.client().get("/v1/audit", params={"limit": 3}).json()["entries"]
    assert [line["what"] for line in lines] == ["signed out", "signed in", "signed in"]
    assert lines[0]["who"] == "a test"
    assert lines[1]["detail"] == {"with": "a key", "from": "127.0.0.1"}
    assert sealed not in str(lines)


def test_a_session_ends_with_its_key(world: World, enter: Callable[..., Profile]) -> None:
    profile = enter("read")
    key_id = session_in(world, profile.sealed).key_id
    with profile.client.stream("GET", "/v1/events") as stream:
        lines = stream.iter_lines()
        assert "hello" in next(line for line in lines if line.startswith("event"))
        assert world.client().delete(f"/v1/keys/{key_id}").status_code == 200
        assert "data: key ended" in list(lines)
    answer = profile.client.get("/v1/about")
    assert (answer.status_code, "was revoked" in answer.json()["detail"]) == (401, True)
    assert profile.client.get("/ui/session").status_code == 401
    assert profile.client.delete("/ui/session", headers=profile.page).status_code == 401


@pytest.mark.parametrize("path", ["/v1/events", "/v1/stream", f"/v1/watch/locks/{b64('secret')}"])
def test_streams_end_when_somebody_signs_out(
    world: World, enter: Callable[..., Profile], path: str
) -> None:
    profile, other = enter("read"), enter("read")
    with (
        profile.client.stream("GET", path) as stream,
        other.client.stream("GET", "/v1/events") as stays,
    ):
        lines, others = stream.iter_lines(), stays.iter_lines()
        next(lines)
        next(others)
        with httpx2.Client(base_url=world.url, verify=TRUST) as page:
            cookie = {"cookie": f"dibs_session={profile.sealed}"}
            answer = page.delete("/ui/session", headers=profile.page | cookie)
        assert answer.status_code == 204
        held = world.client().post(f"/v1/locks/{b64('secret')}", params={"ttl": 60}).json()
        world.client().delete(f"/v1/locks/{b64('secret')}", params={"id": held["id"]})
        assert "data: session ended" in list(lines)
        assert any("granted" in line for line in others)


def test_nothing_is_told_after_its_end(world: World, enter: Callable[..., Profile]) -> None:
    """Not even what happens at the same moment."""
    profile = enter("read")
    session = session_in(world, profile.sealed)

    async def happen() -> None:
        events_of(world).log.add(LockEvent("granted", b"lock:secret", time.time()))

    async def sign_out() -> None:
        await asyncio.gather(sessions_of(world).end(session), happen())

    with profile.client.stream("GET", "/v1/events") as stream:
        lines = stream.iter_lines()
        assert next(lines).startswith("id: ")
        world.do(sign_out)
        told = list(lines)
    assert told[-3:] == ["event: bye", "data: session ended", ""]
    assert "secret" not in str(told)
    assert not any("granted" in line for line in told), told


def test_whoever_signs_out_waits_no_more(world: World, enter: Callable[..., Profile]) -> None:
    profile = enter("read", "acquire")
    path, sealed = f"/v1/locks/{b64('waited-for')}", profile.sealed
    got: list[httpx2.Response] = []
    held = world.client().post(path, params={"ttl": 60}).json()

    def wait() -> None:
        got.append(profile.client.post(path, params={"wait": 50}, headers=profile.page, timeout=60))

    waiter = threading.Thread(target=wait)
    waiter.start()
    wait_until(lambda: world.client().get(path).json()["waiting"], "somebody in line")
    with httpx2.Client(base_url=world.url, verify=TRUST) as page:
        cookie = {"cookie": f"dibs_session={sealed}"}
        page.delete("/ui/session", headers=profile.page | cookie)
        world.client().delete(path, params={"id": held["id"]})
    waiter.join(30)
    assert (got[0].status_code, "session ended" in got[0].text) == (401, True)


def test_a_stream_ends_with_its_session(world: World, enter: Callable[..., Profile]) -> None:
    profile = enter("read")
    short = cookie_for(world, session_in(world, profile.sealed).key_id, time.time() + 2)
    profile.client.cookies.clear()
    headers = {"cookie": f"dibs_session={short}"}
    with profile.client.stream("GET", "/v1/events", headers=headers) as stream:
        assert stream.status_code == 200
        assert "session ended" in stream.read().decode()


@pytest.mark.once
def test_any_server_of_the_service_takes_it_until_its_end(
    tmp_path: Path, enter: Callable[..., Profile], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = World.over(tmp_path)
    there = World.over(tmp_path)
    try:
        profile = enter("read", at=here)
        with httpx2.Client(base_url=there.url, verify=TRUST) as client:
            client.headers["cookie"] = f"dibs_session={profile.sealed}"
            assert client.get("/ui/session").json() == profile.client.get("/ui/session").json()
            page = {"origin": there.url, "dibs-csrf": profile.page["dibs-csrf"]}
            assert client.post(f"/v1/locks/{b64('x')}", headers=page).status_code == 403
            with profile.client.stream("GET", "/v1/events") as stream:
                assert client.delete("/ui/session", headers=page).status_code == 204
                assert "session ended" in stream.read().decode(), "at the other server, too"
            assert profile.with_cookie(profile.sealed) == 401
            profile = enter("read", at=here)
            client.headers["cookie"] = f"dibs_session={profile.sealed}"
            with monkeypatch.context() as now:
                cut_off(here, now)
                answer = profile.client.delete("/ui/session", headers=profile.page)
                assert (answer.status_code, "set-cookie" in answer.headers) == (503, True)
                assert profile.client.get("/ui/session").status_code == 401
            wait_until(lambda: client.get("/ui/session").status_code == 401, "it ends there too")
    finally:
        there.close()
        here.close()
