"""Applies commands to cells: load, run the ledger, swap; and again after a conflict.

An uncontended cycle of acquire and release is two calls, as each swap is tried against what this process
wrote or read last. Only a swap that succeeds proves that this was current: an answer that changes nothing
comes from a load of its own.
"""

import asyncio
import logging
import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from dibs.clock import Clock
from dibs.core import ledger
from dibs.core.book import Entry, Hold, MemoryBook, QueueEntry
from dibs.errors import (
    BackendUnavailable,
    Corrupt,
)
from dibs.model import (
    Acquire,
    Command,
    Granted,
    Inspect,
    Notification,
    Page,
    Queued,
    Refused,
    Renewed,
    Reply,
    Status,
)
from dibs.stores.aio import resolve
from dibs.stores.cas.calls import KeyBatch, KeyCall, KeyCalls, is_release
from dibs.stores.cas.cells import Cell, Cells, Change, Receive, SwapConflict, TooLarge
from dibs.stores.cas.clock import UNDATED, Sightings, StoreClock, Time, mark_of
from dibs.stores.cas.format import unreadable
from dibs.stores.port import Done, GiveUp, as_dibs
from dibs.stores.snapshot import State, dump, load

log: logging.Logger = logging.getLogger("dibs")

QUEUE_LIMIT = 256
"""Waiters that one key can have: its whole book is written with every change."""

MAX_CALLS = 32
"""Calls under way at a time, for one event loop: a busy API server refuses more than a few hundred in all."""

MAX_KEYS = 4096
"""Keys whose last value is kept."""

PATIENT_CONFLICTS = 3
"""Conflicts in a row after which a command waits a little, for a random time, before it tries again."""

BACK_OFF = 0.005
"""Seconds of the first such wait, on average; it doubles each time."""

LONGEST_BACK_OFF = 0.25

LEAST_TURN = 0.002
"""Seconds that each waiter ahead takes at least, as its release is a swap: joining the queue has so long."""

LONGEST_JOIN = 0.02
"""Seconds that joining the queue is delayed at most."""

FULL_RECHECK = 1.0
"""Seconds after which a refused caller may ask whether the cell is still full."""

SWEEP_EVERY = 1024
"""Commands of one event loop between two looks for idle cells."""

SWEEP_SIZE = 64
"""Cells that one such look goes through."""

KEEP_IDLE = 3600.0
"""Seconds for which an idle cell is kept after its last grant: far more than dates can be wrong by."""

SKEWS_IDLE = 4.0
"""Idle cells are kept for at least this many skews."""


class _Attempt(msgspec.Struct):
    """The result of the ledger for a cell. Nothing of it is true before the swap has succeeded."""

    book: MemoryBook
    state: State
    replies: list[Reply]
    notifications: list[Notification]
    sightings: Sightings
    time: Time
    changed: list[Entry]
    """The entries that it wrote."""
    is_dated: bool
    """They have their end by the store's date."""
    grows: bool
    """An id was added to the cell."""


