"""What all primitives share: acquiring what they describe, and looking at it."""

from typing import TYPE_CHECKING, Any, ClassVar

from dibs.config import UNSET, Duration, Unset, optional_seconds
from dibs.core.names import Kind
from dibs.errors import AcquireTimeout, Reentrant
from dibs.locks import admin, hooks
from dibs.locks.acquire import AcquireAttempt
from dibs.locks.description import Description, check_promises
from dibs.locks.entering import Entering
from dibs.locks.lease import LeaseBase, give_up
from dibs.locks.messages import key_shown
from dibs.locks.requests import Ask, Grant, Terms
from dibs.locks.waiting import OnWait, check_on_wait
from dibs.model import MANY, Inspect, Status
from dibs.runtime.port import Runtime

if TYPE_CHECKING:
    from dibs.locks.transaction import Way

NOT_WITHIN = (
    "within= is for a lease that stands and falls with one transaction, and a reentrant one is shared: "
    "acquire it without within=, or make it without reentrant=True"
)


class PrimitiveBase[LeaseT: LeaseBase](Description, Entering[LeaseT]):
    """A named resource and how it is to be acquired.

    Share one among tasks and threads, or make one for each request: whatever is held lives in the
    lease.
    """

    _lease_type: type[LeaseT]

    def _describe(self, *about: Any) -> None:
        super()._describe(*about)
        self._entered = {}

    @staticmethod
    def _join(rt: Runtime, connection: Any) -> "Way":
        """The way to the store by the user's own connection; set by the public classes."""
        raise NotImplementedError

    # -- acquiring ----------------------------------------------------------------------------------

    async def _acquire(
        self,
        units: int = 1,
        wait: Duration | Unset | None = UNSET,
        priority: int | None = None,
        note: str | None = None,
        within: Any = None,
        on_wait: OnWait | None = None,
    ) -> LeaseT:
        rt = self._runtime()
        if within is not None:
            wait = self._one_try(wait)
        patience = self._wait if wait is UNSET else optional_seconds(wait, "wait")  # type: ignore[arg-type]
        me = rt.me()
        own = rt.holding.get(self.key, me)
        waits = own is not None and not own._terms.auto_renew and patience != 0
        if own is not None and (self._reentrant or not waits):
            again = await self._held_already(rt, me, patience)
            if again is not None:
                return again
        if self._require:
            await self._check_the_store(rt)
        ask, terms = self._asked(units, priority, note)
        if waits:
            ask = ask._replace(detects=False)  # our own lease ends by itself, so this is no circle
        if on_wait is None:
            on_wait = self._on_wait
        else:
            check_on_wait(on_wait, may_await=self._may_await)
        seen = None
        if hooks.observer is not None:
            seen = hooks.observer.acquiring((ask,), patience, me)
            ask = seen.traced(ask)
        try:
            if within is not None:
                hold = self._hold(rt, terms, await self._granted_within(rt, ask, within), me)
            else:
                hold = self._hold(
                    rt, terms, await self._acquiring(rt, ask, on_wait).run(patience), me
                )
        except BaseException as error:
            if seen is not None:
                seen.end(error)
            raise
        if seen is not None:
            seen.end(None)
        return self._given(hold)

    def _acquiring(self, rt: Runtime, ask: Ask, on_wait: OnWait | None) -> AcquireAttempt:
        return AcquireAttempt(rt, ask, on_wait)

    async def _check_the_store(self, rt: Runtime) -> None:
        """Raises `MissingCapability` where it can't promise what is required."""
        if self._require and not rt.capabilities.asked:
            await rt.ready()
            if not rt.capabilities.asked:
                await rt.call(Inspect(self.key))  # threads connect when they call
        check_promises(self._require, rt.capabilities.names(), "the store")

    def _hold(self, rt: Runtime, terms: Terms, grant: Grant, me: object) -> LeaseT:
        """What was granted, in the hands of its holder; or of nobody, should that be interrupted.

        The one door from a grant to a lease: an id whose Acquire may come once more is buried here.
        """
        try:
            return self._lease_type(rt, self.key, terms, grant, me)
        except BaseException:
            give_up(rt, self.key, grant.id, grant.doubtful)
            raise

    def _given(self, hold: LeaseT) -> LeaseT:
        """What its holder gets of a hold: that, or the first of several leases of it."""
        return self._counted(hold) if self._reentrant else hold

    # -- in other ways ------------------------------------------------------------------------------

    async def _granted_within(self, rt: Runtime, ask: Ask, connection: Any) -> Grant:
        from dibs.locks.transaction import acquire_within

        return await acquire_within(rt, self._join(rt, connection), ask)

    def _one_try(self, wait: Any) -> Any:
        """A transaction of the user's own waits for nobody."""
        from dibs.locks.transaction import one_try

        if self._reentrant:
            raise TypeError(NOT_WITHIN)
        return one_try(wait)

    # -- by whoever holds it ------------------------------------------------------------------------

    async def _held_already(self, rt: Runtime, me: object, patience: float | None) -> LeaseT | None:
        """What our task or thread has held until now: once more, or it is refused; None if it ended."""
        lease = rt.holding.get(self.key, me)
        if lease is None or not await lease._still_stands():
            return None
        again = self._again(lease) if self._reentrant else None
        if again is None and lease._stands:  # it may have ended this very moment
            self._refuse_reentry(patience)
        return again

    def _counted(self, hold: LeaseT) -> LeaseT:
        """The first lease of a hold that may be acquired again."""
        from dibs.locks.reentrant import first_of  # only who asks for it pays for it

        counted: LeaseT = first_of(hold)
        return counted

    def _again(self, held: Any) -> LeaseT | None:
        """One more lease of what our task or thread holds; None if that is not to be had."""
        from dibs.locks.reentrant import another_of

        again: LeaseT | None = another_of(held, self._on_lost)
        return again

    def _refuse_reentry(self, patience: object) -> None:
        name = key_shown(self.key)
        if patience == 0:
            raise AcquireTimeout(f"{name} is held by this task or thread", key=self.key)
        raise Reentrant(
            f"{name} is already held by this task or thread, so this acquire would wait forever. "
            "Pass the lease on, or create every Lock of that name that this task or thread acquires "
            "with reentrant=True",
            key=self.key,
        )

    def _look_at(self, refusal: AcquireTimeout) -> None:
        """Who is in the way may tell something that the user should know."""

    async def _try(
        self, units: int = 1, priority: int | None = None, note: str | None = None
    ) -> LeaseT | None:
        try:
            return await self._acquire(units, 0, priority, note)
        except AcquireTimeout:
            return None

    # -- seeing -------------------------------------------------------------------------------------

    async def _status(self) -> Status:
        rt = self._runtime()
        if not rt.is_ready:
            await rt.ready()
        return await admin.status(rt, self.key)

    async def _locked(self) -> bool:
        status = await self._status()
        return status.used >= self._capacity or (self._capacity == MANY and status.used > 0)

    async def _revoke(self, reason: str, now: bool) -> int:
        rt = self._runtime()
        if not rt.is_ready:
            await rt.ready()
        return await admin.revoke(rt, self.key, reason, now)


class LockBase[LeaseT: LeaseBase](PrimitiveBase[LeaseT]):
    """One holder at a time."""

    kind: ClassVar[Kind] = "lock"
