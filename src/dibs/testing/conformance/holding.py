"""Grant, refuse, repeat, renew, expire, release."""

from dibs.core.names import fingerprint
from dibs.model import (
    Failed,
    Gone,
    Granted,
    Lost,
    Queued,
    Refused,
    Released,
    Renewed,
    Revoke,
    Revoked,
    Unknown,
)
from dibs.testing.conformance.suite import Suite, case
from dibs.testing.conformance.world import World


class HoldingCases(Suite):
    """One lease after the other on a key of capacity 1."""

    @case
    async def test_a_free_key_is_granted(self, world: World) -> None:
        store = await world.connect()
        grant = await world.take(store, "a")
        assert grant.token > 0
        assert grant.slots == (0,)
        assert grant.ttl == 30 * world.second

    @case
    async def test_a_held_key_is_refused_and_names_its_holder(self, world: World) -> None:
        store = await world.connect()
        grant = await world.take(store, "secret-a", note="nightly")
        refusal = await world.refused(store, "b")
        assert refusal.reason == "held"
        (holder,) = refusal.holders
        assert holder.lease == fingerprint("secret-a")
        assert (holder.owner, holder.token, holder.note) == (
            "owner-secret-a",
            grant.token,
            "nightly",
        )
        assert (holder.units, holder.slots, holder.state) == (1, (0,), "held")
        assert 0 < holder.expires_in <= 30.5 * world.second
        assert 0 < refusal.recheck_in <= 30.5 * world.second

    @case
    async def test_nothing_shows_an_id_but_its_fingerprint(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "xsecret")
        await world.queue(store, "ysecret")
        seen = [
            await world.refused(store, "b"),
            await world.status(store),
            await store.scan(world.prefix, None, 10),
        ]
        for reply in seen:
            assert "secret" not in repr(reply).replace("owner-xsecret", "").replace(
                "owner-ysecret", ""
            )

    @case
    async def test_other_connections_see_the_same(self, world: World) -> None:
        one, two = await world.connect(), await world.connect()
        await world.take(one, "a")
        await world.refused(two, "b")
        assert await world.holders(two, "a b") == ["a"]
        assert await world.release(two, "a") == Released()
        await world.take(one, "b")

    @case
    async def test_closing_a_connection_leaves_its_leases(self, world: World) -> None:
        one, two = await world.connect(), await world.connect()
        await world.take(one, "a")
        await one.close()
        await world.refused(two, "b")
        await one.open()
        assert isinstance(await world.renew(one, "a"), Renewed)

    @case
    async def test_a_repeat_is_the_same_grant_and_renews(self, world: World) -> None:
        store = await world.connect()
        first = await world.take(store, "a", ttl=10)
        world.pass_time(6 * world.second)
        assert (await world.take(store, "a", ttl=10)).token == first.token
        world.pass_time(6 * world.second)
        await world.refused(store, "b")

    @case
    async def test_nothing_is_shortened(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a", ttl=20)
        again = await world.take(store, "a", ttl=1)
        renewed = await world.renew(store, "a", ttl=1)
        assert isinstance(renewed, Renewed)
        assert min(again.ttl, renewed.ttl) > 15 * world.second
        world.pass_time(10 * world.second)
        await world.refused(store, "b")

    @case
    async def test_a_renewal_extends(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a", ttl=10)
        for _ in range(3):
            world.pass_time(6 * world.second)
            assert await world.renew(store, "a", ttl=10) == Renewed(10 * world.second)
        await world.refused(store, "b")

    @case
    async def test_a_hold_stands_to_its_expiry_and_no_longer(self, world: World) -> None:
        store = await world.connect()
        first = await world.take(store, "a", ttl=10)
        world.pass_time(9 * world.second)
        await world.refused(store, "b")
        await world.outlast(10 * world.second, by=store)
        second = await world.take(store, "b")
        assert second.token > first.token

    @case
    async def test_an_expired_lease_is_lost_even_if_nobody_took_it(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a", ttl=10)
        await world.outlast(10 * world.second, by=store)
        assert await world.renew(store, "a") == Lost("expired")
        assert await world.release(store, "a") == Unknown()
        assert await world.holders(store, "a") == []

    @case
    async def test_a_strangers_renewal_or_release_does_nothing(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a")
        assert await world.renew(store, "b") == Lost("expired")
        assert await world.release(store, "b") == Unknown()
        await world.refused(store, "b")

    @case
    async def test_a_stale_holder_changes_nothing(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a", ttl=10)
        await world.outlast(10 * world.second, by=store)
        await world.take(store, "b")
        assert isinstance(await world.renew(store, "a"), Lost)
        assert await world.release(store, "a") == Unknown()
        assert await world.holders(store, "a b") == ["b"]

    @case
    async def test_a_release_frees_at_once_and_only_once(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a")
        assert await world.release(store, "a") == Released()
        assert await world.release(store, "a") == Unknown()
        await world.take(store, "b")

    @case
    async def test_kept_units_stay_taken_by_nobody(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a")
        assert await world.release(store, "a", retain=10) == Released()
        refusal = await world.refused(store, "b")
        assert refusal.reason == "closed"
        assert [(holder.lease, holder.owner, holder.state) for holder in refusal.holders] == [
            ("", "", "retained")
        ]
        assert await world.renew(store, "a") == Lost("expired")
        assert await world.say(store, world.acquire("a")) == Gone()
        await world.outlast(10 * world.second, by=store)
        await world.take(store, "b")

    @case
    async def test_a_repeat_never_extends_what_is_kept(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a")
        await world.release(store, "a", retain=10)
        world.pass_time(6 * world.second)
        assert await world.release(store, "a", retain=10) == Released()
        assert await world.release(store, "a") == Released()
        assert await world.holders(store, "") == ["nobody"]
        world.pass_time(5 * world.second)
        await world.take(store, "b")

    @case
    async def test_a_buried_id_is_gone_when_its_acquire_comes_late(self, world: World) -> None:
        store = await world.connect()
        assert await world.release(store, "a", tombstone=60) == Unknown()
        for _ in range(2):
            assert await world.say(store, world.acquire("a")) == Gone()
            assert await world.say(store, world.acquire("a", queue=True)) == Gone()
        await world.take(store, "b")

    @case
    async def test_a_burial_ends_a_hold_or_a_place(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a")
        await world.queue(store, "b")
        for name in ("b", "a"):
            assert await world.release(store, name, tombstone=60) == Released()
            assert await world.say(store, world.acquire(name)) == Gone()
            assert isinstance(await world.renew(store, name), Lost)
        await world.take(store, "c")

    @case
    async def test_a_lock_delay_closes_after_an_expiry_only(self, world: World) -> None:
        store = await world.connect()
        await world.take(store, "a", ttl=10, lock_delay=10)
        assert await world.release(store, "a") == Released()
        await world.take(store, "b", ttl=10, lock_delay=10)
        await world.outlast(10 * world.second, by=store)
        assert (await world.refused(store, "c")).reason == "closed"
        assert await world.renew(store, "b") == Lost("expired")
        await world.outlast(10 * world.second, by=store)
        await world.take(store, "c")

    @case
    async def test_a_command_that_makes_no_sense_fails_alone(self, world: World) -> None:
        store = await world.connect()
        flawed = [
            world.acquire("a", ttl=0),
            world.acquire("a", ttl=float("inf")),
            world.acquire("a", ttl=float("nan")),
            world.acquire("a", units=0),
            world.acquire("a", lock_delay=-1),
        ]
        for command in flawed:
            reply = await world.say(store, command)
            assert isinstance(reply, Failed), command
            assert reply.reason == "invalid"
        assert isinstance(await world.say(store, world.acquire("b")), Granted)
        assert isinstance(await world.say(store, world.acquire("c")), Refused)


class Revoking(Suite):
    """Ending another owner's lease, both ways."""

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
        await world.release(store, "a", retain=20)
        reply = await world.say(store, Revoke(world.key(), None, "x", now=True))
        assert reply == Revoked(0, 0.0)
        assert await world.holders(store, "a b") == ["nobody"]