class CasLedger:
    """The keys of a store, for one event loop."""

    def __init__(
        self, cells: Cells, clock: Clock, store_clock: StoreClock, known: dict[bytes, Cell]
    ) -> None:
        """`known`: the cells as this process has last written or read them, shared by its event loops.

        Leases are renewed in another loop than they are acquired in. Any of these cells may be outdated.
        """
        self.inboxes: dict[str, Receive] = {}
        """Who subscribed in this event loop: their notifications need not go through the store."""
        self._cells = cells
        self._clock = clock
        self._store_clock = store_clock
        self._known = known
        self._keys: OrderedDict[bytes, KeyCalls] = OrderedDict()
        self._calls = asyncio.Semaphore(MAX_CALLS)
        self._until_sweep = SWEEP_EVERY
        self._swept_to: bytes | None = None
        self._sweeping: asyncio.Task[None] | None = None

    def submit(self, commands: Sequence[Command], done: Done) -> GiveUp:
        """Apply a batch: the commands of each key in order, in one swap; keys side by side.

        If one key fails, the others are done nevertheless, and its commands get `Failed`. An error of all
        keys is that of the batch. What is under way is cancelled once all callers gave up.
        """
        self._count(len(commands))
        if len(commands) == 1:
            return self._add(commands[0].key, commands, done).give_up
        numbers: dict[bytes, list[int]] = {}
        for number, command in enumerate(commands):
            numbers.setdefault(command.key, []).append(number)
        batch = KeyBatch(len(commands), len(numbers), done)
        calls = [
            self._add(key, [commands[number] for number in of_key], partial(batch.end, of_key))
            for key, of_key in numbers.items()
        ]

        def give_up() -> None:
            for call in calls:
                call.give_up()

        return give_up

    async def apply(self, commands: Sequence[Command]) -> Sequence[Reply]:
        """The same for a caller that waits, and gives it up if it is cancelled."""
        if not commands:
            return ()
        replies: asyncio.Future[Sequence[Reply]] = asyncio.get_running_loop().create_future()
        give_up = self.submit(commands, partial(resolve, replies))
        try:
            return await replies
        except asyncio.CancelledError:
            give_up()
            raise

    # -- one key ------------------------------------------------------------------------------------

    def _add(self, name: bytes, commands: Sequence[Command], done: Done) -> KeyCall:
        """Have commands applied. While one swap is under way, those of all callers gather for the next.

        The task starts at once: commands leave a turn earlier, and a loop that is closed now finds it begun.
        """
        key = self._key(name)
        call = KeyCall(key, commands, done)
        key.waiting.append(call)
        if key.hurry is not None and not key.hurry.done() and is_release(call):
            key.hurry.set_result(None)
        if not key.running:
            loop = asyncio.get_running_loop()
            key.task = asyncio.Task(self._run(name, key), loop=loop, eager_start=True)
            key.task._log_destroy_pending = False  # type: ignore[attr-defined]  # loops get closed
        return call

    async def _run(self, name: bytes, key: KeyCalls) -> None:
        """Apply what waits, in one swap each time, until nothing waits."""
        key.running = True
        try:
            while key.waiting:
                key.taken = []
                commands = key.take()
                if commands:
                    await self._apply_taken(name, key, commands)
        except asyncio.CancelledError:
            shut = BackendUnavailable("the event loop shut down while the store was being asked")
            for call in (*key.taken, *key.waiting):
                call.end(shut)
            raise
        finally:
            key.running = False
            key.taken, key.waiting = [], []

    async def _apply_taken(self, name: bytes, key: KeyCalls, commands: list[Command]) -> None:
        """Apply the commands of all callers in one swap, and tell each."""
        try:
            replies = await self._apply_until_swapped(name, key, commands, key.take)
        except asyncio.CancelledError:
            if not key.given_up:
                raise
            key.given_up = False
            asyncio.current_task().uncancel()  # type: ignore[union-attr]
            return
        except Exception as error:  # noqa: BLE001  # whatever it was, the callers are told
            for call in key.taken:
                call.end(as_dibs(error))
            return
        for call in key.taken:
            count = len(call.commands)
            call.end(replies[:count])
            replies = replies[count:]

    async def _apply_until_swapped(
        self,
        name: bytes,
        key: KeyCalls,
        commands: list[Command],
        more: Callable[[], list[Command]],
        *,
        is_dated: bool = True,
    ) -> list[Reply]:
        """Apply commands, and after a conflict also those of `more`, in this order.

        `is_dated`: what is written may carry its end by the store's date.
        """
        cell = self._known.pop(name, None)  # until it is known how the swap ends
        is_current, is_full, conflicts, has_paused = False, False, 0, False
        while True:
            if cell is None:
                cell, is_current = await self._load(name), True
            attempt = self._attempt(name, key, cell, commands, is_full=is_full, is_dated=is_dated)
            if attempt.state == _state_of(cell):
                if is_current:
                    self._remember(name, cell)
                    return attempt.replies
                cell = None
                continue
            if not has_paused and (pause := self._time_to_join(attempt, commands)):
                has_paused, is_current = True, False
                self._remember(name, cell)  # a watch may bring a newer one
                await key.back_off(pause)
                commands = [*commands, *more()]
                cell = self._known.pop(name, None)
                continue
            try:
                change = self._change(attempt)
                async with self._calls:
                    version = await self._cells.swap(name, cell.version, change)
            except SwapConflict as conflict:
                tried, cell = cell, conflict.cell
                conflicts += 1
                if conflicts > PATIENT_CONFLICTS and await key.back_off(
                    _pause(conflicts - PATIENT_CONFLICTS)
                ):
                    cell = None  # by now it is another one
                joined = more()
                commands = [*commands, *joined]
                is_current = cell is not None and not joined  # it was read before these came
                if cell is None:  # a watch may have brought it
                    cell = self._known.pop(name, None)
                    cell = None if cell is None or cell.version == tried.version else cell
            except TooLarge as error:
                if is_full:
                    raise BackendUnavailable(
                        f"the holders and waiters of {name!r} are more than the store can take as one value: "
                        "release some of them"
                    ) from error
                is_full = True
            else:
                self._remember(name, Cell(version, attempt.state))
                key.sightings = attempt.sightings
                self._deliver(attempt.notifications)
                if attempt.is_dated and self._store_clock.was_later(
                    attempt.time, self._clock.now()
                ):
                    return await self._undated(name, key, commands, attempt)
                return attempt.replies

    async def _undated(
        self, name: bytes, key: KeyCalls, commands: Sequence[Command], wrong: _Attempt
    ) -> list[Reply]:
        """The entries that were written end too early by their date: our own clock stood still meanwhile.

        Take their dates away. Then ask again for what was granted, without dates: somebody may have taken it.
        """
        marks = {each.id: mark_of(each) for each in wrong.changed}
        while True:
            cell = await self._load(name)
            time = self._store_clock.time(self._clock.now())
            book = _book_of(name, cell, key.sightings, time)
            entries = [each for each in book.entries() if marks.get(each.id) == mark_of(each)]
            for entry in entries:
                entry.expires = UNDATED
            try:
                if entries:
                    await self._cells.swap(name, cell.version, Change(dump(book), book, ()))
            except SwapConflict:
                continue
            break
        self._known.pop(name, None)
        again = [
            number
            for number, reply in enumerate(wrong.replies)
            if isinstance(reply, Granted | Renewed | Queued)
        ]
        if again:
            found = await self._apply_until_swapped(
                name, key, [commands[each] for each in again], list, is_dated=False
            )
            for number, reply in zip(again, found, strict=True):
                wrong.replies[number] = reply
        return wrong.replies

    def _attempt(
        self,
        name: bytes,
        key: KeyCalls,
        cell: Cell,
        commands: Sequence[Command],
        *,
        is_full: bool,
        is_dated: bool = True,
    ) -> _Attempt:
        """Run the ledger over a copy of the cell. With `is_full` no id is added to it."""
        time = self._store_clock.time(self._clock.now())
        book = _book_of(name, cell, key.sightings, time)
        key.sightings = key.sightings.of(book.entries())
        # what the commands write is seen if it is stored: until then nobody has
        sightings = key.sightings.of(book.entries())
        book.expires_at = sightings.view(time)
        replies: list[Reply] = []
        notifications: list[Notification] = []
        budget = ledger.StepBudget() if len(commands) > 1 else None
        grows = False
        for command in commands:
            if isinstance(command, Acquire) and book.get(command.id) is None:
                if is_full:
                    replies.append(Refused("queue_full", recheck_in=FULL_RECHECK))
                    continue
                grows = True
            reply, sent = ledger.apply(book, command, time.now, time.stamp, budget)
            replies.append(reply)
            notifications += sent
        changed = [entry for entry in book.entries() if key.sightings.is_changed(entry)]
        is_dated = is_dated and time.slack is not None and bool(changed)
        if not is_dated:
            for entry in changed:
                entry.expires = UNDATED
        state = dump(book)
        return _Attempt(
            book, state, replies, notifications, sightings, time, changed, is_dated, grows
        )

    def _time_to_join(self, attempt: _Attempt, commands: Sequence[Command]) -> float:
        """Seconds that waiters who only join the queue can wait for a release of this process.

        Then one swap does both. If nobody else of this process holds or waits, there is nothing to wait for.
        """
        if attempt.notifications:
            return 0.0
        pause = LONGEST_JOIN
        for reply in attempt.replies:
            if not isinstance(reply, Queued):
                return 0.0
            # the next heartbeat is due by `recheck_in`
            pause = min(pause, reply.position * LEAST_TURN, reply.recheck_in / 8)
        joining = {getattr(command, "id", "") for command in commands}
        others: list[Hold | QueueEntry] = [*attempt.book.holds(), *attempt.book.queue()]
        ours = any(each.inbox in self.inboxes and each.id not in joining for each in others)
        return pause if ours else 0.0

    # -- calls --------------------------------------------------------------------------------------

    async def _load(self, name: bytes) -> Cell:
        async with self._calls:
            return await self._cells.load(name)

    def _change(self, attempt: _Attempt) -> Change:
        """The change to write. Notifications for this event loop need not go through the store."""
        inboxes = self.inboxes
        elsewhere = [n for n in attempt.notifications if n.inbox and n.inbox not in inboxes]
        return Change(attempt.state, attempt.book, elsewhere, attempt.is_dated, attempt.grows)

    def _deliver(self, notifications: Sequence[Notification]) -> None:
        for notification in notifications:
            receive = self.inboxes.get(notification.inbox)
            if receive is not None:
                receive([notification])

    def _key(self, name: bytes) -> KeyCalls:
        key = self._keys.get(name)
        if key is None:
            if len(self._keys) >= MAX_KEYS:
                self._forget_some()
            key = self._keys[name] = KeyCalls()
        else:
            self._keys.move_to_end(name)
        return key

    def _forget_some(self) -> None:
        """Forget the keys that were not used for the longest time."""
        unused = [name for name, key in self._keys.items() if not key.running]
        for name in unused[: MAX_KEYS // 4]:
            del self._keys[name]

    def _remember(self, name: bytes, cell: Cell) -> None:
        known = self._known
        known[name] = cell
        if len(known) > MAX_KEYS:
            with suppress(RuntimeError, StopIteration):  # another loop has changed it
                known.pop(next(iter(known)), None)

    # -- looking at many keys -----------------------------------------------------------------------

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        """Return the next keys that are not idle; nothing is written."""
        async with self._calls:
            found, cursor = await self._cells.page(prefix, cursor, limit)
        items = []
        for name, cell in found:
            key = self._keys.get(name) or KeyCalls()
            try:
                attempt = self._attempt(name, key, cell, [Inspect(name)], is_full=False)
            except Corrupt as error:
                log.debug("left out of a list: %s", error)
                continue
            (status,) = attempt.replies
            if isinstance(status, Status) and (status.holders or status.waiters):
                items.append(status)
        return Page(items, cursor)

    def _count(self, commands: int) -> None:
        self._until_sweep -= commands
        if self._until_sweep <= 0 and (self._sweeping is None or self._sweeping.done()):
            self._until_sweep = SWEEP_EVERY
            self._sweeping = asyncio.create_task(self._sweep())
            self._sweeping._log_destroy_pending = False  # type: ignore[attr-defined]  # loops get closed

    async def _sweep(self) -> None:
        """Delete idle cells, of the next few, whose last tokens are well in the past by the store's clock."""
        try:
            async with self._calls:
                found, self._swept_to = await self._cells.page(b"", self._swept_to, SWEEP_SIZE)
            for name, cell in found:
                with suppress(Corrupt):
                    await self._delete_if_idle(name, cell)
        except Exception:  # noqa: BLE001, S110  # another time: nobody waits for it
            pass

    async def _delete_if_idle(self, name: bytes, cell: Cell) -> None:
        time = self._store_clock.time(self._clock.now())
        book = _book_of(name, cell, Sightings(), time)
        is_dated = time.slack is not None
        kept = max(KEEP_IDLE, SKEWS_IDLE * self._store_clock.skew)
        if (
            not is_dated
            or cell.version is None
            or not book.idle
            or book.last > time.stamp - kept * 1e6
        ):
            return
        self._known.pop(name, None)
        with suppress(SwapConflict):
            await self._cells.swap(name, cell.version, Change(None, book, ()))

    def close(self) -> None:
        """End the sweep."""
        if self._sweeping is not None:
            self._sweeping.cancel()


EMPTY = dump(MemoryBook())
"""The state of a key that does not exist."""


def _state_of(cell: Cell) -> State:
    return EMPTY if cell.state is None else cell.state


def _book_of(name: bytes, cell: Cell, sightings: Sightings, time: Time) -> MemoryBook:
    """The book in a cell. Raises `Corrupt`."""
    try:
        return load(_state_of(cell), QUEUE_LIMIT, sightings.view(time))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise unreadable(cell.where or f"under {name!r}", error) from error


def _pause(number: int) -> float:
    return random.uniform(0, min(BACK_OFF * 2**number, LONGEST_BACK_OFF))  # noqa: S311
