"""The adapter for compare-and-set: what one key, one caller or one clock must not do to others."""

import asyncio
from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest

from dibs.clock import Clock, SystemClock
from dibs.errors import Corrupt
from dibs.model import (
    Acquire,
    Failed,
    Granted,
    Inspect,
    Queued,
    Refused,
    Release,
    Released,
    Renew,
    Renewed,
)
from dibs.stores.cas.cells import Cell, Change, SwapConflict, TooLarge
from dibs.stores.cas.clock import StoreClock
from dibs.stores.cas.format import write_state
from dibs.stores.cas.ledger import MAX_KEYS, PATIENT_CONFLICTS, CasLedger
from dibs.testing import ManualClock
from tests.stores.memory_cells import MemoryCells, Server

KEY = b"lock:k"


class PlannedCells(MemoryCells):
    """Cells whose calls take some seconds, and that have a limit of size."""

    def __init__(self, server: Server, clock: StoreClock, now: Callable[[], float]) -> None:
        super().__init__(server, clock, now)
        self.delay = 0.0
        self.limits = (10**9, 10**9)
        self.loads = self.swaps = 0
        self.conflicts = 0
        """So many swaps come too late."""

    async def load(self, key: bytes) -> Cell:
        self.loads += 1
        await asyncio.sleep(self.delay)
        return await super().load(key)

    async def swap(self, key: bytes, version: Any, change: Change) -> Any:
        self.swaps += 1
        await asyncio.sleep(self.delay)
        if self.conflicts:
            self.conflicts -= 1
            raise SwapConflict
        limit = self.limits[0 if change.grows else 1]
        if change.state is not None and len(write_state(change.state)) > limit:
            raise TooLarge("too large")
        return await super().swap(key, version, change)


class Process:
    """One process, with its own clock, over cells that all of them share."""

    def __init__(
        self, server: Server, clock: Clock, known: dict[bytes, Cell] | None = None
    ) -> None:
        store_clock = StoreClock()
        self.cells = PlannedCells(server, store_clock, clock.now)
        self.ledger = CasLedger(self.cells, clock, store_clock, {} if known is None else known)

    async def say(self, command: Any) -> Any:
        (reply,) = await self.ledger.apply([command])
        return reply


async def test_a_key_that_cannot_be_read_fails_alone() -> None:
    clock = SystemClock()
    server = Server(clock)
    process = Process(server, clock)
    await process.ledger.apply(
        [Acquire(b"lock:a", "a", "o", 30.0), Acquire(b"lock:b", "b", "o", 30.0)]
    )
    server.cells[b"lock:bad"] = (999, b"nonsense")
    renewals = [
        Renew(b"lock:a", "a", 30.0),
        Renew(b"lock:bad", "x", 30.0),
        Renew(b"lock:b", "b", 30.0),
    ]
    first, bad, second = await process.ledger.apply(renewals)
    assert isinstance(first, Renewed)
    assert isinstance(second, Renewed)
    assert isinstance(bad, Failed)
    assert bad.reason == "corrupt"
    with pytest.raises(Corrupt, match="lock:bad"):
        await process.say(renewals[1])


async def test_what_is_in_a_full_cell_is_renewed_and_released() -> None:
    clock = ManualClock()
    process = Process(Server(clock), clock)
    process.cells.limits = (20_000, 30_000)
    held = []
    for number in range(200):
        command = Acquire(b"semaphore:k", f"{number:032x}", "owner", 10.0, capacity=1000)
        reply = await process.say(command)
        if isinstance(reply, Granted):
            held.append(command.id)
        else:
            assert isinstance(reply, Refused)
            assert reply.reason == "queue_full"
    assert 50 < len(held) < 200
    for _ in range(12):
        clock.advance(3)
        for each in held:
            assert isinstance(await process.say(Renew(b"semaphore:k", each, 10.0)), Renewed)
    for each in held:
        assert await process.say(Release(b"semaphore:k", each)) == Released()


async def test_a_clock_that_stood_still_dates_no_lease_too_early() -> None:
    """As in a virtual machine that was paused: a lone try elsewhere would take the lease at once."""
    wall, mine, theirs = ManualClock(), ManualClock(), ManualClock()
    server = Server(wall)
    paused, other = Process(server, mine), Process(server, theirs)
    await paused.say(Acquire(KEY, "x", "x", 30.0))
    await paused.say(Release(KEY, "x"))
    for clock in (wall, theirs):
        clock.advance(60)
    assert isinstance(await paused.say(Acquire(KEY, "a", "a", 30.0)), Granted)
    for clock in (wall, mine, theirs):
        clock.advance(1)
    assert isinstance(await other.say(Acquire(KEY, "b", "b", 30.0)), Refused)


async def test_servers_whose_clocks_differ_are_asked_no_more_often() -> None:
    """Each answer may come from another one: that is no clock of ours that stood still."""
    clock = ManualClock()
    server, ahead = Server(clock), cycle((0.0, 5.0, 0.0))
    process = Process(server, clock)
    date = server.date
    server.date = lambda: date() + next(ahead)  # type: ignore[method-assign]
    for turn in range(30):
        lease = f"{turn:032x}"
        assert isinstance(await process.say(Acquire(KEY, lease, "o", 30.0)), Granted)
        assert await process.say(Release(KEY, lease)) == Released()
        clock.advance(1.0)
    assert process.cells.swaps <= 2 * 30 + 6
    assert process.cells.loads <= 6


