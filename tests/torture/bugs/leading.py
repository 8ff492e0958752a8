"""Bugs of elections: how long a leader believes in itself, and in which order a term ends."""

from typing import Any

from dibs.core.timing import trusted
from dibs.locks.election import TermBase
from dibs.locks.lease import LeaseBase
from tests.torture.bugs.bug import Bug, patched

WHERE = ("leader", "campaign", "run")


def by_the_store_s_time(self: TermBase, ttl: float) -> float:
    """The election's own deadline is nearer."""
    return trusted(ttl)


async def nobody_is_guarded(self: Any, term: TermBase, rt: Any) -> None:
    self._guarded.clear()


def resigns_some_time(self: TermBase) -> bool:
    return self._end is None


async def others_may_lead_first(self: TermBase, exc: BaseException | None) -> None:
    await LeaseBase._leave(self, exc)
    await self._stop()


@property  # type: ignore[misc]
def until_it_hears_otherwise(self: TermBase) -> bool:
    return self._end is None


BUGS = {
    "a leader believes the store's ttl": Bug(
        frozenset({"deadline"}),
        WHERE,
        patches=patched("lease.LeaseBase._trusted", by_the_store_s_time),
    ),
    "a term ends before its blocks": Bug(
        frozenset({"order"}),
        WHERE,
        patches=patched("election.CampaignBase._until_unguarded", nobody_is_guarded),
    ),
    "a term survives its resignation": Bug(
        frozenset({"order"}), WHERE, patches=patched("election.TermBase._resign", resigns_some_time)
    ),
    "a term is handed over before on_stopped": Bug(
        frozenset({"order", "overlap"}),
        WHERE,
        patches=patched("election.TermBase._leave", others_may_lead_first),
    ),
    "a leader leads until it hears otherwise": Bug(
        frozenset({"deadline", "overlap"}),
        WHERE,
        patches=patched("election.TermBase._stands", until_it_hears_otherwise),
    ),
}
