"""Many commands in one round trip, and the way that takes no round trip at all."""

from collections.abc import Sequence
from typing import Any

from dibs.core.names import fingerprint
from dibs.model import (
    Acquire,
    Command,
    Failed,
    Granted,
    Inspect,
    Lost,
    Refused,
    Release,
    Released,
    Renew,
    Renewed,
    Reply,
    Resize,
    Revoke,
    Status,
    Unknown,
)
from dibs.stores.port import MAX_BATCH
from dibs.testing.conformance.suite import Suite, case
from dibs.testing.conformance.world import World


class Batches(Suite):
    """Each command has its own reply, whatever the others do."""

    @case
    async def test_an_empty_batch(self, world: World) -> None:
        store = await world.connect()
        assert list(await store.apply([])) == []

    @case
    async def test_replies_come_in_the_order_of_the_commands(self, world: World) -> None:
        store = await world.connect()
        one, two = world.key(b"one"), world.key(b"two")
        replies = await store.apply(
            [
                world.acquire("a", key=two),
                world.acquire("a", key=one),
                Renew(two, "x", 1.0),
                Inspect(one),
                Release(two, "a"),
                Release(one, "x"),
            ]
        )
        kinds = [type(reply) for reply in replies]
        assert kinds == [Granted, Granted, Lost, Status, Released, Unknown]
        status = replies[3]
        assert isinstance(status, Status)
        assert status.key == one

    @case
    async def test_the_order_of_one_key_is_kept(self, world: World) -> None:
        store = await world.connect()
        commands: list[Command] = []
        for name in "abc":
            commands += [
                world.acquire(name),
                world.acquire("other"),
                Renew(world.key(), name, 30 * world.second),
                Release(world.key(), name),
            ]
        kinds = [type(reply) for reply in await store.apply(commands)]
        assert kinds == [Granted, Refused, Renewed, Released] * 3

    @case
    async def test_an_error_of_one_costs_no_other(self, world: World) -> None:
        store = await world.connect()
        replies = await store.apply(
            [
                world.acquire("a"),
                world.acquire("bad", key=world.key(b"b"), ttl=-1),
                Renew(world.key(), "a", float("nan")),
                world.acquire("c", key=world.key(b"c")),
                Resize(world.key(), "a", 0, 1),
                Renew(world.key(), "a", 30 * world.second),
            ]
        )
        kinds = [type(reply) for reply in replies]
        assert kinds == [Granted, Failed, Failed, Granted, Failed, Renewed]

    @case
    async def test_a_full_batch(self, world: World) -> None:
        store = await world.connect()
        keys = [world.key(b"%d" % number) for number in range(MAX_BATCH)]
        taken = await store.apply([world.acquire("a", key=key) for key in keys])
        assert {type(reply) for reply in taken} == {Granted}
        freed = await store.apply([Release(key, "a") for key in keys])
        assert list(freed) == [Released()] * MAX_BATCH

    @case
    async def test_many_of_one_key_in_a_batch(self, world: World) -> None:
        store = await world.connect()
        commands = [world.acquire(f"{number}", capacity=100) for number in range(MAX_BATCH)]
        replies = await store.apply(commands)
        granted = [reply for reply in replies if isinstance(reply, Granted)]
        assert [grant.slots for grant in granted] == [(slot,) for slot in range(100)]
        assert {type(reply) for reply in replies[100:]} == {Refused}

    @case
    async def test_one_by_one_or_in_a_batch_is_the_same(self, world: World) -> None:
        store = await world.connect()
        one_by_one = [await world.say(store, each) for each in script(world, world.key(b"single"))]
        commands = script(world, world.key(b"together"))
        first, second = commands[:15], commands[15:]  # one revocation each
        together = [*await store.apply(first), *await store.apply(second)]
        assert shapes(one_by_one) == shapes(together)

    @case
    async def test_a_batch_sent_again_changes_nothing_more(self, world: World) -> None:
        store = await world.connect()
        commands: list[Command] = [
            world.acquire("a"),
            world.acquire("b", queue=True, inbox=store.inbox),
            world.acquire("c", key=world.key(b"c"), capacity=3, units=2),
            Resize(world.key(b"c"), "c", 3, 1),
        ]
        first = await store.apply(commands)
        again = await store.apply(commands)
        assert [type(reply) for reply in first] == [type(reply) for reply in again]
        assert shapes(first)[-1] == shapes(again)[-1]
        assert tokens(first)[0] == tokens(again)[0]
        assert tokens(first)[-1] == tokens(again)[-1]
        assert (await world.status(store)).waiting == 1


def script(world: World, key: bytes) -> list[Command]:
    """A bit of everything on one key."""
    again = 30 * world.second

    def acquire(name: str, **more: Any) -> Acquire:
        return world.acquire(name, key=key, capacity=2, **more)

    return [
        acquire("a", note="n"),
        acquire("a"),
        acquire("b", units=2),
        acquire("b", units=2, queue=True),
        acquire("c", units=3),
        Renew(key, "a", again),
        Renew(key, "b", again),
        Renew(key, "x", again),
        Inspect(key),
        Resize(key, "a", 2, 1),
        Resize(key, "a", 1, 2),
        Release(key, "x", tombstone=60.0),
        acquire("x"),
        Revoke(key, fingerprint("a"), "why"),
        Renew(key, "a", again),
        Revoke(key, None, "why", now=True),
        Inspect(key),
        Renew(key, "b", again),
        Release(key, "b", retain=60.0),
        acquire("d", units=2),
        Release(key, "a"),
        Inspect(key),
    ]


def shapes(replies: Sequence[Reply]) -> list[tuple[object, ...]]:
    """Everything but keys, tokens and exact times, which differ between runs."""
    return [_shape(reply) for reply in replies]


def _shape(reply: Reply) -> tuple[object, ...]:
    kind = type(reply).__name__
    match reply:
        case Granted():
            return kind, reply.slots
        case Refused():
            return kind, reply.reason, [(each.lease, each.slots) for each in reply.holders]
        case Status():
            holders = [(each.lease, each.owner, each.slots, each.state) for each in reply.holders]
            return kind, reply.capacity, holders, [each.lease for each in reply.waiters]
        case Lost():
            return kind, reply.reason, reply.detail
        case _:
            return (kind,)


def tokens(replies: Sequence[Reply]) -> list[int]:
    """The tokens that were granted."""
    return [reply.token for reply in replies if isinstance(reply, Granted)]
