"""Was at most one (or N) inside at any time, and did the tokens rise? Answered from a history.

No search is needed: every grant has a token of its own, so the order of grants is known. Unrecorded
events count in the store's favour (see `history.HistoryEvent`), so every violation is real.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from dibs.core.timing import DRIFT
from dibs.model import MANY
from dibs.testing.history import HistoryEvent


@dataclass(slots=True)
class RecordedHold:
    """Units that one lease had from `start` to `end`.

    It begins when the call returned and ends at the latest known deadline, or when its release was
    sent. Both err towards a shorter hold, so holds that overlap really did.
    """

    grant: HistoryEvent
    start: float
    end: float
    units: int
    slots: tuple[int, ...]

    def __str__(self) -> str:
        return f"held {self.start:.6f}..{self.end:.6f} by [{self.grant}]"


class Holds:
    """All holds and grants of a history, by key."""

    def __init__(self, events: Iterable[HistoryEvent]) -> None:
        self.by_key: defaultdict[str, list[RecordedHold]] = defaultdict(list)
        self.grants: defaultdict[str, list[HistoryEvent]] = defaultdict(list)
        self._current: dict[str, RecordedHold] = {}
        steps = {
            "granted": self._granted,
            "renewed": self._renewed,
            "believed": self._believed,
            "releasing": self._releasing,
            "resized": self._resized,
            "shrinking": self._resized,
        }
        for event in events:
            step = steps.get(event.what)
            if step is not None:
                step(event)

    def _granted(self, event: HistoryEvent) -> None:
        self.grants[event.key].append(event)
        self._begin(event, event.at, event.until)

    def _begin(self, event: HistoryEvent, start: float, end: float) -> None:
        hold = RecordedHold(event, start, end, event.units, event.slots)
        self._current[event.lease] = hold
        self.by_key[event.key].append(hold)

    def _renewed(self, event: HistoryEvent) -> None:
        hold = self._current.get(event.lease)
        if hold is not None and event.until > hold.end:
            hold.end = event.until

    def _believed(self, event: HistoryEvent) -> None:
        hold = self._current.get(event.lease)
        if hold is not None and event.at > hold.end:
            hold.end = event.at

    def _releasing(self, event: HistoryEvent) -> None:
        hold = self._current.pop(event.lease, None)
        if hold is not None and event.at < hold.end:
            hold.end = event.at

    def _resized(self, event: HistoryEvent) -> None:
        """More units count from the answer on, fewer from the question on."""
        hold = self._current.get(event.lease)
        if hold is None:
            return
        grows = event.units > hold.units
        if grows:
            self.grants[event.key].append(event)
        asked = event.at if event.what == "shrinking" else event.invoked
        change = event.at if grows else max(asked, hold.start)
        end, hold.end = hold.end, min(hold.end, change)
        self._begin(event, change, end)


type Rule = Literal["overlap", "slot", "token", "too soon", "stale write", "starved"]


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken, and the events that show it.

    | rule | broken promise |
    |---|---|
    | overlap | no more units are held than the key has: a writer is alone, and so is a leader |
    | slot | a slot has one holder, and a holder has one for each unit |
    | token | tokens of a key are used once, and rise from each grant to those asked for after it |
    | too soon | a task starts once in its `min_hold` |
    | stale write | a fenced resource accepts no token below one that it has accepted |
    | starved | a waiter gets free units in time |
    """

    rule: Rule
    key: str
    message: str
    events: tuple[HistoryEvent, ...]

    def __str__(self) -> str:
        lines = [f"{self.rule} on {self.key!r}: {self.message}"]
        return "\n    ".join(lines + [str(event) for event in self.events])


def check(events: Iterable[HistoryEvent]) -> list[Violation]:
    """Find what a history (in the order of time, see `history.read`) shows to be broken.

    Exclusion, slots, tokens, starts of tasks and fenced resources are checked; see
    `liveness.check_liveness` for waiting. A million cycles take some seconds.
    """
    events = events if isinstance(events, Sequence) else list(events)
    holds = Holds(events)
    found: list[Violation] = []
    for key, of_key in holds.by_key.items():
        found += check_exclusion(key, of_key)
    for key, grants in holds.grants.items():
        found += check_slots(key, grants)
        found += check_tokens(key, grants)
        found += check_starts(key, grants)
    found += check_writes(events)
    return found


