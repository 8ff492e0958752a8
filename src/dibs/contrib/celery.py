"""A lock around a Celery task: named after its arguments, and renewed while it runs."""

import inspect
from collections.abc import Callable
from typing import Any, NoReturn

from dibs.config import seconds
from dibs.contrib import needs
from dibs.contrib.jobs import OnBusy, locking
from dibs.sync import AcquireTimeout, Client, Duration

try:
    from celery import current_task  # type: ignore[import-untyped]
except ModuleNotFoundError as _error:
    raise needs("Celery", "celery") from _error


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
    hold = locking(
        template,
        _send_again,
        on_busy=on_busy,
        delay=None if countdown is None else seconds(countdown, "countdown"),
        default=default,
        capacity=capacity,
        client=client,
        **options,
    )

    def decorate(function: F) -> F:
        _refuse(function)
        task = hold(function)
        # Celery checks a call's arguments by this, and follows no __wrapped__
        task.__signature__ = inspect.signature(function)
        return task  # type: ignore[no-any-return]

    return decorate


def _refuse(function: object) -> None:
    """Raises `TypeError` for what can't be a task's function."""
    if getattr(function, "delay", None) is not None:
        raise TypeError("write @locked(...) below @app.task, not above it")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(f"{function!r} is no plain function, which is all that Celery runs")


def _send_again(busy: AcquireTimeout, countdown: float) -> NoReturn:
    """Send the running task once more, and raise Celery's `Retry`; raise `busy` if nothing would run it."""
    request = current_task.request if current_task else None
    if request is None or request.called_directly or request.is_eager:
        raise busy
    request.retries -= 1  # waiting for its turn uses up none of the task's own retries
    try:
        current_task.retry(exc=busy, countdown=countdown)
    finally:
        request.retries += 1
    raise busy
