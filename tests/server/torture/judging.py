"""What is asked of a history besides what every history is asked: turns in line, releases that were done."""

from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path

from dibs.core.timing import DRIFT, claim_timeout
from dibs.testing.checker import Holds, RecordedHold, Violation
from dibs.testing.history import HistoryEvent as Event
from dibs.testing.history import read
from dibs.testing.torture.judging import Judge
from dibs.testing.torture.plan import TorturePlan, primitive_of
from dibs.testing.torture.verdict import Verdict
from tests.torture.in_line import IN_LINE

STILL_HELD = "still held"
"""An event's `resource`: a release was acknowledged, and a later look found the hold that it was for."""


def still_held(at: float, key: bytes, token: int, process: int) -> Event:
    return Event(at, "asked", key.decode(), token=token, process=process, resource=STILL_HELD)


class ServiceJudge(Judge):
    """Remembers how many turns it has looked at."""

    def __init__(self, plan: TorturePlan, longest: float = inf) -> None:
        """`longest`: nobody may wait so long for what is free, whatever happens meanwhile."""
        super().__init__(plan)
        self.turns = 0
        self._longest = longest
        self.in_order = True
        """Places in line stand. While directories move they do not: who waits queues in the new store."""

    def judge(self, folder: Path, lapses: Sequence[float]) -> Verdict:
        verdict = super().judge(folder, lapses)
        events = read(*folder.glob("history-*.jsonl"))
        verdict.violations += _not_released(events)
        verdict.violations += self._kept_waiting(events)
        if self.in_order:
            verdict.violations += self._out_of_turn(events)
        return verdict

    def _kept_waiting(self, events: Sequence[Event]) -> Iterator[Violation]:
        for since, grant in waits(events):
            if grant.at - since > self._longest:
                message = f"free for {grant.at - since:.3f} s, while a caller waited and a server was there"
                yield Violation("starved", grant.key, message, (grant,))

    def _out_of_turn(self, events: Sequence[Event]) -> Iterator[Violation]:
        arrived = {
            (event.process, event.key, event.invoked): event.at
            for event in reversed(events)
            if event.resource == IN_LINE
        }
        grants: dict[str, list[Event]] = {}
        for event in events:
            if event.what == "granted" and _in_order(event.key):
                grants.setdefault(event.key, []).append(event)
        for key, of_key in grants.items():
            for first in of_key:
                at = arrived.get((first.process, key, first.invoked))
                if at is not None and first.at <= self._believed(first):
                    self.turns += 1
                    yield from _before(first, at, of_key)

    def _believed(self, call: Event) -> float:
        """Until when its place stands at least, or the grant that it had in silence."""
        return call.invoked + (1 - DRIFT) * claim_timeout(self._plan.ttl)


def waits(events: Sequence[Event]) -> Iterator[tuple[float, Event]]:
    """Grants of locks to callers that waited already when the last hold ended, and when it ended.

    A dead holder's hold ends at its deadline.
    """
    for of_key in Holds(events).by_key.values():
        if any(hold.grant.capacity != 1 for hold in of_key):
            continue
        previous: RecordedHold | None = None
        for hold in sorted(of_key, key=lambda hold: hold.start):
            if previous is not None and hold.grant.invoked < previous.end <= hold.start:
                yield previous.end, hold.grant
            if previous is None or hold.end > previous.end:
                previous = hold


def _in_order(key: str) -> bool:
    """Locks with an even number are passed on within a process, and readers come in together."""
    what = primitive_of(key)
    return what == "semaphore" or (what == "lock" and int(key.rpartition("-")[2]) % 2 == 1)


def _before(first: Event, arrived: float, grants: Sequence[Event]) -> Iterator[Violation]:
    """Who came after somebody whose place was there, and was served first."""
    for later in grants:
        if later.token < first.token and later.invoked > arrived:
            message = (
                f"out of turn: token {later.token} was asked for at {later.invoked:.6f}, and came "
                f"before {first.token}, which was in line at {arrived:.6f}"
            )
            yield Violation("token", first.key, message, (first, later))


def _not_released(events: Sequence[Event]) -> Iterator[Violation]:
    for event in events:
        if event.resource == STILL_HELD:
            message = f"token {event.token} was released, which was acknowledged, and is held still"
            yield Violation("starved", event.key, message, (event,))
