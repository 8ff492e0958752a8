"""The adapter for compare-and-set: what one key, one caller or one clock must not do to others."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

import dibs
from dibs.clock import Clock, SystemClock
from dibs.errors import BackendUnavailable, Corrupt
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
from dibs.session import StoreSession
from dibs.stores.cas.cells import Cell, Change, Receive, SwapConflict
from dibs.stores.cas.clock import StoreClock
from dibs.stores.cas.ledger import KEEP_IDLE, CasLedger
from dibs.testing import ManualClock
from tests.stores.memory_cells import MemoryCells, MemoryCellStore, Server

KEY = b"lock:k"


class PlannedCells(MemoryCells):
    """Cells whose calls take some seconds, come too late, get lost, or are cut off."""

    delay = 0.0
    conflicts = 0
    """So many swaps come too late."""
    is_cut = False
    cut_off = b""
    """The key that cannot be loaded."""
    loses_answers = False
    """The next swap's answer is lost, and all that follows is cut."""
    answered = 0
    """So many swaps were answered."""
    held_back: list[Callable[[], None]] | None = None
    """Notifications that are to come later."""

    async def load(self, key: bytes) -> Cell:
        await self._travel()
        if key == self.cut_off:
            raise BackendUnavailable("this one is cut off")
        return await super().load(key)

    async def swap(self, key: bytes, version: Any, change: Change) -> Any:
        await self._travel()
        if self.conflicts:
            self.conflicts -= 1
            raise SwapConflict
        found = await super().swap(key, version, change)
        if self.loses_answers:
            self.is_cut = True
            raise BackendUnavailable("the answer was lost")
        self.answered += 1
        return found

    async def _travel(self) -> None:
        await asyncio.sleep(self.delay)
        if self.is_cut:
            raise BackendUnavailable("cut")

    async def subscribe(self, inbox: str, receive: Receive) -> Callable[[], None]:
        def late(news: Any) -> None:
            if self.held_back is None:
                receive(news)
            else:
                self.held_back.append(partial(receive, news))

        return await super().subscribe(inbox, late)


class Process:
    """One process, with its own clock, over cells that all of them share."""

    def __init__(
        self, server: Server, clock: Clock, known: dict[bytes, Cell] | None = None
    ) -> None:
        self.clock = clock
        self.store_clock = StoreClock()
        self.cells = PlannedCells(server, self.store_clock, clock.now)
        known = {} if known is None else known
        self.ledger = CasLedger(self.cells, clock, self.store_clock, known)

    async def say(self, command: Any) -> Any:
        (reply,) = await self.ledger.apply([command])
        return reply

    async def cycle(self, name: str, key: bytes = KEY) -> int:
        """Acquire and release; return the token."""
        reply = await self.say(Acquire(key, name, name, 10.0))
        assert isinstance(reply, Granted)
        assert await self.say(Release(key, name)) == Released()
        return reply.token

    def contradict(self, seconds: float) -> None:
        """Have answers of two servers, and the clock of the second one is that much ahead."""
        now = self.clock.now()
        for ahead in (0.0, seconds):
            self.store_clock.note(self.clock.stamp() / 1e6 + ahead, 1.0, now, now)
        assert not self.store_clock.is_dated


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def server(clock: ManualClock) -> Server:
    return Server(clock)


async def test_a_key_that_cannot_be_read_fails_for_all_who_use_it_and_alone(
    server: Server, clock: ManualClock
) -> None:
    process = Process(server, clock)
    await process.say(Acquire(b"lock:a", "a", "o", 30.0))
    server.cells[KEY] = (999, b'{"format": 1}')
    renewed, failed = await process.ledger.apply([Renew(b"lock:a", "a", 30.0), Renew(KEY, "x", 9)])
    assert isinstance(renewed, Renewed)
    assert isinstance(failed, Failed)
    assert failed.reason == "corrupt"
    other = Process(server, clock)
    other.cells.cut_off = b"lock:a"
    both = await other.ledger.apply([Renew(KEY, "x", 9), Renew(b"lock:a", "a", 30.0)])
    assert [each.reason for each in both if isinstance(each, Failed)] == ["corrupt", "away"]
    process.cells.delay = 0.01  # so that they share a swap
    calls = [asyncio.create_task(process.say(Renew(KEY, f"{n}", 30.0))) for n in range(5)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Corrupt] * 5
    assert "lock:k" in str(outcomes[0])
    del server.cells[KEY]
    assert await process.cycle("a")


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


