"""A permit goes from a run to the next: the new run has the permit report to it."""

import asyncio
from typing import TYPE_CHECKING

from temporalio import workflow

from leasehold.backends.temporal import ids
from leasehold.temporal import defaults
from leasehold.temporal import permit_input as said
from leasehold.temporal.ending import settle
from leasehold.temporal.failures import PermitLost
from leasehold.temporal.handoff import Handoff
from leasehold.temporal.here import here
from leasehold.temporal.outside import signal_run
from leasehold.temporal.permit_input import Adoption
from leasehold.temporal.slot_arming import wait_until_armed
from leasehold.temporal.slot_permit import SlotPermit

if TYPE_CHECKING:
    from leasehold.temporal.semaphore import Semaphore


async def reattach_slot(semaphore: "Semaphore", handoff: Handoff) -> SlotPermit:
    """The permit that an earlier run has detached. Raises `PermitLost` if it has ended meanwhile."""
    slot, now = handoff.slots[0], workflow.time()
    here().take(semaphore.resource, slot)
    permit = SlotPermit(
        resource=semaphore.resource,
        slot=slot,
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
    info = workflow.info()
    adoption = Adoption(info.workflow_id, info.run_id, handoff.ttl)
    adopting = asyncio.create_task(
        signal_run(ids.permit_id(semaphore.resource, slot), handoff.run_id, said.ADOPT, adoption)
    )
    cancelled = await settle(adopting)
    try:
        if not adopting.result():
            raise PermitLost(
                f"the permit on {semaphore.resource}:{slot} (token {handoff.token}) has ended before this "
                "run took it up",
                reason="closed",
            )
        if cancelled is not None:
            raise cancelled
        await wait_until_armed(permit, defaults.ARMED, semaphore)
        permit.ensure()
    except BaseException:
        await permit.release()
        raise
    permit.keep()
    return permit
