"""Group commit: while a batch is under way, the commands of all other tasks gather and leave together.

A lone task pays nothing for it: as long as nobody else calls in the same turn of the event loop, its
command is sent at once, and no future is made if the store answers in place. Once a turn has brought more
than one command, commands wait for the end of the turn, behind the tasks that the last batch woke.

To a store that takes them, two batches may be under way: while it works at the one, the tasks that the
other has woken go on.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextvars import Context, copy_context
from functools import partial
from math import inf

from dibs.clock import Clock
from dibs.errors import BackendUnavailable, DibsError
from dibs.model import Acquire, Command, Reply, Revoke
from dibs.runtime.calls import Outcome, apply_in_halves, halves
from dibs.runtime.port import TimedReply
from dibs.stores.port import MAX_BATCH, AsyncConnection, GiveUp, as_dibs, time_limit

ALONE = 0.002
"""Seconds for which a task goes on in place before it lets the loop turn to see who else is there."""

SPLIT = 16
"""Batches of at least this many commands are split in two, so that client and store work in parallel."""

LEAST = 1.0
"""Seconds that every batch has for its round trip, however short the ttls of its commands are."""

MIN_CHECK_INTERVAL = 0.004
"""Seconds between two looks at what is late, at least: each goes through all that is under way."""


class Call:
    """A command, and the future that waits for its answer."""

    __slots__ = ("command", "future", "limit", "until", "waits")

    def __init__(
        self,
        command: Command,
        future: asyncio.Future[TimedReply],
        limit: float,
        waits: float,
        now: float,
    ) -> None:
        self.command: Command = command
        self.future: asyncio.Future[TimedReply] = future
        self.limit: float = limit
        """Seconds that one round trip may take for it."""
        self.waits: float = waits
        """Seconds that its caller waits."""
        self.until: float = now + waits

    def too_late(self) -> None:
        """Let the caller stop waiting; what is under way goes on."""
        if not self.future.done():
            told = f"the store did not answer within {self.waits:.3g} s"
            self.future.set_exception(BackendUnavailable(told))


class CallBatch:
    """Commands that left together, and what came of them."""

    __slots__ = (
        "_batcher",
        "calls",
        "commands",
        "context",
        "give_up",
        "is_innocent",
        "outcome",
        "sent",
        "until",
    )

    give_up: GiveUp
    context: Context | None
    """Context of its first command, for a second try."""
    until: float
    """When it is given up, on the loop's clock."""
    is_innocent: bool
    """Its connection is closed, or will be, because another batch is late."""

    def __init__(self, batcher: "Batcher", commands: Sequence[Command], sent: float) -> None:
        self._batcher = batcher
        self.commands: Sequence[Command] = commands
        self.sent: float = sent
        self.calls: Sequence[Call] | None = None
        """None until it is under way: a store that answers in place needs nobody to wait."""
        self.outcome: Sequence[Reply] | DibsError | None = None

    def done(self, outcome: Sequence[Reply] | DibsError) -> None:
        """Take what the store says. Only the first counts."""
        if self.outcome is None:
            self.outcome = outcome
            if self.calls is not None:
                self._batcher._end(self)

    def too_late(self) -> None:
        """Give it up; what the store says later is ignored."""
        self._batcher._give_up(self)


