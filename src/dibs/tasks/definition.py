"""Declared tasks: scheduled ones, lasting ones, and candidates for a leader election."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import tzinfo
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

from dibs import Campaign, LeaderElection, TaskLock, TaskLockConfig
from dibs.config import Duration, seconds
from dibs.errors import UnsafeTiming
from dibs.tasks.schedule import SECOND, Cron, Every, Schedule, written

type Function = Callable[[], Any]


def is_async(function: Function) -> bool:
    """Whether it is a coroutine function, a partial of one, or an object with an async `__call__`."""
    return _is(inspect.iscoroutinefunction, function)


def check_function(function: object) -> None:
    """Raises `TypeError` unless it is a function without arguments."""
    if not callable(function):
        raise TypeError(f"a task is a function without arguments, and {function!r} is none")
    if _is(inspect.isgeneratorfunction, function) or _is(inspect.isasyncgenfunction, function):
        raise TypeError(f"{called(function)} is a generator, whose body nobody would run")
    try:
        needed = [
            parameter.name
            for parameter in inspect.signature(function).parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
    except (TypeError, ValueError):  # something built in, without a signature
        return
    if needed:
        raise TypeError(
            f"{called(function)} needs {', '.join(needed)}, and a task is called without arguments: "
            "give them defaults, or a functools.partial and a name="
        )


def called(function: Any) -> str:
    """Name of a function, for messages."""
    return str(getattr(function, "__qualname__", None) or repr(function))


def default_name(function: Any) -> str:
    """`module:function`, the same in every process that runs the program.

    Raises `ValueError` for a lambda, a partial and other objects without a name.
    """
    name = getattr(function, "__qualname__", None)
    if not isinstance(name, str) or name.endswith("<lambda>"):
        raise ValueError(f"{function!r} has no name of its own: give name=")
    return f"{_module(function.__module__)}:{name}"


def _module(name: str) -> str:
    """The name of a module, also of `__main__`, which another process may import by its name."""
    if name != "__main__":
        return name
    main: Any = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    return Path(getattr(main, "__file__", None) or "__main__").stem


def _is(kind: Callable[[object], bool], function: object) -> bool:
    return kind(function) or kind(getattr(function, "__call__", None))  # noqa: B004  # the very method


type Missed = Literal["skip", "latest", "all"]

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


class ScheduleOptions(TypedDict, total=False):
    """The options of a task besides its schedule. Durations are seconds, or texts such as "30s"."""

    name: str
    """Its name, in the whole cluster. Default: `module:function`."""
    min_hold: Duration
    """The task does not start again before this time has passed since its start. Default: 0."""
    max_hold: Duration
    """Others are kept out for at most this time, even if the process that runs it dies."""
    cancel: bool
    """Cancel a coroutine before `max_hold` is over, instead of only reporting it."""
    jitter: Duration
    """Begin up to this much later, but before the next tick. Each process draws it anew for each tick."""
    missed: Missed
    """What to do about ticks at which this process did not run, or was blocked. Default: "skip"."""
    grace: Duration
    """For this long after its time a tick can still be run."""
    leader: LeaderElection | Campaign
    """Only the leader runs it, and is cancelled when its term ends."""
    everywhere: bool
    """Every process runs it, without a lock."""


@dataclass(frozen=True, slots=True)
class TaskTerms:
    """All options of one task, in seconds."""

    min_hold: float
    max_hold: float
    cancel: bool
    jitter: float
    missed: Missed
    grace: float
    leader: LeaderElection | Campaign | None
    everywhere: bool

    @property
    def grace_span(self) -> int:
        """The grace in microseconds."""
        return round(self.grace * SECOND)

    @property
    def window(self) -> int:
        """For how many microseconds after it a tick can be claimed."""
        return round((self.grace + self.jitter) * SECOND)

    @property
    def keep(self) -> float:
        """Seconds for which a claimed tick stays claimed.

        A process tries a tick until its window is over by that process's clock. So this outlasts all tries
        if no two clocks differ by as much as the grace.
        """
        return self.window / SECOND + self.grace


def read_terms(schedule: Schedule, given: ScheduleOptions) -> TaskTerms:
    """All options of a task. Raises `TypeError`, `ValueError` or `UnsafeTiming` for invalid ones."""
    unknown = sorted(given.keys() - ScheduleOptions.__annotations__.keys())
    if unknown:
        known = ", ".join(ScheduleOptions.__annotations__)
        raise TypeError(f"a task has no option {', '.join(unknown)}: there are {known}")
    period = schedule.period
    shortest = seconds(given.get("min_hold", 0), "min_hold")
    longest = HOUR if period is None else min(max(5 * period, MINUTE), DAY)
    grace = 5 * MINUTE if period is None else min(max(period, MINUTE), HOUR)
    hold = TaskLockConfig(
        min_hold=shortest,
        max_hold=given.get("max_hold", max(longest, shortest)),
        cancel=given.get("cancel", False),
    )
    terms = TaskTerms(
        min_hold=shortest,
        max_hold=seconds(hold.max_hold),
        cancel=hold.cancel,
        jitter=seconds(given.get("jitter", 0), "jitter"),
        missed=given.get("missed", "skip"),
        grace=seconds(given.get("grace", grace), "grace"),
        leader=given.get("leader"),
        everywhere=given.get("everywhere", False),
    )
    _check_values(terms)
    _check_combination(terms, given, float("inf") if period is None else period)
    return terms


def _check_values(terms: TaskTerms) -> None:
    """Check each option's value."""
    if terms.missed not in get_args(Missed.__value__):
        raise ValueError(f"missed is {terms.missed!r}: write 'skip', 'latest' or 'all'")
    if type(terms.everywhere) is not bool:
        raise TypeError(f"everywhere is {terms.everywhere!r}: give True or False")
    if not isinstance(terms.leader, LeaderElection | Campaign | None):
        raise TypeError(
            f"leader is {terms.leader!r}: give a dibs.LeaderElection, or a campaign of one"
        )
    if not 1 <= terms.grace < float("inf"):
        raise UnsafeTiming(f"grace is {terms.grace:g} s: give at least 1 s, as clocks differ")


