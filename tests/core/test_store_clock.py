"""What a process knows of the store's clock holds for all servers, delays and rates within the limits."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dibs.core.book import Hold
from dibs.core.timing import DRIFT
from dibs.stores.cas import clock as module
from dibs.stores.cas.clock import UNDATED, Sightings, StoreClock, Time
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

SETTINGS = settings(
    max_examples=examples(200),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)


class Servers:
    """Two servers whose clocks differ by less than `SKEW`, beside a process's own clock."""

    def __init__(self, first: float, apart: float, own: float = 0.0) -> None:
        self.own = own
        self.clocks = [first, first + apart]

    def run(self, seconds: float, rate: float) -> None:
        self.own += seconds
        self.clocks = [each + rate * seconds for each in self.clocks]

    def date(self, server: int, resolution: float) -> float:
        return self.clocks[server] // resolution * resolution


def answers(servers: Servers, steps: Any, clocks: list[StoreClock]) -> Iterator[None]:
    """The processes' answers come, one of each for one of these steps."""
    for number, (before, there, back, rate, server, resolution) in enumerate(steps):
        servers.run(before, rate)
        sent = servers.own
        servers.run(there, rate)
        date = servers.date(server, resolution)
        servers.run(back, rate)
        clocks[number % len(clocks)].note(date, resolution, sent, servers.own)
        yield


def bounds(time: Time, skew: float) -> tuple[float, float]:
    assert time.slack is not None
    return time.now - (time.slack - skew), time.now


def check_bounds(start: float, apart: float, steps: Any) -> None:
    clock, servers = StoreClock(SKEW), Servers(start, apart)
    for _ in answers(servers, steps, [clock]):
        low, high = bounds(clock.time(servers.own), SKEW)
        assert low <= max(servers.clocks) + EPSILON, "the store's clock is behind the earliest time"
        assert high >= min(servers.clocks) - EPSILON, "the store's clock is past the latest time"


def check_ends(start: float, apart: float, steps: Any, ttl: float) -> None:
    """What is dead by the dates has had its ttl, whoever wrote it and whoever looks."""
    writer, reader = StoreClock(SKEW), StoreClock(SKEW)
    servers = Servers(start, apart)
    written: list[tuple[float, float]] = []
    for number, _ in enumerate(answers(servers, steps, [writer, reader])):
        if number % 2 == 0:
            written.append((servers.own, writer.time(servers.own).now + ttl))
            continue
        time = reader.time(servers.own)
        assert time.slack is not None
        for since, expires in written:
            if time.now >= expires + time.slack:
                lived = servers.own - since
                assert lived >= ttl / (1 + DRIFT) - EPSILON, f"dead after {lived} of {ttl} s"


_starts = st.sampled_from([0.0, 1e6 + 0.75, 1.8e9 + 0.999])
_apart = st.sampled_from([0.0, 0.5, SKEW])


@SETTINGS
@given(_starts, _apart, _steps)
def test_a_server_s_clock_is_within_the_bounds(start: float, apart: float, steps: Any) -> None:
    check_bounds(start, apart, steps)


@SETTINGS
@given(_starts, _apart, _steps, st.sampled_from([0.5, 2.0, 30.0]))
def test_nothing_is_dead_by_dates_before_its_end(
    start: float, apart: float, steps: Any, ttl: float
) -> None:
    check_ends(start, apart, steps, ttl)


# ---- planted mistakes -------------------------------------------------------------------------------

TIME, NOTE = StoreClock.time, StoreClock.note

type Planting = Callable[[], AbstractContextManager[Any]]


def _time(change: Callable[[StoreClock, Time, float], Time]) -> Planting:
    return lambda: patch.object(
        StoreClock, "time", lambda clock, now: change(clock, TIME(clock, now), now)
    )


def _with(slack: Callable[[StoreClock, float], float]) -> Planting:
    return _time(lambda clock, time, now: time._replace(slack=slack(clock, time.slack or 0.0)))


def _earliest(clock: StoreClock, time: Time, now: float) -> Time:
    low = time.now - ((time.slack or 0.0) - clock.skew)
    return time._replace(now=low, ahead=low - now, slack=clock.skew)


def _rounded_dates(clock: StoreClock, date: float, resolution: float, *times: float) -> None:
    NOTE(clock, date, 0.0, *times)


def _when_it_left(
    clock: StoreClock, date: float, resolution: float, sent: float, heard: float
) -> None:
    NOTE(clock, date, resolution, sent, sent)


def _when_it_came(
    clock: StoreClock, date: float, resolution: float, sent: float, heard: float
) -> None:
    NOTE(clock, date, resolution, heard, heard)


@contextmanager
def _never_widened() -> Iterator[None]:
    with patch.object(module, "DRIFT", 0.0):
        yield


