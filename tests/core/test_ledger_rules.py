"""DESIGN §3, sentence by sentence."""

import pytest

from leasehold.core.book import MemoryBook
from leasehold.core.names import fingerprint
from leasehold.core.timing import BURIAL, WINDOW
from leasehold.model import (
    MANY,
    Acquire,
    Failed,
    Gone,
    Granted,
    Lost,
    Queued,
    Refused,
    Release,
    Released,
    Renew,
    Renewed,
    Resize,
    Revoked,
    Unknown,
)
from tests.core.story import KEY, NOON, Story


@pytest.fixture
def story() -> Story:
    return Story()


# ---- `now` decides expiry, `stamp` only seeds tokens -----------------------------------------------


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


# ---- Acquire --------------------------------------------------------------------------------------


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


def test_tokens_are_reserved_in_advance(story: Story) -> None:
    story.acquire("a", tokens=5)
    story.release("a")
    story.stamp = 0
    reply = story.acquire("b")
    assert isinstance(reply, Granted)
    assert reply.token == NOON + 5


def test_a_token_is_above_the_floor(story: Story) -> None:
    reply = story.acquire("a", floor=NOON + 100)
    assert isinstance(reply, Granted)
    assert reply.token == NOON + 101


def test_a_place_keeps_what_it_asked_for(story: Story) -> None:
    story.acquire("a")
    story.wait("b", tokens=5, floor=NOON * 2, lock_delay=9, note="why", inbox="there")
    story.release("a")
    (wakeup,) = story.woken
    assert (wakeup.inbox, wakeup.token) == ("there", NOON * 2 + 1)
    assert story.book.last == NOON * 2 + 5
    assert story.status().holders[0].note == "why"


# ---- Renew ----------------------------------------------------------------------------------------


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
    story.wait("b", patience=10)
    for now in (8, 16, 24):
        assert isinstance(story.at(now).renew("b"), Queued)


def test_a_renewal_tells_that_the_place_was_granted_meanwhile(story: Story) -> None:
    story.acquire("a")
    story.wait("b")
    story.at(1).release("a")
    assert story.at(2).renew("b") == Granted(NOON + 1_000_000, (0,), 30)


def test_a_renewal_of_nothing_is_lost(story: Story) -> None:
    assert story.renew("a") == Lost("expired")


# ---- Release --------------------------------------------------------------------------------------


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
    story.release("a", keep=10)
    reply = story.at(9).acquire("b")
    assert isinstance(reply, Refused)
    assert (reply.reason, reply.recheck_in) == ("closed", 1)
    assert (reply.holders[0].owner, reply.holders[0].lease) == ("", "")
    assert isinstance(story.at(10).acquire("b"), Granted)


def test_a_repeat_never_extends_what_is_kept(story: Story) -> None:
    story.acquire("a")
    story.release("a", keep=10)
    assert story.at(9).release("a", keep=10) == Released()
    assert isinstance(story.at(10).acquire("b"), Granted)


def test_who_gave_its_units_to_be_kept_has_no_lease(story: Story) -> None:
    story.acquire("a")
    story.release("a", keep=10)
    assert story.renew("a") == Lost("expired")
    assert story.acquire("a") == Gone()
    assert story.resize("a", 1, 1) == Lost("expired")


def test_an_acquire_that_comes_after_its_burial_is_gone(story: Story) -> None:
    assert story.release("a", bury=60) == Unknown()
    assert story.at(59).acquire("a") == Gone()


def test_an_acquire_that_comes_twice_is_gone_after_its_burial(story: Story) -> None:
    story.acquire("a")
    story.release("a", bury=60)
    assert story.at(59).acquire("a") == Gone()
    assert isinstance(story.at(59).acquire("b"), Granted)


def test_a_kept_hold_is_buried_once_its_time_is_over(story: Story) -> None:
    story.acquire("a")
    story.release("a", keep=10, bury=60)
    assert story.at(69).acquire("a") == Gone()
    assert isinstance(story.at(70).acquire("a"), Granted)


def test_a_burial_counts_from_the_last_one(story: Story) -> None:
    story.release("a", bury=60)
    story.at(59).release("a", bury=60)  # it may have sent its Acquire again in the meantime
    assert story.at(118).acquire("a") == Gone()


def test_a_hold_that_is_kept_by_its_lock_delay_can_be_buried(story: Story) -> None:
    story.acquire("a", lock_delay=10)
    story.at(31).release("a", bury=60)
    assert story.at(41).acquire("a") == Gone()


# ---- Resize ---------------------------------------------------------------------------------------


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


# ---- Inspect, Revoke ------------------------------------------------------------------------------


