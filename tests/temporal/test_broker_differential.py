"""A broker on a real server answers as the ledger does in memory, whatever it is asked."""

import json
from dataclasses import replace
from random import Random
from uuid import uuid4

import pytest

from dibs.core import ledger
from dibs.core.book import MemoryBook
from dibs.core.codec import decode_reply, encode
from dibs.core.names import fingerprint
from dibs.model import (
    MANY,
    Acquire,
    Command,
    Inspect,
    Refused,
    Release,
    Renew,
    Reply,
    Resize,
    Revoke,
)
from dibs.stores.temporal.broker.desk import QUEUE_LIMIT
from tests.servers.temporal import TemporalServer
from tests.temporal.brokers import BriskBroker, serving

pytestmark = [pytest.mark.once]

IDS = [f"id{number}" for number in range(7)]
WAITS = [0.0, 0.0, 0.0, 0.01, 0.7, 1.7, 6.0, 31.0, 70.0]
CALLS = 100


def any_command(random: Random, key: bytes) -> Command:
    """Mostly what clients do, on few ids, so that it matters."""
    entry_id, ttl = random.choice(IDS), random.choice([0.5, 3.0, 10.0, 30.0])
    match random.randrange(10):
        case 0 | 1 | 2 | 3:
            units, capacity = random.choice(
                [(1, 1)] * 6 + [(1, 3), (2, 3), (3, 3), (1, MANY), (2, 1)]
            )
            return Acquire(
                key,
                entry_id,
                "owner",
                ttl,
                units,
                capacity,
                queue=random.random() < 0.8,
                waiter_ttl=random.choice([1.0, 8.0, 30.0]),
                priority=random.choice([0, 0, 0, 1]),
                lock_delay=random.choice([0.0, 0.0, 2.0]),
                inbox=random.choice(["", "here"]),
            )
        case 4 | 5:
            return Renew(key, entry_id, ttl)
        case 6 | 7:
            return Release(
                key, entry_id, random.choice([0.0, 0.0, 3.0]), random.choice([0.0, 60.0])
            )
        case 8:
            return Resize(key, entry_id, random.randint(1, 3), random.randint(0, 3))
        case _:
            everybody = Revoke(key, None, "because", now=random.random() < 0.5)
            one = Revoke(key, fingerprint(entry_id), "because")
            rare: list[Command] = [Inspect(key), Inspect(key), everybody, one]
            return random.choice(rare)


def comparable(reply: Reply, key: bytes) -> Reply:
    """As it arrives; what ends at once ends in any order."""
    found = decode_reply(json.loads(json.dumps(encode(reply))), key)
    if isinstance(found, Refused):
        return replace(found, holders=tuple(sorted(found.holders, key=lambda each: each.token)))
    return found


@pytest.mark.parametrize("seed", range(3))
async def test_it_answers_as_the_ledger(temporal_server: TemporalServer, seed: int) -> None:
    random, book = Random(seed), MemoryBook(0, QUEUE_LIMIT)
    now, stamp = 1_000.0, 1_700_000_000_000_000
    async with serving(temporal_server.address, BriskBroker) as here:
        here.key = b"lock:" + uuid4().hex.encode()
        for _ in range(CALLS):
            wait = random.choice(WAITS)
            now, stamp = now + wait, stamp + int(wait * 1e6)
            commands = [any_command(random, here.key) for _ in range(random.randint(1, 6))]
            found = await here.apply(*commands, at=(now, stamp))
            wanted = [ledger.apply(book, command, now, stamp)[0] for command in commands]
            assert [comparable(each, here.key) for each in found] == [
                comparable(each, here.key) for each in wanted
            ]
        assert len(await here.chain()) > 1
