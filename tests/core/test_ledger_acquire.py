"""What an `Acquire` gets, and when; tokens; what no client of ours would send."""

import pytest

from dibs.core.book import MemoryBook
from dibs.core.names import fingerprint
from dibs.model import (
    MANY,
    Acquire,
    Failed,
    Granted,
    Queued,
    Refused,
    Release,
    Renew,
    Renewed,
    Resize,
)
from tests.core.story import KEY, NOON, Story

# ---- `now` decides expiry, `stamp` only seeds tokens -------------------------------------------------


def test_a_stamp_that_jumps_ends_nothing(story: Story) -> None:
    story.acquire("a")
    story.stamp = NOON * 2
    assert isinstance(story.at(1).acquire("b"), Refused)


def test_a_token_is_the_wall_clock_in_microseconds(story: Story) -> None:
    assert story.acquire("a") == Granted(NOON, (0,), 30)


def test_a_token_is_higher_than_the_last_whatever_the_wall_clock_says(story: Story) -> None:
    story.acquire("a")
    story.release("a")
    for stamp in (NOON - 5, 0, -1, NOON * 1000):
        story.stamp = stamp
        before = story.book.last
        granted = story.acquire(f"id at {stamp}", capacity=9)
        assert isinstance(granted, Granted)
        assert granted.token == before + 1


# ---- Acquire -----------------------------------------------------------------------------------------


def test_units_that_are_free_are_granted_with_their_slots(story: Story) -> None:
    first = story.acquire("a", units=2, capacity=4)
    second = story.acquire("b", units=2, capacity=4)
    assert isinstance(first, Granted)
    assert first.slots == (0, 1)
    assert isinstance(second, Granted)
    assert second.slots == (2, 3)


def test_free_slots_are_found_between_taken_ones(story: Story) -> None:
    for id_ in "abc":
        story.acquire(id_, capacity=3)
    story.release("b")
    reply = story.acquire("d", capacity=3)
    assert isinstance(reply, Granted)
    assert reply.slots == (1,)


def test_many_have_no_slots(story: Story) -> None:
    reply = story.acquire("a", capacity=MANY)
    assert isinstance(reply, Granted)
    assert reply.slots == ()


def test_a_refusal_names_the_holders_and_when_time_alone_helps(story: Story) -> None:
    story.acquire("a", note="why")
    reply = story.at(10).acquire("b")
    assert isinstance(reply, Refused)
    assert (reply.reason, reply.recheck_in) == ("held", 20)
    (holder,) = reply.holders
    assert (holder.owner, holder.note, holder.held_for) == ("owner of a", "why", 10)
    assert (holder.expires_in, holder.lease) == (20, fingerprint("a"))


def test_a_refusal_names_eight_holders_at_most(story: Story) -> None:
    for n in range(10):
        story.acquire(f"id {n}", capacity=10)
    reply = story.acquire("b", capacity=10)
    assert isinstance(reply, Refused)
    assert len(reply.holders) == 8


def test_more_units_than_there_are_is_too_large(story: Story) -> None:
    assert story.acquire("a", units=3, capacity=2) == Refused("too_large")


def test_a_full_queue_takes_no_more() -> None:
    story = Story(MemoryBook(queue_limit=1))
    story.acquire("a")
    assert isinstance(story.wait("b"), Queued)
    reply = story.wait("c")
    assert isinstance(reply, Refused)
    assert reply.reason == "queue_full"
    assert isinstance(story.wait("b"), Queued), "who is in it stays in it"


def test_a_repeated_acquire_renews_with_the_same_token(story: Story) -> None:
    story.acquire("a")
    assert story.at(20).acquire("a") == Granted(NOON, (0,), 30)
    assert isinstance(story.at(49).renew("a"), Renewed)


def test_a_repeated_acquire_never_shortens(story: Story) -> None:
    story.acquire("a")
    assert story.at(10).acquire("a", ttl=1) == Granted(NOON, (0,), 20)


def test_a_try_never_passes_a_queue(story: Story) -> None:
    story.acquire("a", capacity=2)
    story.wait("b", units=2, capacity=2)
    reply = story.acquire("c", capacity=2)
    assert isinstance(reply, Refused)
    assert reply.reason == "held"


def test_a_token_is_above_the_floor(story: Story) -> None:
    reply = story.acquire("a", floor=NOON + 100)
    assert isinstance(reply, Granted)
    assert reply.token == NOON + 101


def test_a_place_keeps_what_it_asked_for(story: Story) -> None:
    story.acquire("a")
    story.wait("b", floor=NOON * 2, lock_delay=9, note="why", inbox="there")
    story.release("a")
    (notification,) = story.woken
    assert (notification.inbox, notification.token) == ("there", NOON * 2 + 1)
    assert story.book.last == NOON * 2 + 1
    assert story.status().holders[0].note == "why"


# ---- what no client of ours would send ---------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        Acquire(KEY, "a", "a", ttl=0),
        Acquire(KEY, "a", "a", ttl=float("nan")),
        Acquire(KEY, "a", "a", ttl=float("inf")),
        Acquire(KEY, "a", "a", ttl=1, waiter_ttl=0),
        Acquire(KEY, "a", "a", ttl=1, units=0),
        Acquire(KEY, "a", "a", ttl=1, floor=-1),
        Acquire(KEY, "a", "a", ttl=1, lock_delay=-1),
        Renew(KEY, "a", -1),
        Resize(KEY, "a", 0, 1),
        Release(KEY, "a", retain=-1),
        Release(KEY, "a", tombstone=float("inf")),
    ],
    ids=repr,
)
def test_nonsense_fails_and_changes_nothing(
    story: Story, command: Acquire | Renew | Resize | Release
) -> None:
    reply = story.tell(command)
    assert isinstance(reply, Failed)
    assert reply.reason == "invalid"
    assert story.book.idle