PLANTED: dict[str, Planting] = {
    "the writer dates by the earliest time": _time(_earliest),
    "the reader goes by the latest time": _with(lambda clock, slack: clock.skew),
    "the skew is left out": _with(lambda clock, slack: slack - clock.skew),
    "dates are taken for exact": lambda: patch.object(StoreClock, "note", _rounded_dates),
    "the date is taken for that of the request": lambda: patch.object(
        StoreClock, "note", _when_it_left
    ),
    "the date is taken for that of the answer": lambda: patch.object(
        StoreClock, "note", _when_it_came
    ),
    "the bounds never widen": _never_widened,
}


@pytest.mark.once
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_noticed(name: str) -> None:
    @settings(SETTINGS, max_examples=2000, phases=[Phase.generate], derandomize=True)
    @given(_starts, _apart, _steps, st.sampled_from([0.5, 2.0, 30.0]))
    def check(start: float, apart: float, steps: Any, ttl: float) -> None:
        check_bounds(start, apart, steps)
        check_ends(start, apart, steps, ttl)

    with PLANTED[name](), pytest.raises(AssertionError):
        check()


# ---- which rule applies -----------------------------------------------------------------------------


def test_without_an_answer_the_time_is_our_own() -> None:
    assert StoreClock().time(5.0) == Time(5.0, 0.0, None, 0)


def test_the_slack_is_the_skew_and_what_is_not_known() -> None:
    clock = StoreClock(SKEW)
    clock.note(100.0, 1.0, 8.0, 8.5)
    time = clock.time(8.5)
    assert time.now == pytest.approx(101.5, abs=0.01)
    assert time.slack == pytest.approx(SKEW + 1.5, abs=0.01)
    assert clock.time(108.5).slack == pytest.approx(SKEW + 1.5 + 2 * DRIFT * 100, abs=0.01)


def test_servers_that_agree_within_the_skew_are_believed() -> None:
    clock = StoreClock(SKEW)
    clock.note(100.0, 1.0, 0.0, 0.0)
    clock.note(104.5, 1.0, 0.0, 0.0)
    assert clock.disagreement == pytest.approx(3.5)
    assert clock.is_dated


def contradicted() -> StoreClock:
    clock = StoreClock(SKEW)
    clock.note(100.0, 1.0, 0.0, 0.0)
    clock.note(200.0, 1.0, 0.0, 0.0)
    return clock


def test_servers_that_contradict_each_other_are_not() -> None:
    clock = contradicted()
    assert clock.disagreement == pytest.approx(99)
    time = clock.time(7.0)
    assert (time.now, time.ahead, time.slack) == (7.0, 0.0, None)
    clock.note(200.0, 1.0, 0.0, 0.0)
    assert not clock.is_dated, "nor later"


def test_steps_in_one_direction_add_up() -> None:
    """What was written before the first of them is compared with what is read after the last."""
    clock = StoreClock(SKEW)
    for date in (100.0, 104.0, 108.0):
        clock.note(date, 1.0, 0.0, 0.0)
    assert clock.disagreement == pytest.approx(7)
    assert not clock.is_dated


def test_servers_that_take_turns_do_not() -> None:
    clock = StoreClock(SKEW)
    for number in range(100):
        clock.note(100.0 + 4.5 * (number % 2), 1.0, 0.0, 0.0)
    assert clock.is_dated


def test_by_contradicted_dates_nothing_ends() -> None:
    sightings, hold = Sightings(), Hold("a", "a", 1, 1, (0,), 10.0, 50.0)
    expires_at = sightings.view(contradicted().time(7.0))
    assert expires_at(hold) == pytest.approx(7 + 10.1)


def test_an_entry_without_a_date_is_observed() -> None:
    clock = StoreClock(SKEW)
    clock.note(1000.0, 1.0, 0.0, 0.0)
    expires_at = Sightings().view(clock.time(0.0))
    dated, undated = (
        Hold(id_, id_, 1, 1, (0,), 10.0, at) for id_, at in (("a", 900.0), ("b", UNDATED))
    )
    assert expires_at(dated) < 1000
    assert expires_at(undated) == pytest.approx(1001 + 10.1)


def test_tokens_begin_with_a_date_though_the_dates_differ() -> None:
    """Idle keys are deleted by those who know the date, so a first token must not be a small one."""
    assert contradicted().time(0.0).stamp == pytest.approx(200e6, abs=1)


def test_a_first_token_is_not_an_old_one_after_a_long_silence() -> None:
    clock = StoreClock(SKEW)
    clock.note(1e6, 1.0, 0.0, 0.0)
    silence = 200 * 3600.0
    assert clock.time(silence).stamp > (1e6 + silence - 60) * 1e6
