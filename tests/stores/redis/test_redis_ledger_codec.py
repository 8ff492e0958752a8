"""What is said to the script and what it answers: any bytes, any numbers, and garbage from others."""

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack
from redis.crc import key_slot

from dibs.core.names import fingerprint
from dibs.core.proof import is_proven
from dibs.model import Acquire, Failed, Granted, Inspect, Queued, Release, Resize, Status
from dibs.stores.redis import ledger
from tests.stores.redis.ledger_scripted import AT, NOW, STAMP, Scripted, call_for

ANY_KEY = st.binary(max_size=40) | st.text("{}%257D:lock", max_size=12).map(str.encode)


# ---- keys -----------------------------------------------------------------------------------------


@given(ANY_KEY)
def test_a_key_comes_back(key: bytes) -> None:
    assert ledger.ledger_key(ledger.store_key(key)) == key


@given(ANY_KEY, ANY_KEY)
def test_no_two_keys_share_a_name(one: bytes, other: bytes) -> None:
    assert (ledger.store_key(one) == ledger.store_key(other)) == (one == other)


@given(ANY_KEY)
def test_all_of_a_resource_is_in_one_slot(key: bytes) -> None:
    name = ledger.store_key(key)
    assert {key_slot(name + suffix) for suffix in (b"entry", b"queue")} == {key_slot(name)}


@pytest.mark.parametrize(
    "name",
    [
        b"",
        b"other",
        b"dibs:epoch",
        b"dibs:{lock:x}hold",
        b"dibs:{lock:%zz}",
        b"dibs:{lock:x}}",
        b"dibs:{}",
        b"DI:{lock:x}",
        b"dibs:{lock:%7d}",
        b"dibs:{",
    ],
)
def test_what_is_no_book_of_ours_has_no_ledger_key(name: bytes) -> None:
    assert ledger.ledger_key(name) is None


def test_the_pattern_finds_the_books_and_nothing_else(scripted: Scripted) -> None:
    keys = {b"lock:a", b"lock:{x}", b"semaphore:\xff\x00*?[%"}
    for key in keys:
        scripted.ask(Acquire(key, "a", "o", 30.0), Acquire(key, "b", "o", 30.0, queue=True))
    scripted.ask(Acquire(b"lock:e", "a", "o", 30.0), holdoff=60.0)
    found = set(scripted.redis.scan_iter(match=ledger.MATCH_ALL, count=100))
    assert {ledger.ledger_key(name) for name in found} == keys


# ---- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [1, 3])
def test_tokens_survive_up_to_the_last(scripted: Scripted, capacity: int) -> None:
    def acquire(lease: str, floor: int = 0) -> Acquire:
        return Acquire(b"lock:x", lease, "o", 30.0, capacity=capacity, floor=floor)

    replies = scripted.ask(
        acquire("a", 2**53 - 3),
        Release(b"lock:x", "a"),
        acquire("b"),
        Release(b"lock:x", "b"),
        **AT,
    )
    assert (replies[0].token, replies[2].token) == (2**53 - 2, 2**53 - 1)
    status = scripted.ask(Inspect(b"lock:x"), **AT)
    assert status.last_token == 2**53 - 1
    third = scripted.ask(acquire("c"), **AT)
    assert isinstance(third, Failed), "no double can tell the next token from this one"
    assert "used up" in third.detail
    assert scripted.ask(Inspect(b"lock:x"), **AT) == status


@pytest.mark.parametrize(
    "wish",
    [
        {"units": 2**53},
        {"units": 10**400},
        {"capacity": 2**60},
        {"capacity": 1.5},
        {"priority": 2**64},
        {"priority": -(2**53)},
        {"floor": 2**53 - 1},
        {"floor": 0.5},
        {"floor": nan},
        {"capacity": inf},
        {"lock_delay": 10**400},
        {"owner": "\ud800"},
        {"id": "\udcff"},
        {"note": "\ud800"},
        {"ttl": "30"},
        {"ttl": "30", "capacity": 1},
        {"owner": ["no text"]},
    ],
    ids=str,
)
def test_what_redis_can_not_hold_is_invalid(scripted: Scripted, wish: dict[str, object]) -> None:
    asked = {"id": "a", "owner": "o", "ttl": 30.0, "capacity": 2**53 - 1, **wish}
    replies = scripted.ask(
        Acquire(b"lock:x", **asked),  # type: ignore[arg-type]
        Acquire(b"lock:x", "fine", "o", 30.0),
        **AT,
    )
    assert isinstance(replies[0], Failed)
    assert replies[0].reason == "invalid"
    assert isinstance(replies[1], Granted)


