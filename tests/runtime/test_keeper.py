"""The keeper: when it renews, what it survives, and what it never does again."""

import asyncio
import gc
import logging
import threading
import time
import tracemalloc
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any
from uuid import uuid4

import pytest

import dibs
from dibs import BackendUnavailable, DibsError, LeaseLost
from dibs.clock import SystemClock
from dibs.model import Acquire, Command, Notification, Release, Renew
from dibs.runtime.scheduler import ThreadTimers
from dibs.session import StoreSession
from dibs.stores.memory import MemoryStore
from dibs.stores.port import Deliver
from dibs.sync import Client, Lease
from dibs.testing import ManualClock
from tests.runtime.stores import TappedAsyncConnection, TappedBlockingConnection, TappedStore

TTL = 30.0


class Site:
    """A store under a clock that is moved by hand, and what its keeper says to it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = TappedStore(clock=self.clock)
        self.client = self.another()
        self.renewals: list[tuple[float, str]] = []
        self.store.before = self._note

    def another(self) -> Client:
        return Client(StoreSession(self.store, clock=self.clock))

    def _note(self, commands: Sequence[Command]) -> None:
        now = self.clock.now() - 1000
        self.renewals += [(now, c.id) for c in commands if isinstance(c, Renew)]

    def times(self, lease: Any) -> list[float]:
        return [when for when, lease_id in self.renewals if lease_id == lease._id]


@pytest.fixture
def site() -> Any:
    site = Site()
    yield site
    site.store.before = site.store.after = lambda _: None
    site.client.close()


def test_a_lease_is_renewed_at_thirds_of_its_ttl(site: Site) -> None:
    lease = site.client.lock("a", ttl=TTL).acquire()
    site.clock.advance(10 * TTL)
    lease.ensure(needs=TTL / 2)
    times = site.times(lease)
    gaps = [after - before for before, after in pairwise(times)]
    assert 29 <= len(gaps) <= 34
    assert all(0.9 * TTL / 3 <= gap <= TTL / 3 for gap in gaps[1:]), gaps
    lease.release()


def test_a_lease_with_a_short_ttl_leaves_the_others_their_time(site: Site) -> None:
    """A batch has as long as the shortest ttl in it allows."""
    leases = [site.client.lock(f"{ttl}", ttl=ttl).acquire() for ttl in (1.0, 1.1, 16.0, 17.0)]
    site.store.kept.clear()
    site.clock.advance(TTL)
    ttls = [{c.ttl for c in batch if isinstance(c, Renew)} for batch in site.store.kept]
    assert {1.0, 1.1} in ttls
    assert {16.0, 17.0} in ttls
    assert all(max(each) < 2 * min(each) for each in ttls if each)
    for lease in leases:
        lease.release()


def limits_of(site: Site, monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float]]:
    """The ttl and the time limit of each renewal from now on."""
    found: list[tuple[float, float]] = []
    apply = TappedBlockingConnection.apply

    def note(self: Any, commands: Sequence[Command], timeout: float) -> Any:
        found.extend((each.ttl, timeout) for each in commands if isinstance(each, Renew))
        return apply(self, commands, timeout)

    monkeypatch.setattr(TappedBlockingConnection, "apply", note)
    return found


def test_a_renewal_leaves_time_to_those_with_shorter_ttls(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others can be at a placement that answers, while that of this one hangs."""
    limits = limits_of(site, monkeypatch)
    short, long = (site.client.lock(f"{ttl}", ttl=ttl).acquire() for ttl in (6.0, 60.0))
    site.clock.advance(60)
    assert all(limit == 1.0 for ttl, limit in limits if ttl == 6.0)
    assert all(0.5 < limit <= 6.0 / 4 for ttl, limit in limits if ttl == 60.0)
    short.release()
    limits.clear()
    site.clock.advance(60)
    assert {limit for _, limit in limits} == {10.0}, "alone it has its whole limit"
    long.release()


