"""One attempt of an activity that needs a lock: wait for it, then run the activity under its lease."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any

from temporalio import activity
from temporalio.activity import Info
from temporalio.exceptions import CancelledError as ActivityCancelled
from temporalio.worker import ExecuteActivityInput

import dibs
from dibs.core.names import shown
from dibs.errors import DibsError, LeaseLost
from dibs.temporal.activity import errors
from dibs.temporal.activity.decorator import LockBackend, LockNeed
from dibs.temporal.activity.lock import (
    ActivityLock,
    LockOfOtherProcess,
    as_current,
    loss_of,
    stop_renewing,
)
from dibs.temporal.activity.semaphore import (
    ActivitySemaphore,
    LockStores,
    QueuePosition,
    owner_of,
    semaphore_for,
    times_of,
)
from dibs.temporal.sdk import cancel_here, this_context

log: logging.Logger = logging.getLogger("dibs")

BEAT = 5.0
"""Seconds between the heartbeats of a wait, even without a heartbeat timeout: so it can be cancelled."""

LOOK = 0.2
"""Seconds between checks whether a waiting plain function is cancelled: Temporal only cancels tasks."""

AT_LEAST = 0.05
"""Seconds that each attempt waits, so that it gets a position in the queue."""

TOO_LATE = 3 * errors.AWAY.total_seconds()
"""Seconds that the next attempt may need to begin."""

type Next = Callable[[ExecuteActivityInput], Awaitable[Any]]


class HeartbeatClock:
    """The time of the activity's last heartbeat."""

    def __init__(self) -> None:
        self.last: float = 0.0
        self._loop = asyncio.get_running_loop()

    def beat(self) -> None:
        """Note a heartbeat. Any thread may call it."""
        self.last = self._loop.time()


@dataclass(frozen=True, slots=True)
class LockTerms:
    """The need of an activity, the store of its lock, and how long an attempt waits in its slot."""

    need: LockNeed
    application: str
    stores: LockStores
    backend: LockBackend
    wait_in_slot: float | None
    """Seconds; None: no limit."""


