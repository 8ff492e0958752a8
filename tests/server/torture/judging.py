"""What is asked of a history besides what every history is asked: turns in line, releases that were done."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from dibs.core.timing import DRIFT, claim_timeout
from dibs.testing.checker import Violation
from dibs.testing.history import HistoryEvent as Event
from dibs.testing.history import read
from dibs.testing.torture.judging import Judge
from dibs.testing.torture.plan import primitive_of
from dibs.testing.torture.verdict import Verdict
from tests.torture.in_line import IN_LINE

STILL_HELD = "still held"
"""An event's `resource`: a release was acknowledged, and a later look found the hold that it was for."""


def still_held(at: float, key: bytes, token: int, process: int) -> Event:
    return Event(at, "asked", key.decode(), token=token, process=process, resource=STILL_HELD)


class ServiceJudge(Judge):
    """Remembers how many turns it has looked at."""

    turns = 0

    def judge(self, folder: Path, lapses: Sequence[float]) -> Verdict:
        verdict = super().judge(folder, lapses)
        events = read(*folder.glob("history-*.jsonl"))
        verdict.violations += _not_released(events)
        verdict.violations += self._out_of_turn(events)
        return verdict

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
        # until then its place stands at least, or the grant that it had in silence
        believed = (1 - DRIFT) * claim_timeout(self._plan.ttl)
        for key, of_key in grants.items():
            for first in of_key:
                at = arrived.get((first.process, key, first.invoked))
                if at is not None and first.at <= first.invoked + believed:
                    self.turns += 1
                    yield from _before(first, at, of_key)


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
