"""Group commit: while a batch is on its way, the commands of all other tasks gather and leave together.

A lone task pays nothing for it: as long as nobody else calls in the same turn of the event loop, its
command is applied in place where the store can do that, or sent at once. Once a turn has brought more
than one, commands wait for the end of the turn, behind the tasks that the last batch woke.

To a store that launches batches (see `Backend.launch`), two may be under way: while it works at the one,
the tasks that the other has woken go on.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextvars import copy_context

from dibs.clock import Clock
from dibs.errors import BackendUnavailable, DibsError
from dibs.model import Acquire, Command, Revoke
from dibs.runtime.flight import Call, Flight, Watch, as_dibs
from dibs.runtime.halving import Outcome, apply_in_halves
from dibs.runtime.port import Answer
from dibs.stores.port import MAX_BATCH, Backend, Launch

ALONE = 0.002
"""So long a task goes on in place, in seconds, before it lets the loop turn to see who else is there."""

IN_PLACE = 64
"""No larger batch is applied on the loop's own thread."""

FLIGHTS = 2
"""So many launched batches are under way at a time."""

SPLIT = 16
"""Batches of at least this many commands are split in two, so that client and store work in parallel."""

LEAST = 1.0
"""Seconds that every batch has for its round trip, however short the ttls of its commands are."""


