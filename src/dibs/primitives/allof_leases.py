"""Several leases in one hand: asked about together, entered together, given up together."""

from collections.abc import Iterable, Sequence
from typing import overload

from dibs.config import Duration
from dibs.primitives.lease import LeaseBase, tell_loss
from dibs.primitives.messages import LossReason, key_shown, span
from dibs.runtime.port import Runtime


class LeasesBase[LeaseT: LeaseBase](Sequence[LeaseT]):
    """The leases of an `AllOf`, in the order of its arguments; made by it only."""

    __slots__ = ("__weakref__", "_each", "_me", "_once", "_rt")

    def __init__(self, rt: Runtime, leases: Iterable[LeaseT], me: object) -> None:
        self._each = tuple(leases)
        self._once = tuple(dict.fromkeys(self._each))
        self._rt = rt
        self._me = me

    # -- what they are ------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._each)

    @overload
    def __getitem__(self, index: int) -> LeaseT: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[LeaseT]: ...
    def __getitem__(self, index: int | slice) -> LeaseT | Sequence[LeaseT]:
        return self._each[index]

    @property
    def tokens(self) -> tuple[int, ...]:
        """The fencing token of each."""
        return tuple(lease.token for lease in self._each)

    @property
    def lost(self) -> bool:
        """One of them ended before its holder gave it up."""
        return any(lease.lost for lease in self._once)

    @property
    def reason(self) -> LossReason | None:
        """Why one was lost: of several, the first in the order of the arguments; None unless one was."""
        return next((lease.reason for lease in self._once if lease.lost), None)

    @property
    def remaining(self) -> float:
        """The seconds until the first of their deadlines; 0 once one has ended."""
        return min(lease.remaining for lease in self._once)

    def ensure(self, needs: Duration = 0) -> None:
        """Raise unless each has at least `needs` (seconds, or "2s") left before its deadline.

        Raises `LeaseLost` that names the one that is lost or has too little left, `NotHeld` if one was
        given up.
        """
        for lease in self._once:
            lease.ensure(needs)

    def __repr__(self) -> str:
        names = ", ".join(key_shown(lease.key) for lease in self._once)
        state = self.reason or (f"{span(self.remaining)} left" if self.remaining else "given up")
        return f"<Leases on {names}, {state}>"

    # -- for both worlds ----------------------------------------------------------------------------

    async def _release(self) -> bool:
        """Give all of them up in one round trip; True if each was held until now."""
        return await release_together(self._rt, self._once)

    async def _wait_lost(self, timeout: float | None) -> bool:
        """Wait until one is lost; False at the timeout, or once all were given up."""
        rt = self._rt
        until = None if timeout is None else rt.now() + timeout
        while not self.lost:
            held = [lease for lease in self._once if lease._end is None]
            left = None if until is None else until - rt.now()
            if not held or (left is not None and left <= 0):
                break
            signal = rt.signal()
            try:
                for lease in held:
                    lease._watch(signal)
                await signal.wait(left)
            finally:
                for lease in held:
                    lease._unwatch(signal)
        return self.lost

    async def _begin(self) -> None:
        """The body begins."""
        self._enter()

    def _enter(self) -> None:
        """The body begins. Raises `LeaseLost` if one is lost already; then the others are given up."""
        try:
            for lease in self._once:
                lease._enter()
        except BaseException as error:
            for lease in self._once:
                lease._disarm(error)
            self._drop()
            raise

    async def _leave(self, exc: BaseException | None) -> None:
        """The body has ended: release, and turn a loss into `LeaseLost` where nothing else is hidden."""
        # all of them, as each that was lost takes its own cancellation back
        ends = [lease._disarm(exc) for lease in self._once]
        standing = [lease for lease in self._once if lease._stands]
        ended = [lease._conclude() for lease in self._once if lease not in standing]
        losses = [loss for loss in ended if loss is not None]
        if standing:
            await release_together(self._rt, standing)
        if losses:
            for other in losses[1:]:
                losses[0].add_note(str(other))
            tell_loss(losses[0], exc, any(ends))

    def _drop(self) -> None:
        """Give them up in silence, those that weren't."""
        for lease in self._once:
            lease._drop()


async def release_together(rt: Runtime, leases: Sequence[LeaseBase]) -> bool:
    """Give them up; True if all were held until now. Never raises because the store is away."""
    stood = all(lease._stands for lease in leases)
    parting: list[LeaseBase] = []
    try:
        for lease in leases:
            hold = lease._part()
            if hold is not None:
                parting.append(hold)
        told = await rt.call_all([hold._farewell() for hold in parting]) if parting else ()
    except BaseException:
        for hold in parting:
            hold._abandon()
        raise
    were_held = [hold._parted(each) for hold, each in zip(parting, told, strict=True)]
    return stood and all(were_held)
