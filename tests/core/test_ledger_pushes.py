"""A grant that was pushed, and who asks again when."""

from typing import Any

import pytest

from dibs.core.names import fingerprint
from dibs.core.timing import (
    EXAMINED_POSITIONS,
    HEARTBEAT_POSITIONS,
    MAX_CLAIM_TIMEOUT,
    TOMBSTONE_TTL,
)
from dibs.model import (
    Gone,
    Granted,
    Lost,
    Queued,
    Refused,
    Release,
    Released,
    Renew,
)
from tests.core.story import KEY, NOON, Story

# ---- a pushed grant ----------------------------------------------------------------------------------


def test_a_pushed_grant_tells_what_its_owner_needs(story: Story) -> None:
    story.acquire("a")
    story.at(6).wait("b", inbox="there")
    story.at(7).release("a")
    (push,) = story.woken
    assert (push.key, push.lease, push.inbox, push.event) == (
        KEY,
        fingerprint("b"),
        "there",
        "granted",
    )
    assert (push.token, push.slots, push.granted_at) == (NOON + 7_000_000, (0,), 7)
    assert push.claim_timeout == MAX_CLAIM_TIMEOUT


def test_a_claim_window_is_shorter_for_short_ttls(story: Story) -> None:
    story.acquire("a")
    story.wait("b", ttl=2)
    story.release("a")
    assert story.woken[0].claim_timeout == 1


def test_a_pushed_grant_stands_for_its_window(story: Story) -> None:
    story.acquire("a")
    story.wait("b")
    story.release("a")
    assert isinstance(story.at(MAX_CLAIM_TIMEOUT - 0.1).acquire("c"), Refused)
    assert isinstance(story.at(MAX_CLAIM_TIMEOUT).acquire("c"), Granted)


def test_a_claimed_grant_lives_for_its_ttl(story: Story) -> None:
    story.acquire("a")
    story.wait("b")
    story.release("a")
    story.at(MAX_CLAIM_TIMEOUT - 1).renew("b")
    assert isinstance(story.at(MAX_CLAIM_TIMEOUT + 25).acquire("c"), Refused)


def test_an_unclaimed_grant_ends_its_id(story: Story) -> None:
    story.acquire("a")
    story.wait("b")
    story.release("a")
    assert story.at(MAX_CLAIM_TIMEOUT).renew("b") == Lost("expired")
    assert story.wait("b") == Gone()
    assert isinstance(story.at(MAX_CLAIM_TIMEOUT + TOMBSTONE_TTL).wait("b"), Granted)


def test_an_unclaimed_grant_keeps_its_lock_delay_since_its_owner_may_believe(story: Story) -> None:
    story.acquire("a")
    story.wait("b", lock_delay=10)
    story.release("a")
    assert isinstance(story.at(MAX_CLAIM_TIMEOUT + 9).acquire("c"), Refused)
    assert isinstance(story.at(MAX_CLAIM_TIMEOUT + 10).acquire("c"), Granted)
    assert story.wait("b") == Gone()


def test_a_grant_that_is_not_wanted_any_more_is_released(story: Story) -> None:
    story.acquire("a")
    story.wait("b")
    story.wait("c")
    story.release("a")
    assert story.release("b") == Released()
    assert ("c", "granted") in story.pushed()


# ---- who rechecks ------------------------------------------------------------------------------------


def test_the_head_rechecks_when_units_come_free_by_time_at_the_latest(story: Story) -> None:
    story.acquire("a", ttl=30)
    assert story.wait("b") == Queued(0, MAX_CLAIM_TIMEOUT / 3, 0)
    assert story.at(29.5).renew("b") == Queued(0, 0.5, 29.5)


WAITERS = "bcdefghijklmnopqrstuvwxyz"
"""So many that the last nine are not at the front, while the others live."""


def enqueue(story: Story, holder_ttl: float, **wishes: Any) -> None:
    story.acquire("a", ttl=holder_ttl, **wishes)
    for id_ in WAITERS:
        story.wait(id_, waiter_ttl=90, **wishes)


def test_the_front_sends_heartbeats_often_and_others_every_two_windows(story: Story) -> None:
    story.acquire("a", ttl=1000)
    for position, id_ in enumerate(WAITERS):
        reply = story.wait(id_, waiter_ttl=90)
        again = MAX_CLAIM_TIMEOUT / 3 if position < HEARTBEAT_POSITIONS else 2 * MAX_CLAIM_TIMEOUT
        assert reply == Queued(position, again, 0)


def test_the_passed_over_do_not_count_for_the_front(story: Story) -> None:
    enqueue(story, 1000)
    assert story.at(4).renew("z") == Queued(24, 2 * MAX_CLAIM_TIMEOUT, 4)
    assert story.at(6).renew("z") == Queued(24, MAX_CLAIM_TIMEOUT / 3, 6)
    assert story.renew("b") == Queued(0, MAX_CLAIM_TIMEOUT / 3, 6)
    assert story.renew("z") == Queued(24, 2 * MAX_CLAIM_TIMEOUT, 6), (
        "b lives, and fifteen after it may"
    )


def test_an_unclaimed_grant_casts_doubt_on_all_not_heard_of_since(story: Story) -> None:
    enqueue(story, 1000)
    story.at(1).release("a")
    assert story.pushed() == [("b", "granted"), ("c", "head")]
    story.at(2).renew("y")
    story.at(1 + MAX_CLAIM_TIMEOUT).acquire("z")
    assert story.pushed() == [("y", "granted")]
    assert isinstance(story.renew("c"), Queued)
    story.release("y")
    assert story.pushed() == [("c", "granted"), ("d", "head")], "it keeps its position"


