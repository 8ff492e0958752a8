"""What a holder may do: renew, release, resize."""

from dibs.model import (
    Gone,
    Granted,
    Lost,
    Queued,
    Refused,
    Released,
    Renewed,
    Unknown,
)
from tests.core.story import NOON, Story

# ---- Renew -------------------------------------------------------------------------------------------


def test_a_renewal_lets_a_hold_live_on(story: Story) -> None:
    story.acquire("a")
    assert story.at(20).renew("a") == Renewed(30)
    assert isinstance(story.at(49).acquire("b"), Refused)


def test_a_renewal_never_shortens(story: Story) -> None:
    story.acquire("a")
    assert story.at(10).renew("a", ttl=1) == Renewed(20)


def test_an_expired_lease_is_lost_even_if_nobody_took_it(story: Story) -> None:
    story.acquire("a")
    assert story.at(30).renew("a") == Lost("expired")


def test_a_renewal_is_a_places_sign_of_life(story: Story) -> None:
    story.acquire("a", ttl=100)
    story.wait("b", waiter_ttl=10)
    for now in (8, 16, 24):
        assert isinstance(story.at(now).renew("b"), Queued)


def test_a_renewal_tells_that_the_place_was_granted_meanwhile(story: Story) -> None:
    story.acquire("a")
    story.wait("b")
    story.at(1).release("a")
    assert story.at(2).renew("b") == Granted(NOON + 1_000_000, (0,), 30)


def test_a_renewal_of_nothing_is_lost(story: Story) -> None:
    assert story.renew("a") == Lost("expired")


# ---- Release -----------------------------------------------------------------------------------------


def test_a_release_gives_up_a_hold_or_a_place(story: Story) -> None:
    story.acquire("a")
    story.wait("b")
    assert story.release("b") == Released()
    assert story.release("a") == Released()
    assert (story.status().holders, story.status().waiters) == ((), ())


def test_a_release_of_another_id_frees_nothing(story: Story) -> None:
    story.acquire("a")
    assert story.release("b") == Unknown()
    assert story.status().holders[0].owner == "owner of a"


def test_kept_units_stay_taken_by_nobody(story: Story) -> None:
    story.acquire("a")
    story.release("a", retain=10)
    reply = story.at(9).acquire("b")
    assert isinstance(reply, Refused)
    assert (reply.reason, reply.recheck_in) == ("closed", 1)
    assert (reply.holders[0].owner, reply.holders[0].lease) == ("", "")
    assert isinstance(story.at(10).acquire("b"), Granted)


def test_a_repeat_never_extends_what_is_kept(story: Story) -> None:
    story.acquire("a")
    story.release("a", retain=10)
    assert story.at(9).release("a", retain=10) == Released()
    assert isinstance(story.at(10).acquire("b"), Granted)


def test_who_gave_its_units_to_be_kept_has_no_lease(story: Story) -> None:
    story.acquire("a")
    story.release("a", retain=10)
    assert story.renew("a") == Lost("expired")
    assert story.acquire("a") == Gone()
    assert story.resize("a", 1, 1) == Lost("expired")


def test_an_acquire_that_comes_after_its_burial_is_gone(story: Story) -> None:
    assert story.release("a", tombstone=60) == Unknown()
    assert story.at(59).acquire("a") == Gone()


def test_an_acquire_that_comes_twice_is_gone_after_its_burial(story: Story) -> None:
    story.acquire("a")
    story.release("a", tombstone=60)
    assert story.at(59).acquire("a") == Gone()
    assert isinstance(story.at(59).acquire("b"), Granted)


def test_a_kept_hold_is_buried_once_its_time_is_over(story: Story) -> None:
    story.acquire("a")
    story.release("a", retain=10, tombstone=60)
    assert story.at(69).acquire("a") == Gone()
    assert isinstance(story.at(70).acquire("a"), Granted)


def test_a_burial_counts_from_the_last_one(story: Story) -> None:
    story.release("a", tombstone=60)
    story.at(59).release("a", tombstone=60)  # it may have sent its Acquire again in the meantime
    assert story.at(118).acquire("a") == Gone()


def test_a_hold_that_is_kept_by_its_lock_delay_can_be_buried(story: Story) -> None:
    story.acquire("a", lock_delay=10)
    story.at(31).release("a", tombstone=60)
    assert story.at(41).acquire("a") == Gone()


# ---- Resize ------------------------------------------------------------------------------------------


def test_a_hold_shrinks_and_others_come_in(story: Story) -> None:
    story.acquire("a", units=2, capacity=2)
    story.wait("b", capacity=2)
    assert story.resize("a", 1, seq=1) == Granted(NOON, (0,), 30)
    assert story.pushed() == [("b", "granted")]


def test_to_grow_is_a_new_grant_with_a_new_token(story: Story) -> None:
    story.acquire("a", capacity=2)
    assert story.at(1).resize("a", 2, seq=1) == Granted(NOON + 1_000_000, (0, 1), 29)


def test_to_grow_ignores_the_queue(story: Story) -> None:
    story.acquire("a", capacity=3)
    story.wait("b", units=3, capacity=3)
    assert isinstance(story.resize("a", 2, seq=1), Granted)


def test_to_grow_never_waits_and_names_the_others(story: Story) -> None:
    story.acquire("a", capacity=2)
    story.at(10).acquire("b", capacity=2)
    reply = story.resize("a", 2, seq=1)
    assert isinstance(reply, Refused)
    assert [holder.owner for holder in reply.holders] == ["owner of b"]
    assert reply.recheck_in == 30


def test_a_resize_claims_a_grant_made_by_notification(story: Story) -> None:
    story.acquire("a", units=2, capacity=2)
    story.wait("b", capacity=2)
    story.release("a")
    grown = story.resize("b", 2, seq=1)
    assert isinstance(grown, Granted)
    assert story.status().holders[0].state == "held"
    story.release("b")
    assert story.wait("c", capacity=2) == Granted(grown.token + 1, (0,), 30), (
        "no doubt, no tombstone"
    )


def test_an_older_resize_is_ignored(story: Story) -> None:
    story.acquire("a", units=2, capacity=2)
    story.resize("a", 1, seq=1)
    grown = story.resize("a", 2, seq=2)
    assert story.resize("a", 1, seq=1) == grown
    assert story.status().holders[0].units == 2


def test_a_repeated_resize_changes_nothing(story: Story) -> None:
    story.acquire("a", capacity=2)
    assert story.resize("a", 2, seq=1) == story.resize("a", 2, seq=1)


def test_a_late_copy_of_a_refused_resize_does_not_succeed(story: Story) -> None:
    story.acquire("a", capacity=2)
    story.acquire("b", capacity=2)
    story.resize("a", 2, seq=1)
    story.release("b")
    assert isinstance(story.resize("a", 2, seq=1), Refused)
    assert isinstance(story.resize("a", 2, seq=2), Granted)


def test_to_grow_beyond_the_capacity_is_too_large(story: Story) -> None:
    story.acquire("a", capacity=2)
    assert story.resize("a", 3, seq=1) == Refused("too_large")


def test_a_resize_needs_a_hold(story: Story) -> None:
    story.acquire("a")
    story.wait("b")
    assert story.resize("b", 1, seq=1) == Lost("expired")
    assert story.resize("c", 1, seq=1) == Lost("expired")
