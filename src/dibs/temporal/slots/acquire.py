"""Acquire in slot mode: start the workflow whose ID is the lock, or find that it runs already."""

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress
from datetime import timedelta
from random import Random
from shlex import quote

from temporalio import workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.workflow import ChildWorkflowCancellationType, ParentClosePolicy

from dibs.locks.messages import format_duration
from dibs.stores.temporal import ids
from dibs.temporal import options
from dibs.temporal.errors import AcquireTimedOut, AlreadyHeld, NotServed
from dibs.temporal.options import AcquireOptions, PermitPool
from dibs.temporal.permit import settle
from dibs.temporal.slots.permit import Child, SlotPermit, queue_of, wait_until_armed
from dibs.temporal.slots.run_state import run_state
from dibs.temporal.slots.workflow import PermitSlotInput


async def acquire_slot(pool: PermitPool, asked: AcquireOptions) -> SlotPermit:
    """Take any free slot, by probing. Waiters are served in no order.

    Raises `AcquireTimedOut` after `asked.wait`, `AlreadyHeld` if this task holds every slot itself,
    `NotServed` if no worker serves the permit. Cancellation while waiting leaves nothing behind.
    """
    return await _SlotAcquire(pool, asked).until_granted()


class _SlotAcquire:
    """An acquire, with its probes and pauses."""

    def __init__(self, pool: PermitPool, asked: AcquireOptions) -> None:
        self._pool = pool
        self._resource = pool.resource
        self._asked = asked
        self._state = run_state()
        self._began = workflow.time()
        self._ends = None if asked.wait is None else self._began + asked.wait
        self._slots = [str(each) for each in range(pool.capacity)]
        self._probes = 0
        self._prober = Prober(
            self._slots,
            workflow.random(),
            self._began,
            backoff=asked.backoff,
            longest=asked.max_backoff,
        )

    async def until_granted(self) -> SlotPermit:
        if self._asked.wait != 0 and self._state.mine(self._resource).issuperset(self._slots):
            raise AlreadyHeld(
                f"this task holds every slot of {self._resource} (capacity {len(self._slots)}) itself, so it "
                "would wait for ever: pass the permit on to what needs it, or leave its block before"
            )
        while True:
            seen = self._state.released
            for slot in self._prober.round(workflow.time(), self._state.taken(self._resource)):
                if slot not in self._state.taken(self._resource):
                    permit = await self._probe(slot)
                    if permit is not None:
                        permit.keep()
                        return permit
            if self._left() == 0.0:
                raise self._timed_out()
            await self._pause(seen)

    async def _pause(self, seen: int) -> None:
        """Wait for the next round, or until another task of this run gives a slot back."""
        timeout = self._left()
        if self._all_are_ours():
            awaited = lambda: not self._all_are_ours()  # noqa: E731
        else:
            pause = self._prober.pause(
                workflow.time(),
                history_is_long=workflow.info().is_continue_as_new_suggested(),
            )
            timeout = pause if timeout is None else min(pause, timeout)
            awaited = lambda: self._state.released != seen  # noqa: E731
        with suppress(TimeoutError):
            await workflow.wait_condition(
                awaited, timeout=timeout, timeout_summary=f"until {self._resource} is tried again"
            )

    def _all_are_ours(self) -> bool:
        return self._state.taken(self._resource).issuperset(self._slots)

    async def _probe(self, slot: str) -> SlotPermit | None:
        """The permit on that slot, or None if it is taken.

        A start is never cancelled once it is under way, because it may have taken the slot.
        """
        self._probes += 1
        self._prober.probed()
        self._state.take(self._resource, slot)
        starting = asyncio.create_task(self._start(slot))
        cancelled = await settle(starting)
        permit = starting.result()
        if cancelled is not None:
            if permit is not None:
                await permit.release()
            raise cancelled
        if permit is None or not self._pool.armed or await self._is_armed(permit):
            return permit
        return None

    async def _start(self, slot: str) -> SlotPermit | None:
        """Start the permit. None if its ID is taken; then this run no longer claims the slot."""
        asked, pool, permit = self._asked, self._pool, None
        began = workflow.time()
        try:
            child: Child = await workflow.start_child_workflow(
                ids.PERMIT,
                PermitSlotInput(
                    resource=self._resource,
                    slot=slot,
                    lease_seconds=asked.ttl,
                    armed=pool.armed,
                    max_hold_seconds=asked.max_hold,
                    quarantine_seconds=pool.quarantine,
                    note=asked.note,
                ),
                id=ids.permit_workflow_id(self._resource, slot),
                task_queue=pool.task_queue,
                execution_timeout=timedelta(seconds=_longest(pool, asked)),
                result_type=str,
                parent_close_policy=_close_policy(pool),
                cancellation_type=ChildWorkflowCancellationType.ABANDON,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                static_summary=asked.note or f"slot {slot} of {self._resource}",
            )
            run_id = child.first_execution_run_id
            assert run_id is not None  # a child that has started has one
            permit = SlotPermit(
                pool,
                slot,
                run_id=run_id,
                ttl=asked.ttl,
                began=began,
                until=began + asked.max_hold,
                renews=asked.auto_renew,
                child=child,
            )
        except WorkflowAlreadyStartedError:
            pass
        finally:
            if permit is None:
                self._state.forget(self._resource, slot)
        return permit

    async def _is_armed(self, permit: SlotPermit) -> bool:
        """Wait for its report. False if its lease is over by then. Raises `NotServed`."""
        left = self._left()
        bound = options.REPORT_TIMEOUT if left is None else min(options.REPORT_TIMEOUT, left)
        try:
            await wait_until_armed(
                permit,
                max(bound, options.MIN_REPORT_TIMEOUT),
                self._pool,
                until=self._began + _longest(self._pool, self._asked),
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

    def _timed_out(self) -> AcquireTimedOut:
        capacity, ours = len(self._slots), len(self._state.taken(self._resource))
        others = f"; the last slot is {self._resource}:{capacity - 1}" if capacity > 1 else ""
        here = f"; this workflow itself holds {ours}" if ours else ""
        tries = "1 try" if self._probes == 1 else f"{self._probes} tries"
        first = ids.permit_workflow_id(self._resource, "0")
        return AcquireTimedOut(
            f"no slot of {self._resource} (capacity {capacity}) was free within "
            f"{format_duration(self._asked.wait or 0.0)}, in {tries}: `temporal workflow describe "
            f"--workflow-id {quote(first)}` shows its holder as ParentWorkflowId{others}{here}",
            retry_after=self._asked.backoff,
        )


def _longest(pool: PermitPool, asked: AcquireOptions) -> float:
    """Seconds until the server ends a permit without a worker: after its lease, to tell the two apart."""
    return max(asked.max_hold, asked.ttl) + pool.quarantine + options.GRACE


def _close_policy(pool: PermitPool) -> ParentClosePolicy:
    """The server's action on the permit if its holder ends without releasing it."""
    if pool.on_holder_close == "fast":
        return ParentClosePolicy.TERMINATE
    return ParentClosePolicy.REQUEST_CANCEL if pool.quarantine else ParentClosePolicy.ABANDON


PROBE = 5
"""Events of one failed try: start initiated, start failed, and a workflow task's three."""
PAUSE = 5
"""Events of one pause: the timer's two, and a workflow task's three."""

AT_ONCE = 200
"""Events that a waiter can spend at once …"""
EACH_SECOND = 0.2
""" … and more for each second that it has waited: an hour's wait comes to 920."""

FIRST_ROUND = 16
"""Slots tried in the first round, at most …"""
NEXT_ROUNDS = 4
""" … and in each later round, if there are events left for them."""

LONG_HISTORY = 300.0
"""Seconds of a pause if the server already advises the workflow to continue as new."""


class Prober:
    """The order and the pace of one acquire's probes.

    Slots come in shuffled order, each once before any comes again. The random numbers are the workflow's
    own, so that a replay draws the same.
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
        """The slots to try now, at least one, without those in `mine`, which are known to be taken."""
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
        """Count one try."""
        self._spent += PROBE

    def pause(self, now: float, *, history_is_long: bool = False) -> float:
        """Seconds until the next round."""
        self._spent += PAUSE
        longest = min(self._pause, self._longest)
        self._pause = min(2 * self._pause, max(self._longest, self._pause))
        jittered = longest * (0.5 + 0.5 * self._random.random())
        needed = (PAUSE + PROBE - self._left(now)) / EACH_SECOND
        return max(jittered, needed, LONG_HISTORY if history_is_long else 0.0)

    def _left(self, now: float) -> float:
        return AT_ONCE + EACH_SECOND * (now - self._began) - self._spent

    def _draw(self, left: Sequence[str]) -> str:
        """The next of these slots in the deck, or in a new deck if it has none of them."""
        for _ in range(2):
            for slot in self._deck:
                if slot in left:
                    self._deck.remove(slot)
                    return slot
            self._deck = list(self._slots)
            self._random.shuffle(self._deck)
        raise AssertionError("every slot is in a new deck")
