"""The lease of a task lock: it lasts for `max_hold` and no longer, and leaves the lock closed behind it."""

import logging
from dataclasses import replace
from typing import NoReturn

from dibs.config import Duration
from dibs.model import Release
from dibs.primitives.ask import Grant, Terms
from dibs.primitives.lease import LeaseBase
from dibs.primitives.messages import LossReason, key_shown, span
from dibs.runtime.port import Runtime

log = logging.getLogger("dibs")


class TaskLeaseBase(LeaseBase):
    """What task leases of both worlds share; made by task locks only."""

    __slots__ = ("_asked_at", "_started", "_told")

    def __init__(self, rt: Runtime, key: bytes, terms: Terms, grant: Grant, me: object) -> None:
        # The store began to count between these two; each side is taken where it is the safe one.
        self._asked_at = grant.since
        self._started = rt.now()
        self._told = False
        super().__init__(rt, key, terms, grant, me)

    @property
    def _closed_until(self) -> float:
        """Before that time nobody else may start."""
        min_hold: float = self._terms.more.min_hold
        return self._started + min_hold

    def _farewell(self) -> Release:
        keep = max(self._closed_until - self._rt.now(), 0.0)
        return replace(super()._farewell(), keep=keep)

    def _abandon(self) -> None:
        self._rt.keeper.abandon(self.key, self._id, self._burial(), self._closed_until)

    # -- its end ------------------------------------------------------------------------------------

    def _why_over(self) -> LossReason:
        return "max_hold"

    def _lose(self, reason: str, detail: str = "") -> None:
        if reason == "max_hold" and not self._terms.more.cancel:
            guard, self._guard = self._guard, None  # the body may go on, and is told at its end
            super()._lose(reason, detail)
            self._guard = guard
        else:
            super()._lose(reason, detail)

    async def _leave(self, exc: BaseException | None) -> None:
        try:
            if self._terms.more.cancel or self._end not in (None, "max_hold"):
                await super()._leave(exc)
            else:
                guard, self._guard = self._guard, None
                if guard is not None:
                    guard.leave(exc)
                await self._release()
        finally:
            self._tell_overrun()

    async def _release(self) -> bool:
        self._tell_overrun()
        return await super()._release()

    def _tell_overrun(self) -> None:
        """Say once that the store has let go before the task was done."""
        ran = self._rt.now() - self._asked_at
        most: float = self._terms.max_hold or self.ttl
        if ran > most and not self._told:
            self._told = True
            log.warning(
                "%s was held for %s, %s longer than its max_hold of %s, so it may have been started "
                "elsewhere meanwhile: give it a longer max_hold, or cancel=True",
                key_shown(self.key),
                span(ran),
                span(ran - most),
                span(most),
            )

    # -- what it is not for -------------------------------------------------------------------------

    async def _renew(self, ttl: Duration | None) -> None:
        self._refuse("renewed", "it ends after max_hold")

    def detach(self) -> str:
        """Never works: whoever took it over would not know how long it must stay closed. `TypeError`."""
        self._refuse("detached", "it is for one task, from its start to its end")

    def _refuse(self, what: str, why: str) -> NoReturn:
        raise TypeError(f"the lease of a task lock is never {what}: {why}; use a Lock for that")
