"""Several calls that somebody waits for together."""

import asyncio
from collections.abc import Sequence

from dibs.errors import BackendUnavailable, DibsError
from dibs.runtime.flight import Call
from dibs.runtime.port import Told


async def told_of(calls: Sequence[Call], patience: float | None) -> Sequence[Told]:
    """What came of each, within `patience` seconds. A cancelled caller leaves; what has left goes on."""
    try:
        await asyncio.wait([call.future for call in calls], timeout=patience)
        return [_told(call, patience) for call in calls]
    finally:
        for call in calls:
            if not (call.future.cancel() or call.future.cancelled()):
                call.future.exception()  # has been seen, or is of no interest any more


def _told(call: Call, patience: float | None) -> Told:
    if not call.future.done():
        return BackendUnavailable(f"the store did not answer within {patience:.3g} s")
    error = call.future.exception()
    if error is None:
        return call.future.result()
    if isinstance(error, DibsError):
        return error
    raise error