def test_a_lease_that_is_late_has_its_whole_limit(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store can take longer for many of them than a short ttl would allow."""
    limits = limits_of(site, monkeypatch)
    short, long = (site.client.lock(f"{ttl}", ttl=ttl).acquire() for ttl in (6.0, 60.0))

    def take_long(commands: Sequence[Command]) -> None:
        is_long = any(isinstance(each, Renew) and each.ttl == 60.0 for each in commands)
        if is_long and limits[-1][1] < 5.0:
            raise BackendUnavailable("it takes 5 s")

    site.store.before = take_long
    site.clock.advance(180)
    short.ensure()
    long.ensure()
    assert {limit for ttl, limit in limits if ttl == 60.0 and limit > 1.5} == {10.0}
    short.release()
    long.release()


@pytest.mark.parametrize("count", [1, 20])
def test_what_is_given_up_after_a_close_leaves_no_thread(site: Site, count: int) -> None:
    """Such as an acquire that had no answer when its client was closed."""
    given_up: list[Command] = []
    site.store.before = given_up.extend
    client = site.another()
    lease = client.lock("a", ttl=TTL).acquire()
    client.close()
    assert lease.lost
    for number in range(count):
        client.session.keeper.abandon(b"lock:b", f"id-{number}", 0.0)
    ids = {f"id-{number}" for number in range(count)}
    while not ids <= {each.id for each in given_up if isinstance(each, Release)}:
        time.sleep(0.001)
    while (thread := client.session.keeper._thread) is not None:
        thread.join(20)
        assert not thread.is_alive()
    with client.lock("a", ttl=TTL):  # and it may be used again
        assert client.lock("a").locked()
    client.close()


def test_a_released_lease_is_never_renewed_again(site: Site) -> None:
    lease = site.client.lock("a", ttl=TTL).acquire()
    lease.release()
    site.clock.advance(3 * TTL)
    assert site.times(lease) == []


def test_without_auto_renew_the_keeper_only_tells(site: Site) -> None:
    told: list[Any] = []
    event = threading.Event()

    def on_lost(lease: Any) -> None:
        told.append(lease.reason)
        event.set()

    lease = site.client.lock("a", ttl=TTL, auto_renew=False, on_lost=on_lost).acquire()
    site.clock.advance(TTL)
    assert event.wait(10)
    assert told == ["expired"]
    assert site.times(lease) == []


def test_an_error_is_unknown_and_tried_again_until_the_deadline(site: Site) -> None:
    lease = site.client.lock("a", ttl=TTL).acquire()
    tried = 0

    def away(commands: Sequence[Command]) -> None:
        nonlocal tried
        tried += 1
        raise BackendUnavailable("away")

    site.store.before = away
    site.clock.advance(TTL * 0.8)
    assert not lease.lost
    assert tried >= 5
    site.store.before = lambda _: None
    site.clock.advance(TTL)
    lease.ensure(needs=TTL / 2)
    site.store.before = away
    site.clock.advance(TTL)
    assert lease.reason == "expired"
    site.store.before = lambda _: None


@pytest.mark.parametrize("error", [ZeroDivisionError, OSError, RuntimeError, MemoryError])
def test_it_survives_whatever_a_backend_raises(site: Site, error: type[Exception]) -> None:
    lease = site.client.lock("a", ttl=TTL).acquire()
    failed = 0

    def fail(commands: Sequence[Command]) -> None:
        nonlocal failed
        if any(isinstance(command, Renew) for command in commands):
            failed += 1
            if failed <= 2:
                raise error("a backend's own fault")

    site.store.before = fail
    site.store.listening = lambda _: (_ for _ in ()).throw(error) if failed == 1 else None
    site.clock.advance(5 * TTL)
    assert failed > 2
    lease.ensure(needs=TTL / 2)
    lease.release()


def test_a_renewal_that_is_answered_past_the_deadline_revives_nothing(site: Site) -> None:
    lease = site.client.lock("a", ttl=TTL).acquire()
    answered = 0

    def answer_late(commands: Sequence[Command]) -> None:
        nonlocal answered
        if any(isinstance(command, Renew) for command in commands):
            if lease.remaining > 5:
                raise BackendUnavailable("away")
            answered += 1
            site.clock._now += lease.remaining + 1  # the process stood still meanwhile

    site.store.before = answer_late
    site.clock.advance(TTL)
    assert answered
    assert lease.reason == "expired"


def test_a_lost_reply_of_a_renewal_counts_from_the_one_that_came(site: Site) -> None:
    lease = site.client.lock("a", ttl=TTL).acquire()

    def lose(commands: Sequence[Command]) -> None:
        if any(isinstance(command, Renew) for command in commands):
            raise BackendUnavailable("the reply was lost")

    site.store.after = lose
    site.clock.advance(TTL - 3.3)
    assert lease.lost, "though the store would keep it: nobody has told us so"


def test_a_revoked_lease_is_told_by_the_next_renewal_if_the_push_was_lost(site: Site) -> None:
    lease = site.client.lock("a", ttl=TTL).acquire()
    site.clock.advance(TTL / 2)
    mailroom = site.client.session.keeper.notifications
    mailroom._revoked = lambda notification: None
    assert site.another().lock("a").revoke(reason="maintenance") == 1
    assert not lease.lost
    site.clock.advance(TTL / 3)
    assert lease.reason == "revoked"
    with pytest.raises(LeaseLost, match="maintenance"):
        lease.ensure()


def test_a_thread_whose_grant_was_lost_with_the_connection_asks_once_it_is_back(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock stands still, so nothing else would make it ask."""
    lost: list[Notification] = []
    receive = TappedBlockingConnection.notifications

    def lose_the_first(self: Any, timeout: float | None) -> Sequence[Notification]:
        found = receive(self, timeout)
        if found and not lost:
            lost.extend(found)
            raise BackendUnavailable("the connection broke")
        return found

    monkeypatch.setattr(TappedBlockingConnection, "notifications", lose_the_first)
    assert site.client.session.keeper.flush(10), "it listens from now on"
    other = site.another()
    held = other.lock("a", ttl=TTL).acquire()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(site.client.lock("a", ttl=TTL).acquire)
        while not other.status("a").waiters:
            assert not waiting.done()
        held.release()
        try:
            waiting.result(10).release()
        finally:
            site.clock.advance(TTL)  # or it would wait for ever
    assert lost
    other.close()


async def test_a_task_whose_grant_was_lost_with_the_connection_asks_at_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[Notification] = []
    subscribe = TappedAsyncConnection.subscribe

    async def lose_the_first(self: Any, deliver: Deliver) -> None:
        def changed(news: Sequence[Notification] | DibsError) -> None:
            if lost or isinstance(news, DibsError):
                deliver(news)
            else:
                lost.extend(news)
                deliver(BackendUnavailable("the connection broke"))

        await subscribe(self, changed)

    monkeypatch.setattr(TappedAsyncConnection, "subscribe", lose_the_first)
    async with (
        dibs.Client(StoreSession(site.store, clock=site.clock)) as client,
        dibs.Client(StoreSession(site.store, clock=site.clock)) as other,
    ):
        held = await other.lock("a", ttl=TTL).acquire()
        waiting = asyncio.create_task(client.lock("a", ttl=TTL).acquire())
        while not (await client.status("a")).waiters:
            await asyncio.sleep(0)
        await held.release()
        async with asyncio.timeout(10):
            await (await waiting).release()
    assert lost


@pytest.mark.parametrize("auto_renew", [True, False])
def test_a_revocation_that_the_store_knows_nothing_of_makes_the_holder_ask_once(
    site: Site, auto_renew: bool
) -> None:
    lease = site.client.lock("a", ttl=TTL, auto_renew=auto_renew).acquire()
    (holder,) = site.client.status("a").holders
    site.clock.advance(TTL / 5)
    began, before = lease.remaining, len(site.times(lease))
    site.client.session.keeper.notifications.deliver(
        Notification(lease.key, holder.lease, "", "revoked")
    )
    assert site.client.session.keeper.flush(10)
    assert len(site.times(lease)) == before + 1
    assert not lease.lost
    assert (lease.remaining > began + TTL / 10) == auto_renew
    site.clock.advance(TTL / 5)
    assert len(site.times(lease)) == before + 1
    site.clock.advance(TTL)
    assert lease.lost != auto_renew
    lease.release()


@pytest.mark.parametrize("by", ["the keeper", "renew()"])
@pytest.mark.parametrize("now", ["waits", "holds by another grant"])
def test_a_lease_that_the_store_has_only_in_its_queue_or_with_another_token_is_lost_at_once(
    site: Site, now: str, by: str
) -> None:
    """As after a failover to a server that knows its position in the queue, and not its grant."""
    lease = site.client.lock("a", ttl=TTL).acquire()
    key, own = lease.key, lease._id
    behind = site.store.inner.blocking_connection()
    behind.apply([Release(key, own), Acquire(key, "other", "they", TTL)], TTL)
    behind.apply([Acquire(key, own, "me", TTL, queue=True)], TTL)
    if now == "holds by another grant":
        behind.apply([Release(key, "other")], TTL)
    if by == "renew()":
        with pytest.raises(LeaseLost, match="the store has no such lease any more"):
            lease.renew()
    else:
        site.clock.advance(1.5)  # its first renewal comes after a second
    assert lease.lost
    assert lease.reason == "expired"


def test_closing_gives_up_at_once_what_no_keeper_had_looked_at_yet(site: Site) -> None:
    client = site.another()
    lease = client.lock("a", ttl=TTL).acquire()
    client.close()
    assert lease.reason == "closed"
    taken = site.client.lock("a").try_acquire()
    assert taken is not None
    taken.release()
    again = client.lock("a").acquire(wait=0)
    again.release()
    client.close()


def test_abandoning_never_blocks_though_the_store_hangs(site: Site) -> None:
    site.client.session.keeper.flush(5)
    hanging, go_on = threading.Event(), threading.Event()

    def hang(commands: Sequence[Command]) -> None:
        if any(isinstance(command, Release) for command in commands):
            hanging.set()
            go_on.wait(20)

    site.store.before = hang
    keeper = site.client.session.keeper
    began = time.monotonic()
    for number in range(1000):
        keeper.abandon(b"lock:a", f"id-{number}", 60)
    assert time.monotonic() - began < 2
    assert hanging.wait(10)
    go_on.set()
    assert keeper.flush(10)
    released = [c for batch in site.store.kept for c in batch if isinstance(c, Release)]
    assert {c.id for c in released} == {f"id-{number}" for number in range(1000)}


def test_who_closes_waits_once_for_a_store_that_hangs(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a program does that closes its client, and then ends."""
    monkeypatch.setattr("dibs.runtime.keeper.DRAIN", 2.0)
    hanging, go_on = threading.Event(), threading.Event()

    def hang(_: Sequence[Command]) -> None:
        hanging.set()
        go_on.wait(30)

    keeper = site.client.session.keeper
    site.store.before = hang
    keeper.abandon(b"lock:a", "id", 60)
    assert hanging.wait(10)
    began = time.monotonic()
    keeper.close()
    keeper.close()
    assert time.monotonic() - began < 3.9
    go_on.set()
    assert keeper.flush(10)
    keeper.close()
    assert keeper._thread is None


def test_a_callback_that_blocks_delays_nobody_elses_renewals_or_losses() -> None:
    """Real time: the callback must not run where leases are looked after."""
    store = TappedStore()
    client = Client(StoreSession(store))
    go_on, told = threading.Event(), threading.Event()
    lost = client.lock("lost", ttl=0.4, max_hold=0.1, on_lost=lambda _: go_on.wait(20)).acquire()
    kept = client.lock("kept", ttl=0.4).acquire()
    also = client.lock("also", ttl=0.4, max_hold=0.6, on_lost=lambda _: told.set()).acquire()
    assert told.wait(10), "a second loss is told while the first callback blocks"
    assert lost.lost
    assert also.lost
    kept.ensure()
    go_on.set()
    kept.release()
    client.close()


def test_that_leases_cannot_be_renewed_is_logged_once_in_an_outage(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "dibs")
    lease = site.client.lock("a", ttl=TTL).acquire()

    def away(_: Sequence[Command]) -> None:
        raise BackendUnavailable("gone fishing")

    for outage in (1, 2):
        site.store.before = away
        site.clock.advance(TTL / 2)
        assert ["gone fishing" in each for each in caplog.messages] == [True] * outage
        site.store.before = lambda _: None
        site.clock.advance(TTL)
        lease.ensure(needs=TTL / 2)
    lease.release()


pytestmark = [pytest.mark.slow, pytest.mark.once]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("many", [3_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_very_many_leases_are_renewed_in_time(many: int) -> None:
    clock = ManualClock()
    store = TappedStore(store=MemoryStore(f"memory://{uuid4()}", clock=clock))
    client = Client(StoreSession(store, clock=clock))
    leases: list[Lease] = []
    for number in range(many):
        leases.append(client.lock(f"key-{number}", ttl=TTL).acquire())
        if number % 1000 == 0:
            clock.advance(TTL / 10 * 1000 / many)  # not all at the same moment
    store.kept.clear()
    clock.advance(2 * TTL)
    assert not any(lease.lost for lease in leases)
    assert min(lease.remaining for lease in leases) > TTL / 2
    batches = [batch for batch in store.kept if isinstance(batch[0], Renew)]
    sent = sum(len(batch) for batch in batches)
    assert 5 * many <= sent <= 8 * many
    assert sent / len(batches) > 200, "they travel together"
    for lease in leases:
        lease.release()
    client.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("few", "many"), [(200, 800), pytest.param(2_000, 20_000, marks=pytest.mark.long)]
)
def test_what_a_lease_costs_in_memory_does_not_grow_with_their_number(few: int, many: int) -> None:
    def bytes_per_lease(count: int) -> float:
        clock = ManualClock()
        client = Client(StoreSession(MemoryStore(f"memory://{uuid4()}", clock=clock), clock=clock))
        locks = [client.lock(f"key-{number}", ttl=TTL) for number in range(count)]
        for lock in locks[:100]:
            lock.acquire().release()
        gc.collect()
        tracemalloc.start()
        leases = [lock.acquire() for lock in locks]
        gc.collect()
        before_renewals = tracemalloc.get_traced_memory()[0]
        clock.advance(3 * TTL)
        gc.collect()
        after_renewals = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        for lease in leases:
            lease.release()
        client.close()
        assert after_renewals < 1.5 * before_renewals, "renewals leave nothing behind"
        return after_renewals / count

    of_few, of_many = bytes_per_lease(few), bytes_per_lease(many)
    print(f"{of_many:.0f} bytes per lease, the memory store's own share included")
    assert of_many < 1.2 * of_few
    assert of_many < 4_000


def test_a_timer_is_on_time_after_a_suspend() -> None:
    class Boot:
        suspended = 0.0
        stamp = SystemClock().stamp

        def now(self) -> float:
            return time.monotonic() + self.suspended

    clock, over = Boot(), threading.Event()
    ThreadTimers(clock).at(clock.now() + 60, over.set)
    time.sleep(0.05)  # by now its thread sleeps
    clock.suspended = 100.0
    assert over.wait(4)
