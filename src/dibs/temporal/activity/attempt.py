"""One attempt of an activity that needs a lock: wait for it, run with it, or wait without a slot."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from temporalio import activity
from temporalio.activity import Info
from temporalio.client import Client
from temporalio.exceptions import CancelledError as ActivityCancelled
from temporalio.worker import ExecuteActivityInput

import dibs
from dibs.config import Unset
from dibs.errors import DibsError, LeaseLost
from dibs.temporal.activity import failures
from dibs.temporal.activity.backend import LockBackend
from dibs.temporal.activity.decorator import Need
from dibs.temporal.activity.handover import handed
from dibs.temporal.activity.parking import Parked, spares_an_attempt
from dibs.temporal.activity.processes import About, call_in_process
from dibs.temporal.activity.running import Body, Held, Pulse
from dibs.temporal.activity.slots import Slots, Stores, name_shown, owner_of, slots_for
from dibs.temporal.activity.terms import times_of
from dibs.temporal.activity.waiting import Wait, WaitingRoom, Which
from dibs.temporal.sdk import this_context

BEAT = 5.0
"""A wait is heard of so often, in seconds, also without a heartbeat timeout: so it can be cancelled."""

LOOK = 0.2
"""A plain function isn't told that it is cancelled: who waits for its lock looks so often, in seconds."""

type Next = Callable[[ExecuteActivityInput], Awaitable[Any]]


class Station:
    """What the attempts of a worker share."""

    def __init__(self, backend: LockBackend, wait_in_slot: float | None) -> None:
        self.backend = backend
        self.wait_in_slot = wait_in_slot
        self.stores = Stores()
        self.room = WaitingRoom()

    async def close(self) -> None:
        """Nobody waits here any more."""
        await self.room.close()
        await self.stores.close()


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
        client: Client | None,
    ) -> None:
        self._station = station
        self._need = need
        self._application = application
        self._handed = handed(own.heartbeat_details, own.attempt)
        self._info = info
        self._pulse = pulse
        self._client = client
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
            store = self._station.stores.client(
                self._station.backend if self._need.backend is None else self._need.backend
            )
            slots = slots_for(self._need, arguments, self._info, self._application, store)
            lease = (await self._lease(slots, store)).adopt()
        except LeaseLost as error:
            raise failures.loss(error) from error
        except (DibsError, TypeError, ValueError) as error:
            raise failures.refusal(error) from error
        return await self._with(lease, slots, asked, call)

    # -- getting it ---------------------------------------------------------------------------------

    async def _lease(self, slots: Slots, store: dibs.Client) -> dibs.Lease:
        if self._handed is not None:
            try:
                return await store.attach(self._handed)
            except LeaseLost:
                pass  # this attempt came too late: it waits in turn
        wait = self._station.room.resumed(self._which(slots))
        if wait is None:
            wait = Wait(slots, self._longest_wait())
        try:
            lease = await self._in_slot(wait, self._bound())
            if lease is None and not await self._may_end():
                lease = await self._in_slot(wait, None)
        except BaseException:
            await wait.give_up()
            raise
        return lease if lease is not None else self._without_slot(wait, store)

    async def _may_end(self) -> bool:
        """This attempt may end before the activity has run."""
        if self._client is None:
            limit = self._info.retry_policy.maximum_attempts if self._info.retry_policy else 0
            return limit == 0
        return await spares_an_attempt(self._client, self._info)

    async def _in_slot(self, wait: Wait, bound: float | None) -> dibs.Lease | None:
        """Wait for at most `bound` seconds, and no longer than the attempt may take; None if in vain."""
        loop = asyncio.get_running_loop()
        until, ends = self._ends(), loop.time() + bound if bound is not None else None
        if ends is None or (until is not None and until < ends):
            ends = until
        beat_at = loop.time() + self._beat_every()
        while not wait.task.done():
            now = loop.time()
            if ends is not None and now >= ends:
                return None
            if now >= beat_at:
                beat_at = now + self._beat_every()
                self._beat()
            pause = beat_at - now if ends is None else min(beat_at, ends) - now
            await asyncio.wait({wait.task}, timeout=min(pause, LOOK) if self._is_sync else pause)
            if activity.is_cancelled():
                raise ActivityCancelled("cancelled while waiting for its lock")
        return wait.task.result()

    def _without_slot(self, wait: Wait, store: dibs.Client) -> dibs.Lease:
        """Never returns: the attempt gives up its slot, and its place in the queue is kept."""
        room, which = self._station.room, self._which(wait.slots)
        if self._info.is_local or self._client is None:
            room.linger(which, wait)
            raise failures.waiting(name_shown(wait.slots), wait.waited)
        parked = Parked(
            room,
            which,
            wait,
            self._client,
            store,
            self._info,
            beat_every=self._beat_every(),
            until=self._ends(),
        )
        room.spawn(parked.run())
        activity.raise_complete_async()

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
        """All in all: with the end of the activity's own time there is nothing to wait for."""
        known = [each for each in (self._need.wait, self._times.to_wait) if each is not None]
        return min(known, default=None)

    def _bound(self) -> float | None:
        bound = self._need.wait_in_slot
        return self._station.wait_in_slot if isinstance(bound, Unset) else bound

    def _ends(self) -> float | None:
        """When this attempt has to end that has only waited, by the loop's clock."""
        left = self._times.to_wait_now
        return None if left is None else self._begun + left

    def _beat_every(self) -> float:
        heartbeat = self._times.heartbeat
        return BEAT if heartbeat is None else min(BEAT, heartbeat / 3)

    def _beat(self) -> None:
        """Also tells us of a cancellation. What an earlier attempt has told of its progress stays."""
        if not self._info.is_local:
            activity.heartbeat(*self._info.heartbeat_details)

    def _which(self, slots: Slots) -> Which:
        info = self._info
        run = info.workflow_run_id or info.activity_run_id or ""
        return info.namespace, run, info.activity_id, name_shown(slots)
