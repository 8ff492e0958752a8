"""One holder's turn in a cohort: what the store has confirmed, and how the hold is passed on."""

from typing import TYPE_CHECKING, Any

from dibs.core.timing import trusted
from dibs.primitives.ask import Grant

if TYPE_CHECKING:
    from dibs.primitives.cohort import Cohort
    from dibs.primitives.cohort_member import Member
    from dibs.primitives.kept import KeptLease

LEAST = 1 / 4
"""With less than this part of its time left a hold goes back to the store: its renewals are late."""


class Turn:
    """What a lease of a cohort's member has besides other leases.

    The next holder's lease has the same id in the store and the next of the reserved tokens. It
    inherits the deadline that the store has confirmed and the time of the next renewal, so nobody's
    time grows by passing a hold on, and a renewal that is due is made by the keeper at once.
    """

    __slots__ = ("_cohort", "_span", "_until")

    def __init__(self, cohort: "Cohort", until: float, span: float) -> None:
        self._cohort = cohort
        self._until = until
        """The deadline by the store's word, whatever `max_hold` makes of it for this holder."""
        self._span = span
        """How long the store's latest word can be relied on from when it was asked."""

    def confirm(self, sent: float, ttl: float) -> None:
        """The store keeps the hold for `ttl` from `sent` at least."""
        self._until = max(self._until, sent + trusted(ttl))
        self._span = trusted(ttl)

    def break_off(self) -> None:
        """The hold is lost, or is nobody's here any more: the next in line asks the store."""
        self._cohort.rouse()

    def pass_on(self, lease: "KeptLease") -> bool:
        """Give what `lease` had, which was released just now, to the next in line.

        False if nobody has it: then it is to be given back to the store.
        """
        rt = lease._rt
        now = rt.now()
        if now >= lease._deadline or self._until - now < LEAST * self._span:
            self._cohort.rouse()
            return False

        def lease_for(member: "Member[Any]") -> "KeptLease":
            token, until, renew_at = lease.token + 1, self._until, lease._renew_at
            grant = Grant(lease._id, token, lease.slots, now, until, renew_at, lease._doubtful)
            heir: KeptLease = member.lease(grant, Turn(self._cohort, until, self._span))
            return heir

        def give_up() -> None:
            rt.keeper.abandon(lease.key, lease._id, lease._burial())
            self._cohort.rouse()

        return self._cohort.hand(lease_for, give_up)
