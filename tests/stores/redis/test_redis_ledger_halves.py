"""A batch that fails half-way: nothing is told that wasn't done, and the key is whole afterwards."""

from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from dibs.model import Acquire, Command, Failed, Inspect, Queued, Release, Status
from dibs.stores.redis import ledger
from tests.servers.redis import RedisServer
from tests.stores.redis.ledger_scripted import AT, Scripted, call_for

pytestmark = pytest.mark.once  # what the server does is the same for each version of Python

KEY = b"lock:x"


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
    return Acquire(KEY, lease, lease, 30.0, queue=True, **more)


def test_no_grant_is_pushed_that_was_not_made(scripted: Scripted, poor: Any) -> None:
    """Two commands wait to be written with a third, whose writing is forbidden."""
    scripted.ask(wish("holder"), wish("waiter", inbox="there"), **AT)
    replies = poor(Inspect(KEY), Release(KEY, "holder"), Inspect(KEY))
    assert [type(reply) for reply in replies] == [Status, Failed, Status]
    assert scripted.published() == []
    assert [each.owner for each in scripted.ask(Inspect(KEY), **AT).holders] == ["holder"]


@pytest.mark.parametrize("number", range(12))
def test_the_key_is_whole_where_one_of_two_is_forbidden(
    scripted: Scripted, poor: Any, number: int
) -> None:
    """The order in which a table is walked differs with its texts, so some are tried."""
    scripted.ask(wish("holder"), wish(f"leaver {number}"), **AT)
    replies = poor(wish(f"newcomer {number}"), Release(KEY, f"leaver {number}"))
    assert [type(reply) for reply in replies] == [Queued, Failed]
    status = scripted.ask(Inspect(KEY), **AT)
    assert [each.owner for each in status.waiters] == [f"leaver {number}", f"newcomer {number}"]


def test_what_is_struck_out_and_begun_anew_still_ends_by_itself(scripted: Scripted) -> None:
    """A sorted set that loses its last member and gets another is a new key, without an expiry."""

    def ask(*batch: Command) -> None:  # by the server's clock, so that keys have an expiry
        scripted.evaluate(call_for(batch))

    ask(wish("a", capacity=2))
    ask(wish("b", capacity=2))
    ask(wish("c", capacity=2))
    ask(Release(KEY, "b"))
    keys = scripted.redis.keys(ledger.store_key(KEY) + b"*")
    assert keys
    assert {key: scripted.redis.ttl(key) for key in keys if scripted.redis.ttl(key) < 0} == {}
