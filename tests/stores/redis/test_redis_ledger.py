"""The ledger in Lua, asked directly: what lies in Redis for how long, and what cannot be read there."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack

from dibs.core.timing import STEPS
from dibs.errors import IncompatibleVersion
from dibs.model import (
    MANY,
    Acquire,
    Command,
    Failed,
    Gone,
    Granted,
    Inspect,
    Queued,
    Refused,
    Release,
    Released,
    Renew,
    Resize,
    Revoke,
    Revoked,
    Unknown,
)
from dibs.stores.redis import ledger
from dibs.testing import ManualClock
from tests.stores.redis.ledger_scripted import Scripted

pytestmark = pytest.mark.once  # what the server does is the same for each version of Python

KEY = b"semaphore:x"
NOW = 1000.0
AT = ManualClock(NOW)
"""The time, where it stands still."""
ROW = ledger.store_key(KEY)
DAY = 86_400_000


def acquire(lease: str, key: bytes = KEY, **more: Any) -> Acquire:
    return Acquire(key, lease, more.pop("owner", "o"), more.pop("ttl", 30.0), **more)


def fill(scripted: Scripted) -> None:
    """A key with everything: two holds, a waiter, a tombstone."""
    scripted.ask(
        acquire("a", capacity=2),
        acquire("b", capacity=2),
        acquire("c", capacity=2, queue=True),
        Release(KEY, "d", tombstone=60.0),
        time=AT,
    )


def test_a_crowd_comes_and_goes_at_once(scripted: Scripted) -> None:
    """More than fits into one call to Redis: they expire together, and are revoked together."""
    readers = [acquire(f"r{n}", capacity=MANY) for n in range(2500)]
    writers = [
        acquire(f"w{n}", units=MANY, capacity=MANY, queue=True, waiter_ttl=10.0)
        for n in range(2500)
    ]
    scripted.ask(*readers, time=AT)
    scripted.ask(*writers, time=AT)
    later = ManualClock(NOW + 20.0)
    for _ in range(2500 // STEPS):
        scripted.ask(Inspect(KEY), time=later)
    status = scripted.ask(Inspect(KEY), time=later)
    assert (len(status.holders), status.holding, status.waiting) == (100, 2500, 0)
    assert scripted.ask(Revoke(KEY, None, "because", now=True), time=later) == Revoked(2500, 0)
    assert scripted.ask(readers[-1], time=later) == Gone(), "each is remembered"
    for _ in range(2500 // STEPS + 1):
        scripted.ask(Inspect(KEY), time=ManualClock(NOW + 100.0))
    assert scripted.redis.keys("*") == [ROW]


# ---- what can't be read ---------------------------------------------------------------------------

ENTRY, QUEUE, DUE, ENDS = (ROW + part for part in (b"entry", b"queue", b"due", b"ends"))


def retype(redis: Any, key: bytes) -> None:
    redis.delete(key)
    redis.rpush(key, "x")


SPOILED: dict[str, Callable[[Any], object]] = {
    "of another type": lambda redis: retype(redis, ROW),
    "garbage": lambda redis: redis.set(ROW, b"garbage of any length, longer than a row"),
    "too long": lambda redis: redis.append(ROW, b"!"),
    "a hold inside that is garbage": lambda redis: redis.setrange(ROW, 91, b"!!!!"),
    "entries of another type": lambda redis: retype(redis, ENTRY),
    "a waiter that is a list of anything": lambda redis: redis.hset(ENTRY, "c", b"\x91\1"),
    "a waiter with too few fields": lambda redis: redis.hset(ENTRY, "c", b"\x92\xa6waiter\xa1c"),
    "no queue": lambda redis: redis.delete(QUEUE),
    "a stranger in the queue": lambda redis: redis.zadd(QUEUE, {"0" * 16 + "z": -1}),
    "a stranger that has ended": lambda redis: (
        redis.zadd(DUE, {"z": 1}),
        redis.setrange(ROW, 4 + 7 * 8, bytes(8)),  # look for what has ended
    ),
}

SPOILED_HOLDS: dict[str, Callable[[Any], object]] = {
    "no ends": lambda redis: redis.delete(ENDS),
    "ends of another type": lambda redis: retype(redis, ENDS),
    "a hold that is garbage": lambda redis: redis.hset(ENTRY, "b", "x"),
    "a hold of another id": lambda redis: redis.hset(
        ENTRY, "b", redis.hget(ENTRY, "b").replace(b"\xa1b", b"\xa1e")
    ),
}
"""What only those come upon who look at the holds: for a grant the row alone is read."""


@pytest.mark.parametrize("harm", [*SPOILED, *SPOILED_HOLDS])
def test_a_corrupt_key_costs_nobody_else_anything(scripted: Scripted, harm: str) -> None:
    fill(scripted)
    {**SPOILED, **SPOILED_HOLDS}[harm](scripted.redis)
    before = scripted.everything()
    looks = harm in SPOILED_HOLDS
    replies = scripted.ask(
        acquire("1", key=b"lock:1"),
        Inspect(KEY) if looks else acquire("e", capacity=3),
        acquire("2", key=b"lock:2"),
        Revoke(KEY, None, "so") if looks else Release(KEY, "a"),
        time=AT,
    )
    assert [type(reply) for reply in replies] == [Granted, Failed, Granted, Failed]
    assert {replies[1].reason, replies[3].reason} == {"corrupt"}
    after = scripted.everything()
    assert {key: after[key] for key in before} == before, "nothing of a failed command is stored"


def test_what_was_decided_before_a_failure_stands(scripted: Scripted) -> None:
    """Changes of one key are written together: also where a later command fails."""
    fill(scripted)
    SPOILED_HOLDS["a hold that is garbage"](scripted.redis)
    replies = scripted.ask(
        Release(KEY, "c"), Release(KEY, "a"), Inspect(KEY), Release(KEY, "a"), time=AT
    )
    assert [type(reply) for reply in replies] == [Released, Released, Failed, Unknown]
    assert scripted.ask(Release(KEY, "a"), time=AT) == Unknown()
    assert not scripted.redis.exists(QUEUE), "the waiter was struck out"


@pytest.mark.parametrize("other", [2, 4])
def test_of_another_format_nothing_is_granted(scripted: Scripted, other: int) -> None:
    scripted.redis.set(ledger.store_key(b"lock:b"), b"DI%c whatever that release has here" % other)
    with pytest.raises(IncompatibleVersion, match=rf"format {other}.*reads format 3"):
        scripted.ask(acquire("a", b"lock:a"), acquire("b", b"lock:b"))
    assert not scripted.redis.exists(ledger.store_key(b"lock:a"))


# ---- how long it lies there -----------------------------------------------------------------------


def lifetimes(scripted: Scripted) -> dict[bytes, int]:
    """In milliseconds, by suffix."""
    keys = scripted.redis.keys("*")
    return {key.removeprefix(ROW): scripted.redis.pttl(key) for key in keys}


def test_a_row_lasts_a_day_longer_than_what_follows_from_it(scripted: Scripted) -> None:
    two_days = 2 * 86_400.0
    plan: dict[Command, int] = {
        acquire("a"): DAY + 29_000,
        Renew(KEY, "a", 100.0): DAY + 99_000,
        Release(KEY, "a"): DAY - 1_000,
        acquire("b", lock_delay=two_days): 3 * DAY,
        Renew(KEY, "b", 40.0): 3 * DAY,
        Release(KEY, "b", retain=two_days, tombstone=two_days): 5 * DAY - 1_000,
    }
    for command, least in plan.items():
        scripted.ask(command)
        assert least < lifetimes(scripted)[b""] <= least + 3_700_000, command
    scripted.redis.flushall()
    seconds, microseconds = scripted.redis.time()
    far = (seconds + 864_000) * 1_000_000 + microseconds
    for command in (
        acquire("c", floor=far),
        Release(KEY, "c"),
        acquire("d"),
        Renew(KEY, "d", 30.0),
    ):
        scripted.ask(command)
        assert lifetimes(scripted)[b""] > 10.9 * DAY, "until the clock has passed that token"


def test_all_of_a_key_ends_with_its_row(scripted: Scripted) -> None:
    scripted.ask(
        acquire("a", capacity=2),
        acquire("b", capacity=2, ttl=20.0),
        acquire("c", capacity=2, queue=True),
        Release(KEY, "d", tombstone=9.0),
    )
    first = lifetimes(scripted)
    assert set(first) == {b"", b"entry", b"queue", b"due", b"ends"}
    scripted.ask(Renew(KEY, "a", 10 * 86_400.0))
    later = lifetimes(scripted)
    assert min(later.values()) > 10 * DAY
    for found in (first, later):
        assert max(found.values()) - min(found.values()) < 5000
    scripted.ask(Release(KEY, "b"), Release(KEY, "c"), acquire("e", capacity=2, queue=True))
    assert min(lifetimes(scripted).values()) > 10 * DAY, "also what was emptied, and begun anew"
    scripted.ask(Inspect(KEY), time=ManualClock(NOW + 1e10))
    assert scripted.redis.keys("*") == [ROW]


def test_places_and_growth_wait_for_the_end_of_the_hold_off(scripted: Scripted) -> None:
    """Others, without a hold-off of their own, may have come in."""
    waiter, clock = acquire("b", units=3, capacity=3, queue=True, waiter_ttl=600.0), ManualClock()
    scripted.ask(acquire("a", capacity=3), waiter, time=clock)
    grown = scripted.ask(Resize(KEY, "a", 2, 1), time=clock, holdoff=60.0)
    assert grown == Refused("closed", (), 60.0)
    for seconds, command, answer in (
        (1.0, Release(KEY, "a"), Released),
        (1.0, Renew(KEY, "b", 30.0), Queued),
        (58.0, Renew(KEY, "b", 30.0), Granted),
    ):
        clock.advance(seconds)
        assert isinstance(scripted.ask(command, time=clock, holdoff=60.0), answer)


# ---- names and notifications ----------------------------------------------------------------------


def notification() -> bytes:
    """As the ledger writes it."""
    name = b"dibs:{lock:x}"
    fields = ["notification", "lease", "granted", 7, [0, 1], 1.5, 5, "why", "f" * 40]
    return b"DI\3" + len(name).to_bytes(4, "big") + name + msgpack.encode(fields)


@given(st.binary(max_size=80))
def test_garbage_is_no_notification(garbage: bytes) -> None:
    whole = notification()
    assert len(ledger.read_published(whole, "there")) == 1
    for other in (garbage, whole[: len(garbage)] + garbage, whole + garbage + b"x"):
        assert ledger.read_published(other, "there") == []
