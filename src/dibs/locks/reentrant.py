"""A hold that its task or thread may acquire again: several leases, which end together or one by one.

What the store knows of is one lease, the *hold*, that nobody outside of this module sees. Each acquire gives
a lease of it: what the store has said of the hold (its token, slots, deadline) is read from there, and its
being released and its block are its own. The hold is given up with the last of them, in whichever order
they go, and lost for all of them at once; `on_lost` is the hold's.
"""

from collections.abc import Callable
from functools import cache
from itertools import count
from typing import Any
from weakref import ref

from dibs.config import Duration
from dibs.errors import Reentrant
from dibs.locks.lease import LeaseBase
from dibs.locks.messages import LOSSES, key_shown
from dibs.process import generation


class _Page:
    """Who was on the roll at one time, and the next page once there is one."""

    __slots__ = ("members", "next")

    def __init__(self, members: frozenset[int]) -> None:
        self.members = members
        self.next: dict[None, _Page] = {}


class Roll:
    """Who is in; any thread may join and leave, and the garbage collector in the middle of that.

    Without a lock, which the collector could find taken by the very thread that it interrupts: a change
    is one operation, which puts a page behind the newest one, or fails and is tried again. Joining or
    leaving twice is doing it once, so whoever was interrupted may simply do it again.
    """

    __slots__ = ("_page",)

    def __init__(self, first: int) -> None:
        self._page = _Page(frozenset((first,)))

    def __len__(self) -> int:
        return len(self._newest().members)

    def join(self, member: int) -> bool:
        """Come in; False if the last one has left, after which nobody can."""
        while members := (page := self._newest()).members:
            if self._follows(page, members | {member}):
                return True
        return False

    def leave(self, member: int) -> None:
        """Be out."""
        while member in (page := self._newest()).members:
            if self._follows(page, page.members - {member}):
                return

    def _follows(self, page: _Page, members: frozenset[int]) -> bool:
        """Write the next page; False if somebody else was first."""
        written = _Page(members)
        if page.next.setdefault(None, written) is not written:
            return False
        self._page = written
        return True

    def _newest(self) -> _Page:
        page = self._page
        while (later := page.next.get(None)) is not None:
            page = later
        return page


type OnLost = Callable[[Any], object] | None

FIRST = 0
"""The number of a hold's first lease."""


def first_of[LeaseT: LeaseBase](hold: LeaseT) -> LeaseT:
    """The lease of whoever has acquired the hold just now."""
    nest = Nest()
    lease = _lease_of(hold, nest, FIRST)
    hold._guard = nest
    if hold._end in LOSSES:
        nest.fire()  # before anybody could have told us
    return lease


def another_of(hold: Any, on_lost: OnLost) -> Any:
    """One more lease of the hold; None if it has just ended, or is not one to be shared.

    Raises `Reentrant` for an `on_lost` that is not the hold's: that is called once, for all of its leases.
    """
    nest = getattr(hold, "_guard", None)
    if not isinstance(nest, Nest):
        return None
    if on_lost is not None and on_lost != hold._terms.on_lost:
        raise Reentrant(
            f"{key_shown(hold.key)} is already held by this task or thread, and on_lost= is called once, "
            "for the outermost lease: give it there, or leave it out here",
            key=hold.key,
        )
    lease = _lease_of(hold, nest, number := next(nest.numbers))
    if nest.roll.join(number):
        return lease
    nest.leases.pop(number, None)
    lease._end = "too late"  # so it needs no release
    return None


def _lease_of[LeaseT: LeaseBase](hold: LeaseT, nest: "Nest", number: int) -> LeaseT:
    lease_type: Any = type(hold)
    lease: Any = _nested(lease_type)(hold, nest, number)
    nest.leases[number] = ref(lease)
    made: LeaseT = lease
    return made


@cache
def _nested(lease_type: Any) -> Any:
    """Leases of that type that share a hold."""
    return type(lease_type.__name__, (NestedLease, lease_type), {})


class Nest:
    """All leases of one hold: who stands, and, as the hold's guard, who is to be told of its loss."""

    __slots__ = ("leases", "numbers", "roll")

    def __init__(self) -> None:
        self.roll = Roll(FIRST)
        self.leases: dict[int, ref[NestedLease]] = {}
        self.numbers = count(FIRST + 1)

    def enter(self) -> None:
        """Its leases are entered."""

    def fire(self) -> None:
        """The hold is lost: tell all of its leases, and interrupt each task once, in its innermost block.

        The loss passes through the blocks around that one as `LeaseLost`. A task that was cancelled
        for each of its blocks would have cancellations left over.
        """
        innermost: dict[object, NestedLease] = {}
        leases = [lease for each in list(self.leases.values()) if (lease := each()) is not None]
        for lease in sorted(leases, key=lambda lease: lease._order):
            if lease._guard is not None:
                innermost[lease._entered_by] = lease
        for lease in innermost.values():
            if (guard := lease._guard) is not None:
                guard.fire()
        for lease in leases:
            lease._wake_watchers()

    def leave(self, exc: BaseException | None) -> bool:
        """Its leases are left."""
        return exc is None

    @property
    def is_orphaned(self) -> bool:
        """All of its leases are."""
        leases = [lease for each in list(self.leases.values()) if (lease := each()) is not None]
        return bool(leases) and all(lease._is_orphaned for lease in leases)


