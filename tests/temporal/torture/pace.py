"""How fast the machine is: on one that takes seconds for a step nobody is served in time."""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress

from temporalio.client import Client, WorkflowFailureError
from temporalio.service import RPCError, RPCStatusCode

from dibs.stores.temporal import ids
from dibs.temporal.slots.workflow import PermitSlotInput
from tests.temporal.torture.diary import Diary
from tests.temporal.torture.plan import Plan

PATIENCE = 60.0
_PASSES = {
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.CANCELLED,
    RPCStatusCode.DEADLINE_EXCEEDED,
    RPCStatusCode.INTERNAL,
    RPCStatusCode.UNKNOWN,
    RPCStatusCode.ABORTED,
    RPCStatusCode.RESOURCE_EXHAUSTED,
}


async def steady[T](call: Callable[[], Awaitable[T]]) -> T:
    """What it returns, or what it raises that another try would not mend."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return await call()
        except RPCError as error:
            if error.status not in _PASSES or time.monotonic() > until:
                raise
            await asyncio.sleep(0.2)


async def found[T](call: Callable[[], Awaitable[T]]) -> T | None:
    """Likewise; nothing for what isn't there, or has ended already."""
    try:
        return await steady(call)
    except RPCError as error:
        if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.FAILED_PRECONDITION):
            return None
        raise


class Pace:
    """Has a permit that nobody wants start and end, over and over. One that takes long is a disturbance."""

    def __init__(self, client: Client, queue: str, diary: Diary, plan: Plan) -> None:
        self._client, self._queue, self._diary = client, queue, diary
        self._lease = plan.lease
        self.slow = 0
        """So many halves of a lease passed before such a permit had ended, which takes three steps."""

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            walking = asyncio.create_task(self._walk())
            try:
                while not (await asyncio.wait((walking,), timeout=self._lease / 2))[0]:
                    self.slow += 1
                    self._diary.disturbed(0)
                await walking
            finally:
                walking.cancel()
            await asyncio.sleep(self._lease)

    async def _walk(self) -> None:
        name = f"pace-{uuid.uuid4().hex[:8]}"
        given = PermitSlotInput(name, "0", lease_seconds=0.0)
        with suppress(RPCError, WorkflowFailureError):  # a server that is struck may say anything
            walking = await steady(
                lambda: self._client.start_workflow(
                    ids.PERMIT, given, id=name, task_queue=self._queue
                )
            )
            await steady(walking.result)
