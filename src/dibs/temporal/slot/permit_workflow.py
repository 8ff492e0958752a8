"""The workflow that is a permit: while it runs, its ID is taken, and so is the slot."""

import asyncio
from datetime import UTC, datetime, timedelta

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from dibs.core.timing import margin
from dibs.stores.temporal.protocol import ids
from dibs.stores.temporal.protocol import permits as said
from dibs.stores.temporal.protocol.permits import (
    Adoption,
    PermitNews,
    PermitSlotInput,
    PermitStatus,
)
from dibs.stores.temporal.protocol.wire import too_new
from dibs.stores.temporal.workflows.permit_runs import signal_run

LONGEST_MARGIN = 5.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def trusted(sent: float, ttl: float, until: float) -> float:
    """Its holder stops a little before the permit does, so that nobody else has it by then."""
    return min(sent + ttl, until) - spare(ttl)


def spare(ttl: float) -> float:
    """By how much its holder stops before it."""
    return min(margin(ttl), LONGEST_MARGIN)


def microseconds(moment: datetime) -> int:
    """Microseconds since 1970, exactly."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


@workflow.defn(name=ids.PERMIT)
class PermitSlotWorkflow:
    """Stands until it is released or its lease has ended; its result tells which of the two it was.

    A holder that only knows `release` and the first three fields of the input is served as well.
    """

    @workflow.init
    def __init__(self, given: PermitSlotInput) -> None:
        self._given = given
        info = workflow.info()
        self._token = microseconds(info.workflow_start_time)
        self._began = info.workflow_start_time.timestamp()
        self._deadline = self._began
        self._extend_from(self._began, given.lease_seconds)
        self._outcome = ""
        self._retires_at: float | None = None
        self._holder = (info.parent.workflow_id, info.parent.run_id) if info.parent else None
        self._told = given.armed
        self._adopted = False
        self._handed_over = False

    @workflow.run
    async def run(self, given: PermitSlotInput) -> str:
        """How it ended: `released`, `lease_expired`, `quarantine_over` or `holder_gone`."""
        worker = f"the worker of task queue {workflow.info().task_queue!r}"
        newer = too_new("this permit", given.format, worker, said.FORMAT)
        if newer:
            raise ApplicationError(newer, type="IncompatibleVersion", non_retryable=True)
        self._describe()
        arming = asyncio.create_task(self._arm()) if self._told else None
        try:
            return await self._stand()
        finally:
            del arming  # kept until here, as a loop knows its tasks only weakly
            if self._adopted:
                await self._tell(said.ENDED)

    @workflow.signal(name=said.RELEASE)
    def release(self) -> None:
        """The holder is done."""
        self._end(said.RELEASED)

    @workflow.signal(name=said.RETIRE)
    def retire(self) -> None:
        """The holder was stopped, and what it had begun may not be."""
        self._retire()

    @workflow.signal(name=said.HAND_OVER)
    def hand_over(self) -> None:
        """The run that started it ends, and the server will cancel it for that: it stands all the same.

        That cancellation may come before the next run adopts it or after. No other one can follow, as the
        server takes one only.
        """
        self._handed_over = True

    @workflow.signal(name=said.EXTEND)
    def extend(self, seconds: float) -> None:
        """The lease stands for so long from now; never shorter than it did."""
        self._extend_from(workflow.time(), seconds)

    @workflow.update(name=said.EXTEND)
    def extended(self, seconds: float) -> float:
        """Likewise; answers when the lease ends, in seconds since 1970."""
        self._extend_from(workflow.time(), seconds)
        return self._deadline

    @workflow.signal(name=said.ADOPT, unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def adopt(self, by: Adoption) -> None:
        """Another workflow holds it from now on, as after a continue-as-new; it is told that it does."""
        self._holder = by.workflow_id, by.run_id
        self._adopted = self._told = True
        self._retires_at = None
        self._extend_from(workflow.time(), by.lease_seconds)
        self._describe()
        await self._arm()

    @workflow.query(name=said.STATUS)
    def status(self) -> PermitStatus:
        """Who holds it, and until when."""
        return PermitStatus(
            resource=self._given.resource,
            slot=self._given.slot,
            token=self._token,
            deadline=self._deadline,
            holder=self._holder[0] if self._holder else "",
            note=self._given.note,
            retiring=self._retires_at is not None,
        )

    async def _stand(self) -> str:
        while not self._outcome:
            try:
                await self._next_change()
            except TimeoutError:
                if workflow.time() >= self._ends():  # else it was renewed meanwhile
                    self._end(said.EXPIRED if self._retires_at is None else said.QUARANTINE_OVER)
            except asyncio.CancelledError:  # by its holder's end, or by a person
                if not self._given.quarantine_seconds:
                    raise
                if not self._handed_over:
                    self._retire()
        return self._outcome

    async def _next_change(self) -> None:
        before = self._retires_at

        def changed() -> bool:
            return bool(self._outcome) or self._retires_at != before

        await workflow.wait_condition(
            changed,
            timeout=max(self._ends() - workflow.time(), 0.0),
            timeout_summary="the lease" if before is None else "the quarantine",
        )

    def _end(self, outcome: str) -> None:
        """Only the first outcome counts."""
        self._outcome = self._outcome or outcome

    def _ends(self) -> float:
        return self._deadline if self._retires_at is None else self._retires_at

    def _retire(self) -> None:
        """The slot stays taken while work may go on, and whoever holds it learns that it ends."""
        if self._retires_at is None:
            self._retires_at = workflow.time() + self._given.quarantine_seconds
            if self._told:
                self._ending = asyncio.create_task(self._tell(said.ENDING))

    async def _arm(self) -> None:
        """Tell the holder that it stands. One that has ended holds nothing: nobody has used the slot.

        Unless an earlier run has: what that began may go on for as long as the lease.
        """
        if not await self._tell(said.ARMED) and not self._adopted:
            self._end(said.HOLDER_GONE)

    async def _tell(self, what: str) -> bool:
        if self._holder is None:
            return False
        news = PermitNews(
            permit=workflow.info().run_id,
            what=what,
            token=self._token,
            deadline=self._deadline,
            outcome=self._outcome,
        )
        return await signal_run(*self._holder, said.NEWS, news)

    def _extend_from(self, now: float, seconds: float) -> None:
        until = now + seconds
        if self._given.max_hold_seconds is not None:
            until = min(until, self._began + self._given.max_hold_seconds)
        self._deadline = max(self._deadline, until)

    def _describe(self) -> None:
        holder = f"`{self._holder[0]}`" if self._holder else "a client"
        note = f": {self._given.note}" if self._given.note else ""
        workflow.set_current_details(
            f"Slot {self._given.slot} of `{self._given.resource}` is held by {holder}{note}"
        )
