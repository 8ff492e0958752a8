"""Ending somebody else's lease, in time or at once."""

from dibs.core.names import fingerprint
from dibs.model import Lost, Queued, Released, Revoke, Revoked
from dibs.testing.conformance.suite import Suite, case
from dibs.testing.conformance.world import World


class Revoking(Suite):
    """Ending somebody else's lease, both ways."""

    @case
    async def test_a_revoked_lease_is_refused_renewal_but_stands(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a", ttl=20)
        reply = await world.say(store, Revoke(world.key(), None, "upgrade"))
        assert isinstance(reply, Revoked)
        assert reply.count == 1
        assert 0 < reply.ends_in <= 20.5 * world.second
        assert await world.renew(store, "a") == Lost("revoked", "upgrade")
        refusal = await world.refused(store, "b")
        assert refusal.holders[0].state == "revoked"
        await world.outlast(20 * world.second, by=store)
        await world.take(store, "b")

    @case
    async def test_a_revoked_holder_may_release_at_once(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a")
        await world.say(store, Revoke(world.key(), None, "upgrade"))
        assert await world.release(store, "a") == Released()
        await world.take(store, "b")

    @case
    async def test_revoked_now_the_units_are_free(self, world: World) -> None:
        store = await world.connect()
        first = await world.take(store, "a")
        reply = await world.say(store, Revoke(world.key(), None, "upgrade", now=True))
        assert reply == Revoked(1, 0.0)
        second = await world.take(store, "b")
        assert second.token > first.token
        assert await world.renew(store, "a") == Lost("revoked", "upgrade")
        assert await world.holders(store, "a b") == ["b"]

    @case
    async def test_one_of_many(self, world: World) -> None:
        store = await world.connect()
        for name in "abc":
            await world.take(store, name, capacity=3)
        revoke = Revoke(world.key(), fingerprint("b"), "hog", now=True)
        assert await world.say(store, revoke) == Revoked(1, 0.0)
        assert await world.holders(store, "a b c") == ["a", "c"]

    @case
    async def test_nobody_to_revoke(self, world: World) -> None:
        store = await world.connect()
        assert await world.say(store, Revoke(world.key(), None, "x")) == Revoked(0, 0.0)
        await world.take(store, "a")
        stranger = Revoke(world.key(), fingerprint("b"), "x", now=True)
        assert await world.say(store, stranger) == Revoked(0, 0.0)
        await world.refused(store, "b")

    @case
    async def test_waiters_stay_and_what_is_kept_stays(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a")
        await world.queue(store, "b")
        await world.say(store, Revoke(world.key(), None, "x"))
        assert isinstance(await world.renew(store, "b"), Queued)
        await world.release(store, "a", keep=20)
        reply = await world.say(store, Revoke(world.key(), None, "x", now=True))
        assert reply == Revoked(0, 0.0)
        assert await world.holders(store, "a b") == ["nobody"]
