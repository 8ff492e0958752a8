"""Calls to a server that is killed now and then: tried again until it answers."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from temporalio.service import RPCError, RPCStatusCode

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
