"""The `async with` of workflow code: what is acquired on entering is given up on leaving."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Any

from temporalio.exceptions import is_cancelled_exception

from dibs.temporal.permits.guard import Guard
from dibs.temporal.permits.permit import Permit


class Acquiring:
    """What `acquire()` returns: enter it with `async with`, or await it and release the permit yourself.

    In a block the body is cancelled as soon as the permit is lost, and `LeaseLost` is raised on leaving.
    The body's own exception is never hidden by that, and somebody else's cancellation never swallowed.
    """

    def __init__(self, obtain: Callable[[], Awaitable[Permit]]) -> None:
        self._obtain = obtain
        self._entered: list[tuple[Permit, Guard]] = []

    def __await__(self) -> Generator[Any, Any, Permit]:
        return self._obtain().__await__()

    async def __aenter__(self) -> Permit:
        permit = await self._obtain()
        guard = Guard()
        guard.enter()
        permit._on_lost = guard.fire
        if permit.lost:
            guard.fire()
        self._entered.append((permit, guard))
        return permit

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, GeneratorExit):  # the run is put away, and goes on elsewhere
            return
        permit, guard = self._entered.pop()
        permit._on_lost = None
        loss = permit._loss() if permit.lost else None
        silent, cancelled = False, None
        try:
            silent = await guard.leave(error)
        except asyncio.CancelledError as another:
            cancelled = another
        try:
            await permit._leave(error)
        except asyncio.CancelledError as another:
            cancelled = another
        if cancelled is not None and (error is None or is_cancelled_exception(error)):
            raise cancelled
        if loss is None:
            return
        if silent:
            raise loss from (None if isinstance(error, asyncio.CancelledError) else error)
        if error is not None:
            error.add_note(str(loss))
