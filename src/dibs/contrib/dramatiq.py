"""A lock around a Dramatiq actor: named after its arguments, and renewed while it runs."""

from collections.abc import Callable
from typing import Any, NoReturn

from dibs.contrib import needs
from dibs.contrib.jobs import OnBusy, locking
from dibs.sync import AcquireTimeout, Client, Duration

try:
    from dramatiq import Retry
    from dramatiq.middleware import CurrentMessage
except ModuleNotFoundError as _error:
    raise needs("Dramatiq", "dramatiq") from _error


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
    """Hold the lock that `template` names while an actor runs: written below `@dramatiq.actor`.

    `"sync:{user_id}"` takes the argument `user_id`. With `capacity` it is one unit of a semaphore. Other
    options are the constructor's, with `wait` 0 unless it is given; `current_lease()` inside is the lease.

    Contention: with `retry`, the default, Dramatiq enqueues the message again after `delay` seconds, as
    often as needed. Without `delay` it waits about as long as the holder has held the lock so far, 0.5 to
    60 s. The actor's `max_retries` is not used up; its `max_age` bounds the retries. This needs Dramatiq's
    `CurrentMessage` in the broker: without it, and in a direct call, and with `raise`, the actor fails with
    `AcquireTimeout`. With `skip` it succeeds with `default`. Expiry: the lease is renewed while the actor
    runs. If it is lost, a plain function fails with `LeaseLost` at its end and at each
    `current_lease().ensure()`, and a coroutine function is cancelled. After a worker is killed, the lock is
    free when the ttl is over. Raises `ValueError` at decoration for a field that is no parameter.
    """
    return locking(
        template,
        _enqueue_again,
        on_busy=on_busy,
        delay=delay,
        default=default,
        capacity=capacity,
        client=client,
        **options,
    )


def _enqueue_again(busy: AcquireTimeout, delay: float) -> NoReturn:
    """Raise Dramatiq's `Retry`, which it does not log as an error; raise `busy` without a message."""
    message = CurrentMessage.get_current_message()
    if message is None:
        raise busy
    # Dramatiq adds one to it: waiting for its turn uses up none of the actor's own retries
    message.options["retries"] = message.options.get("retries", 0) - 1
    raise Retry(str(busy), delay=round(delay * 1000)) from busy