class LockAttempt:
    """One attempt, from its beginning in a worker's slot.

    `own`: the server's info. `info`: the same without our heartbeat detail.
    """

    def __init__(self, terms: LockTerms, own: Info, info: Info, heartbeats: HeartbeatClock) -> None:
        self._terms = terms
        self._need = terms.need
        self._position = QueuePosition.of(
            own, terms.backend if isinstance(terms.backend, str) else ""
        )
        self._info = info
        self._heartbeats = heartbeats
        self._times = times_of(info)
        self._begun = asyncio.get_running_loop().time()
        self._is_sync = False
        self._interrupted = False

    async def run(self, asked: ExecuteActivityInput, call: Next) -> Any:
        """Run the activity once it has the lock. Raises what it raises, or why there is no lock."""
        self._is_sync = asked.executor is not None
        terms = self._terms
        try:
            lock_name = self._need.name_for(asked.fn, asked.args)
            store = terms.stores.client(terms.backend)
            semaphore = semaphore_for(self._need, lock_name, self._info, terms.application, store)
            semaphore.position = self._position
            lease = (await self._lease(semaphore)).adopt()
        except LeaseLost as error:
            raise errors.lost(error) from error
        except (DibsError, TypeError, ValueError) as error:
            raise errors.not_acquired(error) from error
        lock = ActivityLock(
            lease,
            activity=self._need.activity,
            lock_name=lock_name,
            name=_name_shown(semaphore),
            owner=owner_of(self._info, terms.application),
            waited=asyncio.get_running_loop().time() - self._begun,
        )
        if self._is_sync and not isinstance(asked.executor, ThreadPoolExecutor):
            asked = replace(asked, fn=partial(_call_in_process, asked.fn, LockOfOtherProcess(lock)))
        return await self._run_under(lock, lease, lambda: call(asked))

    # -- waiting ------------------------------------------------------------------------------------

    async def _lease(self, semaphore: ActivitySemaphore) -> dibs.Lease:
        """Wait for the lock. Raises `ApplicationError` if the next attempt is to continue the wait."""
        longest = self._longest_wait()
        acquiring = asyncio.create_task(_acquired(semaphore, longest))
        shutdown = asyncio.create_task(activity.wait_for_worker_shutdown())
        try:
            await self._until_done(acquiring, shutdown, self._bound(longest))
            if not acquiring.done():
                semaphore.keep_position()
                acquiring.cancel()
                await asyncio.wait({acquiring})
        except BaseException:
            acquiring.cancel()
            await asyncio.wait({acquiring})
            if not acquiring.cancelled() and acquiring.exception() is None:
                await acquiring.result().release()
            raise
        finally:
            shutdown.cancel()
        waited = asyncio.get_running_loop().time() - self._begun
        outage = semaphore.outage(waited) if acquiring.cancelled() else ""
        self._terms.stores.saw(self._terms.backend, outage)
        if not acquiring.cancelled():
            return acquiring.result()
        if not self._info.is_local:
            left = self._position.left_to(self._info.attempt + 1)
            activity.heartbeat(*self._info.heartbeat_details, left)
        raise errors.waiting(_name_shown(semaphore), self._waited(), outage)

    async def _until_done(
        self, acquiring: asyncio.Task[dibs.Lease], shutdown: asyncio.Task[None], bound: float
    ) -> None:
        """Wait for an outcome, or until this attempt has to end without one."""
        loop = asyncio.get_running_loop()
        ends = self._begun + bound
        beat_at = loop.time() + self._beat_every()
        while not (acquiring.done() or shutdown.done()):
            now = loop.time()
            if now >= ends:
                return
            if now >= beat_at:
                beat_at = now + self._beat_every()
                if not self._info.is_local:  # keep what an earlier attempt said about its progress
                    activity.heartbeat(*self._info.heartbeat_details)
            pause = min(beat_at, ends) - now
            await asyncio.wait(
                {acquiring, shutdown},
                timeout=min(pause, LOOK) if self._is_sync else pause,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if activity.is_cancelled():
                raise ActivityCancelled("cancelled while waiting for its lock")

    def _longest_wait(self) -> float | None:
        """Seconds until the wait fails for good. None: no limit."""
        known = [] if self._need.wait is None else [max(self._need.wait - self._waited(), AT_LEAST)]
        known += [] if self._times.to_wait is None else [self._times.to_wait]
        if self._is_last and self._times.to_wait_now is not None:
            known.append(self._times.to_wait_now)
        return min(known, default=None)

    def _bound(self, longest: float | None) -> float:
        """Seconds after which this attempt ends if it has only waited. Infinity: when the wait ends.

        Each such end counts as an attempt, so it comes as late as possible if attempts are limited. There is
        none if the next attempt would begin too late.
        """
        limit, now = inf if longest is None else longest, self._times.to_wait_now
        bound = inf if self._is_last or now is None else now
        in_slot = self._terms.wait_in_slot
        may_end_early = not (self._max_attempts or self._info.is_local)
        if in_slot is not None and may_end_early and in_slot + TOO_LATE < limit:
            bound = min(bound, in_slot)
        return max(bound, AT_LEAST) if bound < limit else inf

    @property
    def _max_attempts(self) -> int:
        """Limit of the retry policy. 0: no limit."""
        return self._info.retry_policy.maximum_attempts if self._info.retry_policy else 0

    @property
    def _is_last(self) -> bool:
        return 0 < self._max_attempts <= self._info.attempt

    def _waited(self) -> float:
        """Seconds since the first of the attempts that have only waited started."""
        before = self._info.started_time.timestamp() - self._position.since
        return max(before, 0.0) + asyncio.get_running_loop().time() - self._begun

    def _beat_every(self) -> float:
        heartbeat = self._times.heartbeat
        return BEAT if heartbeat is None else min(BEAT, heartbeat / 3)

    # -- under the lease ----------------------------------------------------------------------------

    async def _run_under(
        self, lock: ActivityLock, lease: dibs.Lease, body: Callable[[], Awaitable[Any]]
    ) -> Any:
        """Run the body, cancel it if the lock is lost, and release the lock.

        Raises what the body raises, and `ApplicationError` of type `LeaseLost` if the lock was lost.
        """
        self._heartbeats.beat()
        watcher: asyncio.Task[None] | None = None
        alarm = asyncio.timeout(None)
        try:
            async with alarm:
                watcher = asyncio.create_task(self._watch(lock, lease, alarm))
                with as_current(lock):
                    result = await body()
        except (asyncio.CancelledError, ActivityCancelled, TimeoutError) as error:
            if self._interrupted and (self._is_sync or alarm.expired()):
                raise errors.lost(loss_of(lock)) from error
            if self._is_sync and isinstance(error, asyncio.CancelledError):
                stop_renewing(lock)  # its thread may go on, so the slot is not given up
            raise
        except Exception as error:
            if lock.lost:
                error.add_note(str(loss_of(lock)))
            raise
        finally:
            if watcher is not None:
                watcher.cancel()
            if lock.lost:
                log.warning("%s was lost while %s ran", lock.key, lock.activity)
            await lease.release()
        if lock.lost:
            raise errors.lost(loss_of(lock))
        return result

    async def _watch(self, lock: ActivityLock, lease: dibs.Lease, alarm: asyncio.Timeout) -> None:
        """Interrupt the body when the lease is lost, or the activity has missed its heartbeat timeout."""
        heartbeat = None if self._info.is_local else self._times.heartbeat
        context = this_context()
        while not lease.lost:
            left = None
            if heartbeat is not None:
                left = self._heartbeats.last + heartbeat - asyncio.get_running_loop().time()
                if left <= 0:
                    stop_renewing(lock)
                    break
            if not await lease.wait_lost(left) and left is None:
                return  # it was given up
        self._interrupted = True
        cancel_here(context)
        if not self._is_sync:
            with suppress(RuntimeError):  # the body has just ended
                alarm.reschedule(0.0)


def _name_shown(semaphore: ActivitySemaphore) -> str:
    """The semaphore's name, for people."""
    name = semaphore.name
    return shown(name.encode() if isinstance(name, str) else name)


async def _acquired(semaphore: ActivitySemaphore, wait: float | None) -> dibs.Lease:
    return await semaphore.acquire(wait=wait)


def _call_in_process(function: Callable[..., Any], lock: ActivityLock, *args: Any) -> Any:
    """Run the function in the pool's process."""
    with as_current(lock):
        return function(*args)
