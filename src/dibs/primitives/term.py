"""A term of leadership: a lease that is renewed often, and believed in no longer than it was confirmed."""

import logging
from collections.abc import Callable
from inspect import isawaitable
from typing import Any, NamedTuple, NoReturn

from dibs.config import Duration
from dibs.core.timing import trusted
from dibs.errors import BackendUnavailable
from dibs.fork import generation
from dibs.model import Failed
from dibs.primitives.ask import Grant, Terms
from dibs.primitives.lease import LeaseBase
from dibs.primitives.messages import key_shown
from dibs.runtime.port import Runtime

log = logging.getLogger("dibs")

type Callback = Callable[[Any], object]


class LeaderTerms(NamedTuple):
    """What terms have to know."""

    renew_deadline: float
    retry: float
    on_started: Callback | None
    on_stopped: Callback | None


class _Disarmed:
    """In the stead of a guard whose body is over: what it has told, and nothing to interrupt."""

    __slots__ = ("_ours",)

    def __init__(self, ours: bool) -> None:
        self._ours = ours

    def enter(self) -> None:
        """It is over."""

    def fire(self) -> None:
        """It is over."""

    def leave(self, exc: BaseException | None) -> bool:
        return self._ours

    is_orphaned = False


class TermBase(LeaseBase):
    """What terms of both worlds share; made by elections only."""

    __slots__ = ("_begun", "number")

    number: int
    """Which of this candidate's terms it is, from 1; over all candidates, terms rise by `token`."""

    def __init__(self, rt: Runtime, key: bytes, terms: Terms, grant: Grant, me: object) -> None:
        self.number = 0
        self._begun = False
        """`on_started` was called, and `on_stopped` wasn't."""
        more: LeaderTerms = terms.more
        deadline = min(grant.deadline, grant.since + more.renew_deadline)
        super().__init__(rt, key, terms, grant._replace(deadline=deadline), me)
        if grant.claim_by is None:
            self._renew_at = min(self._renew_at, grant.since + more.retry)
            self._watch_from(rt.now(), more.retry)

    @property
    def _lead(self) -> float:
        more: LeaderTerms = self._terms.more
        return more.retry

    def _trusted(self, ttl: float) -> float:
        """Until the election's deadline or the store's, whichever is first."""
        more: LeaderTerms = self._terms.more
        return min(trusted(ttl), more.renew_deadline)

    # -- its beginning and its end ------------------------------------------------------------------

    async def _tell_started(self) -> None:
        """Tell that it has started."""
        self._begun = True
        await self._tell(self._terms.more.on_started, "on_started")

    async def _stop(self) -> None:
        """Tell once that it is over, if it was told that it had started."""
        if self._begun and generation.number == self._generation:
            self._begun = False
            await self._tell(self._terms.more.on_stopped, "on_stopped")

    async def _tell(self, callback: Callback | None, name: str) -> None:
        if callback is None:
            return
        try:
            told = callback(self)
            if isawaitable(told):
                await told
        except Exception:
            log.exception("%s of %s failed", name, key_shown(self.key))

    def _resign(self) -> bool:
        """End it by its own will; whoever leads by it is interrupted, and hands it over after that."""
        if not self._finish("resigned"):
            return False
        if self._guard is not None:
            self._guard.fire()
        for signal in tuple(self._watchers or ()):
            signal.set()
        log.info("%s: the leader with token %d resigns", key_shown(self.key), self.token)
        return True

    async def _leave(self, exc: BaseException | None) -> None:
        """The body has ended: nobody else leads before that was told."""
        guard = self._guard
        if guard is not None:
            self._guard = _Disarmed(guard.leave(exc))
        try:
            await self._stop()
        finally:
            await super()._leave(exc)

    async def _hand_over(self) -> None:
        """It has ended here, and nothing is done by it any more: somebody else may lead at once."""
        if self._handed_back or generation.number != self._generation:
            return
        self._handed_back = True
        try:
            answer = await self._rt.call(self._farewell())
        except BackendUnavailable:
            self._abandon()
        except BaseException:
            self._abandon()
            raise
        else:
            if isinstance(answer.reply, Failed):
                self._abandon()

    # -- what it is not for -------------------------------------------------------------------------

    async def _renew(self, ttl: Duration | None) -> None:
        if ttl is not None:
            raise TypeError("a term has its election's ttl: write renew()")
        await super()._renew(None)

    def detach(self) -> NoReturn:
        """Never works: a candidate leads by itself. Raises `TypeError`."""
        raise TypeError("a term can't be handed to another process: resign, and let it be elected")
