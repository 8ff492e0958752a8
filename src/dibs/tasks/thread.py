"""A plain function in a thread of its own, awaited until it has really ended."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import Any


async def in_thread(function: Callable[[], Any], name: str, given_up: Callable[[], bool]) -> Any:
    """Run it, and return what it returned.

    Nothing interrupts a thread: a cancelled caller waits for its end, and is cancelled then, unless it
    is given up. The thread is a daemon, so that one that never ends doesn't keep the process alive.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    context = copy_context()

    def run() -> None:
        outcome: tuple[Any, BaseException | None]
        try:
            outcome = (context.run(function), None)
        except BaseException as error:  # noqa: BLE001  # it is the caller's
            outcome = (None, error)
        with suppress(RuntimeError):  # the loop is closed, and nobody waits in it any more
            loop.call_soon_threadsafe(_resolve, done, outcome)

    threading.Thread(target=run, name=name, daemon=True).start()
    cancelled = await _ended(done, given_up)
    result, error = done.result()
    if error is not None:
        raise error
    if cancelled is not None:
        raise cancelled
    return result


async def _ended(
    done: "asyncio.Future[Any]", given_up: Callable[[], bool]
) -> asyncio.CancelledError | None:
    """Wait for the end, and keep back the cancellations that come meanwhile."""
    cancelled = None
    while not done.done():
        try:
            await asyncio.wait({done})
        except asyncio.CancelledError as error:
            if given_up():
                raise
            cancelled = error
    return cancelled


def _resolve(done: "asyncio.Future[Any]", outcome: Any) -> None:
    if not done.done():
        done.set_result(outcome)
