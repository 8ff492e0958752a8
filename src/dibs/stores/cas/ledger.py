"""Applies commands to cells: load, run the ledger, swap; and again after a conflict.

An uncontended cycle of acquire and release is two calls, as each swap is tried against what this process
wrote or read last. Only a swap that succeeds proves that this was current: an answer that changes nothing
comes from a load of its own.
"""

import asyncio
import random
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from dibs.clock import Clock
from dibs.core import ledger
from dibs.core.book import MemoryBook
from dibs.errors import BackendUnavailable, Corrupt, DibsError
from dibs.model import Acquire, Command, Inspect, Notification, Page, Refused, Reply, Status
from dibs.stores.cas.cells import Cell, Cells, Change, Conflict, Receive, TooLarge
from dibs.stores.cas.clock import UNDATED, Sightings, StoreClock, Time
from dibs.stores.snapshot import State, dump, load

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

FULL_RECHECK = 1.0
"""Seconds after which a refused caller may ask whether the cell is still full."""

SWEEP_EVERY = 1024
"""Commands of one event loop between two looks for idle cells."""

SWEEP_SIZE = 64
"""Cells that one such look goes through."""

KEEP_IDLE = 3600.0
"""Seconds for which an idle cell is kept after its last grant: far more than dates can be wrong by."""


class _Attempt(NamedTuple):
    """What the ledger makes of a cell. Nothing of it is true before the swap has succeeded."""

    book: MemoryBook
    state: State
    replies: list[Reply]
    notifications: list[Notification]
    sightings: Sightings


class _Call:
    """Commands of one batch for one key, and what came of them."""

    __slots__ = ("commands", "error", "replies")

    def __init__(self, commands: Sequence[Command]) -> None:
        self.commands = commands
        self.replies: list[Reply] | None = None
        self.error: DibsError | None = None


