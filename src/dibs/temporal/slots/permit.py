"""A permit in slot mode: how its holder renews it, gives it up, hands it over and learns of its loss."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from math import inf
from typing import Any, Self

from temporalio import workflow
from temporalio.exceptions import (
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    FailureError,
    TerminatedError,
)
from temporalio.exceptions import TimeoutError as TimedOut

from dibs.config import Duration, safe_ttl
from dibs.core.timing import margin
from dibs.locks.messages import format_duration
from dibs.stores.temporal.ids import (
    permit_workflow_id,
    serve_hint,
    terminate_hint,
    unserved_message,
)
from dibs.temporal import options
from dibs.temporal.errors import Misused, NotServed, PermitLost, checked
from dibs.temporal.options import PermitPool
from dibs.temporal.permit import Handoff, Permit, may_run_on, settle, to_its_end
from dibs.temporal.slots.run_state import run_state
from dibs.temporal.slots.workflow import (
    ADOPT,
    ARMED,
    ENDED,
    ENDING,
    EXPIRED,
    EXTEND,
    HAND_OVER,
    RELEASE,
    RETIRE,
    Adoption,
    PermitNews,
    signal_run,
)

type Child = workflow.ChildWorkflowHandle[Any, str]
LONGEST_MARGIN = 5.0


def spare(ttl: float) -> float:
    """Seconds by which the holder stops before its permit does, so that nobody else has it by then."""
    return min(margin(ttl), LONGEST_MARGIN)


def trusted(sent: float, ttl: float, until: float) -> float:
    """The holder's deadline for a lease that was confirmed at the time `sent`."""
    return min(sent + ttl, until) - spare(ttl)


