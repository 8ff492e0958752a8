"""A permit goes from a run to the next: the new run has the permit report to it."""

import asyncio
from typing import TYPE_CHECKING

from temporalio import workflow

from leasehold.backends.temporal import ids
from leasehold.backends.temporal.outside import signal_run
from leasehold.temporal import defaults
from leasehold.temporal import permit_input as said
from leasehold.temporal.ending import settle
from leasehold.temporal.failures import PermitLost
from leasehold.temporal.handoff import Handoff
from leasehold.temporal.here import here
from leasehold.temporal.permit_input import Adoption
from leasehold.temporal.slot_arming import wait_until_armed
from leasehold.temporal.slot_permit import SlotPermit

if TYPE_CHECKING:
    from leasehold.temporal.semaphore import Semaphore


async def reattach_slot(semaphore: "Semaphore", handoff: Handoff) -> SlotPermit:
    """The permit that an earlier run has detached. Raises `PermitLost` if it has ended meanwhile."""
    here().take(semaphore.resource, handoff.slots[0])
    permit = _permit(semaphore, handoff)
    adopting = asyncio.create_task(_adopt(handoff))
    cancelled = await settle(adopting)
    try:
        if not adopting.result():
            raise PermitLost(
                f"the permit on {semaphore.resource}:{permit.slot} (token {handoff.token}) has ended "
                "before this run took it up",
                reason="closed",
            )
        if cancelled is not None:
            raise cancelled
        ends = workflow.time() + handoff.ttl if handoff.until is None else handoff.until
        await wait_until_armed(
            permit, defaults.ARMED, semaphore, until=ends + semaphore.quarantine + defaults.GRACE
        )
        permit.ensure()
    except BaseException:
        await permit.release()
        raise
    permit.keep()
    return permit


def _permit(semaphore: "Semaphore", handoff: Handoff) -> SlotPermit:
    """As the run before knew it."""
    now = workflow.time()
    return SlotPermit(
        resource=semaphore.resource,
        slot=handoff.slots[0],
        run_id=handoff.run_id,
        ttl=handoff.ttl,
        began=now,
        until=now + handoff.ttl if handoff.until is None else handoff.until,
        renews=handoff.until is not None if handoff.renews is None else handoff.renews,
        acquired_at=handoff.acquired_at or now,
        stays=semaphore.on_holder_close == "safe",
        quarantine=semaphore.quarantine,
        token=handoff.token,
    )


async def _adopt(handoff: Handoff) -> bool:
    """Have it report to this run; False if it has ended."""
    info = workflow.info()
    adoption = Adoption(info.workflow_id, info.run_id, handoff.ttl)
    permit_id = ids.permit_id(handoff.resource, handoff.slots[0])
    return await signal_run(permit_id, handoff.run_id, said.ADOPT, adoption)
