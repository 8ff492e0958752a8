"""What time alone changes, at every command."""

from dibs.model import (
    Granted,
    Lost,
    Queued,
    Refused,
    Renewed,
)
from tests.core.story import Story


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
    story.wait("b", waiter_ttl=10)
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
