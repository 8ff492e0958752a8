"""A store that is away for a while: what acquires and releases do."""

from collections.abc import Sequence

import pytest

from dibs import BackendUnavailable, LeaseLost
from dibs.model import Command
from tests.locks.waits import ticking, time_passes
from tests.locks.worlds import KINDS, World, heal, in_both_worlds, is_free, outage, site
from tests.runtime.stores import TappedStore
from tests.servers.waiting import wait_until

EVERY_KIND = pytest.mark.parametrize("kind", ["lock", "allof"])


async def all_free(w: World) -> bool:
    free = [await is_free(w, w.client.lock(name)) for name in "ab"]
    return all(free)


async def all_free_in_time(w: World) -> None:
    await time_passes(w, lambda: all_free(w))


class Absence:
    """The store is away from now on for so many seconds."""

    def __init__(self, w: World, store: TappedStore, *, back_after: float) -> None:
        self.began = w.clock.now()
        self.asked = 0
        self.answered_at: float | None = None
        self._w = w
        self._back_at = self.began + back_after
        store.before = self

    def __call__(self, commands: Sequence[Command]) -> None:
        now = self._w.clock.now()
        if now < self._back_at:
            self.asked += 1
            raise BackendUnavailable("the store is away")
        self.answered_at = self.answered_at or now


@EVERY_KIND
@in_both_worlds
async def test_an_acquire_outlasts_an_outage_shorter_than_its_wait(w: World, kind: str) -> None:
    store, client = site(w)
    trial = Absence(w, store, back_after=5)
    lease = await ticking(w, lambda: KINDS[kind](client, ttl=300).acquire(wait=20))
    assert trial.answered_at is not None
    assert 5 <= trial.answered_at - trial.began < 7
    assert 5 < trial.asked < 40, "it asks ever less often, but often enough"
    assert lease.remaining > 0
    await w.get(lease.release())


@EVERY_KIND
@pytest.mark.parametrize(("wait", "after"), [(7, 7), (None, 4)])
@in_both_worlds
async def test_an_acquire_gives_up_after_its_wait_or_connect_timeout(
    w: World, kind: str, wait: float | None, after: float
) -> None:
    store, client = site(w, connect_timeout="4s")
    trial = Absence(w, store, back_after=60)
    with pytest.raises(BackendUnavailable):
        await ticking(w, lambda: KINDS[kind](client, ttl=300).acquire(wait=wait))
    assert after <= w.clock.now() - trial.began < 60, "before the store is back"
    heal(store)
    await all_free_in_time(w)


@EVERY_KIND
@in_both_worlds
async def test_leaving_the_block_during_an_outage_never_raises(
    w: World, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    store, client = site(w)
    block = KINDS[kind](client, ttl=300)
    lease = await w.enter(block)
    with outage(store):
        await w.leave(block, LookupError("the body's own, which is not hidden"))
        assert await w.get(lease.release()) is False, "nobody knows what the store has"
        client.session.keeper.flush(5)
    assert (lease.remaining, lease.lost) == (0, False)
    assert "given up in the background" in caplog.text
    assert not await all_free(w), "the store does not know it yet"
    await all_free_in_time(w)


@in_both_worlds
async def test_a_lease_shows_why_it_is_not_renewed(w: World) -> None:
    store, client = site(w)
    lease = await w.get(client.lock("a", ttl=30).acquire())
    assert lease.trouble is None
    with outage(store):
        w.clock.advance(11)
        wait_until(lambda: lease.trouble, "a renewal that fails")
        assert lease.trouble == "the store is away"
    w.clock.advance(2)
    wait_until(lambda: lease.trouble is None, "a renewal that succeeds")
    with outage(store):
        w.clock.advance(11)
        wait_until(lambda: lease.trouble, "a renewal that fails")
        w.clock.advance(lease.remaining + 1)
        with pytest.raises(LeaseLost, match=r"before its deadline \(the store is away\); another"):
            lease.ensure()
