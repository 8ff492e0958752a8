"""Declaring tasks: names, routers, and what can't be is refused where it is written."""

import functools
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import dibs
import dibs.sync
from dibs import InvalidName, LeaderElection, UnsafeTiming
from dibs.tasks import TaskRouter, Tasks


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
        "tests.tasks.test_declaring:job",
        "tests.tasks.test_declaring:work",
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
    assert names(tasks) == ["tests.tasks.test_declaring:work", "leader:main"]
    with pytest.raises(TypeError, match="plain function, which nothing could stop"):
        tasks.add(job)
    with pytest.raises(ValueError, match="'leader:main' already"):
        tasks.add(leader)


def test_without_cronsim_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(ImportError, match=r"pip install 'dibs\[tasks\]'"):
        Tasks().cron("* * * * *")
    Tasks().every(60)(job)
