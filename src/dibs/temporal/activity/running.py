"""The body of an activity, under its lease: cancelled when that is lost, and followed by its release."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from temporalio.exceptions import CancelledError as ActivityCancelled

from dibs import Lease
from dibs.config import Duration
from dibs.errors import DibsError, LeaseLost
from dibs.temporal.activity import errors as failures
from dibs.temporal.activity.lock import ActivityLock, holding
from dibs.temporal.sdk import cancel_here

log = logging.getLogger("dibs")


class Pulse:
    """When the activity was last heard of."""

    def __init__(self) -> None:
        self.last = 0.0
        self._loop = asyncio.get_running_loop()

    def beat(self) -> None:
        """Just now. Any thread may say so."""
        self.last = self._loop.time()


class Held:
    """A lease that a running activity relies on; also lost once the activity was silent for too long."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self._silent = False

    @property
    def remaining(self) -> float:
        """Seconds until its deadline."""
        return self.lease.remaining

    @property
    def lost(self) -> bool:
        """It ended before it was given up."""
        return self._silent or self.lease.lost

    @property
    def reason(self) -> str | None:
        """Why it was lost."""
        return "expired" if self._silent else self.lease.reason

    def ensure(self, needs: Duration = 0) -> None:
        """Raise unless that much time is left."""
        if self._silent:
            raise self.loss()
        self.lease.ensure(needs)

    def stop_renewing(self) -> None:
        """The server has given up on an activity that is silent: the lease runs out."""
        with suppress(DibsError):
            self.lease.detach()
        self._silent = True

    def loss(self) -> LeaseLost:
        """What to tell of it."""
        if self._silent:
            return LeaseLost(
                "the activity sent no heartbeat in time, so its lock is no longer renewed"
            )
        try:
            self.lease.ensure()
        except LeaseLost as error:
            return error
        except DibsError:
            pass
        return LeaseLost("the lock was lost")


class Body:
    """One run of an activity's function, while its lock is held."""

    def __init__(
        self,
        held: Held,
        lock: ActivityLock,
        *,
        context: Any,
        is_sync: bool,
        pulse: Pulse,
        heartbeat: float | None,
    ) -> None:
        self._held = held
        self._lock = lock
        self._context = context
        self._is_sync = is_sync
        self._pulse = pulse
        self._heartbeat = heartbeat
        self._interrupted = False

    async def run(self, body: Callable[[], Awaitable[Any]]) -> Any:
        """Run it. Raises what it raises, and `ApplicationError` of type `LeaseLost` if the lock was lost."""
        self._pulse.beat()
        watcher: asyncio.Task[None] | None = None
        alarm = asyncio.timeout(None)
        try:
            async with alarm:
                watcher = asyncio.create_task(self._watch(alarm))
                with holding(self._lock):
                    result = await body()
        except (asyncio.CancelledError, ActivityCancelled, TimeoutError) as error:
            if self._interrupted and (self._is_sync or alarm.expired()):
                raise failures.loss(self._held.loss()) from error
            if self._is_sync and isinstance(error, asyncio.CancelledError):
                self._held.stop_renewing()  # its thread may go on, so the slot is not given up
            raise
        except Exception as error:
            if self._held.lost:
                error.add_note(str(self._held.loss()))
            raise
        finally:
            if watcher is not None:
                watcher.cancel()
            if self._held.lost:
                log.warning("%s was lost while %s ran", self._lock.key, self._lock.activity)
            await self._held.lease.release()
        if self._held.lost:
            raise failures.loss(self._held.loss())
        return result

    async def _watch(self, alarm: asyncio.Timeout) -> None:
        """Until the lease is lost, or the activity has been silent for longer than it may."""
        while not self._held.lease.lost:
            left = None
            if self._heartbeat is not None:
                left = self._pulse.last + self._heartbeat - asyncio.get_running_loop().time()
                if left <= 0:
                    self._held.stop_renewing()
                    break
            if not await self._held.lease.wait_lost(left) and left is None:
                return  # it was given up
        self._interrupted = True
        cancel_here(self._context)
        if not self._is_sync:
            with suppress(RuntimeError):  # the body has just ended
                alarm.reschedule(0.0)
