"""Signing in on the wire, with a key or with the link that a server prints."""

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dibs.errors import NotConfigured
from dibs.server.auth.policy import Scope
from dibs.server.limits import Limits
from tests.server.world import LONG, Patch, Pool, Profile, World, away, lock, problem

type Start = Callable[..., World]

COOKIE = re.compile(
    r"dibs_session=([\w.-]+); Path=/; Max-Age=(\d+); HttpOnly; SameSite=Strict(; Secure)?"
)


def test_a_key_begins_a_session_with_its_rights(world: World) -> None:
    profile = Profile(world)
    key = world.key("acquire", prefixes=[b"jobs/", b"\xff/"], name="<b>me</b>")
    answer = profile.sign_in(f" {key}\n")
    found = COOKIE.fullmatch(answer.headers["set-cookie"])
    assert found
    assert 12 * 3600 - 60 < int(found[2]) <= 12 * 3600
    assert found[3] is None, "without TLS there is none to insist on"
    session = answer.json()
    rights = {"scopes": ["acquire", "read"], "prefixes": ["am9icy8", "_y8"], "admin": False}
    times = {"csrf": session["csrf"], "expires_at": session["expires_at"]}
    assert session == {"name": "<b>me</b>", **rights, **times}
    assert abs(session["expires_at"] - time.time() - 12 * 3600) < 60
    assert profile.client.get("/ui/session").json() == session
    assert key.split("_", 2)[2] not in answer.text + str(answer.headers)
    assert answer.headers["cache-control"] == "no-store"
    for name, status in (("jobs/x", 200), ("x", 403)):
        assert profile.client.post(lock(name), headers=profile.page).status_code == status


def test_what_is_no_key_or_no_request_begins_no_session(world: World) -> None:
    profile = Profile(world)
    token = world.client().post("/v1/token").text
    wrong = ("", "dibs_000000000000_0123456789012345678901", "\0", "dibs_é", token)
    answers = [profile.sign_in(key) for key in wrong]
    assert {problem(each) for each in answers} == {(401, "unauthenticated")}
    of_json = "application/json"
    for body, media, status in (
        (b'{"key": "x", "ticket": "x"}', of_json, 400),
        *((body, of_json, 400) for body in (b"{}", b'{"key": 1}', b'{"key": "\xff"}')),
        (b'{"key": "x"}', "text/plain", 415),
        (b"key=x", "application/x-www-form-urlencoded", 415),
        (b'{"key": "' + b"x" * 5000 + b'"}', of_json, 413),
    ):
        headers = profile.origin | {"content-type": media}
        answers.append(profile.client.post("/ui/session", content=body, headers=headers))
        assert answers[-1].status_code == status, body
    for header in (
        *({"origin": each} for each in ("null", "http://127.0.0.1", "https://locks.example")),
        *({"sec-fetch-site": each} for each in ("cross-site", "same-site")),
        {},
    ):
        sent = header and profile.origin | header
        key = {"key": world.admin_key}
        answers.append(profile.client.post("/ui/session", json=key, headers=sent))
        assert problem(answers[-1]) == (403, "csrf"), header
    assert not any("set-cookie" in each.headers for each in answers)


def test_a_session_lasts_no_longer_than_its_key(world: World) -> None:
    keys, profile = world.server.keys, Profile(world)
    revoked = world.key("read")
    world.revoke(revoked)
    _, expired = world.do(lambda: keys.create("old", {Scope.READ}, [], expires_in=1e-6))
    for key, reason in ((revoked, "was revoked"), (expired, "has expired")):
        answer = profile.sign_in(key)
        assert (answer.status_code, reason in answer.json()["detail"]) == (401, True)
    _, short = world.do(lambda: keys.create("short", {Scope.READ}, [], expires_in=100))
    answer = profile.sign_in(short)
    assert answer.json()["expires_at"] <= time.time() + 100
    assert int(COOKIE.fullmatch(answer.headers["set-cookie"])[2]) <= 100  # type: ignore[index]


