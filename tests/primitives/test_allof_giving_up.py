"""However an acquire of several ends without them, nothing is left behind."""

import asyncio
import random
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import pytest

from dibs import AllOf, BackendUnavailable, Forbidden
from dibs.backends import store_for
from dibs.backends.port import Backend
from dibs.hub import Hub
from dibs.model import Acquire, Command, Failed, Reply
from tests.primitives.crews import Hand, site, until
from tests.primitives.test_giving_up import Site, cancel_after
from tests.primitives.worlds import World, in_both_worlds
from tests.runtime.stores import TappedBackend, TappedStore


def three(client: Any, name: str) -> tuple[list[str], AllOf]:
    """Names of a test's own, and all of them at once, in another order than that of their keys."""
    names = [f"{name}-{letter}" for letter in "abc"]
    return names, AllOf(*(client.lock(each) for each in reversed(names)))


@pytest.fixture(params=["memory, slow", "sqlite"])
def slow(request: pytest.FixtureRequest, tmp_path: Any) -> Callable[[], Site]:
    def make() -> Site:
        if request.param == "sqlite":
            return Site(store_for(f"sqlite:///{tmp_path / 'leases.db'}"))
        return Site(TappedStore(turns=2))

    return make


# -- cancelled, at every point ----------------------------------------------------------------------


async def test_at_every_point_of_an_acquire_that_succeeds(slow: Callable[[], Site]) -> None:
    site = slow()
    points = 0
    for turns in count():
        names, both = three(site.mine, next(site.names))
        cancelled = await cancel_after(both.acquire(), turns)
        for name in names:
            await site.nothing_is_left(name)
        points += cancelled
        if not cancelled and turns > 20:
            break
        assert turns < 10_000
    assert points > 1
    await site.close()


@pytest.mark.parametrize("taken", [0, 1, 2])
async def test_at_every_point_of_a_wait(slow: Callable[[], Site], taken: int) -> None:
    """The holder of one leaves at some turn, too, so that what comes after it is tried and taken."""
    site = slow()
    for turns in range(0, 60, 2):
        names, both = three(site.mine, next(site.names))
        held = await site.others.lock(names[taken]).acquire()
        waiting = asyncio.ensure_future(both.acquire())
        for turn in range(turns):
            if turn == turns // 2:
                await held.release()
            await asyncio.sleep(0)
        await held.release()
        await cancel_after(waiting, 0)
        for name in names:
            await site.nothing_is_left(name)
    await site.close()


async def test_at_every_point_of_a_release(slow: Callable[[], Site]) -> None:
    site = slow()
    points = 0
    for turns in range(1, 20):  # at 0 the task would never begin
        names, both = three(site.mine, next(site.names))
        leases = await both.acquire()
        points += await cancel_after(released(leases), turns)
        for name in names:
            await site.nothing_is_left(name)
    assert points > 1
    await site.close()


class Nothing:
    """What is left to release of leases that were released."""

    async def release(self) -> None: ...


async def released(leases: Any) -> Nothing:
    await leases.release()
    return Nothing()


async def test_cancellations_at_random_times_under_contention(slow: Callable[[], Site]) -> None:
    site, dice = slow(), random.Random(42)
    names, _ = three(site.mine, next(site.names))
    inside: set[str] = set()
    done = {"held": 0, "cancelled": 0}

    async def worker() -> None:
        wanted = dice.sample(names, 2)
        try:
            async with asyncio.timeout(dice.random() * 0.05):
                async with AllOf(*(site.mine.lock(name) for name in wanted)):
                    assert not inside & set(wanted)
                    inside.update(wanted)
                    done["held"] += 1
                    try:
                        await asyncio.sleep(dice.random() * 0.002)
                    finally:
                        inside.difference_update(wanted)
        except TimeoutError:
            done["cancelled"] += 1

    for _ in range(8):
        await asyncio.gather(*(worker() for _ in range(40)))
    for name in names:
        await site.nothing_is_left(name)
    assert min(done.values()) > 16, done
    await site.close()