async def test_a_release_takes_along_who_joins_the_queue_behind_its_own_process() -> None:
    clock = SystemClock()
    server = Server(clock)
    process, other = Process(server, clock), Process(server, clock)
    process.ledger.inboxes["here"] = other.ledger.inboxes["there"] = lambda news: None

    def join(at: Process, name: str) -> asyncio.Task[Any]:
        inbox = "here" if at is process else "there"
        return asyncio.create_task(at.say(Acquire(KEY, name, "o", 30.0, inbox=inbox, queue=True)))

    for name in ("holder", "first", "second"):
        await join(process, name)
    before = server.revision
    joined = join(process, "third")
    await asyncio.sleep(0)
    await process.say(Release(KEY, "holder"))
    assert isinstance(await joined, Queued)
    assert server.revision == before + 1
    joined = join(other, "fourth")
    for _ in range(8):
        await asyncio.sleep(0)
    assert joined.done()  # at once: nobody of its process will release anything


async def test_callers_that_give_up_take_no_others_along() -> None:
    clock = SystemClock()
    process = Process(Server(clock), clock)
    await process.say(Acquire(KEY, "holder", "o", 30.0))
    process.cells.delay = 0.05

    async def impatient(number: int) -> None:
        for turn in range(8):
            with suppress(TimeoutError):
                async with asyncio.timeout(0.03):
                    await process.say(Acquire(KEY, f"{number}-{turn}", "o", 30.0))

    tries = [asyncio.create_task(impatient(number)) for number in range(5)]
    for _ in range(2):
        assert isinstance(await process.say(Renew(KEY, "holder", 30.0)), Renewed)
    await asyncio.gather(*tries)
    process.cells.delay = 3600.0
    for _ in range(2):  # what nobody waits for any more is given up
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await process.say(Inspect(KEY))
    process.cells.delay = 0.0
    async with asyncio.timeout(5):
        await process.say(Inspect(KEY))


async def test_what_a_process_knows_is_bounded(
    server: Server, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if each of many event loops uses a few keys only."""
    monkeypatch.setattr("dibs.stores.cas.ledger.MAX_KEYS", 100)
    known: dict[bytes, Cell] = {}
    for number in range(160):
        await Process(server, clock, known).cycle("a", b"lock:%d" % number)
    assert len(known) <= 100


async def test_an_idle_cell_is_deleted_after_long(server: Server, clock: ManualClock) -> None:
    """Tokens rise all the same, also if the next user does not go by the dates."""
    one, careful = Process(server, clock), Process(server, clock)
    await one.say(Acquire(b"lock:held", "a", "a", 1e6))
    tokens = [await one.cycle("a")]
    for user in (one, careful):
        clock.advance(KEEP_IDLE - 10)
        await one.ledger._sweep()
        assert KEY in server.cells
        clock.advance(20)
        await one.ledger._sweep()
        assert [*server.cells] == [b"lock:held"]
        if user is careful:
            careful.contradict(60)
        tokens.append(await user.cycle("b"))
    assert tokens == sorted(set(tokens))


async def test_who_does_not_go_by_the_dates_deletes_nothing(
    server: Server, clock: ManualClock
) -> None:
    """Its date may be far ahead, and the key's next token lower than its last one."""
    process = Process(server, clock)
    await process.cycle("a")
    [(name, cell)], _ = await process.cells.page(b"", None, 10)
    process.contradict(3 * KEEP_IDLE)
    await process.ledger._delete_if_idle(name, cell)
    assert KEY in server.cells


class PlannedStore(MemoryCellStore):
    """A store of such cells, for one event loop."""

    cells: PlannedCells

    def make_cells(self, clock: StoreClock, now: Callable[[], float]) -> MemoryCells:
        self.cells = PlannedCells(self._server, clock, now)
        return self.cells


async def test_one_whose_claim_got_lost_lets_nobody_in_twice() -> None:
    """The waiter claimed it, was not told so, lost it again, and waits anew with the same id."""
    clock = SystemClock()
    server = Server(clock)
    store = PlannedStore(clock, server)

    async def until(condition: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.005)

    async def another_answer() -> None:
        before = store.cells.answered
        await until(lambda: store.cells.answered > before)

    async with (
        dibs.Client(StoreSession(PlannedStore(clock, server))) as holder,
        dibs.Client(StoreSession(store)) as other,
    ):
        first = await holder.lock("a", ttl=30).acquire()
        waiting = asyncio.create_task(other.lock("a", ttl=0.5, wait=30).acquire())
        while not (await holder.lock("a").status()).waiters:
            await asyncio.sleep(0.01)
        cells = store.cells
        await another_answer()  # it has told the store its inbox
        cells.held_back, cells.loses_answers = [], True
        await first.release()
        await until(lambda: cells.is_cut)
        second = await holder.lock("a", ttl=30, wait=10).acquire()  # once the lost claim is over
        cells.loses_answers = cells.is_cut = False
        await another_answer()
        assert (await holder.lock("a").status()).waiting, "meanwhile it waits again"
        late, cells.held_back = cells.held_back, None
        assert late
        for each in late:
            each()
        await another_answer()
        assert not waiting.done(), "the grant in the notification ended long ago"
        await second.release()
        lease = await asyncio.wait_for(waiting, 10)
        assert lease.token > second.token
        await lease.release()
