"""Several calls that somebody waits for together."""

import asyncio
from collections.abc import Sequence

from dibs.errors import DibsError
from dibs.runtime.flight import Call
from dibs.runtime.port import Told


async def told_of(calls: Sequence[Call]) -> Sequence[Told]:
    """The outcome of each, when all have one. A cancelled caller leaves; what has left goes on."""
    try:
        await asyncio.wait([call.future for call in calls])
        return [_told(call) for call in calls]
    finally:
        for call in calls:
            if not (call.future.cancel() or call.future.cancelled()):
                call.future.exception()  # has been seen, or is of no interest any more


def _told(call: Call) -> Told:
    error = call.future.exception()
    if error is None:
        return call.future.result()
    if isinstance(error, DibsError):
        return error
    raise error