def test_a_look_shows_holders_and_waiters_in_their_order(story: Story) -> None:
    story.acquire("a")
    story.wait("b", note="second")
    story.wait("c", priority=1)
    status = story.at(2).status()
    assert [holder.owner for holder in status.holders] == ["owner of a"]
    assert [waiter.owner for waiter in status.waiters] == ["owner of c", "owner of b"]
    assert (status.waiting, status.capacity, status.last_token) == (2, 1, NOON)
    assert status.waiters[1].waited == 2


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
    assert story.at(WINDOW).wait("b") == Gone()


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


# ---- settling -------------------------------------------------------------------------------------


def test_any_command_lets_the_expired_go_and_grants_the_head(story: Story) -> None:
    story.acquire("a", ttl=10)
    story.at(9).wait("b")
    story.at(10).release("z")
    assert story.pushed() == [("b", "granted")]


def test_the_queue_is_by_priority_then_by_arrival(story: Story) -> None:
    story.acquire("a")
    for id_, priority in (("b", 0), ("c", 1), ("d", 1), ("e", 0)):
        story.wait(id_, priority=priority)
    order = []
    holder = "a"
    for _ in range(4):
        story.release(holder)
        (holder,) = [id_ for id_, event in story.pushed() if event == "granted"]
        order.append(holder)
    assert order == ["c", "d", "b", "e"]


def test_a_large_head_is_not_overtaken(story: Story) -> None:
    story.acquire("a", capacity=2)
    story.wait("b", units=2, capacity=2)
    assert isinstance(story.wait("c", capacity=2), Queued)
    story.release("a")
    assert ("b", "granted") in story.pushed()


def test_a_higher_priority_is_granted_past_a_large_head(story: Story) -> None:
    story.acquire("a", capacity=2)
    story.wait("b", units=2, capacity=2)
    assert isinstance(story.wait("c", capacity=2, priority=1), Granted)


def test_a_waiter_not_heard_of_within_its_patience_is_dropped(story: Story) -> None:
    story.acquire("a", ttl=100)
    story.wait("b", patience=10)
    assert story.at(10).status().waiting == 0


def test_the_newest_capacity_counts_and_lets_the_queue_in_first(story: Story) -> None:
    story.acquire("a", capacity=1)
    story.wait("b", capacity=1)
    reply = story.wait("c", capacity=2)
    assert story.pushed() == [("b", "granted")]
    assert isinstance(reply, Queued)


def test_a_repeat_declares_no_capacity(story: Story) -> None:
    story.acquire("a", capacity=1)
    story.acquire("a", capacity=5)
    assert story.status().capacity == 1


def test_what_no_longer_fits_the_capacity_is_refused_in_the_queue_too(story: Story) -> None:
    story.acquire("a", capacity=4)
    story.wait("b", units=4, capacity=4)
    story.wait("c", capacity=2)
    assert story.pushed() == [("b", "refused")]
    assert story.acquire("b") == Refused("too_large")
    assert story.renew("b") == Lost("expired")


def test_holds_under_another_capacity_run_on(story: Story) -> None:
    for id_ in "abc":
        story.acquire(id_, capacity=3)
    reply = story.acquire("d", capacity=1)
    assert isinstance(reply, Refused)
    assert story.renew("c") == Renewed(30)
    story.release("a")
    story.release("b")
    assert isinstance(story.acquire("e", capacity=1), Refused)
    story.release("c")
    assert isinstance(story.acquire("f", capacity=1), Granted)


def test_lock_delay_keeps_units_closed_after_an_expiry(story: Story) -> None:
    story.acquire("a", lock_delay=10)
    reply = story.at(31).acquire("b")
    assert isinstance(reply, Refused)
    assert (reply.reason, reply.recheck_in) == ("closed", 9)
    assert isinstance(story.at(40).acquire("b"), Granted)


def test_lock_delay_counts_from_the_expiry_however_late_anyone_looks(story: Story) -> None:
    story.acquire("a", lock_delay=10)
    assert isinstance(story.at(40).acquire("b"), Granted)


def test_there_is_no_lock_delay_after_a_release(story: Story) -> None:
    story.acquire("a", lock_delay=10)
    story.release("a")
    assert isinstance(story.acquire("b"), Granted)


# ---- a pushed grant -------------------------------------------------------------------------------


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


# ---- who rechecks ---------------------------------------------------------------------------------


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


# ---- what no client of ours would send ------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        Acquire(KEY, "a", "a", ttl=0),
        Acquire(KEY, "a", "a", ttl=float("nan")),
        Acquire(KEY, "a", "a", ttl=float("inf")),
        Acquire(KEY, "a", "a", ttl=1, patience=0),
        Acquire(KEY, "a", "a", ttl=1, units=0),
        Acquire(KEY, "a", "a", ttl=1, tokens=0),
        Acquire(KEY, "a", "a", ttl=1, floor=-1),
        Acquire(KEY, "a", "a", ttl=1, lock_delay=-1),
        Renew(KEY, "a", -1),
        Resize(KEY, "a", 0, 1),
        Release(KEY, "a", keep=-1),
        Release(KEY, "a", bury=float("inf")),
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
