"""With dates and without, no lease is granted to another one too soon; and each planted mistake shows."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import pytest

from dibs.core.book import Hold
from dibs.core.transition import Transition
from dibs.stores.cas import clock as cas_clock
from dibs.stores.cas.clock import Sightings, StoreClock, Time
from tests.model import dates
from tests.model.dates import DATED_WORLDS, DatedWorld, explore

pytestmark = pytest.mark.once  # searches are the same for each version of Python

SMALLER = {
    dates.LONE_TRIES: 6,
    dates.WATCHER: 4,
    dates.RIVALS: 4,
    dates.MIXED: 10,
    dates.BURIED: 3,
    dates.AGAIN: 4,
}
"""The horizon in CI of worlds that are larger in `make torture`."""

LARGER = (
    replace(dates.LONE_TRIES, horizon=11),
    replace(dates.WATCHER, horizon=8),
    replace(dates.RIVALS, horizon=7, apart=(0, 1), tries=(1, 1)),
    replace(dates.RETAINED, loud=(True, False), tries=(0, 1)),
    replace(dates.BURIED, horizon=7),
    replace(dates.AGAIN, horizon=8, apart=(0, 1)),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "world",
    [
        *(
            pytest.param(replace(each, horizon=SMALLER.get(each, each.horizon)), id=each.name)
            for each in DATED_WORLDS
        ),
        *(
            pytest.param(each, id=f"{each.name}, longer", marks=pytest.mark.long)
            for each in (*SMALLER, *LARGER)
        ),
    ],
)
def test_nothing_is_granted_too_soon(world: DatedWorld) -> None:
    found = explore(world)
    assert found.flaw is None, found.flaw
    missed = [what for what in world.reaches.split(", ") if not found.seen[what]]
    assert not missed, f"{world.name} proves nothing about {missed}: {dict(found.seen)}"


def test_a_lone_try_never_gets_it_without_dates() -> None:
    """So what the fresh processes of these worlds are granted while a hold is left, dates have ended."""
    found = explore(
        replace(dates.LONE_TRIES, dated=(False, False), loud=(False, False), tries=(0, 1))
    )
    assert found.flaw is None
    dated = explore(replace(dates.LONE_TRIES, loud=(False, False), tries=(0, 1)))
    assert dated.seen["b granted"] > found.seen["b granted"]


# ---- planted mistakes -------------------------------------------------------------------------------

TIME, NOTE = StoreClock.time, StoreClock.note
RETAIN, BURY = Transition.retain, Transition.set_tombstone


@dataclass(frozen=True)
class Mutant:
    world: DatedWorld
    target: tuple[Any, str] = (StoreClock, "time")
    mistake: Any = TIME
    caught_as: str = "two believers"


def _time(change: Callable[[StoreClock, Time, float], Time]) -> Any:
    """Another time than `StoreClock.time` says, where it is the store's."""

    def changed(clock: StoreClock, now: float) -> Time:
        time = TIME(clock, now)
        return time if time.slack is None else change(clock, time, time.slack - clock.skew)

    return changed


def _earliest(clock: StoreClock, time: Time, wide: float) -> Time:
    return time._replace(now=time.now - wide, ahead=time.ahead - wide, slack=clock.skew)


def _latest(clock: StoreClock, time: Time, wide: float) -> Time:
    return time._replace(slack=clock.skew)


def _without_skew(clock: StoreClock, time: Time, wide: float) -> Time:
    return time._replace(slack=wide)


def _exact(clock: StoreClock, date: float, resolution: float, *times: float) -> None:
    NOTE(clock, date, 0, *times)


def _of_the_request(
    clock: StoreClock, date: float, resolution: float, sent: float, _: float
) -> None:
    NOTE(clock, date, resolution, sent, sent)


def _retain_with_the_old_date(change: Transition, hold: Hold, *more: float) -> None:
    RETAIN(change, hold, *more)
    retained = change.book.get(hold.id)
    assert retained is not None
    retained.expires = hold.expires


def _buried_by_now(change: Transition, entry_id: str, *more: Any) -> None:
    BURY(change, entry_id, *more)
    tombstone = change.book.get(entry_id)
    assert tombstone is not None
    tombstone.expires = change.now


CALM = replace(dates.LONE_TRIES, loud=(False, False))
REQUESTS = replace(
    dates.LONE_TRIES, loud=(False, True), apart=(0,), skew=0, resolution=1, horizon=4
)
TOMBSTONES = replace(dates.BURIED, loud=(False, False), gives_up=0, tombstone=5, horizon=9)

MUTANTS = {
    "the writer dates by the earliest time": Mutant(dates.LONE_TRIES, mistake=_time(_earliest)),
    "the reader goes by the latest time": Mutant(dates.LONE_TRIES, mistake=_time(_latest)),
    "the skew is left out": Mutant(
        replace(CALM, skew=2, apart=(0, 2)), mistake=_time(_without_skew)
    ),
    "dates are taken for exact": Mutant(dates.LONE_TRIES, (StoreClock, "note"), _exact),
    "the date is taken for that of the request": Mutant(
        REQUESTS, (StoreClock, "note"), _of_the_request
    ),
    "a retained hold keeps the date of the lease": Mutant(
        *(replace(dates.RETAINED, retain=5), (Transition, "retain"), _retain_with_the_old_date),
        "what is retained",
    ),
    "a tombstone has the date of the release": Mutant(
        TOMBSTONES, (Transition, "set_tombstone"), _buried_by_now, "is buried"
    ),
    "seen when the request left": Mutant(replace(dates.WATCHER, at_sending=True)),
    "sightings of a failed attempt are kept": Mutant(
        dates.UNDATED_HOLDER, (Sightings, "of"), lambda self, entries: self
    ),
    "a new sign of life that equals an old one": Mutant(
        dates.AGAIN, (cas_clock, "mark_of"), lambda entry: (type(entry), 0, entry.beat)
    ),
    "who knows no dates leaves one": Mutant(
        dates.MIXED, (Sightings, "is_changed"), lambda self, entry: False
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_planted_mistake_is_caught(mutant: Mutant) -> None:
    with patch.object(*mutant.target, mutant.mistake):
        found = explore(mutant.world)
    assert found.flaw is not None, f"{len(found.states)} states, and nothing noticed"
    assert mutant.caught_as in found.flaw, found.flaw
