"""The decorator of task locks: a call that may not start is refused, or skipped."""

from collections.abc import Callable
from typing import Any

from dibs.faces.wraps import check, wrapped_in
from dibs.primitives.tasklock import task_configured


def wraps_task[F: Callable[..., Any]](
    template: str,
    on_busy: str,
    default: object,
    hold: dict[str, Any],
    loading: dict[str, Any],
    about: dict[str, Any],
) -> Callable[[F], F]:
    """What `TaskLock.wraps` of both worlds does; see there."""
    check(template, on_busy)
    config = task_configured(template, hold, **loading)

    def decorate(function: F) -> F:
        return wrapped_in(_task_locks, function, template, config, about, on_busy, default)

    return decorate


def _task_locks(asynchronous: bool) -> Any:
    """The class of the world that a function is of."""
    if asynchronous:
        from dibs.faces.aio_tasklock import TaskLock
    else:
        from dibs.faces.blocking_tasklock import TaskLock  # type: ignore[assignment]
    return TaskLock