class Batcher:
    """The commands of an event loop to a connection: up to `most` in a batch, `parallel` batches at a time.

    Each call has a time limit of its own, and each batch that of its longest call.
    """

    def __init__(
        self,
        connection: AsyncConnection,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        call_timeout: float,
        *,
        most: int = MAX_BATCH,
        parallel: int = 0,
        beside: "Batcher | None" = None,
    ) -> None:
        """`beside`: another batcher that sends over the same connection."""
        self._connection = connection
        self._loop = loop
        self._clock = clock
        self._call_timeout = call_timeout
        self._most = most
        self._parallel = parallel or connection.parallel
        self._sharing: list[Batcher] = [] if beside is None else beside._sharing
        """All that send over this connection."""
        self._sharing.append(self)
        self._gathering: deque[Call] = deque()
        self._context: Context | None = None
        """Context of the batch's first command, so that the batch belongs to its trace."""
        self._has_revoke = False
        self._crowded = False
        self._planned = False
        self._closed = False
        self._turn_began: float | None = None
        self._under_way: set[CallBatch] = set()
        self._watched: set[Call | CallBatch] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._look_at = inf
        """When the timer goes off."""
        self._ended: asyncio.Future[None] | None = None
        """Set with the next batch that ends, for whoever closes."""

    async def call(self, command: Command, wait: float | None = None) -> TimedReply:
        """Return the answer to one command. A cancelled caller leaves; what is under way goes on.

        Raises `BackendUnavailable` after `wait` seconds, or after as long as a call may take.
        """
        sent = self._clock.now()
        crowd = self._gathering or self._crowded or self._under_way or self._closed
        if crowd or (self._turn_began is not None and sent - self._turn_began >= ALONE):
            call = self._new_call(command, wait)
            self._add(call)
            return await call.future
        batch = CallBatch(self, (command,), sent)
        batch.give_up = self._connection.submit(batch.commands, batch.done)
        outcome = batch.outcome
        if outcome is None:
            call = self._new_call(command, wait)
            batch.context = copy_context()
            self._begin(batch, (call,))
            return await call.future
        if self._turn_began is None:
            self._turn_began = sent  # or earlier, but we can't know
            self._loop.call_soon(self._turn_over)
        if isinstance(outcome, DibsError):
            raise outcome
        return TimedReply(outcome[0], sent)

    def gather(self, command: Command, wait: float | None) -> Call:
        """Have a command leave at the end of this turn, with all others that gather in it."""
        call = self._new_call(command, wait)
        self._add(call)
        return call

    def _add(self, call: Call) -> None:
        gathering = self._gathering
        if not gathering:
            self._context = copy_context()
        gathering.append(call)
        if type(call.command) is Revoke:
            self._has_revoke = True
        if not self._planned:
            self._plan()

    async def close(self) -> None:
        """Refuse further commands, and wait for those that are here."""
        self._closed = True
        while self._under_way or self._gathering:
            if not self._under_way:
                await asyncio.sleep(0)  # they leave at the end of this turn
                continue
            if self._ended is None or self._ended.done():
                self._ended = self._loop.create_future()
            await asyncio.wait((self._ended,))

    def _new_call(self, command: Command, wait: float | None) -> Call:
        if self._closed:
            raise BackendUnavailable("the client is closed")
        limit = time_limit(command, self._call_timeout)
        waits = limit if wait is None or wait > limit else wait
        loop = self._loop
        call = Call(command, loop.create_future(), limit, waits, loop.time())
        self._watch(call)
        return call

    def _turn_over(self) -> None:
        self._turn_began = None

    # -- sending ------------------------------------------------------------------------------------

    def _plan(self) -> None:
        """Send what gathers at the end of this turn, unless `parallel` batches are under way."""
        if not self._planned and self._gathering and len(self._under_way) < self._parallel:
            self._planned = True
            self._loop.call_soon(self._send_gathered, context=self._context)

    def _send_gathered(self) -> None:
        """Send what has gathered, at the end of a turn."""
        self._planned = False
        others = sum(len(batch.commands) for batch in self._under_way)
        if others and self._parallel <= 2 and 2 * len(self._gathering) < others:
            return  # too little to be worth a batch beside the one under way
        if len(self._under_way) >= self._parallel:
            return
        sent = self._clock.now()
        calls = self._take()
        if not others or len(calls) > 1:
            self._crowded = len(calls) > 1
        splits = len(calls) >= SPLIT and not others and self._parallel > 1
        middle = len(calls) // 2 if splits else len(calls)
        for part in (calls[:middle], calls[middle:]):
            if part:
                batch = CallBatch(self, [call.command for call in part], sent)
                batch.context = self._context
                self._submit(batch)
                self._begin(batch, part)

    def _take(self) -> list[Call]:
        """Take at most a batch of what has gathered.

        If not all fit, acquires go last, and so does what comes after an acquire of its own key. A Revoke
        leaves by itself: a batch may be sent again, and would revoke leases that were granted meanwhile.
        """
        waiting: list[Call] = []
        for call in self._gathering:
            if call.future.done():
                self._watched.discard(call)
            else:
                waiting.append(call)
        self._gathering.clear()
        if len(waiting) > self._most:
            acquired: set[bytes] = set()

            def comes_later(call: Call) -> bool:
                if isinstance(call.command, Acquire):
                    acquired.add(call.command.key)
                return call.command.key in acquired

            waiting.sort(key=comes_later)
        most = self._most
        if self._has_revoke:
            first = next(
                (n for n, call in enumerate(waiting) if type(call.command) is Revoke), most
            )
            most = min(max(first, 1), most)
        self._gathering.extend(waiting[most:])
        self._has_revoke = self._has_revoke and bool(self._gathering)
        return waiting[:most]

    def _submit(self, batch: CallBatch) -> None:
        try:
            batch.give_up = self._connection.submit(batch.commands, batch.done)
        except Exception as error:  # noqa: BLE001  # a store's own fault: every caller is told
            batch.done(as_dibs(error))

    def _begin(self, batch: CallBatch, calls: Sequence[Call]) -> None:
        """Note that a batch is under way, unless it has ended in place."""
        batch.calls, batch.is_innocent = calls, False
        if batch.outcome is not None:
            return self._end(batch)
        batch.until = self._loop.time() + self._limit(calls)
        self._under_way.add(batch)
        self._watch(batch)

    def _limit(self, calls: Sequence[Call]) -> float:
        return max(min(LEAST, self._call_timeout), *[call.limit for call in calls])

    # -- ending -------------------------------------------------------------------------------------

    def _end(self, batch: CallBatch) -> None:
        """A batch has ended: answer its callers, or try again what may be well without the others."""
        outcome, calls = batch.outcome, batch.calls
        assert outcome is not None
        assert calls is not None
        if not isinstance(outcome, DibsError):
            return self._land(batch, outcome)
        is_worth_it = batch.is_innocent or len(calls) > 1
        if is_worth_it and isinstance(outcome, BackendUnavailable) and not _is_revoke(batch):
            return self._retry(batch)
        return self._land(batch, [outcome] * len(calls))

    def _land(self, batch: CallBatch, outcomes: Sequence[Outcome], *, resent: bool = False) -> None:
        self._under_way.discard(batch)
        self._watched.discard(batch)
        if self._loop.is_closed():
            return  # nobody can be told any more
        for call, outcome in zip(batch.calls or (), outcomes, strict=True):
            self._watched.discard(call)
            if call.future.done():
                continue
            if isinstance(outcome, DibsError):
                call.future.set_exception(outcome)
            else:
                call.future.set_result(TimedReply(outcome, batch.sent, resent))
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)
        self._plan()

    def _retry(self, batch: CallBatch) -> None:
        """Send it again, by a task of its own: as it is if it is innocent, else in halves."""
        self._under_way.add(batch)
        context = None if batch.context is None else batch.context.copy()  # we may be in it
        task = asyncio.Task(
            self._send_again(batch), loop=self._loop, eager_start=True, context=context
        )
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # loops get closed
        if not task.done():
            batch.give_up = task.cancel
            self._watch(batch)

    async def _send_again(self, batch: CallBatch) -> None:
        calls = batch.calls or ()
        batch.until = self._loop.time() + self._limit(calls)
        apply = partial(apply_over, self._connection)
        again = apply_in_halves if batch.is_innocent else halves
        outcomes: Sequence[Outcome]
        try:
            while True:
                batch.is_innocent = False
                outcomes = await again(apply, batch.commands)
                failed = all(isinstance(each, BackendUnavailable) for each in outcomes)
                if not (failed and batch.is_innocent) or all(call.future.done() for call in calls):
                    break
                again = apply_in_halves
        except Exception as error:  # noqa: BLE001  # whatever it was, every caller is told
            outcomes = [as_dibs(error)] * len(batch.commands)
        except asyncio.CancelledError:
            shut = BackendUnavailable("the event loop shut down while the store was being asked")
            self._land(batch, [shut] * len(batch.commands))
            raise
        self._land(batch, outcomes, resent=True)

    # -- time limits --------------------------------------------------------------------------------

    def _watch(self, item: Call | CallBatch) -> None:
        """See that it ends in time, by one timer for all: most end long before it is due."""
        self._watched.add(item)
        if item.until < self._look_at:
            if self._timer is not None:
                self._timer.cancel()
            self._look_again_at(item.until)

    def _look_again_at(self, when: float) -> None:
        self._look_at = when
        self._timer = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        now, self._timer, self._look_at = self._loop.time(), None, inf
        for item in [item for item in self._watched if item.until <= now]:
            if item in self._watched:  # else giving up another one has ended it
                self._watched.discard(item)
                item.too_late()
        if self._watched:
            soonest = min(item.until for item in self._watched)
            self._look_again_at(max(soonest, now + MIN_CHECK_INTERVAL))

    def _give_up(self, batch: CallBatch) -> None:
        """Give up a late batch. Others that go down with its connection are sent again, in their own time."""
        for batcher in self._sharing:
            for other in batcher._under_way - {batch}:
                other.is_innocent = True
        batch.outcome = BackendUnavailable("the store did not answer in time")
        self._under_way.discard(batch)
        batch.give_up()
        self._land(batch, [batch.outcome] * len(batch.commands))


async def apply_over(connection: AsyncConnection, commands: Sequence[Command]) -> Sequence[Reply]:
    """Submit a batch, and wait for its replies. A caller that is cancelled gives it up."""
    found: asyncio.Future[Sequence[Reply] | DibsError] = asyncio.get_running_loop().create_future()

    def done(result: Sequence[Reply] | DibsError) -> None:
        if not found.done():
            found.set_result(result)

    give_up = connection.submit(commands, done)
    try:
        result = await found
    except asyncio.CancelledError:
        give_up()
        raise
    if isinstance(result, DibsError):
        raise result
    return result


def _is_revoke(batch: CallBatch) -> bool:
    return type(batch.commands[0]) is Revoke
