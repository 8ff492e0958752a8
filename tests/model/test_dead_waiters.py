"""A living waiter is granted within two claim timeouts, however many dead ones stand before it.

Here time matters to the tick, so these queues are told apart by when each waiter dies, and a living one
sends each heartbeat as late as it was allowed to. The holder leaves or expires at a time that falls on
any phase of those heartbeats.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import islice, product
from math import inf
from typing import Any
from unittest.mock import patch

import pytest

from dibs.core import ledger, transition
from dibs.core.book import Hold, MemoryBook, QueueEntry
from dibs.core.names import fingerprint
from dibs.core.transition import Transition
from dibs.model import Acquire, Command, Granted, Queued, Release, Renew

pytestmark = pytest.mark.once

KEY = b"lock:k"
MAX_CLAIM_TIMEOUT = 3.0
"""The claim timeout, in seconds."""
TTL = 2 * MAX_CLAIM_TIMEOUT
WAITER_TTL = 90.0
BEFORE = 1e-9
FREE_AT = 23.0


@dataclass(frozen=True)
class Line:
    """Who waits, in order: for each waiter when it dies, in seconds before the units are free."""

    deaths: tuple[float, ...]
    """Infinity: at once after it has queued; less than 0: never."""
    phase: float
    expires: bool
    """The holder dies, rather than release."""


def lines() -> Iterator[Line]:
    """Up to eight dead waiters before a living one, and another one behind that or not."""
    for count in (0, 1, 2, 3, 5, 6, 8):
        for deaths in product((inf, 2.0, 0.0), repeat=min(count, 3)):
            dead = tuple(deaths[n % len(deaths)] for n in range(count)) if count else ()
            for phase, expires in product((0.0, 0.7, 1.3, 2.1, 2.9, 4.4, 5.6), (False, True)):
                yield Line((*dead, -1.0), phase, expires)
                yield Line((*dead[:2], -1.0, *dead[2:], -1.0), phase, expires)


def flaw_of(line: Line) -> str | None:
    granted = _granted(line)
    living = [f"w{n}" for n, death in enumerate(line.deaths) if death < 0]
    first = living[0]
    late = granted.get(first, inf) - FREE_AT
    if late > 2 * MAX_CLAIM_TIMEOUT + 1e-6:
        return f"{first} waits {late} s: {line}"
    if any(granted.get(other, inf) <= granted[first] for other in living[1:]):
        return f"{first} was overtaken: {line}"
    return None


def _granted(line: Line) -> dict[str, float]:
    """When each of the living is granted; those hold on to it."""
    book = MemoryBook()
    granted: dict[str, float] = {}
    ends = {
        f"w{n}": inf if death < 0 else FREE_AT - death - BEFORE
        for n, death in enumerate(line.deaths)
    }
    calls: list[tuple[float, int, Command]] = []
    ttl = FREE_AT if line.expires else 100.0
    _tell(book, Acquire(KEY, "holder", "o", ttl), 0.0, granted)
    last = len(line.deaths) - 1
    for n in range(len(line.deaths)):
        wish = Acquire(KEY, f"w{n}", "o", TTL, queue=True, waiter_ttl=WAITER_TTL)
        calls.append((line.phase if n == last else 0.0, n, wish))
    if not line.expires:
        calls.append((FREE_AT, -1, Release(KEY, "holder")))
    heapify(calls)
    while calls:
        now, n, command = heappop(calls)
        if now > FREE_AT + 3 * MAX_CLAIM_TIMEOUT:
            break
        recheck = _tell(book, command, now, granted)
        for lease in [each for each in granted if granted[each] == now and ends[each] == inf]:
            _tell(book, Renew(KEY, lease, 100.0), now, granted)
        again = Renew(KEY, f"w{n}", TTL)
        if recheck is not None and now + recheck < ends[f"w{n}"]:
            heappush(calls, (now + recheck, n, again))
    return granted


def _tell(
    book: MemoryBook, command: Command, now: float, granted: dict[str, float]
) -> float | None:
    """Apply a command; when whoever sent it sends the next heartbeat, if it waits."""
    reply, notifications = ledger.apply(book, command, now, 0)
    leases = {fingerprint(f"w{n}"): f"w{n}" for n in range(12)}
    for notification in notifications:
        if notification.event == "granted":
            granted.setdefault(leases[notification.lease], now)
    if isinstance(reply, Granted) and getattr(command, "id", "holder") != "holder":
        granted.setdefault(command.id, now)  # type: ignore[union-attr]
    return reply.recheck_in if isinstance(reply, Queued) else None


# ---- planted mistakes ----------------------------------------------------------------------------

_END, _HEAR = Transition._expire, Transition._record_heartbeat


def _end_without_doubt(transition: Transition, entry: Any) -> None:
    doubt = transition.book.doubt
    _END(transition, entry)
    transition.book.doubt = doubt


def _doubt_of_every_end(transition: Transition, entry: Any) -> None:
    if isinstance(entry, Hold):
        transition.book.doubt = max(transition.book.doubt, transition.book.last + 1)
    _END(transition, entry)


def _hear_nothing(transition: Transition, place: QueueEntry, ahead: int) -> None:
    seen = place.seen
    _HEAR(transition, place, ahead)
    place.seen = seen


def _behind_the_front(seconds: float) -> Any:
    """Those behind the front send their next heartbeat after so many seconds."""
    return lambda _, place, ahead: 1.0 if place.silence == MAX_CLAIM_TIMEOUT else seconds


MUTANTS: dict[str, tuple[str, Any]] = {
    "an unclaimed grant casts no doubt": ("_expire", _end_without_doubt),
    "doubt is overlooked": ("_is_passed_over", Transition._missed_heartbeat),
    "nobody is passed over": ("_is_passed_over", lambda *_: False),
    "every end casts doubt": ("_expire", _doubt_of_every_end),
    "a heartbeat dispels no doubt": ("_record_heartbeat", _hear_nothing),
    "those behind the front are heard too seldom": (
        *("_next_heartbeat_in", _behind_the_front(WAITER_TTL / 3)),
    ),
    "those behind the front look too late": ("_next_heartbeat_in", _behind_the_front(6.0)),
    "whoever asks from beyond sight is not granted": ("fits", lambda *_, **__: False),
}


def first_flaw(every: int) -> str | None:
    """A small front, so that a queue of few waiters goes beyond it, and beyond what is looked at."""
    tried = islice(lines(), 0, None, every)
    with patch.multiple(transition, HEARTBEAT_POSITIONS=2, EXAMINED_POSITIONS=5):
        return next((flaw for line in tried if (flaw := flaw_of(line)) is not None), None)


EVERY = pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.long)])
"""One of so many lines."""


@EVERY
def test_a_living_waiter_waits_two_claim_timeouts_at_most(every: int) -> None:
    assert first_flaw(every) is None


@EVERY
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_planted_mistake_is_caught(mutant: str, every: int) -> None:
    name, mistake = MUTANTS[mutant]
    with patch.object(Transition, name, mistake):
        assert first_flaw(every) is not None
