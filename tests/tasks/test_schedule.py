"""When tasks are due: aligned, the same wherever one begins to look, and right when clocks change."""

import functools
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import dibs
import dibs.sync
from dibs import InvalidName, LeaderElection, UnsafeTiming
from dibs.tasks import TaskRouter, Tasks
from dibs.tasks.schedule import SECOND, Cron, Every, moment_of, ticks_between, time_of, written

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


def job() -> None:
    """A task."""


async def work() -> None:
    """Another."""


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


def needs(what: str, *, more: int = 1) -> None: ...


class Callee:
    async def __call__(self) -> None: ...


def names(tasks: Tasks) -> list[str]:
    return list(tasks.status())


def test_a_task_is_called_by_its_module_and_function() -> None:
    tasks = Tasks()
    assert tasks.every(60)(job) is job
    assert tasks.cron("* * * * *")(work) is work
    tasks.every(60, name="other")(job)
    assert names(tasks) == [
        "tests.tasks.test_schedule:job",
        "tests.tasks.test_schedule:work",
        "other",
    ]
    assert tasks.status()["other"].schedule == "every 60 s"


def test_names_are_unique() -> None:
    tasks = Tasks()
    tasks.every(60)(job)
    with pytest.raises(
        ValueError, match=r"a task named '.*:job' already: give one of them another"
    ):
        tasks.cron("* * * * *")(job)


def test_a_script_s_tasks_are_not_called_main(tmp_path: Path) -> None:
    (tmp_path / "nightly.py").write_text(
        "from dibs.tasks import Tasks\n"
        "tasks = Tasks()\n"
        "@tasks.every(60)\n"
        "def job(): pass\n"
        "print(list(tasks.status()))\n"
    )
    for way in (["nightly.py"], ["-m", "nightly"]):
        done = subprocess.run(
            [sys.executable, *way], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == "['nightly:job']"


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (None, "None is none"),
        (5, "5 is none"),
        (generator, "generator is a generator"),
        (async_generator, "is a generator"),
        (needs, "needs needs what, and a task is called without arguments"),
    ],
)
def test_what_is_no_task_is_refused(function: Any, match: str) -> None:
    with pytest.raises(TypeError, match=match):
        Tasks().every(60)(function)
    with pytest.raises(TypeError, match=match):
        Tasks().add(function)


def test_what_has_no_name_needs_one() -> None:
    tasks = Tasks()
    bound = functools.partial(needs, "this")
    for nameless in (lambda: None, bound, Callee()):
        with pytest.raises(ValueError, match="give name="):
            tasks.every(60)(nameless)
    tasks.every(60, name="bound")(bound)
    with pytest.raises(ValueError, match="name is empty"):
        tasks.every(60, name="")(job)
    with pytest.raises(TypeError, match="name is 5"):
        tasks.every(60, name=5)(job)  # type: ignore[arg-type]
    with pytest.raises(InvalidName):
        tasks.every(60, name="x" * 500)(job)


def test_a_forgotten_period_is_told() -> None:
    with pytest.raises(TypeError, match=r'write @tasks.every\("60s"\)'):
        Tasks().every(job)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"every": 5}, TypeError, "no option every: there are name, min_hold"),
        ({"min_hold": 60}, UnsafeTiming, "each run would keep the next from starting"),
        ({"min_hold": 50, "jitter": 10}, UnsafeTiming, "ticks are 50 s apart"),
        ({"min_hold": 50, "max_hold": 40}, UnsafeTiming, "can't be kept closed for longer"),
        ({"max_hold": 0}, UnsafeTiming, "max_hold"),
        ({"max_hold": float("inf")}, UnsafeTiming, "max_hold"),
        ({"jitter": 60}, ValueError, "less than the period"),
        ({"jitter": -1}, ValueError, "negative"),
        ({"grace": 0.5}, UnsafeTiming, "at least 1 s, as clocks differ"),
        ({"missed": "some"}, ValueError, "write 'skip', 'latest' or 'all'"),
        ({"missed": "all", "min_hold": 5}, ValueError, "right after one another"),
        ({"cancel": 1}, TypeError, "True or False"),
        ({"everywhere": 1}, TypeError, "True or False"),
        ({"everywhere": True, "max_hold": 5}, ValueError, "max_hold would mean nothing"),
        ({"leader": "main"}, TypeError, "give a dibs.LeaderElection"),
        ({"leader": dibs.sync.LeaderElection("main")}, TypeError, "dibs.LeaderElection"),
    ],
)
def test_what_can_t_be_is_refused_where_it_is_written(
    options: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        Tasks().every("60s", **options)


def test_what_tasks_can_t_be_given() -> None:
    with pytest.raises(TypeError, match=r"what dibs\.connect\(\) returned"):
        Tasks(client=dibs.sync.connect("memory://"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="name"):
        Tasks(client="re ports")
    with pytest.raises(ValueError, match="doesn't know"):
        Tasks(timezone="Nowhere")
    with pytest.raises(TypeError, match="on_error is 5"):
        Tasks(on_error=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="shutdown_timeout"):
        Tasks(shutdown_timeout="soon")


# -- routers -----------------------------------------------------------------------------------------


def test_a_router_s_tasks_are_taken_over() -> None:
    router, inner = TaskRouter(), TaskRouter()
    inner.every(60, name="poll")(job)
    router.include_router(inner, prefix="inner/")
    router.cron("0 3 * * *", name="report")(job)
    tasks, others = Tasks(timezone="Europe/Berlin"), Tasks()
    tasks.include_router(router, prefix="billing")
    others.include_router(router)
    assert names(tasks) == ["billing/inner/poll", "billing/report"]
    assert names(others) == ["inner/poll", "report"]
    assert tasks.status()["billing/report"].schedule == "cron 0 3 * * * (Europe/Berlin)"
    assert others.status()["report"].schedule == "cron 0 3 * * * (UTC)"


def test_a_task_of_a_router_that_comes_too_late_is_told() -> None:
    router = TaskRouter()
    Tasks().include_router(router)
    with pytest.raises(RuntimeError, match="would never run: declare its tasks first"):
        router.every(60)(job)


def test_what_is_no_router_is_refused() -> None:
    router = TaskRouter()
    for wrong in (Tasks(), router, None):
        with pytest.raises(TypeError, match="give another TaskRouter"):
            router.include_router(wrong)  # type: ignore[arg-type]


# -- what goes on ------------------------------------------------------------------------------------


def test_a_lasting_task_is_a_coroutine_function_or_an_election() -> None:
    tasks = Tasks()
    leader = LeaderElection("main")
    assert tasks.add(work) is work
    assert tasks.add(leader) is leader
    assert names(tasks) == ["tests.tasks.test_schedule:work", "leader:main"]
    with pytest.raises(TypeError, match="plain function, which nothing could stop"):
        tasks.add(job)
    with pytest.raises(ValueError, match="'leader:main' already"):
        tasks.add(leader)


def test_without_cronsim_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(ImportError, match=r"pip install 'dibs\[tasks\]'"):
        Tasks().cron("* * * * *")
    Tasks().every(60)(job)
