"""Group commit: while a batch is on its way, the commands of all other tasks gather and leave together.

A lone task pays nothing for it: as long as nobody else calls in the same turn of the event loop, its
command is applied in place where the store can do that, or sent at once. Once a turn has brought more
than one, commands wait for the end of the turn, behind the tasks that the last batch woke.
"""

import asyncio
from collections import deque
from collections.abc import Sequence

from leasehold.backends.port import MAX_BATCH, Backend
from leasehold.clock import Clock
from leasehold.errors import BackendUnavailable, LeaseholdError
from leasehold.model import Acquire, Command
from leasehold.runtime.halving import Outcome, apply_in_halves
from leasehold.runtime.port import Answer

ALONE = 0.002
"""So long a task goes on in place, in seconds, before it lets the loop turn to see who else is there."""

IN_PLACE = 64
"""No larger batch is applied on the loop's own thread."""


class _Call:
    __slots__ = ("command", "future")

    def __init__(self, command: Command, future: asyncio.Future[Answer]) -> None:
        self.command = command
        self.future = future


class Batcher:
    """One event loop's commands to one backend."""

    def __init__(
        self, backend: Backend, loop: asyncio.AbstractEventLoop, clock: Clock, call_timeout: float
    ) -> None:
        self._backend = backend
        self._loop = loop
        self._clock = clock
        self._call_timeout = call_timeout
        self._gathering: deque[_Call] = deque()
        self._crowded = False
        self._planned = False
        self._flying = False
        self._flight: asyncio.Task[None] | None = None
        self._in_turn_since: float | None = None

    async def call(self, command: Command) -> Answer:
        """The answer to one command. A cancelled caller leaves; what is on its way goes on."""
        sent = self._clock.now()
        alone = not (self._gathering or self._crowded or self._flying)
        if alone and sent - (self._in_turn_since or self._turn_begins(sent)) < ALONE:
            replies = self._backend.apply_now((command,))
            if replies is not None:
                return Answer(replies[0], sent)
        call = _Call(command, self._loop.create_future())
        self._gathering.append(call)
        if not (self._planned or self._flying):
            self._planned = True
            self._loop.call_soon(self._leave)
        return await call.future

    def _turn_begins(self, now: float) -> float:
        """The event loop has been in this turn since now at the latest, as far as we know."""
        self._in_turn_since = now
        self._loop.call_soon(self._turn_over)
        return now

    def _turn_over(self) -> None:
        self._in_turn_since = None

    async def drain(self) -> None:
        """Wait for what is on its way."""
        while self._flight is not None:
            await asyncio.wait((self._flight,))

    def _leave(self) -> None:
        """The end of a turn: send what has gathered."""
        self._planned = False
        sent = self._clock.now()
        batch = self._take()
        self._crowded = len(batch) > 1
        if not batch:
            return None
        commands = [call.command for call in batch]
        try:
            replies = self._backend.apply_now(commands) if len(batch) <= IN_PLACE else None
        except Exception as error:  # noqa: BLE001  # whatever it was, every caller must be told
            return self._land(batch, [_as_leasehold(error)] * len(batch), sent)
        if replies is not None:
            return self._land(batch, replies, sent)
        self._flying = True
        flight = self._fly(batch, commands, sent)
        # Started at once: it leaves a turn earlier, and a loop that is closed now finds it begun.
        task = asyncio.Task(flight, loop=self._loop, eager_start=True)
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # loops get closed
        self._flight = task if self._flying else None

    def _take(self) -> list[_Call]:
        """At most a batch; renewals and releases before acquires where not all have room."""
        waiting = [call for call in self._gathering if not call.future.done()]
        self._gathering.clear()
        if len(waiting) > MAX_BATCH:
            waiting.sort(key=lambda call: isinstance(call.command, Acquire))
            self._gathering.extend(waiting[MAX_BATCH:])
        return waiting[:MAX_BATCH]

    async def _fly(self, batch: list[_Call], commands: Sequence[Command], sent: float) -> None:
        outcomes: Sequence[Outcome] = ()
        resent = False
        try:
            async with asyncio.timeout(self._patience(commands)):
                outcomes, resent = await apply_in_halves(self._backend, commands)
        except BaseException as error:
            outcomes = [_as_leasehold(error)] * len(batch)
            if not isinstance(error, Exception):
                raise
        finally:
            self._flying, self._flight = False, None
            self._land(batch, outcomes, sent, resent=resent)

    def _patience(self, commands: Sequence[Command]) -> float:
        """How long one attempt may take: a renewal must leave time for another."""
        shortest = min(
            (c.ttl for c in commands if hasattr(c, "ttl")), default=6 * self._call_timeout
        )
        return min(shortest / 6, self._call_timeout)

    def _land(
        self,
        batch: Sequence[_Call],
        outcomes: Sequence[Outcome],
        sent: float,
        *,
        resent: bool = False,
    ) -> None:
        if self._loop.is_closed():
            return  # nobody can be told any more
        for call, outcome in zip(batch, outcomes, strict=True):
            if call.future.done():
                continue
            if isinstance(outcome, LeaseholdError):
                call.future.set_exception(outcome)
            else:
                call.future.set_result(Answer(outcome, sent, resent))
        if self._gathering and not self._planned:
            self._planned = True
            self._loop.call_soon(self._leave)


def _as_leasehold(error: BaseException) -> LeaseholdError:
    """What a caller is told of a failed flight."""
    if isinstance(error, LeaseholdError):
        return error
    if isinstance(error, TimeoutError):
        return BackendUnavailable("the store did not answer in time")
    if isinstance(error, asyncio.CancelledError):
        return BackendUnavailable("the event loop shut down while the store was being asked")
    failure = BackendUnavailable(f"the store failed: {error!r}")
    failure.__cause__ = error
    return failure
