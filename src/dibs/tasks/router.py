"""Declaring tasks: what `Tasks` and `TaskRouter` have in common, and the latter."""

from collections.abc import Callable
from dataclasses import replace
from datetime import tzinfo
from typing import Any, Unpack

from dibs import LeaderElection
from dibs.config import Duration
from dibs.tasks.definition import (
    Definition,
    Lasting,
    Led,
    Scheduled,
    ScheduleOptions,
    called,
    check_function,
    check_name,
    default_name,
    is_async,
    read_terms,
)
from dibs.tasks.schedule import Cron, Every, needs_cronsim


class Registry:
    """Tasks by their names, which are unique."""

    def __init__(self) -> None:
        self._definitions: dict[str, Definition] = {}

    def every[F: Callable[[], Any]](
        self, period: Duration, *, offset: Duration = 0, **options: Unpack[ScheduleOptions]
    ) -> Callable[[F], F]:
        """Run the decorated function at the multiples of `period` since 1970, each `offset` later.

        Durations are seconds, or texts such as "60s". The function takes no arguments; a coroutine
        function runs in the loop, a plain one in a thread. Raises `ValueError`, `TypeError` or
        `UnsafeTiming` for invalid options.
        """
        return self._decorator(Every(period, offset), options)

    def cron[F: Callable[[], Any]](
        self,
        expression: str,
        *,
        timezone: str | tzinfo | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Callable[[F], F]:
        """Run the decorated function at the local times that a cron expression names.

        The zone is that of `Tasks` unless given here. Raises as `every`, and `ImportError` without
        `dibs[tasks]`.
        """
        needs_cronsim()
        return self._decorator(Cron(expression, timezone), options)

    def add[T](self, task: T, *, name: str | None = None) -> T:
        """A task without a schedule: a coroutine function that goes on, or a leader election.

        A function is called at the start, and cancelled at the stop; when it ends it isn't called again.
        An election is stood for in the background. Returns what it was given.
        """
        if isinstance(task, LeaderElection):
            self._define(Led(check_name(_leader_name(task) if name is None else name), task))
            return task
        check_function(task)
        function: Any = task
        if not is_async(function):
            raise TypeError(
                f"{called(function)} is a plain function, which nothing could stop: give a coroutine "
                "function, or a schedule with every() or cron()"
            )
        self._define(
            Lasting(check_name(default_name(function) if name is None else name), function)
        )
        return task

    def include_router(self, router: "TaskRouter", *, prefix: str = "") -> None:
        """Take over the tasks of a router, with `prefix/` before their names."""
        given: object = router
        if given is self or not isinstance(given, TaskRouter):
            raise TypeError(f"{given!r} can't be included here: give another TaskRouter")
        router._included = True
        for definition in list(router._definitions.values()):
            name = f"{prefix.removesuffix('/')}/{definition.name}" if prefix else definition.name
            self._define(replace(definition, name=check_name(name)))

    def _decorator[F: Callable[[], Any]](
        self, schedule: Every | Cron, options: ScheduleOptions
    ) -> Callable[[F], F]:
        terms = read_terms(schedule, options)

        def decorate(function: F) -> F:
            check_function(function)
            name = options["name"] if "name" in options else default_name(function)
            self._define(Scheduled(check_name(name), function, schedule, terms))
            return function

        return decorate

    def _define(self, definition: Definition) -> None:
        if definition.name in self._definitions:
            raise ValueError(
                f"there is a task named {definition.name!r} already: give one of them another name="
            )
        self._definitions[definition.name] = definition


class TaskRouter(Registry):
    """Tasks that are declared in one place and run in another: see `include_router`."""

    def __init__(self) -> None:
        super().__init__()
        self._included = False

    def _define(self, definition: Definition) -> None:
        if self._included:
            raise RuntimeError(
                f"this router was included already, so {definition.name!r} would never run: "
                "declare its tasks first"
            )
        super()._define(definition)


def _leader_name(election: LeaderElection) -> str:
    name = election.name
    return f"leader:{name if isinstance(name, str) else name.decode('utf-8', 'backslashreplace')}"
