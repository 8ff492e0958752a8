"""What the tests of elections and campaigns have in common."""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import dibs.sync
from dibs import BackendUnavailable
from dibs.model import Command
from dibs.session import StoreSession
from tests.locks.worlds import World
from tests.runtime.stores import TappedStore

PATIENCE = 10.0
"""Real seconds within which what must happen happens."""


async def eventually(w: World, what: Callable[[], object]) -> None:
    """Wait for what happens in the background, while the clock stands still."""
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end, "it never happened"
        if w.is_async:
            await asyncio.sleep(0.001)
        else:
            time.sleep(0.001)


async def moving(w: World, what: Callable[[], object], step: float = 0.25) -> None:
    """Let time pass until something has happened."""
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end, "it never happened"
        w.clock.advance(step)
        for _ in range(3):
            if w.is_async:
                await asyncio.sleep(0.001)
            else:
                time.sleep(0.001)


def who_leads(w: World, name: str = "main") -> Any:
    """As somebody sees it who isn't cancelled: a thread beside us."""
    client = dibs.sync.Client(StoreSession(w.store, clock=w.clock))
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(client.leader_election(name).who).result()


class Diary:
    """What the callbacks of several candidates were told, in order."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.tokens: list[int] = []

    def of(self, who: str) -> dict[str, Any]:
        """The callbacks of one of them."""

        def started(term: Any) -> None:
            assert not term.lost
            self.told.append(f"{who} starts")
            self.tokens.append(term.token)

        def stopped(term: Any) -> None:
            self.told.append(f"{who} stops")

        return {"on_started": started, "on_stopped": stopped}


def away(_: Sequence[Command]) -> None:
    raise BackendUnavailable("the store is away")


def site(w: World, **options: Any) -> tuple[TappedStore, Any]:
    """A store that can be made to fail, under the world's clock, and a client of it."""
    store = TappedStore(store=w.store)
    return store, w.another(store, **options)


@contextmanager
def outage(store: TappedStore) -> Any:
    store.before = away
    try:
        yield
    finally:
        store.before = lambda _: None
