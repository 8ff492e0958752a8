"""How something that was called for a task came to its end."""

import asyncio
from collections.abc import Awaitable, Callable

from dibs.tasks.functions import is_cancelled
from dibs.tasks.status import Outcome

type Ended = Callable[[Outcome, BaseException | None], None]


async def outcome_of(
    call: Callable[[], Awaitable[object]],
    ended: Ended,
    *,
    is_loss: Callable[[BaseException], bool] = lambda _: False,
) -> tuple[Outcome, BaseException | None]:
    """Call and await it: its outcome, and the error if it failed. `ended` is told both, in any case.

    Raises nothing but a cancellation that somebody asked for. `is_loss`: that error means a lost lease.
    """
    outcome: Outcome = "done"
    failure: BaseException | None = None
    try:
        await call()
    except asyncio.CancelledError as error:
        if is_cancelled():
            outcome = "cancelled"
            raise
        outcome, failure = "failed", error
    except (Exception, SystemExit) as error:  # noqa: BLE001  # it is reported
        outcome, failure = ("lost" if is_loss(error) else "failed"), error
    finally:
        ended(outcome, failure)
    return outcome, failure
