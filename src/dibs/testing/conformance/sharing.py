"""Many units: weights, slots, a capacity that changes, leases that grow and shrink."""

from dibs.model import (
    MANY,
    MAX_SLOTS,
    Failed,
    Granted,
    Lost,
    Refused,
    Release,
    Reply,
    Resize,
    Revoke,
)
from dibs.testing.conformance.suite import Suite, case, needing
from dibs.testing.conformance.world import World
from dibs.testing.connections import TestedConnection


class Sharing(Suite):
    """Keys of more than one unit."""

    @case
    async def test_as_many_as_fit(self, world: World) -> None:
        store = await world.connect()
        tokens = [(await world.take(store, name, capacity=3)).token for name in "abc"]
        assert tokens == sorted(set(tokens))
        refusal = await world.refused(store, "d", capacity=3)
        assert refusal.reason == "held"
        assert len(refusal.holders) == 3
        await world.release(store, "b")
        await world.take(store, "d", capacity=3)

    @case
    async def test_slots_are_the_lowest_free_ones(self, world: World) -> None:
        store = await world.connect()
        assert (await world.take(store, "a", capacity=4, units=2)).slots == (0, 1)
        assert (await world.take(store, "b", capacity=4)).slots == (2,)
        await world.release(store, "a")
        assert (await world.take(store, "c", capacity=4)).slots == (0,)
        assert (await world.take(store, "d", capacity=4, units=2)).slots == (1, 3)

    @case
    async def test_units_are_weights(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a", capacity=5, units=3)
        await world.refused(store, "b", capacity=5, units=3)
        await world.take(store, "c", capacity=5, units=2)

    @case
    async def test_more_than_there_are_is_too_large(self, world: World) -> None:
        store = await world.connect()
        assert (await world.refused(store, "a", capacity=2, units=3)).reason == "too_large"
        refusal = await world.refused(store, "a", capacity=2, units=3, queue=True)
        assert refusal.reason == "too_large"
        assert await world.holders(store, "a") == []

    @case
    async def test_without_numbers_as_many_as_come(self, world: World) -> None:
        world.kind = b"rwlock"
        store = await world.connect()
        for number in range(20):
            assert (await world.take(store, f"{number}", capacity=MANY)).slots == ()
        await world.refused(store, "writer", capacity=MANY, units=MANY)

    @case
    async def test_units_are_numbered_up_to_1024(self, world: World) -> None:
        store = await world.connect()
        numbered = await world.take(store, "a", capacity=MAX_SLOTS, units=MAX_SLOTS)
        assert numbered.slots == tuple(range(MAX_SLOTS))
        assert (await world.take(store, "b", capacity=MAX_SLOTS + 1)).slots == ()
        await world.release(store, "a")
        assert (await world.take(store, "c", capacity=MAX_SLOTS)).slots == (0,)

    @case
    async def test_a_crowd_is_listed_in_part_and_counted_whole(self, world: World) -> None:
        store = await world.connect()
        crowd = [world.acquire(f"{n}", capacity=300, units=2, ttl=30 + n) for n in range(120)]
        await store.apply(crowd)
        status = await world.status(store)
        assert [each.owner for each in status.holders] == [f"owner-{n}" for n in range(100)]
        assert (status.holding, status.used) == (120, 240)
        refusal = await world.refused(store, "late", capacity=240)
        assert [each.owner for each in refusal.holders] == [f"owner-{n}" for n in range(8)]
        assert refusal.recheck_in <= world.at_most(30 * world.second)

    @case
    async def test_more_units_than_the_largest_capacity_are_refused(self, world: World) -> None:
        world.kind = b"rwlock"
        store = await world.connect()
        await world.take(store, "held", capacity=MANY)
        for command in (
            world.acquire("a", capacity=MANY + 1),
            world.acquire("a", capacity=1 << 30, units=1 << 30),
            Resize(world.key(), "held", 1 << 30, 1),
        ):
            reply = await world.say(store, command)
            assert isinstance(reply, Failed)
            assert reply.reason == "invalid"
            assert str(MANY) in reply.detail
        assert (await world.status(store)).capacity == MANY

    @case
    async def test_a_writer_takes_all(self, world: World) -> None:
        world.kind = b"rwlock"
        store = await world.connect()
        await world.take(store, "writer", capacity=MANY, units=MANY)
        await world.refused(store, "reader", capacity=MANY)

    @case
    async def test_the_newest_capacity_counts_and_holds_run_on(self, world: World) -> None:
        store = await world.connect()
        for name in "abc":
            await world.take(store, name, capacity=3)
        await world.refused(store, "d", capacity=2)
        for name in "ab":
            await world.release(store, name)
            assert await world.holders(store, "a b c") == (["b", "c"] if name == "a" else ["c"])
            if name == "a":
                await world.refused(store, "e", capacity=2)
        await world.take(store, "f", capacity=2)

    @case
    async def test_an_expired_share_is_free_again(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a", capacity=2, ttl=10)
        await world.take(store, "b", capacity=2, ttl=60)
        await world.outlast(10 * world.second, by=store)
        assert (await world.take(store, "c", capacity=2)).slots == (0,)
        await world.refused(store, "d", capacity=2)

    async def resize(
        self, world: World, store: TestedConnection, name: str, units: int, seq: int
    ) -> Reply:
        """Resize what the id `name` has."""
        return await world.say(store, Resize(world.key(), name, units, seq))

    @case
    async def test_growing_is_a_new_grant(self, world: World) -> None:
        store = await world.connect()
        first = await world.take(store, "a", capacity=4)
        grown = await self.resize(world, store, "a", 3, 1)
        assert isinstance(grown, Granted)
        assert grown.token > first.token
        assert grown.slots == (0, 1, 2)
        await world.refused(store, "b", capacity=4, units=2)

    @case
    async def test_shrinking_keeps_the_token_and_frees_units(self, world: World) -> None:
        store = await world.connect()
        first = await world.take(store, "a", capacity=4, units=4)
        shrunk = await self.resize(world, store, "a", 1, 1)
        assert isinstance(shrunk, Granted)
        assert (shrunk.token, shrunk.slots) == (first.token, (0,))
        assert (await world.take(store, "b", capacity=4, units=3)).slots == (1, 2, 3)

    @case
    async def test_growing_waits_for_nobody_and_names_the_others(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a", capacity=2)
        await world.take(store, "b", capacity=2)
        refusal = await self.resize(world, store, "a", 2, 1)
        assert isinstance(refusal, Refused)
        assert [holder.owner for holder in refusal.holders] == ["owner-b"]
        too_large = await self.resize(world, store, "a", 3, 2)
        assert isinstance(too_large, Refused)
        assert too_large.reason == "too_large"

    @case
    async def test_growing_ignores_the_queue(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a", capacity=2)
        await world.queue(store, "b", capacity=2, units=2)
        assert isinstance(await self.resize(world, store, "a", 2, 1), Granted)

    @case
    async def test_a_delayed_copy_undoes_nothing(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a", capacity=4)
        await self.resize(world, store, "a", 4, 1)
        await self.resize(world, store, "a", 2, 2)
        late = await self.resize(world, store, "a", 4, 1)
        assert isinstance(late, Granted)
        assert late.slots == (0, 1)

    @case
    async def test_a_copy_of_what_was_refused_stays_refused(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a", capacity=2)
        await world.take(store, "b", capacity=2)
        await self.resize(world, store, "a", 2, 1)
        await world.release(store, "b")
        assert isinstance(await self.resize(world, store, "a", 2, 1), Refused)
        assert isinstance(await self.resize(world, store, "a", 2, 2), Granted)

    @case
    async def test_a_repeat_is_the_same_resize(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a", capacity=4)
        first = await self.resize(world, store, "a", 3, 1)
        again = await self.resize(world, store, "a", 3, 1)
        assert isinstance(first, Granted)
        assert isinstance(again, Granted)
        assert (first.token, first.slots) == (again.token, again.slots)

    @case
    async def test_what_is_not_held_cant_be_resized(self, world: World) -> None:
        store = await world.connect()
        assert await self.resize(world, store, "a", 1, 1) == Lost("expired")
        await world.take(store, "a", ttl=10, capacity=2)
        await world.queue(store, "b", capacity=2, units=2)
        assert isinstance(await self.resize(world, store, "b", 1, 1), Lost)
        await world.outlast(10 * world.second, by=store)
        assert await self.resize(world, store, "a", 2, 2) == Lost("expired")


LARGEST = 1 << 53


class TokenCases(Suite):
    """Every grant has a greater token than all before it."""

    @case
    async def test_each_grant_has_a_greater_one(self, world: World) -> None:
        store = await world.connect()
        tokens: list[int] = []
        for name in "abcdef":
            tokens.append((await world.take(store, name)).token)
            await world.release(store, name)
        assert tokens == sorted(set(tokens))
        assert tokens[-1] < LARGEST
        assert (await world.status(store)).last_token in (0, tokens[-1])

    @case
    async def test_they_rise_over_expiry_revocation_and_notifications(self, world: World) -> None:
        store = await world.connect()
        first = (await world.take(store, "a", ttl=3)).token
        await world.outlast(3 * world.second, by=store)
        second = (await world.take(store, "b")).token
        await world.say(store, Revoke(world.key(), None, "x", now=True))
        third = (await world.take(store, "c")).token
        await world.queue(store, "d")
        await world.release(store, "c")
        fourth = (await world.status(store)).holders[0].token
        assert first < second < third < fourth

    @case
    async def test_a_floor_is_passed(self, world: World) -> None:
        store = await world.connect()
        floor = (await world.take(store, "a")).token + 10**9
        await world.release(store, "a")
        assert (await world.take(store, "b", floor=floor)).token > floor
        await world.release(store, "b")
        assert (await world.take(store, "c")).token > floor + 1

    @needing("manual")
    async def test_they_rise_though_the_wall_clock_is_stepped_back(self, world: World) -> None:
        store = await world.connect()
        first = (await world.take(store, "a")).token
        await world.release(store, "a")
        world.clock.step_stamp(-3600)
        assert (await world.take(store, "b")).token > first

    @needing("manual")
    async def test_a_clock_that_cant_be_right_seeds_none(self, world: World) -> None:
        store = await world.connect()
        first = (await world.take(store, "a")).token
        await world.release(store, "a")
        world.clock.step_stamp(400 * 365 * 86400)
        assert (await world.take(store, "b")).token < first + 10**9

    @case
    async def test_they_rise_though_idle_keys_are_forgotten(self, world: World) -> None:
        store = await world.connect()
        first = (await world.take(store, "a")).token
        await world.release(store, "a")
        keys = [world.key(b"idle-%d" % number) for number in range(self.many)]
        for start in range(0, len(keys), 250):
            some = keys[start : start + 250]
            await store.apply([world.acquire("x", key=key) for key in some])
            await store.apply([Release(key, "x") for key in some])
        assert (await world.take(store, "b")).token > first

    @case
    async def test_they_rise_over_a_restart(self, world: World) -> None:
        store = await world.connect()
        first = (await world.take(store, "a", ttl=3)).token
        await world.release(store, "a")
        world.pass_time(0.1 * world.second)
        store = await world.reopen()
        assert (await world.take(store, "b")).token > first

    @needing("durable")
    async def test_leases_and_places_outlive_a_restart(self, world: World) -> None:
        store = await world.connect()
        first = await world.take(store, "a", ttl=60)
        await world.queue(store, "b", waiter_ttl=60)
        store = await world.reopen()
        assert (await world.take(store, "a", ttl=60)).token == first.token
        assert await world.waiters(store, "b") == ["b"]
        assert isinstance(await world.say(store, world.acquire("c")), Refused)
        await world.release(store, "a")
        assert isinstance(await world.renew(store, "b"), Granted)

    @needing("durable", "manual")
    async def test_a_durable_token_needs_no_clock(self, world: World) -> None:
        store = await world.connect()
        first = (await world.take(store, "a")).token
        await world.release(store, "a")
        world.clock.step_stamp(-3600)
        store = await world.reopen()
        assert (await world.take(store, "b")).token > first