class SlotPermit(Permit):
    """Held while its workflow runs. Its run ID distinguishes it from later permits of the same slot."""

    def __new__(cls, pool: PermitPool, slot: str, *_: Any, **about: Any) -> Self:
        return str.__new__(cls, slot)

    def __init__(
        self,
        pool: PermitPool,
        slot: str,
        *,
        run_id: str,
        ttl: float,
        began: float,
        until: float,
        renews: bool,
        token: int | None = None,
        child: Child | None = None,
        acquired_at: float | None = None,
    ) -> None:
        super().__init__(
            resource=pool.resource,
            slots=(slot,),
            run_id=run_id,
            token=token,
            ttl=ttl,
            deadline=trusted(began, ttl, until),
            acquired_at=began if acquired_at is None else acquired_at,
        )
        self._pool = pool
        self._workflow_id = permit_workflow_id(pool.resource, slot)
        self._renewed_at = began
        self._until = until
        self._renews = renews
        self._keeping: asyncio.Task[None] | None = None
        self._child = child
        self._state = run_state()
        self.armed: bool = False
        """It has reported, so a worker serves it."""
        self.ended: bool = False
        self.failure: BaseException | None = None
        """Why its workflow could not be a permit."""
        self._state.listen(run_id, self._receive)
        if child is not None:
            child.add_done_callback(self._child_closed)

    # -- while it is held -------------------------------------------------------------------------------

    def keep(self) -> None:
        """Begin to renew it, and to report its loss at its deadline."""
        self._keeping = asyncio.create_task(self._keep())

    async def renew(self, ttl: Duration | None = None) -> None:
        self._still("renew")
        with checked():
            wanted = self._ttl if ttl is None else safe_ttl(ttl)
        if not await self._extend(wanted):
            self._lose(self._gone())
        self._still("renew")

    async def stands(self) -> bool:
        """Whether it can be relied on. A permit whose report came too late is extended first.

        Until it has ended nobody else has its slot. Where each step takes long, those of the next permit
        would take as long.
        """
        if self.lost and not self._reason:
            with suppress(FailureError):
                return await self._extend(self._ttl) and not self.lost
        return not self.lost

    async def _keep(self) -> None:
        while not self.lost:
            now, due = workflow.time(), self._due()
            if now < due:
                renews = due < self._deadline
                what = "until the permit's renewal" if renews else "the permit's deadline"
                await workflow.sleep(min(due, self._deadline) - now, summary=what)
            elif not await self._is_there():
                return self._lose(self._gone())
        self._lose(self._ran_out())

    def _due(self) -> float:
        """Time of the next renewal: never if the deadline is as late as it can be."""
        if not self._renews or self._deadline >= self._until - spare(self._ttl):
            return inf
        return self._renewed_at + self._ttl / 2

    async def _is_there(self) -> bool:
        """Renew it, and wait for that until its deadline: later would report the loss too late."""
        extending = asyncio.create_task(self._try_to_extend())
        try:
            await workflow.wait([extending], timeout=self._deadline - workflow.time())
            return not extending.done() or extending.result()
        finally:
            extending.cancel()

    async def _try_to_extend(self) -> bool:
        try:
            return await self._extend(self._ttl)
        except FailureError:
            await workflow.sleep(self._ttl / 10, summary="until the renewal is tried again")
            return True

    async def _extend(self, ttl: float) -> bool:
        sent = workflow.time()
        if not await self._signal(EXTEND, ttl):
            return False
        self._renewed_at = sent
        self._deadline = max(self._deadline, trusted(sent, ttl, self._until))
        return True

    async def _signal(self, name: str, *arg: Any) -> bool:
        """Whether the permit was still there, and so acts on it. Raises `FailureError`."""
        return await signal_run(self._workflow_id, self._run_id, name, *arg)

    def _ran_out(self) -> str:
        return "max_hold" if workflow.time() >= self._until - LONGEST_MARGIN else "expired"

    def _gone(self) -> str:
        """The reason, if only the end itself is known."""
        return self._ran_out() if workflow.time() >= self._deadline else "closed"

    # -- how it ends ------------------------------------------------------------------------------------

    async def release(self) -> bool:
        if self.reason in ("expired", "max_hold"):
            # it ends by itself within a moment, and its result says why
            return await self._give_up(None, 0.0)
        return await self.give_back()

    async def give_back(self) -> bool:
        """End it now, whatever this run knows of its lease."""
        return await self._give_up(RELEASE, options.CONFIRM_TIMEOUT)

    async def leave_unserved(self) -> None:
        """Give it up without waiting for its end, which needs the missing worker."""
        await self._give_up(RELEASE, 0.0)

    async def _leave(self, error: BaseException | None) -> None:
        if self._pool.quarantine and (self.lost or may_run_on(error)):
            await self._give_up(RETIRE, 0.0)
        else:
            await self.release()

    async def detach(self) -> Handoff:
        self._still("detach")
        if self._pool.on_holder_close == "fast":
            raise Misused(
                'can\'t detach: with on_holder_close="fast" the server ends the permit together with this '
                'run, also where it continues as new; take on_holder_close="safe"'
            )
        await self.renew()
        if self._pool.quarantine and self._child is not None:
            # else the end of this run, which started the permit, would have it retire
            if not await self._signal(HAND_OVER):
                self._lose(self._gone())
            self._still("detach")
        self._stop("detached")
        return Handoff(
            resource=self._resource,
            slots=[self.slot],
            run_id=self._run_id,
            token=self._token,
            ttl=self._ttl,
            acquired_at=self._acquired_at,
            until=self._until,
            renews=self._renews,
        )

    async def _give_up(self, signal: str | None, patience: float) -> bool:
        if self._over:
            return False
        held = not self.lost
        self._over = "released"
        try:
            return await to_its_end(self._end(signal, patience)) and held
        finally:
            self._stop("released")

    async def _end(self, signal: str | None, patience: float) -> bool:
        """Send the signal and wait for the end. Returns whether the permit was still there.

        Without the wait the holder's next step could come first, and whether the permit ended as "released"
        or "terminated" would be chance.
        """
        if self.ended or signal is None or not await self._signal(signal):
            return False
        if patience:
            try:
                await workflow.wait_condition(
                    lambda: self.ended, timeout=patience, timeout_summary="the permit's end"
                )
            except TimeoutError:
                workflow.logger.warning(
                    "permit %s is released and has not ended within %g s: its worker is slow or away",
                    self._named(), patience,
                )  # fmt: skip
        return True

    def _receive(self, news: PermitNews) -> None:
        if news.what == ARMED:
            if not self.armed:  # nothing has been renewed yet, so the permit knows better
                self._deadline = min(self._deadline, news.deadline - spare(self._ttl))
            self.armed = True
            self._token = news.token
        elif news.what == ENDING:
            self._lose("revoked", _CANCELLED)
        elif news.what == ENDED:
            self._has_ended(self._ran_out() if news.outcome == EXPIRED else "closed")

    def _child_closed(self, child: "asyncio.Future[str]") -> None:
        if child.cancelled():
            return  # the worker drops this run from its cache
        error = child.exception()
        if error is None:
            self._has_ended(self._ran_out() if child.result() == EXPIRED else "closed")
            return
        cause = error.cause if isinstance(error, ChildWorkflowError) else error
        if isinstance(cause, ApplicationError):
            self.failure = error
        if isinstance(cause, TimedOut):
            self._has_ended(self._ran_out())
        else:
            self._has_ended("revoked", _by_hand(cause))

    def _has_ended(self, reason: str, detail: str = "") -> None:
        self.ended = True
        self._lose(reason, detail)

    def _why(self) -> str:
        return self._detail or super()._why()

    def _stop(self, how: str) -> None:
        self._over = how
        if self._keeping is not None:
            self._keeping.cancel()
        self._state.unlisten(self._run_id)
        self._state.give_back(self._resource, self.slot)