async def test_who_comes_after_a_conflict_is_not_answered_by_what_was_read_before() -> None:
    clock = SystemClock()
    server = Server(clock)
    process, other = Process(server, clock), Process(server, clock)
    await process.say(Acquire(KEY, "mine", "o", 30.0))
    await process.say(Release(KEY, "mine"))
    await other.say(Acquire(KEY, "theirs", "o", 30.0))
    swap = process.cells.swap
    tries: list[asyncio.Task[Any]] = []

    async def meanwhile(key: bytes, version: Any, change: Change) -> Any:
        try:
            return await swap(key, version, change)
        except SwapConflict:
            if not tries:
                await other.say(Release(KEY, "theirs"))
                tries.append(asyncio.create_task(process.say(Acquire(KEY, "late", "o", 30.0))))
                await asyncio.sleep(0)
            raise

    process.cells.swap = meanwhile  # type: ignore[method-assign]
    first = await process.say(Acquire(KEY, "early", "o", 30.0))
    late = await tries[0]
    assert [isinstance(each, Granted) for each in (first, late)] in ([True, False], [False, True])


async def test_callers_that_give_up_take_no_others_along() -> None:
    clock = SystemClock()
    process = Process(Server(clock), clock)
    await process.say(Acquire(KEY, "holder", "o", 30.0))
    process.cells.delay = 0.05

    async def impatient(number: int) -> None:
        for turn in range(20):
            try:
                async with asyncio.timeout(0.03):
                    await process.say(Acquire(KEY, f"{number}-{turn}", "o", 30.0))
            except TimeoutError:
                pass

    tries = [asyncio.create_task(impatient(number)) for number in range(5)]
    for _ in range(4):
        assert isinstance(await process.say(Renew(KEY, "holder", 30.0)), Renewed)
    await asyncio.gather(*tries)


async def test_a_release_waits_behind_no_pause_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others wait for it: what has met many conflicts tries again at once, and takes it along."""
    clock = SystemClock()
    process = Process(Server(clock), clock)
    await process.say(Acquire(KEY, "holder", "o", 30.0))
    monkeypatch.setattr("dibs.stores.cas.ledger._pause", lambda _: 3600.0)
    process.cells.conflicts = PATIENT_CONFLICTS + 1
    joins = asyncio.create_task(process.say(Acquire(KEY, "waiter", "o", 30.0, queue=True)))
    while process.cells.conflicts:
        await asyncio.sleep(0)
    async with asyncio.timeout(5):
        assert await process.say(Release(KEY, "holder")) == Released()
        assert isinstance(await joins, Queued)


async def test_what_a_watch_brings_is_not_loaded_after_a_conflict() -> None:
    clock, known = SystemClock(), dict[bytes, Cell]()
    server = Server(clock)
    process, other = Process(server, clock, known), Process(server, clock)
    await process.say(Acquire(KEY, "holder", "o", 30.0))
    await other.say(Acquire(KEY, "waiter", "o", 30.0, queue=True))
    loads, swap = process.cells.loads, process.cells.swap

    async def meanwhile(key: bytes, version: Any, change: Change) -> Any:
        try:
            return await swap(key, version, change)
        except SwapConflict as conflict:
            brought = conflict.cell
        assert brought is not None
        known[key] = brought
        raise SwapConflict

    process.cells.swap = meanwhile  # type: ignore[method-assign]
    assert await process.say(Release(KEY, "holder")) == Released()
    assert process.cells.loads == loads
    assert isinstance(await other.say(Renew(KEY, "waiter", 30.0)), Granted)


async def test_what_nobody_waits_for_is_given_up() -> None:
    clock = SystemClock()
    process = Process(Server(clock), clock)
    process.cells.delay = 3600.0
    for _ in range(2):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await process.say(Inspect(KEY))
    process.cells.delay = 0.0
    async with asyncio.timeout(5):
        await process.say(Inspect(KEY))


async def test_an_error_is_told_to_all_who_share_a_swap() -> None:
    clock = SystemClock()
    server = Server(clock)
    process = Process(server, clock)
    server.cells[KEY] = (999, b"nonsense")
    process.cells.delay = 0.01
    calls = [asyncio.create_task(process.say(Renew(KEY, f"{n}", 30.0))) for n in range(5)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {Corrupt}
    del server.cells[KEY]
    assert isinstance(await process.say(Acquire(KEY, "a", "o", 30.0)), Granted)


def test_what_a_process_knows_is_bounded() -> None:
    """Also if each of many event loops uses a few keys only."""
    clock, known = SystemClock(), dict[bytes, Cell]()
    server = Server(clock)

    async def one(number: int) -> None:
        process = Process(server, clock, known)
        for more in range(100):
            await process.say(Acquire(b"lock:%d" % (100 * number + more), "a", "o", 30.0))

    for number in range(MAX_KEYS // 100 + 2):
        asyncio.run(one(number))
    assert len(known) <= MAX_KEYS
