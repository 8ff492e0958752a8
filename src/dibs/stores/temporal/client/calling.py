"""Brings commands to the brokers of their keys: one call for a key at a time, and more gather behind it.

Temporal lets ten updates be under way in one workflow, and takes some work for each: what gathers while
one is under way leaves together.
"""

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from typing import TYPE_CHECKING

from dibs.clock import Clock
from dibs.errors import BackendUnavailable, DibsError, Forbidden
from dibs.model import Command, Failed, Reply
from dibs.stores.port import MAX_BATCH, time_limit
from dibs.stores.temporal.client.attendance import Attendance
from dibs.stores.temporal.client.connecting import Connection
from dibs.stores.temporal.client.settings import TIMEOUT
from dibs.stores.temporal.client.trouble import failed, is_no_namespace
from dibs.stores.temporal.client.updating import Update

if TYPE_CHECKING:
    from temporalio.service import RPCError

ABREAST = 16
"""So many keys are called at a time."""

MAX_PAUSE = 1.0
"""The longest wait before a call that the server had no room for is made again, in seconds."""


class _Errand:
    """Commands about one key that came together, and the future that waits for their replies."""

    __slots__ = ("commands", "future")

    def __init__(self, commands: Sequence[Command]) -> None:
        self.commands = commands
        self.future: asyncio.Future[Sequence[Reply]] = asyncio.get_running_loop().create_future()


class Caller:
    """One event loop's calls."""

    def __init__(self, connection: Connection, clock: Clock | None) -> None:
        self._connection = connection
        self._clock = clock
        """Stands in for the brokers', in tests."""
        self._gathering: dict[bytes, list[_Errand]] = {}
        self._room = asyncio.Semaphore(ABREAST)
        self._tasks: set[asyncio.Task[None]] = set()
        self.attendance = Attendance(connection)

    async def apply(self, commands: Sequence[Command]) -> list[Reply]:
        """A reply for each. Raises only what has befallen all of them."""
        parts: dict[bytes, list[int]] = {}
        for number, command in enumerate(commands):
            parts.setdefault(command.key, []).append(number)
        told = await asyncio.gather(
            *(self._send(key, [commands[n] for n in part]) for key, part in parts.items()),
            return_exceptions=True,
        )
        failures = [each for each in told if isinstance(each, BaseException)]
        for failure in failures:
            if len(failures) == len(told) or not isinstance(failure, DibsError):
                raise failure
        replies: list[Reply | None] = [None] * len(commands)
        for part, each in zip(parts.values(), told, strict=True):
            found = [_of_one(each)] * len(part) if isinstance(each, BaseException) else each
            for number, reply in zip(part, found, strict=True):
                replies[number] = reply
        return [reply for reply in replies if reply is not None]

    # -- one key ------------------------------------------------------------------------------------

    def _send(self, key: bytes, commands: Sequence[Command]) -> asyncio.Future[Sequence[Reply]]:
        errand = _Errand(commands)
        waiting = self._gathering.get(key)
        if waiting is not None:
            waiting.append(errand)
        else:
            self._gathering[key] = [errand]
            task = asyncio.get_running_loop().create_task(self._serve(key))
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # loops get closed
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return errand.future

    async def _serve(self, key: bytes) -> None:
        """Call the key's broker until nothing gathers any more."""
        try:
            while self._gathering[key]:
                async with self._room:
                    await self._call_for(key, self._take(key))
        finally:
            for errand in self._gathering.pop(key):
                errand.future.cancel()

    def _take(self, key: bytes) -> list[_Errand]:
        """What has gathered and is still wanted, no more than a batch of it."""
        waiting = [each for each in self._gathering[key] if not each.future.done()]
        taken, count = 0, 0
        while taken < len(waiting) and (not taken or count < MAX_BATCH):
            count += len(waiting[taken].commands)
            taken += 1
        self._gathering[key] = waiting[taken:]
        return waiting[:taken]

    async def _call_for(self, key: bytes, errands: Sequence[_Errand]) -> None:
        commands = [command for errand in errands for command in errand.commands]
        try:
            replies: list[Reply] = []
            for parcel in parcels(commands):
                replies += await self._call(key, parcel)
        except BaseException as error:
            for errand in errands:
                if isinstance(error, asyncio.CancelledError):
                    errand.future.cancel()
                elif not errand.future.done():
                    errand.future.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        done = 0
        for errand in errands:
            if not errand.future.done():
                errand.future.set_result(replies[done : done + len(errand.commands)])
            done += len(errand.commands)

    async def _call(self, key: bytes, commands: Sequence[Command]) -> Sequence[Reply]:
        """Call once, and again where the server had no room or the broker's run was about to end."""
        if is_too_large(commands):
            return [TOO_LARGE] * len(commands)
        timeout = _timeout(commands)
        until = time.monotonic() + timeout
        call = Update(self._connection, key, commands, self._clock)
        if call.starts:  # or it would be done for nobody, once a worker comes
            await self.attendance.require(key, timeout / 2)
        pause = 0.02
        while True:
            told = await self._try(call, until, timeout)
            if not isinstance(told, DibsError):
                return told
            if time.monotonic() + pause > until:
                raise told
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 -- no secret
            pause = min(2 * pause, MAX_PAUSE)

    async def _try(self, call: Update, until: float, timeout: float) -> Sequence[Reply] | DibsError:
        """The replies, or what is worth another try. Raises everything else."""
        from temporalio.client import (
            WorkflowUpdateFailedError,
            WorkflowUpdateRPCTimeoutOrCancelledError,
        )
        from temporalio.service import RPCError

        try:
            return await self.attendance.watched(call, until, timeout)
        except RPCError as error:
            failure, is_passing = self._connection.explain(error), _is_passing(error)
            failure.__cause__ = error
        except WorkflowUpdateFailedError as error:
            failure = failed(error.cause, self._connection.target)
            failure.__cause__ = error
            is_passing = isinstance(failure, BackendUnavailable)
            call.renumber()
        except WorkflowUpdateRPCTimeoutOrCancelledError as error:
            raise await self.attendance.silence(call.key, timeout) from error
        if is_passing:
            return failure
        raise failure


