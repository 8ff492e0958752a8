"""Tickets: the link that a server prints signs in once."""

from pathlib import Path

import pytest

from dibs.errors import BackendUnavailable, NotConfigured
from dibs.server.auth.policy import Scope
from dibs.server.limits import Limits
from dibs.server.ui.tickets import LIFETIME, MOST, Tickets
from tests.server.inside import audit_of, keys_of
from tests.server.ui.profiles import Profile, type_of
from tests.server.world import World

pytestmark = pytest.mark.once


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
                assert profile.sign_in(ticket=ticket_of(world)).status_code == 401, (
                    "of another start"
                )
                assert profile.sign_in(ticket=ticket_of(again_started)).json()["admin"]
                profile.client.close()
        finally:
            again_started.close()


def test_a_sign_in_that_fails_uses_no_ticket_up(
    profile: Profile, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes back to the link once the service can do it gets in: there is no other one."""
    ticket = ticket_of(world)

    async def append(value: bytes) -> int:
        raise BackendUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(audit_of(world)._records, "append", append)
        assert profile.sign_in(ticket=ticket).status_code == 503
    assert profile.sign_in(ticket=ticket).status_code == 200
    assert profile.sign_in(ticket=ticket).status_code == 401


def test_a_ticket_outlasts_a_crowd(tmp_path: Path) -> None:
    """Too many sign-ins of its key lately are no use of it either."""
    world = World.over(limits=Limits(sign_ins_per_key=0))
    profile = Profile(world)
    try:
        for _ in range(2):
            answer = profile.sign_in(ticket=ticket_of(world))
            assert (answer.status_code, type_of(answer)) == (429, "limit")
    finally:
        profile.client.close()
        world.close()


def test_a_ticket_for_nobody(tmp_path: Path) -> None:
    """There are keys, but none for everything: whoever starts the server gets no more than they have."""
    world = World.over(tmp_path)
    ring = keys_of(world)
    first = keys_of(world).list()[0].id
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

    def redeem(ticket: str) -> str | None:
        with tickets.redeemed(ticket) as key_id:
            return key_id

    good, late = tickets.issue("a"), tickets.issue("b")
    assert redeem(good) == "a"
    assert redeem(good) is None
    now += LIFETIME
    assert redeem(late) is None
    first = tickets.issue("c")
    for _ in range(MOST):
        tickets.issue("d")
    assert redeem(first) is None
    assert redeem("\ud800") is None
