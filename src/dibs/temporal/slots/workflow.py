"""The workflow that is a permit in slot mode, and the messages between it and its holder.

While it runs, its ID is taken, and so is the slot.
"""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from dibs.stores.temporal import ids
from dibs.stores.temporal.wire import too_new
from dibs.temporal.sdk import GONE

# -- messages -----------------------------------------------------------------------------------------

FORMAT = 1

RELEASE = "release"
"""A signal to a permit: its holder has finished."""
EXTEND = "extend"
"""A signal and an update: the lease lasts for this many seconds from now."""
ADOPT = "adopt"
"""A signal: another workflow run is the holder now."""
HAND_OVER = "hand_over"
"""A signal: the holder's run ends and the next one adopts the permit. That end must cancel nothing."""
RETIRE = "retire"
"""A signal: the holder was stopped. What it began can go on for as long as the quarantine."""
STATUS = "status"
"""A query."""
NEWS = "dibs-permit"
"""The signal from a permit to its holder."""

ARMED = "armed"
ENDING = "ending"
ENDED = "ended"

RELEASED = "released"
EXPIRED = "lease_expired"
HOLDER_GONE = "holder_gone"
"""The holder had ended before the permit could report."""
QUARANTINE_OVER = "quarantine_over"


@dataclass
class PermitSlotInput:
    """Input of a permit. A holder must give the first three fields only."""

    resource: str
    slot: str
    lease_seconds: float
    armed: bool = False
    """Report to the holder, which is the workflow that started it."""
    max_hold_seconds: float | None = None
    """No renewal extends it beyond this, counted from its start."""
    quarantine_seconds: float = 0.0
    """How long it keeps the slot after it was cancelled, as by its holder's end, or told to retire."""
    note: str = ""
    """For people."""
    format: int = FORMAT


@dataclass
class PermitNews:
    """Message from a permit to its holder."""

    permit: str
    """The run ID of the permit."""
    what: str
    """`armed`, `ending` or `ended`."""
    token: int = 0
    """Start of its run, in microseconds since 1970. It grows with every permit of a slot."""
    deadline: float = 0.0
    """When its lease ends unless it is renewed, in seconds since 1970."""
    outcome: str = ""
    """With `ended`: how."""


@dataclass
class Adoption:
    """The new holder of a permit."""

    workflow_id: str
    run_id: str
    lease_seconds: float


@dataclass
class PermitStatus:
    """Answer to the status query."""

    resource: str
    slot: str
    token: int
    deadline: float
    holder: str
    """The workflow ID of its holder. Empty if a client started it."""
    note: str = ""
    retiring: bool = False
    """It has no holder any more, and keeps its slot for its quarantine."""


_NO_ARGUMENT: Any = object()


async def signal_run(workflow_id: str, run_id: str, name: str, arg: Any = _NO_ARGUMENT) -> bool:
    """Signal that very run. Returns False if it is over. Raises `FailureError` if the server refuses.

    After True the signal is in the history of a running workflow, which handles it before it can end.
    Cancellation stops the wait, not the signal: if a signal is cancelled in the same workflow task that
    reports its failure, Temporal takes that for a nondeterminism error, at each retry.
    """
    signalling = asyncio.create_task(_signal(workflow_id, run_id, name, arg))
    signalling.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return await asyncio.shield(signalling)


async def _signal(workflow_id: str, run_id: str, name: str, arg: Any) -> bool:
    run = workflow.get_external_workflow_handle(workflow_id, run_id=run_id)
    try:
        if arg is _NO_ARGUMENT:
            await run.signal(name)
        else:
            await run.signal(name, arg)
    except ApplicationError as error:
        if error.type == GONE:
            return False
        raise
    return True


