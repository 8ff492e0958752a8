"""The ledger in Lua, asked directly: what lies in Redis, and what cannot be read there."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack
from redis import Redis
from redis.crc import key_slot

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
    Status,
    Unknown,
)
from dibs.stores.redis import ledger
from tests.servers.redis import RedisServer
from tests.stores.redis.ledger_scripted import AT, NOW, STAMP, Scripted, call_for

pytestmark = pytest.mark.once  # what the server does is the same for each version of Python


def test_a_crowd_comes_and_goes_at_once(scripted: Scripted) -> None:
    """More than fits into one call to Redis: they expire together, and are revoked together."""
    readers = [Acquire(b"rwlock:x", f"r{n}", "o", 30.0, capacity=MANY) for n in range(2500)]
    waiters = [
        Acquire(b"rwlock:x", f"w{n}", "o", 30.0, MANY, MANY, queue=True, waiter_ttl=10.0)
        for n in range(2500)
    ]
    scripted.ask(*readers, **AT)
    scripted.ask(*waiters, **AT)
    later = {**AT, "now": NOW + 20.0}
    for _ in range(2500 // STEPS):
        scripted.ask(Inspect(b"rwlock:x"), **later)
    status = scripted.ask(Inspect(b"rwlock:x"), **later)
    assert (len(status.holders), status.holding, status.waiting) == (100, 2500, 0)
    assert scripted.ask(Revoke(b"rwlock:x", None, "because", now=True), **later) == Revoked(2500, 0)
    again = scripted.ask(readers[-1], **later)
    assert again == Gone(), "each is remembered"
    for _ in range(2500 // STEPS + 1):
        scripted.ask(Inspect(b"rwlock:x"), **{**AT, "now": NOW + 100.0})
    assert scripted.redis.keys("*") == [ledger.store_key(b"rwlock:x")]


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


# ---- a server that lost everything ----------------------------------------------------------------


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


LOCK = b"lock:x"


@pytest.fixture
def poor(redis_server: RedisServer, scripted: Scripted) -> Iterator[Any]:
    """Calls the script as a user who may not strike anything out of a hash."""
    scripted.redis.execute_command(
        "ACL", "SETUSER", "poor", "on", "nopass", "~*", "&*", "+@all", "-hdel"
    )
    client = Redis.from_url(redis_server.url, username="poor", password="any")

    def ask(*batch: Command) -> list[Any]:
        raw = scripted.evaluate(call_for(batch, **AT), client)
        return ledger.read_answer(raw, batch, "here")[0]

    yield ask
    client.close()
    scripted.redis.execute_command("ACL", "DELUSER", "poor")


def wish(lease: str, **more: Any) -> Acquire:
    return Acquire(LOCK, lease, lease, 30.0, queue=True, **more)


def test_no_grant_is_pushed_that_was_not_made(scripted: Scripted, poor: Any) -> None:
    """Two commands wait to be written with a third, whose writing is forbidden."""
    scripted.ask(wish("holder"), wish("waiter", inbox="there"), **AT)
    replies = poor(Inspect(LOCK), Release(LOCK, "holder"), Inspect(LOCK))
    assert [type(reply) for reply in replies] == [Status, Failed, Status]
    assert scripted.published() == []
    assert [each.owner for each in scripted.ask(Inspect(LOCK), **AT).holders] == ["holder"]


@pytest.mark.parametrize("number", range(12))
def test_the_key_is_whole_where_one_of_two_is_forbidden(
    scripted: Scripted, poor: Any, number: int
) -> None:
    """The order in which a table is walked differs with its texts, so some are tried."""
    scripted.ask(wish("holder"), wish(f"leaver {number}"), **AT)
    replies = poor(wish(f"newcomer {number}"), Release(LOCK, f"leaver {number}"))
    assert [type(reply) for reply in replies] == [Queued, Failed]
    status = scripted.ask(Inspect(LOCK), **AT)
    assert [each.owner for each in status.waiters] == [f"leaver {number}", f"newcomer {number}"]


def test_what_is_struck_out_and_begun_anew_still_ends_by_itself(scripted: Scripted) -> None:
    """A sorted set that loses its last member and gets another is a new key, without an expiry."""

    def ask(*batch: Command) -> None:  # by the server's clock, so that keys have an expiry
        scripted.evaluate(call_for(batch))

    ask(wish("a", capacity=2))
    ask(wish("b", capacity=2))
    ask(wish("c", capacity=2))
    ask(Release(LOCK, "b"))
    keys = scripted.redis.keys(ledger.store_key(LOCK) + b"*")
    assert keys
    assert {key: scripted.redis.ttl(key) for key in keys if scripted.redis.ttl(key) < 0} == {}


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


# ---- texts ----------------------------------------------------------------------------------------


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
