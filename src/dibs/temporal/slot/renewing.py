"""A permit in slot mode is kept by signals to its workflow, and lost by the workflow's own time."""

import asyncio
from contextlib import suppress
from math import inf

from temporalio import workflow
from temporalio.exceptions import FailureError

from dibs.backends.temporal.protocol.ids import permit_workflow_id
from dibs.backends.temporal.workflows.permit_runs import PermitRun
from dibs.config import Duration, safe_ttl
from dibs.temporal.failures import checked
from dibs.temporal.permits.permit import Permit
from dibs.temporal.slot.timing import LONGEST_MARGIN, spare, trusted


class RenewedSlot(Permit):
    """What a permit in slot mode does while it is held; how it ends is told in `SlotPermit`."""

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
        token: int | None,
        acquired_at: float | None,
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
