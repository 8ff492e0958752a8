"""The queue: arrival, priority, strictness, patience, claim windows."""

from dibs.core.timing import claim_timeout
from dibs.model import MANY, Gone, Granted, Lost, Queued, Refused, Released
from dibs.testing.conformance.suite import Suite, case, needing
from dibs.testing.conformance.world import World


class Queueing(Suite):
    """Places, and how they become grants."""

    @case
    async def test_who_queues_gets_a_place(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a")
        assert (await world.queue(store, "b")).position == 0
        assert (await world.queue(store, "c")).position == 1
        assert await world.waiters(store, "b c") == ["b", "c"]
        status = await world.status(store)
        assert status.waiting == 2
        assert status.waiters[0].owner == "owner-b"

    @case
    async def test_first_come_first_served(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a")
        for name in "bcde":
            await world.queue(store, name)
        for holder, following in zip("abcd", "bcde", strict=True):
            await world.release(store, holder)
            assert isinstance(await world.renew(store, following), Granted)

    @case
    async def test_priority_before_arrival(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a")
        await world.queue(store, "low", priority=-1)
        await world.queue(store, "b")
        await world.queue(store, "c")
        assert (await world.queue(store, "high", priority=5)).position == 0
        names = "low b c high"
        assert await world.waiters(store, names) == ["high", "b", "c", "low"]

    @case
    async def test_a_try_never_passes_the_queue(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a", capacity=3, units=2)
        await world.queue(store, "b", capacity=3, units=2)
        await world.refused(store, "c", capacity=3)

    @case
    async def test_a_large_request_at_the_head_is_not_overtaken(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a", capacity=3)
        await world.take(store, "x", capacity=3)
        await world.queue(store, "large", capacity=3, units=3)
        await world.queue(store, "small", capacity=3)
        await world.release(store, "a")
        assert await world.waiters(store, "large small") == ["large", "small"]
        await world.release(store, "x")
        assert await world.holders(store, "large small") == ["large"]

    @case
    async def test_a_repeat_keeps_its_place(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a")
        await world.queue(store, "b")
        await world.queue(store, "c")
        assert (await world.queue(store, "b")).position == 0
        reply = await world.renew(store, "c")
        assert isinstance(reply, Queued)
        assert reply.position == 1
        assert (await world.status(store)).waiting == 2

    @case
    async def test_a_place_can_be_given_up(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a")
        await world.queue(store, "b")
        await world.queue(store, "c")
        assert await world.release(store, "b") == Released()
        await world.release(store, "a")
        assert await world.holders(store, "b c") == ["c"]

    @case
    async def test_a_place_not_heard_of_within_its_patience_is_dropped(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a", ttl=100)
        await world.queue(store, "b", waiter_ttl=10)
        await world.queue(store, "c", waiter_ttl=100)
        await world.outlast(10 * world.second, by=store)
        assert await world.waiters(store, "b c") == ["c"]
        assert isinstance(await world.renew(store, "b"), Lost)

    @case
    async def test_signs_of_life_keep_a_place(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a", ttl=100)
        await world.queue(store, "b", waiter_ttl=10)
        for _ in range(3):
            world.pass_time(6 * world.second)
            assert isinstance(await world.renew(store, "b"), Queued)
        assert await world.waiters(store, "b") == ["b"]

    @case
    async def test_recheck_tells_when_time_alone_can_help(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a", ttl=3)
        place = await world.queue(store, "b")
        assert 0 < place.recheck_in <= 3.1 * world.second
        behind = await world.queue(store, "c", waiter_ttl=30)
        assert 0 < behind.recheck_in <= 10 * world.second

    @case
    async def test_the_head_gets_the_units_of_a_dead_holder(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a", ttl=3)
        await world.queue(store, "b")
        await world.outlast(3 * world.second, by=store)
        reply = await world.renew(store, "b")
        assert isinstance(reply, Granted)
        assert reply.ttl == 30 * world.second

    @case
    async def test_the_owner_claims_by_a_renewal(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a")
        await world.queue(store, "b")
        await world.release(store, "a")
        (holder,) = (await world.status(store)).holders
        assert holder.state == "unclaimed"
        reply = await world.renew(store, "b")
        assert isinstance(reply, Granted)
        assert reply.token == holder.token
        world.pass_time(10 * world.second)
        await world.refused(store, "c")
        assert (await world.status(store)).holders[0].state == "held"

    @case
    async def test_the_owner_claims_by_a_repeat_too(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a")
        await world.queue(store, "b")
        await world.release(store, "a")
        claimed = await world.take(store, "b", queue=True)
        assert claimed.ttl == 30 * world.second

    @case
    async def test_an_unclaimed_grant_ends_its_id_and_passes_on(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a")
        await world.queue(store, "b", ttl=2)
        await world.queue(store, "c", ttl=60, waiter_ttl=100)
        await world.release(store, "a")
        assert await world.holders(store, "b c") == ["b"]
        await world.outlast(claim_timeout(2 * world.second), by=store)
        assert isinstance(await world.renew(store, "c", ttl=60), Granted)
        assert isinstance(await world.renew(store, "b"), Lost)
        assert await world.say(store, world.acquire("b", queue=True)) == Gone()

    @case
    async def test_a_grant_by_notification_can_be_given_back(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a")
        await world.queue(store, "b")
        await world.queue(store, "c")
        await world.release(store, "a")
        assert await world.release(store, "b") == Released()
        assert await world.holders(store, "b c") == ["c"]

    @needing("manual")
    async def test_a_silent_place_at_the_front_is_passed_over(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a", ttl=60)
        await world.queue(store, "silent", waiter_ttl=60)
        await world.queue(store, "awake", waiter_ttl=60)
        for _ in range(4):
            world.pass_time(1.5)
            await world.renew(store, "awake", ttl=30)
        await world.release(store, "a")
        assert await world.holders(store, "silent awake") == ["awake"]
        assert await world.waiters(store, "silent") == ["silent"]

    @case
    async def test_one_unclaimed_grant_passes_over_all_the_dead(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a", ttl=60)
        for number in range(20):
            await world.queue(store, f"dead{number}", waiter_ttl=60)
        await world.queue(store, "living", waiter_ttl=60)
        await world.release(store, "a")
        await world.outlast(claim_timeout(30 * world.second), by=store)
        assert isinstance(await world.renew(store, "living"), Granted)

    @case
    async def test_a_greater_capacity_lets_the_queue_in_first(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a", capacity=1)
        await world.queue(store, "b", capacity=1)
        await world.queue(store, "c", capacity=2)
        assert await world.holders(store, "a b c") == ["a", "b"]
        assert await world.waiters(store, "c") == ["c"]

    @case
    async def test_what_no_longer_fits_is_refused_in_the_queue(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a", capacity=3, units=2)
        await world.queue(store, "large", capacity=3, units=3)
        await world.queue(store, "small", capacity=2)
        assert await world.waiters(store, "large small") == ["small"]
        reply = await world.say(store, world.acquire("large", capacity=3, units=3, queue=True))
        assert isinstance(reply, Refused)
        assert reply.reason == "too_large"

    @case
    async def test_readers_behind_a_writer_wait_their_turn(self, world: World) -> None:
        world.kind = b"rwlock"
        store = await world.connect()
        await world.take(store, "reader", capacity=MANY)
        await world.queue(store, "writer", capacity=MANY, units=MANY)
        await world.queue(store, "late", capacity=MANY)
        await world.release(store, "reader")
        assert await world.holders(store, "reader writer late") == ["writer"]
        await world.release(store, "writer")
        assert await world.holders(store, "reader writer late") == ["late"]

    @needing("clock")
    async def test_a_place_is_told_the_stores_time(self, world: World) -> None:
        one, two = await world.connect(), await world.connect()
        await world.take(one, "a", ttl=100)
        first = await world.queue(one, "b")
        world.pass_time(3 * world.second)
        second = await world.queue(two, "c")
        assert second.now - first.now >= 2.9 * world.second
        if world.manual:
            assert second.now - first.now < 3.1 * world.second
