"""When the store fails, an acquire of several leaves nothing behind."""

from collections.abc import Sequence
from typing import Any

import pytest

from dibs import BackendUnavailable, Forbidden
from dibs.backends.port import Backend
from dibs.hub import Hub
from dibs.model import Acquire, Command, Failed, Reply
from tests.primitives.crews import Hand, site, until
from tests.primitives.worlds import World, in_both_worlds
from tests.runtime.stores import TappedBackend, TappedStore


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
