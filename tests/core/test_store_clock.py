"""What a process knows of the store's clock holds for all servers, delays and rates within the limits."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dibs.core.book import Entry, Hold, QueueEntry, Tombstone
from dibs.core.timing import DRIFT
from dibs.stores.cas import clock as module
from dibs.stores.cas.clock import Sightings, StoreClock
from tests.sampling import examples

EPSILON = 1e-5
"""Seconds that arithmetic with seconds since 1970 may be off by."""

SKEW = 4.0

_rates = st.sampled_from([1 - DRIFT, 1.0, 1 + DRIFT])
_seconds = st.sampled_from([0.0, 0.25, 1.0, 1.5, 30.0, 900.0])
_steps = st.lists(
    st.tuples(
        _seconds, _seconds, _seconds, _rates, st.integers(0, 1), st.sampled_from([0.001, 1.0, 2.0])
    ),
    min_size=1,
    max_size=12,
)
"""Each: seconds before the request, there, and back; the servers' rate; which one; to what it rounds."""
_starts = st.sampled_from([0.0, 1e6 + 0.75, 1.8e9 + 0.999])
_apart = st.sampled_from([0.0, 0.5, SKEW])
_ttls = st.sampled_from([0.5, 2.0, 30.0])

SETTINGS = settings(
    max_examples=examples(200),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)


class Servers:
    """Two servers whose clocks differ by less than `SKEW`, beside a process's own clock."""

    def __init__(self, first: float, apart: float) -> None:
        self.own = 0.0
        self.clocks = [first, first + apart]

    def run(self, seconds: float, rate: float) -> None:
        self.own += seconds
        self.clocks = [each + rate * seconds for each in self.clocks]

    def answers(self, steps: Any, *clocks: StoreClock) -> Iterator[int]:
        """The processes' answers come, one of each for one of these steps."""
        for number, (before, there, back, rate, server, resolution) in enumerate(steps):
            self.run(before, rate)
            sent = self.own
            self.run(there, rate)
            date = self.clocks[server] // resolution * resolution
            self.run(back, rate)
            clocks[number % len(clocks)].note(date, resolution, sent, self.own)
            yield number


def check_bounds(start: float, apart: float, steps: Any) -> None:
    clock, servers = StoreClock(SKEW), Servers(start, apart)
    for _ in servers.answers(steps, clock):
        time = clock.time(servers.own)
        assert time.slack is not None
        earliest = time.now - (time.slack - SKEW)
        assert earliest <= max(servers.clocks) + EPSILON, "the store's clock is behind it"
        assert time.now >= min(servers.clocks) - EPSILON, "the store's clock is past it"


def check_ends(start: float, apart: float, steps: Any, ttl: float) -> None:
    """What is dead by the dates has had its ttl, whoever wrote it and whoever looks."""
    writer, reader = StoreClock(SKEW), StoreClock(SKEW)
    servers = Servers(start, apart)
    written: list[tuple[float, float]] = []
    for number in servers.answers(steps, writer, reader):
        if number % 2 == 0:
            written.append((servers.own, writer.time(servers.own).now + ttl))
            continue
        time = reader.time(servers.own)
        assert time.slack is not None
        for since, expires in written:
            if time.now >= expires + time.slack:
                lived = servers.own - since
                assert lived >= ttl / (1 + DRIFT) - EPSILON, f"dead after {lived} of {ttl} s"


@SETTINGS
@given(_starts, _apart, _steps, _ttls)
def test_a_server_s_clock_is_within_the_bounds_and_nothing_is_dead_before_its_end(
    start: float, apart: float, steps: Any, ttl: float
) -> None:
    check_bounds(start, apart, steps)
    check_ends(start, apart, steps, ttl)


# ---- planted mistakes; `tests/model/test_dates.py` has more -------------------------------------------

NOTE = StoreClock.note


def _when_it_left(clock: StoreClock, date: float, by: float, sent: float, heard: float) -> None:
    NOTE(clock, date, by, sent, sent)


def _when_it_came(clock: StoreClock, date: float, by: float, sent: float, heard: float) -> None:
    NOTE(clock, date, by, heard, heard)


PLANTED: dict[str, tuple[Any, str, Any]] = {
    "the date is taken for that of the request": (StoreClock, "note", _when_it_left),
    "the date is taken for that of the answer": (StoreClock, "note", _when_it_came),
    "the bounds never widen": (module, "DRIFT", 0.0),
}


@pytest.mark.once
@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_mistake_is_noticed(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    @settings(SETTINGS, max_examples=2000, phases=[Phase.generate], derandomize=True)
    @given(_starts, _apart, _steps, _ttls)
    def check(start: float, apart: float, steps: Any, ttl: float) -> None:
        check_bounds(start, apart, steps)
        check_ends(start, apart, steps, ttl)

    monkeypatch.setattr(*PLANTED[mistake])
    with pytest.raises(AssertionError):
        check()


# ---- which rule applies -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dates", "disagreement", "is_believed"),
    [
        pytest.param((100.0, 104.5), 3.5, True, id="within the skew"),
        pytest.param((100.0, 104.5) * 50, 3.5, True, id="servers that take turns"),
        pytest.param((100.0, 200.0, 200.0), 99, False, id="a contradiction, nor later"),
        pytest.param((100.0, 104.0, 108.0), 7, False, id="steps in one direction add up"),
    ],
)
def test_dates_are_believed_unless_they_differ_by_more_than_the_skew(
    dates: tuple[float, ...], disagreement: float, *, is_believed: bool
) -> None:
    clock = StoreClock(SKEW)
    for date in dates:
        clock.note(date, 1.0, 0.0, 0.0)
    assert clock.disagreement == pytest.approx(disagreement)
    assert clock.is_dated == is_believed
    if not is_believed:
        assert clock.time(7.0)[:3] == (7.0, 0.0, None), "the time is our own"
        assert clock.time(0.0).stamp == pytest.approx(dates[-1] * 1e6, abs=8e6), "of the last date"


def test_a_first_token_is_not_an_old_one_after_a_long_silence() -> None:
    """Idle keys are deleted by those who know the date, so a first token must not be a small one."""
    clock = StoreClock(SKEW)
    clock.note(1e6, 1.0, 0.0, 0.0)
    silence = 200 * 3600.0
    assert clock.time(silence).stamp > (1e6 + silence - 60) * 1e6


def test_what_has_gone_is_forgotten() -> None:
    seen, now = Sightings(), StoreClock().time
    hold = Hold("a", "a", 1, 1, (0,), 10, 0)
    entries: list[Entry] = [hold, Tombstone("b", 10, 0), QueueEntry("c", "c", 1, 0, 1, 10, 10, 0)]
    for entry in entries:
        seen.view(now(0))(entry)
    seen = seen.of([hold])
    assert [seen.view(now(5))(entry) for entry in entries] == pytest.approx([10.1, 15.1, 15.1])
