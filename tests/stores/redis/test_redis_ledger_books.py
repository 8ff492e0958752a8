"""What lies in Redis: what can't be read costs nobody else anything, and what is idle goes by itself."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dibs.errors import BackendUnavailable, IncompatibleVersion
from dibs.model import (
    Acquire,
    Failed,
    Granted,
    Inspect,
    Queued,
    Refused,
    Release,
    Released,
    Renew,
    Resize,
    Revoke,
    Status,
    Unknown,
)
from dibs.stores.redis import ledger
from tests.servers.redis import RedisServer
from tests.stores.redis.ledger_scripted import AT, NOW, STAMP, Scripted, call_for

pytestmark = pytest.mark.once  # what the server does is the same for each version of Python

KEY = b"semaphore:x"
ROW = ledger.store_key(KEY)
DAY = 86_400_000


def acquire(lease: str, key: bytes = KEY, **more: Any) -> Acquire:
    return Acquire(key, lease, "o", more.pop("ttl", 30.0), **more)


def fill(scripted: Scripted) -> None:
    """A key with everything: two holds, a place, a tomb."""
    scripted.ask(
        acquire("a", capacity=2),
        acquire("b", capacity=2),
        acquire("c", capacity=2, queue=True),
        Release(KEY, "d", tombstone=60.0),
        **AT,
    )


# ---- what can't be read ---------------------------------------------------------------------------

SPOILED: dict[str, Callable[[Any], object]] = {
    "of another type": lambda redis: (redis.delete(ROW), redis.rpush(ROW, "x")),
    "empty": lambda redis: redis.set(ROW, b""),
    "a mark alone": lambda redis: redis.set(ROW, b"DI"),
    "garbage": lambda redis: redis.set(ROW, b"garbage of any length, longer than a row"),
    "too long": lambda redis: redis.append(ROW, b"!"),
    "a hold inside that is garbage": lambda redis: redis.setrange(ROW, 91, b"!!!!"),
    "no entries": lambda redis: redis.delete(ROW + b"entry"),
    "entries of another type": lambda redis: (
        redis.delete(ROW + b"entry"),
        redis.set(ROW + b"entry", "x"),
    ),
    "a place that is garbage": lambda redis: redis.hset(ROW + b"entry", "c", "x"),
    "a place that is a list of anything": lambda redis: redis.hset(ROW + b"entry", "c", b"\x91\1"),
    "a place with too few fields": lambda redis: redis.hset(
        ROW + b"entry", "c", b"\x92\xa6waiter\xa1c"
    ),
    "no queue": lambda redis: redis.delete(ROW + b"queue"),
    "a queue of another type": lambda redis: (
        redis.delete(ROW + b"queue"),
        redis.set(ROW + b"queue", "x"),
    ),
    "a stranger in the queue": lambda redis: redis.zadd(ROW + b"queue", {"0" * 16 + "z": -1}),
    "a stranger that has ended": lambda redis: (
        redis.zadd(ROW + b"due", {"z": 1}),
        redis.setrange(ROW, 4 + 7 * 8, bytes(8)),  # look for what has ended
    ),
}

SPOILED_HOLDS: dict[str, Callable[[Any], object]] = {
    "no ends": lambda redis: redis.delete(ROW + b"ends"),
    "ends of another type": lambda redis: (
        redis.delete(ROW + b"ends"),
        redis.set(ROW + b"ends", "x"),
    ),
    "a hold that is garbage": lambda redis: redis.hset(ROW + b"entry", "b", "x"),
    "a hold of another id": lambda redis: redis.hset(
        ROW + b"entry", "b", redis.hget(ROW + b"entry", "b").replace(b"\xa1b", b"\xa1e")
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
        **AT,
    )
    assert isinstance(replies[0], Granted)
    assert isinstance(replies[2], Granted)
    for reply in (replies[1], replies[3]):
        assert isinstance(reply, Failed), reply
        assert reply.reason == "corrupt"
    after = scripted.everything()
    assert {key: after[key] for key in before} == before, "nothing of a failed command is stored"


def test_what_was_decided_before_a_failure_stands(scripted: Scripted) -> None:
    """Changes of one key are written together: also where a later command fails."""
    fill(scripted)
    SPOILED_HOLDS["a hold that is garbage"](scripted.redis)
    replies = scripted.ask(
        Release(KEY, "c"), Release(KEY, "a"), Inspect(KEY), Release(KEY, "a"), **AT
    )
    assert [type(reply) for reply in replies] == [Released, Released, Failed, Unknown]
    assert scripted.ask(Release(KEY, "a"), **AT) == Unknown()
    assert not scripted.redis.exists(ROW + b"queue"), "the place was struck out"


def test_every_part_of_a_row_is_missed(scripted: Scripted) -> None:
    fill(scripted)
    row = scripted.redis.get(ROW)
    for length in range(len(row)):
        scripted.redis.set(ROW, row[:length])
        reply = scripted.ask(Inspect(KEY), **AT)
        assert isinstance(reply, Failed), length
    scripted.redis.set(ROW, row)
    assert isinstance(scripted.ask(Inspect(KEY), **AT), Status)


def test_a_wish_that_can_not_be_read_costs_nobody_else_anything(scripted: Scripted) -> None:
    batch = [acquire("a", key=b"lock:a"), acquire("b", key=b"lock:b"), acquire("c", key=b"lock:c")]
    call = call_for(batch, **AT)
    call.args[2] = call.args[2][:40]
    replies, _ = ledger.read_answer(scripted.evaluate(call), batch, "here")
    assert [type(reply) for reply in replies] == [Granted, Failed, Granted]


@pytest.mark.parametrize("other", [2, 4])
def test_of_another_format_nothing_is_granted(scripted: Scripted, other: int) -> None:
    scripted.redis.set(ledger.store_key(b"lock:b"), b"DI%c whatever that release has here" % other)
    with pytest.raises(IncompatibleVersion, match=rf"format {other}.*reads format 3"):
        scripted.ask(acquire("a", key=b"lock:a"), acquire("b", key=b"lock:b"))
    assert not scripted.redis.exists(ledger.store_key(b"lock:a"))


def test_what_an_earlier_life_left_is_not_believed(scripted: Scripted) -> None:
    fill(scripted)
    scripted.redis.delete(ROW)
    scripted.redis.set(ROW + b"queue", "not even a queue")
    granted = scripted.ask(acquire("a", capacity=1), **AT)
    assert isinstance(granted, Granted)
    queued = scripted.ask(acquire("c", queue=True), **AT)
    assert isinstance(queued, Queued)
    assert queued.position == 0
    status = scripted.ask(Inspect(KEY), **AT)
    assert (len(status.holders), status.waiting) == (1, 1)


# ---- a server that refuses ------------------------------------------------------------------------


def test_a_full_server_refuses_the_whole_batch(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server:
        scripted = Scripted(server)
        scripted.redis.config_set("maxmemory", "1mb")
        with pytest.raises(BackendUnavailable, match="used memory"):
            scripted.ask(acquire("a", key=b"lock:a"), Inspect(KEY))
        scripted.redis.config_set("maxmemory", "0")
        assert isinstance(scripted.ask(acquire("a")), Granted)
        scripted.close()


def test_an_acl_in_the_way_is_told(tmp_path: Path) -> None:
    users = ["default on nopass ~* &* +@all", "narrow on >secret ~* &* +@all -set"]
    with RedisServer(tmp_path, users=users) as server:
        scripted = Scripted(server)
        scripted.redis.execute_command("AUTH", "narrow", "secret")
        raw = scripted.evaluate(call_for([acquire("a")]))
        replies, _ = ledger.read_answer(raw, [acquire("a")], "here")
        assert isinstance(replies[0], Failed)
        assert replies[0].reason == "forbidden"
        scripted.close()


# ---- how long it lies there -----------------------------------------------------------------------


def lifetimes(scripted: Scripted) -> dict[bytes, int]:
    """In milliseconds, by suffix."""
    keys = scripted.redis.keys("*")
    return {key.removeprefix(ROW): scripted.redis.pttl(key) for key in keys}


def test_an_idle_key_goes_after_a_day(scripted: Scripted) -> None:
    scripted.ask(acquire("a"))
    assert DAY + 29_000 < lifetimes(scripted)[b""] <= DAY + 3_630_000
    scripted.ask(Renew(KEY, "a", 100.0))
    assert DAY + 99_000 < lifetimes(scripted)[b""] <= DAY + 3_700_000
    scripted.ask(Release(KEY, "a"))
    assert DAY - 1000 < lifetimes(scripted)[b""] <= DAY


def test_a_hold_is_there_until_all_that_follows_from_it_is_over(scripted: Scripted) -> None:
    two_days = 2 * 86_400.0
    scripted.ask(acquire("a", lock_delay=two_days))
    assert lifetimes(scripted)[b""] > 3 * DAY
    scripted.ask(Renew(KEY, "a", 40.0))
    assert lifetimes(scripted)[b""] > 3 * DAY
    scripted.ask(Release(KEY, "a", retain=two_days, tombstone=two_days))
    assert lifetimes(scripted)[b""] > 5 * DAY


def test_nothing_goes_before_the_row(scripted: Scripted) -> None:
    scripted.ask(acquire("a", ttl=20.0), acquire("b", queue=True), Release(KEY, "c", tombstone=9.0))
    first = lifetimes(scripted)
    assert set(first) == {b"", b"entry", b"queue", b"due"}
    assert max(first.values()) - min(first.values()) < 5000
    scripted.ask(Renew(KEY, "a", 10 * 86_400.0))
    later = lifetimes(scripted)
    assert min(later.values()) > 10 * DAY
    assert max(later.values()) - min(later.values()) < 5000


def test_signs_of_life_move_expiries_now_and_then_only(scripted: Scripted) -> None:
    scripted.ask(acquire("a", ttl=3600.0), acquire("b", queue=True))
    with scripted.redis.monitor() as monitor:
        scripted.ask(Renew(KEY, "b", 30.0))
        words = []
        while "the end" not in (line := next(iter(monitor.listen())))["command"]:
            words.append(line["command"].split()[0])
    assert "PEXPIRE" not in words
    assert "HSET" in words


def test_a_key_with_a_far_token_is_kept_until_the_clock_has_passed_it(scripted: Scripted) -> None:
    seconds, microseconds = scripted.redis.time()
    floor = (seconds + 864_000) * 1_000_000 + microseconds
    assert scripted.ask(acquire("a", floor=floor)).token == floor + 1
    for command in (
        Release(KEY, "a"),
        acquire("b"),
        Renew(KEY, "b", 30.0),
        acquire("c", queue=True),
    ):
        scripted.ask(command)
        assert 10.9 * DAY < lifetimes(scripted)[b""] <= 11 * DAY + 1000
    scripted.ask(Release(KEY, "b"))
    assert 10.9 * DAY < lifetimes(scripted)[b""] <= 11 * DAY + 1000


def test_entries_are_kept_as_long_as_a_row_with_a_far_token(scripted: Scripted) -> None:
    scripted.ask(acquire("a", capacity=3))
    scripted.ask(acquire("b", capacity=3))
    seconds, microseconds = scripted.redis.time()
    floor = (seconds + 864_000) * 1_000_000 + microseconds
    scripted.ask(acquire("c", capacity=3, floor=floor))
    found = lifetimes(scripted)
    assert set(found) == {b"", b"entry", b"ends"}
    assert min(found.values()) > 10 * DAY


def test_an_emptied_book_is_its_row_alone(scripted: Scripted) -> None:
    fill(scripted)
    scripted.ask(Inspect(KEY), now=NOW + 1000.0, stamp=STAMP)
    assert scripted.redis.keys("*") == [ROW]


def test_an_inspection_writes_nothing(scripted: Scripted) -> None:
    assert scripted.ask(Inspect(KEY), **AT) == Status(KEY, 0)
    assert scripted.ask(Renew(KEY, "a", 30.0)) is not None
    assert scripted.redis.keys("*") == []


# ---- a server that lost everything ----------------------------------------------------------------


def test_tokens_rise_though_everything_was_lost(scripted: Scripted) -> None:
    before = scripted.ask(acquire("a")).token
    scripted.redis.flushall()
    assert scripted.ask(acquire("a")).token > before


def test_a_server_that_came_back_empty_grants_nothing_for_a_while(scripted: Scripted) -> None:
    held = {"stamp": STAMP, "holdoff": 60.0}
    reply = scripted.ask(acquire("a"), now=NOW, **held)
    assert reply == Refused("closed", (), 60.0)
    reply = scripted.ask(acquire("a", queue=True), now=NOW + 20.0, **held)
    assert reply == Refused("closed", (), 40.0)
    too_large = scripted.ask(acquire("a", units=2), now=NOW + 20.0, **held)
    assert too_large == Refused("too_large")
    assert isinstance(scripted.ask(acquire("a"), now=NOW + 60.0, **held), Granted)
    scripted.redis.flushall()
    assert isinstance(scripted.ask(acquire("b"), now=NOW + 100.0, **held), Refused)


def test_places_and_growth_wait_for_the_end_of_the_hold_off(scripted: Scripted) -> None:
    """Others, without a hold-off of their own, may have come in."""
    waiter = acquire("b", units=3, capacity=3, queue=True, waiter_ttl=600.0)
    scripted.ask(acquire("a", capacity=3), waiter, **AT)
    held = {"stamp": STAMP, "holdoff": 60.0}
    grown = scripted.ask(Resize(KEY, "a", 2, 1), now=NOW, **held)
    assert grown == Refused("closed", (), 60.0)
    scripted.ask(Release(KEY, "a"), now=NOW + 1.0, **held)
    assert isinstance(scripted.ask(Renew(KEY, "b", 30.0), now=NOW + 2.0, **held), Queued)
    assert isinstance(scripted.ask(Renew(KEY, "b", 30.0), now=NOW + 60.0, **held), Granted)


@pytest.mark.parametrize("harm", [b"garbage", b"nan", b"99999999999", None])
def test_an_epoch_that_can_not_be_read_begins_anew(scripted: Scripted, harm: bytes | None) -> None:
    scripted.ask(acquire("a"), now=NOW, stamp=STAMP, holdoff=60.0)
    if harm is None:
        scripted.redis.delete("dibs:epoch")
        scripted.redis.rpush("dibs:epoch", "x")
    else:
        scripted.redis.set("dibs:epoch", harm)
    held = {"stamp": STAMP, "holdoff": 60.0}
    assert isinstance(scripted.ask(acquire("a"), now=NOW + 100.0, **held), Refused)
    assert isinstance(scripted.ask(acquire("a"), now=NOW + 160.0, **held), Granted)
