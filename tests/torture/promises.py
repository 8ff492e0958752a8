"""What a simulated history shows to be broken beyond what any history can: time is true here."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dibs.testing import HistoryEvent, Violation
from tests.torture.actions import DELAY, TASKS

STEP = 0.03
"""The store's clock may be set forward by so much: what it granted ends so much earlier."""
EXACT = 1e-6
DRIFT = 0.01
PLACES = 45.0
"""A place in a queue is not older than that once its owner is silent: ttl, and late copies."""


@dataclass(frozen=True, slots=True)
class Broken(Violation):
    """A promise of which any history tells too little.

    | rule | broken promise |
    |---|---|
    | deadline | nobody is told that it holds longer than the store's word and the margin allow |
    | early | a task starts no sooner than `min_hold` after the last start |
    | kept | nor is it kept from starting for longer |
    | overrun | nobody is told that it runs a task alone after `max_hold` |
    | order | a term starts, ends and stops once each, in this order, and is over once it was resigned |
    | units | after a downgrade the store has one unit taken |
    | deadlock | it is found only where another upgrade waits |
    | left | what was given up is not in the store any more |
    | stuck | once faults end everybody comes to an end |
    | error | nothing is raised but what is documented |
    """

    rule: str  # type: ignore[assignment]  # others than any history's


def told(event: HistoryEvent) -> str:
    """What happened: a simulation tells more than other histories."""
    return event.what


def check_all(events: Sequence[HistoryEvent]) -> list[Violation]:
    checks = (check_told, check_beliefs, check_starts, check_delays, check_kept, check_terms)
    return [broken for check in checks for broken in check(events)]


def check_beliefs(events: Iterable[HistoryEvent]) -> Iterator[Violation]:
    for event in events:
        if told(event) in ("believed", "trusts"):
            at = event.at if told(event) == "believed" else event.invoked
            if at > event.until + STEP + EXACT:
                message = f"{told(event)} {at - event.until:.3f} s too long"
                yield Broken("deadline", event.key, message, (event,))


def check_starts(events: Iterable[HistoryEvent]) -> Iterator[Violation]:
    """Who died, or whose farewell came too late, is only waited for to its deadline."""
    last: dict[str, HistoryEvent] = {}
    begun: dict[str, HistoryEvent] = {}
    for event in events:
        shortest, longest = TASKS.get(event.key.removeprefix("tasklock:"), (0.0, 0.0))
        if not longest:
            continue
        if told(event) == "granted" and event.at < event.until:
            before = last.get(event.key)
            if before and event.at < min(before.at + shortest * (1 - DRIFT), before.until) - STEP:
                message = f"started {event.at - before.at:.3f} s after the last start"
                yield Broken("early", event.key, message, (before, event))
            last[event.key] = begun[event.lease] = event
        elif told(event) == "believed" and event.lease in begun:
            start = begun[event.lease]
            if event.at > start.at + longest * (1 + DRIFT):
                message = f"runs for {event.at - start.at:.3f} s, as it was told alone"
                yield Broken("overrun", event.key, message, (start, event))


def check_delays(events: Iterable[HistoryEvent]) -> Iterator[Violation]:
    """Whoever was not heard of again leaves the lock closed for a while."""
    last: dict[str, HistoryEvent] = {}
    for event in events:
        if event.key != "lock:slow":
            continue
        before = last.get(event.key)
        if told(event) == "granted" and event.at < event.until:  # else it was lost untold
            if before and event.at < before.until + DELAY * (1 - DRIFT) - STEP:
                message = f"granted {event.at - before.until:.3f} s after its holder was lost"
                yield Broken("early", event.key, message, (before, event))
            last[event.key] = event
        elif told(event) == "renewed" and before and before.lease == event.lease:
            last[event.key] = event
        elif told(event) == "releasing" and before and before.lease == event.lease:
            del last[event.key]


def check_kept(events: Iterable[HistoryEvent]) -> Iterator[Violation]:
    """It may be as much longer as the farewell was under way."""
    begun = {event.lease: event for event in events if told(event) == "granted"}
    for event in events:
        if told(event) == "kept" and event.lease in begun:
            start, under_way = begun[event.lease], event.at - event.invoked
            shortest, _ = TASKS[event.key.removeprefix("tasklock:")]
            most = max(start.at + shortest * (1 + DRIFT) + under_way, event.at)
            if event.until > most + EXACT:
                message = f"kept {event.until - most:.3f} s too long"
                yield Broken("kept", event.key, message, (start, event))


def check_terms(events: Iterable[HistoryEvent]) -> Iterator[Violation]:
    terms: defaultdict[str, dict[str, HistoryEvent]] = defaultdict(dict)
    for event in events:
        if not event.key.startswith("leader:") or not event.lease:
            continue
        known = terms[event.lease]
        wrong = _out_of_order(event, known)
        if wrong:
            yield Broken("order", event.key, wrong, (*known.values(), event))
        if told(event) in ("granted", "renewed"):
            known["granted"] = event  # with its latest deadline
        elif told(event) not in ("wrote", "believed"):
            known[told(event)] = event


def _out_of_order(event: HistoryEvent, known: dict[str, HistoryEvent]) -> str:
    what = told(event)
    if what in ("started", "stopped") and what in known:
        return f"it {what} twice"
    if what == "stopped" and "started" not in known:
        return "it stopped before it started"
    until = known["granted"].until if "granted" in known else 0.0
    if what == "ended" and "stopped" in known and known["stopped"].at < until:
        return "it stopped before its body ended"
    if what == "releasing" and "started" in known and "over" not in known and event.at < until:
        return "it is handed over before on_stopped is done"
    if what == "believed" and "resigned" in known:
        return "it leads after it has resigned"
    return ""


def check_told(events: Iterable[HistoryEvent]) -> Iterator[Violation]:
    """What is wrong as it stands; and a deadlock, unless another upgrade may have been under way."""
    upgrades: defaultdict[str, list[HistoryEvent]] = defaultdict(list)
    for event in events:
        if told(event) in ("left", "stuck", "error"):
            yield Broken(told(event), event.key, event.resource, (event,))
        elif told(event) == "seen" and event.units > 1:
            yield Broken("units", event.key, f"it still has {event.units} units", (event,))
        elif told(event) == "upgrading":
            upgrades[event.key].append(event)
        elif told(event) == "deadlock" and not any(
            other.lease != event.lease and other.at > event.invoked - PLACES
            for other in upgrades[event.key][-200:]
        ):
            yield Broken("deadlock", event.key, "nobody else upgrades", (event,))
