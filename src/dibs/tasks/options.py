"""How a task is run, where that differs from the default: read, filled up and checked."""

from dataclasses import dataclass
from typing import Any, Literal, TypedDict, get_args

from dibs import Campaign, LeaderElection, TaskLockConfig
from dibs.config import Duration, seconds
from dibs.errors import UnsafeTiming
from dibs.tasks.moments import SECOND
from dibs.tasks.schedule import Schedule

type Missed = Literal["skip", "latest", "all"]

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


class ScheduleOptions(TypedDict, total=False):
    """What may be said of a task besides its schedule; durations are seconds, or texts such as "30s"."""

    name: str
    """Its name, in the whole cluster; unset: `module:function`."""
    min_hold: Duration
    """Nobody starts it again before so long has passed since the start; unset: 0."""
    max_hold: Duration
    """Nobody is kept out for longer, even if the process that runs it dies."""
    cancel: bool
    """Cancel a coroutine in time before `max_hold` is over, instead of only saying so."""
    jitter: Duration
    """Begin up to so much later, but before the next tick; drawn anew by each process for each tick."""
    missed: Missed
    """What to do about ticks at which this process wasn't there, or was blocked; unset: "skip"."""
    grace: Duration
    """For so long after it a tick may still be run."""
    leader: LeaderElection | Campaign
    """Only the leader runs it, and is cancelled when its term ends."""
    everywhere: bool
    """Each process runs it, without any lock."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The options of one task, all of them, in seconds."""

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
        """How long after it a tick may be claimed, in microseconds."""
        return round((self.grace + self.jitter) * SECOND)

    @property
    def keep(self) -> float:
        """How long a tick that was claimed stays so, in seconds.

        Somebody tries it until its window is over by *his* clock, so this outlasts all tries where no two
        clocks differ by as much as the grace.
        """
        return self.window / SECOND + self.grace


def checked(schedule: Schedule, given: ScheduleOptions) -> Terms:
    """All options of a task. Raises `TypeError`, `ValueError` or `UnsafeTiming` for what can't be."""
    unknown = sorted(given.keys() - ScheduleOptions.__annotations__.keys())
    if unknown:
        known = ", ".join(ScheduleOptions.__annotations__)
        raise TypeError(f"a task has no option {', '.join(unknown)}: there are {known}")
    terms = _read(schedule.period, given)
    if terms.everywhere:
        _check_everywhere(given)
    if not 1 <= terms.grace < float("inf"):
        raise UnsafeTiming(f"grace is {terms.grace:g} s: give at least 1 s, as clocks differ")
    if schedule.period is not None:
        _check_rhythm(terms, schedule.period)
    if terms.missed == "all" and terms.min_hold:
        raise ValueError(
            "missed='all' runs ticks right after one another, which min_hold forbids: leave one out"
        )
    return terms


def _read(period: float | None, given: ScheduleOptions) -> Terms:
    shortest = seconds(given.get("min_hold", 0), "min_hold")
    longest = HOUR if period is None else min(max(5 * period, MINUTE), DAY)
    grace = 5 * MINUTE if period is None else min(max(period, MINUTE), HOUR)
    hold = TaskLockConfig(
        min_hold=shortest,
        max_hold=given.get("max_hold", max(longest, shortest)),
        cancel=given.get("cancel", False),
    )
    return Terms(
        min_hold=shortest,
        max_hold=seconds(hold.max_hold),
        cancel=hold.cancel,
        jitter=seconds(given.get("jitter", 0), "jitter"),
        missed=_policy(given.get("missed", "skip")),
        grace=seconds(given.get("grace", grace), "grace"),
        leader=_leader(given.get("leader")),
        everywhere=_flag(given.get("everywhere", False)),
    )


def _check_everywhere(given: ScheduleOptions) -> None:
    senseless = sorted(given.keys() & {"min_hold", "max_hold", "cancel", "leader"})
    if senseless:
        raise ValueError(
            f"everywhere=True runs a task in each process without a lock, so {', '.join(senseless)} "
            "would mean nothing: leave one or the other out"
        )


def _check_rhythm(terms: Terms, period: float) -> None:
    if terms.jitter >= period:
        raise ValueError(
            f"jitter is {terms.jitter:g} s: it must be less than the period, {period:g} s"
        )
    if terms.min_hold + terms.jitter >= period:
        raise UnsafeTiming(
            f"min_hold is {terms.min_hold:g} s, and ticks are {period - terms.jitter:g} s apart or more: "
            "each run would keep the next from starting; give a shorter min_hold, or a longer period"
        )


def _policy(missed: Any) -> Missed:
    if missed not in get_args(Missed.__value__):
        raise ValueError(f"missed is {missed!r}: write 'skip', 'latest' or 'all'")
    policy: Missed = missed
    return policy


def _flag(everywhere: object) -> bool:
    if type(everywhere) is not bool:
        raise TypeError(f"everywhere is {everywhere!r}: give True or False")
    return everywhere


def _leader(leader: object) -> LeaderElection | Campaign | None:
    if leader is None or isinstance(leader, LeaderElection | Campaign):
        return leader
    raise TypeError(f"leader is {leader!r}: give a dibs.LeaderElection, or a campaign of one")