class _OfTheHold:
    """What a lease has from its hold."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, lease: Any, owner: type) -> Any:
        return self if lease is None else getattr(lease._hold, self._name)

    def __set__(self, lease: Any, value: object) -> None:
        setattr(lease._hold, self._name, value)


class NestedLease(LeaseBase):
    """One of the leases of a hold. Mixed into the lease class of either world, for any kind of lock."""

    # No `__slots__`: those of the class that it is mixed into would clash with them.

    token: Any = _OfTheHold()
    slots: Any = _OfTheHold()
    _id: Any = _OfTheHold()
    _terms: Any = _OfTheHold()
    _deadline: Any = _OfTheHold()
    _hold_until: Any = _OfTheHold()
    _generation: Any = _OfTheHold()
    _uncommitted_at: Any = _OfTheHold()
    _detail: Any = _OfTheHold()
    _trouble: Any = _OfTheHold()
    _me: Any = _OfTheHold()
    _number: Any = _OfTheHold()
    _written: Any = _OfTheHold()

    def __init__(self, hold: LeaseBase, nest: Nest, number: int) -> None:
        self._left: str | None = "unborn"
        """How this lease ended; None as long as it ends with the hold."""
        self._hold: Any = hold
        self._nest = nest
        self._member = number
        self._rt = hold._rt
        self.key = hold.key
        self._guard = None
        self._watchers = None
        self._entered_by: object = None
        """The task or thread whose block relies on it."""
        self._order = 0
        """Inner blocks have greater ones than those around them; 0 is outside of any."""
        self._alive = [True]
        self._left = None

    @property
    def _end(self) -> str | None:
        ended: str | None = self._hold._end
        return ended if self._left is None else self._left

    @_end.setter
    def _end(self, how: str | None) -> None:
        self._left = how

    # -- what is done with it -----------------------------------------------------------------------

    def _belong_to(self, me: object) -> None:
        self._hold._belong_to(me)
        self._entered_by = me

    def _enter(self) -> None:
        self._entered_by = self._rt.me()
        self._order = next(self._nest.numbers)
        super()._enter()

    async def _renew(self, ttl: Duration | None) -> None:
        self.ensure()
        await self._hold._renew(ttl)

    async def _upgrade(self, wait: Any) -> None:
        self._alone("upgraded")
        await self._hold._upgrade(wait)

    async def _downgrade(self) -> None:
        self._alone("downgraded")
        await self._hold._downgrade()

    def detach(self) -> str:
        """As `Lease.detach`. Raises `Reentrant` while its holder has other leases of the same hold."""
        self._alone("detached")
        handle: str = self._hold.detach()
        self._finish("detached")
        return handle

    def _alone(self, what: str) -> None:
        """Raises unless it stands, and is the only one of its hold."""
        self.ensure()
        if (leases := len(self._nest.roll)) > 1:
            raise Reentrant(
                f"{key_shown(self.key)} is held {leases} times over by the task or thread that holds it, "
                f"so it can't be {what}: release the other leases first",
                key=self.key,
            )

    # -- its end ------------------------------------------------------------------------------------

    async def _release(self) -> bool:
        stood = self._stands
        self._finish("released")
        return stood if self._nest.roll else await self._hold._release() and stood

    def _part(self) -> LeaseBase | None:
        self._finish("released")
        hold: LeaseBase = self._hold
        return None if self._nest.roll else hold._part()

    def _finish(self, how: str) -> bool:
        """As for every lease; a second time it does what an interrupt has left of the first."""
        if self._left is None:
            self._left = self._hold.reason or how
        self._nest.leases.pop(self._member, None)
        self._nest.roll.leave(self._member)
        self._wake_watchers()
        try:
            self._alive.pop()
        except IndexError:
            return False
        return True

    def _wake_watchers(self) -> None:
        for signal in tuple(self._watchers or ()):
            signal.set()

    def _hand_back(self) -> None:
        if not self._nest.roll and (reason := self._hold.reason) is not None:
            self._hold._finish(reason)
            self._hold._hand_back()

    def _abandon(self) -> None:
        if not self._nest.roll:
            self._hold._drop()

    def _drop(self) -> None:
        if self._generation == generation.number:
            self._finish("forgotten")
            self._abandon()
