"""A lock around a Celery task: named after its arguments, and renewed while it runs."""

import functools
import inspect
from collections.abc import Callable
from random import uniform
from typing import Any, Literal, get_args

from dibs.config import seconds
from dibs.contrib import needs
from dibs.sync import (
    AcquireTimeout,
    Client,
    Duration,
    Lease,
    Lock,
    NameTemplate,
    Semaphore,
    as_current,
)

try:
    from celery import current_task  # type: ignore[import-untyped]
except ModuleNotFoundError as _error:
    raise needs("Celery", "celery") from _error

type OnBusy = Literal["retry", "skip", "raise"]

_LONGEST = 60.0
"""Seconds between two tries at most."""


def locked[F: Callable[..., Any]](
    template: str,
    *,
    on_busy: OnBusy = "retry",
    countdown: Duration | None = None,
    default: object = None,
    capacity: int | None = None,
    client: Client | str | None = None,
    **options: Any,
) -> Callable[[F], F]:
    """Hold the lock that `template` names while a task runs: written below `@app.task`.

    `"sync:{user_id}"` takes the argument `user_id`. With `capacity` it is one unit of a semaphore. Other
    options are the constructor's, with `wait` 0 unless it is given; `current_lease()` inside is the lease.

    Contention: with `retry`, the default, Celery sends the task again after `countdown` seconds, as often as
    needed. Without `countdown` it waits about as long as the holder has held the lock so far, 0.5 to 60 s.
    The task's `max_retries` is not used up; its `expires` bounds the retries. With `skip` the task succeeds
    with `default`. With `raise`, and in a direct call or eager mode, it fails with `AcquireTimeout`.
    Expiry: the lease is renewed while the task runs. If it is lost, the task fails with `LeaseLost` at its
    end and at each `current_lease().ensure()`; it is not interrupted. After a worker is killed, the lock is
    free when the ttl is over. Raises `ValueError` at decoration for a field that is no parameter.
    """
    if on_busy not in get_args(OnBusy.__value__):
        raise ValueError(f"on_busy is {on_busy!r}: write 'retry', 'skip' or 'raise'")
    after = None if countdown is None else seconds(countdown, "countdown")
    options.setdefault("wait", 0)
    make = functools.partial(_resource, capacity=capacity, client=client, options=options)
    make(template)  # raises for wrong options

    def decorate(function: F) -> F:
        _refuse(function)
        name = NameTemplate(template, function)

        @functools.wraps(function)
        def task(*args: Any, **kwargs: Any) -> Any:
            try:
                lease = make(name.name(args, kwargs)).acquire()
            except AcquireTimeout as busy:
                if on_busy == "skip":
                    return default
                if on_busy == "retry":
                    _send_again(busy, after)
                raise
            return _run(lease, function, args, kwargs)

        # Celery checks a call's arguments by this, and follows no __wrapped__
        task.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        return task  # type: ignore[return-value]

    return decorate


def _run(
    lease: Lease, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    with lease, as_current(lease):
        return function(*args, **kwargs)


def _resource(
    name: str | bytes, capacity: int | None, client: Client | str | None, options: dict[str, Any]
) -> Lock | Semaphore:
    if capacity is None:
        return Lock(name, client=client, **options)
    return Semaphore(name, capacity, client=client, **options)


def _refuse(function: object) -> None:
    """Raises `TypeError` for what can't be a task's function."""
    if getattr(function, "delay", None) is not None:
        raise TypeError("write @locked(...) below @app.task, not above it")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(f"{function!r} is no plain function, which is all that Celery runs")


def _send_again(busy: AcquireTimeout, countdown: float | None) -> None:
    """Send the task that is running once more, and raise Celery's `Retry`; return where that is in vain."""
    request = current_task.request if current_task else None
    if request is None or request.called_directly or request.is_eager:
        return
    if countdown is None:
        held_for = min((holder.held_for for holder in busy.holders), default=0.0)
        longest = min(max(held_for, 1.0), _LONGEST)
        countdown = uniform(0.5, 1.0) * longest  # noqa: S311  # spreads the tries of several tasks
    request.retries -= 1  # waiting for its turn uses up none of the task's own retries
    try:
        current_task.retry(exc=busy, countdown=countdown)
    finally:
        request.retries += 1
