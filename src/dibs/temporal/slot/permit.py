"""A permit in slot mode: the running workflow of that ID is the lock. How it is given up, and how it ends."""

import asyncio
from collections.abc import Awaitable, Callable
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
from dibs.locks.messages import format_duration
from dibs.stores.temporal.protocol import permits as said
from dibs.stores.temporal.protocol.ids import permit_workflow_id
from dibs.stores.temporal.protocol.permits import PermitNews
from dibs.stores.temporal.protocol.queues import serve, terminate, unserved
from dibs.stores.temporal.workflows.permit_runs import Child, PermitRun
from dibs.temporal import defaults
from dibs.temporal.failures import Misused, NotServed, checked
from dibs.temporal.permits.permit import Handoff, Permit, may_run_on, to_its_end
from dibs.temporal.permits.terms import Pool
from dibs.temporal.slot.here import here
from dibs.temporal.slot.permit_workflow import LONGEST_MARGIN, spare, trusted

type Telling = Callable[[], Awaitable[bool]]
"""A word to the permit; whether it was there to hear it."""


class SlotPermit(Permit):
    """Held while its workflow runs. It is told apart from later ones in the same slot by its run ID."""

    def __new__(cls, *, slot: str, **about: Any) -> Self:
        return str.__new__(cls, slot)

    def __init__(
        self,
        *,
        resource: str,
        slot: str,
        run_id: str,
        ttl: float,
        began: float,
        until: float,
        renews: bool,
        stays: bool,
        quarantine: float = 0.0,
        token: int | None = None,
        child: Child | None = None,
        acquired_at: float | None = None,
    ) -> None:
        super().__init__(
            resource=resource,
            slots=(slot,),
            run_id=run_id,
            token=token,
            ttl=ttl,
            deadline=trusted(began, ttl, until),
            acquired_at=began if acquired_at is None else acquired_at,
        )
        self._run = PermitRun(permit_workflow_id(resource, slot), run_id)
        self._renewed_at = began
        self._until = until
        self._renews = renews
        self._keeping: asyncio.Task[None] | None = None
        self._stays = stays
        self._quarantine = quarantine
        self._child = child
        self._here = here()
        self.armed = False
        """It has reported, so a worker serves it."""
        self.ended = False
        self.failure: BaseException | None = None
        """Why its workflow could not be a permit."""
        self._here.listen(run_id, self._hear)
        if child is not None:
            child.add_done_callback(self._child_closed)

    # -- while it is held -------------------------------------------------------------------------------

    def keep(self) -> None:
        """From now on it is renewed, and known to be lost at its deadline."""
        self._keeping = asyncio.create_task(self._keep())

    async def renew(self, ttl: Duration | None = None) -> None:
        self._still("renew")
        with checked():
            wanted = self._ttl if ttl is None else safe_ttl(ttl)
        if not await self._extend(wanted):
            self._lose(self._gone())
        self._still("renew")

    async def stands(self) -> bool:
        """Whether it can be relied on. One that was heard of too late is extended first.

        As long as it has not ended nobody else has its slot; and where each step takes long so would the
        steps of the next one.
        """
        if self.lost and not self._reason:
            with suppress(FailureError):
                return await self._extend(self._ttl) and not self.lost
        return not self.lost

    async def _keep(self) -> None:
        while not self.lost:
            now, due = workflow.time(), self._due()
            if now < due:
                what = (
                    "until the permit's renewal"
                    if due < self._deadline
                    else "the permit's deadline"
                )
                await workflow.sleep(min(due, self._deadline) - now, summary=what)
            elif not await self._is_there():
                return self._lose(self._gone())
        self._lose(self._ran_out())

    def _due(self) -> float:
        """When to renew next; never where its deadline is as late as it may be."""
        if not self._renews or self._deadline >= self._until - spare(self._ttl):
            return inf
        return self._renewed_at + self._ttl / 2

    async def _is_there(self) -> bool:
        """Renew it. Whoever waits for that longer than until its deadline learns of the loss too late."""
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
        if not await self._run.extend(ttl):
            return False
        self._renewed_at = sent
        self._deadline = max(self._deadline, trusted(sent, ttl, self._until))
        return True

    def _ran_out(self) -> str:
        """Why its time is over."""
        return "max_hold" if workflow.time() >= self._until - LONGEST_MARGIN else "expired"

    def _gone(self) -> str:
        """Why it has ended, where that is all that is known."""
        return self._ran_out() if workflow.time() >= self._deadline else "closed"

    # -- how it ends ------------------------------------------------------------------------------------

    async def release(self) -> bool:
        if self.reason in ("expired", "max_hold"):
            # it ends by itself within a moment, and its result says why
            return await self._give_up(_nothing_said, 0.0)
        return await self.give_back()

    async def give_back(self) -> bool:
        """End it now, whatever this run knows of its lease."""
        return await self._give_up(self._run.release, defaults.CONFIRMED)

    async def leave_unserved(self) -> None:
        """Give it up without waiting for its end, which needs the worker that isn't there."""
        await self._give_up(self._run.release, 0.0)

    async def _leave(self, error: BaseException | None) -> None:
        if self._quarantine and (self.lost or may_run_on(error)):
            await self._give_up(self._run.retire, 0.0)
        else:
            await self.release()

    async def detach(self) -> Handoff:
        self._still("detach")
        if not self._stays:
            raise Misused(
                'can\'t detach: with on_holder_close="fast" the server ends the permit together with this '
                'run, also where it continues as new; take on_holder_close="safe"'
            )
        await self.renew()
        await self._hand_over()
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

    async def _hand_over(self) -> None:
        """With a quarantine the end of the run that started it cancels it, also by a continue-as-new."""
        if not self._quarantine or self._child is None:
            return
        if not await self._run.hand_over():
            self._lose(self._gone())
        self._still("detach")

    async def _give_up(self, tell: Telling, patience: float) -> bool:
        if self._over:
            return False
        held = not self.lost
        self._over = "released"
        try:
            return await to_its_end(self._end(tell, patience)) and held
        finally:
            self._stop("released")

    async def _end(self, tell: Telling, patience: float) -> bool:
        """Whether it was there to be released. Its end is waited for: else the next step of its
        holder might overtake it, and "released" and "terminated" would be a coin's toss.
        """
        if self.ended or not await tell():
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

    def _hear(self, news: PermitNews) -> None:
        if news.what == said.ARMED:
            if not self.armed:  # nothing has been renewed yet, so the permit knows better
                self._deadline = min(self._deadline, news.deadline - spare(self._ttl))
            self.armed = True
            self._token = news.token
        elif news.what == said.ENDING:
            self._lose("revoked", CANCELLED)
        elif news.what == said.ENDED:
            self._has_ended(self._ran_out() if news.outcome == said.EXPIRED else "closed")

    def _child_closed(self, child: "asyncio.Future[str]") -> None:
        if child.cancelled():
            return  # the workflow is being put away
        error = child.exception()
        if error is None:
            self._has_ended(self._ran_out() if child.result() == said.EXPIRED else "closed")
            return
        cause = error.cause if isinstance(error, ChildWorkflowError) else error
        if isinstance(cause, ApplicationError):
            self.failure = error
        if isinstance(cause, TimedOut):
            self._has_ended(self._ran_out())
        else:
            self._has_ended("revoked", by_hand(cause))

    def _has_ended(self, reason: str, detail: str = "") -> None:
        self.ended = True
        self._lose(reason, detail)

    def _why(self) -> str:
        return self._detail or super()._why()

    def _stop(self, how: str) -> None:
        self._over = how
        if self._keeping is not None:
            self._keeping.cancel()
        self._here.unlisten(self._run_id)
        self._here.give_back(self._resource, self.slot)


