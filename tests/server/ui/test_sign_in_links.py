"""The link that a server prints signs in once, at any server of the service."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dibs.errors import BackendUnavailable, NotConfigured
from dibs.server.auth.policy import Scope
from dibs.server.limits import Limits
from tests.server.inside import audit_of, keys_of
from tests.server.ui.profiles import Profile, type_of
from tests.server.world import LONG, World

pytestmark = pytest.mark.once


def link_of(world: World) -> str:
    url = world.server.sign_in_url
    assert url is not None
    return url.removeprefix(f"{world.url}/#ticket=")


def test_a_link_is_good_once(tmp_path: Path) -> None:
    world = World.over(tmp_path)
    try:
        profile = Profile(world)
        assert profile.sign_in(ticket="x" * 22).status_code == 401
        assert profile.sign_in(ticket=f"{link_of(world)}x").status_code == 401
        told = profile.sign_in(ticket=link_of(world)).json()
        assert (told["name"], told["admin"]) == ("first administrator", True)
        again = profile.sign_in(ticket=link_of(world))
        assert again.status_code == 401
        assert "already used" in again.json()["detail"]
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
                assert profile.sign_in(ticket=link_of(world)).status_code == 401, "still"
                assert profile.sign_in(ticket=link_of(again_started)).json()["admin"]
                profile.client.close()
        finally:
            again_started.close()


def test_a_sign_in_that_fails_uses_no_link_up(
    profile: Profile, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes back to the link once the service can do it gets in: there is no other one."""
    link = link_of(world)

    async def append(value: bytes) -> int:
        raise BackendUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(audit_of(world)._records, "append", append)
        assert profile.sign_in(ticket=link).status_code == 503
    assert profile.sign_in(ticket=link).status_code == 200
    assert profile.sign_in(ticket=link).status_code == 401


def test_a_link_outlasts_a_crowd(tmp_path: Path) -> None:
    """Too many sign-ins of its key lately are no use of it either."""
    world = World.over(limits=Limits(sign_ins_per_key=0))
    profile = Profile(world)
    try:
        for _ in range(2):
            answer = profile.sign_in(ticket=link_of(world))
            assert (answer.status_code, type_of(answer)) == (429, "limit")
    finally:
        profile.client.close()
        world.close()


def test_a_link_for_nobody(tmp_path: Path) -> None:
    """There are keys, but none for everything: whoever starts the server gets no more than they have."""
    world = World.over(tmp_path)
    ring = keys_of(world)
    first = keys_of(world).list()[0].id
    world.do(lambda: ring.create("part", {Scope.ADMIN}, [b"x/"]))
    link = link_of(world)
    world.do(lambda: ring.revoke(first))
    profile = Profile(world)
    assert profile.sign_in(ticket=link).status_code == 401
    profile.client.close()
    world.close()
    with pytest.raises(NotConfigured, match="no key is an administrator's"):
        World.over(tmp_path, sign_in=True)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[World, World]]:
    """Two servers of one service."""
    here, there = World.over(tmp_path), World.over(tmp_path)
    yield here, there
    there.close()
    here.close()


def test_another_server_takes_the_link(two: tuple[World, World]) -> None:
    """It is used up for both, also for the one that printed it."""
    here, there = two
    first, second = Profile(there), Profile(here)
    assert first.sign_in(ticket=link_of(here)).json()["admin"]
    assert first.client.get("/v1/keys").status_code == 200
    for profile in (first, second):
        answer = profile.sign_in(ticket=link_of(here))
        assert (answer.status_code, "already used" in answer.json()["detail"]) == (401, True)
        assert "set-cookie" not in answer.headers
        profile.client.close()


def test_of_two_servers_at_once_one_signs_in(
    two: tuple[World, World], monkeypatch: pytest.MonkeyPatch
) -> None:
    link, both = link_of(two[0]), threading.Barrier(2)
    for world in two:
        write = audit_of(world).write

        async def write_together(*line: Any, write: Any = write) -> None:
            await write(*line)
            both.wait(LONG)  # both have found that nobody has used it

        monkeypatch.setattr(audit_of(world), "write", write_together)
    profiles = [Profile(world) for world in two]
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda each: each.sign_in(ticket=link), profiles))
    assert sorted(each.status_code for each in answers) == [200, 401]
    for profile, answer in zip(profiles, answers, strict=True):
        signed_in = answer.status_code == 200
        assert profile.client.get("/ui/session").is_success == signed_in
        profile.client.close()
