"""A permit goes from a run to the next: the new run has the permit report to it."""

import asyncio

from temporalio import workflow

from dibs.backends.temporal.protocol import ids
from dibs.backends.temporal.protocol.permits import Adoption
from dibs.backends.temporal.workflows.permit_runs import PermitRun
from dibs.temporal import defaults
from dibs.temporal.failures import PermitLost
from dibs.temporal.permits.ending import settle
from dibs.temporal.permits.handoff import Handoff
from dibs.temporal.permits.pool import Pool
from dibs.temporal.slot.arming import wait_until_armed
from dibs.temporal.slot.here import here
from dibs.temporal.slot.permit import SlotPermit


async def reattach_slot(pool: Pool, handoff: Handoff) -> SlotPermit:
    """The permit that an earlier run has detached. Raises `PermitLost` if it has ended meanwhile."""
    here().take(pool.resource, handoff.slots[0])
    permit = _permit(pool, handoff)
    adopting = asyncio.create_task(_adopt(handoff))
    cancelled = await settle(adopting)
    try:
        if not adopting.result():
            raise PermitLost(
                f"the permit on {pool.resource}:{permit.slot} (token {handoff.token}) has ended "
                "before this run took it up",
                reason="closed",
            )
        if cancelled is not None:
            raise cancelled
        ends = handoff.until + pool.quarantine + defaults.GRACE
        await wait_until_armed(permit, defaults.ARMED, pool, until=ends)
        await permit.stands()
        permit.ensure()
    except BaseException:
        await permit.release()
        raise
    permit.keep()
    return permit


def _permit(pool: Pool, handoff: Handoff) -> SlotPermit:
    """As the run before knew it."""
    return SlotPermit(
        resource=pool.resource,
        slot=handoff.slots[0],
        run_id=handoff.run_id,
        ttl=handoff.ttl,
        began=workflow.time(),
        until=handoff.until,
        renews=handoff.renews,
        acquired_at=handoff.acquired_at,
        stays=pool.on_holder_close == "safe",
        quarantine=pool.quarantine,
        token=handoff.token,
    )


async def _adopt(handoff: Handoff) -> bool:
    """Have it report to this run; False if it has ended."""
    info = workflow.info()
    adoption = Adoption(info.workflow_id, info.run_id, handoff.ttl)
    permit_workflow_id = ids.permit_workflow_id(handoff.resource, handoff.slots[0])
    return await PermitRun(permit_workflow_id, handoff.run_id).adopt(adoption)
