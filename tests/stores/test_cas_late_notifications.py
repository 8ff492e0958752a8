"""Where the store has no clock, a notified grant counts only if it came after the last answer."""

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import dibs
from dibs.clock import Clock, SystemClock
from dibs.core.timing import MAX_CLAIM_TIMEOUT, TOMBSTONE_TTL
from dibs.errors import BackendUnavailable
from dibs.stores.cas.cells import Cell, Change, Receive
from dibs.stores.cas.clock import StoreClock
from dibs.stores.registry import BUILTIN
from dibs.testing import ManualClock
from tests.stores.memory_cells import MemoryCells, MemoryCellStore, Server

SERVER = Server(SystemClock())


class Network:
    """The way of one client: its answers can get lost, and its notifications be held back."""

    def __init__(self) -> None:
        self.loses_answers = False
        self.is_cut = False
        self.is_open = asyncio.Event()
        """Calls wait for it."""
        self.is_open.set()
        self.lost = asyncio.Event()
        """An answer was lost."""
        self.answered = asyncio.Event()
        """A swap was answered."""
        self.held_back: list[tuple[Receive, Any]] | None = []

    def receive(self, receive: Receive, news: Any) -> None:
        if self.held_back is None:
            receive(news)
        else:
            self.held_back.append((receive, news))

    def deliver(self) -> int:
        """Deliver what was held back, and all that follows; return how many grants there were."""
        late, self.held_back = self.held_back or [], None
        for receive, news in late:
            receive(news)
        return sum(each.event == "granted" for _, news in late for each in news)


NETWORK: dict[str, Network] = {}


class PlannedCells(MemoryCells):
    def __init__(
        self, network: Network, server: Server, clock: StoreClock, now: Callable[[], float]
    ) -> None:
        super().__init__(server, clock, now)
        self.network = network

    async def load(self, key: bytes) -> Cell:
        await self.network.is_open.wait()
        if self.network.is_cut:
            raise BackendUnavailable("cut")
        return await super().load(key)

    async def swap(self, key: bytes, version: Any, change: Change) -> Any:
        await self.network.is_open.wait()
        if self.network.is_cut:
            raise BackendUnavailable("cut")
        found = await super().swap(key, version, change)
        if self.network.loses_answers:
            self.network.is_cut = True
            self.network.lost.set()
            raise BackendUnavailable("the answer was lost")
        self.network.answered.set()
        return found

    async def subscribe(self, inbox: str, receive: Receive) -> Callable[[], None]:
        return await super().subscribe(inbox, partial(self.network.receive, receive))


class PlannedStore(MemoryCellStore):
    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        super().__init__(clock or SystemClock(), SERVER)
        self.url = url

    def make_cells(self, clock: StoreClock, now: Callable[[], float]) -> MemoryCells:
        network = NETWORK.setdefault(self.url, Network())
        return PlannedCells(network, SERVER, clock, now)


def test_one_whose_claim_got_lost_lets_nobody_in_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The waiter claimed it, was not told so, lost it again, and waits anew with the same id."""
    monkeypatch.setitem(BUILTIN, "planned", f"{__name__}:PlannedStore")
    NETWORK.clear()

    async def main() -> None:
        async with (
            dibs.connect("planned://holder") as holder,
            dibs.connect("planned://waiter") as other,
        ):
            first = await holder.lock("a", ttl=30).acquire()
            waiting = asyncio.create_task(other.lock("a", ttl=0.5, wait=30).acquire())
            while not (await holder.lock("a").status()).waiters:
                await asyncio.sleep(0.01)
            network = NETWORK["planned://waiter"]
            network.answered.clear()
            await network.answered.wait()  # it has told the store its inbox
            network.loses_answers = True
            await first.release()
            await network.lost.wait()
            second = await holder.lock(
                "a", ttl=30, wait=10
            ).acquire()  # once the lost claim is over
            network.loses_answers = network.is_cut = False
            network.answered.clear()
            await network.answered.wait()
            await holder.lock("a").status()  # meanwhile it waits again
            network.answered.clear()
            assert network.deliver() == 1
            await network.answered.wait()
            assert not waiting.done(), "the grant in the notification ended long ago"
            await second.release()
            lease = await asyncio.wait_for(waiting, 10)
            assert lease.token > second.token
            await lease.release()

    asyncio.run(main())


def test_one_that_was_paused_for_longer_than_its_tombstone_lets_nobody_in_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its grant ended unclaimed, and the store forgot that: it waits anew with the same id."""
    monkeypatch.setitem(BUILTIN, "planned", f"{__name__}:PlannedStore")
    clock = ManualClock()
    monkeypatch.setattr(sys.modules[__name__], "SERVER", Server(clock))
    NETWORK.clear()

    async def main() -> None:
        async with (
            dibs.connect("planned://holder", clock=clock) as holder,
            dibs.connect("planned://waiter", clock=clock) as other,
        ):
            first = await holder.lock("a", ttl=30).acquire()
            waiting = asyncio.create_task(other.lock("a", ttl=0.5, wait=1000).acquire())
            network = NETWORK.setdefault("planned://waiter", Network())
            await network.answered.wait()  # it waits, and has told the store its inbox
            await first.release()
            network.is_open.clear()
            clock.advance(MAX_CLAIM_TIMEOUT + TOMBSTONE_TTL + 5)  # no task runs meanwhile
            second = await holder.lock("a", ttl=30).acquire()
            network.answered.clear()
            network.is_open.set()
            await network.answered.wait()
            assert (await holder.lock("a").status()).waiters
            network.answered.clear()
            assert network.deliver() == 1
            asked = asyncio.create_task(network.answered.wait())
            await asyncio.wait((asked, waiting), return_when=asyncio.FIRST_COMPLETED)
            assert not waiting.done(), "the grant in the notification ended long ago"
            await second.release()
            lease = await asyncio.wait_for(waiting, 10)
            assert lease.token > second.token
            await lease.release()

    asyncio.run(main())
