"""Bugs of cohorts: what goes from one holder to the next, and what stays."""

from dibs.primitives.cohort import Cohort
from dibs.primitives.cohort_turn import Turn
from dibs.primitives.kept import KeptLease
from tests.torture.bugs.bug import Bug, patched

_pass_on = Turn.pass_on
WHERE = ("cohort", "lock")
PASSED_ON = "cohort_turn.Turn.pass_on"


def everybody_may_join(self: Cohort) -> bool:
    """However many fencing tokens were reserved."""
    return not self._closed and self.is_borne


def time_begins_anew(self: Turn, lease: KeptLease) -> bool:
    """For whoever it is passed on to."""
    self._until = lease._rt.now() + self._span
    return _pass_on(self, lease)


def given_back_as_well(self: Turn, lease: KeptLease) -> bool:
    """The store hears of a release, too."""
    _pass_on(self, lease)
    return False


def the_same_token(self: Turn, lease: KeptLease) -> bool:
    """For all of a cohort."""
    lease.token -= 1
    return _pass_on(self, lease)


BUGS = {
    "a cohort passes beyond its tokens": Bug(
        frozenset({"token"}),
        WHERE,
        patches=patched("cohort.Cohort._takes_another", everybody_may_join),
    ),
    "a cohort's time begins anew": Bug(
        frozenset({"deadline", "overlap"}), WHERE, patches=patched(PASSED_ON, time_begins_anew)
    ),
    "a cohort gives back what it passes on": Bug(
        frozenset({"overlap"}), WHERE, patches=patched(PASSED_ON, given_back_as_well)
    ),
    "a cohort has one token": Bug(
        frozenset({"token"}), WHERE, patches=patched(PASSED_ON, the_same_token)
    ),
}
