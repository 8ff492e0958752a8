"""One attempt of an activity that needs a lock: wait for it, then run with it."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import inf
from typing import Any

from temporalio import activity
from temporalio.activity import Info
from temporalio.exceptions import CancelledError as ActivityCancelled
from temporalio.worker import ExecuteActivityInput

import dibs
from dibs.config import Duration, Unset
from dibs.errors import DibsError, LeaseLost
from dibs.temporal.activity import errors as failures
from dibs.temporal.activity.decorator import LockBackend, Need
from dibs.temporal.activity.lock import ActivityLock, Holding, holding
from dibs.temporal.activity.running import Body, Held, Pulse
from dibs.temporal.activity.semaphore import (
    Position,
    Slots,
    Stores,
    name_shown,
    owner_of,
    slots_for,
    times_of,
)
from dibs.temporal.sdk import this_context

BEAT = 5.0
"""A wait is heard of so often, in seconds, also without a heartbeat timeout: so it can be cancelled."""

LOOK = 0.2
"""A plain function isn't told that it is cancelled: who waits for its lock looks so often, in seconds."""

AT_LEAST = 0.05
"""Seconds that each attempt waits, so that it gets a position in the queue."""

TOO_LATE = 3 * failures.AWAY.total_seconds()
"""Seconds that the next attempt may need to begin."""

type Next = Callable[[ExecuteActivityInput], Awaitable[Any]]


class Station:
    """What the attempts of a worker share."""

    def __init__(self, backend: LockBackend, wait_in_slot: float | None) -> None:
        self.backend = backend
        self.wait_in_slot = wait_in_slot
        self.stores = Stores()


