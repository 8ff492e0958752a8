"""Many threads at once, each with a connection of its own."""

import asyncio
import threading
from collections.abc import Iterable

from dibs.model import Acquire, Granted, Release
from dibs.testing.conformance.suite import Suite, case
from dibs.testing.conformance.world import World, step
from dibs.testing.connections import TestedConnection, connection_of

THREADS = 4
ROUNDS = 40


class ContendingThreads:
    """Takes and releases units of one key, and sees whether too many are inside."""

    def __init__(self, world: World, capacity: int) -> None:
        self.world: World = world
        self.capacity: int = capacity
        self.inside: int = 0
        self.most: int = 0
        self.tokens: list[int] = []
        self.errors: list[BaseException] = []
        self.lock: threading.Lock = threading.Lock()

    def run(self, names: Iterable[str]) -> None:
        """Contend, each name in a thread."""
        threads = [threading.Thread(target=self._thread, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.errors:
            raise self.errors[0]

    def _thread(self, name: str) -> None:
        try:
            if self.world.mode == "async":
                asyncio.run(self._contend(name))
            else:
                step(self._contend(name))
        except BaseException as error:  # noqa: BLE001 -- raised again by the caller of run
            self.errors.append(error)

    async def _contend(self, name: str) -> None:
        connection = connection_of(self.world.store, self.world.mode)
        await connection.open()
        for number in range(ROUNDS):
            await self._turn(connection, f"{name}-{number}")
        await connection.close()

    async def _turn(self, connection: TestedConnection, lease: str) -> None:
        acquire: Acquire = self.world.acquire(lease, capacity=self.capacity)
        (reply,) = await connection.apply([acquire])
        if isinstance(reply, Granted):
            with self.lock:
                self.inside += 1
                self.most = max(self.most, self.inside)
                self.tokens.append(reply.token)
            with self.lock:
                self.inside -= 1
            await connection.apply([Release(acquire.key, lease)])


class Contending(Suite):
    """Exclusion among threads."""

    @case
    async def test_one_at_a_time(self, world: World) -> None:
        threads = ContendingThreads(world, 1)
        await self.contend(world, threads)
        assert threads.most == 1
        assert len(threads.tokens) > 1
        assert len(set(threads.tokens)) == len(threads.tokens)

    @case
    async def test_no_more_than_there_are(self, world: World) -> None:
        threads = ContendingThreads(world, 2)
        await self.contend(world, threads)
        assert threads.most <= 2
        assert len(set(threads.tokens)) == len(threads.tokens)

    async def contend(self, world: World, threads: ContendingThreads) -> None:
        """Let all threads contend, and see that nothing is left behind."""
        names = [f"t{number}" for number in range(THREADS)]
        if world.mode == "async":
            await asyncio.to_thread(threads.run, names)
        else:
            threads.run(names)
        assert (await world.status(await world.connect())).holders == ()