_CANCELLED = "somebody has cancelled its workflow"


def _by_hand(cause: BaseException | None) -> str:
    """Why the permit's workflow has ended early, for people."""
    if isinstance(cause, TerminatedError):
        return "somebody has terminated its workflow"
    return _CANCELLED if isinstance(cause, CancelledError) else "its workflow has failed"


async def wait_until_armed(
    permit: SlotPermit, bound: float, pool: PermitPool, *, until: float
) -> None:
    """Wait until it has reported or ended. Raises `NotServed` after `bound` seconds.

    To end it takes a worker, so it can only be asked to end then. The server ends it at the time `until`.
    """
    try:
        await workflow.wait_condition(
            lambda: permit.armed or permit.ended,
            timeout=bound,
            timeout_summary="the permit's report",
        )
    except TimeoutError:
        await permit.leave_unserved()
        queue, taken = queue_of(pool), permit_workflow_id(permit.resource, permit.slot)
        mend = serve_hint(queue)
        if queue == workflow.info().task_queue:
            mend = "register PermitSlotWorkflow with this worker, as DibsPlugin does"
        latest = datetime.fromtimestamp(until, UTC).strftime("%Y-%m-%d %H:%M UTC")
        raise NotServed(
            f"{unserved_message(queue, ' for permits')}: {taken} was started there and no worker took it up "
            f"within {format_duration(bound)}: {mend}; or name the queue that has one by task_queue= or "
            f"TEMPORAL_TASK_QUEUE. Slot {permit.slot} stays taken until a worker of {queue!r} has come, "
            f"at the latest until {latest}; {terminate_hint(taken)} frees it now. "
            "(A worker with another PermitSlotWorkflow than ours needs armed=False.)"
        ) from None


def queue_of(pool: PermitPool) -> str:
    """The task queue of its permits: the one that was named, else that of this workflow."""
    return pool.task_queue or workflow.info().task_queue


async def reattach_slot(pool: PermitPool, handoff: Handoff) -> SlotPermit:
    """The permit that an earlier run has detached. Raises `PermitLost` if it has ended meanwhile."""
    slot, info = handoff.slots[0], workflow.info()
    run_state().take(pool.resource, slot)
    permit = SlotPermit(
        pool,
        slot,
        run_id=handoff.run_id,
        ttl=handoff.ttl,
        began=workflow.time(),
        until=handoff.until,
        renews=handoff.renews,
        acquired_at=handoff.acquired_at,
        token=handoff.token,
    )
    adoption = Adoption(info.workflow_id, info.run_id, handoff.ttl)
    adopting = asyncio.create_task(permit._signal(ADOPT, adoption))
    cancelled = await settle(adopting)
    try:
        if not adopting.result():
            raise PermitLost(
                f"the permit on {pool.resource}:{slot} (token {handoff.token}) has ended "
                "before this run took it up",
                reason="closed",
            )
        if cancelled is not None:
            raise cancelled
        ends = handoff.until + pool.quarantine + options.GRACE
        await wait_until_armed(permit, options.REPORT_TIMEOUT, pool, until=ends)
        await permit.stands()
        permit.ensure()
    except BaseException:
        await permit.release()
        raise
    permit.keep()
    return permit