def test_a_try_passes_no_waiter_that_is_only_in_doubt(story: Story) -> None:
    story.acquire("a")
    story.wait("b", ttl=2)
    story.wait("c")
    story.at(1).release("a")
    assert isinstance(story.at(2.5).acquire("d"), Refused), "b is dead, and c may live"
    assert isinstance(story.at(MAX_CLAIM_TIMEOUT + 0.5).acquire("d"), Granted), (
        "c missed its heartbeats"
    )


def test_a_claimed_grant_casts_no_doubt(story: Story) -> None:
    enqueue(story, 1000)
    story.at(1).release("a")
    story.at(2).renew("b", 1)
    story.at(4).release("b")
    assert story.pushed() == [("c", "granted"), ("d", "head")]


def test_any_number_of_dead_waiters_costs_one_grant(story: Story) -> None:
    enqueue(story, 10)
    assert story.at(11).renew("z") == Queued(23, MAX_CLAIM_TIMEOUT / 3, 11)
    assert story.pushed() == [("r", "granted")], "b to q were told to send heartbeats, and did not"
    assert isinstance(story.at(11 + MAX_CLAIM_TIMEOUT).renew("z"), Granted)


def test_behind_all_that_are_looked_at_whoever_asks_is_granted(story: Story) -> None:
    story.acquire("a", ttl=1000)
    for number in range(3 * EXAMINED_POSITIONS):
        story.wait(f"dead{number}", waiter_ttl=90)
    story.wait("b", waiter_ttl=90)
    story.at(60).release("a")
    assert story.woken == []
    assert isinstance(story.renew("b"), Granted)


def test_a_lock_delay_is_waited_for_before_the_next_is_granted(story: Story) -> None:
    enqueue(story, 10, lock_delay=2)
    assert isinstance(story.at(11).renew("z"), Queued), "a's units are closed until 12"
    assert story.pushed() == []
    assert isinstance(story.at(12).renew("z"), Queued)
    assert story.pushed() == [("r", "granted")]
    assert isinstance(story.at(12 + MAX_CLAIM_TIMEOUT).renew("z"), Queued), "r's as well, for 2 s"
    assert isinstance(story.at(19).renew("z"), Granted)


def test_whoever_comes_upon_free_units_from_far_behind_looks_when_the_grant_lapses(
    story: Story,
) -> None:
    enqueue(story, 4)
    assert story.at(4.5).renew("z") == Queued(23, MAX_CLAIM_TIMEOUT, 4.5), "b may be dead"


def test_whoever_finds_a_grant_unclaimed_looks_again_a_window_after_its_end(story: Story) -> None:
    enqueue(story, 1000)
    story.at(1).release("a")
    assert story.at(4).renew("z") == Queued(23, MAX_CLAIM_TIMEOUT + 2, 4)


def test_a_place_silent_for_a_window_is_passed_over_at_grant(story: Story) -> None:
    story.acquire("a")
    story.wait("b", waiter_ttl=100)
    story.wait("c", waiter_ttl=100)
    story.at(6).renew("c")
    story.release("a")
    assert story.pushed() == [("c", "granted")]
    assert isinstance(story.at(7).renew("b"), Queued), "it keeps its place"
    story.release("c")
    assert story.pushed() == [("b", "granted")]


def test_one_that_is_not_at_the_front_may_be_silent_for_three_windows(story: Story) -> None:
    enqueue(story, 1000)
    for id_ in WAITERS[:HEARTBEAT_POSITIONS]:
        story.at(3 * MAX_CLAIM_TIMEOUT).release(id_)
    story.release("a")
    assert story.pushed() == [("r", "granted"), ("s", "head")]
    story.at(3 * MAX_CLAIM_TIMEOUT + 1).release("r")
    assert story.pushed() == []


def test_the_new_head_is_woken_and_the_old_one_is_not(story: Story) -> None:
    story.acquire("a")
    story.wait("b")
    story.wait("c")
    story.release("b")
    assert story.pushed() == [("c", "head")]
    story.renew("c")
    assert story.pushed() == []


def test_a_grant_wakes_the_granted_and_the_new_head(story: Story) -> None:
    story.acquire("a")
    story.wait("b")
    story.wait("c")
    story.release("a")
    assert story.pushed() == [("b", "granted"), ("c", "head")]


@pytest.mark.parametrize(
    "command", [Renew(KEY, "b", 30), Release(KEY, "b"), Release(KEY, "b", 5, 5)]
)
def test_nobody_is_pushed_what_it_is_being_answered(story: Story, command: Renew | Release) -> None:
    story.acquire("a", ttl=10)
    story.at(9).wait("b")
    story.at(10).tell(command)
    assert "b" not in dict(story.pushed())


def test_a_try_passes_those_who_only_seem_to_wait(story: Story) -> None:
    story.acquire("a")
    story.wait("dead", waiter_ttl=3600)
    story.at(4).release("a")  # still believed to be alive: it is granted, and lets the grant lapse
    story.at(20).acquire("b")
    story.wait("dead too", waiter_ttl=3600)
    story.at(40).release("b")
    assert isinstance(story.acquire("c"), Granted), "nobody who speaks up waits for it"
