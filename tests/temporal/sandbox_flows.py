"""Workflows and activities for Temporal's sandbox, which imports this module anew."""

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.exceptions import ApplicationError

from dibs import AllOf, Lock, RWLock, Semaphore, connect, sync, temporal
from dibs.errors import InvalidName
from dibs.temporal import DEFAULT_BACKOFF, DEFAULT_LEASE, current_lock, needs_lock

# As in a module that has activities, too: none of it may keep the workflow from being loaded.
CLIENT = connect("sqlite:////nowhere/leases.db")


@Lock.wraps("report:{day}")
async def report_plainly(day: str) -> None: ...


NOT_IN_WORKFLOWS: dict[str, tuple[Callable[[], Any], str]] = {
    "Semaphore": (
        lambda: Semaphore("x", capacity=2).try_acquire(),
        "`from dibs.temporal import Semaphore`",
    ),
    "RWLock": (lambda: RWLock("x").read().__aenter__(), "dibs's RWLock"),
    "AllOf": (lambda: AllOf(Lock("x"), Lock("y")).__aenter__(), "dibs's AllOf"),
    "client": (lambda: CLIENT.status("x"), "dibs's Client"),
    "bound": (lambda: CLIENT.lock("x").__aenter__(), "`from dibs.temporal import Lock`"),
    "wraps": (lambda: report_plainly("monday"), "`from dibs.temporal import Lock`"),
    "blocking": (lambda: sync.Lock("x").__enter__(), "`from dibs.temporal import Lock`"),
}
"""What workflow code must not use, and what the error names."""


@workflow.defn
class UsesPlainLocks:
    """Returns those that did not fail as they should."""

    @workflow.run
    async def run(self) -> list[str]:
        wrong = []
        for name, (use, words) in NOT_IN_WORKFLOWS.items():
            try:
                await use()
            except ApplicationError as error:
                if (error.type, error.non_retryable) != ("NotInWorkflow", True):
                    wrong.append(f"{name}: {error!r}")
                if words not in error.message:
                    wrong.append(f"{name}: {error.message}")
            else:
                wrong.append(name)
        return wrong


@workflow.defn
class Raises:
    """An error of ours that is none of Temporal's."""

    @workflow.run
    async def run(self) -> None:
        raise InvalidName("it has no name")


@activity.defn
@needs_lock("report:{day}", capacity=2)
async def report(day: str) -> str:
    return f"{day}: {current_lock().key}"


@workflow.defn
class Reports:
    @workflow.run
    async def run(self, day: str) -> str:
        return await workflow.execute_activity(
            report, day, schedule_to_close_timeout=timedelta(seconds=30)
        )


@workflow.defn
class Holds:
    """Holds a permit for a moment."""

    @workflow.run
    async def run(self, resource: str, queue: str) -> tuple[str, int]:
        """The slot, and which copy of our module this is."""
        async with temporal.Semaphore(resource, capacity=1, task_queue=queue).acquire() as permit:
            return permit.slot, id(sys.modules["dibs.temporal.semaphore"])


@workflow.defn(name="PermitSlotWorkflow", sandboxed=False)
class OwnPermit:
    """A user's own, such as the guide's."""

    @workflow.run
    async def run(self) -> None: ...


@workflow.defn
class Gated:
    """Runs an activity under one of a few permits, with its slot as an argument."""

    @workflow.run
    async def run(self, gate: str, capacity: int, job: str) -> str:
        permits = temporal.Semaphore(gate, capacity=capacity)
        async with permits.acquire(lease=DEFAULT_LEASE, backoff=DEFAULT_BACKOFF / 50) as slot:
            found: str = await workflow.execute_activity(
                "gated_work",
                args=[job, slot],
                start_to_close_timeout=timedelta(minutes=5),
                heartbeat_timeout=timedelta(seconds=30),
                result_type=str,
            )
            return found


@workflow.defn
class Overdue:
    """Stays in its block for longer than its lease."""

    @workflow.run
    async def run(self, gate: str, lease: float) -> None:
        semaphore = temporal.Semaphore(gate, capacity=1)
        async with semaphore.acquire(lease=timedelta(seconds=lease)):
            await workflow.sleep(timedelta(minutes=1))


@activity.defn
async def gated_work(job: str, slot: str) -> str:
    """Uses the slot as a text and as a number."""
    activity.heartbeat(job)
    return f"{job} on device {int(slot)}"
