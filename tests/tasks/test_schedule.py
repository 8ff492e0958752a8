"""When tasks are due: aligned, the same wherever one begins to look, and right when clocks change."""

import functools
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
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
NEW_YEAR = moment_of(datetime(2026, 1, 1, tzinfo=UTC))


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


@pytest.mark.parametrize(
    ("expression", "next_tick"),
    [
        ("@hourly", "2026-01-01T01:00:00Z"),
        ("@daily", "2026-01-02T00:00:00Z"),
        ("@Weekly", "2026-01-04T00:00:00Z"),
        ("@monthly", "2026-02-01T00:00:00Z"),
        ("@yearly", "2027-01-01T00:00:00Z"),
        ("0 0 29 2 *", "2028-02-29T00:00:00Z"),
        ("0 0 31 * *", "2026-01-31T00:00:00Z"),
        ("0 0 L * *", "2026-01-31T00:00:00Z"),
        ("0 0 13 * FRI", "2026-01-02T00:00:00Z"),  # a day of the month or of the week
        ("*/20 * * * * *", "2026-01-01T00:00:20Z"),  # seconds may come first
    ],
)
def test_the_next_tick(expression: str, next_tick: str) -> None:
    assert written(Cron(expression).after(NEW_YEAR)) == next_tick


SPRING, AUTUMN = (2026, 3, 29), (2026, 10, 25)


@pytest.mark.parametrize(
    ("expression", "day", "times"),
    [
        ("30 9 * * *", (2026, 1, 5), "09:30+0100"),
        ("30 9 * * *", (2026, 7, 6), "09:30+0200"),
        # forward: what is in the gap comes right after it
        ("30 2 * * *", SPRING, "03:00+0200"),
        ("0,30 2,3 * * *", SPRING, "03:00+0200 03:30+0200"),
        ("0 0-4 * * *", SPRING, "00:00+0100 01:00+0100 03:00+0200 04:00+0200"),
        ("*/30 1-3 * * *", SPRING, "01:00+0100 01:30+0100 03:00+0200 03:30+0200"),
        ("15 30 2 * * *", SPRING, ""),
        # back: what names an hour comes once
        ("30 2 * * *", AUTUMN, "02:30+0200"),
        ("0,30 2,3 * * *", AUTUMN, "02:00+0200 02:30+0200 03:00+0100 03:30+0100"),
        ("0 0-2/1 * * *", AUTUMN, "00:00+0200 01:00+0200 02:00+0200"),
        ("15 30 2 * * *", AUTUMN, "02:30+0200 02:30+0100"),
    ],
)
def test_cron_is_in_its_zone(expression: str, day: tuple[int, int, int], times: str) -> None:
    start = moment_of(datetime(*day, tzinfo=BERLIN)) - 1
    ticks = ticks_between(Cron(expression, BERLIN), start, start + 12 * HOUR)
    assert " ".join(time_of(tick, BERLIN).strftime("%H:%M%z") for tick in ticks) == times


def test_every_hour_comes_each_hour_when_clocks_go_back() -> None:
    start = moment_of(datetime(*AUTUMN, tzinfo=BERLIN)) - 1
    ticks = ticks_between(Cron("0 * * * *", BERLIN), start, start + 5 * HOUR)
    assert [after - before for before, after in pairwise(ticks)] == [HOUR] * 4


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


# -- declarations ------------------------------------------------------------------------------------


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
    tasks, leader = Tasks(), LeaderElection("main")
    tasks.every(60)(job)
    with pytest.raises(ValueError, match=r"a task named '.*:job' already: give one of them anothe"):
        tasks.cron("* * * * *")(job)
    assert tasks.add(work) is work
    assert tasks.add(leader) is leader
    with pytest.raises(ValueError, match="'leader:main' already"):
        tasks.add(leader)
    with pytest.raises(TypeError, match="plain function, which nothing could stop"):
        tasks.add(job)


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


def test_what_tasks_and_routers_cannot_be_given() -> None:
    router: Any = TaskRouter()
    wrong: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: Tasks(client=dibs.sync.connect("memory://")), TypeError, r"what dibs\.connect\("),  # type: ignore[arg-type]
        (lambda: Tasks(client="re ports"), ValueError, "name"),
        (lambda: Tasks(timezone="Nowhere"), ValueError, "doesn't know"),
        (lambda: Tasks(on_error=5), TypeError, "on_error is 5"),  # type: ignore[arg-type]
        (lambda: Tasks(shutdown_timeout="soon"), ValueError, "shutdown_timeout"),
        (lambda: Tasks().every(job), TypeError, r'write @tasks.every\("60s"\)'),  # type: ignore[arg-type]
        (lambda: router.include_router(Tasks()), TypeError, "give another TaskRouter"),
        (lambda: router.include_router(router), TypeError, "give another TaskRouter"),
        (lambda: router.include_router(None), TypeError, "give another TaskRouter"),
    ]
    for make, kind, match in wrong:
        with pytest.raises(kind, match=match):
            make()


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


def test_a_task_of_a_router_that_comes_too_late_is_refused() -> None:
    router = TaskRouter()
    Tasks().include_router(router)
    with pytest.raises(RuntimeError, match="would never run: declare its tasks first"):
        router.every(60)(job)


def test_without_cronsim_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(ImportError, match=r"pip install 'dibs\[tasks\]'"):
        Tasks().cron("* * * * *")
    Tasks().every(60)(job)