class _Key:
    """One key in this event loop: whose turn it is, who waits, and what was seen of its entries."""

    __slots__ = ("sightings", "turn", "users", "waiting")

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.users = 0
        self.waiting: list[_Call] = []
        """Whoever has the turn next takes all of them along."""
        self.sightings = Sightings()


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
        self._keys: OrderedDict[bytes, _Key] = OrderedDict()
        self._calls = asyncio.Semaphore(MAX_CALLS)
        self._until_sweep = SWEEP_EVERY
        self._swept_to: bytes | None = None
        self._sweeping: asyncio.Task[None] | None = None

    async def apply(self, commands: Sequence[Command]) -> list[Reply]:
        """Apply a batch: the commands of each key in order, in one swap; keys side by side.

        If one key fails, the others are done nevertheless, and its error is raised.
        """
        self._count(len(commands))
        if len(commands) == 1:
            return await self._apply_to_key(commands[0].key, commands)
        numbers: dict[bytes, list[int]] = {}
        for number, command in enumerate(commands):
            numbers.setdefault(command.key, []).append(number)
        outcomes = await asyncio.gather(
            *(
                self._apply_to_key(key, [commands[number] for number in of_key])
                for key, of_key in numbers.items()
            ),
            return_exceptions=True,
        )
        replies: dict[int, Reply] = {}
        for of_key, outcome in zip(numbers.values(), outcomes, strict=True):
            if isinstance(outcome, BaseException):
                raise outcome
            replies.update(zip(of_key, outcome, strict=True))
        return [replies[number] for number in range(len(commands))]

    # -- one key ------------------------------------------------------------------------------------

    async def _apply_to_key(self, name: bytes, commands: Sequence[Command]) -> list[Reply]:
        """Wait for the turn. While one swap is under way, the commands of others gather for the next."""
        key, call = self._key(name), _Call(commands)
        key.users += 1
        key.waiting.append(call)
        try:
            async with key.turn:
                if call.replies is None and call.error is None:
                    await self._apply_waiting(name, key)
        finally:
            key.users -= 1
            if call in key.waiting:
                key.waiting.remove(call)
        if call.replies is None:
            raise call.error or BackendUnavailable(f"{name!r} was not applied")
        return call.replies

    async def _apply_waiting(self, name: bytes, key: _Key) -> None:
        """Apply what waits, in one swap. If that fails, nobody knows whether it was applied."""
        taken, key.waiting = key.waiting, []
        try:
            commands = [command for call in taken for command in call.commands]
            replies = await self._in_turn(name, key, commands)
        except BaseException as error:
            failure = BackendUnavailable(f"a call that others shared was given up: {name!r}")
            for call in taken:
                call.error = error if isinstance(error, DibsError) else failure
            raise
        for call in taken:
            call.replies, replies = replies[: len(call.commands)], replies[len(call.commands) :]

    async def _in_turn(self, name: bytes, key: _Key, commands: Sequence[Command]) -> list[Reply]:
        cell = self._known.pop(name, None)  # until it is known how the swap ends
        is_current, is_full, conflicts = False, False, 0
        while True:
            if cell is None:
                cell, is_current = await self._load(name), True
            attempt = self._attempt(name, key, cell, commands, is_full=is_full)
            if attempt.state == _state_of(cell):
                if is_current:
                    self._known[name] = cell
                    return attempt.replies
                cell = None
                continue
            try:
                version = await self._swap(name, cell, attempt)
            except Conflict as conflict:
                cell, is_current = conflict.cell, conflict.cell is not None
                conflicts += 1
                if conflicts > PATIENT_CONFLICTS:
                    await _back_off(conflicts - PATIENT_CONFLICTS)
                    cell = None  # by now it is another one
            except TooLarge as error:
                if is_full:
                    raise BackendUnavailable(
                        f"{name!r} holds more than the store can take"
                    ) from error
                is_full = True
            else:
                self._known[name] = Cell(version, attempt.state)
                key.sightings = attempt.sightings
                self._deliver(attempt.notifications)
                return attempt.replies

    def _attempt(
        self, name: bytes, key: _Key, cell: Cell, commands: Sequence[Command], *, is_full: bool
    ) -> _Attempt:
        """Run the ledger over a copy of the cell. With `is_full` no id is added to it."""
        time = self._store_clock.time(self._clock.now())
        book = _book_of(name, cell, key.sightings, time)
        key.sightings.forget_all_but(book.entries())
        sightings = key.sightings.copy()
        book.expires_at = sightings.view(time)
        replies: list[Reply] = []
        notifications: list[Notification] = []
        budget = ledger.StepBudget() if len(commands) > 1 else None
        for command in commands:
            if is_full and isinstance(command, Acquire) and book.get(command.id) is None:
                replies.append(Refused("queue_full", recheck_in=FULL_RECHECK))
                continue
            reply, sent = ledger.apply(book, command, time.now, time.stamp, budget)
            replies.append(reply)
            notifications += sent
        if time.slack is None:
            for entry in book.entries():
                if key.sightings.is_changed(entry):
                    entry.expires = UNDATED
        sightings.forget_all_but(book.entries())
        return _Attempt(book, dump(book), replies, notifications, sightings)

    # -- calls --------------------------------------------------------------------------------------

    async def _load(self, name: bytes) -> Cell:
        async with self._calls:
            return await self._cells.load(name)

    async def _swap(self, name: bytes, cell: Cell, attempt: _Attempt) -> object:
        """Returns the new version."""
        inboxes = self.inboxes
        elsewhere = [n for n in attempt.notifications if n.inbox and n.inbox not in inboxes]
        async with self._calls:
            change = Change(attempt.state, attempt.book, elsewhere)
            return await self._cells.swap(name, cell.version, change)

    def _deliver(self, notifications: Sequence[Notification]) -> None:
        for notification in notifications:
            receive = self.inboxes.get(notification.inbox)
            if receive is not None:
                receive([notification])

    def _key(self, name: bytes) -> _Key:
        key = self._keys.get(name)
        if key is None:
            if len(self._keys) >= MAX_KEYS:
                self._forget_some()
            key = self._keys[name] = _Key()
        else:
            self._keys.move_to_end(name)
        return key

    def _forget_some(self) -> None:
        """Forget the keys that were not used for the longest time."""
        unused = [name for name, key in self._keys.items() if not key.users]
        for name in unused[: MAX_KEYS // 4]:
            del self._keys[name]
            self._known.pop(name, None)

    # -- looking at many keys -----------------------------------------------------------------------

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        """Return the next keys that are not idle; nothing is written."""
        async with self._calls:
            found, cursor = await self._cells.page(prefix, cursor, limit)
        items = []
        for name, cell in found:
            key = self._keys.get(name) or _Key()
            attempt = self._attempt(name, key, cell, [Inspect(name)], is_full=False)
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
                await self._delete_if_idle(name, cell)
        except Exception:  # noqa: BLE001, S110  # another time: nobody waits for it
            pass

    async def _delete_if_idle(self, name: bytes, cell: Cell) -> None:
        time = self._store_clock.time(self._clock.now())
        book = _book_of(name, cell, Sightings(), time)
        is_dated = time.slack is not None
        if not is_dated or not book.idle or book.last > time.stamp - KEEP_IDLE * 1e6:
            return
        key = self._key(name)
        async with key.turn:
            self._known.pop(name, None)
            try:
                await self._cells.swap(name, cell.version, Change(None, book, ()))
            except Conflict:
                pass

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
        raise Corrupt(f"what lies under {name!r} is no book of Dibs: {error!r}") from error


async def _back_off(number: int) -> None:
    longest = min(BACK_OFF * 2**number, LONGEST_BACK_OFF)
    await asyncio.sleep(random.uniform(0, longest))  # noqa: S311
