"""What has been begun is brought to its end, however often its task is cancelled meanwhile."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from temporalio import workflow


async def settle(task: asyncio.Task[Any]) -> asyncio.CancelledError | None:
    """Wait until a task is done; the last cancellation that came meanwhile, for the caller to raise."""
    cancelled = None
    while not task.done():
        try:
            await workflow.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled


async def to_its_end[T](what: Coroutine[Any, Any, T]) -> T:
    """Its result. A cancellation that came meanwhile is raised afterwards, not into it."""
    task = asyncio.create_task(what)
    cancelled = await settle(task)
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result
