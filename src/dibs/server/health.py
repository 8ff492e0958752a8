"""Whether a server lives, and whether requests should be sent to it."""

import asyncio
from typing import TYPE_CHECKING

from dibs.core.names import PROBE
from dibs.errors import DibsError
from dibs.model import Inspect, Status
from dibs.runtime.asyncio import AsyncRuntime
from dibs.server.drain import draining
from dibs.server.problems import Problem

if TYPE_CHECKING:
    from dibs.server.service import Service

PATIENCE = 2.0
"""So long a store may take to answer a probe, in seconds."""

FRESH = 1.0
"""So long an answer of the store's is good for all who ask, in seconds: asking often costs it nothing."""


class Health:
    """What `/readyz` says."""

    def __init__(self, service: "Service") -> None:
        self._service = service
        self._answered = True
        self._asked_at = float("-inf")
        self._asking: asyncio.Task[None] | None = None

    async def check(self) -> None:
        """Raises `Problem`, 503, where requests should go to another server."""
        if self._service.drain.begun:
            raise draining()
        if not self._service.keys.is_current:
            raise Problem("unavailable", "the server cannot read its records", retry_after=1)
        if not self._service.runtime.may_grant:
            raise Problem(
                "unavailable", "the server cannot read the placements of directories", retry_after=1
            )
        await self._ask_store()
        if not self._answered:
            raise Problem("unavailable", "the store does not answer", retry_after=1)

    async def _ask_store(self) -> None:
        """All who ask at a time share one look."""
        if self._asking is None:
            if self._service.now() - self._asked_at < FRESH:
                return
            self._asking = asyncio.create_task(self._look(), name="dibs health")
        await asyncio.shield(self._asking)

    async def _look(self) -> None:
        """While any of several stores answers, there is something to do here."""
        stores = self._service.runtime.stores
        try:
            self._answered = any(await asyncio.gather(*map(_answers, stores)))
        finally:
            self._asked_at = self._service.now()
            self._asking = None


async def _answers(store: AsyncRuntime) -> bool:
    try:
        async with asyncio.timeout(PATIENCE):
            answer = await store.call(Inspect(PROBE), PATIENCE)
    except (TimeoutError, DibsError):
        return False
    return isinstance(answer.reply, Status)
