"""The adapter for compare-and-set: what one key, one caller or one clock must not do to others."""

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any

import pytest

import dibs
from dibs.clock import Clock, SystemClock
from dibs.errors import BackendUnavailable, Corrupt
from dibs.model import (
    Acquire,
    Command,
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
from dibs.stores.cas.cells import Cell, Change, Receive, SwapConflict, TooLarge
from dibs.stores.cas.clock import StoreClock
from dibs.stores.cas.format import write_state
from dibs.stores.cas.ledger import KEEP_IDLE, MAX_KEYS, PATIENT_CONFLICTS, CasLedger
from dibs.stores.registry import BUILTIN
from dibs.testing import ManualClock
from tests.stores.memory_cells import MemoryCells, MemoryCellStore, Server

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
    process.cells.limits = (8_000, 12_000)
    held = []
    for number in range(100):
        command = Acquire(b"semaphore:k", f"{number:032x}", "owner", 10.0, capacity=1000)
        reply = await process.say(command)
        if isinstance(reply, Granted):
            held.append(command.id)
        else:
            assert isinstance(reply, Refused)
            assert reply.reason == "queue_full"
    assert 20 < len(held) < 100
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


class Sweeper:
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
    process = Sweeper(server, clock)
    process.grant("a")
    clock.advance(KEEP_IDLE - 10)
    process.sweep()
    assert KEY in server.cells
    clock.advance(20)
    process.sweep()
    assert KEY not in server.cells


def test_a_cell_in_use_is_kept(server: Server, clock: ManualClock) -> None:
    process = Sweeper(server, clock)
    process.apply(Acquire(KEY, "a", "a", 1e6))
    clock.advance(2 * KEEP_IDLE)
    process.sweep()
    assert KEY in server.cells


@pytest.mark.parametrize("is_contradicted", [False, True])
def test_tokens_rise_though_the_cell_was_deleted(
    server: Server, clock: ManualClock, is_contradicted: bool
) -> None:
    """Also if its next user does not go by the dates, because they contradict each other."""
    one, other = Sweeper(server, clock), Sweeper(server, clock)
    before = one.grant("a")
    clock.advance(KEEP_IDLE + 10)
    one.sweep()
    assert KEY not in server.cells
    if is_contradicted:
        other.contradicted(clock, 60)
    assert other.grant("b") > before


def test_who_does_not_go_by_the_dates_deletes_nothing(server: Server, clock: ManualClock) -> None:
    """Its date may be far ahead, and the key's next token lower than its last one."""
    process = Sweeper(server, clock)
    process.grant("a")
    found, _ = asyncio.run(process.cells.page(b"", None, 10))
    process.contradicted(clock, 3 * KEEP_IDLE)
    ((name, cell),) = found
    asyncio.run(process.ledger._delete_if_idle(name, cell))
    assert KEY in server.cells


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


class CutOffCells(MemoryCells):
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
        return CutOffCells(network, SERVER, clock, now)


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
