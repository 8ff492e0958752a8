"""When tasks are due: aligned, the same wherever one begins to look, and right when clocks change."""

import random
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from dibs.tasks.cron import Cron
from dibs.tasks.moments import SECOND, moment_of, time_of, written
from dibs.tasks.schedule import Every, ticks_between

BERLIN = ZoneInfo("Europe/Berlin")
HOUR, DAY = 3600 * SECOND, 86400 * SECOND


def local(expression: str, zone: ZoneInfo, day: tuple[int, int, int], hours: int = 6) -> list[str]:
    """The local times that come in the first hours of a day, with their offsets from UTC."""
    start = moment_of(datetime(*day, tzinfo=zone)) - 1
    ticks = ticks_between(Cron(expression, zone), start, start + hours * HOUR)
    return [time_of(tick, zone).strftime("%H:%M%z") for tick in ticks]


def test_every_is_aligned_to_1970_whenever_one_looks() -> None:
    minute = Every("60s")
    start = moment_of(datetime(2026, 3, 28, 23, 59, 59, tzinfo=UTC))
    assert [written(tick) for tick in ticks_between(minute, start, start + 61 * SECOND)] == [
        "2026-03-29T00:00:00Z",
        "2026-03-29T00:01:00Z",
    ]
    for moment in (start, start + 1, start + SECOND - 1):
        assert minute.after(moment) == start + SECOND
    assert minute.after(start + SECOND) == start + 61 * SECOND


