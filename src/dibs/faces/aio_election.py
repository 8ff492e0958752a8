"""The asyncio faces of leader elections."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from dibs.config import Duration, optional_seconds
from dibs.faces.aio import Lease, Resource
from dibs.model import Holder
from dibs.primitives.campaign import CampaignBase
from dibs.primitives.election import ElectionBase, until_lost
from dibs.primitives.guarded import GuardedBase
from dibs.primitives.term import TermBase
from dibs.sigterm import on_sigterm


class Term(TermBase, Lease):
    """A term of leadership by an asyncio task: a lease, held until its leader dies, resigns or can't renew.

    `token` rises from term to term, whoever leads: give it to whatever is written to. `number` counts this
    candidate's own.
    """

    __slots__ = ()


class Guarded(GuardedBase[Term]):
    """A block that only a leader may enter, and is cancelled in when the term ends."""

    async def __aenter__(self) -> Term:
        return self._begin()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end(exc)


class Campaign(CampaignBase[Term]):
    """A candidate in the background: a task that leads when elected, and stands again after each loss.

    On leaving it steps down, and others may lead at once.
    """

    async def wait(self, timeout: Duration | None = None) -> bool:
        """Wait until it leads (True), or `timeout` seconds have passed (False)."""
        return await self._wait(optional_seconds(timeout, "timeout"))

    async def wait_lost(self, timeout: Duration | None = None) -> bool:
        """Wait until it doesn't lead (True), or `timeout` seconds have passed (False)."""
        return await self._wait_lost(optional_seconds(timeout, "timeout"))

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(self, *about: object) -> None:
        await self._finish()

    def guard(self) -> Guarded:
        """A block for the leader only: raises `NotHeld` on entering where this candidate doesn't lead.

        When the term ends the body is cancelled, and `LeaseLost` raised in the stead of that; nothing
        interrupts a thread, which is told by `term.ensure()` and on leaving. Nobody else leads before the
        body has ended, or before the store lets go.
        """
        return Guarded(self)


class LeaderElection(ElectionBase[Term], Resource[Term]):
    """One leader at a time among all candidates of that name, for asyncio.

    As a context manager it stands, leads, and hands over on leaving; the body is
    cancelled, and `LeaseLost` raised, when the term ends before that.
    Contention: candidates queue by priority, then arrival. Expiry: a leader renews every `retry`; one that
    could not for `renew_deadline` steps down by itself, a margin before the store lets go (`ttl`), so that
    terms don't overlap. `on_started` and `on_stopped` are called with each term, and may be coroutine
    functions; the second only after the first, and before anybody else leads. Durations are seconds, or
    texts.
    """

    _lease_type = Term

    def campaign(self) -> Campaign:
        """A candidate in the background, for as long as the block that it is entered with."""
        return Campaign(self)

    async def who(self) -> Holder | None:
        """Who leads, for observers; None for nobody."""
        return await self._who()

    async def run(self, func: Callable[[Term], Any] | None = None, *, ready: object = None) -> Any:
        """Stand, and call `func` with the term when elected; again after each loss.

        When the term ends a coroutine function is cancelled; nothing interrupts a thread: `term.ensure()`
        tells it, and raises. When `func` returns by itself it hands over, and what it returned is the
        result; so is what it raises. Without `func` it leads until it is cancelled or interrupted:
        something for a task manager. `ready` (a function, an event or a future) is told that it has begun
        to stand. An outage is waited for. In the main thread SIGTERM, unless the program handles it, ends
        `func`, hands over and returns None.
        """
        task, terminated = asyncio.current_task(), False

        def end() -> None:
            nonlocal terminated
            assert task is not None
            terminated = task.cancel()

        try:
            with on_sigterm(end):
                return await self._run(until_lost if func is None else func, ready)
        except asyncio.CancelledError:
            assert task is not None
            if not terminated or task.uncancel():
                raise
            return None