@pytest.mark.parametrize("units", [2**53, 1.5, nan, inf], ids=str)
def test_a_resize_to_what_is_no_number_is_invalid(scripted: Scripted, units: int) -> None:
    scripted.ask(Acquire(b"lock:x", "a", "o", 30.0), **AT)
    reply = scripted.ask(Resize(b"lock:x", "a", units, 1), **AT)
    assert isinstance(reply, Failed)
    assert reply.reason == "invalid"


@pytest.mark.parametrize("ttl", [5e-324, 1e-9, 1e15, 1.7e308])
def test_any_positive_time_is_a_time(scripted: Scripted, ttl: float) -> None:
    assert scripted.ask(Acquire(b"lock:x", "a", "o", ttl, lock_delay=ttl)).ttl == ttl
    queued = scripted.ask(Acquire(b"lock:x", "b", "o", ttl, queue=True, waiter_ttl=ttl))
    assert isinstance(queued, Queued | Granted)
    assert isinstance(scripted.ask(Inspect(b"lock:x")), Status)


def test_times_keep_their_microseconds(scripted: Scripted) -> None:
    now = 1_700_000_000.123456
    scripted.ask(Acquire(b"lock:x", "a", "o", 30.0), now=now, stamp=STAMP)
    queued = scripted.ask(
        Acquire(b"lock:x", "b", "o", 30.0, queue=True), now=now + 1e-6, stamp=STAMP
    )
    assert queued.now == now + 1e-6
    holder = scripted.ask(Inspect(b"lock:x"), now=now + 0.5, stamp=STAMP + 1).holders[0]
    assert holder.expires_in == now + 30.0 - (now + 0.5)
    assert holder.held_for == 1e-6


# ---- texts ----------------------------------------------------------------------------------------


def test_any_text_comes_back(scripted: Scripted) -> None:
    texts: dict[str, Any] = {"owner": "höst/1/\0\r\n$5", "note": "}{%" + "€" * 100_000}
    scripted.ask(Acquire(b"lock:x", "a" * 70_000, ttl=30.0, inbox="there", **texts), **AT)
    holder = scripted.ask(Inspect(b"lock:x"), **AT).holders[0]
    assert (holder.owner, holder.note) == (texts["owner"], texts["note"])
    assert holder.lease == fingerprint("a" * 70_000)


def test_texts_that_others_wrote_cost_nobody_else_anything(scripted: Scripted) -> None:
    call = call_for([Acquire(b"lock:x", "a", "MARK", 30.0)], **AT)
    call.args[1] = call.args[1].replace(b"MARK", b"\xff\xfe\x00!")
    scripted.evaluate(call)
    scripted.ask(Acquire(b"lock:y", "a", "o", 30.0), **AT)
    spoiled, fine = scripted.ask(Inspect(b"lock:x"), Inspect(b"lock:y"), **AT)
    assert isinstance(spoiled, Failed)
    assert spoiled.reason == "corrupt"
    assert fine.holders[0].owner == "o"


# ---- notifications --------------------------------------------------------------------------------


def notification() -> bytes:
    """As the ledger writes it."""
    name = b"dibs:{lock:x}"
    fields = ["notification", "lease", "granted", 7, [0, 1], 1.5, 5, "why", "f" * 40]
    return b"DI\3" + len(name).to_bytes(4, "big") + name + msgpack.encode(fields)


@given(st.binary(max_size=80))
def test_garbage_is_no_notification(garbage: bytes) -> None:
    assert ledger.read_published(garbage, "there") == []
    assert ledger.read_published(notification()[: len(garbage)] + garbage, "there") == []


def test_no_part_of_a_notification_is_one() -> None:
    whole = notification()
    [found] = ledger.read_published(whole, "there")
    assert (found.key, found.event, found.slots) == (b"lock:x", "granted", (0, 1))
    assert (found.inbox, found.token) == ("there", 7)
    assert not any(ledger.read_published(whole[:end], "there") for end in range(len(whole)))
    assert not ledger.read_published(whole.replace(b"granted", b"removed"), "there")
    assert not ledger.read_published(whole.replace(b"DI\3", b"DI\2"), "there")
    assert not ledger.read_published(whole + whole, "there")


def test_a_push_carries_what_a_notification_does(scripted: Scripted) -> None:
    scripted.ask(Acquire(b"lock:x", "a", "o", 30.0), **AT)
    scripted.ask(Acquire(b"lock:x", "b", "o", 30.0, queue=True, inbox="there"), **AT)
    later = {"now": NOW + 1.0, "stamp": STAMP + 9}
    _, [granted] = scripted.apply([Release(b"lock:x", "a")], **later)
    assert (granted.event, granted.granted_at, granted.claim_timeout) == ("granted", NOW + 1.0, 5.0)
    assert (granted.lease, granted.slots) == (fingerprint("b"), (0,))
    assert granted.token == STAMP + 9
    assert is_proven(granted, "b")
    assert not is_proven(replace(granted, token=granted.token + 1), "b")
