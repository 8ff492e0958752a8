"""What the `locked` decorators of job queues share: `Lock.wraps`, with a retry of the queue's own."""

from collections.abc import Callable
from functools import partial
from random import uniform
from typing import Any, Literal, NoReturn, get_args

from dibs.config import seconds
from dibs.sync import AcquireTimeout, Duration, Lock, Semaphore

type OnBusy = Literal["retry", "skip", "raise"]

_LONGEST = 60.0
"""Seconds between two tries at most, without a delay of the user's."""


def locking(
    template: str,
    retry: Callable[[AcquireTimeout, float], NoReturn],
    *,
    on_busy: OnBusy,
    delay: Duration | None,
    capacity: int | None,
    **options: Any,
) -> Callable[[Callable[..., Any]], Any]:
    """The decorator of `Lock.wraps`, or with a capacity that of `Semaphore.wraps`.

    Contention: one try, unless the options have a `wait`. With `on_busy="retry"` it calls `retry` with the
    error and the seconds until the next try: `delay`, or about as long as the holder has held the lock so
    far, 0.5 to 60 s. `retry` raises what makes the queue run the job again. Raises `ValueError` and
    `TypeError` for wrong options.
    """
    if on_busy not in get_args(OnBusy.__value__):
        raise ValueError(f"on_busy is {on_busy!r}: write 'retry', 'skip' or 'raise'")
    after = None if delay is None else seconds(delay, "delay")

    def again(busy: AcquireTimeout) -> NoReturn:
        retry(busy, _pause(busy) if after is None else after)

    options = {"wait": 0, **options, "on_busy": again if on_busy == "retry" else on_busy}
    wraps = Lock.wraps if capacity is None else partial(Semaphore.wraps, capacity=capacity)
    decorator: Callable[[Callable[..., Any]], Any] = wraps(template, **options)
    return decorator


def _pause(busy: AcquireTimeout) -> float:
    held_for = min((holder.held_for for holder in busy.holders), default=0.0)
    longest = min(max(held_for, 1.0), _LONGEST)
    return uniform(0.5, 1.0) * longest  # noqa: S311  # spreads the tries of several jobs