# -- the store fails --------------------------------------------------------------------------------


@in_both_worlds
async def test_an_answer_that_is_lost_is_waited_for_and_leaves_nothing(w: World) -> None:
    """Nobody knows whether the try arrived: its ids are buried, and it begins anew, key by key."""
    store, client = site(w)
    failures = iter([True])

    def lose(commands: Sequence[Command]) -> None:
        if any(isinstance(command, Acquire) for command in commands) and next(failures, False):
            raise BackendUnavailable("the answer is lost")

    store.after = lose
    both = w.module.AllOf(client.lock("a"), client.lock("b"))
    hand = Hand(w, "both", both, [])
    leases = await hand.holds()
    leases.ensure()
    others = w.another()
    for name in "ab":
        status = await w.get(others.status(name))
        assert len(status.holders) == 1
        assert status.waiters == ()
    await hand.lets_go()
    client.hub.keeper.flush(10)
    for name in "ab":
        assert not await w.get(others.lock(name).locked())
    await w.get(client.close())


@in_both_worlds
async def test_a_lost_answer_to_one_try_is_an_error_and_leaves_nothing(w: World) -> None:
    store, client = site(w)
    failures = iter([True])

    def lose(commands: Sequence[Command]) -> None:
        if any(isinstance(command, Acquire) for command in commands) and next(failures, False):
            raise BackendUnavailable("the answer is lost")

    store.after = lose
    both = w.module.AllOf(client.lock("a"), client.lock("b"), wait=0)
    with pytest.raises(BackendUnavailable, match="the answer is lost"):
        await w.get(both.acquire())
    client.hub.keeper.flush(10)
    leases = await w.get(both.acquire())
    await w.get(leases.release())
    await w.get(client.close())


class ForbiddingBackend(TappedBackend):
    """Refuses to touch one key, and does the rest."""

    async def apply(self, commands: Sequence[Command]) -> Sequence[Reply]:
        replies = list(await super().apply(commands))
        for place, command in enumerate(commands):
            if isinstance(command, Acquire) and command.key == b"lock:b":
                replies[place] = Failed("forbidden", "no rights on this key")
        return replies


class ForbiddingStore(TappedStore):
    """See `ForbiddingBackend`."""

    def backend(self, *, blocking: bool) -> Backend:
        return ForbiddingBackend(self, self.inner.backend(blocking=blocking), blocking=blocking)


@in_both_worlds
async def test_an_error_of_one_is_raised_and_the_others_given_up(w: World) -> None:
    store: Any = ForbiddingStore(store=w.store, turns=1)
    client = w.module.Client(Hub(store, clock=w.clock))
    three = w.module.AllOf(*(client.lock(name) for name in "abc"))
    for acquire in (three.acquire, three.try_acquire):
        with pytest.raises(Forbidden, match="b: no rights on this key"):
            await w.get(acquire())
    client.hub.keeper.flush(10)
    others = w.another()
    for name in "ac":
        assert not await w.get(others.lock(name).locked())
    await w.get(client.close())


@in_both_worlds
async def test_a_store_that_is_away_is_tried_until_the_time_is_over(w: World) -> None:
    store, client = site(w, connect_timeout=2)

    def away(commands: Sequence[Command]) -> None:
        raise BackendUnavailable("away")

    store.before = away
    hand = Hand(w, "both", w.module.AllOf(client.lock("a"), client.lock("b"), wait=3), [])

    async def over() -> bool:
        w.clock.advance(0.25)
        await w.turn()
        return hand.over

    await until(w, over)
    assert isinstance(hand.error, BackendUnavailable)
    store.before = lambda _: None
    others = w.another()
    for name in "ab":
        lease = await w.get(others.lock(name).try_acquire())
        await w.get(lease.release())
    await w.get(client.close())
