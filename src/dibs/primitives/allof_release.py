"""Several leases are given up in one round trip."""

from collections.abc import Sequence

from dibs.primitives.lease import LeaseBase
from dibs.runtime.port import Runtime


async def release_together(rt: Runtime, leases: Sequence[LeaseBase]) -> bool:
    """Give them up; True if all were held until now. Never raises because the store is away."""
    stood = all(lease._stands for lease in leases)
    parting: list[LeaseBase] = []
    try:
        for lease in leases:
            hold = lease._part()
            if hold is not None:
                parting.append(hold)
        told = await rt.call_all([hold._farewell() for hold in parting]) if parting else ()
    except BaseException:
        for hold in parting:
            hold._abandon()
        raise
    were_held = [hold._parted(each) for hold, each in zip(parting, told, strict=True)]
    return stood and all(were_held)
