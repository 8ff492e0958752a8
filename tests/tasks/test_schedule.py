"""When tasks are due: aligned, the same wherever one begins to look, and right when clocks change."""

import functools
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
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
    minute, late, often = Every("60s"), Every("1h", offset="10m"), Every(0.1)
    start = moment_of(datetime(2026, 3, 28, 23, 59, 59, tzinfo=UTC))
    assert [written(tick) for tick in ticks_between(minute, start, start + 61 * SECOND)] == [
        "2026-03-29T00:00:00Z",
        "2026-03-29T00:01:00Z",
    ]
    for moment in (start, start + 1, start + SECOND - 1):
        assert minute.after(moment) == start + SECOND
    assert late.after(NEW_YEAR) == NEW_YEAR + HOUR // 6
    assert late.after(NEW_YEAR + HOUR // 6) == NEW_YEAR + HOUR + HOUR // 6
    assert str(late) == "every 3600 s, 600 s late"
    tenths = [NEW_YEAR + k * SECOND // 10 for k in range(1, 11)]
    assert ticks_between(often, NEW_YEAR, NEW_YEAR + SECOND) == tenths
    assert written(tenths[0]) == "2026-01-01T00:00:00.100000Z"


def test_what_is_no_period_is_refused() -> None:
    for period, offset, match in (
        ("50ms", 0, "at least 0.1 s"),
        (float("inf"), 0, "at least"),
        (60, 60, "less than the period"),
    ):
        with pytest.raises(ValueError, match=match):
            Every(period, offset)


# -- cron --------------------------------------------------------------------------------------------


def test_the_next_tick() -> None:
    for expression, next_tick in (
        ("@Weekly", "2026-01-04T00:00:00Z"),
        ("0 0 13 * FRI", "2026-01-02T00:00:00Z"),  # a day of the month or of the week
        ("*/20 * * * * *", "2026-01-01T00:00:20Z"),  # seconds may come first
    ):
        assert written(Cron(expression).after(NEW_YEAR)) == next_tick


SPRING, AUTUMN = (2026, 3, 29), (2026, 10, 25)


@pytest.mark.parametrize(
    ("expression", "day", "times"),
    [
        ("30 9 * * *", (2026, 7, 6), "09:30+0200"),
        # forward: what is in the gap comes right after it
        ("30 2 * * *", SPRING, "03:00+0200"),
        ("0 0-4 * * *", SPRING, "00:00+0100 01:00+0100 03:00+0200 04:00+0200"),
        ("*/30 1-3 * * *", SPRING, "01:00+0100 01:30+0100 03:00+0200 03:30+0200"),
        ("15 30 2 * * *", SPRING, ""),
        # back: what names an hour comes once
        ("30 2 * * *", AUTUMN, "02:30+0200"),
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
        ("America/New_York", (2026, 10, 31)),
        ("Australia/Lord_Howe", (2026, 10, 3)),  # half an hour only
        ("Asia/Beirut", (2026, 3, 28)),  # at midnight
    ],
)
@pytest.mark.parametrize("expression", ["0 0 * * *", "15,45 1-3 * * *", "10 30 2 * * *"])
def test_all_processes_agree_on_the_ticks_around_a_change_of_the_clocks(
    zone: str, day: tuple[int, int, int], expression: str
) -> None:
    draw = random.Random(7)
    cron = Cron(expression, zone)
    start = moment_of(datetime(*day, tzinfo=ZoneInfo(zone)))
    ticks = ticks_between(cron, start, start + 4 * DAY)
    assert ticks == sorted(set(ticks))
    probes = [draw.randrange(start, start + 2 * DAY) for _ in range(100)]
    probes += [tick + nudge for tick in ticks[:12] for nudge in (-1, 0, 1)]
    for moment in probes:
        if start <= moment < ticks[-1]:
            assert cron.after(moment) == next(tick for tick in ticks if tick > moment)


def test_what_is_no_cron_expression_or_zone_is_refused() -> None:
    for expression, zone, match in (
        ("* * * *", "UTC", r"Wrong number of fields.*minute hour day-of-month"),
        ("0 0 */20 * 1L", "UTC", "no time within 50 years"),
        ("* * * * *", "Mars/Olympus", "'Mars/Olympus', which this system doesn't know"),
        ("* * * * *", "../../etc/passwd", "doesn't know"),
    ):
        with pytest.raises(ValueError, match=match):
            Cron(expression, zone)


# -- declarations ------------------------------------------------------------------------------------


def job() -> None:
    """A task."""


async def work() -> None:
    """Another."""


def generator() -> Iterator[int]:
    yield 1


def needs(what: str, *, more: int = 1) -> None: ...


class Callee:
    async def __call__(self) -> None: ...


def names(tasks: Tasks) -> list[str]:
    return list(tasks.status())


def test_a_task_is_called_by_its_module_and_function(tmp_path: Path) -> None:
    tasks = Tasks()
    assert tasks.every(60)(job) is job
    assert tasks.cron("* * * * *")(work) is work
    tasks.every(60, name="other")(job)
    module = "tests.tasks.test_schedule"
    assert names(tasks) == [f"{module}:job", f"{module}:work", "other"]
    assert tasks.status()["other"].schedule == "every 60 s"
    script = tmp_path / "nightly.py"
    script.write_text(
        "from dibs.tasks import Tasks\n"
        "tasks = Tasks()\n"
        "@tasks.every(60)\n"
        "def job(): pass\n"
        "print(list(tasks.status()))\n"
    )
    found = subprocess.check_output([sys.executable, script], text=True)
    assert found.strip() == "['nightly:job']", "and not __main__"


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


def test_what_is_no_task_is_refused() -> None:
    wrong: list[tuple[Any, str]] = [
        (None, "None is none"),
        (generator, "generator is a generator"),
        (needs, "needs needs what, and a task is called without arguments"),
    ]
    for function, match in wrong:
        for declare in (Tasks().every(60), Tasks().add):
            with pytest.raises(TypeError, match=match):
                declare(function)


def test_what_has_no_name_needs_one() -> None:
    bound = functools.partial(needs, "this")
    for nameless in (lambda: None, bound, Callee()):
        with pytest.raises(ValueError, match="give name="):
            Tasks().every(60)(nameless)
    with pytest.raises(ValueError, match="name is empty"):
        Tasks().every(60, name="")(job)
    with pytest.raises(InvalidName):
        Tasks().every(60, name="x" * 500)(job)


def test_what_can_t_be_is_refused_where_it_is_written() -> None:
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"every": 5}, TypeError, "no option every: there are name, min_hold"),
        ({"min_hold": 60}, UnsafeTiming, "each run would keep the next from starting"),
        ({"min_hold": 50, "jitter": 10}, UnsafeTiming, "ticks are 50 s apart"),
        ({"max_hold": 0}, UnsafeTiming, "max_hold"),
        ({"jitter": 60}, ValueError, "less than the period"),
        ({"grace": 0.5}, UnsafeTiming, "at least 1 s, as clocks differ"),
        ({"missed": "some"}, ValueError, "write 'skip', 'latest' or 'all'"),
        ({"missed": "all", "min_hold": 5}, ValueError, "right after one another"),
        ({"cancel": 1}, TypeError, "True or False"),
        ({"everywhere": True, "max_hold": 5}, ValueError, "max_hold would mean nothing"),
        ({"leader": dibs.sync.LeaderElection("main")}, TypeError, "dibs.LeaderElection"),
    ]
    for options, error, match in wrong:
        with pytest.raises(error, match=match):
            Tasks().every("60s", **options)


def test_what_tasks_and_routers_cannot_be_given() -> None:
    router: Any = TaskRouter()
    blocking: Any = dibs.sync.connect("memory://")
    wrong: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: Tasks(client=blocking), TypeError, r"what dibs\.connect\("),
        (lambda: Tasks(client="re ports"), ValueError, "name"),
        (lambda: Tasks(on_error=5), TypeError, "on_error is 5"),  # type: ignore[arg-type]
        (lambda: Tasks().every(job), TypeError, r'write @tasks.every\("60s"\)'),  # type: ignore[arg-type]
        (lambda: router.include_router(router), TypeError, "give another TaskRouter"),
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
    assert tasks.status()["billing/report"].schedule == "cron 0 3 * * * (Europe/Berlin)"
    assert others.status()["report"].schedule == "cron 0 3 * * * (UTC)"
    with pytest.raises(RuntimeError, match="would never run: declare its tasks first"):
        router.every(60)(job)


def test_without_cronsim_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(ImportError, match=r"pip install 'dibs\[tasks\]'"):
        Tasks().cron("* * * * *")
    Tasks().every(60)(job)
