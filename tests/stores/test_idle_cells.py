"""Idle cells are deleted in such a way that a key's tokens rise nevertheless."""

import asyncio
from typing import Any

import pytest

from dibs.model import Acquire, Command, Granted, Release
from dibs.stores.cas.clock import StoreClock
from dibs.stores.cas.ledger import KEEP_IDLE, CasLedger
from dibs.testing import ManualClock
from tests.stores.memory_cells import MemoryCells, Server

KEY = b"lock:k"


class Process:
    """One that uses the store, with a clock of its own."""

    def __init__(self, server: Server, clock: ManualClock) -> None:
        self.store_clock = StoreClock()
        self.cells = MemoryCells(server, self.store_clock, clock.now)
        self.ledger = CasLedger(self.cells, clock, self.store_clock, {})

    def apply(self, command: Command) -> Any:
        return asyncio.run(self._apply(command))

    async def _apply(self, command: Command) -> Any:
        (reply,) = await self.ledger.apply([command])
        return reply

    def grant(self, id_: str) -> int:
        reply = self.apply(Acquire(KEY, id_, id_, 10.0))
        assert isinstance(reply, Granted)
        self.apply(Release(KEY, id_))
        return reply.token

    def sweep(self) -> None:
        asyncio.run(self.ledger._sweep())

    def contradicted(self, clock: ManualClock, seconds: float) -> None:
        """It has answers of two servers, and the clock of the second one is that much ahead."""
        now = clock.now()
        for ahead in (0.0, seconds):
            self.store_clock.note(clock.stamp() / 1e6 + ahead, 1.0, now, now)
        assert not self.store_clock.is_dated


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def server(clock: ManualClock) -> Server:
    return Server(clock)


def test_an_idle_cell_is_deleted_after_long(server: Server, clock: ManualClock) -> None:
    process = Process(server, clock)
    process.grant("a")
    clock.advance(KEEP_IDLE - 10)
    process.sweep()
    assert KEY in server.cells
    clock.advance(20)
    process.sweep()
    assert KEY not in server.cells


def test_a_cell_in_use_is_kept(server: Server, clock: ManualClock) -> None:
    process = Process(server, clock)
    process.apply(Acquire(KEY, "a", "a", 1e6))
    clock.advance(2 * KEEP_IDLE)
    process.sweep()
    assert KEY in server.cells


@pytest.mark.parametrize("is_contradicted", [False, True])
def test_tokens_rise_though_the_cell_was_deleted(
    server: Server, clock: ManualClock, is_contradicted: bool
) -> None:
    """Also if its next user does not go by the dates, because they contradict each other."""
    one, other = Process(server, clock), Process(server, clock)
    before = one.grant("a")
    clock.advance(KEEP_IDLE + 10)
    one.sweep()
    assert KEY not in server.cells
    if is_contradicted:
        other.contradicted(clock, 60)
    assert other.grant("b") > before


def test_who_does_not_go_by_the_dates_deletes_nothing(server: Server, clock: ManualClock) -> None:
    """Its date may be far ahead, and the key's next token lower than its last one."""
    process = Process(server, clock)
    process.grant("a")
    found, _ = asyncio.run(process.cells.page(b"", None, 10))
    process.contradicted(clock, 3 * KEEP_IDLE)
    ((name, cell),) = found
    asyncio.run(process.ledger._delete_if_idle(name, cell))
    assert KEY in server.cells
