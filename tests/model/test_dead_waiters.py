"""A living waiter is granted within two claim timeouts, however many dead ones stand before it."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any
from unittest.mock import patch

import pytest

from dibs.core import transition
from dibs.core.book import Hold, QueueEntry
from dibs.core.transition import Transition
from tests.model.dead_waiters import flaw_of, lines, tuned

pytestmark = pytest.mark.once

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


def _never_silent(transition: Transition, place: QueueEntry) -> bool:
    return False


def _only_silence(transition: Transition, place: QueueEntry) -> bool:
    heard = transition.book.expires_at(place) - place.ttl
    return transition.now - heard > place.silence


def _often_for_the_front_alone(transition: Transition, place: QueueEntry, ahead: int) -> float:
    return 1.0 if place.silence == 3.0 else place.ttl / 3


def _two_windows_for_all_others(transition: Transition, place: QueueEntry, ahead: int) -> float:
    return 1.0 if place.silence == 3.0 else 6.0


MUTANTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "an unclaimed grant casts no doubt": lambda: patch.object(
        Transition, "_expire", _end_without_doubt
    ),
    "doubt is overlooked": lambda: patch.object(Transition, "_is_passed_over", _only_silence),
    "nobody is passed over": lambda: patch.object(Transition, "_is_passed_over", _never_silent),
    "every end casts doubt": lambda: patch.object(Transition, "_expire", _doubt_of_every_end),
    "a heartbeat dispels no doubt": lambda: patch.object(
        Transition, "_record_heartbeat", _hear_nothing
    ),
    "those behind the front are heard too seldom": lambda: patch.object(
        Transition, "_next_heartbeat_in", _often_for_the_front_alone
    ),
    "those behind the front look too late": lambda: patch.object(
        Transition, "_next_heartbeat_in", _two_windows_for_all_others
    ),
    "whoever asks from beyond sight is not granted": lambda: patch.object(
        transition.Transition, "fits", lambda transition, units, **_: False
    ),
}


def first_flaw(every: int) -> str | None:
    tried = islice(lines(), 0, None, every)
    with tuned():
        return next((flaw for line in tried if (flaw := flaw_of(line)) is not None), None)


EVERY = pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.long)])
"""One of so many lines."""


@EVERY
def test_a_living_waiter_waits_two_claim_timeouts_at_most(every: int) -> None:
    assert first_flaw(every) is None


@EVERY
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_planted_mistake_is_caught(mutant: str, every: int) -> None:
    with MUTANTS[mutant]():
        assert first_flaw(every) is not None
