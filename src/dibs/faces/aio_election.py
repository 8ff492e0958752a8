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
    """A term of leadership of an asyncio task: a lease that lasts until the leader dies, resigns or loses it.

    `token` rises with every term of any candidate: pass it on with each write. `number` counts the terms of
    this candidate.
    """

    __slots__ = ()


class Guarded(GuardedBase[Term]):
    """A block that only the leader can enter; it is cancelled when the term ends."""

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
    """A candidate in a background task: it leads when elected, and stands again after each loss.

    At the end of its block it steps down, and another candidate can lead at once.
    """

    async def wait(self, timeout: Duration | None = None) -> bool:
        """Wait until it leads (True), or for `timeout` seconds (False)."""
        return await self._wait(optional_seconds(timeout, "timeout"))

    async def wait_lost(self, timeout: Duration | None = None) -> bool:
        """Wait until it does not lead (True), or for `timeout` seconds (False)."""
        return await self._wait_lost(optional_seconds(timeout, "timeout"))

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(self, *about: object) -> None:
        await self._finish()

    def guard(self) -> Guarded:
        """A block for the leader only; entering it raises `NotHeld` if this candidate does not lead.

        When the term ends, the body is cancelled and `LeaseLost` raised instead. A thread is not interrupted:
        `term.ensure()` and the end of the block raise. No other candidate leads before the body has ended or
        the lease has run out.
        """
        return Guarded(self)


class LeaderElection(ElectionBase[Term], Resource[Term]):
    """One leader at a time among all candidates of that name, for asyncio.

    `async with` waits until it leads, and hands over at the end of the block. If the term ends earlier, the
    body is cancelled and `LeaseLost` raised.
    Contention: candidates queue by priority, then arrival. Expiry: a leader renews every `retry` seconds. If
    that fails for `renew_deadline` seconds, it steps down before the ttl is over, so that terms do not
    overlap. `on_started` and `on_stopped` are called with each term, in this order, before anyone else
    leads; they can be coroutine functions. Durations are seconds, or texts such as "30s".
    """

    _lease_type = Term

    def campaign(self) -> Campaign:
        """Return a candidate that runs in the background while its block lasts."""
        return Campaign(self)

    async def who(self) -> Holder | None:
        """Return the leader, for observers; None if there is none."""
        return await self._who()

    async def run(self, func: Callable[[Term], Any] | None = None, *, ready: object = None) -> Any:
        """Stand, and call `func` with the term when elected; again after each loss.

        When the term ends, a coroutine function is cancelled; a thread is not interrupted, and
        `term.ensure()` raises. When `func` returns or raises by itself, the leader hands over and `run`
        does the same. Without `func` it leads until it is cancelled or interrupted. `ready` (a function, an
        event or a future) is called or set when it begins to stand. It waits through an outage.
        In the main thread SIGTERM ends `func` and hands over, unless the program handles it; `run` then
        returns None.
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