def check_exclusion(key: str, holds: Iterable[RecordedHold]) -> Iterator[Violation]:
    """Find units or slots that were held twice.

    Where holders disagreed about the capacity, the greatest of those who held at that time counts:
    a lesser one binds only those who come after it.
    """
    living: list[tuple[float, int, RecordedHold]] = []
    used = 0
    for number, hold in enumerate(sorted(holds, key=lambda hold: hold.start)):
        if hold.end <= hold.start:
            continue  # the answer came after the deadline
        while living and living[0][0] <= hold.start:
            used -= heapq.heappop(living)[2].units
        if living:
            others = [other for _, _, other in living]
            yield from _crowd(key, hold, others, used)
            yield from _same_slot(key, hold, others)
        heapq.heappush(living, (hold.end, number, hold))
        used += hold.units


def _crowd(
    key: str, hold: RecordedHold, others: list[RecordedHold], used: int
) -> Iterator[Violation]:
    capacity = max(hold.grant.capacity, *(other.grant.capacity for other in others))
    if used + hold.units > capacity:
        holds = (*others, hold)
        shown = "; ".join(map(str, holds))
        message = f"{_too_many(key, used + hold.units, capacity)}: {shown}"
        yield Violation("overlap", key, message, tuple(each.grant for each in holds))


def _too_many(key: str, units: int, capacity: int) -> str:
    if capacity == MANY:
        return "a writer was not alone"
    return "two led" if key.startswith("leader:") else f"{units} units held of {capacity}"


def _same_slot(key: str, hold: RecordedHold, others: list[RecordedHold]) -> Iterator[Violation]:
    for other in others:
        twice = set(hold.slots) & set(other.slots)
        if twice and hold.grant.capacity > 1:
            message = f"slots {sorted(twice)} have two holders: {other}; {hold}"
            yield Violation("slot", key, message, (other.grant, hold.grant))


def check_slots(key: str, grants: Iterable[HistoryEvent]) -> Iterator[Violation]:
    """Find grants with slots, but not one for each unit."""
    for grant in grants:
        if grant.slots and len(set(grant.slots)) != grant.units:
            message = f"slots {list(grant.slots)} were given for {grant.units} units"
            yield Violation("slot", key, message, (grant,))


def check_starts(key: str, grants: Sequence[HistoryEvent]) -> Iterator[Violation]:
    """Find grants before the `min_hold` of an earlier one was over.

    It began when that one was asked for, at the earliest; clocks may run a little apart.
    """
    closed_until, closer = -inf, None
    if not any(grant.min_hold for grant in grants):
        return
    for grant in sorted(grants, key=lambda grant: grant.token):
        if closer is not None and grant.at < closed_until:
            message = f"closed until {closed_until:.6f}, and started {grant.at:.6f}"
            yield Violation("too soon", key, message, (closer, grant))
        until = grant.invoked + (1 - DRIFT) * grant.min_hold if grant.min_hold else -inf
        if until > closed_until:
            closed_until, closer = until, grant


def check_tokens(key: str, grants: Sequence[HistoryEvent]) -> Iterator[Violation]:
    """Find tokens that were given twice, or that fell between one grant and a later request."""
    first: dict[int, HistoryEvent] = {}
    for grant in grants:
        other = first.setdefault(grant.token, grant)
        if other is not grant:
            message = f"token {grant.token} was given twice"
            yield Violation("token", key, message, (other, grant))
    returned = iter(sorted(grants, key=lambda grant: grant.at))
    highest: HistoryEvent | None = None
    waiting = next(returned, None)
    for grant in sorted(grants, key=lambda grant: grant.invoked):
        while waiting is not None and waiting.at < grant.invoked:
            if highest is None or waiting.token > highest.token:
                highest = waiting
            waiting = next(returned, None)
        if highest is not None and grant.token < highest.token:
            message = f"token {grant.token} was given after {highest.token}"
            yield Violation("token", key, message, (highest, grant))


def check_writes(events: Iterable[HistoryEvent]) -> Iterator[Violation]:
    """Find writes that a resource accepted under a token below an earlier one's.

    Tokens of a key with several slots are compared slot by slot. Run it over the writes of an
    unfenced resource, and what it finds is what fencing prevents.
    """
    newest: defaultdict[str, dict[int | None, HistoryEvent]] = defaultdict(dict)
    for event in events:
        if event.what != "wrote":
            continue
        accepted = newest[event.resource]
        for slot in event.slots or (None,):
            last = accepted.get(slot)
            if last is not None and event.token < last.token:
                where = event.resource if slot is None else f"{event.resource}, slot {slot},"
                message = f"{where} accepted token {event.token} after {last.token}"
                yield Violation("stale write", event.key, message, (last, event))
            else:
                accepted[slot] = event
