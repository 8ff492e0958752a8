"""Fencing tokens only rise, and what was granted outlives connections."""

from dibs.model import Granted, Refused, Release, Revoke
from dibs.testing.conformance.suite import Suite, case, needing
from dibs.testing.conformance.world import World

LARGEST = 1 << 53


class Tokens(Suite):
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
    async def test_they_rise_over_expiry_revocation_and_pushes(self, world: World) -> None:
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
        await world.queue(store, "b", patience=60)
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
