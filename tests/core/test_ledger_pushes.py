"""A grant that was pushed, and who asks again when."""

import pytest

from dibs.core.names import fingerprint
from dibs.core.timing import BURIAL, WINDOW
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
    assert push.window == WINDOW


def test_a_claim_window_is_shorter_for_short_ttls(story: Story) -> None:
    story.acquire("a")
    story.wait("b", ttl=2)
    story.release("a")
    assert story.woken[0].window == 2


def test_a_pushed_grant_stands_for_its_window(story: Story) -> None:
    story.acquire("a")
    story.wait("b")
    story.release("a")
    assert isinstance(story.at(WINDOW - 0.1).acquire("c"), Refused)
    assert isinstance(story.at(WINDOW).acquire("c"), Granted)


def test_a_claimed_grant_lives_for_its_ttl(story: Story) -> None:
    story.acquire("a")
    story.wait("b")
    story.release("a")
    story.at(WINDOW - 1).renew("b")
    assert isinstance(story.at(WINDOW + 25).acquire("c"), Refused)


def test_an_unclaimed_grant_ends_its_id(story: Story) -> None:
    story.acquire("a")
    story.wait("b")
    story.release("a")
    assert story.at(WINDOW).renew("b") == Lost("expired")
    assert story.wait("b") == Gone()
    assert isinstance(story.at(WINDOW + BURIAL).wait("b"), Granted)


def test_an_unclaimed_grant_keeps_its_lock_delay_since_its_owner_may_believe(story: Story) -> None:
    story.acquire("a")
    story.wait("b", lock_delay=10)
    story.release("a")
    assert isinstance(story.at(WINDOW + 9).acquire("c"), Refused)
    assert isinstance(story.at(WINDOW + 10).acquire("c"), Granted)
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
    assert story.wait("b") == Queued(0, WINDOW / 3, 0)
    assert story.at(29.5).renew("b") == Queued(0, 0.5, 29.5)


def test_the_first_four_speak_every_third_of_a_window_others_of_their_patience(
    story: Story,
) -> None:
    story.acquire("a", ttl=1000)
    for position, id_ in enumerate("bcdef"):
        reply = story.wait(id_, patience=90)
        again = WINDOW / 3 if position < 4 else 30
        assert reply == Queued(position, again, 0)


def test_whoever_finds_free_units_behind_a_dead_front_looks_again_when_the_grant_lapses(
    story: Story,
) -> None:
    """Each dead place costs a claim window then, and not the time until somebody happens to look."""
    story.acquire("a", ttl=10)
    for id_ in "bcdefgh":
        story.wait(id_, patience=90)
    assert story.at(11).renew("h") == Queued(5, WINDOW, 11)
    assert story.pushed() == [("f", "granted")], "b to e were told to speak, and did not"
    assert story.at(11 + WINDOW).renew("h") == Queued(4, WINDOW, 16)
    assert story.pushed() == [("g", "granted")]
    assert isinstance(story.at(11 + 2 * WINDOW).renew("h"), Granted)


def test_whoever_finds_units_closed_behind_a_dead_front_looks_again_when_they_open(
    story: Story,
) -> None:
    story.acquire("a", ttl=10, lock_delay=2)
    for id_ in "bcdefgh":
        story.wait(id_, patience=90, lock_delay=2)
    assert story.at(11).renew("h") == Queued(6, 1, 11), "a's units are closed until 12"
    assert story.at(12).renew("h") == Queued(5, WINDOW, 12)
    assert story.pushed() == [("f", "granted")]
    assert story.at(12 + WINDOW).renew("h") == Queued(5, 2, 17), "f's as well, for 2 s"
    assert story.at(19).renew("h") == Queued(4, WINDOW, 19)


def test_whoever_finds_nothing_free_looks_again_as_before(story: Story) -> None:
    story.acquire("a", ttl=10)
    for id_ in "bcdefg":
        story.wait(id_, patience=90)
    story.at(11).renew("g")
    story.at(12).renew("f")
    assert story.at(13).renew("g") == Queued(4, 30, 13), "f lives"


def test_a_place_silent_for_a_window_is_passed_over_at_grant(story: Story) -> None:
    story.acquire("a")
    story.wait("b", patience=100)
    story.wait("c", patience=100)
    story.at(6).renew("c")
    story.release("a")
    assert story.pushed() == [("c", "granted")]
    assert isinstance(story.at(7).renew("b"), Queued), "it keeps its place"
    story.release("c")
    assert story.pushed() == [("b", "granted")]


def test_a_place_that_was_not_told_to_speak_often_is_not_silent(story: Story) -> None:
    story.acquire("a", ttl=100)
    for id_ in "bcdef":
        story.wait(id_, patience=100)
    for id_ in "bcde":
        story.at(20).release(id_)
    story.release("a")
    assert story.pushed() == [("f", "granted")]


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
    story.wait("dead", patience=3600)
    story.at(4).release("a")  # still believed to be alive: it is granted, and lets the grant lapse
    story.at(20).acquire("b")
    story.wait("dead too", patience=3600)
    story.at(40).release("b")
    assert isinstance(story.acquire("c"), Granted), "nobody who speaks up waits for it"