class Attempt:
    """One attempt, from its beginning in a worker's slot.

    `own` is what the server told of it, `info` the same without what attempts hand on to one another.
    """

    def __init__(
        self,
        station: Station,
        need: Need,
        application: str,
        own: Info,
        info: Info,
        pulse: Pulse,
    ) -> None:
        self._station = station
        self._need = need
        self._application = application
        self._backend = station.backend if need.backend is None else need.backend
        self._position = Position.of(own, self._backend if isinstance(self._backend, str) else "")
        self._info = info
        self._pulse = pulse
        self._times = times_of(info)
        self._begun = asyncio.get_running_loop().time()
        self._is_sync = False

    async def run(self, asked: ExecuteActivityInput, call: Next) -> Any:
        """Run the activity once it has the lock. Raises what it raises, or why there is no lock."""
        self._is_sync = asked.executor is not None
        try:
            function = asked.fn
            this = getattr(function, "__self__", None)
            if not hasattr(function, "__qualname__"):
                this = function  # an object with __call__
            arguments = tuple(asked.args) if this is None else (this, *asked.args)
            store = self._station.stores.client(self._backend)
            slots = slots_for(self._need, arguments, self._info, self._application, store)
            slots.position = self._position
            lease = (await self._lease(slots)).adopt()
        except LeaseLost as error:
            raise failures.loss(error) from error
        except (DibsError, TypeError, ValueError) as error:
            raise failures.refusal(error) from error
        return await self._with(lease, slots, asked, call)

    # -- getting it ---------------------------------------------------------------------------------

    async def _lease(self, slots: Slots) -> dibs.Lease:
        """Wait for the lock. Raises `ApplicationError` where the next attempt is to continue with that."""
        longest = self._longest_wait()
        acquiring = asyncio.create_task(_acquired(slots, longest))
        shutdown = asyncio.create_task(activity.wait_for_worker_shutdown())
        try:
            await self._until_done(acquiring, shutdown, self._bound(longest))
            if not acquiring.done():
                slots.keep_position()
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
        if not acquiring.cancelled():
            return acquiring.result()
        if not self._info.is_local:
            left = self._position.left_to(self._info.attempt + 1)
            activity.heartbeat(*self._info.heartbeat_details, left)
        raise failures.waiting(name_shown(slots), self._waited())

    async def _until_done(
        self, acquiring: asyncio.Task[dibs.Lease], shutdown: asyncio.Task[None], bound: float
    ) -> None:
        """Until there is an outcome, or this attempt has to end without one."""
        loop = asyncio.get_running_loop()
        ends = self._begun + bound
        beat_at = loop.time() + self._beat_every()
        while not (acquiring.done() or shutdown.done()):
            now = loop.time()
            if now >= ends:
                return
            if now >= beat_at:
                beat_at = now + self._beat_every()
                self._beat()
            pause = min(beat_at, ends) - now
            await asyncio.wait(
                {acquiring, shutdown},
                timeout=min(pause, LOOK) if self._is_sync else pause,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if activity.is_cancelled():
                raise ActivityCancelled("cancelled while waiting for its lock")

    # -- with it ------------------------------------------------------------------------------------

    async def _with(
        self, lease: dibs.Lease, slots: Slots, asked: ExecuteActivityInput, call: Next
    ) -> Any:
        held = Held(lease)
        about = About(
            activity=self._need.activity,
            name=name_shown(slots),
            slot=lease.slots[0],
            token=lease.token,
            owner=owner_of(self._info, self._application),
            waited=asyncio.get_running_loop().time() - self._begun,
        )
        if self._is_sync and not isinstance(asked.executor, ThreadPoolExecutor):
            asked = replace(asked, fn=partial(call_in_process, asked.fn, about))
        body = Body(
            held,
            about.lock(held),
            context=this_context(),
            is_sync=self._is_sync,
            pulse=self._pulse,
            heartbeat=None if self._info.is_local else self._times.heartbeat,
        )
        return await body.run(lambda: call(asked))

    # -- times --------------------------------------------------------------------------------------

    def _longest_wait(self) -> float | None:
        """Seconds until the wait has failed for good; None: no limit."""
        known = [] if self._need.wait is None else [max(self._need.wait - self._waited(), AT_LEAST)]
        known += [] if self._times.to_wait is None else [self._times.to_wait]
        if self._is_last and self._times.to_wait_now is not None:
            known.append(self._times.to_wait_now)
        return min(known, default=None)

    def _bound(self, longest: float | None) -> float:
        """Seconds after which this attempt ends if it has only waited; infinity: only when the wait ends.

        Each such end counts as an attempt. So where attempts are limited, it comes as late as possible.
        Where the next attempt would come too late, there is none.
        """
        limit, now = inf if longest is None else longest, self._times.to_wait_now
        given = self._need.wait_in_slot
        in_slot = self._station.wait_in_slot if isinstance(given, Unset) else given
        bound = inf if self._is_last or now is None else now
        may_end_early = not (self._limit or self._info.is_local)
        if in_slot is not None and may_end_early and in_slot + TOO_LATE < limit:
            bound = min(bound, in_slot)
        return max(bound, AT_LEAST) if bound < limit else inf

    @property
    def _limit(self) -> int:
        """How many attempts the retry policy allows; 0: any number."""
        return self._info.retry_policy.maximum_attempts if self._info.retry_policy else 0

    @property
    def _is_last(self) -> bool:
        return 0 < self._limit <= self._info.attempt

    def _waited(self) -> float:
        """Seconds since the first of the attempts that have only waited."""
        before = self._info.started_time.timestamp() - self._position.since
        return max(before, 0.0) + asyncio.get_running_loop().time() - self._begun

    def _beat_every(self) -> float:
        heartbeat = self._times.heartbeat
        return BEAT if heartbeat is None else min(BEAT, heartbeat / 3)

    def _beat(self) -> None:
        """Also tells us of a cancellation. What an earlier attempt has told of its progress stays."""
        if not self._info.is_local:
            activity.heartbeat(*self._info.heartbeat_details)


async def _acquired(slots: Slots, wait: float | None) -> dibs.Lease:
    return await slots.acquire(wait=wait)


@dataclass(frozen=True, slots=True)
class About:
    """What travels along."""

    activity: str
    name: str
    slot: int
    token: int
    owner: str
    waited: float

    def lock(self, kept: Holding) -> ActivityLock:
        """The lock, as it is held here or there."""
        return ActivityLock(**asdict(self), holding=kept)


class HeldElsewhere:
    """A lease that the worker's own process keeps, and tells of by the activity's cancellation."""

    @property
    def remaining(self) -> float:
        """Raises `RuntimeError`: it is renewed in another process."""
        raise RuntimeError(
            "in a process pool the time that is left isn't known: ask `lost`, or ensure()"
        )

    @property
    def lost(self) -> bool:
        """The activity was cancelled: by the loss of its lock, or by its workflow."""
        return activity.is_cancelled()

    @property
    def reason(self) -> str | None:
        """Not told here."""
        return "closed" if self.lost else None

    def ensure(self, needs: Duration = 0) -> None:
        """Raise `LeaseLost` if it is lost."""
        if self.lost:
            raise LeaseLost(
                "the activity was cancelled, as its lock was lost or its workflow said so"
            )


def call_in_process(function: Callable[..., Any], about: About, *args: Any) -> Any:
    """Runs in the pool's process."""
    with holding(about.lock(HeldElsewhere())):
        return function(*args)