# -- the workflow -------------------------------------------------------------------------------------

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def microseconds(moment: datetime) -> int:
    """Microseconds since 1970, exactly."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


@workflow.defn(name=ids.PERMIT)
class PermitSlotWorkflow:
    """Runs until it is released or its lease has ended. The result says which.

    It also serves holders that only know `release` and the first three fields of the input.
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
        self._reports = given.armed
        self._adopted = False
        self._handed_over = False

    @workflow.run
    async def run(self, given: PermitSlotInput) -> str:
        """How it ended: `released`, `lease_expired`, `quarantine_over` or `holder_gone`."""
        worker = f"the worker of task queue {workflow.info().task_queue!r}"
        newer = too_new("this permit", given.format, worker, FORMAT)
        if newer:
            raise ApplicationError(newer, type="IncompatibleVersion", non_retryable=True)
        self._describe()
        arming = asyncio.create_task(self._arm()) if self._reports else None
        try:
            return await self._until_ended()
        finally:
            del arming  # kept until here, because a loop refers to its tasks only weakly
            if self._adopted:
                await self._report(ENDED)

    @workflow.signal(name=RELEASE)
    def release(self) -> None:
        """The holder has finished."""
        self._end(RELEASED)

    @workflow.signal(name=RETIRE)
    def retire(self) -> None:
        """The holder was stopped, and what it began may go on."""
        self._retire()

    @workflow.signal(name=HAND_OVER)
    def hand_over(self) -> None:
        """The run that started it ends, and the server cancels the permit for that: ignore it.

        The cancellation can come before the next run adopts the permit or after. It comes only once, since
        the server records one per workflow.
        """
        self._handed_over = True

    @workflow.signal(name=EXTEND)
    def extend(self, seconds: float) -> None:
        """The lease lasts for this many seconds from now; it never becomes shorter."""
        self._extend_from(workflow.time(), seconds)

    @workflow.update(name=EXTEND)
    def extended(self, seconds: float) -> float:
        """Likewise. Returns when the lease ends, in seconds since 1970."""
        self._extend_from(workflow.time(), seconds)
        return self._deadline

    @workflow.signal(name=ADOPT, unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def adopt(self, by: Adoption) -> None:
        """Another run is the holder now, as after a continue-as-new. The permit reports to it."""
        self._holder = by.workflow_id, by.run_id
        self._adopted = self._reports = True
        self._retires_at = None
        self._extend_from(workflow.time(), by.lease_seconds)
        self._describe()
        await self._arm()

    @workflow.query(name=STATUS)
    def status(self) -> PermitStatus:
        """The permit's holder and deadline."""
        return PermitStatus(
            resource=self._given.resource,
            slot=self._given.slot,
            token=self._token,
            deadline=self._deadline,
            holder=self._holder[0] if self._holder else "",
            note=self._given.note,
            retiring=self._retires_at is not None,
        )

    async def _until_ended(self) -> str:
        while not self._outcome:
            try:
                await self._next_change()
            except TimeoutError:
                if workflow.time() >= self._ends():  # else it was renewed meanwhile
                    self._end(EXPIRED if self._retires_at is None else QUARANTINE_OVER)
            except asyncio.CancelledError:  # by its holder's end, or by a person
                if not self._given.quarantine_seconds:
                    raise
                if not self._handed_over:
                    self._retire()
        return self._outcome

    async def _next_change(self) -> None:
        before = self._retires_at
        await workflow.wait_condition(
            lambda: bool(self._outcome) or self._retires_at != before,
            timeout=max(self._ends() - workflow.time(), 0.0),
            timeout_summary="the lease" if before is None else "the quarantine",
        )

    def _end(self, outcome: str) -> None:
        """Only the first outcome counts."""
        self._outcome = self._outcome or outcome

    def _ends(self) -> float:
        return self._deadline if self._retires_at is None else self._retires_at

    def _retire(self) -> None:
        """Keep the slot while work may go on, and report the end to the holder."""
        if self._retires_at is None:
            self._retires_at = workflow.time() + self._given.quarantine_seconds
            if self._reports:
                self._ending = asyncio.create_task(self._report(ENDING))

    async def _arm(self) -> None:
        """Report that it is served. If the holder has ended, nobody has used the slot: end.

        After an adoption an earlier run may have used it, and its work can go on for as long as the lease.
        """
        if not await self._report(ARMED) and not self._adopted:
            self._end(HOLDER_GONE)

    async def _report(self, what: str) -> bool:
        if self._holder is None:
            return False
        news = PermitNews(
            permit=workflow.info().run_id,
            what=what,
            token=self._token,
            deadline=self._deadline,
            outcome=self._outcome,
        )
        return await signal_run(*self._holder, NEWS, news)

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
