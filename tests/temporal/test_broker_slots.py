"""Which slots a sharing broker may grant, without a server."""

import pytest

from dibs.backends.temporal.broker.claims.slots import Slots, shareable
from dibs.backends.temporal.broker.desk import Desk
from dibs.backends.temporal.protocol.bounds import MOST_SLOTS
from dibs.backends.temporal.protocol.ids import LONGEST, permit_id
from dibs.errors import InvalidName
from dibs.model import Acquire, Failed, Granted

KEY = b"semaphore:pool"
NOW, STAMP = 1_000.0, 1_700_000_000_000_000


def ask(entry_id: str, capacity: int, ttl: float = 30.0) -> Acquire:
    return Acquire(KEY, entry_id, "me", ttl, capacity=capacity)


def test_a_name_too_long_for_any_slot_is_not_shared_and_no_permit_of_it_can_be_taken() -> None:
    fits = LONGEST - len(f"permit::{MOST_SLOTS - 1}")
    assert shareable(b"semaphore:" + b"n" * fits)
    assert not shareable(b"semaphore:" + b"n" * (fits + 1))
    assert not shareable(b"semaphore:" + "\u20ac".encode() * 82)
    with pytest.raises(InvalidName):
        permit_id("n" * (fits + 1), "0")


@pytest.mark.parametrize("key", [b"semaphore:\xff", b"semaphore:", b"rate:x", b""])
def test_what_has_no_permits_is_not_shared(key: bytes) -> None:
    assert not shareable(key)


def test_a_command_that_is_refused_opens_no_slot() -> None:
    desk = Desk(KEY)
    slots = Slots(desk)
    slots.fit(ask("a", 3), [], NOW)
    slots.open(0)
    assert isinstance(desk.apply(ask("a", 3), NOW, STAMP)[0], Granted)
    wrong = ask("b", 1, ttl=-1.0)
    slots.fit(wrong, [0], NOW)
    assert isinstance(desk.apply(wrong, NOW, STAMP)[0], Failed)
    slots.open_surplus()
    assert slots.closed() == {1, 2}


def test_what_is_above_a_smaller_capacity_is_opened_and_was_in_nobodys_way() -> None:
    desk = Desk(KEY)
    slots = Slots(desk)
    slots.fit(ask("a", 5), [], NOW)
    desk.apply(ask("a", 5), NOW, STAMP)
    smaller = ask("b", 2)
    slots.fit(smaller, [], NOW)
    assert slots.wanted_by(smaller) == [0, 1]
    slots.open(0)
    assert slots.still_missing(smaller) == 0
    desk.apply(smaller, NOW, STAMP)
    assert slots.open_surplus()
    assert slots.closed() == {1}
    assert isinstance(desk.apply(smaller, NOW, STAMP)[0], Granted)


def test_a_slot_is_granted_until_its_last_hold_ends() -> None:
    desk = Desk(KEY)
    slots = Slots(desk)
    desk.apply(ask("a", 3, ttl=30.0), NOW, STAMP)
    desk.apply(ask("b", 3, ttl=3600.0), NOW, STAMP)
    slots.close(2, NOW)
    assert slots.ends() == {0: NOW + 30.0, 1: NOW + 3600.0}
