"""The keeper: when it renews, what it survives, and what it never does again."""

import gc
import logging
import threading
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest

from dibs import BackendUnavailable, LeaseLost
from dibs.clock import SystemClock
from dibs.model import Acquire, Command, Notification, Release, Renew
from dibs.runtime.scheduler import ThreadTimers
from dibs.session import StoreSession
from dibs.stores.port import BlockingConnection
from dibs.sync import Client, Lease
from tests.locks.worlds import World, away, heal, site
from tests.runtime.stores import TappedBlockingConnection, TappedStore
from tests.servers.waiting import wait_until

TTL = 30.0


class Site:
    """A store under a clock that is moved by hand, and what its keeper says to it."""

    def __init__(self) -> None:
        self.w = World("sync")
        self.clock = self.w.clock
        self.store, client = site(self.w)
        self.client: Client = client
        self.renewals: list[tuple[float, str]] = []
        self.store.before = self._note

    def _note(self, commands: Sequence[Command]) -> None:
        self.renewals += [(self.clock.now(), c.id) for c in commands if isinstance(c, Renew)]

    def released(self) -> set[str]:
        return {c.id for batch in self.store.kept for c in batch if isinstance(c, Release)}

    def times(self, lease: Any) -> list[float]:
        return [when for when, lease_id in self.renewals if lease_id == lease._id]


@pytest.fixture(name="site")
def keeping() -> Iterator[Site]:
    keeping = Site()
    yield keeping
    heal(keeping.store)
    keeping.client.close()


def test_a_lease_is_renewed_at_thirds_of_its_ttl(site: Site) -> None:
    lease = site.client.lock("a", ttl=TTL).acquire()
    site.clock.advance(10 * TTL)
    lease.ensure(needs=TTL / 2)
    times = site.times(lease)
    gaps = [after - before for before, after in pairwise(times)]
    assert 29 <= len(gaps) <= 34
    assert all(0.9 * TTL / 3 <= gap <= TTL / 3 for gap in gaps[1:]), gaps
    lease.release()
    site.clock.advance(3 * TTL)
    assert site.times(lease) == times, "a released lease is never renewed again"


