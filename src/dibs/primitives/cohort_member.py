"""A task or thread that acquires as one of a cohort: in line here, or in the store's queue for all."""

from math import inf
from typing import Literal

from dibs.errors import AcquireTimeout, Deadlock, DibsError
from dibs.fork import generation
from dibs.primitives.ask import Ask, Grant
from dibs.primitives.cohort import Cohort, Gift
from dibs.primitives.cohort_place import SharedPlace, TimeIsUp
from dibs.primitives.cohort_turn import Turn
from dibs.primitives.kept import KeptLease
from dibs.primitives.lease import LeaseBase
from dibs.primitives.refusals import timed_out
from dibs.primitives.terms import Terms
from dibs.primitives.watching import OnWait
from dibs.runtime.port import Runtime, Signal


class Member[LeaseT: LeaseBase]:
    """One acquire, and all that is needed to make its lease for it.

    Its box takes one thing, once, in one operation: a gift of somebody who leaves, or None, which says
    that it takes nothing any more. So a hold that is passed to somebody who gives up at that very
    moment is never with both of them, and never with nobody. What was put in stays in, so that an
    interrupted giver can see what became of its gift.
    """

    __slots__ = (
        "_ask",
        "_box",
        "_cohort",
        "_generation",
        "_lease_type",
        "_looked",
        "_me",
        "_on_wait",
        "_own",
        "_rt",
        "_signal",
        "_terms",
    )

    def __init__(
        self,
        rt: Runtime,
        lease_type: type[LeaseT],
        ask: Ask,
        terms: Terms,
        me: object,
        on_wait: OnWait | None = None,
    ) -> None:
        self._rt = rt
        self._lease_type = lease_type
        self._ask = ask
        self._terms = terms
        self._me = me
        self._on_wait = on_wait
        self._generation = generation.number
        self._signal: Signal | None = None
        self._box: dict[Literal["gift"], Gift | None] = {}
        self._looked = False
        self._own: Gift | None = None
        """What is ours, and must not be left behind."""
        self._cohort: Cohort = rt.cohorts.get(ask) or Cohort(rt, ask)

    async def acquire(self, wait: float | None) -> LeaseT:
        """Acquire within `wait` seconds (None: for ever; 0: one try, which asks the store)."""
        until = inf if wait is None else self._rt.now() + wait
        try:
            gift = self._begin(wait) or await self._given(until)
            if gift is None:
                raise await self._too_late(wait)
            if isinstance(gift, self._lease_type):
                if gift._stands:
                    return gift
                gift._finish("expired")  # on its way to us, as this process was paused
                gift._hand_back()
            return await self._lead(gift, wait, until)
        except BaseException as error:
            self._leave(error)
            raise

    # -- what others do with it ---------------------------------------------------------------------

    def lease(self, grant: Grant, turn: Turn) -> LeaseT:
        """Its lease by that grant. It is looked after from here on, also while it is on its way."""
        lease = self._lease_type(self._rt, self._ask.key, self._terms, grant, self._me)
        lease._turn = turn
        return lease

    def take(self, gift: Gift) -> bool:
        """Give it something; False if it takes nothing any more."""
        taken = self._box.setdefault("gift", gift) is gift
        if taken:
            self.wake()
        return taken

    def has_taken(self, gift: Gift) -> bool:
        """It was given just that, whatever it has done with it since."""
        return self._box.get("gift") is gift

    def take_nothing(self) -> bool:
        """From now on; False if it was given something before."""
        return self._box.setdefault("gift", None) is None

    def wake(self) -> None:
        """Let it look into its box."""
        if self._signal is not None:
            self._signal.set(True)

    # -- in line ------------------------------------------------------------------------------------

    def _begin(self, wait: float | None) -> Gift | None:
        """Get in line here; or begin a cohort, and return its place in the store's queue."""
        if wait != 0 and self._cohort.admit(self):
            return None
        self._look()
        cohort = self._cohort
        if not cohort.is_new:
            cohort.drop(self)
            cohort = self._cohort = Cohort(self._rt, self._ask)
        place = self._own = SharedPlace(self._rt, self._ask)
        cohort.borne_by(place)
        if wait != 0:
            cohort.open()
        return place

    async def _given(self, until: float) -> Gift | None:
        """Wait until somebody gives us something; None once our time is up."""
        rt, box = self._rt, self._box
        while "gift" not in box:
            signal = self._signal = rt.signal()
            left = until - rt.now()
            if left <= 0 or "gift" in box:  # given before anybody could see our signal
                break
            await signal.wait(min(left, self._ask.ttl))
            if "gift" not in box and not self._cohort.is_borne:
                self._cohort.rouse()  # whoever was to give us something was stopped half-way
        return self._look()

    def _look(self) -> Gift | None:
        """Take what we were given, and nothing more."""
        self._own = self._box.setdefault("gift", None)
        self._looked = True
        return self._own

    async def _too_late(self, wait: float | None) -> AcquireTimeout:
        ahead = self._cohort.ahead_of(self)
        self._cohort.drop(self)
        return await timed_out(self._rt, self._ask.key, wait, ahead)

    # -- in the store's queue -----------------------------------------------------------------------

    async def _lead(self, gift: Gift, wait: float | None, until: float) -> LeaseT:
        """Stand in the store's queue for all of the cohort, and hold as the first of them."""
        cohort = self._cohort
        place = gift if isinstance(gift, SharedPlace) else SharedPlace(self._rt, self._ask)
        self._own = place
        cohort.borne_by(place)
        try:
            grant = await place.stand(wait, until, self._on_wait)
        except TimeIsUp:
            self._own = None  # before anybody else has it
            if not cohort.hand(lambda _: place, place.abandon):
                await place.withdraw()
            raise await timed_out(self._rt, self._ask.key, wait, place.ahead) from None
        turn = Turn(cohort, grant.deadline, grant.deadline - grant.since)
        lease = self._own = self.lease(grant, turn)
        cohort.borne_by(lease)
        if wait == 0:
            cohort.open()
        return lease

    # -- giving up ----------------------------------------------------------------------------------

    def _leave(self, error: BaseException) -> None:
        """Leave nothing behind: what is ours goes to the next in line, or is given up."""
        if self._generation != generation.number:
            return  # in a forked child nothing of it is ours
        if not self._looked:
            self._look()
        gift, self._own = self._own, None  # before anybody else has it
        self._cohort.drop(self)
        if isinstance(gift, SharedPlace):
            _leave_place(self._cohort, gift, error)
        elif gift is not None and gift._finish("released"):
            _leave_lease(gift)


def _leave_lease(lease: KeptLease) -> None:
    if lease._turn is None or not lease._turn.pass_on(lease):
        lease._rt.keeper.abandon(lease.key, lease._id, lease._burial())


def _leave_place(cohort: Cohort, place: SharedPlace, error: BaseException) -> None:
    # the store's answer may be another one for others; who gives way in a circle leaves the place to them
    if isinstance(error, DibsError) and not isinstance(error, Deadlock):
        place.abandon()
        cohort.scatter()
    elif place.granted:  # a lease may have been made of it, and dropped: its id is spent
        place.abandon()
        cohort.rouse()
    elif not cohort.hand(lambda _: place, place.abandon):
        place.abandon()