async def _nothing_said() -> bool:
    return False


CANCELLED = "somebody has cancelled its workflow"


def by_hand(cause: BaseException | None) -> str:
    """What somebody did to the permit's workflow."""
    if isinstance(cause, TerminatedError):
        return "somebody has terminated its workflow"
    return CANCELLED if isinstance(cause, CancelledError) else "its workflow has failed"


async def wait_until_armed(permit: SlotPermit, bound: float, pool: Pool, *, until: float) -> None:
    """Until it has reported or ended. Raises `NotServed` where neither comes.

    It can't be ended then, only told to: that takes a worker. The server ends it, at `until`.
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
        mend = serve(queue)
        if queue == workflow.info().task_queue:
            mend = "register PermitSlotWorkflow with this worker, as DibsPlugin does"
        raise NotServed(
            f"{unserved(queue, ' for permits')}: {taken} was started there and no worker took it up within "
            f"{format_duration(bound)}: {mend}; or name the queue that has one by task_queue= or "
            f"TEMPORAL_TASK_QUEUE. Slot {permit.slot} stays taken until a worker of {queue!r} has come, "
            f"at the latest until {_moment(until)}; {terminate(taken)} frees it now. "
            "(A worker with another PermitSlotWorkflow than ours needs armed=False.)"
        ) from None


def queue_of(pool: Pool) -> str:
    """The task queue of its permits: the one that was named, else that of this workflow."""
    return pool.task_queue or workflow.info().task_queue


def _moment(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M UTC")
