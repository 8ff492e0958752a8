"""Deadlocks, as users of the store see them."""

import threading
import time
from typing import Any

from dibs.core.names import fingerprint, wait_key
from dibs.errors import Deadlock
from dibs.testing.conformance.suite import Suite, needing
from dibs.testing.conformance.users import Users, call, now, using
from dibs.testing.conformance.world import PATIENCE, World


class CircleClients(Suite):
    """Deadlocks."""

    @needing("circles")
    @using
    async def test_one_of_two_who_wait_for_each_other_gives_way(
        self, world: World, users: Users
    ) -> None:
        other = _Other(world, users)
        client, backend = users.client(), await world.connect()
        first = await now(client.lock(other.waits_for, ttl=30 * world.second).acquire())
        await call(world, other.start)
        try:
            second = await now(client.lock(other.holds, ttl=30 * world.second).acquire())
            await now(second.release())
        except Deadlock as error:
            other.errors.append(error)
        await now(first.release())
        await call(world, other.join)
        (told,) = other.errors
        for name in (other.holds, other.waits_for):
            assert f"holds {name.decode()} and waits for " in str(told)
        assert {holder.token for holder in told.holders} == {first.token, other.lease.token}
        for lease in (first, other.lease):
            key, end = wait_key(fingerprint(lease._id)), time.monotonic() + PATIENCE
            while (await world.status(backend, key)).holders:
                assert time.monotonic() < end, "what it told stands, though it waits no more"
                await call(world, lambda: time.sleep(0.01))


class _Other:
    """Another process, as far as the store can tell: it holds one lock, and waits for another."""

    def __init__(self, world: World, users: Users) -> None:
        self.holds = users.name + b"/b"
        self.waits_for = users.name
        self.errors: list[Deadlock] = []
        self.lease: Any = None
        self._world = world
        self._client = users.client(blocking=True)
        self._holding, self._over = threading.Event(), threading.Event()
        self._threads = [threading.Thread(target=self._wait, daemon=True)]
        if world.manual:
            self._threads.append(threading.Thread(target=self._move_time, daemon=True))

    def start(self) -> None:
        """Hold what it holds."""
        for thread in self._threads:
            thread.start()
        assert self._holding.wait(PATIENCE)

    def join(self) -> None:
        """Wait until it has given up everything."""
        self._threads[0].join(PATIENCE)
        self._over.set()
        self._threads[-1].join(PATIENCE)

    def _wait(self) -> None:
        ttl = 30 * self._world.second
        with self._client.lock(self.holds, ttl=ttl) as self.lease:
            self._holding.set()
            try:
                self._client.lock(self.waits_for, ttl=ttl).acquire().release()
            except Deadlock as error:
                self.errors.append(error)

    def _move_time(self) -> None:
        while not self._over.wait(0.005):
            self._world.pass_time(0.1)
