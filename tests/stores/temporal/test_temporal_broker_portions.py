"""A broker goes on at once with what it can't settle at once, and tells all whom it concerns."""

from dibs.model import Acquire, Release
from dibs.stores.temporal.broker.clock import BrokerClock
from dibs.stores.temporal.broker.desk import Desk
from dibs.stores.temporal.broker.post import Telling
from dibs.stores.temporal.protocol.owners import inbox_of
from dibs.stores.temporal.protocol.wire import AGES

KEY, NOW, LATER, STAMP = b"semaphore:a", 1_000.0, 1_061.0, 10**15
INBOXES = [inbox_of(f"w{n}", "01a201dc-139d-7c25-967c-4abd85365a06") for n in range(200)]


def told_as_alarms_ring(desk: Desk, capacity: int) -> list[str]:
    """So many workflows wait; who is told, much later, until nothing more is to be done at once."""
    for each in INBOXES[:capacity]:
        ask = Acquire(KEY, each, "w", 60.0, 1, capacity, queue=True, waiter_ttl=AGES, inbox=each)
        desk.apply(ask, NOW, STAMP)
    desk.apply(Release(KEY, "h0"), LATER, STAMP)
    telling = Telling("", desk, BrokerClock(LATER, (LATER, STAMP)), lambda: None, None)
    telling.push(desk.settle(LATER, STAMP))
    while desk.next_change(LATER) == LATER:
        telling.push(desk.settle(LATER, STAMP))
    return [inbox for inbox in INBOXES if telling.post.to(inbox).notifications]


def test_all_are_told_where_many_died_and_many_wait() -> None:
    desk = Desk(KEY)
    for n in range(200):
        desk.apply(Acquire(KEY, f"h{n}", "h", 60.0, 1, 200), NOW, STAMP)
    assert told_as_alarms_ring(desk, 200) == INBOXES
    assert [hold.state for hold in desk.book.holds()] == ["held"] * 200


def test_nobody_waits_for_many_ids_to_be_forgotten() -> None:
    desk = Desk(KEY)
    desk.apply(Acquire(KEY, "h0", "h", 600.0), NOW, STAMP)
    for n in range(1_000):
        desk.apply(Release(KEY, f"t{n}", tombstone=60.0), NOW, STAMP)
    assert told_as_alarms_ring(desk, 1) == INBOXES[:1]