def _timeout(commands: Sequence[Command]) -> float:
    """How long to try: whoever gives us up hears why before."""
    return 0.9 * min(time_limit(command, TIMEOUT) for command in commands)


def _is_passing(error: "RPCError") -> bool:
    """Worth another try at once: too many calls, or a run that has just ended."""
    from temporalio.service import RPCStatusCode as Code

    if error.status is Code.NOT_FOUND:
        return not is_no_namespace(error)
    closing = error.status is Code.UNAVAILABLE and "closing" in error.message
    ending = error.status is Code.FAILED_PRECONDITION and "workflow task" in error.message
    return closing or ending or error.status in (Code.RESOURCE_EXHAUSTED, Code.ABORTED)


def _of_one(error: BaseException) -> Reply:
    """What the commands of one key are told, while others fare better."""
    return Failed("forbidden" if isinstance(error, Forbidden) else "away", str(error))


LARGEST = 16_384
"""No command's texts may have more bytes together: the broker has to carry them all over to its next run."""

PARCEL = 262_144
"""No call's commands have more."""

TOO_LARGE = Failed("invalid", f"owner, note and reason may have {LARGEST} bytes here, and no more")


def is_too_large(commands: Sequence[Command]) -> bool:
    """One of them is, which then is alone."""
    return any(_size(command) > LARGEST for command in commands)


def _size(command: Command) -> int:
    return sum(len(part.encode()) for part in astuple(command) if isinstance(part, str))


def parcels(commands: Sequence[Command]) -> Iterator[Sequence[Command]]:
    """In their order, none larger than it may be; what is too large by itself travels alone, not far.

    Temporal takes an update of more than 2 MB, and no worker can answer it: it would stay in the way of its
    key for ever.
    """
    start = size = 0
    for number, command in enumerate(commands):
        its = _size(command)
        if number > start and (size + its > PARCEL or its > LARGEST):
            yield commands[start:number]
            start, size = number, 0
        size += its
        if its > LARGEST:
            yield commands[start : number + 1]
            start, size = number + 1, 0
    if start < len(commands):
        yield commands[start:]
