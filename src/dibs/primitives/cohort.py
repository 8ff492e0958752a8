"""A cohort: tasks or threads of one process that want the same lock, behind one place in its queue.

After "Lock Cohorting: A General Technique for Designing NUMA Locks" (Dice, Marathe, Shavit; PPoPP
2012), with processes in the role of NUMA nodes: who releases the lock passes it to the next of its own
cohort, at most so many times in a row, and no store is asked.

A cohort is closed to those who come later once as many have joined it as may hold in a row. The next to
come begins another one, with a place of its own in the store's queue, in the order of arrival. So
whoever waits in another process is passed by those of one cohort at most: the one that was still open
when it came.

Any thread may call anything here: each step that decides something is one operation on a deque, a dict
or a counter.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import ref

from dibs.primitives.ask import Ask
from dibs.primitives.cohort_place import SharedPlace
from dibs.primitives.kept import KeptLease
from dibs.runtime.port import Runtime, Standing

if TYPE_CHECKING:
    from dibs.primitives.cohort_member import Member

type Gift = KeptLease | SharedPlace
"""What is passed on: the hold, as a lease of the next holder's own, or the place in the queue."""


def _nobody() -> None:
    """Who bears a cohort that has not begun."""


class Cohort:
    """Who waits here for what `ask` says, in the order of arrival.

    Its *bearer* is whatever will see to those who wait: the place in the store's queue, or the lease of
    the present holder. It is held weakly, so that whoever waits can tell that it vanished.
    """

    __slots__ = ("__weakref__", "_bearer", "_closed", "_joined", "_line", "_rt", "ask")

    def __init__(self, rt: Runtime, ask: Ask) -> None:
        self._rt = rt
        self.ask = ask
        self._line: deque[Member[Any]] = deque()
        self._joined = count(2)  # the first is whoever began it
        self._closed = False
        self._bearer: Callable[[], Standing | None] = _nobody

    # -- coming and going ---------------------------------------------------------------------------

    @property
    def is_new(self) -> bool:
        """Nobody has begun it."""
        return self._bearer is _nobody

    def open(self) -> None:
        """Whoever wants the same from now on joins this one."""
        self._rt.cohorts[self.ask] = self

    def admit(self, member: "Member[Any]") -> bool:
        """Let somebody join the line; False if this cohort is full, or over."""
        if not self._takes_another():
            return False
        self._line.append(member)
        return not (self._closed and member.take_nothing())  # where it ended just now

    def _takes_another(self) -> bool:
        return not self._closed and self.is_borne and next(self._joined) <= self.ask.tokens

    def drop(self, member: "Member[Any]") -> None:
        """It does not wait any more."""
        with suppress(ValueError):
            self._line.remove(member)

    def ahead_of(self, member: "Member[Any]") -> int | None:
        """How many come before it, as far as is known."""
        try:
            here = self._line.index(member)
        except ValueError:
            return None
        bearer = self._bearer()
        if isinstance(bearer, SharedPlace):
            return None if bearer.ahead is None else bearer.ahead + 1 + here
        return here

    # -- passing on ---------------------------------------------------------------------------------

    @property
    def is_borne(self) -> bool:
        """Somebody here holds, or stands in the store's queue, and will see to the others."""
        bearer = self._bearer()
        return bearer is not None and bearer._stands

    def borne_by(self, bearer: Standing) -> None:
        """This one will see to the others from now on."""
        self._bearer = ref(bearer)

    def hand(self, make: "Callable[[Member[Any]], Gift]", otherwise: Callable[[], None]) -> bool:
        """Give what `make` makes to the first in line who takes it; False if nobody is left.

        An interrupt is raised once it is settled who has the thing: the next in line, or nobody; then
        `otherwise` was called.
        """
        member: Member[Any] | None = None
        gift: Gift | None = None
        try:
            while (member := self._first()) is not None:
                gift = make(member)
                self.borne_by(gift)
                taken = member.take(gift)
                self.drop(member)
                if taken:
                    return True
                _not_taken(gift)
            return False
        except BaseException:
            if member is not None and gift is not None and member.has_taken(gift):
                member.wake()
                self.drop(member)
            else:
                otherwise()
            member = gift = None  # whoever keeps the traceback keeps no lease
            raise

    def rouse(self) -> None:
        """Whatever we had is gone: the first in line queues at the store anew, for all of them."""
        self.hand(lambda _: SharedPlace(self._rt, self.ask), _nobody)

    def scatter(self) -> None:
        """Each asks the store for itself: its answer to one of us was an error."""
        while self.hand(lambda _: SharedPlace(self._rt, self.ask), _nobody):
            pass

    def _first(self) -> "Member[Any] | None":
        """Who comes next. Where nobody does the cohort is over, and nobody can join it any more."""
        try:
            return self._line[0]
        except IndexError:
            self._close()
        try:
            return self._line[0]  # somebody came between the two
        except IndexError:
            return None

    def _close(self) -> None:
        self._closed = True
        cohorts = self._rt.cohorts
        if cohorts.get(self.ask) is self:
            cohorts.pop(self.ask, None)


def _not_taken(gift: Gift) -> None:
    """It was for somebody who has just left. A place is for anybody; a lease was for that one."""
    if isinstance(gift, KeptLease):
        gift._finish("released")
