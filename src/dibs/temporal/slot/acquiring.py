"""Taking a slot: to start the workflow whose ID is the lock, or to find it running already."""

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress
from datetime import timedelta
from random import Random

from temporalio import workflow
from temporalio.workflow import ParentClosePolicy

from dibs.locks.messages import format_duration
from dibs.stores.temporal.protocol import ids
from dibs.stores.temporal.protocol.permits import PermitSlotInput
from dibs.stores.temporal.workflows.permit_runs import Child, start_permit
from dibs.temporal import defaults
from dibs.temporal.failures import AcquireTimedOut, AlreadyHeld, NotServed
from dibs.temporal.permits.permit import settle
from dibs.temporal.permits.terms import Pool, Terms
from dibs.temporal.slot.here import here
from dibs.temporal.slot.permit import SlotPermit, queue_of, wait_until_armed


async def acquire_slot(pool: Pool, terms: Terms) -> SlotPermit:
    """Any slot that is free, by probing; whoever comes at the right moment has it."""
    return await _Attempt(pool, terms).until_granted()


class _Attempt:
    """One acquire."""

    def __init__(self, pool: Pool, terms: Terms) -> None:
        self._pool = pool
        self._resource = pool.resource
        self._terms = terms
        self._here = here()
        self._began = workflow.time()
        self._ends = None if terms.wait is None else self._began + terms.wait
        self._slots = [str(each) for each in range(pool.capacity)]
        self._probes = 0
        self._prober = Prober(
            self._slots,
            workflow.random(),
            self._began,
            backoff=terms.backoff,
            longest=terms.max_backoff,
        )

    async def until_granted(self) -> SlotPermit:
        self._refuse_to_wait_for_itself()
        while True:
            seen = self._here.released
            for slot in self._prober.round(workflow.time(), self._here.taken(self._resource)):
                if slot not in self._here.taken(self._resource):
                    permit = await self._probe(slot)
                    if permit is not None:
                        permit.keep()
                        return permit
            if self._left() == 0.0:
                raise self._timed_out()
            await self._pause(seen)

    async def _pause(self, seen: int) -> None:
        """Until the next round, or until another task of this workflow gives a slot back."""
        timeout = self._left()
        if self._all_are_ours():
            awaited = lambda: not self._all_are_ours()  # noqa: E731
        else:
            pause = self._prober.pause(
                workflow.time(),
                history_is_long=workflow.info().is_continue_as_new_suggested(),
            )
            timeout = pause if timeout is None else min(pause, timeout)
            awaited = lambda: self._here.released != seen  # noqa: E731
        with suppress(TimeoutError):
            await workflow.wait_condition(
                awaited, timeout=timeout, timeout_summary=f"until {self._resource} is tried again"
            )

    def _all_are_ours(self) -> bool:
        return self._here.taken(self._resource).issuperset(self._slots)

    async def _probe(self, slot: str) -> SlotPermit | None:
        """The permit on that slot, or None where somebody has it.

        A start that is under way is never cancelled: whether it has taken the slot has to be known.
        """
        self._probes += 1
        self._prober.probed()
        self._here.take(self._resource, slot)
        with self._here.starting():
            began = workflow.time()
            starting = asyncio.create_task(self._start(slot))
            cancelled = await settle(starting)
            permit = self._started(slot, starting, began)
        if cancelled is not None:
            if permit is not None:
                await permit.release()
            raise cancelled
        if permit is None or not self._pool.armed or await self._is_armed(permit):
            return permit
        return None

    def _started(
        self, slot: str, starting: "asyncio.Task[Child | None]", began: float
    ) -> SlotPermit | None:
        """The permit that has been started, if it could be; else this workflow has the slot no more."""
        try:
            child = starting.result()
        except BaseException:
            self._here.forget(self._resource, slot)
            raise
        if child is None:
            self._here.forget(self._resource, slot)
            return None
        return self._permit(slot, child, began)

    async def _start(self, slot: str) -> Child | None:
        terms, pool = self._terms, self._pool
        return await start_permit(
            PermitSlotInput(
                resource=self._resource,
                slot=slot,
                lease_seconds=terms.ttl,
                armed=pool.armed,
                max_hold_seconds=terms.max_hold,
                quarantine_seconds=pool.quarantine,
                note=terms.note,
            ),
            summary=terms.note or f"slot {slot} of {self._resource}",
            task_queue=pool.task_queue,
            timeout=timedelta(seconds=_longest(pool, terms)),
            on_close=_close_policy(pool),
        )

    def _permit(self, slot: str, child: Child, began: float) -> SlotPermit:
        run_id = child.first_execution_run_id
        assert run_id is not None  # a child that has started has one
        return SlotPermit(
            resource=self._resource,
            slot=slot,
            run_id=run_id,
            ttl=self._terms.ttl,
            began=began,
            until=began + self._terms.max_hold,
            renews=self._terms.auto_renew,
            stays=self._pool.on_holder_close == "safe",
            quarantine=self._pool.quarantine,
            child=child,
        )

    async def _is_armed(self, permit: SlotPermit) -> bool:
        """Once it has reported. False if its lease is over by then; raises `NotServed`."""
        left = self._left()
        bound = defaults.ARMED if left is None else min(defaults.ARMED, left)
        try:
            await wait_until_armed(
                permit,
                max(bound, defaults.ARMED_AT_LEAST),
                self._pool,
                until=self._began + _longest(self._pool, self._terms),
            )
            stands = permit.armed and not permit.ended and await permit.stands()
        except BaseException:
            await permit.give_back()
            raise
        if stands:
            return True
        await permit.give_back()
        if permit.failure is not None:
            raise NotServed(
                f"the worker of task queue {queue_of(self._pool)!r} can't serve "
                f"{ids.permit_workflow_id(self._resource, permit.slot)}; see its cause"
            ) from permit.failure
        return False

    def _left(self) -> float | None:
        return None if self._ends is None else max(self._ends - workflow.time(), 0.0)

    def _refuse_to_wait_for_itself(self) -> None:
        if self._terms.wait == 0 or not self._here.mine(self._resource).issuperset(self._slots):
            return
        raise AlreadyHeld(
            f"this task holds every slot of {self._resource} (capacity {len(self._slots)}) itself, so it "
            "would wait for ever: pass the permit on to what needs it, or leave its block before"
        )

    def _timed_out(self) -> AcquireTimedOut:
        first, last = (ids.permit_workflow_id(self._resource, self._slots[at]) for at in (0, -1))
        where = first if first == last else f"{first} … {last}"
        ours = len(self._here.taken(self._resource))
        here = f" ({ours} of them this workflow itself)" if ours else ""
        tries = "1 try" if self._probes == 1 else f"{self._probes} tries"
        return AcquireTimedOut(
            f"no slot of {self._resource} (capacity {len(self._slots)}) was free within "
            f"{format_duration(self._terms.wait or 0.0)}, in {tries}: `dibs show --kind semaphore "
            f"{self._resource}` tells which workflows hold {where}{here}",
            retry_after=self._terms.backoff,
        )


