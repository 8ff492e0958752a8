"""Inspecting and revoking, for people."""

from dibs.core.timing import MAX_CLAIM_TIMEOUT
from dibs.model import (
    Gone,
    Granted,
    Lost,
    Refused,
    Revoked,
)
from tests.core.story import NOON, Story


def test_a_look_shows_holders_and_waiters_in_their_order(story: Story) -> None:
    story.acquire("a")
    story.wait("b", note="second")
    story.wait("c", priority=1)
    status = story.at(2).status()
    assert [holder.owner for holder in status.holders] == ["owner of a"]
    assert [waiter.owner for waiter in status.waiters] == ["owner of c", "owner of b"]
    assert (status.waiting, status.capacity, status.last_token) == (2, 1, NOON)
    assert status.waiters[1].waited == 2


def test_a_look_lists_the_hundred_that_end_first_and_counts_the_rest(story: Story) -> None:
    for n in range(150):
        story.acquire(f"a{n}", capacity=1000, units=2, ttl=1000 - n)
    status = story.status()
    assert [holder.owner for holder in status.holders] == [f"owner of a{n}" for n in range(50, 150)]
    assert (status.holding, status.used) == (150, 300)


def test_a_look_never_shows_an_id(story: Story) -> None:
    story.acquire("secret-1", owner="a")
    story.wait("secret-2", owner="b")
    assert "secret" not in repr(story.status())
    assert "secret" not in repr(story.acquire("c"))


def test_a_look_settles_the_book(story: Story) -> None:
    story.acquire("a", ttl=10)
    story.at(9).wait("b")
    story.at(10).status()
    assert story.pushed() == [("b", "granted")]


def test_a_revoked_lease_is_not_renewed_but_its_units_stay_taken(story: Story) -> None:
    story.acquire("a")
    assert story.at(10).revoke("a") == Revoked(1, 20)
    assert story.pushed() == [("a", "revoked")]
    assert story.renew("a") == Lost("revoked", "maintenance")
    assert story.acquire("a") == Gone()
    assert story.resize("a", 1, seq=1) == Lost("revoked", "maintenance")
    assert isinstance(story.at(29).acquire("b"), Refused)
    assert isinstance(story.at(30).acquire("b"), Granted)


def test_a_revoked_lease_stays_revoked_after_its_expiry(story: Story) -> None:
    story.acquire("a")
    story.revoke("a")
    assert story.at(31).renew("a") == Lost("revoked", "maintenance")
    assert story.at(32).acquire("a") == Gone()


def test_an_unclaimed_grant_that_is_revoked_ends_its_id(story: Story) -> None:
    story.acquire("a")
    story.wait("b")
    story.release("a")
    story.revoke("b")
    assert story.at(MAX_CLAIM_TIMEOUT).wait("b") == Gone()


def test_with_now_the_units_are_free_at_once(story: Story) -> None:
    story.acquire("a")
    story.wait("b")
    assert story.revoke("a", now=True) == Revoked(1, 0)
    assert ("b", "granted") in story.pushed()
    assert story.renew("a") == Lost("revoked", "maintenance")
    assert story.acquire("a") == Gone()


def test_all_holders_are_revoked_and_no_waiters(story: Story) -> None:
    story.acquire("a", capacity=2)
    story.acquire("b", capacity=2)
    story.wait("c", capacity=2)
    assert story.revoke() == Revoked(2, 30)
    assert sorted(story.pushed()) == [("a", "revoked"), ("b", "revoked")]


def test_a_revocation_of_a_stranger_hits_nobody(story: Story) -> None:
    story.acquire("a")
    assert story.revoke("b") == Revoked(0, 0)
