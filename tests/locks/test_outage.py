"""A store that is away for a while, or whose replies get lost: what an acquire and a release do."""

import asyncio
import logging
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from dibs import AcquireTimeout, BackendUnavailable, LeaseLost
from dibs.model import Acquire, Command, Release
from tests.locks.elections import away, outage, site
from tests.locks.worlds import World, in_both_worlds
from tests.runtime.stores import TappedStore
from tests.servers.waiting import wait_until


@in_both_worlds
async def test_a_try_during_an_outage_fails_at_once(w: World) -> None:
    store, client = site(w)
    with outage(store), pytest.raises(BackendUnavailable, match="is away"):
        await w.get(client.lock("a").acquire(wait=0))
    with outage(store), pytest.raises(BackendUnavailable):
        await w.get(client.lock("a").try_acquire())


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


async def ticking(w: World, action: Any) -> Any:
    """Run an action that waits, while the clock is moved from outside, but not to renewals."""
    over, end = threading.Event(), w.clock.now() + 30

    def tick() -> None:
        while not over.is_set():
            due = w.clock.next_due
            if due is not None and due <= end:
                w.clock.advance(max(due - w.clock.now(), 0.0))
            over.wait(0.0005)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        return await w.get(action())
    finally:
        over.set()
        if w.is_async:
            await asyncio.to_thread(thread.join)
        else:
            thread.join()


@in_both_worlds
async def test_an_acquire_outlasts_an_outage_shorter_than_its_wait(w: World) -> None:
    store, client = site(w)
    trial = Absence(w, store, back_after=5)
    lease = await ticking(w, lambda: client.lock("a", ttl=300).acquire(wait=20))
    assert trial.answered_at is not None
    assert 5 <= trial.answered_at - trial.began < 7
    assert 5 < trial.asked < 40, "it asks ever less often, but often enough"
    assert lease.remaining > 0
    await w.get(lease.release())


@in_both_worlds
async def test_an_acquire_gives_up_at_the_end_of_its_wait(w: World) -> None:
    store, client = site(w)
    trial = Absence(w, store, back_after=60)
    with pytest.raises(BackendUnavailable):
        await ticking(w, lambda: client.lock("a").acquire(wait=7))
    assert 7 <= w.clock.now() - trial.began < 9


@in_both_worlds
async def test_an_unbounded_acquire_gives_up_after_connect_timeout(w: World) -> None:
    store, client = site(w, connect_timeout="4s")
    trial = Absence(w, store, back_after=60)
    with pytest.raises(BackendUnavailable):
        await ticking(w, lambda: client.lock("a", wait=None).acquire())
    assert 4 <= w.clock.now() - trial.began < 6


@in_both_worlds
async def test_connect_timeout_counts_from_the_start(w: World) -> None:
    """Also where the store hangs, so that each try takes time."""
    store, client = site(w, connect_timeout="4s")
    began = w.clock.now()

    def hang(commands: Sequence[Command]) -> None:
        if any(isinstance(command, Acquire) for command in commands):
            w.clock.advance(3)
            raise BackendUnavailable("the store did not answer")

    store.before = hang
    with pytest.raises(BackendUnavailable):
        await ticking(w, lambda: client.lock("a", wait=None).acquire())
    assert 4 <= w.clock.now() - began < 8


@in_both_worlds
async def test_leaving_the_block_during_an_outage_never_raises(
    w: World, caplog: pytest.LogCaptureFixture
) -> None:
    store, client = site(w)
    lock = client.lock("a")
    await w.enter(lock)
    with caplog.at_level(logging.WARNING, "dibs"), outage(store):
        await w.leave(lock)
        client.session.keeper.flush(5)
    assert any("given up in the background" in record.message for record in caplog.records)
    assert await w.get(w.client.lock("a").locked()), "nobody could tell the store yet"
    for _ in range(4):
        w.clock.advance(1)
        client.session.keeper.flush(5)
    assert not await w.get(w.client.lock("a").locked())


@in_both_worlds
async def test_the_bodys_exception_is_not_hidden_by_an_outage(w: World) -> None:
    store, client = site(w)
    lock = client.lock("a")
    with pytest.raises(ValueError, match="mine"):
        await w.enter(lock)
        try:
            raise ValueError("mine")
        except ValueError as error:
            with outage(store):
                await w.leave(lock, error)
            raise
    w.clock.advance(31)


@in_both_worlds
async def test_a_release_that_fails_says_that_it_isnt_known(w: World) -> None:
    store, client = site(w)
    lease = await w.get(client.lock("a").acquire())
    with outage(store):
        assert await w.get(lease.release()) is False
        assert await w.get(lease.release()) is False
    assert not lease.lost
    w.clock.advance(31)


@in_both_worlds
async def test_a_grant_whose_reply_was_lost_is_found_again(w: World) -> None:
    """The repeated Acquire of the same id renews it, and its release buries the id."""
    store, client = site(w)
    lost: list[Sequence[Command]] = []

    def lose_one_reply(commands: Sequence[Command]) -> None:
        if not lost and any(isinstance(command, Acquire) for command in commands):
            lost.append(commands)
            raise BackendUnavailable("the reply was lost")

    store.after = lose_one_reply
    lease = await ticking(w, lambda: client.lock("a", ttl=300).acquire(wait=5))
    await w.get(lease.release())
    commands = [c for batch in (*store.batches, *store.kept) for c in batch]
    assert {c.id for c in commands if isinstance(c, Acquire)} == {lease._id}
    release = next(c for c in commands if isinstance(c, Release))
    assert release.tombstone >= 60
    w.store.blocking_connection().apply(lost[0], 10)
    assert not await w.get(w.client.lock("a").locked()), "its late copy is refused"


@in_both_worlds
async def test_a_grant_whose_reply_never_comes_is_given_up_later(w: World) -> None:
    store, client = site(w)

    def lose_replies(commands: Sequence[Command]) -> None:
        if any(isinstance(command, Acquire) for command in commands):
            store.before = away
            raise BackendUnavailable("the reply was lost, and then the store")

    store.after = lose_replies
    with pytest.raises(BackendUnavailable):
        await ticking(w, lambda: client.lock("a", ttl=300).acquire(wait=1))
    client.session.keeper.flush(5)
    assert await w.get(w.client.lock("a").locked())
    store.before = lambda _: None
    for _ in range(8):
        w.clock.advance(2)
        client.session.keeper.flush(5)
    assert not await w.get(w.client.lock("a").locked())


@in_both_worlds
async def test_a_time_out_is_told_though_the_holder_cant_be_looked_up(w: World) -> None:
    store, client = site(w)
    held = await w.get(w.client.lock("a", ttl=300).acquire())

    def no_inspection(commands: Sequence[Command]) -> None:
        if any(type(command).__name__ == "Inspect" for command in commands):
            raise BackendUnavailable("away just now")

    store.before = no_inspection
    with pytest.raises(AcquireTimeout, match="gave up after 1 s"):
        await ticking(w, lambda: client.lock("a", ttl=300).acquire(wait=1))
    await w.get(held.release())


@in_both_worlds
async def test_a_lease_knows_why_it_is_not_renewed_and_tells_that_of_its_loss(w: World) -> None:
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