def _longest(pool: Pool, terms: Terms) -> float:
    """When the server ends a permit that no worker has; after its lease, so that the two differ."""
    return max(terms.max_hold, terms.ttl) + pool.quarantine + defaults.GRACE


def _close_policy(pool: Pool) -> ParentClosePolicy:
    """What becomes of the permit when its holder ends without having released it."""
    if pool.on_holder_close == "fast":
        return ParentClosePolicy.TERMINATE
    return ParentClosePolicy.REQUEST_CANCEL if pool.quarantine else ParentClosePolicy.ABANDON


PROBE = 5
"""Events of one failed try: start initiated, start failed, and a workflow task's three."""
PAUSE = 5
"""Events of one pause: the timer's two, and a workflow task's three."""

AT_ONCE = 200
"""So many events a waiter may spend at once …"""
EACH_SECOND = 0.2
""" … and so many more for each second that it has waited: an hour's wait comes to 920."""

FIRST_ROUND = 16
"""So many slots are tried at first, at most …"""
NEXT_ROUNDS = 4
""" … and so many in each later round, as long as there are events for them."""

LONG_HISTORY = 300.0
"""The pause where the server already advises the workflow to continue as new."""


class Prober:
    """The order and the pace of one acquire's probes.

    Slots come in shuffled order, each once before any comes again. The random numbers are the
    workflow's own, so that a replay draws the same.
    """

    def __init__(
        self, slots: Sequence[str], random: Random, began: float, *, backoff: float, longest: float
    ) -> None:
        self._slots = list(slots)
        self._random = random
        self._began = began
        self._pause = backoff
        self._longest = longest
        self._deck: list[str] = []
        self._spent = 0
        self._rounds = 0

    def round(self, now: float, mine: Collection[str] = ()) -> list[str]:
        """The slots to try now, at least one; those in `mine` are known to be taken."""
        most = FIRST_ROUND if self._rounds == 0 else NEXT_ROUNDS
        affordable = int((self._left(now) - PAUSE) // PROBE)
        wanted = max(1, min(most, affordable))
        self._rounds += 1
        drawn: list[str] = []
        while len(drawn) < wanted:
            left = [slot for slot in self._slots if slot not in mine and slot not in drawn]
            if not left:
                break
            drawn.append(self._draw(left))
        return drawn

    def probed(self) -> None:
        """One try was made."""
        self._spent += PROBE

    def pause(self, now: float, *, history_is_long: bool = False) -> float:
        """How long to wait until the next round."""
        self._spent += PAUSE
        longest = min(self._pause, self._longest)
        self._pause = min(2 * self._pause, max(self._longest, self._pause))
        jittered = longest * (0.5 + 0.5 * self._random.random())
        needed = (PAUSE + PROBE - self._left(now)) / EACH_SECOND
        return max(jittered, needed, LONG_HISTORY if history_is_long else 0.0)

    def _left(self, now: float) -> float:
        return AT_ONCE + EACH_SECOND * (now - self._began) - self._spent

    def _draw(self, left: Sequence[str]) -> str:
        """The next slot of the deck that is among these; a new deck where it has none."""
        for _ in range(2):
            for slot in self._deck:
                if slot in left:
                    self._deck.remove(slot)
                    return slot
            self._deck = list(self._slots)
            self._random.shuffle(self._deck)
        raise AssertionError("every slot is in a new deck")