def _check_combination(terms: TaskTerms, given: ScheduleOptions, period: float) -> None:
    """Check the options against each other, and against the seconds between two ticks."""
    senseless = sorted(given.keys() & {"min_hold", "max_hold", "cancel", "leader"})
    if terms.everywhere and senseless:
        raise ValueError(
            f"everywhere=True runs a task in each process without a lock, so {', '.join(senseless)} "
            "would mean nothing: leave one or the other out"
        )
    if terms.jitter >= period:
        raise ValueError(
            f"jitter is {terms.jitter:g} s: it must be less than the period, {period:g} s"
        )
    if terms.min_hold + terms.jitter >= period:
        raise UnsafeTiming(
            f"min_hold is {terms.min_hold:g} s, and ticks are {period - terms.jitter:g} s apart or more: "
            "each run would keep the next from starting; give a shorter min_hold, or a longer period"
        )
    if terms.missed == "all" and terms.min_hold:
        raise ValueError(
            "missed='all' runs ticks right after one another, which min_hold forbids: leave one out"
        )


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A task that runs whenever it is due."""

    name: str
    function: Function
    schedule: Every | Cron
    terms: TaskTerms

    def placed(self, zone: tzinfo) -> "Scheduled":
        """The same, with cron's times in that zone unless it names one."""
        if isinstance(self.schedule, Cron):
            return replace(self, schedule=self.schedule.placed(zone))
        return self

    def tick_name(self, tick: int) -> str:
        """The name of the lock that claims a tick."""
        return f"{self.name}@{written(tick)}"


@dataclass(frozen=True, slots=True)
class Lasting:
    """A coroutine function that runs from the start to the stop."""

    name: str
    function: Callable[[], Any]
    schedule: str = "from start to stop"


@dataclass(frozen=True, slots=True)
class Led:
    """A candidate for a leader election."""

    name: str
    election: LeaderElection
    schedule: str = "leader election"


type Definition = Scheduled | Lasting | Led


def check_name(name: object) -> str:
    """A task's name. Raises `InvalidName` for one that makes no lock's name, with room for a tick."""
    if not isinstance(name, str):
        raise TypeError(f"name is {name!r}: give a text")
    TaskLock(f"{name}@{written(0)}" + "." * 7, 1, 1)
    if not name:
        raise ValueError("name is empty: give a text, or leave it out")
    return name