class Batcher:
    """One event loop's commands to one backend: up to `most` in a batch, `flights` batches at a time.

    Each call has a time limit of its own. A batch is given up only once the longest of them is over.
    """

    def __init__(
        self,
        backend: Backend,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        call_timeout: float,
        *,
        most: int = MAX_BATCH,
        flights: int = FLIGHTS,
    ) -> None:
        self._backend = backend
        self._loop = loop
        self._clock = clock
        self._call_timeout = call_timeout
        self._gathering: deque[Call] = deque()
        self._has_revoke = False
        self._crowded = False
        self._planned = False
        self._closed = False
        self._launch: Launch | None = getattr(backend, "launch", None)
        self._in_context: bool = getattr(backend, "in_context", False)
        self._most = most
        self._flights = flights if self._launch is not None else 1
        self.until = 0.0
        self._flying = 0
        self._aloft = 0
        """How many commands are under way."""
        self._watch = Watch(loop)
        self._tasks: set[asyncio.Task[None]] = set()
        self._landed: asyncio.Future[None] | None = None
        """Whoever drains waits for it."""
        self._in_turn_since: float | None = None

    async def call(self, command: Command, patience: float | None = None) -> Answer:
        """The answer to one command. A cancelled caller leaves; what is on its way goes on.

        Raises `BackendUnavailable` after `patience` seconds, or after as long as a call may take.
        """
        sent = self._clock.now()
        alone = not (self._gathering or self._crowded or self._flying or self._closed)
        if (
            alone
            and self._launch is None
            and sent - (self._in_turn_since or self._turn_begins(sent)) < ALONE
        ):
            replies = self._backend.apply_now((command,))
            if replies is not None:
                return Answer(replies[0], sent)
        call = self._new_call(command, patience)
        if not (alone and self._launch is not None and self._launched([call], (command,), sent)):
            self._gather(call)
        return await call.future

    def gather(self, command: Command, patience: float | None) -> Call:
        """Have a command leave at the end of this turn, with all others that gather in it."""
        call = self._new_call(command, patience)
        self._gather(call)
        return call

    def _new_call(self, command: Command, patience: float | None) -> Call:
        if self._closed:
            raise BackendUnavailable("the client is closed")
        limit = self._call_timeout
        ttl = getattr(command, "ttl", None)
        if ttl is not None and ttl / 6 < limit:
            limit = ttl / 6  # a renewal must leave time for another
        waits = limit if patience is None or patience > limit else patience
        call = Call(command, self._loop.create_future(), limit, waits)
        self._watch.add(call)
        return call

    def _gather(self, call: Call) -> None:
        if self._in_context:
            call.context = copy_context()
        self._gathering.append(call)
        if type(call.command) is Revoke:
            self._has_revoke = True
        if not self._planned and self._flying < self._flights:
            self._planned = True
            self._loop.call_soon(self._leave)

    def _turn_begins(self, now: float) -> float:
        """The event loop has been in this turn since now at the latest, as far as we know."""
        self._in_turn_since = now
        self._loop.call_soon(self._turn_over)
        return now

    def _turn_over(self) -> None:
        self._in_turn_since = None

    async def close(self) -> None:
        """Refuse further commands, and wait for the others."""
        self._closed = True
        await self.drain()

    async def drain(self) -> None:
        """Wait for what is on its way, and for what has gathered to go there."""
        while self._flying or self._gathering:
            if not self._flying:
                await asyncio.sleep(0)  # it leaves at the end of this turn
                continue
            if self._landed is None or self._landed.done():
                self._landed = self._loop.create_future()
            await asyncio.wait((self._landed,))

    def _leave(self) -> None:
        """The end of a turn: send what has gathered."""
        self._planned = False
        if self._flying and not self._may_follow():
            return None
        sent = self._clock.now()
        batch = self._take()
        if not self._flying or len(batch) > 1:
            self._crowded = len(batch) > 1
        if not batch:
            return None
        if self._launch is None:
            return self._leave_alone(batch, sent)
        halves = len(batch) >= SPLIT and not self._flying and self._flights > 1
        middle = len(batch) // 2 if halves else len(batch)
        for part in (batch[:middle], batch[middle:]):
            commands = [call.command for call in part]
            if part and not self._launched(part, commands, sent):
                self._fly_by_itself(part, commands, sent)

    def _may_follow(self) -> bool:
        """Enough has gathered to be worth a flight beside the one under way."""
        return self._flying < self._flights and 2 * len(self._gathering) >= self._aloft

    def _launched(self, batch: list[Call], commands: Sequence[Command], sent: float) -> bool:
        """Send a batch without a task of its own, if the store is connected."""
        assert self._launch is not None
        return Flight(self, batch, commands, sent).begin(self._launch)

    def _leave_alone(self, batch: list[Call], sent: float) -> None:
        """In place if that can be, else as the only flight."""
        commands = [call.command for call in batch]
        try:
            replies = self._backend.apply_now(commands) if len(batch) <= IN_PLACE else None
        except Exception as error:  # noqa: BLE001  # whatever it was, every caller must be told
            return self._land(batch, [as_dibs(error)] * len(batch), sent)
        if replies is not None:
            return self._land(batch, replies, sent)
        return self._fly_by_itself(batch, commands, sent)

    def _fly_by_itself(
        self, batch: list[Call], commands: Sequence[Command], sent: float, *, resent: bool = False
    ) -> None:
        """Send a batch by a task of its own, which tries again in halves if it fails."""
        self._flying += 1
        self._aloft += len(batch)
        flight = self._fly(batch, commands, sent, resent=resent)
        # Started at once: it leaves a turn earlier, and a loop that is closed now finds it begun.
        context = batch[0].context
        if context is not None:
            context = context.copy()  # we may be in it; an empty one is false
        task = asyncio.Task(flight, loop=self._loop, eager_start=True, context=context)
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # loops get closed
        if not task.done():
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _take(self) -> list[Call]:
        """At most a batch. Where not all have room, renewals and releases leave before acquires.

        One that comes after an acquire of its own key stays behind that. A Revoke leaves by itself: a batch
        may be sent again, and would revoke whoever came after.
        """
        waiting: list[Call] = []
        for call in self._gathering:
            if call.future.done():
                self._watch.discard(call)
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

    async def _fly(
        self, batch: list[Call], commands: Sequence[Command], sent: float, *, resent: bool
    ) -> None:
        outcomes: Sequence[Outcome] = ()
        try:
            async with asyncio.timeout_at(self._loop.time() + self._limit(batch)):
                outcomes, again = await apply_in_halves(self._backend.apply, commands)
                resent = resent or again
        except BaseException as error:
            outcomes = [as_dibs(error)] * len(batch)
            if not isinstance(error, Exception):
                raise
        finally:
            self._down(batch)
            self._land(batch, outcomes, sent, resent=resent)

    def _limit(self, batch: Sequence[Call]) -> float:
        """How long a round trip may take, in seconds: as long as the longest of its calls."""
        return max(min(LEAST, self._call_timeout), *(call.limit for call in batch))

    def _land(
        self,
        batch: Sequence[Call],
        outcomes: Sequence[Outcome],
        sent: float,
        *,
        resent: bool = False,
    ) -> None:
        if self._loop.is_closed():
            return  # nobody can be told any more
        for call, outcome in zip(batch, outcomes, strict=True):
            self._watch.discard(call)
            if call.future.done():
                continue
            if isinstance(outcome, DibsError):
                call.future.set_exception(outcome)
            else:
                call.future.set_result(Answer(outcome, sent, resent))
        if self._gathering and not self._planned:
            self._planned = True
            # not in that of whoever has opened the connection, who called us
            self._loop.call_soon(self._leave, context=self._gathering[0].context)

    def _down(self, batch: Sequence[Call]) -> None:
        """A batch is not under way any more."""
        self._flying -= 1
        self._aloft -= len(batch)
        if self._landed is not None and not self._landed.done() and not self._loop.is_closed():
            self._landed.set_result(None)

    # -- what flights tell (see `Tower`) ------------------------------------------------------------

    def departs(self, flight: Flight) -> None:
        until = self._loop.time() + self._limit(flight.batch)
        self.until = max(self.until, until) if self._flying else until
        self._flying += 1
        self._aloft += len(flight.batch)

    def stays(self, flight: Flight) -> None:
        self._flying -= 1
        self._aloft -= len(flight.batch)

    def lands(self, flight: Flight, outcomes: Sequence[Outcome]) -> None:
        self._watch.discard(flight)
        self._down(flight.batch)
        self._land(flight.batch, outcomes, flight.sent)

    def diverts(self, flight: Flight, *, resent: bool) -> None:
        self._watch.discard(flight)
        self._down(flight.batch)
        self._fly_by_itself(flight.batch, flight.commands, flight.sent, resent=resent)

    def watches(self, flight: Flight) -> None:
        self._watch.add(flight)