def test_a_renewal_leaves_time_to_those_with_shorter_ttls(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch has as long as its shortest ttl allows, so it has only similar ones."""
    limits: list[tuple[float, float]] = []
    apply = TappedBlockingConnection.apply

    def note(self: Any, commands: Sequence[Command], timeout: float) -> Any:
        limits.extend((each.ttl, timeout) for each in commands if isinstance(each, Renew))
        return apply(self, commands, timeout)

    monkeypatch.setattr(TappedBlockingConnection, "apply", note)
    short, long = (site.client.lock(f"{ttl}", ttl=ttl).acquire() for ttl in (6.0, 60.0))
    site.clock.advance(60)
    ttls = [{each.ttl for each in b if isinstance(each, Renew)} for b in site.store.kept]
    assert {6.0, 60.0} not in ttls
    assert all(limit == 1.0 for ttl, limit in limits if ttl == 6.0)
    assert all(0.5 < limit <= 6.0 / 4 for ttl, limit in limits if ttl == 60.0)
    short.release()
    limits.clear()
    site.clock.advance(60)
    assert {limit for _, limit in limits} == {10.0}, "alone it has its whole limit"
    long.release()


def test_what_is_given_up_after_a_close_leaves_no_thread(site: Site) -> None:
    """Such as acquires that had no answer when their client was closed."""
    client: Client = site.w.another(site.store)
    lease = client.lock("a", ttl=TTL).acquire()
    client.close()
    assert lease.reason == "closed"
    taken = site.client.lock("a").try_acquire()
    assert taken is not None, "it was given up at once, though no keeper had looked at it yet"
    taken.release()
    ids = {f"id-{number}" for number in range(20)}
    for each in ids:
        client.session.keeper.abandon(b"lock:b", each, 0.0)
    wait_until(lambda: ids <= site.released(), "all are given up")
    with client.lock("a", ttl=TTL):  # and it may be used again
        assert client.lock("a").locked()
    client.close()
    wait_until(lambda: client.session.keeper._thread is None, "its thread has ended")


def test_an_outage_is_logged_once_and_renewals_are_tried_again_until_the_deadline(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "dibs")
    lease = site.client.lock("a", ttl=TTL).acquire()
    tried = 0

    def gone(commands: Sequence[Command]) -> None:
        nonlocal tried
        tried += 1
        away(commands)

    for outage in (1, 2):
        site.store.before = gone
        site.clock.advance(TTL * 0.8)
        assert not lease.lost
        assert tried >= 5 * outage
        assert ["the store is away" in each for each in caplog.messages] == [True] * outage
        heal(site.store)
        site.clock.advance(TTL)
        lease.ensure(needs=TTL / 2)
        lease.renew()
    site.store.before = gone
    site.clock.advance(TTL)
    assert lease.reason == "expired"


def test_it_survives_whatever_a_backend_raises(site: Site) -> None:
    lease = site.client.lock("a", ttl=TTL).acquire()
    failed = 0

    def fail(commands: Sequence[Command]) -> None:
        nonlocal failed
        if any(isinstance(command, Renew) for command in commands):
            failed += 1
            if failed <= 2:
                raise MemoryError("a backend's own fault")

    site.store.before = fail
    site.store.listening = lambda _: (_ for _ in ()).throw(MemoryError) if failed == 1 else None
    site.clock.advance(5 * TTL)
    assert failed > 2
    lease.ensure(needs=TTL / 2)
    lease.release()


def test_a_revocation_that_the_store_knows_nothing_of_makes_the_holder_ask_once(site: Site) -> None:
    lease = site.client.lock("a", ttl=TTL, auto_renew=False).acquire()
    (holder,) = site.client.status("a").holders
    site.clock.advance(TTL / 5)
    began, before = lease.remaining, len(site.times(lease))
    site.client.session.keeper.notifications.deliver(
        Notification(lease.key, holder.lease, "", "revoked")
    )
    assert site.client.session.keeper.flush(10)
    assert len(site.times(lease)) == before + 1
    assert not lease.lost
    assert lease.remaining < began + TTL / 10, "it is not renewed by that"
    site.clock.advance(TTL)
    assert len(site.times(lease)) == before + 1
    assert lease.lost


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


def test_giving_up_never_blocks_and_closing_only_once_though_the_store_hangs(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a program does that closes its client, and then ends."""
    monkeypatch.setattr("dibs.runtime.keeper.DRAIN", 1.0)
    hanging, go_on = threading.Event(), threading.Event()

    def hang(_: Sequence[Command]) -> None:
        hanging.set()
        go_on.wait(30)

    keeper, ids = site.client.session.keeper, {f"id-{number}" for number in range(1000)}
    site.store.before = hang
    began = time.monotonic()
    for each in ids:
        keeper.abandon(b"lock:a", each, 60)
    assert time.monotonic() - began < 1
    assert hanging.wait(10)
    began = time.monotonic()
    keeper.close()
    keeper.close()
    assert time.monotonic() - began < 1.9
    go_on.set()
    assert keeper.flush(10)
    assert site.released() == ids


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


def test_a_connection_that_cannot_subscribe_is_closed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a server that goes away between the first and the second call."""
    refused: list[object] = []
    closed: list[object] = []

    class Refusing(TappedBlockingConnection):
        def __init__(self, store: TappedStore, inner: BlockingConnection) -> None:
            super().__init__(store, inner)
            self.subscribe, self.close = self._refuse, lambda: closed.append(self)

        def _refuse(self, timeout: float) -> None:
            refused.append(self)
            raise BackendUnavailable("gone fishing")

    monkeypatch.setattr("tests.runtime.stores.TappedBlockingConnection", Refusing)
    with site.client.lock("a", ttl=TTL):
        site.clock.advance(TTL / 2)
        wait_until(lambda: len(refused) > 2, "the keeper connects again")
    assert set(refused[:-1]) <= set(closed)


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.timeout(300)
@pytest.mark.parametrize("many", [3_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_very_many_leases_are_renewed_in_time(many: int) -> None:
    w = World("sync")
    store, client = site(w)
    leases: list[Lease] = []
    for number in range(many):
        leases.append(client.lock(f"key-{number}", ttl=TTL).acquire())
        if number % 1000 == 0:
            w.clock.advance(TTL / 10 * 1000 / many)  # not all at the same moment
    store.kept.clear()
    w.clock.advance(2 * TTL)
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
@pytest.mark.parametrize("count", [400, pytest.param(20_000, marks=pytest.mark.long)])
def test_a_lease_takes_little_memory_and_its_renewals_none(count: int) -> None:
    """The memory store's own share is included."""
    w = World("sync")
    client = w.client
    client.lock("first", ttl=TTL).acquire().release()
    locks = [client.lock(f"key-{number}", ttl=TTL) for number in range(count)]
    tracemalloc.start()
    leases = [lock.acquire() for lock in locks]
    gc.collect()
    at_first = tracemalloc.get_traced_memory()[0]
    w.clock.advance(3 * TTL)
    gc.collect()
    after_renewals = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after_renewals < 1.5 * at_first
    assert after_renewals < 4_000 * count
    for lease in leases:
        lease.release()
    client.close()


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
