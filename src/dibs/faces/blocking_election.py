"""The blocking faces of leader elections."""

from collections.abc import Callable
from inspect import iscoroutinefunction
from types import TracebackType
from typing import Any, Self

from dibs.config import Duration, optional_seconds
from dibs.faces.blocking import Lease, Resource
from dibs.faces.loops import refuse_in_loop
from dibs.model import Holder
from dibs.primitives.campaign import CampaignBase
from dibs.primitives.election import ElectionBase, until_lost
from dibs.primitives.guarded import GuardedBase
from dibs.primitives.term import TermBase
from dibs.runtime.step import step
from dibs.sigterm import Terminated, raising_on_sigterm


class Term(TermBase, Lease):
    """A term of leadership by a thread: a lease, held until its leader dies, resigns or can't renew.

    `token` rises from term to term, whoever leads: give it to whatever is written to. `number` counts this
    candidate's own.
    """

    __slots__ = ()


class Guarded(GuardedBase[Term]):
    """A block that only a leader may enter, and that raises `LeaseLost` on leaving if the term has ended."""

    def __enter__(self) -> Term:
        return self._begin()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end(exc)


class Campaign(CampaignBase[Term]):
    """A candidate in the background: a thread that leads when elected, and stands again after each loss.

    On leaving it steps down, and others may lead at once.
    """

    def wait(self, timeout: Duration | None = None) -> bool:
        """Wait until it leads (True), or `timeout` seconds have passed (False)."""
        return step(self._wait(optional_seconds(timeout, "timeout")))

    def wait_lost(self, timeout: Duration | None = None) -> bool:
        """Wait until it doesn't lead (True), or `timeout` seconds have passed (False)."""
        return step(self._wait_lost(optional_seconds(timeout, "timeout")))

    def __enter__(self) -> Self:
        refuse_in_loop(self)
        step(self._start())
        return self

    def __exit__(self, *about: object) -> None:
        step(self._finish())

    def guard(self) -> Guarded:
        """A block for the leader only: raises `NotHeld` on entering where this candidate doesn't lead.

        When the term ends the body is cancelled, and `LeaseLost` raised in the stead of that; nothing
        interrupts a thread, which is told by `term.ensure()` and on leaving. Nobody else leads before the
        body has ended, or before the store lets go.
        """
        return Guarded(self)


class LeaderElection(ElectionBase[Term], Resource[Term]):
    """One leader at a time among all candidates of that name, for threads.

    As a context manager it stands, leads, and hands over on leaving; nothing
    interrupts a thread whose term ends before that: `term.ensure()` tells it, and leaving raises `LeaseLost`.
    Contention: candidates queue by priority, then arrival. Expiry: a leader renews every `retry`; one that
    could not for `renew_deadline` steps down by itself, a margin before the store lets go (`ttl`), so that
    terms don't overlap. `on_started` and `on_stopped` are called with each term (by a campaign's own thread);
    the second only after the first, and before anybody else leads. Durations are seconds, or texts.
    """

    _lease_type = Term

    def campaign(self) -> Campaign:
        """A candidate in the background, for as long as the block that it is entered with."""
        return Campaign(self)

    def who(self) -> Holder | None:
        """Who leads, for observers; None for nobody."""
        refuse_in_loop(self)
        return step(self._who())

    def run(self, func: Callable[[Term], Any] | None = None, *, ready: object = None) -> Any:
        """Stand, and call `func` with the term when elected; again after each loss.

        When the term ends a coroutine function is cancelled; nothing interrupts a thread: `term.ensure()`
        tells it, and raises. When `func` returns by itself it hands over, and what it returned is the
        result; so is what it raises. Without `func` it leads until it is cancelled or interrupted:
        something for a task manager. `ready` (a function, an event or a future) is told that it has begun
        to stand. An outage is waited for. In the main thread SIGTERM, unless the program handles it, ends
        `func`, hands over and returns None.
        """
        refuse_in_loop(self)
        if iscoroutinefunction(func):
            raise TypeError(f"{func!r} is a coroutine function: use LeaderElection of dibs")

        async def body(term: Term) -> Any:
            return await until_lost(term) if func is None else func(term)

        try:
            with raising_on_sigterm():
                return step(self._run(body, ready))
        except Terminated:
            return None

    def _refuse_callback(self, name: str, callback: object) -> None:
        super()._refuse_callback(name, callback)
        if iscoroutinefunction(callback):
            raise TypeError(f"{name} is a coroutine function, and nobody awaits it in a thread")
