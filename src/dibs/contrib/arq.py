"""A lock around an arq job: named after its arguments, and renewed while it runs."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, NoReturn

from dibs import AcquireTimeout, Client, Duration
from dibs.contrib import needs
from dibs.contrib.jobs import OnBusy, locking

try:
    from arq.constants import retry_key_prefix
    from arq.worker import Retry
except ModuleNotFoundError as _error:
    raise needs("arq", "arq") from _error


def locked[F: Callable[..., Any]](
    template: str,
    *,
    on_busy: OnBusy = "retry",
    delay: Duration | None = None,
    default: object = None,
    capacity: int | None = None,
    client: Client | str | None = None,
    **options: Any,
) -> Callable[[F], F]:
    """Hold the lock that `template` names while a job runs: above the coroutine function.

    `"sync:{user_id}"` takes the argument `user_id`. With `capacity` it is one unit of a semaphore. Other
    options are the constructor's, with `wait` 0 unless it is given; `current_lease()` inside is the lease.

    Contention: with `retry`, the default, arq runs the job again after `delay` seconds, as often as needed.
    Without `delay` it waits about as long as the holder has held the lock so far, 0.5 to 60 s. The job's
    `max_tries` is not used up. With `skip` the job succeeds with `default`. With `raise`, and in a direct
    call, it fails with `AcquireTimeout`. Expiry: the lease is renewed while the job runs. If it is lost,
    the job is cancelled and fails with `LeaseLost`. After a worker is killed, the lock is free when the ttl
    is over. At decoration a field that is no parameter raises `ValueError`, and a plain function `TypeError`.
    """
    hold = locking(
        template,
        _run_again,
        on_busy=on_busy,
        delay=delay,
        default=default,
        capacity=capacity,
        client=client,
        **options,
    )

    def decorate(function: F) -> F:
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"{function!r} is no coroutine function, which is all that arq runs")
        held = hold(function)

        @functools.wraps(function)
        async def job(ctx: dict[Any, Any], *args: Any, **kwargs: Any) -> Any:
            try:
                return await held(ctx, *args, **kwargs)
            except _Busy as error:
                if "job_id" not in ctx:
                    raise error.busy from None
                # arq has counted this try once: waiting for its turn uses up none of `max_tries`
                if error.is_counted:
                    error.is_counted = False
                    await ctx["redis"].decr(retry_key_prefix + ctx["job_id"])
                raise

        return job  # type: ignore[return-value]

    return decorate


class _Busy(Retry):
    """The lock is held. If a locked job calls another one, the error passes both."""

    def __init__(self, busy: AcquireTimeout, delay: float) -> None:
        super().__init__(defer=delay)
        self.busy = busy
        self.is_counted = True
        """Whether this try is still one of `max_tries`."""


def _run_again(busy: AcquireTimeout, delay: float) -> NoReturn:
    raise _Busy(busy, delay) from busy
