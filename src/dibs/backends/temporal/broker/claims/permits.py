"""The permits that a sharing broker holds: workflows, each of which outlives the broker's runs.

Should the broker itself be terminated, a permit ends with its lease, which is longer than that of any holder.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from temporalio import workflow
from temporalio.exceptions import FailureError

from dibs.backends.temporal.broker.claims.doubt import Standing
from dibs.backends.temporal.broker.claims.slots import Slots
from dibs.backends.temporal.protocol.bounds import AGES, LOOKS_AGAIN
from dibs.backends.temporal.protocol.owners import Owner
from dibs.backends.temporal.protocol.permits import PermitSlotInput
from dibs.backends.temporal.workflows.permit_runs import Child, PermitRun, start_permit


class Permits:
    """By slot: taken, kept alive, given back, and lost if somebody else ends them."""

    LEASE = 600.0
    """So long a permit outlives a broker that was terminated, at least, and not much longer than what the
    broker has granted."""

    def __init__(
        self,
        slots: Slots,
        clock: Callable[[], float],
        lost: Callable[[int], None],
        changed: Callable[[], None],
        state: dict[str, Any],
    ) -> None:
        self._slots = slots
        self._clock = clock
        """The time of the book."""
        self._lost = lost
        self._changed = changed
        self._extend_at: float = state.get("extend_at", 0.0)
        self.ours: dict[int, str] = _by_slot(state, "ours")
        """Their run IDs."""
        self._promised: dict[int, float] = _by_slot(state, "promised")
        """Until when each permit was told to stand, whatever happens to us, by the server's time."""
        self._standing = Standing()
        self._watched: dict[int, asyncio.Task[None]] = {}
        self._starting: set[int] = set()
        self._leaving: dict[int, asyncio.Task[None]] = {}
        self._signalling = 0
        self._kept: set[asyncio.Task[None]] = set()

    def dump(self) -> dict[str, Any]:
        """For the next run."""
        return {"ours": self.ours, "extend_at": self._extend_at, "promised": self._promised}

    @property
    def at_rest(self) -> bool:
        """Nothing is under way whose end only this run would hear of."""
        return not (self._starting or self._signalling or self._leaving)

    def unwatched(self) -> list[Owner]:
        """Permits whose end nobody would tell us, as a run before this one started them.

        Those that nobody uses at the moment too: they will be used again, or given back soon.
        """
        return [
            (self._slots.permit_id(slot), run)
            for slot, run in sorted(self.ours.items())
            if slot not in self._watched
        ]

    def sure(self) -> set[int]:
        """The slots of ours whose permits stand for sure."""
        return self._standing.sure(self.ours, self._watched, self.LEASE, workflow.time())

    # -- taking -------------------------------------------------------------------------------------

    async def take(self, slot: int) -> None:
        """Start a slot's permit, which fails while somebody else has it; or ask after one of ours."""
        if slot in self.ours and slot not in self.sure():
            await self._extend(slot, self.ours[slot], self._lease(slot, self._slots.ends()))
        if slot in self._starting or slot in self.ours:
            return
        self._starting.add(slot)
        try:
            if slot in self._leaving:
                await workflow.wait([self._leaving[slot]], timeout=LOOKS_AGAIN)
            handle = await self._start(slot)
        except FailureError as error:
            workflow.logger.warning("A permit could not be taken: %s", error)
        else:
            if handle is None:
                self._slots.note_foreign(slot, self._clock())
            else:
                self._have(slot, handle)
        finally:
            self._starting.discard(slot)
            self._changed()

    async def _start(self, slot: int) -> Child | None:
        resource, lease = self._slots.resource, self._lease(slot, self._slots.ends())
        self._promised[slot] = workflow.time() + lease
        note = f"granted by {workflow.info().workflow_id}"
        return await start_permit(
            PermitSlotInput(resource, str(slot), lease, note=note),
            summary=f"slot {slot} of {resource}, granted by its broker",
        )

    def _have(self, slot: int, handle: Child) -> None:
        if not self.ours:
            self._extend_at = workflow.time() + self.LEASE / 3
        run_id = handle.first_execution_run_id or ""
        self.ours[slot] = run_id
        self._standing.start(slot, self._promised[slot])
        self._watched[slot] = asyncio.create_task(self._watch(slot, run_id, handle))
        if slot in self.sure():
            self._slots.open(slot)

    # -- losing -------------------------------------------------------------------------------------

    async def _watch(self, slot: int, run_id: str, handle: Child) -> None:
        """Wait for a permit's end, which is somebody else's doing unless we gave it back."""
        try:
            await handle
        except FailureError:
            pass
        self._lose(slot, run_id)

    def lose_runs(self, closed: Sequence[Owner]) -> None:
        """Those of ours whose runs have ended."""
        runs = {run_id for _, run_id in closed}
        for slot, run_id in [(slot, run) for slot, run in self.ours.items() if run in runs]:
            self._lose(slot, run_id)

    def _lose(self, slot: int, run_id: str) -> None:
        """Somebody has ended a permit of ours, if it still was: its slot is no longer ours to grant."""
        if self.ours.get(slot) == run_id:
            self._drop(slot)
            self._lost(slot)
            self._changed()

    def _drop(self, slot: int) -> None:
        del self.ours[slot]
        self._promised.pop(slot, None)
        self._standing.forget(slot)
        self._watched.pop(slot, None)
        self._slots.close_again(slot, self._clock())

    # -- keeping alive ------------------------------------------------------------------------------

    def keep_up(self, now: float) -> None:
        """Every permit outlives what was granted of its slot: by its timer, though no worker may be there."""
        if not self.ours:
            return
        due = now >= self._extend_at
        if due:
            self._extend_at = now + self.LEASE / 3
        ends = self._slots.ends()
        for slot, run_id in sorted(self.ours.items()):
            lease = self._lease(slot, ends)
            if due or now + lease - self.LEASE / 3 > self._promised.get(slot, 0.0):
                self._promised[slot] = now + lease
                self._task(self._extend(slot, run_id, lease))

    def due(self) -> float | None:
        """When all have to be kept alive again."""
        return self._extend_at if self.ours else None

    def _lease(self, slot: int, ends: Mapping[int, float]) -> float:
        left = min(ends.get(slot, 0.0) - self._clock(), AGES)
        return max(self.LEASE, left) + self.LEASE / 3

    async def _extend(self, slot: int, run_id: str, lease: float) -> None:
        """What was delivered is heeded before the permit can end: only then its slot may be granted."""
        sent = workflow.time()
        there = await self._told(self._run(slot, run_id).extend(lease))
        if there is False:
            self._lose(slot, run_id)
        elif there and self.ours.get(slot) == run_id:
            self._standing.hear(slot, sent, lease, workflow.time())
            if slot in self.sure():
                self._slots.open(slot)

    # -- giving back --------------------------------------------------------------------------------

    def give_back(self, slot: int) -> None:
        """The slot is closed first, so that nobody is granted it any more."""
        run_id, watched = self.ours[slot], self._watched.get(slot)
        self._drop(slot)
        task = asyncio.create_task(self._release(slot, run_id, watched))
        self._leaving[slot] = task
        task.add_done_callback(lambda _: self._left(slot, task))

    def _left(self, slot: int, task: "asyncio.Task[None]") -> None:
        if self._leaving.get(slot) is task:
            del self._leaving[slot]

    async def _release(self, slot: int, run_id: str, watched: "asyncio.Task[None] | None") -> None:
        await self._told(self._run(slot, run_id).release())
        if watched is not None:
            await workflow.wait([watched])

    def _run(self, slot: int, run_id: str) -> PermitRun:
        return PermitRun(self._slots.permit_id(slot), run_id)

    async def _told(self, telling: Coroutine[Any, Any, bool]) -> bool | None:
        """Whether that run of the permit was still there; None if that can't be told."""
        self._signalling += 1
        try:
            return await telling
        except FailureError as error:
            workflow.logger.warning("A permit could not be told: %s", error)
            return None
        finally:
            self._signalling -= 1
            self._changed()

    def _task(self, step: Any) -> None:
        """Run it, and keep hold of it, as a loop knows its tasks only weakly."""
        task = asyncio.create_task(step)
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)


def _by_slot(state: Mapping[str, Any], name: str) -> dict[int, Any]:
    """JSON has texts for keys."""
    return {int(slot): value for slot, value in state.get(name, {}).items()}
