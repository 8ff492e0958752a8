"""`LeaderElection` over the store, in both worlds."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from dibs.errors import LeaseLost, NotHeld
from dibs.testing.conformance.suite import Suite, case, needing
from dibs.testing.conformance.users import Users, now, using, within
from dibs.testing.conformance.world import PATIENCE, World


class LeaderClients(Suite):
    """One leader at a time, hand-overs, losses, observers."""

    def leader(self, world: World, users: Users, **options: Any) -> Any:
        """A candidate, by a client of its own."""
        second = world.second
        timing = {"ttl": 15 * second, "renew_deadline": 10 * second, "retry": 2 * second}
        return users.client().leader_election(users.name, **timing, **options)

    @case
    @using
    async def test_a_leader_is_seen_by_all(self, world: World, users: Users) -> None:
        leader, observer = self.leader(world, users, note="why"), self.leader(world, users)
        assert await now(observer.who()) is None

        async def lead(term: Any) -> None:
            seen = await now(observer.who())
            assert (seen.token, seen.note) == (term.token, "why")
            assert leader.is_leader()
            assert not observer.is_leader()
            assert 0 < term.remaining <= 10 * world.second

        for _ in range(2):
            await within(world, leader, lead)
            assert not leader.is_leader()
            assert await now(observer.who()) is None

    @case
    @using
    async def test_who_steps_down_hands_over_at_once(self, world: World, users: Users) -> None:
        told: list[tuple[str, int]] = []

        def diary(who: str) -> dict[str, Callable[[Any], None]]:
            return {
                "on_started": lambda term: told.append((f"{who} starts", term.token)),
                "on_stopped": lambda term: told.append((f"{who} stops", term.token)),
            }

        one = self.leader(world, users, **diary("one")).campaign()
        two = self.leader(world, users, **diary("two")).campaign()

        async def lead(_: Any) -> None:
            assert await now(one.wait()) is True
            await within(world, two, follow)

        async def follow(_: Any) -> None:
            await happens(world, lambda: self.waiting(users) == 1)
            assert not two.is_leader()
            with pytest.raises(NotHeld):
                await within(world, two.guard(), lead)
            one.resign()
            assert await now(two.wait()) is True
            assert not one.is_leader()

        await within(world, one, lead)
        assert [what for what, _ in told[:4]] == [
            "one starts",
            "one stops",
            "two starts",
            "two stops",
        ]
        tokens = [token for what, token in told if what.endswith("starts")]
        assert tokens == sorted(set(tokens))

    def waiting(self, users: Users) -> int:
        """How many candidates wait, as another process sees it."""
        found: list[int] = []

        def look() -> None:
            found.append(users.client(blocking=True).status(users.name, "leader").waiting)

        users.beside(look)
        return found[0]

    @needing("manual")
    @using
    async def test_a_leader_goes_on_for_as_long_as_it_renews(
        self, world: World, users: Users
    ) -> None:
        leader, other = self.leader(world, users), self.leader(world, users)

        async def lead(term: Any) -> None:
            for _ in range(10):
                world.pass_time(7)
                term.ensure()
            assert (await now(other.who())).token == term.token

        await within(world, leader, lead)

    @case
    @using
    async def test_a_revoked_leader_stops_and_another_is_elected(
        self, world: World, users: Users
    ) -> None:
        leader, other = self.leader(world, users), self.leader(world, users)
        tokens: list[int] = []

        async def lead(term: Any) -> None:
            tokens.append(term.token)
            count = await now(other.revoke(reason="upgrade"))
            assert count == 1
            await now(term.renew())

        with pytest.raises(LeaseLost) as loss:
            await within(world, leader, lead)
        assert loss.value.reason == "revoked"
        assert not leader.is_leader()

        async def succeed(term: Any) -> None:
            tokens.append(term.token)

        await within(world, other, succeed)
        assert tokens == sorted(set(tokens))


async def happens(world: World, what: Callable[[], object]) -> None:
    """Wait for something to happen in the background."""
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end, "it never happened"
        if world.mode == "async":
            await asyncio.sleep(0.005)
        else:
            time.sleep(0.005)  # noqa: ASYNC251 -- in this world nothing else runs
