"""A permit and a semaphore that do what the guide's do, its defects included: what ours is measured by."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import FailureError, WorkflowAlreadyStartedError


@dataclass
class GuidePermitInput:
    resource: str
    slot: str
    lease_seconds: float


@workflow.defn(name="PermitSlotWorkflow")
class GuidePermit:
    def __init__(self) -> None:
        self._released = False

    @workflow.signal(name="release")
    def release(self) -> None:
        self._released = True

    @workflow.run
    async def run(self, given: GuidePermitInput) -> str:
        try:
            await workflow.wait_condition(
                lambda: self._released, timeout=timedelta(seconds=given.lease_seconds)
            )
        except TimeoutError:
            return "lease_expired"
        return "released"


class GuideSemaphore:
    def __init__(self, resource: str, *, capacity: int, task_queue: str | None = None) -> None:
        self._resource = resource
        self._slots = [str(number) for number in range(capacity)]
        self._queue = task_queue

    @asynccontextmanager
    async def acquire(self, *, lease: timedelta, backoff: timedelta) -> AsyncIterator[str]:
        slot, permit = await self._take(lease, backoff)
        try:
            yield slot
        finally:
            try:
                await permit.signal("release")
            except FailureError as error:
                workflow.logger.info("already over: %s", error)

    async def _take(
        self, lease: timedelta, backoff: timedelta
    ) -> tuple[str, workflow.ChildWorkflowHandle[GuidePermit, str]]:
        random = workflow.random()
        while True:
            order = list(self._slots)
            random.shuffle(order)
            for slot in order:
                try:
                    permit = await workflow.start_child_workflow(
                        GuidePermit.run,
                        GuidePermitInput(self._resource, slot, lease.total_seconds()),
                        id=f"permit:{self._resource}:{slot}",
                        task_queue=self._queue,
                        execution_timeout=lease,
                    )
                except WorkflowAlreadyStartedError:
                    continue
                return slot, permit
            await workflow.sleep(backoff)
