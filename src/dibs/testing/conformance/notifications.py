"""Notifications: to whom, with what, and that nobody depends on them."""

import threading
import time

import pytest

from dibs.core.names import fingerprint
from dibs.model import Notification, Release, Released, Revoke
from dibs.stores.port import BlockingConnection
from dibs.testing.conformance.suite import Suite, case, needing
from dibs.testing.conformance.world import PATIENCE, World
from dibs.testing.connections import OfThread, TestedConnection

MOMENT = 0.05
"""Real seconds that show that nothing comes."""


def about(name: str, event: str) -> "Wanted":
    """Notifications of one kind for one id."""
    return Wanted(fingerprint(name), event)


class Wanted:
    """Tells whether a notification is the one that a case waits for."""

    def __init__(self, lease: str, event: str) -> None:
        self.lease: str = lease
        self.event: str = event

    def __call__(self, notification: Notification) -> bool:
        return (notification.lease, notification.event) == (self.lease, self.event)


class NotificationCases(Suite):
    """Notifications that a store sends."""

    @needing("notifies")
    async def test_a_grant_is_notified_with_all_that_its_owner_needs(self, world: World) -> None:
        holder, waiter = await world.connect(), await world.connect()
        await world.take(holder, "a", capacity=2, units=2)
        place = await world.queue(waiter, "b", capacity=2)
        world.pass_time(2 * world.second)
        await world.release(holder, "a")
        notification = await world.notified(waiter, about("b", "granted"))
        assert notification is not None
        (hold,) = (await world.status(holder)).holders
        assert (notification.key, notification.token, notification.slots) == (
            world.key(),
            hold.token,
            (0,),
        )
        assert 0 < notification.claim_timeout <= 5
        if "clock" in world.store.capabilities.names():
            assert 1.9 * world.second <= notification.granted_at - place.now

    @needing("notifies")
    async def test_a_notification_names_no_id(self, world: World) -> None:
        holder, waiter = await world.connect(), await world.connect()
        await world.take(holder, "a")
        await world.queue(waiter, "verysecret")
        await world.release(holder, "a")
        notification = await world.notified(waiter, about("verysecret", "granted"))
        assert notification is not None
        assert "secret" not in repr(notification)

    @needing("notifies")
    async def test_notifications_reach_their_own_inbox_only(self, world: World) -> None:
        holder, one, two = [await world.connect() for _ in range(3)]
        assert len({holder.inbox, one.inbox, two.inbox}) == 3
        await world.take(holder, "a")
        await world.queue(one, "b")
        await world.release(holder, "a")
        assert await world.notified(one, about("b", "granted")) is not None
        assert await world.notified(two, about("b", "granted"), MOMENT) is None

    @needing("notifies")
    async def test_the_new_head_is_woken(self, world: World) -> None:
        holder, one, two = [await world.connect() for _ in range(3)]
        await world.take(holder, "a")
        await world.queue(one, "b")
        await world.queue(two, "c")
        await world.release(one, "b")
        notification = await world.notified(two, about("c", "head"))
        assert notification is not None
        assert notification.key == world.key()

    @needing("notifies")
    async def test_a_holder_is_told_of_its_revocation(self, world: World) -> None:
        holder, admin = await world.connect(), await world.connect()
        await world.take(holder, "a", inbox=holder.inbox)
        await world.say(admin, Revoke(world.key(), None, "upgrade"))
        notification = await world.notified(holder, about("a", "revoked"))
        assert notification is not None
        assert notification.detail == "upgrade"

    @needing("notifies")
    async def test_a_place_that_no_longer_fits_is_told(self, world: World) -> None:
        holder, waiter, newcomer = [await world.connect() for _ in range(3)]
        await world.take(holder, "a", capacity=2)
        await world.queue(waiter, "b", capacity=2, units=2)
        await world.queue(newcomer, "c", capacity=1)
        assert await world.notified(waiter, about("b", "refused")) is not None

    @needing("notifies")
    async def test_a_notification_ends_waiting_that_has_begun(self, world: World) -> None:
        holder, waiter = await world.connect(), await world.connect()
        await world.take(holder, "a")
        await world.queue(waiter, "b")
        threading.Timer(MOMENT, world.release_elsewhere, ("a",)).start()
        began = time.monotonic()
        assert await world.notified(waiter, about("b", "granted")) is not None
        assert time.monotonic() - began < PATIENCE / 2

    @case
    async def test_a_waiter_that_missed_a_notification_is_granted_when_it_asks(
        self, world: World
    ) -> None:
        holder, waiter = await world.connect(), await world.connect()
        await world.take(holder, "a")
        await world.queue(waiter, "b", inbox="nobody-reads-this")
        assert await world.release(holder, "a") == Released()
        await world.take(waiter, "b", queue=True)

    @case
    async def test_a_waiter_that_went_away_harms_nobody(self, world: World) -> None:
        holder, waiter = await world.connect(), await world.connect()
        await world.take(holder, "a")
        await world.queue(waiter, "b")
        await waiter.close()
        (released,) = await holder.apply([Release(world.key(), "a")])
        assert released == Released()

    @case
    async def test_waiting_ends_at_its_timeout(self, world: World) -> None:
        store = await world.connect()
        began = time.monotonic()
        assert list(await store.notifications(MOMENT)) == []
        assert time.monotonic() - began < 5

    @case
    async def test_a_wake_from_another_thread_ends_waiting(self, world: World) -> None:
        store = blocking(await world.connect())
        thread = threading.Timer(MOMENT, store.wake)
        thread.start()
        began = time.monotonic()
        assert list(store.notifications(30)) == []
        assert time.monotonic() - began < 10
        thread.join()

    @case
    async def test_a_wake_before_waiting_counts_too(self, world: World) -> None:
        store = blocking(await world.connect())
        store.wake()
        began = time.monotonic()
        assert list(store.notifications(30)) == []
        assert time.monotonic() - began < 10


def blocking(connection: TestedConnection) -> BlockingConnection:
    """The store's own, if a thread waits at it."""
    if not isinstance(connection, OfThread):
        pytest.skip("notifications of an event loop come by a call: nobody waits for them")
    return connection.connection
