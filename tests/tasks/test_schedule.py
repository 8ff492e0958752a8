"""When tasks are due: aligned, the same wherever one begins to look, and right when clocks change."""

import functools
import random
import runpy
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
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
        # forward: what is in the gap comes right after it
        ("30 2 * * *", SPRING, "03:00+0200"),
        ("0 0-4 * * *", SPRING, "00:00+0100 01:00+0100 03:00+0200 04:00+0200"),
        ("*/30 1-3 * * *", SPRING, "01:00+0100 01:30+0100 03:00+0200 03:30+0200"),
        ("15 30 2 * * *", SPRING, ""),
        # back: what names an hour comes once
        ("30 2 * * *", AUTUMN, "02:30+0200"),
        ("0 0-2/1 * * *", AUTUMN, "00:00+0200 01:00+0200 02:00+0200"),
        ("15 30 2 * * *", AUTUMN, "02:30+0200 02:30+0100"),
        (
            "0 */1 * * *",
            AUTUMN,
            "00:00+0200 01:00+0200 02:00+0200 02:00+0100 03:00+0100 04:00+0100",
        ),
    ],
)
def test_cron_is_in_its_zone(expression: str, day: tuple[int, int, int], times: str) -> None:
    start = moment_of(datetime(*day, tzinfo=BERLIN)) - 1
    ticks = ticks_between(Cron(expression, BERLIN), start, start + 5 * HOUR + 1)
    assert " ".join(time_of(tick, BERLIN).strftime("%H:%M%z") for tick in ticks) == times


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
    assert tasks.add(work, name="lasting") is work
    tasks.every(60, name="other")(job)
    module = "tests.tasks.test_schedule"
    assert names(tasks) == [f"{module}:job", f"{module}:work", "lasting", "other"]
    assert tasks.status()["other"].schedule == "every 60 s"
    script = tmp_path / "nightly.py"
    script.write_text(
        "from dibs.tasks import Tasks\ntasks = Tasks()\n@tasks.every(60)\ndef job(): pass\n"
    )
    found = runpy.run_path(str(script), run_name="__main__")["tasks"]
    assert names(found) == ["nightly:job"], "and not __main__"


NAMELESS = (lambda: None, functools.partial(needs, "this"), Callee())
BLOCKING: Any = dibs.sync.connect("memory://")
LEADER, ROUTER = LeaderElection("main"), TaskRouter()

REFUSED: list[tuple[Callable[[Any], Any], type[Exception], str]] = [
    (lambda t: Every("50ms"), ValueError, "at least 0.1 s"),
    (lambda t: Every(float("inf")), ValueError, "at least"),
    (lambda t: Every(60, 60), ValueError, "less than the period"),
    (lambda t: Cron("* * * *"), ValueError, r"Wrong number of fields.*minute hour day-of-month"),
    (lambda t: Cron("0 0 */20 * 1L"), ValueError, "no time within 50 years"),
    (lambda t: Cron("* * * * *", "Mars/Olympus"), ValueError, "'Mars/Olympus', which this system"),
    (lambda t: Cron("* * * * *", "../../etc/passwd"), ValueError, "doesn't know"),
    # names
    (lambda t: t.cron("* * * * *")(t.every(60)(job)), ValueError, "a task named '.*:job' already"),
    (lambda t: t.add(t.add(LEADER)), ValueError, "'leader:main' already"),
    *((lambda t, f=f: t.every(60)(f), ValueError, "give name=") for f in NAMELESS),
    (lambda t: t.every(60, name="")(job), ValueError, "name is empty"),
    (lambda t: t.every(60, name="x" * 500)(job), InvalidName, "name"),
    # functions
    (lambda t: t.add(job), TypeError, "plain function, which nothing could stop"),
    (lambda t: t.every(60)(None), TypeError, "None is none"),
    (lambda t: t.every(60)(generator), TypeError, "generator is a generator"),
    (lambda t: t.add(needs), TypeError, "needs needs what, and a task is called without arguments"),
    (lambda t: t.every(job), TypeError, r'write @tasks.every\("60s"\)'),
    # options
    (lambda t: t.every(60, every=5), TypeError, "no option every: there are name, min_hold"),
    (lambda t: t.every(60, min_hold=60), UnsafeTiming, "each run would keep the next from start"),
    (lambda t: t.every(60, min_hold=50, jitter=10), UnsafeTiming, "ticks are 50 s apart"),
    (lambda t: t.every(60, max_hold=0), UnsafeTiming, "max_hold"),
    (lambda t: t.every(60, jitter=60), ValueError, "less than the period"),
    (lambda t: t.every(60, grace=0.5), UnsafeTiming, "at least 1 s, as clocks differ"),
    (lambda t: t.every(60, missed="some"), ValueError, "write 'skip', 'latest' or 'all'"),
    (lambda t: t.every(60, missed="all", min_hold=5), ValueError, "right after one another"),
    (lambda t: t.every(60, cancel=1), TypeError, "True or False"),
    (lambda t: t.every(60, everywhere=True, max_hold=5), ValueError, "max_hold would mean nothing"),
    (lambda t: t.every(60, leader=dibs.sync.LeaderElection("m")), TypeError, "dibs.LeaderElectio"),
    # what declares them
    (lambda t: Tasks(client=BLOCKING), TypeError, r"what dibs\.connect\("),
    (lambda t: Tasks(client="re ports"), ValueError, "name"),
    (lambda t: Tasks(on_error=5), TypeError, "on_error is 5"),  # type: ignore[arg-type]
    (lambda t: ROUTER.include_router(ROUTER), TypeError, "give another TaskRouter"),
]


@pytest.mark.parametrize(("declare", "error", "told"), REFUSED)
def test_what_can_t_be_is_refused_where_it_is_written(
    declare: Callable[[Any], Any], error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        declare(Tasks())


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