def link_of(world: World) -> str:
    return str(world.server.sign_in_url).removeprefix(f"{world.url}/#ticket=")


def test_a_link_signs_in_once_at_any_server(start: Start, tmp_path: Path) -> None:
    here, there = start(tmp_path), start(tmp_path)
    link, first = link_of(here), Profile(there)
    for wrong in ("x" * 22, f"{link}x"):
        assert first.sign_in(ticket=wrong).status_code == 401
    session = first.sign_in(ticket=link).json()
    assert (session["name"], session["admin"]) == ("first administrator", True)
    assert first.client.get("/v1/keys").status_code == 200
    for world in (here, there):
        again = Profile(world).sign_in(ticket=link)
        assert (again.status_code, "already used" in again.json()["detail"]) == (401, True)
        assert "set-cookie" not in again.headers
    line = here.client().get("/v1/audit").json()["entries"][0]
    assert line["what"] == "signed in"
    assert line["detail"]["with"] == "the link that the server printed"
    here.close()
    assert there.server.sign_in_url is None, "it did not make the first key"
    restarted = start(tmp_path, sign_in=True)
    assert Profile(restarted).sign_in(ticket=link).status_code == 401, "still"
    assert Profile(restarted).sign_in(ticket=link_of(restarted)).json()["admin"]


def test_of_two_servers_at_once_one_signs_in(
    start: Start, tmp_path: Path, monkeypatch: Patch, pool: Pool
) -> None:
    two = start(tmp_path), start(tmp_path)
    link, both = link_of(two[0]), threading.Barrier(2)
    for world in two:
        write = world.server.audit.write

        async def write_together(*line: Any, write: Any = write) -> None:
            await write(*line)
            both.wait(LONG)  # both have found it unused

        monkeypatch.setattr(world.server.audit, "write", write_together)
    visitors = [Profile(world) for world in two]
    answers = list(pool.map(lambda each: each.sign_in(ticket=link), visitors))
    assert sorted(each.status_code for each in answers) == [200, 401]
    for profile, answer in zip(visitors, answers, strict=True):
        assert profile.client.get("/ui/session").is_success == (answer.status_code == 200)


def test_a_failure_does_not_use_the_link(world: World, monkeypatch: Patch) -> None:
    profile, link = Profile(world), link_of(world)
    with monkeypatch.context() as patch:
        patch.setattr(world.server.audit._records, "append", away)
        assert profile.sign_in(ticket=link).status_code == 503
    assert [profile.sign_in(ticket=link).status_code for _ in range(2)] == [200, 401]


def test_each_key_has_a_rate_of_sign_ins(start: Start) -> None:
    world = start(limits=Limits(sign_ins_per_key=2))
    profile, key = Profile(world), world.key("read")
    assert [profile.sign_in(key).status_code for _ in range(3)] == [200, 200, 429]
    answer = profile.sign_in(key)
    assert (problem(answer), answer.headers["retry-after"]) == ((429, "limit"), "60")
    link = link_of(world)
    answers = [profile.sign_in(ticket=link), *(profile.sign_in(world.admin_key) for _ in range(2))]
    assert [each.status_code for each in answers] == [200, 200, 429], "a link counts for its key"


def test_a_link_gives_no_more_than_there_is(start: Start, tmp_path: Path) -> None:
    """Without an administrator's key for everything, nobody may sign in by link."""
    world = start(tmp_path)
    keys, link = world.server.keys, link_of(world)
    first = keys.list()[0].id
    world.key("admin", prefixes=[b"x/"])
    world.do(lambda: keys.revoke(first))
    assert Profile(world).sign_in(ticket=link).status_code == 401
    world.close()
    with pytest.raises(NotConfigured, match="no key is an administrator's"):
        start(tmp_path, sign_in=True)
