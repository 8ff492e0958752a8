"""The ledger in Lua answers as the one in Python does, on a real server."""

import pytest

from dibs.core.timing import STEPS
from dibs.model import MANY, Acquire, Gone, Inspect, Queued, Release, Renew, Revoke, Revoked
from dibs.stores.redis import ledger
from tests.sampling import examples, sampled
from tests.servers.redis import RedisServer
from tests.stores.redis.ledger_equal import first_difference, hold_equal
from tests.stores.redis.ledger_mutants import MUTANTS
from tests.stores.redis.ledger_scripted import AT, NOW, Scripted

pytestmark = pytest.mark.once  # what the server does is the same for each version of Python


@pytest.mark.parametrize("as_script", [False, True])
def test_every_vector_is_answered_as_python_does(
    redis_server: RedisServer, as_script: bool
) -> None:
    """As a Function, and as a script where the server has no Functions."""
    scripted = Scripted(redis_server, as_script=as_script)
    assert first_difference(scripted) is None
    scripted.redis.flushall()
    scripted.close()


def test_any_commands_are_answered_as_python_does(scripted: Scripted) -> None:
    hold_equal(scripted, examples(100))


@pytest.mark.parametrize("mistake", sampled(MUTANTS, every=5))
def test_a_mistake_is_noticed(redis_server: RedisServer, mistake: str) -> None:
    right, wrong = (text.encode() for text in MUTANTS[mistake])
    assert ledger.LIBRARY.count(right) == 1, f"the Lua has changed: {right.decode()}"
    mutant = Scripted(redis_server, ledger.LIBRARY.replace(right, wrong))
    found = first_difference(mutant)
    mutant.redis.flushall()
    mutant.close()
    assert found is not None


def test_a_call_that_is_sent_twice_does_its_work_once(scripted: Scripted) -> None:
    batch = [Acquire(b"lock:x", "a", "o", 30.0)]
    once = scripted.apply(batch, **AT)
    status = scripted.ask(Inspect(b"lock:x"), **AT)
    assert scripted.apply(batch, **AT) == once
    before = scripted.everything()
    assert scripted.apply(batch, **AT) == once
    assert scripted.everything() == before
    assert scripted.ask(Inspect(b"lock:x"), **AT) == status


def test_whoever_left_from_behind_was_not_ahead(scripted: Scripted) -> None:
    """In one batch, so that the queue that Redis has does not know of it yet."""
    waiters = [Acquire(b"lock:x", f"w{n}", "o", 30.0, queue=True) for n in range(4)]
    scripted.ask(Acquire(b"lock:x", "holder", "o", 30.0), *waiters, **AT)
    _, _, queued = scripted.ask(
        Release(b"lock:x", "w0"), Release(b"lock:x", "w3"), Renew(b"lock:x", "w2", 30.0), **AT
    )
    assert isinstance(queued, Queued)
    assert queued.position == 1


def test_a_large_queue_is_never_read_whole(scripted: Scripted) -> None:
    """Neither the hand-over at the head nor a sign of life from the end looks at all the places."""
    places = [
        Acquire(b"lock:x", f"w{n}", "o", 30.0, queue=True, waiter_ttl=600.0) for n in range(2000)
    ]
    scripted.ask(Acquire(b"lock:x", "holder", "o", 30.0), **AT)
    scripted.ask(*places, **AT)
    with scripted.redis.monitor() as monitor:
        released, renewed = scripted.ask(
            Release(b"lock:x", "holder"), Renew(b"lock:x", places[-1].id, 30.0), **AT
        )
        scripted.redis.echo("the end")
        said = iter(monitor.listen())
        words = []
        while not (line := next(said))["command"].startswith("ECHO"):
            if line["client_type"] == "lua":
                words += line["command"].split()
    assert renewed.position == 1000
    assert {"ZRANGE", "HMGET", "ZRANK", "SET"} <= set(words)
    assert len(words) < 200
    assert released is not None


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
