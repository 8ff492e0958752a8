"""A sharing broker holds the permit IDs of the slots that it grants: so slot mode and it exclude each other.

A permit is taken when somebody is to be granted its slot, passes from holder to holder within the broker,
and is given back when nobody has wanted it for a while. It is a child that outlives the broker's runs; should
the broker itself be terminated, the permit ends with its lease, which is longer than that of any holder.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError, FailureError, WorkflowAlreadyStartedError

from leasehold.backends.temporal import ids
from leasehold.backends.temporal.broker_desk import AGES, Owner
from leasehold.backends.temporal.claims_slots import LOOKS_AGAIN, Slots
from leasehold.model import Command

RELEASE = "release"
EXTEND = "extend"
_NOT_THERE = "ExternalWorkflowExecutionNotFound"


class Claims:
    """The permits of one broker: `run IDs by slot`, and what is being done about them."""

    LEASE = 600.0
    """So long a permit outlives a broker that was terminated, at least, and not much longer than what the
    broker has granted."""
    LINGER = 3.0
    """So long a permit is kept though nobody wants it."""
    SOONEST, SLOWEST = 1.0, LOOKS_AGAIN
    """Between looks at whether a permit that others have is free."""

    def __init__(
        self,
        slots: Slots,
        clock: Callable[[], float],
        lost: Callable[[int], None],
        changed: Callable[[], None],
        state: dict[str, Any] | None = None,
    ) -> None:
        state = state or {}
        self._slots = slots
        self._clock = clock
        """The time of the book."""
        self._lost = lost
        self._changed = changed
        self._ours: dict[int, str] = {int(slot): run for slot, run in state.get("ours", {}).items()}
        self._extend_at: float = state.get("extend_at", 0.0)
        self._promised: dict[int, float] = {
            int(slot): until for slot, until in state.get("promised", {}).items()
        }
        """Until when each permit stands, whatever happens to us, by the server's time."""
        self._watched: dict[int, asyncio.Task[None]] = {}
        self._starting: set[int] = set()
        self._leaving: dict[int, asyncio.Task[None]] = {}
        self._signalling = 0
        self._spare_since: dict[int, float] = {}
        self._seeking: asyncio.Task[None] | None = None
        self._seek_at = 0.0
        self._backoff = self.SOONEST
        self._kept: set[asyncio.Task[None]] = set()
        self.order = asyncio.Lock()
        """Calls are applied one after the other, though one may have to wait for permits."""

    def dump(self) -> dict[str, Any]:
        """For the next run."""
        return {"ours": self._ours, "extend_at": self._extend_at, "promised": self._promised}

    @property
    def at_rest(self) -> bool:
        """Nothing is under way whose end only this run would hear of."""
        return not (self._starting or self._signalling or self._leaving or self._seeking)

    @property
    def empty(self) -> bool:
        """No permit is held."""
        return not self._ours and self.at_rest

    def unwatched(self) -> list[Owner]:
        """Permits in use whose end nobody would tell us, as a run before this one started them."""
        used = self._slots.in_use()
        return [
            (self._slots.permit_id(slot), run)
            for slot, run in sorted(self._ours.items())
            if slot in used and slot not in self._watched
        ]

    def begin(self) -> None:
        """Of a broker that has granted slots without permits: nothing more before it has them."""
        for slot in sorted(self._slots.close_all(self._clock())):
            self._task(self._claim(slot))

    # -- taking -------------------------------------------------------------------------------------

    async def make_room(self, command: Command) -> None:
        """Have the permits with which a command is granted at once, if they are to be had."""
        self._slots.fit(command, self._ours, self._clock())
        wanted = self._slots.wanted_by(command)
        if wanted:
            await self._take(wanted, command)

    async def _take(self, wanted: Sequence[int], command: Command | None) -> None:
        """Try these slots, as many at a time as are still missing."""
        left = list(wanted)
        while left and (missing := self._slots.still_missing(command)) > 0:
            some, left = left[:missing], left[missing:]
            await asyncio.gather(*(self._claim(slot) for slot in some))

    async def _claim(self, slot: int) -> None:
        """Start a slot's permit; that fails while somebody else has it."""
        if slot in self._starting or slot in self._ours:
            return
        self._starting.add(slot)
        try:
            if slot in self._leaving:
                await workflow.wait([self._leaving[slot]], timeout=self.SLOWEST)
            handle = await self._start(slot)
        except WorkflowAlreadyStartedError:
            self._slots.note_foreign(slot, self._clock())
        except FailureError as error:
            workflow.logger.warning("A permit could not be taken: %s", error)
        else:
            self._have(slot, handle)
        finally:
            self._starting.discard(slot)
            self._changed()

    async def _start(self, slot: int) -> workflow.ChildWorkflowHandle[Any, Any]:
        info, lease = workflow.info(), self._lease(slot, self._slots.ends())
        self._promised[slot] = workflow.time() + lease
        return await workflow.start_child_workflow(
            ids.PERMIT,
            {
                "resource": self._slots.resource,
                "slot": str(slot),
                "lease_seconds": lease,
                "note": f"granted by {info.workflow_id}",
            },
            id=self._slots.permit_id(slot),
            cancellation_type=workflow.ChildWorkflowCancellationType.ABANDON,
            parent_close_policy=workflow.ParentClosePolicy.ABANDON,
            execution_timeout=None,
            static_summary=f"slot {slot} of {self._slots.resource}, granted by its broker",
        )

    def _have(self, slot: int, handle: workflow.ChildWorkflowHandle[Any, Any]) -> None:
        if not self._ours:
            self._extend_at = workflow.time() + self.LEASE / 3
        run_id = handle.first_execution_run_id or ""
        self._ours[slot] = run_id
        self._slots.open(slot)
        self._watched[slot] = asyncio.create_task(self._watch(slot, run_id, handle))

    async def _watch(
        self, slot: int, run_id: str, handle: workflow.ChildWorkflowHandle[Any, Any]
    ) -> None:
        """Wait for a permit's end, which is somebody else's doing unless we gave it back."""
        try:
            await handle
        except FailureError:
            pass
        if self._ours.get(slot) == run_id:
            self.lose(slot)

    def lose(self, slot: int) -> None:
        """Somebody has ended a permit of ours: its slot is no longer ours to grant."""
        self._drop(slot)
        self._lost(slot)
        self._changed()

    def lose_runs(self, closed: Sequence[Owner]) -> None:
        """Likewise, of those whose runs have ended."""
        runs = {run_id for _, run_id in closed}
        for slot in [slot for slot, run_id in self._ours.items() if run_id in runs]:
            self.lose(slot)

    def _drop(self, slot: int) -> None:
        del self._ours[slot]
        self._promised.pop(slot, None)
        self._watched.pop(slot, None)
        self._spare_since.pop(slot, None)
        self._slots.close_again(slot, self._clock())

    # -- what has to be done from time to time ------------------------------------------------------

    def work(self, now: float, *, waiting: bool) -> None:
        """Seek permits for the head of the queue, give back what is spare, and keep the rest alive."""
        if waiting and now >= self._seek_at and self._seeking is None:
            wanted = self._slots.wanted_by_head()
            if wanted:
                self._seeking = asyncio.create_task(self._seek(wanted))
        self._note_spare(now, waiting=waiting)
        for slot, since in list(self._spare_since.items()):
            if now >= since + self.LINGER:
                self._give_back(slot)
        self._keep_up(now)

    def _keep_up(self, now: float) -> None:
        """Every permit outlives what was granted of its slot: by its timer, though no worker may be there."""
        if not self._ours:
            return
        due = now >= self._extend_at
        if due:
            self._extend_at = now + self.LEASE / 3
        ends = self._slots.ends()
        for slot, run_id in sorted(self._ours.items()):
            lease = self._lease(slot, ends)
            if due or now + lease - self.LEASE / 3 > self._promised.get(slot, 0.0):
                self._promised[slot] = now + lease
                self._task(self._extend(slot, run_id, lease))

    def _lease(self, slot: int, ends: Mapping[int, float]) -> float:
        left = min(ends.get(slot, 0.0) - self._clock(), AGES)
        return max(self.LEASE, left) + self.LEASE / 3

    def due(self) -> float | None:
        """When `work` has something to do, if nothing happens before."""
        times = [since + self.LINGER for since in self._spare_since.values()]
        if self._ours:
            times.append(self._extend_at)
        if self._seeking is None and self._slots.wanted_by_head():
            times.append(self._seek_at)
        return min(times, default=None)

    async def _seek(self, wanted: Sequence[int]) -> None:
        await self._take(wanted, None)
        found = self._slots.still_missing(None) <= 0
        self._backoff = self.SOONEST if found else min(2 * self._backoff, self.SLOWEST)
        jitter = 0.75 + workflow.random().random() / 2
        self._seek_at = 0.0 if found else workflow.time() + self._backoff * jitter
        self._seeking = None
        self._changed()

    # -- giving back --------------------------------------------------------------------------------

    def _note_spare(self, now: float, *, waiting: bool) -> None:
        used = self._slots.in_use()
        spare = set() if waiting or self.order.locked() else set(self._ours) - used
        self._spare_since = {slot: self._spare_since.get(slot, now) for slot in sorted(spare)}

    def _give_back(self, slot: int) -> None:
        """The slot is closed first, so that nobody is granted it any more."""
        run_id, watched = self._ours[slot], self._watched.get(slot)
        self._drop(slot)
        task = asyncio.create_task(self._release(slot, run_id, watched))
        self._leaving[slot] = task
        task.add_done_callback(lambda _: self._left(slot, task))

    def _left(self, slot: int, task: "asyncio.Task[None]") -> None:
        if self._leaving.get(slot) is task:
            del self._leaving[slot]

    async def _release(self, slot: int, run_id: str, watched: "asyncio.Task[None] | None") -> None:
        await self._signal(slot, run_id, RELEASE)
        if watched is not None:
            await workflow.wait([watched])

    async def _extend(self, slot: int, run_id: str, lease: float) -> None:
        there = await self._signal(slot, run_id, EXTEND, lease)
        if not there and self._ours.get(slot) == run_id:
            self.lose(slot)

    async def _signal(self, slot: int, run_id: str, name: str, *args: float) -> bool:
        """Whether that run of the permit was still there."""
        permit = workflow.get_external_workflow_handle(self._slots.permit_id(slot), run_id=run_id)
        self._signalling += 1
        try:
            await permit.signal(name, args=list(args))
        except ApplicationError as error:
            return error.type != _NOT_THERE
        except FailureError as error:
            workflow.logger.warning("A permit could not be told: %s", error)
        finally:
            self._signalling -= 1
            self._changed()
        return True

    def _task(self, step: Any) -> None:
        """Run it, and keep hold of it, as a loop knows its tasks only weakly."""
        task = asyncio.create_task(step)
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)