def test_an_offset_moves_all_ticks() -> None:
    late = Every("1h", offset="10m")
    noon = moment_of(datetime(2026, 1, 1, 12, tzinfo=UTC))
    assert late.after(noon) == noon + HOUR // 6
    assert late.after(noon + HOUR // 6) == noon + HOUR + HOUR // 6
    assert str(late) == "every 3600 s, 600 s late"


def test_fractions_of_a_second_do_not_drift() -> None:
    often = Every(0.1)
    start = moment_of(datetime(2026, 1, 1, tzinfo=UTC))
    assert ticks_between(often, start, start + SECOND) == [
        start + k * SECOND // 10 for k in range(1, 11)
    ]
    assert written(start + SECOND // 10) == "2026-01-01T00:00:00.100000Z"


@pytest.mark.parametrize(
    ("period", "offset", "match"),
    [
        (0, 0, "at least 0.1 s"),
        ("50ms", 0, "at least"),
        (float("inf"), 0, "at least"),
        (-1, 0, "negative"),
        ("often", 0, "write it as"),
        (60, 60, "less than the period"),
    ],
)
def test_what_is_no_period_is_refused(period: float | str, offset: float, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Every(period, offset)


# -- cron --------------------------------------------------------------------------------------------


def test_cron_is_in_its_zone() -> None:
    assert local("30 9 * * *", BERLIN, (2026, 1, 5), 24) == ["09:30+0100"]
    assert local("30 9 * * *", BERLIN, (2026, 7, 6), 24) == ["09:30+0200"]
    assert Cron("0 0 * * *").after(0) == DAY
    assert str(Cron("*/5 * * * *", "Europe/Berlin")) == "cron */5 * * * * (Europe/Berlin)"


def test_names_stand_for_the_usual_times() -> None:
    monday = moment_of(datetime(2026, 1, 5, tzinfo=UTC))
    assert written(Cron("@hourly").after(monday)) == "2026-01-05T01:00:00Z"
    assert written(Cron("@daily").after(monday)) == "2026-01-06T00:00:00Z"
    assert written(Cron("@Weekly").after(monday)) == "2026-01-11T00:00:00Z"
    assert written(Cron("@monthly").after(monday)) == "2026-02-01T00:00:00Z"
    assert written(Cron("@yearly").after(monday)) == "2027-01-01T00:00:00Z"


def test_days_that_are_not_in_every_month_or_year() -> None:
    new_year = moment_of(datetime(2026, 1, 1, tzinfo=UTC))
    assert written(Cron("0 0 29 2 *").after(new_year)) == "2028-02-29T00:00:00Z"
    assert written(Cron("0 0 31 * *").after(new_year + 31 * DAY)) == "2026-03-31T00:00:00Z"
    assert written(Cron("0 0 L * *").after(new_year + 31 * DAY)) == "2026-02-28T00:00:00Z"
    # a day of the month or a day of the week, as cron has it
    fridays = ticks_between(Cron("0 0 13 * FRI"), new_year, new_year + 14 * DAY)
    assert [time_of(tick).day for tick in fridays] == [2, 9, 13]


def test_seconds_may_come_first() -> None:
    assert Cron("*/20 * * * * *").after(0) == 20 * SECOND


def test_when_clocks_go_forward_what_is_in_the_gap_comes_right_after_it() -> None:
    spring = (2026, 3, 29)
    assert local("30 2 * * *", BERLIN, spring) == ["03:00+0200"]
    assert local("0,30 2,3 * * *", BERLIN, spring) == ["03:00+0200", "03:30+0200"]
    assert local("0 0-4 * * *", BERLIN, spring) == [
        "00:00+0100",
        "01:00+0100",
        "03:00+0200",
        "04:00+0200",
    ]
    assert local("*/30 1-3 * * *", BERLIN, spring) == [
        "01:00+0100",
        "01:30+0100",
        "03:00+0200",
        "03:30+0200",
    ]
    assert local("15 30 2 * * *", BERLIN, spring) == []


def test_when_clocks_go_back_what_names_an_hour_comes_once() -> None:
    autumn = (2026, 10, 25)
    assert local("30 2 * * *", BERLIN, autumn) == ["02:30+0200"]
    assert local("0,30 2,3 * * *", BERLIN, autumn) == [
        "02:00+0200",
        "02:30+0200",
        "03:00+0100",
        "03:30+0100",
    ]
    assert local("0 * * * *", BERLIN, autumn, 5) == [
        "00:00+0200",
        "01:00+0200",
        "02:00+0200",
        "02:00+0100",
        "03:00+0100",
    ]
    assert local("15 30 2 * * *", BERLIN, autumn) == ["02:30+0200", "02:30+0100"]


@pytest.mark.parametrize(
    ("zone", "day"),
    [
        ("Europe/Berlin", (2026, 3, 28)),
        ("Europe/Berlin", (2026, 10, 24)),
        ("America/New_York", (2026, 10, 31)),
        ("Australia/Lord_Howe", (2026, 4, 4)),  # half an hour only
        ("Australia/Lord_Howe", (2026, 10, 3)),
        ("Asia/Beirut", (2026, 3, 28)),  # at midnight
    ],
)
@pytest.mark.parametrize(
    "expression",
    ["30 2 * * *", "0 0 * * *", "15,45 1-3 * * *", "0 */2 * * *", "*/15 1 * * *", "10 30 2 * * *"],
)
def test_all_processes_agree_on_the_ticks_around_a_change_of_the_clocks(
    zone: str, day: tuple[int, int, int], expression: str
) -> None:
    draw = random.Random(7)
    cron = Cron(expression, zone)
    start = moment_of(datetime(*day, tzinfo=ZoneInfo(zone)))
    ticks = ticks_between(cron, start, start + 4 * DAY)
    assert ticks == sorted(set(ticks))
    probes = [draw.randrange(start, start + 2 * DAY) for _ in range(20)]
    probes += [tick + nudge for tick in ticks[:12] for nudge in (-SECOND, -1, 0, 1)]
    for moment in probes:
        if start <= moment < ticks[-1]:
            assert cron.after(moment) == next(tick for tick in ticks if tick > moment)


@pytest.mark.parametrize(
    ("expression", "match"),
    [
        ("* * * *", r"Wrong number of fields.*minute hour day-of-month"),
        ("61 * * * *", "Bad minute"),
        ("0 0 30 2 *", "Bad day-of-month"),
        ("0 0 */20 * 1L", "no time within 50 years"),
        ("@reboot", "Wrong number of fields"),
        ("", "Wrong number of fields"),
    ],
)
def test_what_is_no_cron_expression_is_refused(expression: str, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Cron(expression)


def test_what_is_no_zone_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'Mars/Olympus', which this system doesn't know"):
        Cron("* * * * *", "Mars/Olympus")
    with pytest.raises(ValueError, match="doesn't know"):
        Cron("* * * * *", "../../etc/passwd")
    with pytest.raises(TypeError, match="give a name such as"):
        Cron("* * * * *", 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="give a text such as"):
        Cron(5)  # type: ignore[arg-type]


def test_moments_count_real_time_across_a_change_of_the_clocks() -> None:
    before = datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN)
    after = datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN)
    assert moment_of(after) - moment_of(before) == HOUR
    assert time_of(moment_of(before)) + timedelta(hours=1) == time_of(moment_of(after))
