"""From the records of all processes to a verdict."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from dibs.core.timing import claim_timeout
from dibs.testing.checker import Violation, check, check_writes
from dibs.testing.history import HistoryEvent, merge, read
from dibs.testing.liveness import check_liveness
from dibs.testing.torture.plan import TorturePlan, primitive_of
from dibs.testing.torture.resources import UNFENCED
from dibs.testing.torture.verdict import Verdict

LONE_TRY_SLACK = 13.0
"""Seconds after the end of a lease for which a lone try may be refused by a store without a clock: its skew,
unless its URL says otherwise, and the resolution of its dates."""


class Judge:
    """Judges round after round; remembers the greatest token of each key from one to the next."""

    def __init__(self, plan: TorturePlan, has_clock: bool = True) -> None:
        """`has_clock`: the store has one that leases end by."""
        self._plan = plan
        self._lone_try_slack = 0.0 if has_clock else LONE_TRY_SLACK
        self._newest: dict[str, HistoryEvent] = {}

    def judge(self, folder: Path, lapses: Sequence[float]) -> Verdict:
        """Check one round's history. `lapses`: begin and end of each time in which the store or this
        machine stood still.
        """
        events = read(*folder.glob("history-*.jsonl"))
        unfenced = [event for event in events if event.resource.startswith(UNFENCED)]
        rest = [event for event in events if not event.resource.startswith(UNFENCED)]
        rest = merge(
            [*self._newest.values(), *rest, *(HistoryEvent(at, "disturbed") for at in lapses)]
        )
        grants = sum(event.what == "granted" for event in rest) - len(self._newest)
        self._remember(rest)
        return Verdict(
            grants=grants,
            done=_done(rest),
            writes=sum(event.what == "wrote" for event in rest),
            stale=sum(1 for _ in check_writes(unfenced)),
            violations=check(rest) + self._starved(rest),
            lapses=len(lapses) // 2,
        )

    def _starved(self, events: Sequence[HistoryEvent]) -> list[Violation]:
        """Find calls that were not served in time. Tries of a task lock may be refused for longer."""
        bound, window = self._plan.bound, claim_timeout(self._plan.ttl)
        tried = [each for each in events if not each.key or primitive_of(each.key) == "tasklock"]
        waited = [each for each in events if primitive_of(each.key) != "tasklock"]
        late = bound + self._lone_try_slack
        return check_liveness(waited, bound, window=window) + check_liveness(
            tried, late, window=window
        )

    def _remember(self, events: Iterable[HistoryEvent]) -> None:
        for event in events:
            if event.what in ("granted", "resized"):
                known = self._newest.get(event.key)
                if known is None or event.token > known.token:
                    # a grant that is over: it counts for the tokens to come, and for nothing else
                    self._newest[event.key] = event._replace(
                        what="granted", invoked=event.at, until=event.at, min_hold=0.0
                    )


def _done(events: Iterable[HistoryEvent]) -> Counter[str]:
    """How many calls got what they asked for and gave it up again, by primitive."""
    calls: dict[str, tuple[int, float]] = {}
    done = set[tuple[str, int, float]]()
    for event in events:
        if event.what == "granted":
            calls[event.lease] = event.process, event.invoked
        elif event.what == "releasing" and event.lease in calls:
            done.add((primitive_of(event.key), *calls[event.lease]))
    return Counter(primitive for primitive, *_ in done)
